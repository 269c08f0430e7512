"""What an evaluation found, as frozen records and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Recall:
    """Facts asked for at the end of a text, by the depth they stood at.

    ``depths``: shares of the text before the fact. ``logprobs``: the mean log-probability of the right answer to a
    fact of that depth, all its tokens together, in nats. ``accuracy``: the share of all answers whose every token was
    the likeliest. ``num_questions``: how many were asked, at all depths.
    """

    depths: tuple[float, ...]
    logprobs: tuple[float, ...]
    accuracy: float
    num_questions: int

    @property
    def logprob(self) -> float:
        """The mean over all depths, in nats."""
        return math.fsum(self.logprobs) / len(self.logprobs)

    def as_json(self) -> dict[str, Any]:
        return {
            "depths": list(self.depths),
            "logprobs": [_number(value) for value in self.logprobs],
            "accuracy": self.accuracy,
            "num_questions": self.num_questions,
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Recall:
        """What :meth:`as_json` gave.

        Raises:
            KeyError, TypeError, ValueError: these are not such facts.
        """
        depths = tuple(float(depth) for depth in facts["depths"])
        logprobs = tuple(_from_number(value, -math.inf) for value in facts["logprobs"])
        if not depths or len(depths) != len(logprobs):
            raise ValueError(f"{len(depths)} depths cannot have {len(logprobs)} log-probabilities")
        return cls(depths, logprobs, float(facts["accuracy"]), int(facts["num_questions"]))


@dataclass(frozen=True, slots=True)
class ContextQuality:
    """One format at one length of context.

    Attributes:
        context: tokens of a window.
        num_tokens: tokens that were predicted, of all windows.
        perplexity: of the text; exp of the mean negative log-probability.
        kl_mean, kl_p99: the KL divergence KL(P_bf16 || P) of the next token's distribution, in nats: mean over all
            tokens, and 99th percentile.
        top1_agreement: share of tokens whose likeliest successor is that of bf16.
        recall: ``None`` where the context is too short for it.
        decode_tokens_per_second: of one sequence at this length. A measured time: it does not count when two
            results are compared.
    """

    context: int
    num_tokens: int
    perplexity: float
    kl_mean: float
    kl_p99: float
    top1_agreement: float
    recall: Recall | None
    decode_tokens_per_second: float = field(compare=False)

    def as_json(self) -> dict[str, Any]:
        return {
            "context": self.context,
            "num_tokens": self.num_tokens,
            "perplexity": _number(self.perplexity),
            "kl_mean": _number(self.kl_mean),
            "kl_p99": _number(self.kl_p99),
            "top1_agreement": self.top1_agreement,
            "recall": None if self.recall is None else self.recall.as_json(),
            "decode_tokens_per_second": self.decode_tokens_per_second,
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> ContextQuality:
        """What :meth:`as_json` gave.

        Raises:
            KeyError, TypeError, ValueError: these are not such facts.
        """
        recall = facts["recall"]
        perplexity = _from_number(facts["perplexity"], math.inf)
        if not perplexity >= 1:
            raise ValueError(f"a perplexity is at least 1, not {perplexity}")
        return cls(
            context=int(facts["context"]),
            num_tokens=int(facts["num_tokens"]),
            perplexity=perplexity,
            kl_mean=_from_number(facts["kl_mean"], math.inf),
            kl_p99=_from_number(facts["kl_p99"], math.inf),
            top1_agreement=float(facts["top1_agreement"]),
            recall=None if recall is None else Recall.from_json(recall),
            decode_tokens_per_second=float(facts["decode_tokens_per_second"]),
        )


@dataclass(frozen=True, slots=True)
class FormatReport:
    """One KV format.

    ``kv_dtype``: its name. ``layers``: what each layer has, as ``"key:value"``; another than the name says where some
    are kept at 8 bits. ``bytes_per_token``: of all layers, scales included. ``contexts``: ascending.
    """

    kv_dtype: str
    layers: tuple[str, ...]
    bytes_per_token: int
    contexts: tuple[ContextQuality, ...]

    def at(self, context: int) -> ContextQuality:
        """What was found at one length of context.

        Raises:
            KeyError: it was not evaluated at that length.
        """
        for quality in self.contexts:
            if quality.context == context:
                return quality
        raise KeyError(context)

    def as_json(self) -> dict[str, Any]:
        return {
            "kv_dtype": self.kv_dtype,
            "layers": list(self.layers),
            "bytes_per_token": self.bytes_per_token,
            "contexts": [quality.as_json() for quality in self.contexts],
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> FormatReport:
        """What :meth:`as_json` gave.

        Raises:
            KeyError, TypeError, ValueError: these are not such facts.
        """
        return cls(
            kv_dtype=str(facts["kv_dtype"]),
            layers=tuple(str(layer) for layer in facts["layers"]),
            bytes_per_token=int(facts["bytes_per_token"]),
            contexts=tuple(ContextQuality.from_json(quality) for quality in facts["contexts"]),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """All formats of one evaluation, ``bf16`` first: every other one is measured against it.

    ``model``: its name, without the folders before it. ``isa``, ``threads``: what computed it. ``text``: the name of
    the text, ``text_sha256`` its digest.
    """

    model: str
    isa: str
    threads: int
    text: str
    text_sha256: str
    formats: tuple[FormatReport, ...]

    @property
    def contexts(self) -> tuple[int, ...]:
        """Lengths of context, ascending."""
        return tuple(quality.context for quality in self.formats[0].contexts)

    def perplexity_increase(self, kv_dtype: str, context: int) -> float:
        """How much the perplexity of a format is above that of bf16, as a share: 0.01 is one per cent.

        Raises:
            KeyError: that was not evaluated.
        """
        return increase(self.format(kv_dtype).at(context), self.formats[0].at(context))

    def format(self, kv_dtype: str) -> FormatReport:
        """What was found about one format, by its name.

        Raises:
            KeyError: it was not evaluated.
        """
        for each in self.formats:
            if each.kv_dtype == kv_dtype:
                return each
        raise KeyError(kv_dtype)

    def only(self, kv_dtype: str) -> Report:
        """The same about bf16 and one other format alone.

        Raises:
            KeyError: it was not evaluated.
        """
        return replace(self, formats=(self.formats[0], self.format(kv_dtype)))

    def as_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``. What is infinite is ``None`` there, for JSON has no such number."""
        return {
            "model": self.model,
            "isa": self.isa,
            "threads": self.threads,
            "text": self.text,
            "text_sha256": self.text_sha256,
            "formats": [each.as_json() for each in self.formats],
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Report:
        """What :meth:`as_json` gave.

        Raises:
            KeyError, TypeError, ValueError: these are not such facts.
        """
        return cls(
            model=str(facts["model"]),
            isa=str(facts["isa"]),
            threads=int(facts["threads"]),
            text=str(facts["text"]),
            text_sha256=str(facts["text_sha256"]),
            formats=tuple(FormatReport.from_json(each) for each in facts["formats"]),
        )


def increase(quality: ContextQuality, bf16: ContextQuality) -> float:
    """How much a perplexity is above that of bf16, as a share."""
    return quality.perplexity / bf16.perplexity - 1


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _from_number(value: float | None, infinite: float) -> float:
    return infinite if value is None else float(value)
