"""What is counted of every row of logits: how well it predicts the text, and how far it is from bf16's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Rows:
    """One entry for each of r rows of logits. All in double precision, natural logarithms.

    ``nll [r]``: minus the log-probability of the token that follows. ``kl [r]``: KL(P || Q), the divergence of this
    distribution Q from that of bf16, P. ``agrees [r]``: both have the same likeliest token. A row that holds anything
    but finite numbers predicts nothing: infinite ``nll`` and ``kl``, no agreement.
    """

    nll: Float64s
    kl: Float64s
    agrees: Bools

    @classmethod
    def join(cls, parts: list[Rows]) -> Rows:
        """All rows of several, in order."""
        return cls(
            np.concatenate([part.nll for part in parts]),
            np.concatenate([part.kl for part in parts]),
            np.concatenate([part.agrees for part in parts]),
        )

    @property
    def perplexity(self) -> float:
        """exp of the mean ``nll``: the token that follows is on average as likely as one in this many."""
        with np.errstate(over="ignore"):
            return float(np.exp(self.nll.mean()))


class Reference:
    """Logits ``[r, vocab]`` of bf16, which every format's are compared with; what they need is computed once."""

    def __init__(self, logits: Float32s) -> None:
        self._logits = logits
        self._log_sums = log_sums(logits)
        self._best = logits.argmax(axis=1)
        self._shares = [_exp_less(row, log_sum) for row, log_sum in zip(logits, self._log_sums, strict=True)]

    def compare(self, logits: Float32s, targets: Int32s) -> Rows:
        """Rows for the same tokens' logits ``[r, vocab]`` in some format; ``targets [r]`` are the tokens that follow.

        With the same logits ``kl`` is exactly 0 everywhere.
        """
        sums = log_sums(logits)
        sound = np.isfinite(sums) & np.isfinite(self._log_sums)
        nll, kl = np.full(len(targets), np.inf), np.full(len(targets), np.inf)
        for row in np.flatnonzero(sound):
            nll[row] = sums[row] - logits[row, targets[row]]
            # KL = sum of p (log p - log q), with the logits as differences: what is nearly equal is subtracted first.
            moved = np.subtract(logits[row], self._logits[row], dtype=np.float64)
            kl[row] = max(sums[row] - self._log_sums[row] - self._shares[row] @ moved, 0.0)
        return Rows(nll, kl, sound & (logits.argmax(axis=1) == self._best))


def log_sums(logits: Float32s) -> Float64s:
    """Logarithm of the sum of exponentials of each row of ``[r, vocab]``, in double precision: ``[r]``.

    A logit less this is a log-probability. NaN for a row that holds anything but finite numbers.
    """
    sums = np.full(len(logits), np.nan)
    for index, row in enumerate(logits):  # one row at a time stays in the processor's cache
        if np.isfinite(row).all():
            largest = np.float64(row.max())
            sums[index] = largest + np.log(_exp_less(row, largest).sum())
    return sums


def _exp_less(row: Float32s, amount: np.float64) -> Float64s:
    less = np.subtract(row, amount, dtype=np.float64)
    return np.exp(less, out=less)
