"""Completions as the client gets them: whole, or in chunks; with their prompt before them if that is wanted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from octavo.server.answers import Answer, Increment, Reply
from octavo.server.openai.chunks import DONE, ChunkWriter
from octavo.server.openai.completions_schema import CompletionRequest
from octavo.server.openai.logprobs import TextLogprobs, mean_logprob
from octavo.server.openai.together import interleaved
from octavo.server.usage import Usage
from octavo.text.reply_parts import Text
from octavo.text.tokenizer import Tokenizer


class CompletionReply:
    """Tells the answers to all prompts of one request. Choices are numbered prompt by prompt.

    Args:
        head: the fields that the completion and each of its chunks begin with.
    """

    def __init__(self, head: dict[str, Any], body: CompletionRequest, tokenizer: Tokenizer) -> None:
        self._head = head
        self._body = body
        self._tokenizer = tokenizer
        self._prompts = body.prompts
        self._wants_logprobs = body.logprobs is not None

    def whole(self, answers: Sequence[Answer], replies: Sequence[list[Reply]]) -> dict[str, Any]:
        """``replies``: of each answer, all that were drawn."""
        choices = [
            self._choice(place, answer, number, reply)
            for place, (answer, drawn) in enumerate(zip(answers, replies, strict=True))
            for number, reply in enumerate(self._best(drawn))
        ]
        return {**self._head, "choices": choices, "usage": _usage(answers).openai()}

    async def frames(self, answers: Sequence[Answer]) -> AsyncIterator[bytes]:
        """One frame for each increment that says something; those that came together go together."""
        n = self._body.num_choices
        write = ChunkWriter(self._head, _text_choice, n * len(answers), include_usage=self._body.include_usage)
        logprobs = [self._logprobs() for _ in range(n * len(answers))]
        if self._body.echo:
            yield b"".join(
                [
                    write.choice(self._echo(place * n + number, place, answer, logprobs[place * n + number]))
                    for place, answer in enumerate(answers)
                    for number in range(n)
                ]
            )
        async for place, news in interleaved(answers):
            frame = b"".join([self._frame(write, place * n, increment, logprobs) for increment in news])
            if frame:
                yield frame
        yield (write.usage(_usage(answers).openai()) if self._body.include_usage else b"") + DONE

    def _frame(
        self, write: ChunkWriter, first: int, increment: Increment, logprobs: Sequence[TextLogprobs | None]
    ) -> bytes:
        index = first + increment.choice
        text = _text(increment)
        report = logprobs[index]
        if increment.finish is None and report is None:
            return write.text(index, text) if text else b""
        found = None if report is None else report.of(increment.token_ids, increment.logprobs)
        return write.choice(
            {"index": index, "text": text, "logprobs": found, "finish_reason": _finish(increment.finish)}
        )

    def _echo(self, index: int, place: int, answer: Answer, logprobs: TextLogprobs | None) -> dict[str, Any]:
        found = None if logprobs is None else self._of_prompt(answer, logprobs)
        return {"index": index, "text": self._prompt_text(place), "logprobs": found, "finish_reason": None}

    def _choice(self, place: int, answer: Answer, number: int, reply: Reply) -> dict[str, Any]:
        logprobs, found = self._logprobs(), None
        if logprobs is not None:
            before = self._of_prompt(answer, logprobs) if self._body.echo else {}
            drawn = logprobs.of(reply.token_ids, reply.logprobs)
            found = {name: [*before.get(name, ()), *values] for name, values in drawn.items()}
        return {
            "index": place * self._body.num_choices + number,
            "text": (self._prompt_text(place) if self._body.echo else "") + reply.text,
            "logprobs": found,
            "finish_reason": _finish(reply.finish),
        }

    def _best(self, drawn: list[Reply]) -> list[Reply]:
        if not self._body.chooses:
            return drawn
        ranked = sorted(drawn, key=lambda reply: -mean_logprob(reply.token_ids, reply.logprobs))
        return ranked[: self._body.num_choices]

    def _logprobs(self) -> TextLogprobs | None:
        if not self._wants_logprobs:
            return None
        return TextLogprobs(self._tokenizer, skip_special_tokens=self._body.skip_special_tokens is not False)

    def _of_prompt(self, answer: Answer, logprobs: TextLogprobs) -> dict[str, list[Any]]:
        first = answer.first
        return logprobs.of_prompt(first.prompt_token_ids, first.prompt_logprobs or ())

    def _prompt_text(self, place: int) -> str:
        prompt = self._prompts[place]
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.decode(prompt, skip_special_tokens=self._body.skip_special_tokens is not False)


def _text(increment: Increment) -> str:
    return "".join([part.text for part in increment.parts if isinstance(part, Text)])


def _text_choice(text: str) -> dict[str, Any]:
    return {"text": text, "logprobs": None, "finish_reason": None}


def _finish(finish: str | None) -> str | None:
    return "stop" if finish == "stop_sequence" else finish


def _usage(answers: Sequence[Answer]) -> Usage:
    total = Usage()
    for answer in answers:
        total.add(answer.usage)
    return total
