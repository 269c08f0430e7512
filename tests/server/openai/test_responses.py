"""/v1/responses over HTTP, asked by OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from live_server import LiveServer, live_server
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from octavo.server.config import ServerConfig

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "How warm it is in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Bern", "Rome"]}},
        "required": ["city"],
    },
}
GREEDY: Any = {"temperature": 0, "max_output_tokens": 12}


@pytest.fixture(scope="module")
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=live.openai_url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
def ask(client: openai.OpenAI, live: LiveServer) -> Any:
    """``client.responses.create`` with the model filled in; what comes back is checked against the SDK's types."""

    def create(**body: Any) -> Response:
        response = client.responses.create(model=live.model, **body)
        Response.model_validate_json(response.to_json(), strict=True)
        return response

    return create


def asked(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_question_is_answered(ask: Any, live: LiveServer) -> None:
    response = ask(input="What is the capital of France?", **GREEDY)
    assert "Paris" in response.output_text
    assert response.status == "completed"
    assert response.id.startswith("resp_")
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    live.until_idle()


def test_a_conversation_gone_on_with_is_the_conversation_sent_whole(ask: Any) -> None:
    first = ask(input="Name a fruit that is yellow, and say why people like it so much.", **GREEDY)
    second = ask(input="And a red one?", previous_response_id=first.id, **GREEDY)
    third = ask(input=[asked("And a blue one?")], previous_response_id=second.id, **GREEDY)
    said: list[Any] = [asked("Name a fruit that is yellow, and say why people like it so much.")]
    said += [*first.output, asked("And a red one?"), *second.output, asked("And a blue one?")]
    sent_whole = ask(input=said, **GREEDY)
    assert third.output_text == sent_whole.output_text
    assert third.usage.input_tokens == sent_whole.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0
    assert third.usage.input_tokens_details.cached_tokens > second.usage.input_tokens_details.cached_tokens


def test_instructions_are_a_system_message_of_this_turn_alone(ask: Any) -> None:
    first = ask(input="Hello", instructions="You are a pirate.", **GREEDY)
    as_item = ask(input=[{"role": "developer", "content": "You are a pirate."}, asked("Hello")], **GREEDY)
    assert first.output_text == as_item.output_text
    assert first.usage.input_tokens == as_item.usage.input_tokens
    follow = ask(input="Hi", previous_response_id=first.id, **GREEDY)
    plain = ask(input=[asked("Hello"), *first.output, asked("Hi")], **GREEDY)
    assert follow.usage.input_tokens == plain.usage.input_tokens
    assert follow.instructions is None


def test_an_open_message_is_continued_and_then_is_one_message(ask: Any) -> None:
    begun = [asked("Count to ten."), {"role": "assistant", "content": "One, two, three, four,"}]
    continued = ask(input=begun, **GREEDY)
    assert continued.output_text.strip().lower().startswith("five")
    follow = ask(input="Go on.", previous_response_id=continued.id, **GREEDY)
    message = {"role": "assistant", "content": "One, two, three, four," + continued.output_text}
    assert follow.usage.input_tokens == ask(input=[begun[0], message, asked("Go on.")], **GREEDY).usage.input_tokens


def test_what_is_not_stored_cannot_be_gone_on_with(ask: Any, client: openai.OpenAI) -> None:
    response = ask(input="Hi", store=False, **GREEDY)
    for attempt in (
        lambda: client.responses.retrieve(response.id),
        lambda: client.responses.delete(response.id),
        lambda: client.responses.input_items.list(response.id),
    ):
        with pytest.raises(openai.NotFoundError):
            attempt()
    with pytest.raises(openai.NotFoundError) as refused:
        ask(input="And?", previous_response_id=response.id)
    assert refused.value.code == "previous_response_not_found"
    assert refused.value.param == "previous_response_id"


def test_a_stored_response_comes_back_as_it_was_until_it_is_deleted(ask: Any, client: openai.OpenAI) -> None:
    response = ask(input="Hi", metadata={"topic": "greeting"}, **GREEDY)
    again = client.responses.retrieve(response.id)
    assert again.to_dict() == response.to_dict()
    assert again.metadata == {"topic": "greeting"}
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_input_items_are_the_conversation_page_by_page(ask: Any, client: openai.OpenAI) -> None:
    first = ask(input=[asked("Hi"), {"role": "assistant", "content": "Hello!"}, asked("Who are you?")], **GREEDY)
    second = ask(input="And I?", previous_response_id=first.id, **GREEDY)

    def texts(**query: Any) -> list[str]:
        return [item.content[0].text for item in client.responses.input_items.list(second.id, **query)]  # type: ignore

    whole = ["Hi", "Hello!", "Who are you?", first.output_text, "And I?"]
    assert texts(order="asc", limit=2) == whole
    assert texts() == whole[::-1]
    page = client.responses.input_items.list(second.id, order="asc", limit=2)
    assert texts(order="asc", after=page.data[-1].id) == whole[2:]
    assert (page.has_more, page.first_id, page.last_id) == (True, page.data[0].id, page.data[1].id)  # type: ignore
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.input_items.list(second.id, after="msg_never")
    assert refused.value.param == "after"


def test_an_item_can_be_referred_to(ask: Any) -> None:
    first = ask(input="Name a fruit.", **GREEDY)
    reference: list[Any] = [asked("Name a fruit."), {"type": "item_reference", "id": first.output[0].id}, asked("Why?")]
    sent = ask(input=[asked("Name a fruit."), *first.output, asked("Why?")], store=False, **GREEDY)
    assert ask(input=reference, store=False, **GREEDY).output_text == sent.output_text
    assert ask(input=[*reference[:1], {"id": first.output[0].id}, *reference[2:]], **GREEDY).usage.input_tokens == (
        sent.usage.input_tokens
    )
    with pytest.raises(openai.NotFoundError) as refused:
        ask(input=[{"type": "item_reference", "id": "msg_never"}])
    assert refused.value.param == "input[0].id"


def test_a_function_is_called_and_its_output_answered(ask: Any) -> None:
    question: Any = asked("How warm is it in Rome?")
    called = ask(input=[question], tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, temperature=0)
    (call,) = called.output
    assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Bern", "Rome")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "31 degrees"}
    by_id = ask(input=[result], previous_response_id=called.id, tools=[WEATHER], tool_choice="none", **GREEDY)
    whole = ask(input=[question, call, result], tools=[WEATHER], tool_choice="none", **GREEDY)
    assert by_id.output_text == whole.output_text != ""
    assert by_id.usage.input_tokens_details.cached_tokens > 0


def test_a_response_that_was_cut_off_in_a_call_can_be_gone_on_with(ask: Any) -> None:
    cut = ask(input="Hi", tools=[WEATHER], tool_choice="required", temperature=0, max_output_tokens=18)
    assert (cut.output[0].type, cut.output[0].status, cut.status) == ("function_call", "incomplete", "incomplete")
    assert ask(input="Go on.", previous_response_id=cut.id, tools=[WEATHER], max_output_tokens=1).output


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "other"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]},
    ],
)
def test_the_tool_that_must_be_called_is_called(ask: Any, choice: Any) -> None:
    tools = [WEATHER, {"type": "function", "name": "other"}]
    response = ask(input="Hi", tools=tools, tool_choice=choice, parallel_tool_calls=False, temperature=0)
    assert [item.name for item in response.output] == ["other"]
    assert json.loads(response.output[0].arguments) == {}


