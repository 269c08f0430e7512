"""``octavo chat``: a conversation whose every turn shows what the cache saved."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from octavo.cli.options import (
    DEFAULT_MAX_TOKENS,
    BlockSize,
    Debug,
    Isa,
    KV8BitLayers,
    KVDisk,
    KVDiskLimit,
    KVDiskTtl,
    KVDtype,
    KVMemory,
    MaxModelLen,
    MaxNumSeqs,
    MaxTokens,
    ModelArgument,
    NoDisk,
    NoKVQualityGate,
    RepetitionPenalty,
    Seed,
    System,
    Temperature,
    Threads,
    TopP,
    given,
    kv_disk,
    kv_format,
)

if TYPE_CHECKING:
    from octavo.engine.sampling_params import SamplingParams
    from octavo.llm import LLM

_PROMPT = "> "
_COMMAND = re.compile(r"/\w+")
"""What somebody who types it means as a command, and not for the model."""
_HELP = "/reset starts afresh, /stats shows figures, /exit or Ctrl-D leaves, Ctrl-C interrupts a reply"


def chat(
    model: ModelArgument = None,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.7,
    top_p: TopP = 0.9,
    repetition_penalty: RepetitionPenalty = 1.0,
    seed: Seed = None,
    kv_memory: KVMemory = None,
    kv_dtype: KVDtype = None,
    kv_8bit_layers: KV8BitLayers = None,
    no_kv_quality_gate: NoKVQualityGate = False,
    kv_disk_folder: KVDisk = None,
    kv_disk_limit: KVDiskLimit = None,
    kv_disk_ttl: KVDiskTtl = None,
    no_disk: NoDisk = False,
    block_size: BlockSize = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    threads: Threads = None,
    isa: Isa = None,
    debug: Debug = False,
) -> None:
    """Chat with a model and see what the cache reuses.

    Every turn shows how many tokens of the prompt were reused and computed, and how fast the reply was. On a
    terminal, Ctrl-C interrupts the reply and keeps the chat; /reset starts afresh, /stats shows figures, /exit or
    Ctrl-D leaves. From a pipe, every line that is not empty is one turn.
    """
    from octavo.cli.starting import open_llm
    from octavo.engine.sampling_params import SamplingParams

    # Wrong values are refused before a model is loaded for them.
    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        max_tokens=DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
    )
    options = given(
        kv_memory=kv_memory,
        max_num_seqs=max_num_seqs,
        block_size=block_size,
        max_model_len=max_model_len,
        threads=threads,
        isa=isa,
        seed=seed,
        **kv_format(kv_dtype, kv_8bit_layers, no_kv_quality_gate),
        **kv_disk(kv_disk_folder, kv_disk_limit, kv_disk_ttl, no_disk),
    )
    with open_llm(model, options) as llm:
        conversation = _Chat(llm, params, system, interactive=sys.stdin.isatty())
        conversation.check()
        conversation.run()


class _Chat:
    """The conversation so far, and the loop that goes on with it."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None, *, interactive: bool) -> None:
        self._llm = llm
        self._params = params
        self._interactive = interactive
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._opening)

    def check(self) -> None:
        """Render a first turn: a model that cannot chat is refused before anybody types.

        Raises:
            TemplateError: the model has no chat template, or it refuses how a chat begins.
        """
        from octavo.errors import TemplateError

        try:
            self._llm.render([*self._opening, {"role": "user", "content": "Hello!"}])
        except TemplateError as error:
            raise TemplateError(f"{error} (octavo generate --raw does without a chat template)") from error

    def run(self) -> None:
        if self._interactive:
            _say(f"{self._llm.summary}\n{_HELP}")
        for line in _typed_lines() if self._interactive else _piped_lines():
            text = line.strip()
            if text == "/exit":
                return
            if text == "/reset":
                self._messages = list(self._opening)
                _say("a new conversation begins")
            elif text == "/stats":
                _say(self._stats())
            elif self._interactive and _COMMAND.fullmatch(text):
                _say(f"{text} is no command: {_HELP}")
            elif text:
                self._turn(text)

    def _turn(self, text: str) -> None:
        from octavo.errors import InvalidRequestError

        try:
            self._answer(text)
        except InvalidRequestError as error:
            # Whoever types can do better next time; a pipe cannot.
            if not self._interactive:
                raise
            _say(f"{error} (/reset starts afresh)")

    def _answer(self, text: str) -> None:
        """One turn. The conversation grows only by a turn that has an answer, be it an interrupted one."""
        from dataclasses import replace

        from octavo.cli.reply import stream_reply, write_now
        from octavo.cli.starting import room_for_output
        from octavo.engine.intake import as_prompt

        messages = [*self._messages, {"role": "user", "content": text}]
        rendered = self._llm.render(messages)
        room = room_for_output(self._llm, len(rendered.prompt_token_ids))
        reply = stream_reply(
            self._llm,
            as_prompt(rendered),
            replace(self._params, max_tokens=min(self._params.max_tokens or room, room)),
            write_now,
            keep_when_interrupted=self._interactive,
        )
        if reply is None:
            _say("\ninterrupted before the first token")
            return
        write_now("\n")
        _say(f"[{reply.figures()}]")
        self._messages = [*messages, {"role": "assistant", "content": reply.text}]

    def _stats(self) -> str:
        stats = self._llm.stats()
        share = stats.num_cached_tokens / stats.num_prompt_tokens if stats.num_prompt_tokens else 0.0
        replies = "1 reply" if stats.num_requests == 1 else f"{stats.num_requests:,} replies"
        return (
            f"{self._llm.summary}\n"
            f"{replies}; {stats.num_prompt_tokens:,} prompt tokens, of which "
            f"{stats.num_cached_tokens:,} reused ({share:.0%}); {stats.num_generated_tokens:,} tokens generated; "
            f"{stats.num_preemptions:,} preemptions"
        )


def _typed_lines() -> Iterator[str]:
    """Lines typed at a terminal, until Ctrl-D."""
    # Importing readline gives input() editing and history, where Python has it.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    prompt = _PROMPT
    if not sys.stdout.isatty():
        # input() would write it among the answers.
        prompt = ""
    while True:
        try:
            line = input(prompt)
        except KeyboardInterrupt:
            _say(f"\n{_HELP}")
            continue
        except EOFError:
            _say("")
            return
        yield line


def _piped_lines() -> Iterator[str]:
    from octavo.cli.stdin import read_lines

    return read_lines()


def _say(text: str) -> None:
    """Everything but the answers goes here."""
    print(text, file=sys.stderr, flush=True)
