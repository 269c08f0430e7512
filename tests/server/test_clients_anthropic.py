"""The ``anthropic`` SDK as its users have it: nothing about it is changed but its ``base_url``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from live_server import LiveServer, live_server
from pydantic import BaseModel, Field

from octavo.server.config import ServerConfig
from octavo.server.keys import Key, KeyRing

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0}
"""Sent by ``extra_body``: the SDK's methods have no argument for it."""


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(max_length=12)
    warm: bool


WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}

ONE_CALL: Any = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
ENDLESS: Any = {
    "tools": [
        {
            "name": "x",
            "input_schema": {
                "type": "object",
                "properties": {"x": {"type": "string", "minLength": 9999}},
                "required": ["x"],
            },
        }
    ],
    "tool_choice": {"type": "any"},
}
"""What keeps a model busy for as long as ``max_tokens`` allow."""


@pytest.fixture
def client(live: LiveServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=live.url, api_key="none", max_retries=0, timeout=60) as anthropic_client:
        yield anthropic_client
    live.until_idle()


@pytest.fixture
def async_client(live: LiveServer) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=live.url, api_key="none", max_retries=0, timeout=60)


def test_models_are_listed_and_found_by_name(client: Anthropic, live: LiveServer) -> None:
    assert [model.id for model in client.models.list()] == [live.model]
    assert client.models.retrieve(live.model).type == "model"
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("another")


def test_a_message_is_answered(client: Anthropic, live: LiveServer) -> None:
    message = client.messages.create(
        model=live.model, max_tokens=8, system="Be brief.", messages=QUESTION, extra_body=GREEDY
    )
    assert message.content[0].type == "text" and "Paris" in message.content[0].text
    assert message.stop_reason in ("max_tokens", "end_turn") and 0 < message.usage.output_tokens <= 8
    assert message._request_id


def test_a_streamed_message_says_what_an_unstreamed_one_says(client: Anthropic, live: LiveServer) -> None:
    asked: Any = {"model": live.model, "max_tokens": 12, "messages": QUESTION, "extra_body": GREEDY}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens and final.stop_reason == whole.stop_reason
    with client.messages.create(**asked, stream=True) as events:
        kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]


async def test_many_asynchronous_messages_at_once(async_client: AsyncAnthropic, live: LiveServer) -> None:
    async def ask(number: int) -> str:
        asked: Any = {"model": live.model, "max_tokens": 6, "extra_body": GREEDY}
        messages: Any = [{"role": "user", "content": f"Write the number {number}."}]
        async with async_client.messages.stream(**asked, messages=messages) as stream:
            return "".join([text async for text in stream.text_stream])

    async with async_client:
        together = await asyncio.gather(*(ask(number) for number in range(6)))
        assert [await ask(number) for number in range(6)] == together
        assert (await async_client.messages.count_tokens(model=live.model, messages=QUESTION)).input_tokens > 0


