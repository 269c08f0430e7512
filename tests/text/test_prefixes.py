"""What every continuation of a conversation begins with, and whether a template leaves the past alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError, TemplateError
from octavo.text.chat import ChatTemplate

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("alpha", "beta")]
SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "Here is a book."}
ANSWERED = {"role": "assistant", "content": "I know it."}
THINKS_ALWAYS = """
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content.split('</think>')[-1] + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"""
TOOLS_LAST = """
{%- for m in messages %}
    {%- if loop.last and tools %}{{ tools | tojson }}{% endif %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
FORGETS = "{% for m in messages[-2:] %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}{% endfor %}"
COUNTS = "{{ messages | length }}{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}"
THINKS_NOT = """
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{% endif %}"""


def test_prefix_ends_where_the_next_message_begins(byte_level: Any, templates: dict[str, str]) -> None:
    ids = ChatTemplate(templates["chatml"], byte_level.ours).prefix_tokens([SYSTEM])
    text = byte_level.ours.decode(ids, skip_special_tokens=False)
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>"


def test_prefix_of_tools_alone(byte_level: Any, templates: dict[str, str]) -> None:
    chat = ChatTemplate(templates["tools_in_system"], byte_level.ours)
    text = byte_level.ours.decode(chat.prefix_tokens([], tools=TOOLS), skip_special_tokens=False)
    assert "alpha" in text and "beta" in text and text.endswith("Answer with <tool_call>.<|im_end|>\n<|im_start|>")


def test_prefix_where_no_user_can_speak_next(byte_level: Any, templates: dict[str, str]) -> None:
    """The template wants turns, and the user has spoken last."""
    ids = ChatTemplate(templates["brackets"], byte_level.ours).prefix_tokens([SYSTEM, ASKED])
    assert byte_level.ours.decode(ids, skip_special_tokens=False).endswith("[INST] Be brief.\n\nHere is a book.")


def test_prefix_that_ends_with_a_call_counts_on_its_result(byte_level: Any, templates: dict[str, str]) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "alpha"}}]}
    chat = ChatTemplate(templates["tools_in_system"], byte_level.ours)
    ids = chat.prefix_tokens([SYSTEM, ASKED, call], tools=TOOLS)
    later = chat.render([SYSTEM, ASKED, call, {"role": "tool", "content": "7"}], tools=TOOLS).prompt_token_ids
    assert later[: len(ids)] == ids
    assert byte_level.ours.decode(ids, skip_special_tokens=False).endswith("</tool_call><|im_end|>\n<|im_start|>")


def test_prefix_ends_before_a_word_that_may_become_a_longer_one(byte_level: Any) -> None:
    chat = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", byte_level.ours)
    assert byte_level.ours.decode(chat.prefix_tokens([SYSTEM])) == "Be", "of 'brief.' a longer word could be made"


@pytest.mark.parametrize("nothing", [[], (), "", None, 7])
def test_prefix_of_nothing_is_refused(byte_level: Any, templates: dict[str, str], nothing: Any) -> None:
    with pytest.raises(InvalidRequestError, match="at least one message") as info:
        ChatTemplate(templates["chatml"], byte_level.ours).prefix_tokens(nothing)
    assert info.value.param == "messages"


def test_prefix_of_what_the_template_refuses_is_refused(byte_level: Any, templates: dict[str, str]) -> None:
    with pytest.raises(TemplateError, match="must alternate"):
        ChatTemplate(templates["brackets"], byte_level.ours).prefix_tokens([ASKED, ASKED])


texts = st.text(max_size=8) | st.sampled_from(["\n", " th", "e ", "it's", "}\n\n", "12345", "do it or"])


@settings(max_examples=30)
@given(
    system=texts, turns=st.lists(texts, max_size=2), later=st.lists(texts, min_size=1, max_size=3), tools=st.booleans()
)
def test_every_continuation_begins_with_the_prefix(
    case: Any, template: str, system: str, turns: list[str], later: list[str], tools: bool
) -> None:
    chat = ChatTemplate(template, case.ours)
    said = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate([*turns, *later])]
    head = [{"role": "system", "content": system}]
    given_tools = TOOLS if tools else None
    prefix = chat.prefix_tokens([*head, *said[: len(turns)]], tools=given_tools)
    assert chat.render([*head, *said], tools=given_tools).prompt_token_ids[: len(prefix)] == prefix


@pytest.mark.parametrize(
    ("source", "with_tools", "why_not"),
    [
        ("chatml", False, None),
        ("chatml", True, None),
        ("headers", True, None),
        ("brackets", False, None),
        ("parts", False, None),
        ("tools_in_system", False, "drops the reasoning of earlier turns"),
        (THINKS_ALWAYS, False, "drops the reasoning of earlier turns"),
        (TOOLS_LAST, False, None),
        (TOOLS_LAST, True, "moves the tools as the conversation goes on"),
        (FORGETS, False, "leaves out earlier turns"),
        (COUNTS, False, "rewrites earlier turns"),
        (THINKS_NOT, False, "begins a reply otherwise than it shows it afterwards"),
    ],
)
def test_what_a_template_does_with_earlier_turns(
    byte_level: Any, templates: dict[str, str], source: str, with_tools: bool, why_not: str | None
) -> None:
    stability = ChatTemplate(templates.get(source, source), byte_level.ours).prefix_stability(with_tools)
    assert stability.why_not == why_not
    assert stability.is_stable == (why_not is None)


def test_template_that_refuses_turns_says_so(byte_level: Any) -> None:
    chat = ChatTemplate("{{ raise_exception('One message only.') }}", byte_level.ours)
    why_not = chat.prefix_stability().why_not
    assert why_not is not None and why_not.startswith("refuses a conversation of three turns")
    assert "One message only." in why_not


def test_the_embedded_models_template_leaves_the_past_alone(smollm2_case: Any) -> None:
    chat = ChatTemplate(smollm2_case.metadata["tokenizer.chat_template"], smollm2_case.ours)
    assert chat.prefix_stability().is_stable
    assert chat.prefix_stability(with_tools=True).is_stable
