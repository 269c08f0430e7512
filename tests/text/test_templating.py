"""A template is a program from elsewhere: it may fail in any way, and nothing of that may harm the caller."""

from __future__ import annotations

import pytest

from octavo.errors import TemplateError
from octavo.text.templating import MAX_CHARACTERS, CompiledTemplate

NOT_COMPILABLE = {
    "no template": "{% if %}",
    "nested parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested lists": "{{ " + "[" * 2000 + "]" * 2000 + " }}",
    "nested loops": "{% for a in b %}" * 30 + "{% endfor %}" * 30,
    "unknown filter": "{{ 1 | nonsense }}",
    "a long chain": "{{ 1" + " + 1" * 20_000 + " }}",
    "another template": "{% include 'x' %}{% extends 'y' %}",
}
FAILING = {
    "a power": "{{ 10 ** (10 ** 10) }}",
    "a negative power": "{{ 0 ** -1 }}",
    "repeated squares": "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "a long text": "{{ 'a' * 10 ** 11 }}",
    "a long list": "{{ 10 ** 11 * [1] }}",
    "a product of neither": "{{ {} * 'a' }}",
    "much output": "{% for i in range(9999) %}{% for j in range(9999) %}{{ 'a' * 99 }}{% endfor %}{% endfor %}",
    "a large range": "{{ range(10 ** 10) | list }}",
    "division by zero": "{{ 1 // 0 }}",
    "endless recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "undefined": "{{ nothing.at.all }}",
    "its own refusal": "{{ raise_exception('no') }}",
    "a refusal without words": "{{ raise_exception(nothing) }}",
    "a bad date": "{{ strftime_now('\\ud800') }}",
    "no number": "{{ 'a' | int + none }}",
    "no JSON": "{{ namespace() | tojson }}",
    "a long number": "{{ (2 ** 60000) | string }}",
}
ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ [''] | map(attribute='__class__') | list }}",
    "{{ raise_exception.__globals__ }}",
    "{{ raise_exception['__globals__'] }}",
    "{{ strftime_now.__globals__ }}",
    "{{ strftime_now | attr('__code__') }}",
    "{{ dict.__init__.__globals__ }}",
    "{{ dict.fromkeys.__func__ }}",
    "{{ dict.fromkeys.__self__.__class__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ namespace().__dict__ }}",
    "{{ namespace(__class__=1) }}",
    "{% set n = namespace() %}{% set n._x = 1 %}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ '{0.__class__}' | format(1) }}{{ ''.format.__self__.__class__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ lipsum.__globals__ }}",
    "{{ self.__init__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ loop.__class__ }}",
    "{% for x in [1] %}{{ loop.__class__ }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m.__class__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{{ messages.clear() }}",
]


def rendered(source: str, **variables: object) -> str:
    return CompiledTemplate(source).render({"messages": [{"role": "user", "content": "hi"}], **variables})


@pytest.mark.parametrize("source", NOT_COMPILABLE.values(), ids=NOT_COMPILABLE.keys())
def test_a_template_that_cannot_be_compiled_is_refused_by_type(source: str) -> None:
    with pytest.raises(TemplateError):
        rendered(source)


@pytest.mark.parametrize("source", FAILING.values(), ids=FAILING.keys())
def test_a_template_that_fails_or_grows_without_measure_is_refused_by_type(source: str) -> None:
    with pytest.raises(TemplateError):
        rendered(source)


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_reaches_nothing_beyond_its_variables(source: str) -> None:
    """An underscored name is undefined or refused, never found; what is given is never changed."""
    messages = [{"role": "user", "content": "hi"}]
    try:
        text = rendered(source, messages=messages)
    except TemplateError:
        text = ""
    assert text == "" or ("class" not in text and "0x" not in text and "globals" not in text)
    assert messages == [{"role": "user", "content": "hi"}]


def test_products_and_powers_of_ordinary_size_are_what_they_are() -> None:
    assert rendered("{{ '-' * 3 }}{{ 3 * '=' }}{{ [1] * 2 }}{{ 6 * 7 }}{{ 2 ** 10 }}{{ 2 ** -1 }}{{ 2.5 * 2 }}") == (
        "---===[1, 1]4210240.55.0"
    )
    assert len(rendered("{{ 'a' * n }}", n=MAX_CHARACTERS)) == MAX_CHARACTERS
