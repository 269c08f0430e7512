"""Unfinished: the requests under way. What is drawn for them is appended, and whatever ends is ended here."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set

from octavo.engine.batch import Draw
from octavo.engine.outputs import CompletionOutput, FinishReason, RequestOutput, TokenLogprobs
from octavo.engine.prompt_scores import token_logprobs
from octavo.engine.request import Request, RequestGroup, RequestStatus
from octavo.engine.scheduler import Scheduler
from octavo.engine.stats import EngineStats
from octavo.model.runner import Samples
from octavo.text.tokenizer import Tokenizer


class Unfinished:
    """The request groups that are not finished. Part of an :class:`~octavo.engine.engine.Engine`, on its thread.

    Args:
        eos_token_ids: tokens that end an answer.
    """

    def __init__(
        self, scheduler: Scheduler, stats: EngineStats, tokenizer: Tokenizer | None, eos_token_ids: Set[int]
    ) -> None:
        self._scheduler = scheduler
        self._stats = stats
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._groups: dict[str, RequestGroup] = {}
        self._timed: list[RequestGroup] = []  # those that have a deadline
        self._token_texts: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._groups

    def get(self, request_id: str) -> RequestGroup | None:
        """The group of this name; ``None``: there is none, or it has ended."""
        return self._groups.get(request_id)

    def add(self, group: RequestGroup) -> None:
        """Mutates: ``group``, whose requests are queued, is under way from now on."""
        self._groups[group.request_id] = group
        if group.deadline is not None:
            self._timed.append(group)

    def clear(self) -> None:
        """Mutates: nothing is under way any more; nobody is told."""
        self._groups.clear()
        self._timed.clear()

    def append(self, draws: Sequence[Draw], samples: Samples) -> list[RequestOutput]:
        """Mutates: each request has its drawn token, and ends if it must. Returns what is new of each group."""
        now = time.monotonic()
        news: dict[RequestGroup, list[CompletionOutput]] = {}
        for index, ((request, _), token) in enumerate(zip(draws, samples.token_ids.tolist(), strict=True)):
            group = request.group
            if group.metrics.first_token_time is None:
                group.metrics.first_token_time = now
            if token < 0:
                news.setdefault(group, []).append(self._end_without_token(request))
                continue
            completion = self._append_token(request, token)
            if group.params.logprobs is not None:
                self._add_logprobs(request, completion, token, index, samples)
            news.setdefault(group, []).append(completion)
        return [self._output(group, completions) for group, completions in news.items()]

    def end(self, group: RequestGroup, reason: FinishReason) -> RequestOutput:
        """Mutates: every request of ``group`` that has not ended does, whatever state it is in."""
        unfinished = [request for request in group.requests if request.status is not RequestStatus.FINISHED]
        return self._output(group, [self._end(request, reason) for request in unfinished])

    def end_late(self) -> list[RequestOutput]:
        """Mutates: every group whose deadline has passed ends."""
        if not self._timed:
            return []
        now = time.monotonic()
        late = [group for group in self._timed if group.deadline is not None and group.deadline <= now]
        return [self.end(group, "timeout") for group in late]

    def token_text(self, token: int) -> str | None:
        """What a token alone is shown as; ``None`` where there is no tokenizer."""
        if self._tokenizer is None:
            return None
        if token not in self._token_texts:
            self._token_texts[token] = self._tokenizer.decode([token], skip_special_tokens=False)
        return self._token_texts[token]

    def _append_token(self, request: Request, token: int) -> CompletionOutput:
        """Append a drawn token, end the answer if it must end, and return what is new of it."""
        params = request.group.params
        self._scheduler.append_token(request, token)
        self._stats.num_generated_tokens += 1
        is_eos = not params.ignore_eos and token in self._eos_token_ids
        stops = is_eos or token in (params.stop_token_ids or ())
        text, matched = "", None
        if self._tokenizer is not None and (not stops or params.include_stop_str_in_output):
            text, matched = request.answer.append(token)
        if request.shaping is not None and not stops:
            request.shaping.accept(token)
        if stops:
            completion = self._end(request, "stop", None if is_eos else token)
        elif matched is not None:
            completion = self._end(request, "stop", matched)
        elif request.shaping is not None and request.shaping.is_complete:
            completion = self._end(request, "stop")
        elif request.num_output_tokens >= request.group.max_output_tokens:
            completion = self._end(request, "length")
        else:
            completion = CompletionOutput(request.index)
        completion.text = text + completion.text
        completion.token_ids.append(token)
        return completion

    def _end_without_token(self, request: Request) -> CompletionOutput:
        grammar = None if request.shaping is None else request.shaping.grammar
        failure = None if grammar is None else grammar.failure
        return self._end(request, "error", failure or "no token may be drawn")

    def _end(self, request: Request, reason: FinishReason, stop_reason: int | str | None = None) -> CompletionOutput:
        """Finish a request; its last increment has the text that was held back, unless a stop string was."""
        self._scheduler.finish(request, reason, stop_reason)
        self._stats.num_finished[reason] += 1
        held_back = ""
        if self._tokenizer is not None and not (reason == "stop" and isinstance(stop_reason, str)):
            held_back = request.answer.finish()
        return CompletionOutput(
            request.index,
            held_back,
            cumulative_logprob=request.cumulative_logprob,
            finish_reason=reason,
            stop_reason=stop_reason,
        )

    def _output(self, group: RequestGroup, completions: list[CompletionOutput]) -> RequestOutput:
        """What is new of a group, and the end of the group if that was the end."""
        finished = group.finished
        if finished:
            group.metrics.finished_time = time.monotonic()
            del self._groups[group.request_id]
            if group.deadline is not None:
                self._timed.remove(group)
        return RequestOutput(
            request_id=group.request_id,
            prompt=group.prompt,
            prompt_token_ids=group.prompt_token_ids,
            outputs=completions,
            finished=finished,
            num_cached_tokens=group.num_cached_tokens or 0,
            metrics=group.metrics,
            prompt_logprobs=group.take_prompt_logprobs(),
        )

    def _add_logprobs(
        self, request: Request, completion: CompletionOutput, token: int, index: int, samples: Samples
    ) -> None:
        logprob = float(samples.logprobs[index])
        request.cumulative_logprob = (request.cumulative_logprob or 0.0) + logprob
        completion.cumulative_logprob = request.cumulative_logprob
        entry: TokenLogprobs = token_logprobs(
            token,
            logprob,
            int(samples.ranks[index]),
            samples.top_ids[index].tolist(),
            samples.top_logprobs[index].tolist(),
            request.group.params.logprobs or 0,
            self.token_text,
        )
        completion.logprobs = [entry]
