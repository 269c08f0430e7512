from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from live_server import LiveServer
from openai import AsyncOpenAI, OpenAI

from octavo.engine.sampling_params import SamplingParams
from octavo.llm import LLM

HELLO = [{"role": "user", "content": "Name three colours."}]
TALK = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "the sea?"}]},
    {"role": "assistant", "content": "Water."},
    {"role": "user", "content": "And the sky?"},
]


def joined(chunks: Any) -> dict[int, str]:
    """The text of each choice of a stream."""
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    return texts


@pytest.mark.parametrize("messages", [HELLO, TALK])
def test_a_chat_is_what_llm_chat_gives_bit_for_bit(ask: Any, llm: LLM, messages: Any) -> None:
    [expected] = llm.chat(messages, SamplingParams(temperature=0, max_tokens=24, logprobs=0))
    output = expected.outputs[0]
    assert output.logprobs is not None
    completion = ask(messages, logprobs=True)
    assert completion.choices[0].message.content == output.text
    found = [entry.logprob for entry in completion.choices[0].logprobs.content]
    assert found == [at[token].logprob for at, token in zip(output.logprobs, output.token_ids, strict=True)]
    assert completion.usage.completion_tokens == len(output.token_ids)


def test_draws_with_a_seed_are_those_of_llm_chat(ask: Any, llm: LLM) -> None:
    sampling = {"temperature": 1.3, "top_p": 0.9, "seed": 7}
    extras = {"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.2}
    [expected] = llm.chat(HELLO, SamplingParams(max_tokens=24, n=3, **sampling, **extras))
    completion = ask(HELLO, n=3, **sampling, extra_body=extras)
    assert [choice.message.content for choice in completion.choices] == [answer.text for answer in expected.outputs]
    assert [choice.index for choice in completion.choices] == [0, 1, 2]


def test_a_completion_has_every_field_of_its_shape(ask: Any, live: LiveServer) -> None:
    completion = ask(HELLO, max_completion_tokens=3)
    assert completion.id.startswith("chatcmpl-") and completion.object == "chat.completion"
    assert completion.model == live.model and completion.system_fingerprint.startswith("fp_")
    choice = completion.choices[0]
    assert choice.finish_reason == "length" and choice.logprobs is None and choice.message.refusal is None
    assert choice.message.role == "assistant" and choice.message.tool_calls is None
    usage = completion.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and usage.completion_tokens == 3
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_cached_tokens_grow_on_the_second_call(ask: Any) -> None:
    messages = [{"role": "user", "content": "Cached? " * 60}]
    first, second = (ask(messages, max_completion_tokens=4) for _ in range(2))
    assert first.usage.prompt_tokens_details.cached_tokens < 64
    assert second.usage.prompt_tokens_details.cached_tokens >= 112
    assert second.choices == first.choices


def test_cache_markers_change_nothing(ask: Any) -> None:
    marks = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}, {"cache_control": {"type": "ephemeral"}}
    plain = ask([{"role": "user", "content": [{"type": "text", "text": "Say hi"}]}])
    for mark in marks:
        marked = ask([{"role": "user", "content": [{"type": "text", "text": "Say hi", **mark}]}])
        assert marked.choices == plain.choices and marked.usage.prompt_tokens == plain.usage.prompt_tokens


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_joined_is_the_unstreamed_answer(ask: Any, n: int) -> None:
    fields = {"n": n, "seed": 3, "temperature": 1.5}
    whole = ask(HELLO, **fields)
    chunks = list(ask(HELLO, stream=True, stream_options={"include_usage": True}, **fields))
    assert joined(chunks) == {choice.index: choice.message.content for choice in whole.choices}
    *rest, last = chunks
    assert last.choices == [] and last.usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in rest)
    for index in range(n):
        own = [chunk.choices[0] for chunk in rest if chunk.choices[0].index == index]
        assert own[0].delta.role == "assistant" and own[0].delta.content == ""
        assert [choice.finish_reason for choice in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason == whole.choices[index].finish_reason
    assert len({chunk.id for chunk in chunks}) == 1


def test_frames_are_data_frames_that_end_with_done(live: LiveServer) -> None:
    body = {"model": live.model, "messages": HELLO, "max_tokens": 3, "temperature": 0, "stream": True}
    for options in ({}, {"stream_options": {"include_usage": True}}):
        response = httpx.post(f"{live.openai_url}/chat/completions", json={**body, **options}, timeout=60)
        assert response.headers["content-type"].startswith("text/event-stream")
        *frames, done, rest = response.text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
        assert all(("usage" in chunk) == bool(options) for chunk in chunks)
        assert len(chunks) == (1 + 3 + 1 + len(options))  # role, tokens, finish, usage


@pytest.mark.parametrize("stop", [" three", ["primary", "colours"], "olou"])
def test_nothing_of_a_stop_string_leaks(ask: Any, stop: Any) -> None:
    free = ask(HELLO, max_completion_tokens=64).choices[0].message.content
    stops = [stop] if isinstance(stop, str) else stop
    cut = min(free.find(text) for text in stops if text in free) if any(text in free for text in stops) else len(free)
    whole = ask(HELLO, max_completion_tokens=64, stop=stop).choices[0]
    assert whole.message.content == free[:cut]
    assert joined(ask(HELLO, max_completion_tokens=64, stop=stop, stream=True)) == {0: free[:cut]}
    assert whole.finish_reason == ("stop" if cut < len(free) else "length")


def test_a_stop_string_is_kept_where_that_is_asked_for(ask: Any) -> None:
    free = ask(HELLO).choices[0].message.content
    word = free.split()[1]
    kept = ask(HELLO, stop=word, extra_body={"include_stop_str_in_output": True}).choices[0]
    assert kept.message.content == free[: free.index(word) + len(word)]


def test_the_last_message_is_continued(ask: Any, llm: LLM) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Of course: red, green and"}]
    [expected] = llm.chat(messages, SamplingParams(temperature=0, max_tokens=24), continue_final_message=True)
    completion = ask(messages)
    assert completion.choices[0].message.content == expected.outputs[0].text
    assert completion.usage.prompt_tokens == len(expected.prompt_token_ids)


def test_logprobs_are_of_every_token_and_their_bytes_are_the_text(ask: Any) -> None:
    messages = [{"role": "user", "content": "Write emojis: 😀🎉🚀"}]
    for fields in ({"stream": False}, {"stream": True}):
        answer = ask(messages, logprobs=True, top_logprobs=3, **fields)
        choices = [chunk.choices[0] for chunk in answer] if fields["stream"] else [answer.choices[0]]
        entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
        text = joined_text(choices, streamed=fields["stream"])
        spelt = b"".join(bytes(entry.bytes) for entry in entries if not entry.token.startswith("<|"))
        assert spelt.decode("utf-8", "replace") == text
        assert all(len(entry.top_logprobs) == 3 for entry in entries)
        assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in entries)  # greedy


