"""LLM: a model in this process, asked synchronously."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from octavo.config import EngineConfig
from octavo.engine.assemble import Assembly, Messages, StartupSummary, assemble
from octavo.engine.assemble import Progress as LoadProgress
from octavo.engine.driver import Driver, Inbox
from octavo.engine.engine import Engine
from octavo.engine.intake import Prompt, RequestOptions, as_prompt, check_salt
from octavo.engine.outputs import RequestOutput
from octavo.engine.request import RequestGroup
from octavo.engine.sampling_params import SamplingParams
from octavo.engine.stats import EngineGauges, EngineStats
from octavo.errors import InvalidRequestError
from octavo.model.source import DEFAULT_MODEL
from octavo.text.chat import RenderedChat
from octavo.text.tokenizer import Tokenizer

_T = TypeVar("_T")


class LLM:
    """A model with its KV cache. Made once; asked as often as one likes, from any thread.

    Use it as a context manager, or call :meth:`close`, to give its memory back early.

    Args:
        model: a folder, a ``.gguf`` file, a hub id, or the name of the embedded model.
        revision: branch, tag or commit of a hub id.
        progress: told (bytes done, bytes in all) while the model is fetched and loaded.
        config: the fields of :class:`octavo.EngineConfig`: ``kv_memory``, ``block_size``, ``max_model_len``,
            ``threads``, ``max_num_seqs``, ``max_num_batched_tokens``, ``enable_prefix_caching``, ``seed``,
            ...

    Raises:
        ModelError, ConfigError: see :func:`octavo.engine.assemble.assemble`.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        *,
        revision: str | None = None,
        progress: LoadProgress | None = None,
        **config: Any,
    ) -> None:
        self._start(assemble(model, EngineConfig.of(config), revision=revision, progress=progress))

    @classmethod
    def from_assembly(cls, assembly: Assembly) -> LLM:
        """Take over an engine that was assembled elsewhere; nobody else may drive it from now on."""
        self = cls.__new__(cls)
        self._start(assembly)
        return self

    def _start(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._driver = Driver(assembly.engine)

    @property
    def summary(self) -> StartupSummary:
        """What was started: blocks, tokens, and bytes as planned and as allocated."""
        return self._assembly.summary

    @property
    def tokenizer(self) -> Tokenizer:
        return self._assembly.tokenizer

    @property
    def engine(self) -> Engine:
        """The engine itself, to look at; requests go through the methods here."""
        return self._assembly.engine

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        priority: int | Sequence[int] = 0,
        cache_salt: str | bytes = b"",
        timeout: float | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts, all of them at once, and return the whole answers in the order of the prompts.

        Args:
            prompts: one prompt or a list. A prompt is text, a list of token ids, ``{"prompt": text}`` or
                ``{"prompt_token_ids": ids}``. A flat list of numbers is one prompt.
            sampling_params: for all prompts, or one for each.
            use_tqdm: show a progress bar on standard error. ``None``: for several prompts, on a terminal.
            priority: lower runs first; for all prompts, or one for each.
            cache_salt: requests share cached blocks only under equal salts.
            timeout: seconds after which an answer ends as it is, with finish_reason ``"timeout"``.

        Raises:
            InvalidRequestError: a prompt or parameter cannot be served as given; before any is computed.
            EngineDeadError: the engine failed, now or earlier; ``__cause__`` says why.
        """
        listed = _prompt_list(prompts)
        given = SamplingParams() if sampling_params is None else sampling_params
        params = _one_each("sampling_params", given, SamplingParams, len(listed))
        priorities = _one_each("priority", priority, int, len(listed))
        accept = self.engine.intake.accept
        groups = [
            accept(prompt, params[index], options=RequestOptions(priorities[index], cache_salt, timeout))
            for index, prompt in enumerate(listed)
        ]
        if use_tqdm is None:
            use_tqdm = len(groups) > 1 and sys.stderr.isatty()
        return self._complete(groups, use_tqdm)

    @overload
    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: Literal[False] = False,
        use_tqdm: bool | None = None,
        priority: int = 0,
        cache_salt: str | bytes = b"",
        timeout: float | None = None,
        **template: Any,
    ) -> list[RequestOutput]: ...
    @overload
    def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        stream: Literal[True],
        priority: int = 0,
        cache_salt: str | bytes = b"",
        timeout: float | None = None,
        **template: Any,
    ) -> Iterator[RequestOutput]: ...
    def chat(
        self,
        messages: Any,
        sampling_params: Any = None,
        *,
        stream: bool = False,
        use_tqdm: bool | None = None,
        priority: int = 0,
        cache_salt: str | bytes = b"",
        timeout: float | None = None,
        **template: Any,
    ) -> list[RequestOutput] | Iterator[RequestOutput]:
        """Answer a conversation or a list of them; otherwise as :meth:`generate`, or :meth:`stream`.

        Args:
            messages: ``[{"role": ..., "content": ...}, ...]``, or a list of such lists.
            stream: yield increments of the one answer instead of returning whole ones.
            template: how to render: ``tools``, ``documents``, ``add_generation_prompt`` (by default unless the
                final message is continued), ``continue_final_message``, ``chat_template``,
                ``chat_template_kwargs``; see :meth:`render`.

        Raises:
            TemplateError: the model has no chat template, or it refuses these messages.
            InvalidRequestError, EngineDeadError: as :meth:`generate`.
        """
        single = not (_is_list(messages) and messages and _is_list(messages[0]))
        conversations = [messages] if single else list(messages)
        prompts = [as_prompt(self.render(conversation, **template)) for conversation in conversations]
        if stream:
            if not single:
                raise InvalidRequestError("one conversation at a time can be streamed", param="stream")
            return self.stream(prompts[0], sampling_params, priority=priority, cache_salt=cache_salt, timeout=timeout)
        return self.generate(
            prompts,
            sampling_params,
            use_tqdm=use_tqdm,
            priority=priority,
            cache_salt=cache_salt,
            timeout=timeout,
        )

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | bytes = b"",
        timeout: float | None = None,
    ) -> Iterator[RequestOutput]:
        """Answer one prompt in increments, as they are computed; see :class:`RequestOutput` for their shape.

        Each holds only what is new: joining ``outputs[i].text`` of all gives the text of the whole answer.
        Computing begins with the first one asked for and goes on while the next is waited for. Closing the
        iterator aborts.

        Raises:
            InvalidRequestError: at once. EngineDeadError: while iterating.
        """
        options = RequestOptions(priority, cache_salt, timeout)
        params = SamplingParams() if sampling_params is None else sampling_params
        group = self.engine.intake.accept(prompt, params, options=options)
        return self._increments(group)

    def render(self, messages: Messages, **template: Any) -> RenderedChat:
        """Render a conversation without answering it; see :meth:`octavo.engine.assemble.Assembly.render`."""
        return self._assembly.render(messages, **template)

    def lookup(self, token_ids: Sequence[int], *, cache_salt: str | bytes = b"") -> int:
        """How many of ``token_ids`` a prompt of them would find cached now, at most all but the last.

        Raises:
            InvalidRequestError: these are no tokens of this model.
        """
        tokens, salt = self.engine.intake.check_tokens(token_ids), check_salt(cache_salt)
        return self._driver.call(lambda engine: engine.lookup(tokens, salt))

    def flush_kv_disk(self) -> None:
        """Wait until every block that was computed so far and queued for the disk tier is durable there."""
        if self.engine.tier is not None:
            self.engine.tier.tier.flush()

    def reset_prefix_cache(self) -> int:
        """Forget every cached block in memory that no request holds. Returns how many there were."""
        return self._driver.call(Engine.reset_prefix_cache)

    def stats(self) -> EngineStats:
        """A copy of the engine's counters."""
        return self._driver.call(Engine.snapshot)

    def gauges(self) -> EngineGauges:
        """What is running, waiting and held, as of the step the engine is at."""
        return self._driver.call(Engine.gauges)

    def close(self) -> None:
        """Drop whatever is unfinished and give the memory of model and cache back. Twice is harmless."""
        self._driver.call(Engine.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _complete(self, groups: list[RequestGroup], show_progress: bool) -> list[RequestOutput]:
        inbox = Inbox()
        whole: dict[str, RequestOutput] = {}
        unfinished = {group.request_id for group in groups}
        try:
            self._driver.add(groups, inbox)
            with _Bar(len(groups), show_progress) as bar:
                while unfinished:
                    output = self._driver.next(inbox)
                    if output.request_id in whole:
                        whole[output.request_id].extend(output)
                    else:
                        whole[output.request_id] = output
                    if output.finished:
                        unfinished.remove(output.request_id)
                    bar.update(output)
        finally:
            self._driver.abandon(unfinished)
        return [whole[group.request_id] for group in groups]

    def _increments(self, group: RequestGroup) -> Iterator[RequestOutput]:
        inbox = Inbox()
        try:
            self._driver.add([group], inbox)
            while True:
                output = self._driver.next(inbox)
                yield output
                if output.finished:
                    return
        finally:
            self._driver.abandon([group.request_id])


class _Bar:
    """A progress bar over finished prompts, with generated tokens per second; or nothing."""

    def __init__(self, total: int, shown: bool) -> None:
        columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        speed = TextColumn("{task.fields[tokens]} tokens")
        self._progress = Progress(*columns, speed, console=Console(stderr=True)) if shown else None
        self._task = self._progress.add_task("", total=total, tokens=0) if self._progress else None
        self._tokens = 0

    def update(self, output: RequestOutput) -> None:
        self._tokens += sum(len(completion.token_ids) for completion in output.outputs)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=int(output.finished), tokens=self._tokens)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._progress is not None:
            self._progress.stop()


def _prompt_list(prompts: Any) -> list[Prompt]:
    """One prompt or several as a list; a flat sequence of numbers is one."""
    if isinstance(prompts, (str, bytes, Mapping)):
        return [prompts]  # type: ignore[list-item]
    try:
        given = iter(prompts)
    except TypeError as error:
        raise InvalidRequestError(
            f"prompts must be a prompt or a list of prompts; got {type(prompts).__name__}", param="prompts"
        ) from error
    listed = list(given)
    return [listed] if listed and _is_number(listed[0]) else listed


def _is_number(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _one_each(name: str, given: Any, kind: type[_T], count: int) -> list[_T]:
    """``given`` for each of ``count`` prompts, or its ``count`` elements."""
    if isinstance(given, kind):
        return [given] * count
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or len(given) != count:
        size = f"{len(given)} of them" if isinstance(given, Sequence) else type(given).__name__
        raise InvalidRequestError(
            f"{name} must be one {kind.__name__} or a list of {count}, one for each prompt; got {size}",
            param=name,
        )
    return list(given)
