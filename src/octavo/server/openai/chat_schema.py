"""What a request for a chat completion may hold, and what becomes of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.engine.sampling_params import MAX_LOGPROBS
from octavo.server.errors import invalid
from octavo.server.openai.fields import TEXT_ONLY, Metadata, Short, refused
from octavo.server.openai.formats import JsonObjectFormat, JsonSchemaFormat, ResponseFormat, wanted_output
from octavo.server.openai.messages import Message, template_messages
from octavo.server.openai.sampling import SamplingBody, at_most_once
from octavo.server.openai.tools import FunctionTool, ToolChoice, chosen, template_tools
from octavo.server.openai.wording import Wording, output_fields
from octavo.server.requests import ChatRequest

_OLD_FUNCTIONS = "Functions are sent as tools"


class ChatCompletionRequest(SamplingBody):
    """``POST /v1/chat/completions``: the fields of OpenAI's API, and vLLM's extras."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    safety_identifier: Short | None = None

    audio: Annotated[None, refused(TEXT_ONLY)] = None
    prediction: Annotated[None, refused("Predicted outputs are not used")] = None
    web_search_options: Annotated[None, refused("This server searches nothing")] = None
    moderation: Annotated[None, refused("This server moderates nothing")] = None
    functions: Annotated[None, refused(_OLD_FUNCTIONS)] = None
    function_call: Annotated[None, refused(f"{_OLD_FUNCTIONS}, and what to call as tool_choice")] = None

    def chat_request(self) -> ChatRequest:
        """The conversation as every dialect has it.

        Raises:
            ApiError, InvalidRequestError: two fields contradict each other, or a value is out of range.
        """
        self.check_stream_options()
        max_tokens = at_most_once("max_tokens", self.max_tokens, "max_completion_tokens", self.max_completion_tokens)
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
        tools = self.tools or []
        names = [tool.function.name for tool in tools] if self.cache is None else None
        choice = chosen(self.tool_choice, names)
        messages, shown_tools = template_messages(self.messages), template_tools(tools)
        return ChatRequest(
            messages=messages,
            sampling=self.sampling_params(
                max_tokens=max_tokens, logprobs=(self.top_logprobs or 0) if self.logprobs else None
            ),
            tools=shown_tools,
            tool_choice=choice.tool_choice,
            allowed_tools=choice.allowed_tools,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            output=wanted_output(self.response_format, self.structured_outputs),
            template_kwargs=self._template_kwargs(),
            caching=self.caching(messages, shown_tools),
            cache=self.cache,
        )

    def _template_kwargs(self) -> dict[str, Any]:
        """Templates of models that reason know ``enable_thinking``; to others it is no more than an unused variable."""
        given = self.chat_template_kwargs or {}
        return {"enable_thinking": False, **given} if self.reasoning_effort in ("none", "minimal") else given

    @property
    def wording(self) -> Wording:
        fields = output_fields(self._output_names(), bool(self.tools) or self.cache is not None)
        places = {"prompt": "messages", "chat_template": "model"}
        if self.max_completion_tokens is not None:
            fields["max_tokens"] = "max_completion_tokens"
        elif self.max_tokens is None:
            places["max_tokens"] = "messages"
        return Wording(fields, places)

    def _output_names(self) -> dict[str, str]:
        if isinstance(self.response_format, JsonSchemaFormat):
            return {"json": "response_format.json_schema.schema"}
        if isinstance(self.response_format, JsonObjectFormat):
            return {"json_object": "response_format"}
        return {} if self.structured_outputs is None else self.structured_outputs.names