def joined_text(choices: Any, streamed: bool) -> str:
    if streamed:
        return "".join(choice.delta.content or "" for choice in choices)
    return str(choices[0].message.content)


def test_a_bias_forbids_and_forces_tokens(ask: Any, live: LiveServer) -> None:
    token = live.engine.tokenizer.encode(" yes")[0]
    completion = ask(HELLO, max_completion_tokens=3, logit_bias={str(token): 100})
    assert completion.choices[0].message.content == " yes yes yes"


def test_extras_reach_the_engine(ask: Any) -> None:
    assert ask(HELLO, max_completion_tokens=60, extra_body={"ignore_eos": True}).usage.completion_tokens == 60
    token = ask(HELLO, logprobs=True).choices[0].logprobs.content[1]
    digits = ask(HELLO, extra_body={"structured_outputs": {"regex": "[0-9]{4}"}}).choices[0]
    assert digits.message.content.isdigit() and digits.finish_reason == "stop"
    assert ask(HELLO, extra_body={"structured_outputs": {"choice": ["yes", "no"]}}).choices[0].message.content in (
        "yes",
        "no",
    )
    assert token.token


def test_what_has_no_effect_is_accepted(ask: Any) -> None:
    plain = ask(HELLO)
    same = ask(
        HELLO,
        store=True,
        metadata={"a": "b"},
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        prompt_cache_retention="24h",
        service_tier="flex",
        verbosity="low",
        modalities=["text"],
        reasoning_effort="none",
        parallel_tool_calls=False,
        extra_body={"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}, "chat_template_kwargs": {"x": 1}},
    )
    assert same.choices == plain.choices and same.service_tier == "default"


def test_null_is_not_given(live: LiveServer) -> None:
    from octavo.server.openai.chat_schema import ChatCompletionRequest

    body: dict[str, Any] = dict.fromkeys(ChatCompletionRequest.model_fields)
    body |= {"model": live.model, "messages": HELLO, "max_tokens": 2, "temperature": 0}
    response = httpx.post(f"{live.openai_url}/chat/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text


def test_a_developers_message_is_a_system_message(ask: Any) -> None:
    told = [[{"role": role, "content": "Answer in French."}, *HELLO] for role in ("system", "developer")]
    system, developer = (ask(messages) for messages in told)
    assert system.choices == developer.choices


def test_what_a_client_echoes_of_an_answer_is_taken_back(ask: Any) -> None:
    said = ask(HELLO).choices[0].message.model_dump()
    assert ask([*HELLO, said, {"role": "user", "content": "Another one?"}]).choices[0].message.content


def test_a_refusal_is_told_to_the_model_as_text(ask: Any) -> None:
    parts = [{"type": "refusal", "refusal": "I cannot."}]
    talks = [
        [*HELLO, {"role": "assistant", **said}, {"role": "user", "content": "Why?"}]
        for said in ({"content": "I cannot."}, {"refusal": "I cannot."}, {"content": parts})
    ]
    first, *others = (ask(talk) for talk in talks)
    assert all(other.choices == first.choices for other in others)


async def test_async_clients_get_what_a_sync_client_gets(async_client: AsyncOpenAI, live: LiveServer) -> None:
    async def one(place: int, stream: bool) -> str:
        fields: Any = {"temperature": 0, "max_completion_tokens": 12, "stream": stream}
        messages: Any = [{"role": "user", "content": f"Count to {place}."}]
        answer: Any = await async_client.chat.completions.create(model=live.model, messages=messages, **fields)
        if not stream:
            return str(answer.choices[0].message.content)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

    whole = await asyncio.gather(*(one(place, False) for place in range(4)))
    streamed = await asyncio.gather(*(one(place, True) for place in range(4)))
    assert whole == streamed


def test_the_sdks_stream_helper_accumulates_an_answer(client: OpenAI, live: LiveServer, ask: Any) -> None:
    question: Any = [{"role": "user", "content": "Say yes."}]
    wanted = {"structured_outputs": {"regex": "yes, .{8}"}}
    fields: Any = {"model": live.model, "messages": question, "temperature": 0, "extra_body": wanted}
    with client.chat.completions.stream(**fields) as stream:
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == ask(question, extra_body=wanted).choices[0].message.content


def test_an_answer_that_nobody_waits_for_is_aborted(client: OpenAI, live: LiveServer, ask: Any) -> None:
    stream = ask(HELLO, max_completion_tokens=1500, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    live.until_idle()
    assert ask(HELLO).choices
