"""From a request for a response to the one internal request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from octavo.engine.sampling_params import SamplingParams
from octavo.errors import InvalidRequestError
from octavo.server.errors import ApiError, ErrorKind, as_api_error, invalid
from octavo.server.openai import tools
from octavo.server.openai.formats import JsonObjectFormat
from octavo.server.openai.responses_items import Item, ItemReference, user_message
from octavo.server.openai.responses_messages import Conversation, Placed
from octavo.server.openai.responses_schema import (
    AllowedTools,
    FunctionTool,
    JsonSchemaFormat,
    NamedTool,
    PromptBody,
    ResponseBody,
)
from octavo.server.openai.responses_store import ResponseStore, StoredResponse
from octavo.server.openai.tools import Choice, chosen
from octavo.server.openai.wording import Wording, output_fields
from octavo.server.prompt_cache.caching import Caching
from octavo.server.requests import ChatRequest
from octavo.text.grammar import StructuredOutputsParams


@dataclass(frozen=True, slots=True)
class Turn:
    """What is asked.

    Attributes:
        items: of the request's own input.
        request: what the service answers, or counts the tokens of.
    """

    items: list[Item]
    request: ChatRequest
    _conversation: Conversation
    _wording: Wording

    def in_clients_words(self, error: ApiError) -> ApiError:
        """An error of the service, about the fields that the client sent."""
        return self._conversation.in_clients_words(error, self._wording)


async def turn_of(body: PromptBody, store: ResponseStore, tenant: str) -> Turn:
    """Read a request, with what it refers to in the store.

    Raises:
        ApiError: a field does not fit (400), or what it refers to is not stored (404).
    """
    _check(body)
    earlier = [] if body.previous_response_id is None else store.chain(tenant, body.previous_response_id)
    referred = _referred(body, store, tenant)
    # On a worker thread: a long conversation takes milliseconds to be read.
    return await asyncio.to_thread(_turn, body, earlier, referred)


def conversation_items(chain: list[StoredResponse]) -> list[Item]:
    """All items of a stored conversation, inputs and outputs in order."""
    return [item for response in chain for item in (*response.input_items(), *response.output_items())]


def _turn(body: PromptBody, earlier: list[StoredResponse], referred: dict[str, StoredResponse]) -> Turn:
    own = _own_items(body, referred)
    if not earlier and not own:
        raise invalid("input is required", "input", code="missing_required_parameter")
    conversation = Conversation(body.instructions, [*_placed(earlier), *own])
    wording = _wording(body)
    try:
        request = _chat_request(body, conversation)
    except InvalidRequestError as error:
        raise conversation.in_clients_words(as_api_error(error), wording) from error
    return Turn([placed.item for placed in own], request, conversation, wording)


def _placed(chain: list[StoredResponse]) -> Iterator[Placed]:
    """Items of a stored conversation. What a response began with went on with a message that was left open for it."""
    for response in chain:
        yield from (Placed("previous_response_id", item) for item in response.input_items())
        for index, item in enumerate(response.output_items()):
            yield Placed("previous_response_id", item, continues=index == 0)


def _check(body: PromptBody) -> None:
    """What no single field tells."""
    if body.input == "":
        raise invalid("input is empty", "input")
    if isinstance(body, ResponseBody) and body.stream_options is not None and not body.stream:
        raise invalid("stream_options are for streams; set stream to true, or leave them out", "stream_options")


def _referred(body: PromptBody, store: ResponseStore, tenant: str) -> dict[str, StoredResponse]:
    """The responses that have the items referred to, by the items' ids."""
    found: dict[str, StoredResponse] = {}
    for index, item in enumerate(body.input if isinstance(body.input, list) else []):
        if not isinstance(item, ItemReference):
            continue
        response = store.with_item(tenant, item.id)
        if response is None:
            raise ApiError(
                ErrorKind.NOT_FOUND,
                f"input[{index}]: there is no item {item.id!r}; it was not stored, or is not any more",
                param=f"input[{index}].id",
                code="item_not_found",
            )
        found[item.id] = response
    return found


def _own_items(body: PromptBody, referred: dict[str, StoredResponse]) -> list[Placed]:
    if body.input is None:
        return []
    if isinstance(body.input, str):
        return [Placed("input", user_message(body.input))]
    stored = {response.id: response for response in referred.values()}.values()
    known = {item["id"]: item for item in conversation_items(list(stored))}
    return [
        Placed(f"input[{index}]", known[item.id] if isinstance(item, ItemReference) else item.item())
        for index, item in enumerate(body.input)
    ]


def _wording(body: PromptBody) -> Wording:
    """What the client calls what the engine has other names for."""
    wanted = None if body.text is None else body.text.format
    names: dict[str, str] = {}
    if isinstance(wanted, JsonSchemaFormat):
        names["json"] = "text.format.schema"
    elif isinstance(wanted, JsonObjectFormat):
        names["json_object"] = "text.format"
    places = {"prompt": "input", "messages": "input", "chat_template": "model"}
    if isinstance(body, ResponseBody) and body.max_output_tokens is None:
        places["max_tokens"] = "input"
    return Wording(
        {**output_fields(names, bool(body.tools) or body.cache is not None), "max_tokens": "max_output_tokens"}, places
    )


def _chat_request(body: PromptBody, conversation: Conversation) -> ChatRequest:
    choice = _choice(body)
    return ChatRequest(
        messages=conversation.messages,
        sampling=_sampling(body) if isinstance(body, ResponseBody) else SamplingParams(),
        tools=[{"type": "function", "function": _function(tool)} for tool in body.tools or []],
        tool_choice=choice.tool_choice,
        allowed_tools=choice.allowed_tools,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        output=_output(body),
        template_kwargs=_template_kwargs(body),
        cache=body.cache,
        caching=body.caching(conversation.messages) if isinstance(body, ResponseBody) else Caching(),
    )


def _choice(body: PromptBody) -> Choice:
    """The choice as chat completions write it, where a function's name stands one level deeper."""
    choice = body.tool_choice
    names = [tool.name for tool in body.tools or []] if body.cache is None else None
    if isinstance(choice, NamedTool):
        return chosen(_named(choice), names)
    if isinstance(choice, AllowedTools):
        allowed = tools.AllowedTools(mode=choice.mode, tools=[_named(tool) for tool in choice.tools])
        return chosen(tools.AllowedToolChoice(type="allowed_tools", allowed_tools=allowed), names)
    return chosen(choice, names)


def _named(tool: NamedTool) -> tools.NamedTool:
    return tools.NamedTool(type="function", function=tools.FunctionName(name=tool.name))


def _sampling(body: ResponseBody) -> SamplingParams:
    return SamplingParams(
        max_tokens=0 if body.prewarms else body.max_output_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        logprobs=(body.top_logprobs or 0) if body.wants_logprobs else None,
    )


def _function(tool: FunctionTool) -> dict[str, Any]:
    return {key: value for key, value in tool.model_dump(exclude_none=True).items() if key != "type"}


def _output(body: PromptBody) -> StructuredOutputsParams | None:
    wanted = None if body.text is None else body.text.format
    if isinstance(wanted, JsonSchemaFormat):
        return StructuredOutputsParams(json=wanted.schema_)
    return StructuredOutputsParams(json_object=True) if isinstance(wanted, JsonObjectFormat) else None


def _template_kwargs(body: PromptBody) -> dict[str, Any]:
    """Templates of models that reason know ``enable_thinking``; to others it is no more than an unused variable."""
    effort = None if body.reasoning is None else body.reasoning.effort
    return {"enable_thinking": False} if effort in ("none", "minimal") else {}
