"""Chat templates run here: jinja2, sandboxed, with what transformers gives a template and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from octavo.errors import TemplateError

MAX_CHARACTERS = 2**26
"""Most that a template may write, and most that one multiplication in it may make: far beyond any context."""


class CompiledTemplate:
    """One template, compiled once. Rendering changes neither the template nor what it is given."""

    def __init__(self, source: str) -> None:
        """Compile ``source``.

        Raises:
            TemplateError: it is not valid jinja2, or beyond what can be compiled.
        """
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template is not valid: {error.message} (line {error.lineno})",
                param="chat_template",
            ) from error
        except Exception as error:  # nested too deep for the compiler, half a surrogate pair, a constant that overflows
            raise TemplateError(
                f"the chat template cannot be compiled: {type(error).__name__}: {error}", param="chat_template"
            ) from error

    def render(self, variables: dict[str, Any]) -> str:
        """Run the template.

        Raises:
            TemplateError: the template refused (``raise_exception``) or failed; the message is its own.
        """
        try:
            return "".join(_bounded(self._template.generate(variables)))
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refuses this: {error}", param="messages") from error
        except Exception as error:  # a template is a program: it can fail in any way
            raise TemplateError(
                f"the chat template failed on this: {type(error).__name__}: {error}", param="messages"
            ) from error


def _bounded(pieces: Iterable[str]) -> Iterator[str]:
    """``pieces``, unless they come to more than a template may write."""
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_CHARACTERS:
            raise jinja2.TemplateRuntimeError(f"it writes more than {MAX_CHARACTERS:,} characters")
        yield piece


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, in which one short expression cannot take all memory either."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _parts_made(operator, left, right) > MAX_CHARACTERS:
            raise jinja2.exceptions.SecurityError(
                f"{operator} would make a value of more than {MAX_CHARACTERS:,} parts"
            )
        return super().call_binop(context, operator, left, right)


def _parts_made(operator: str, left: Any, right: Any) -> int:
    """How large a product or a power will be: items of a sequence, or bits of a whole number."""
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
    sequence, count = (right, left) if isinstance(left, int) else (left, right)
    return len(sequence) * count if isinstance(sequence, Sized) and isinstance(count, int) else 0


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_Namespace
    )
    return environment


class _GenerationTag(Extension):
    """``{% generation %}``, which marks the assistant's words for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A call block, not the bare body: variables set inside are not seen outside, as in transformers.
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """``dict(...)`` for templates, without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """``namespace(...)`` that keeps templates away from Python's underscored names."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *positional = args
        values = dict(*positional, **kwargs)
        for name in values:
            _refuse_underscore(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}: no names with a leading underscore")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not jinja2's own filter: that one escapes HTML and sorts keys.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
