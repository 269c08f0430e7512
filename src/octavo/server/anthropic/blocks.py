"""Content blocks as a request may hold them, and the text that a model is shown of them.

Whether a block may stand where it stands is the conversation's affair: see :mod:`octavo.server.anthropic.conversation`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, Tag

from octavo.server.anthropic.fields import CacheControl, Citations, Words, by_type
from octavo.server.validation import Body, unsupported

_TEXT_ONLY = " (Octavo runs text models, and no tools of its own)"
_ON_REASONING = "no breakpoint can stand on reasoning; leave it out"
_WITHIN = "no breakpoint can stand within a document or a search result; put it on the whole block"


def _text_as_blocks(value: Any) -> Any:
    """A string is short for one block of text; an empty one for no block."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}] if value else []
    return value


class TextBlock(Body):
    type: Literal["text"]
    text: Words
    cache_control: CacheControl | None = None
    citations: list[dict[str, Any]] | None = None


Texts: TypeAlias = Annotated[
    list[TextBlock], BeforeValidator(_text_as_blocks, json_schema_input_type=str | list[TextBlock])
]
"""Text, or blocks of text."""


class QuotedText(Body):
    """Text of a document or a search result, which is one block to whoever marks it."""

    type: Literal["text"]
    text: Words
    cache_control: Annotated[None, BeforeValidator(lambda value: _no_breakpoint(value, _WITHIN))] = None
    citations: list[dict[str, Any]] | None = None


QuotedTexts: TypeAlias = Annotated[
    list[QuotedText], BeforeValidator(_text_as_blocks, json_schema_input_type=str | list[QuotedText])
]


class PlainTextSource(Body):
    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: Words


class ContentSource(Body):
    type: Literal["content"]
    content: QuotedTexts


class DocumentBlock(Body):
    type: Literal["document"]
    source: Annotated[
        Annotated[PlainTextSource, Tag("(text)")] | Annotated[ContentSource, Tag("(content)")],
        by_type("text", "content", why=" (this server reads text only)"),
    ]
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None
    cache_control: CacheControl | None = None

    def as_text(self) -> str:
        """What the model is shown, in the tags that Anthropic's own advice on long documents uses."""
        source = self.source
        text = source.data if isinstance(source, PlainTextSource) else "\n".join(block.text for block in source.content)
        return _tagged("document", {"title": self.title, "context": self.context}, text)


class SearchResultBlock(Body):
    type: Literal["search_result"]
    source: str
    title: str
    content: list[QuotedText]
    citations: Citations | None = None
    cache_control: CacheControl | None = None

    def as_text(self) -> str:
        text = "\n".join(block.text for block in self.content)
        return _tagged("search_result", {"source": self.source, "title": self.title}, text)


class _Thought(Body):
    """Part of an assistant's reasoning, which no breakpoint can stand on."""

    cache_control: Annotated[None, BeforeValidator(lambda value: _no_breakpoint(value, _ON_REASONING))] = None


class ThinkingBlock(_Thought):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(_Thought):
    type: Literal["redacted_thinking"]
    data: str


class DirectCaller(Body):
    type: Literal["direct"]


class ToolUseBlock(Body):
    type: Literal["tool_use"]
    id: Words
    name: Words
    input: dict[str, Any]
    caller: DirectCaller | None = None
    toolset_name: None = None
    cache_control: CacheControl | None = None


ResultPart: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("(text)")]
    | Annotated[DocumentBlock, Tag("(document)")]
    | Annotated[SearchResultBlock, Tag("(search_result)")],
    by_type("text", "document", "search_result", why=_TEXT_ONLY),
]

ResultParts: TypeAlias = Annotated[
    list[ResultPart], BeforeValidator(_text_as_blocks, json_schema_input_type=str | list[ResultPart])
]


class ToolResultBlock(Body):
    type: Literal["tool_result"]
    tool_use_id: Words
    content: ResultParts = Field(default_factory=list)
    is_error: bool | None = None
    toolset_name: None = None
    cache_control: CacheControl | None = None

    def texts(self) -> list[str]:
        """What the model is shown: a failure says so first."""
        texts = [shown_text(part) for part in self.content]
        return [": ".join(["Error", *texts[:1]]), *texts[1:]] if self.is_error else texts


Block: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("(text)")]
    | Annotated[DocumentBlock, Tag("(document)")]
    | Annotated[SearchResultBlock, Tag("(search_result)")]
    | Annotated[ThinkingBlock, Tag("(thinking)")]
    | Annotated[RedactedThinkingBlock, Tag("(redacted_thinking)")]
    | Annotated[ToolUseBlock, Tag("(tool_use)")]
    | Annotated[ToolResultBlock, Tag("(tool_result)")],
    by_type(
        "text",
        "document",
        "search_result",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        why=_TEXT_ONLY,
    ),
]
Blocks: TypeAlias = Annotated[list[Block], BeforeValidator(_text_as_blocks, json_schema_input_type=str | list[Block])]
"""Text, or content blocks."""


def shown_text(block: TextBlock | DocumentBlock | SearchResultBlock) -> str:
    """The text that the model is shown of a block that is one."""
    return block.text if isinstance(block, TextBlock) else block.as_text()


def _tagged(tag: str, about: dict[str, str | None], text: str) -> str:
    lines = [f"<{name}>{value}</{name}>" for name, value in about.items() if value]
    return "\n".join([f"<{tag}>", *lines, text, f"</{tag}>"])


def _no_breakpoint(value: Any, why: str) -> Any:
    if value is not None:
        raise unsupported(why)
    return value
