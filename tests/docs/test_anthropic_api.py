"""docs/anthropic-api.md: its tables are those of the code."""

from __future__ import annotations

from typing import Any

from doc_tables import quoted, table

from octavo.server.anthropic import blocks, conversation, options
from octavo.server.anthropic.errors import error_body, status
from octavo.server.anthropic.fields import Unsupported
from octavo.server.anthropic.reply import STOP_REASONS
from octavo.server.anthropic.schema import CountTokensRequest, MessagesRequest
from octavo.server.errors import ApiError, ErrorKind
from octavo.server.validation import Body

PAGE = "docs/anthropic-api.md"
_FIELDS = ("Field", "Status", "What")
_STATUSES = {"works", "no effect", "refused"}


def names(model: type[Body]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def described(heading: str, columns: tuple[str, ...] = _FIELDS) -> dict[str, str]:
    """The first column of a table, and what its column of that name says of the status."""
    rows = table(PAGE, heading, columns)
    return {quoted(row[0])[0]: row[columns.index("Status")] for row in rows}


def test_every_field_of_a_request_has_its_row_in_order() -> None:
    statuses = described("## The request")
    assert list(statuses) == names(MessagesRequest)
    assert list(statuses)[: len(CountTokensRequest.model_fields)] == names(CountTokensRequest)
    assert set(statuses.values()) == _STATUSES


def test_what_is_refused_is_what_the_model_refuses() -> None:
    refused = {name for name, field in MessagesRequest.model_fields.items() if _is_unsupported(field)}
    statuses = described("## The request")
    assert {name for name, status in statuses.items() if status == "refused"} == refused | {"thread"}


def test_every_field_of_a_tool_has_its_row() -> None:
    assert sorted(described("## Tools")) == sorted(names(options.Tool))


def test_every_block_has_its_row_with_its_roles() -> None:
    columns = ("Block", "Where", "Status", "What the model is shown")
    rows = {quoted(row[0])[0]: row[1] for row in table(PAGE, "## Messages", columns)}
    kinds = {_type(model): model for model in _BLOCKS}
    assert set(rows) == set(kinds)
    for kind, where in rows.items():
        roles = {role for role, models in conversation.KINDS.items() if kinds[kind] in models}
        assert roles == ({"user", "assistant", "system"} if where.startswith("all roles") else {quoted(where)[0]})


def test_every_way_of_thinking_has_its_row() -> None:
    rows = described("## Thinking", ("`type`", "Status", "What"))
    models: list[type[Body]] = [options.ThinkingEnabled, options.ThinkingAdaptive, options.ThinkingDisabled]
    assert list(rows) == [_type(model) for model in models]


def test_every_stop_reason_and_every_error_has_its_row() -> None:
    reasons = [quoted(row[0])[0] for row in table(PAGE, "## The answer", ("`stop_reason`", "When"))]
    assert sorted(reasons) == sorted(STOP_REASONS.values())
    rows = {int(row[0]): quoted(row[1])[0] for row in table(PAGE, "## Errors", ("Status", "`type`", "When"))}
    errors = {status(error): error for error in (ApiError(kind, "x") for kind in ErrorKind)}
    for number, kind in rows.items():
        assert error_body(errors[number], "req_1")["error"]["type"] == kind


_BLOCKS: list[type[Body]] = [
    blocks.TextBlock,
    blocks.DocumentBlock,
    blocks.SearchResultBlock,
    blocks.ToolUseBlock,
    blocks.ToolResultBlock,
    blocks.ThinkingBlock,
    blocks.RedactedThinkingBlock,
]


def _type(model: type[Body]) -> str:
    kind: str = model.model_fields["type"].annotation.__args__[0]  # type: ignore[union-attr]
    return kind


def _is_unsupported(field: Any) -> bool:
    return field.annotation is type(None) and field.metadata == list(Unsupported.__metadata__)  # type: ignore[attr-defined]
