"""What a template does with tools is found by trying."""

from __future__ import annotations

from typing import Any

import pytest
from tool_templates import FORMATS, TEMPLATES

from octavo.text.chat import ChatTemplate
from octavo.text.reply_format import ReplyFormat


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_format_of_each_family_is_recognised(byte_level: Any, name: str) -> None:
    assert ChatTemplate(TEMPLATES[name], byte_level.ours).tool_format.name == FORMATS[name]


@pytest.mark.parametrize(("name", "block"), [("mistral", " [{"), ("mistral_args", "f[ARGS]{"), ("phi4_single", "{")])
def test_its_spelling_is_the_templates_own(byte_level: Any, name: str, block: str) -> None:
    form = ChatTemplate(TEMPLATES[name], byte_level.ours).tool_format
    assert (form.begin + form.opening + form.head("f") + "{").startswith(form.begin + block)


def test_a_template_that_shows_tools_in_a_form_of_its_own_is_taken_for_hermes(byte_level: Any) -> None:
    own = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    own += "CALL {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    assert ChatTemplate(own, byte_level.ours).tool_format.name == "hermes"


def test_of_several_templates_the_one_for_tools_tells(byte_level: Any) -> None:
    templates = {"default": TEMPLATES["plain"], "tool_use": TEMPLATES["mistral"]}
    assert ChatTemplate(templates, byte_level.ours).tool_format.name == "mistral"


def test_reasoning_is_in_the_template_or_in_the_vocabulary(
    byte_level: Any, sentencepiece: Any, templates: dict[str, str]
) -> None:
    def has_reasoning(template: str, tokenizer: Any) -> bool:
        return ReplyFormat.of(ChatTemplate(template, tokenizer), tokenizer).has_reasoning

    assert has_reasoning(templates["chatml"], byte_level.ours), "<think> is a token of it"
    assert has_reasoning(templates["tools_in_system"], sentencepiece.ours), "the template writes <think>"
    assert not has_reasoning(templates["chatml"], sentencepiece.ours)
