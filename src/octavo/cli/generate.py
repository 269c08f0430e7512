"""``octavo generate``: one prompt, answered on stdout."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import (
    DEFAULT_MAX_TOKENS,
    BlockSize,
    Debug,
    Isa,
    Json,
    KV8BitLayers,
    KVDtype,
    KVMemory,
    MaxModelLen,
    MaxNumSeqs,
    MaxTokens,
    MinP,
    ModelOption,
    NoKVQualityGate,
    RepetitionPenalty,
    Seed,
    System,
    Temperature,
    Threads,
    TopK,
    TopP,
    given,
    kv_format,
)

if TYPE_CHECKING:
    from octavo.cli.reply import Reply
    from octavo.engine.intake import PromptFields
    from octavo.engine.outputs import RequestOutput
    from octavo.llm import LLM

_BETWEEN_ANSWERS = "---"


def generate(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt; read from stdin if left out.")
    ] = None,
    model: ModelOption = None,
    as_chat: Annotated[
        bool,
        typer.Option(
            "--chat/--raw",
            help="Send the prompt as a user's message through the chat template, or as it is.",
        ),
    ] = True,
    system: System = None,
    as_json: Json = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    min_p: MinP = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Text that ends the answer and is left out; may be repeated."),
    ] = None,
    n: Annotated[
        int,
        typer.Option(
            "--n", metavar="N", help=f"Answers to draw; without --json a line {_BETWEEN_ANSWERS} divides them."
        ),
    ] = 1,
    seed: Seed = None,
    kv_memory: KVMemory = None,
    kv_dtype: KVDtype = None,
    kv_8bit_layers: KV8BitLayers = None,
    no_kv_quality_gate: NoKVQualityGate = False,
    block_size: BlockSize = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    threads: Threads = None,
    isa: Isa = None,
    debug: Debug = False,
) -> None:
    """Answer one prompt on stdout, where nothing else goes."""
    from octavo.cli.reply import Reply
    from octavo.cli.starting import open_llm, room_for_output
    from octavo.cli.stdin import read_all
    from octavo.engine.sampling_params import SamplingParams

    if system is not None and not as_chat:
        raise typer.BadParameter("a raw prompt has no system message; leave out --raw", param_hint="--system")
    if prompt is None:
        if sys.stdin.isatty():
            raise typer.BadParameter("give it as an argument, or on stdin", param_hint="PROMPT")
        prompt = read_all()
        if not prompt:
            raise typer.BadParameter("stdin is empty; give it there or as an argument", param_hint="PROMPT")
    sampling: dict[str, Any] = {
        "n": n,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "stop": stop or (),
        "seed": seed,
    }
    # Wrong values are refused before a model is loaded for them.
    SamplingParams(**sampling, max_tokens=max_tokens)
    began = time.perf_counter()
    options = given(
        kv_memory=kv_memory,
        max_num_seqs=max_num_seqs,
        block_size=block_size,
        max_model_len=max_model_len,
        threads=threads,
        isa=isa,
        **kv_format(kv_dtype, kv_8bit_layers, no_kv_quality_gate),
    )
    with open_llm(model, options) as llm:
        ready = time.perf_counter() - began
        request = _prompt(llm, prompt, as_chat, system)
        if max_tokens is None:
            max_tokens = min(DEFAULT_MAX_TOKENS, room_for_output(llm, len(request["prompt_token_ids"])))
        params = SamplingParams(**sampling, max_tokens=max_tokens)
        if as_json:
            [output] = llm.generate(request, params)
            print(json.dumps(_as_json(llm, Reply(output), ready)))
        elif n == 1:
            _stream(llm, request, params)
        else:
            [output] = llm.generate(request, params)
            _print_all(output)


def _prompt(llm: LLM, text: str, as_chat: bool, system: str | None) -> PromptFields:
    """The prompt as tokens: rendered as a conversation, or tokenised as it stands."""
    from octavo.engine.intake import as_prompt
    from octavo.errors import TemplateError

    if not as_chat:
        return {"prompt": text, "prompt_token_ids": llm.tokenizer.encode(text)}
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": text})
    try:
        return as_prompt(llm.render(messages))
    except TemplateError as error:
        raise TemplateError(f"{error} (--raw does without a chat template)") from error


def _stream(llm: LLM, request: PromptFields, params: Any) -> None:
    from octavo.cli.reply import stream_reply, write_now

    reply = stream_reply(llm, request, params, write_now)
    if reply is not None and not reply.text.endswith("\n"):
        write_now("\n")


def _print_all(output: RequestOutput) -> None:
    for index, answer in enumerate(output.outputs):
        if index:
            print(_BETWEEN_ANSWERS)
        print(answer.text.removesuffix("\n"))


def _as_json(llm: LLM, reply: Reply, ready: float) -> dict[str, Any]:
    output, metrics = reply.output, reply.output.metrics
    return {
        "model": llm.summary.model,
        "prompt": output.prompt,
        "outputs": [
            {
                "index": answer.index,
                "text": answer.text,
                "token_ids": answer.token_ids,
                "finish_reason": answer.finish_reason,
                "stop_reason": answer.stop_reason,
            }
            for answer in output.outputs
        ],
        "num_prompt_tokens": reply.num_prompt_tokens,
        "num_cached_tokens": reply.num_cached_tokens,
        "num_output_tokens": reply.num_output_tokens,
        "seconds": {
            "load": ready,
            "first_token": metrics.time_to_first_token,
            "total": metrics.total_time,
        },
        "tokens_per_second": reply.tokens_per_second,
    }
