from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from live_server import LiveServer
from openai import AsyncOpenAI

from octavo.engine.sampling_params import SamplingParams
from octavo.llm import LLM

FRANCE = "The capital of France is"
SEA = "The sea is"


def joined(chunks: Any) -> dict[int, str]:
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return texts


def test_a_completion_is_what_llm_generate_gives_bit_for_bit(complete: Any, llm: LLM) -> None:
    [expected] = llm.generate([FRANCE], SamplingParams(temperature=0, max_tokens=16))
    completion = complete(FRANCE)
    assert completion.choices[0].text == expected.outputs[0].text
    assert completion.usage.completion_tokens == 16 and completion.choices[0].finish_reason == "length"
    assert completion.id.startswith("cmpl-") and completion.object == "text_completion"
    assert complete(expected.prompt_token_ids).choices == completion.choices


def test_several_prompts_come_in_their_order(complete: Any, llm: LLM) -> None:
    tokens = [llm.tokenizer.encode(prompt) for prompt in (FRANCE, SEA)]
    singles = [complete(prompt, max_tokens=6).choices[0].text for prompt in (FRANCE, SEA)]
    for prompts in ([FRANCE, SEA], tokens):
        both = complete(prompts, max_tokens=6, n=2)
        assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
        assert [choice.text for choice in both.choices] == [singles[0], singles[0], singles[1], singles[1]]
        assert both.usage.completion_tokens == 24 and both.usage.prompt_tokens == sum(map(len, tokens))


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("prompt", [FRANCE, [FRANCE, SEA]])
def test_a_stream_joined_is_the_unstreamed_answer(complete: Any, prompt: Any, echo: bool) -> None:
    fields = {"n": 2, "seed": 5, "temperature": 1.2, "max_tokens": 7, "echo": echo}
    whole = complete(prompt, **fields)
    *chunks, last = complete(prompt, stream=True, stream_options={"include_usage": True}, **fields)
    assert joined(chunks) == {choice.index: choice.text for choice in whole.choices}
    assert last.choices == [] and last.usage.total_tokens == whole.usage.total_tokens
    ends = [chunk.choices[0].index for chunk in chunks if chunk.choices[0].finish_reason]
    assert sorted(ends) == [choice.index for choice in whole.choices]


async def test_an_async_stream_is_the_same(async_client: AsyncOpenAI, live: LiveServer, complete: Any) -> None:
    fields: Any = {"model": live.model, "prompt": FRANCE, "temperature": 0, "max_tokens": 5}
    chunks = [chunk async for chunk in await async_client.completions.create(stream=True, **fields)]
    assert joined(chunks) == {0: (await async_client.completions.create(**fields)).choices[0].text}


@pytest.mark.parametrize("stream", [False, True])
def test_echo_scores_the_prompt_and_offsets_point_into_the_text(complete: Any, llm: LLM, stream: bool) -> None:
    prompt = "Ünï 😀 is"
    expected = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=2))[0]
    answer = complete(prompt, echo=True, logprobs=2, max_tokens=4, stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    text = "".join(choice.text for choice in choices)
    parts = [choice.logprobs for choice in choices if choice.logprobs]
    tokens, logprobs, tops, offsets = (
        [value for part in parts for value in getattr(part, name)]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    )
    ids = [*expected.prompt_token_ids, *expected.outputs[0].token_ids]
    scores = [*expected.prompt_logprobs, *expected.outputs[0].logprobs]
    assert logprobs == [None if at is None else at[token].logprob for token, at in zip(ids, scores, strict=True)]
    assert tops[0] is None and all(2 <= len(top) <= 3 for top in tops[1:])
    assert len(tokens) == len(offsets) == len(ids)
    assert text == prompt + expected.outputs[0].text
    for token, offset in zip(tokens, offsets, strict=True):
        assert token.startswith("bytes:") or text.startswith(token, offset)
    assert any(token.startswith("bytes:\\x") for token in tokens)


def test_no_tokens_and_echo_score_the_prompt_alone(complete: Any, llm: LLM) -> None:
    completion = complete(FRANCE, max_tokens=0, echo=True, logprobs=0)
    assert completion.choices[0].text == FRANCE and completion.usage.completion_tokens == 0
    assert len(completion.choices[0].logprobs.tokens) == len(llm.tokenizer.encode(FRANCE))


def test_the_best_of_several_is_the_likeliest_per_token(complete: Any) -> None:
    fields = {"temperature": 1.5, "seed": 11, "max_tokens": 5, "logprobs": 0}
    every = complete(FRANCE, n=6, **fields)
    ranked = sorted(every.choices, key=lambda c: -sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs))
    best = complete(FRANCE, n=2, best_of=6, **fields)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert best.usage.completion_tokens == every.usage.completion_tokens
    unasked = complete(FRANCE, n=1, best_of=6, **{**fields, "logprobs": None})
    assert unasked.choices[0].logprobs is None and unasked.choices[0].text == ranked[0].text


def test_a_refused_prompt_takes_all_others_with_it(complete: Any, live: LiveServer) -> None:
    before = live.app.state.octavo.service.ledger.total.output_tokens
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            complete([FRANCE, FRANCE, "long " * 3000], max_tokens=500, stream=stream, extra_body={"ignore_eos": True})
        assert refused.value.param == "prompt[2]" and refused.value.code == "context_length_exceeded"
        live.until_idle()
    assert live.app.state.octavo.service.ledger.total.output_tokens == before


def test_streams_of_several_prompts_end_with_their_client(complete: Any, live: LiveServer) -> None:
    stream = complete([FRANCE, SEA], max_tokens=1500, stream=True, extra_body={"ignore_eos": True})
    for _ in range(3):
        next(iter(stream))
    stream.close()
    live.until_idle()
    assert complete(FRANCE).choices


def test_more_answers_than_the_server_ever_takes_are_refused(complete: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete([FRANCE] * 40, n=100)
    assert refused.value.param == "prompt" and "4,000" in refused.value.message


def test_null_is_not_given(live: LiveServer) -> None:
    from octavo.server.openai.completions_schema import CompletionRequest

    body: dict[str, Any] = dict.fromkeys(CompletionRequest.model_fields)
    body |= {"model": live.model, "prompt": FRANCE, "temperature": 0}
    response = httpx.post(f"{live.openai_url}/completions", json=body, timeout=60)
    assert response.status_code == 200 and response.json()["usage"]["completion_tokens"] == 16


def test_nothing_of_a_stop_string_leaks(complete: Any) -> None:
    free = complete(FRANCE, max_tokens=30).choices[0].text
    stop = free[6:9]
    cut = complete(FRANCE, max_tokens=30, stop=stop)
    assert cut.choices[0].text == free[: free.index(stop)] and cut.choices[0].finish_reason == "stop"
    assert joined(complete(FRANCE, max_tokens=30, stop=stop, stream=True)) == {0: cut.choices[0].text}
