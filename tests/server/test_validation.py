"""What does not fit a request model: the first thing that is wrong, at no cost that grows with all that is."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from octavo.server.anthropic.schema import MessagesRequest
from octavo.server.errors import ApiError, invalid
from octavo.server.openai.chat_schema import ChatCompletionRequest
from octavo.server.openai.completions_schema import CompletionRequest
from octavo.server.openai.responses_schema import ResponseBody

MANY = 10_000
NUMBERS = [1] * MANY
NAMES: dict[str, Any] = {f"x{number}": 1 for number in range(MANY)}
ASKED = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("model", "body", "place"),
    [
        (CompletionRequest, {"prompt": ["a", *NUMBERS]}, ("prompt", "(texts)", 1)),
        (CompletionRequest, {"prompt": [1, *["a"] * MANY]}, ("prompt", "(tokens)", 1)),
        (CompletionRequest, {"prompt": "a", "logit_bias": NAMES}, ("logit_bias", "x0", "[key]")),
        (CompletionRequest, {"prompt": "a", "stop_token_ids": NUMBERS}, ("stop_token_ids",)),
        (CompletionRequest, {"prompt": "a", **NAMES}, ("x0",)),
        (ChatCompletionRequest, {"messages": NUMBERS}, ("messages", 0)),
        (ChatCompletionRequest, {"messages": [{**ASKED, **NAMES}]}, ("messages", 0, "user", "x0")),
        (ChatCompletionRequest, {"messages": [ASKED], "tools": NUMBERS}, ("tools", 0)),
        (ChatCompletionRequest, {"messages": [ASKED], "metadata": NAMES}, ("metadata", "x0")),
        (ResponseBody, {"input": NUMBERS}, ("input", "(list)", 0)),
        (
            ResponseBody,
            {"input": [{**ASKED, "content": NUMBERS}]},
            ("input", "(list)", 0, "(message)", "content", "(list)", 0),
        ),
        (MessagesRequest, {"max_tokens": 1, "messages": NUMBERS}, ("messages", 0)),
        (
            MessagesRequest,
            {"max_tokens": 1, "messages": [{**ASKED, "content": NUMBERS}]},
            ("messages", 0, "content", 0),
        ),
    ],
)
def test_however_much_is_wrong_the_first_of_it_is_all_that_is_looked_for(
    model: Any, body: dict[str, Any], place: tuple[str | int, ...]
) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(model).validate_python({"model": "m", **body})
    assert caught.value.error_count() <= 3
    assert caught.value.errors()[0]["loc"] == place


def test_an_error_quotes_nothing_at_length() -> None:
    endless: ApiError = invalid("x" * 10_000_000, "y" * 10_000_000)
    assert len(endless.message) == len(endless.param or "") == 4000
