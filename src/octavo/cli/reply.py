"""One streamed answer and its figures: what was reused, what was computed, and how fast."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.intake import Prompt
    from octavo.engine.outputs import RequestOutput
    from octavo.engine.sampling_params import SamplingParams
    from octavo.llm import LLM


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one prompt. ``interrupted``: by Ctrl-C, so that it may be incomplete."""

    output: RequestOutput
    interrupted: bool = False

    @property
    def text(self) -> str:
        return self.output.outputs[0].text if self.output.outputs else ""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.output.prompt_token_ids)

    @property
    def num_cached_tokens(self) -> int:
        return self.output.num_cached_tokens

    @property
    def num_computed_tokens(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.num_prompt_tokens - self.num_cached_tokens

    @property
    def num_output_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.output.outputs)

    @property
    def time_to_first_token(self) -> float | None:
        return self.output.metrics.time_to_first_token

    @property
    def tokens_per_second(self) -> float | None:
        """Speed after the first token, of all answers together; ``None`` where there is nothing to measure."""
        metrics = self.output.metrics
        later_tokens = self.num_output_tokens - len(self.output.outputs)
        if metrics.first_token_time is None or metrics.finished_time is None or later_tokens < 1:
            return None
        seconds = metrics.finished_time - metrics.first_token_time
        return later_tokens / seconds if seconds > 0 else None

    def figures(self) -> str:
        """One line for people."""
        parts = [
            f"{self.num_cached_tokens:,} of {self.num_prompt_tokens:,} prompt tokens reused",
            f"{self.num_computed_tokens:,} computed",
        ]
        if self.time_to_first_token is not None:
            parts.append(f"first token after {self.time_to_first_token:.3f} s")
        parts.append(f"{self.num_output_tokens:,} generated")
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:.1f} tokens/s")
        if self.interrupted:
            parts.append("interrupted")
        elif any(answer.finish_reason == "length" for answer in self.output.outputs):
            parts.append("cut at the token limit")
        return " | ".join(parts)


def stream_reply(
    llm: LLM,
    prompt: Prompt,
    params: SamplingParams,
    write: Callable[[str], object],
    *,
    keep_when_interrupted: bool = False,
    timeout: float | None = None,
) -> Reply | None:
    """Answer one prompt, giving each piece of text to ``write`` as it comes.

    Args:
        keep_when_interrupted: Ctrl-C ends the answer and not the program; what there is of it is returned, or
            ``None`` if there is nothing yet.
        timeout: seconds after which the answer ends as it is.

    Raises:
        InvalidRequestError: before anything is written.
        KeyboardInterrupt: unless ``keep_when_interrupted``.
    """
    whole: RequestOutput | None = None
    increments = llm.stream(prompt, params, timeout=timeout)
    try:
        for increment in increments:
            # Kept before it is shown: what was seen belongs to an interrupted reply.
            if whole is None:
                whole = increment
            else:
                whole.extend(increment)
            for answer in increment.outputs:
                write(answer.text)
    except KeyboardInterrupt:
        if not keep_when_interrupted:
            raise
        increments.close()  # type: ignore[attr-defined]  # a generator: closing it aborts the request
        return None if whole is None else Reply(whole, interrupted=True)
    assert whole is not None  # the engine ends every request with an output
    return Reply(whole)


def write_now(text: str) -> None:
    """Write to stdout and let it be seen."""
    sys.stdout.write(text)
    sys.stdout.flush()
