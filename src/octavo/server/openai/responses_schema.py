"""What a request for a response may hold."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Tag
from pydantic_core import PydanticCustomError

from octavo.engine.sampling_params import MAX_LOGPROBS
from octavo.server.openai.caching import CacheOptions, CachingBody
from octavo.server.openai.fields import Metadata, refused, told_apart
from octavo.server.openai.formats import JsonObjectFormat, TextFormat
from octavo.server.openai.responses_items import Input
from octavo.server.openai.tools import choice_form
from octavo.server.validation import Body


def _json_object(value: dict[str, Any]) -> dict[str, Any]:
    """It is given back to the client, so it must be JSON: Python also reads ``NaN``, and numbers that are infinite."""
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise PydanticCustomError("json", "Must be JSON: {why}", {"why": str(error)}) from error
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_json_object)]


class JsonSchemaFormat(Body):
    """``strict`` makes no difference: an answer is always held to the schema."""

    type: Literal["json_schema"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema_: JsonObject = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


Format = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class TextSettings(Body):
    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class FunctionTool(Body):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class NamedTool(Body):
    type: Literal["function"]
    name: str


class ReasoningSettings(Body):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class AllowedTools(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1)]


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("(word)")]
    | Annotated[NamedTool, Tag("(named)")]
    | Annotated[AllowedTools, Tag("(allowed)")],
    told_apart(choice_form, "'none', 'auto', 'required', or an object that names a function or allowed tools"),
]


class StreamOptions(Body):
    """It has no effect: frames are as long as what they say."""

    include_obfuscation: bool | None = None


class PromptBody(Body):
    """What a prompt is made of: all that counting its tokens needs."""

    input: Input | None = None
    cache: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Annotated[
        None, refused("Conversations are not kept here; send the items, or use previous_response_id")
    ] = None
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningSettings | None = None
    text: TextSettings | None = None
    truncation: Literal["disabled"] | None = None


class InputTokensBody(PromptBody):
    """``POST /v1/responses/input_tokens``."""

    model: str | None = None


class ResponseCacheOptions(CacheOptions):
    """``comparison_response_id``: what this response's use of the cache is to be explained by. ``prewarm``: compute the
    prompt, so that it is cached, and answer nothing.
    """

    comparison_response_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    prewarm: bool | None = None


class ResponseBody(CachingBody, PromptBody):
    """``POST /v1/responses``."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    metadata: Metadata | None = None
    background: Literal[False] | None = None
    prompt: Annotated[None, refused("No prompts are kept here; send instructions and input")] = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    user: str | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    prompt_cache_options: ResponseCacheOptions | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Asked for by name, or by asking for alternatives."""
        return bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or [])

    @property
    def prewarms(self) -> bool:
        """Whether the prompt is computed and nothing answered."""
        return self.prompt_cache_options is not None and bool(self.prompt_cache_options.prewarm)

    @property
    def compared_with(self) -> str | None:
        """The response that its use of the cache is compared with."""
        return None if self.prompt_cache_options is None else self.prompt_cache_options.comparison_response_id