class Fruit(BaseModel):
    name: str
    ripe: bool


def test_an_answer_has_the_form_that_was_asked_for(client: openai.OpenAI, live: LiveServer) -> None:
    parsed = client.responses.parse(
        model=live.model, input="Describe a banana.", text_format=Fruit, temperature=0, max_output_tokens=60
    )
    assert isinstance(parsed.output_parsed, Fruit)
    follow = client.responses.create(model=live.model, input=[*parsed.output, asked("Why?")], max_output_tokens=3)  # type: ignore
    assert follow.status == "incomplete"
    any_object: Any = {"format": {"type": "json_object"}}
    answer = client.responses.create(
        model=live.model, input="Hi", text=any_object, temperature=0, max_output_tokens=200
    )
    assert answer.status == "incomplete" or isinstance(json.loads(answer.output_text), dict)


def streamed(client: openai.OpenAI, **body: Any) -> list[Any]:
    events = list(client.responses.create(stream=True, **body))
    for event in events:
        EVENT.validate_json(event.to_json(), strict=True)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


@pytest.mark.parametrize(
    "body",
    [
        {"max_output_tokens": 200},
        {"max_output_tokens": 4},
        {"max_output_tokens": 6, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False},
    ],
    ids=["whole", "cut", "logprobs", "call"],
)
def test_the_streams_last_event_is_the_response_that_is_not_streamed(
    client: openai.OpenAI, live: LiveServer, ask: Any, body: dict[str, Any]
) -> None:
    same = {"input": "What is 1 + 1?", "temperature": 0, **body}
    events = streamed(client, model=live.model, **same)
    last = events[-1].response
    assert _comparable(last) == _comparable(ask(**same))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == last.output_text
    assert client.responses.retrieve(last.id).to_dict() == last.to_dict()


