from __future__ import annotations

import pytest

from octavo.errors import ContextLengthError, InvalidRequestError
from octavo.server.errors import ApiError, as_api_error, invalid
from octavo.server.openai.wording import Wording, output_fields

WORDING = Wording({"max_tokens": "max_completion_tokens"}, {"prompt": "messages"})


def refusal(error: Exception) -> ApiError:
    with pytest.raises(ApiError) as refused, WORDING.applied():
        raise error
    return refused.value


def test_a_field_is_renamed_in_the_message_too_but_not_within_another_name() -> None:
    error = refusal(InvalidRequestError("max_tokens beats my_max_tokens and the prompt", param="max_tokens"))
    assert error.message == "max_completion_tokens beats my_max_tokens and the prompt"
    assert error.param == "max_completion_tokens"


def test_a_place_is_renamed_where_it_is_a_place_alone() -> None:
    error = refusal(ContextLengthError("the prompt has 3 tokens", requested=3, limit=2))
    assert (error.message, error.param) == ("the prompt has 3 tokens", "messages")
    assert error.code == "context_length_exceeded"


def test_what_the_engine_refused_through_the_service_is_renamed() -> None:
    cause = InvalidRequestError("max_tokens is odd", param="max_tokens")
    error = as_api_error(cause)
    error.__cause__ = cause
    assert refusal(error).param == "max_completion_tokens"


def test_a_dialects_own_error_is_left_as_it_is() -> None:
    own = invalid("max_tokens and max_completion_tokens differ", "max_tokens")
    assert refusal(own) is own


@pytest.mark.parametrize(
    ("names", "has_tools", "expected"),
    [
        ({}, False, {}),
        ({}, True, {"structured_outputs.grammar": "tools", "structured_outputs": "tools"}),
        (
            {"json": "response_format"},
            True,
            {
                "structured_outputs.json": "response_format",
                "structured_outputs.grammar": "response_format",
                "structured_outputs": "response_format",
            },
        ),
    ],
)
def test_a_constraint_has_the_name_of_what_asked_for_it(
    names: dict[str, str], has_tools: bool, expected: dict[str, str]
) -> None:
    assert output_fields(names, has_tools) == expected
