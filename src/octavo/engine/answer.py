"""AnswerText: one answer's text as its tokens arrive, cut at stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.sampling_params import SamplingParams
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.stop import StopChecker
from octavo.text.tokenizer import Tokenizer


class AnswerText:
    """Turns tokens into text that is safe to show: no half character, nothing of a stop string."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, prompt_token_ids, skip_special_tokens=params.skip_special_tokens
        )
        self._stops: StopChecker | None = None
        if params.stop_strings:
            self._stops = StopChecker(params.stop_strings, params.include_stop_str_in_output)

    def append(self, token: int) -> tuple[str, str | None]:
        """The text that one more token makes certain, and the stop string it completes, if any.

        A stop string that the first ``min_tokens`` tokens complete does not count.
        """
        self._num_tokens += 1
        text = self._detokenizer.append((token,))
        if self._stops is None:
            return text, None
        return self._stops.feed(text, stop_allowed=self._num_tokens > self._min_tokens)

    def finish(self) -> str:
        """What was held back as the possible beginning of a stop string or a character. Call it once."""
        text = self._detokenizer.flush()
        return text if self._stops is None else self._stops.feed(text, final=True, stop_allowed=False).text
