"""What a request for a message, or for a count of its tokens, may hold."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.engine.sampling_params import MAX_STOP_STRINGS, SamplingParams
from octavo.server.anthropic.blocks import Texts
from octavo.server.anthropic.breakpoints import wanted_caching
from octavo.server.anthropic.conversation import Messages, joined_turns
from octavo.server.anthropic.errors import THREAD_UNSUPPORTED
from octavo.server.anthropic.fields import CacheControl, Unsupported, Words
from octavo.server.anthropic.options import (
    AnyChoice,
    Choice,
    ContextManagement,
    Diagnostics,
    JSONFormat,
    Metadata,
    NoChoice,
    OutputConfig,
    Thinking,
    ThinkingAdaptive,
    ThinkingEnabled,
    Tool,
    ToolChoice,
    choice_name,
    functions,
    structured_outputs,
)
from octavo.server.errors import invalid
from octavo.server.requests import ChatRequest
from octavo.server.validation import Body
from octavo.text.grammar import StructuredOutputsParams

_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class CountTokensRequest(Body):
    """All that a prompt is made of."""

    model: str
    messages: Messages
    cache: str | None = None
    system: Texts | None = None
    tools: list[Tool] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JSONFormat | None = None
    cache_control: CacheControl | None = None
    speed: Literal["standard"] | None = None
    context_management: ContextManagement | None = None
    mcp_servers: Unsupported = None
    thread: Any = None

    def chat_request(self) -> ChatRequest:
        """The same for the service. Takes milliseconds where the conversation is long.

        Raises:
            ApiError, InvalidRequestError: what it says cannot be; the message names the field.
        """
        return self._chat_request(SamplingParams(max_tokens=1))

    def _chat_request(self, sampling: SamplingParams) -> ChatRequest:
        if self.thread is not None:
            raise invalid(
                "thread: this server keeps no conversations; leave it out and send all messages each time",
                "thread",
                code=THREAD_UNSUPPORTED,
            )
        if self.cache is not None and self.system:
            raise invalid("system is that of the cache; leave it out, or leave out cache", "system")
        tools = self.tools or []
        turns = joined_turns(self.messages, self.system or [])
        messages = [message for turn in turns for message in turn.messages()]
        return ChatRequest(
            messages=messages,
            sampling=sampling,
            tools=functions(tools),
            tool_choice=choice_name(self.tool_choice, tools if self.cache is None else None),
            parallel_tool_calls=not self._one_call,
            output=self._output(is_continued=messages[-1]["role"] == "assistant"),
            template_kwargs=self._template_kwargs,
            caching=wanted_caching(tools, turns, self.cache_control),
            cache=self.cache,
        )

    @property
    def _form(self) -> tuple[JSONFormat, str] | None:
        """What the output must be, and the field that says so."""
        if self.output_config is not None and self.output_config.format is not None:
            return self.output_config.format, "output_config.format"
        return None if self.output_format is None else (self.output_format, "output_format")

    def _output(self, is_continued: bool) -> StructuredOutputsParams | None:
        if self._form is None:
            return None
        form, where = self._form
        if self.output_format is not None and where != "output_format":
            raise invalid("output_format is the older name of output_config.format; send one of them", "output_format")
        if is_continued:
            raise invalid(
                f"{where} needs a whole answer, but the last message is an assistant's to be continued", where
            )
        return structured_outputs(form, where)

    @property
    def _one_call(self) -> bool:
        choice = self.tool_choice
        return choice is not None and not isinstance(choice, NoChoice) and choice.disable_parallel_tool_use

    @property
    def _template_kwargs(self) -> dict[str, Any]:
        """Templates that can do without reasoning ask for this variable; others do not look at it."""
        if self.thinking is None:
            return {}
        return {"enable_thinking": isinstance(self.thinking, (ThinkingEnabled, ThinkingAdaptive))}


class MessagesRequest(CountTokensRequest):
    """A prompt, and how it is answered."""

    max_tokens: Annotated[int, Field(ge=0)]
    stream: bool = False
    temperature: _Share | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    stop_sequences: Annotated[list[Words], Field(max_length=MAX_STOP_STRINGS)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    diagnostics: Diagnostics | None = None
    container: Unsupported = None
    inference_geo: Unsupported = None

    def chat_request(self) -> ChatRequest:
        self._check_prewarming()
        if isinstance(self.thinking, ThinkingEnabled) and self.thinking.budget_tokens >= self.max_tokens:
            raise invalid(
                f"thinking.budget_tokens must be less than max_tokens ({self.max_tokens}); "
                f"got {self.thinking.budget_tokens}",
                "thinking.budget_tokens",
            )
        return self._chat_request(
            SamplingParams(
                max_tokens=self.max_tokens,
                temperature=1.0 if self.temperature is None else self.temperature,
                top_p=1.0 if self.top_p is None else self.top_p,
                top_k=self.top_k or 0,
                stop=self.stop_sequences,
            )
        )

    @property
    def hides_thinking(self) -> bool:
        """Whether blocks of thinking come without their text."""
        thinking = self.thinking
        return isinstance(thinking, (ThinkingEnabled, ThinkingAdaptive)) and thinking.display == "omitted"

    def _check_prewarming(self) -> None:
        """No token at all can be asked for, to have the prompt in the cache; then nothing may ask for an answer."""
        if self.max_tokens:
            return
        if self.stream:
            raise invalid("stream cannot be used with max_tokens 0, which has no answer", "stream")
        if isinstance(self.tool_choice, (AnyChoice, ToolChoice)):
            raise invalid("tool_choice cannot force a call with max_tokens 0, which has no answer", "tool_choice")
        if self._form is not None:
            raise invalid(f"{self._form[1]} cannot be used with max_tokens 0, which has no answer", self._form[1])
