"""What an answer must look like: OpenAI's response_format and vLLM's structured_outputs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.server.errors import invalid
from octavo.server.validation import Body
from octavo.text.grammar import StructuredOutputsParams


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class JsonSchema(Body):
    """``strict`` makes no difference: an answer is always held to the schema."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(Body):
    """Exactly one of them; see :class:`octavo.StructuredOutputsParams`."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None

    @property
    def names(self) -> dict[str, str]:
        """What the client calls the one that is given, by its kind; nothing if there is not one."""
        kinds = [name.rstrip("_") for name, value in self if value is not None]
        return {kinds[0]: f"structured_outputs.{kinds[0]}"} if len(kinds) == 1 else {}

    def params(self) -> StructuredOutputsParams:
        """Raises InvalidRequestError: none or several of them are given."""
        return StructuredOutputsParams(
            json=self.json_,
            json_object=bool(self.json_object),
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
        )


def wanted_output(
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None, structured: StructuredOutputs | None
) -> StructuredOutputsParams | None:
    """What the answer must be; ``None``: any text.

    Raises:
        ApiError: both ask for something (400).
        InvalidRequestError: one of them makes no sense.
    """
    if structured is not None:
        if response_format is not None and not isinstance(response_format, TextFormat):
            raise invalid(
                "structured_outputs and response_format both say what the answer must be; send one of them",
                "structured_outputs",
            )
        return structured.params()
    if isinstance(response_format, JsonSchemaFormat):
        return StructuredOutputsParams(json=response_format.json_schema.schema_)
    return StructuredOutputsParams(json_object=True) if isinstance(response_format, JsonObjectFormat) else None
