"""The ``openai`` SDK as its users have it: nothing about it is changed but its ``base_url``."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import openai
import pytest
from live_server import LiveServer, live_server
from openai import AsyncOpenAI, OpenAI
from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner
from pydantic import BaseModel, Field

from octavo.server.config import ServerConfig
from octavo.server.keys import Key, KeyRing

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ECHO = "Say: the cat sat on the mat."


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(max_length=12)
    celsius: int = Field(ge=-50, le=50)


@pytest.fixture
def client(live: LiveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=live.openai_url, api_key="none", max_retries=0, timeout=60) as openai_client:
        yield openai_client
    live.until_idle()


@pytest.fixture
def async_client(live: LiveServer) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=live.openai_url, api_key="none", max_retries=0, timeout=60)


def test_models_are_listed_and_found_by_name(client: OpenAI, live: LiveServer) -> None:
    assert [model.id for model in client.models.list()] == [live.model]
    assert client.models.retrieve(live.model).object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_a_chat_is_answered(client: OpenAI, live: LiveServer) -> None:
    completion = client.chat.completions.create(
        model=live.model, messages=QUESTION, temperature=0, max_completion_tokens=8
    )
    [choice] = completion.choices
    assert "Paris" in (choice.message.content or "")
    assert completion.usage is not None
    assert 0 < completion.usage.completion_tokens <= 8 and choice.finish_reason in ("stop", "length")
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens is not None
    assert completion._request_id


def test_a_streamed_chat_says_what_an_unstreamed_one_says(client: OpenAI, live: LiveServer) -> None:
    asked = {"model": live.model, "messages": QUESTION, "temperature": 0, "max_completion_tokens": 12}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_the_stream_helper_puts_a_chat_together(client: OpenAI, live: LiveServer) -> None:
    asked = {"model": live.model, "messages": QUESTION, "temperature": 0, "max_completion_tokens": 12}
    with client.chat.completions.stream(**asked) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert len(deltas) > 1 and "".join(deltas) == final.choices[0].message.content


async def test_many_asynchronous_chats_at_once(async_client: AsyncOpenAI, live: LiveServer) -> None:
    import asyncio

    async def ask(number: int) -> str:
        stream = await async_client.chat.completions.create(
            model=live.model,
            messages=[{"role": "user", "content": f"Write the number {number}."}],
            max_completion_tokens=6,
            temperature=0,
            stream=True,
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    async with async_client:
        together = await asyncio.gather(*(ask(number) for number in range(6)))
        assert [await ask(number) for number in range(6)] == together


def test_a_pydantic_model_is_filled_in(client: OpenAI, live: LiveServer) -> None:
    completion = client.chat.completions.parse(
        model=live.model, messages=QUESTION, response_format=Weather, temperature=0, max_completion_tokens=60
    )
    assert isinstance(completion.choices[0].message.parsed, Weather)


def test_a_pydantic_model_is_filled_in_while_it_is_streamed(client: OpenAI, live: LiveServer) -> None:
    asked = {"model": live.model, "messages": QUESTION, "temperature": 0, "max_completion_tokens": 60}
    with client.chat.completions.stream(**asked, response_format=Weather) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Weather)


def test_a_tool_is_called_with_arguments_that_fit_and_its_result_is_taken(client: OpenAI, live: LiveServer) -> None:
    tool = openai.pydantic_function_tool(Weather, name="weather")
    called = client.chat.completions.parse(
        model=live.model,
        messages=QUESTION,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    ).choices[0]
    assert called.finish_reason == "tool_calls" and called.message.tool_calls
    call = called.message.tool_calls[0]
    assert isinstance(call.function.parsed_arguments, Weather)
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}
    history = [*QUESTION, called.message.model_dump(exclude={"parsed"}, exclude_none=True), result]
    for turn in history:
        for made in turn.get("tool_calls", []):
            made["function"].pop("parsed_arguments", None)
    answered = client.chat.completions.create(
        model=live.model, messages=history, tools=[tool], tool_choice="none", max_completion_tokens=4
    )
    assert answered.choices[0].message.content


def test_a_streamed_call_is_put_together_by_the_helper(client: OpenAI, live: LiveServer) -> None:
    tool = openai.pydantic_function_tool(Weather, name="weather")
    asked = {"model": live.model, "messages": QUESTION, "temperature": 0}
    forced = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    with client.chat.completions.stream(**asked, **forced) as stream:
        kinds = {event.type for event in stream}
        [choice] = stream.get_final_completion().choices
    assert "tool_calls.function.arguments.delta" in kinds
    assert choice.message.tool_calls
    assert isinstance(choice.message.tool_calls[0].function.parsed_arguments, Weather)


def test_a_text_is_completed(client: OpenAI, live: LiveServer) -> None:
    asked = {"model": live.model, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**asked, logprobs=2, echo=True)
    assert whole.choices[0].text.startswith("Once upon a time")
    assert whole.choices[0].logprobs is not None and whole.usage is not None
    assert len(whole.choices[0].logprobs.tokens or []) == whole.usage.total_tokens
    with client.completions.create(**asked, stream=True) as stream:
        streamed = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
    assert "Once upon a time" + streamed == whole.choices[0].text


def test_several_answers_and_logprobs(client: OpenAI, live: LiveServer) -> None:
    asked = {"model": live.model, "messages": QUESTION, "n": 3, "seed": 7, "max_completion_tokens": 5}
    first = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    again = client.chat.completions.create(**asked)
    assert [c.message.content for c in first.choices] == [c.message.content for c in again.choices]
    assert first.choices[0].logprobs is not None and first.choices[0].logprobs.content
    assert all(len(token.top_logprobs) == 2 for token in first.choices[0].logprobs.content)


def test_a_response_is_continued_by_its_id(client: OpenAI, live: LiveServer) -> None:
    first = client.responses.create(
        model=live.model, input=ECHO, instructions="Be brief.", max_output_tokens=16, temperature=0
    )
    assert first.output_text and first.usage is not None
    second = client.responses.create(
        model=live.model, input="Again.", previous_response_id=first.id, max_output_tokens=16, temperature=0
    )
    assert second.previous_response_id == first.id and second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_the_stream_helper_puts_a_response_together(client: OpenAI, live: LiveServer) -> None:
    with client.responses.stream(model=live.model, input=ECHO, max_output_tokens=16, temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == final.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_response_fills_in_a_pydantic_model(client: OpenAI, live: LiveServer) -> None:
    asked = {"model": live.model, "input": "The weather in Bern.", "max_output_tokens": 60, "temperature": 0}
    assert isinstance(client.responses.parse(**asked, text_format=Weather).output_parsed, Weather)
    with client.responses.stream(**asked, text_format=Weather) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_response().output_parsed, Weather)


async def test_asynchronous_responses(async_client: AsyncOpenAI, live: LiveServer) -> None:
    async with async_client:
        asked = {"model": live.model, "input": ECHO, "max_output_tokens": 16, "temperature": 0}
        whole = await async_client.responses.create(**asked)
        streamed = ""
        async for event in await async_client.responses.create(**asked, stream=True):
            streamed += event.delta if event.type == "response.output_text.delta" else ""
    assert streamed == whole.output_text


def habit() -> list[dict[str, str]]:
    """A conversation of so many calls that the next question leads to another: a runner cannot force one."""
    turns: list[dict[str, str]] = []
    for number, city in enumerate(("Rome", "Oslo", "Kyiv", "Lima", "Cairo", "Paris", "Bern")):
        call = {"type": "function_call", "call_id": f"call_{number}", "name": "weather"}
        turns += [
            {"role": "user", "content": f"How warm is it in {city}?"},
            {**call, "arguments": json.dumps({"city": city, "celsius": 20})},
            {"type": "function_call_output", "call_id": f"call_{number}", "output": "Sunny."},
            {"role": "assistant", "content": "It is sunny."},
        ]
    return turns[:-3]


@pytest.mark.parametrize("stream", [False, True])
def test_the_tool_runner_of_responses_runs_tools(client: OpenAI, live: LiveServer, stream: bool) -> None:
    ran: list[Weather] = []

    def weather(arguments: Weather) -> str:
        ran.append(arguments)
        return "Sunny."

    tool = openai.pydantic_function_tool(Weather, name="weather")["function"]
    registered = RegisteredFunction(
        {"type": "function", "name": "weather", "parameters": tool["parameters"], "strict": True},
        lambda arguments: weather(Weather.model_validate(arguments)),
    )
    runner = ResponsesToolRunner(functions=[registered])
    asked = {"model": live.model, "input": habit(), "temperature": 0, "max_output_tokens": 80}
    turns = runner.iterate(client, asked, max_steps=2, stream=stream)
    first, second = next(turns), next(turns)
    turns.close()
    runner.close()
    assert first.response.output[0].type == "function_call" and ran
    assert second.response.usage is not None and first.response.usage is not None
    assert second.response.usage.input_tokens > first.response.usage.input_tokens


def test_headers_can_be_read(client: OpenAI, live: LiveServer) -> None:
    raw = client.chat.completions.with_raw_response.create(model=live.model, messages=QUESTION, max_completion_tokens=1)
    assert raw.headers["x-request-id"] and raw.status_code == 200
    assert raw.parse().choices[0].finish_reason == "length"
    with client.chat.completions.with_streaming_response.create(
        model=live.model, messages=QUESTION, max_completion_tokens=1
    ) as streaming:
        assert json.loads(streaming.read())["object"] == "chat.completion"


def test_a_client_that_waits_no_longer_has_its_request_cancelled(client: OpenAI, live: LiveServer) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).chat.completions.create(
            model=live.model, messages=QUESTION, max_completion_tokens=1500, extra_body={"ignore_eos": True}
        )
    live.until_idle(5)


def test_what_is_wrong_with_a_request_has_the_name_of_its_field(client: OpenAI, live: LiveServer) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=live.model, messages=QUESTION, temperature=3)
    assert refused.value.param == "temperature" and "3" in refused.value.message
    assert refused.value.request_id
    with pytest.raises(openai.BadRequestError) as unknown:
        client.chat.completions.create(model=live.model, messages=QUESTION, extra_body={"tempreature": 1})
    assert unknown.value.param == "tempreature"
    with pytest.raises(openai.NotFoundError) as other:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert other.value.code == "model_not_found"


def test_a_prompt_that_is_too_long_is_refused_before_the_stream_begins(client: OpenAI, live: LiveServer) -> None:
    long = [{"role": "user", "content": "one two three " * 1000}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=live.model, messages=long, stream=True)
    assert refused.value.code == "context_length_exceeded" and "2048" in refused.value.message.replace(",", "")


def test_keys_open_the_server_and_nothing_else_does(live: LiveServer) -> None:
    keys = KeyRing([Key.of("the right one", "tenant")], secret=b"s" * 32)
    with live_server(live.engine, keys=keys) as guarded:
        model = guarded.model
        with OpenAI(base_url=guarded.openai_url, api_key="the right one", max_retries=0) as client:
            assert [served.id for served in client.models.list()] == [model]
            client.chat.completions.create(model=model, messages=QUESTION, max_completion_tokens=1)
        with OpenAI(base_url=guarded.openai_url, api_key="another", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as refused:
                client.chat.completions.create(model=model, messages=QUESTION, max_completion_tokens=1)
            assert refused.value.request_id
            with pytest.raises(openai.PermissionDeniedError):
                client.with_options(api_key="the right one").post("/../admin/cache/flush", cast_to=object)


def test_a_server_that_is_full_is_asked_again_and_answers(live: LiveServer) -> None:
    with live_server(live.engine, ServerConfig(max_concurrency=1)) as narrow:
        client = OpenAI(base_url=narrow.openai_url, api_key="none", timeout=60)
        asked = {"model": narrow.model, "messages": QUESTION}
        busy = client.chat.completions.create(
            **asked, stream=True, max_completion_tokens=1500, extra_body={"ignore_eos": True}
        )
        next(iter(busy))
        with pytest.raises(openai.RateLimitError) as full:
            client.with_options(max_retries=0).chat.completions.create(**asked)
        assert full.value.response.headers["retry-after"] == "1"
        hang_up = threading.Timer(0.3, busy.close)
        hang_up.start()
        answered = client.with_options(max_retries=3).chat.completions.with_raw_response.create(
            **asked, max_completion_tokens=1
        )
        hang_up.join()
        assert answered.retries_taken >= 1 and answered.parse().choices
        narrow.until_idle()