def test_tokens_counted_before_are_those_charged_after(client: Anthropic, live: LiveServer) -> None:
    asked: Any = {"model": live.model, "messages": QUESTION, "system": "Be brief.", "tools": [WEATHER]}
    counted = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**asked, max_tokens=1).usage
    total = usage.input_tokens + (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    assert counted == total
    assert client.beta.messages.count_tokens(**asked).input_tokens == counted


def test_an_answer_that_was_begun_is_continued(client: Anthropic, live: LiveServer) -> None:
    begun: Any = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    message = client.messages.create(model=live.model, max_tokens=4, messages=begun, extra_body=GREEDY)
    assert message.content[0].type == "text" and message.content[0].text.lstrip().startswith("Paris")


def test_a_stop_sequence_ends_a_message_and_is_named(client: Anthropic, live: LiveServer) -> None:
    asked: Any = {"model": live.model, "messages": QUESTION, "max_tokens": 20, "extra_body": GREEDY}
    message = client.messages.create(**asked, stop_sequences=["Paris"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Paris")
    assert "Paris" not in "".join(block.text for block in message.content if block.type == "text")


def test_a_pydantic_model_is_filled_in(client: Anthropic, live: LiveServer) -> None:
    asked: Any = {"model": live.model, "max_tokens": 60, "messages": QUESTION, "extra_body": GREEDY}
    assert isinstance(client.messages.parse(**asked, output_format=Weather).parsed_output, Weather)


def test_a_tool_is_used_and_its_result_is_taken(client: Anthropic, live: LiveServer) -> None:
    asked: Any = {"model": live.model, "tools": [WEATHER], "extra_body": GREEDY}
    used = client.messages.create(**asked, messages=QUESTION, max_tokens=80, tool_choice=ONE_CALL)
    [block] = [block for block in used.content if block.type == "tool_use"]
    assert used.stop_reason == "tool_use" and block.name == "weather" and set(block.input) == {"city"}
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "Sunny."}
    history: Any = [
        *QUESTION,
        {"role": "assistant", "content": used.content},
        {"role": "user", "content": [result]},
    ]
    answered = client.messages.create(**asked, messages=history, max_tokens=4, tool_choice={"type": "none"})
    assert answered.content[0].type == "text"


def test_a_streamed_use_of_a_tool_is_put_together_by_the_helper(client: Anthropic, live: LiveServer) -> None:
    asked: Any = {"model": live.model, "tools": [WEATHER], "max_tokens": 80, "extra_body": GREEDY}
    with client.messages.stream(**asked, messages=QUESTION, tool_choice=ONE_CALL) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    [block] = [block for block in final.content if block.type == "tool_use"]
    assert set(block.input) == {"city"} and len(pieces) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_the_tool_runner_runs_tools(client: Anthropic, live: LiveServer, stream: bool) -> None:
    cities: list[str] = []

    @beta_tool
    def weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name.
        """
        cities.append(city)
        return "Sunny."

    asked: Any = {"model": live.model, "max_tokens": 60, "max_iterations": 2, "tool_choice": ONE_CALL}
    runner: Any = client.beta.messages.tool_runner(
        **asked, messages=QUESTION, tools=[weather], stream=stream, extra_body=GREEDY
    )
    turns = [turn.get_final_message() if stream else turn for turn in runner]
    assert len(turns) == 2 and cities
    totals = [turn.usage.input_tokens + (turn.usage.cache_read_input_tokens or 0) for turn in turns]
    assert totals[1] > totals[0]


def test_headers_can_be_read(client: Anthropic, live: LiveServer) -> None:
    raw = client.messages.with_raw_response.create(model=live.model, max_tokens=1, messages=QUESTION)
    assert raw.headers["request-id"] and raw.status_code == 200
    assert raw.parse().stop_reason == "max_tokens"


def test_a_client_that_waits_no_longer_has_its_request_cancelled(client: Anthropic, live: LiveServer) -> None:
    with pytest.raises(anthropic.APITimeoutError):
        client.with_options(timeout=0.3).messages.create(
            model=live.model,
            max_tokens=1500,
            messages=QUESTION,
            **ENDLESS,
        )
    live.until_idle(5)


def test_what_is_wrong_with_a_request_has_the_name_of_its_field(client: Anthropic, live: LiveServer) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(model=live.model, max_tokens=-1, messages=QUESTION)
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert "max_tokens" in refused.value.body["error"]["message"] and refused.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="tempreature"):
        client.messages.create(model=live.model, max_tokens=1, messages=QUESTION, extra_body={"tempreature": 1})
    with pytest.raises(anthropic.NotFoundError, match="claude"):
        client.messages.create(model="claude", max_tokens=1, messages=QUESTION)


def test_a_prompt_that_is_too_long_is_refused_before_the_stream_begins(client: Anthropic, live: LiveServer) -> None:
    long: Any = [{"role": "user", "content": "one two three " * 1000}]
    with pytest.raises(anthropic.BadRequestError, match=r"2,?048"):
        client.messages.create(model=live.model, max_tokens=1, messages=long, stream=True)


def test_keys_open_the_server_and_nothing_else_does(live: LiveServer) -> None:
    keys = KeyRing([Key.of("the right one", "tenant")], secret=b"s" * 32)
    with live_server(live.engine, keys=keys) as guarded:
        model = guarded.model
        with Anthropic(base_url=guarded.url, api_key="the right one", max_retries=0) as client:
            assert [served.id for served in client.models.list()] == [model]
            client.messages.create(model=model, messages=QUESTION, max_tokens=1)
        with Anthropic(base_url=guarded.url, api_key="another", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError) as refused:
                client.messages.create(model=model, messages=QUESTION, max_tokens=1)
            assert refused.value.request_id
            with pytest.raises(anthropic.PermissionDeniedError):
                client.with_options(api_key="the right one").post("/admin/cache/flush", cast_to=object)


def test_a_server_that_is_full_is_asked_again_and_answers(live: LiveServer) -> None:
    with live_server(live.engine, ServerConfig(max_concurrency=1)) as narrow:
        client = Anthropic(base_url=narrow.url, api_key="none", timeout=60)
        asked: Any = {"model": narrow.model, "messages": QUESTION}
        busy = client.messages.create(**asked, max_tokens=1500, stream=True, **ENDLESS)
        next(iter(busy))
        with pytest.raises(anthropic.RateLimitError) as full:
            client.with_options(max_retries=0).messages.create(**asked, max_tokens=1)
        assert full.value.response.headers["retry-after"] == "1"
        hang_up = threading.Timer(0.3, busy.close)
        hang_up.start()
        answered = client.with_options(max_retries=3).messages.with_raw_response.create(**asked, max_tokens=1)
        hang_up.join()
        assert answered.retries_taken >= 1 and answered.parse().content
        narrow.until_idle()