def _comparable(response: Any) -> Any:
    """Without what differs between any two responses: ids, times, and what the second found in the cache."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            differs = ("id", "call_id", "created_at", "completed_at", "input_tokens_details")
            return {key: strip(item) for key, item in value.items() if key not in differs}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return strip(response.to_dict())


def test_a_stream_can_be_gone_on_with(client: openai.OpenAI, live: LiveServer, ask: Any) -> None:
    with client.responses.stream(model=live.model, input="Hi", **GREEDY) as stream:
        first = stream.get_final_response()
    follow = ask(input="And?", previous_response_id=first.id, **GREEDY)
    assert follow.usage.input_tokens_details.cached_tokens > 0


def test_the_sdks_own_accumulator_follows_a_call(client: openai.OpenAI, live: LiveServer) -> None:
    with client.responses.stream(
        model=live.model, input="Hi", tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, temperature=0
    ) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output[0].arguments  # type: ignore[union-attr]


async def test_the_asynchronous_client_does_the_same(live: LiveServer) -> None:
    async with openai.AsyncOpenAI(base_url=live.openai_url, api_key="none", max_retries=0, timeout=60) as client:
        whole = await client.responses.create(model=live.model, input="Hi", **GREEDY)
        events = [e async for e in await client.responses.create(model=live.model, input="Hi", stream=True, **GREEDY)]
        assert events[-1].response.output_text == whole.output_text  # type: ignore[union-attr]
        assert (await client.responses.retrieve(whole.id)).id == whole.id
        await client.responses.delete(whole.id)


def test_counted_tokens_are_those_of_the_prompt(client: openai.OpenAI, live: LiveServer, ask: Any) -> None:
    first = ask(input="Hi", **GREEDY)
    prompt: Any = {
        "input": [asked("How warm is it?")],
        "instructions": "Be brief.",
        "tools": [WEATHER],
        "previous_response_id": first.id,
    }
    counted = client.responses.input_tokens.count(model=live.model, **prompt)
    assert counted.input_tokens == ask(**prompt, tool_choice="none", **GREEDY).usage.input_tokens
    assert counted.object == "response.input_tokens"


def test_a_full_store_lets_go_of_the_oldest(live: LiveServer) -> None:
    config = ServerConfig(max_stored=2)
    with live_server(live.engine, config) as small, openai.OpenAI(base_url=small.openai_url, api_key="none") as client:
        ids = [client.responses.create(model=small.model, input=f"Hi {n}", max_output_tokens=1).id for n in range(3)]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(ids[0])
        assert [client.responses.retrieve(each).id for each in ids[1:]] == ids[1:]


def test_a_client_that_hangs_up_stores_nothing_and_holds_nothing(client: openai.OpenAI, live: LiveServer) -> None:
    stream = client.responses.create(model=live.model, input="Tell me a long story.", stream=True, temperature=0)
    begun = next(iter(stream)).response  # type: ignore[union-attr]
    stream.close()
    live.until_idle()
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(begun.id)
