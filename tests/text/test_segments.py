"""A rendered conversation knows which of its tokens are tools, system blocks and messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import TemplateError
from octavo.text.chat import ChatTemplate, RenderedChat
from octavo.text.segments import Segment

SYSTEM_PARTS = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("alpha", "beta", "beta_two")]
MESSAGES = [
    {"role": "system", "content": SYSTEM_PARTS},
    {"role": "user", "content": "Hello 👩‍👩‍👧‍👦"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Bye."},
]


def texts(rendered: RenderedChat) -> dict[tuple[str, int], str]:
    return {(s.kind, s.index): rendered.text[s.start_char : s.end_char] for s in rendered.segments()}


def check(rendered: RenderedChat, tokenizer: Any) -> list[Segment]:
    """What holds for every conversation and template."""
    segments = rendered.segments()
    order = [(("tool", "system", "message").index(s.kind), s.index) for s in segments]
    assert order == sorted(order)
    char = token = 0
    for segment in segments:
        assert (segment.start_char, segment.start_token) == (char, token), "parts follow each other without gaps"
        assert char <= segment.end_char <= len(rendered.text)
        assert token <= segment.end_token <= len(rendered.prompt_token_ids)
        char, token = segment.end_char, segment.end_token
        check_last_boundary_at_or_before(rendered, tokenizer, char, token)
    return segments


def check_last_boundary_at_or_before(rendered: RenderedChat, tokenizer: Any, char: int, token: int) -> None:
    def size(count: int) -> int:
        return sum(len(tokenizer.token_bytes(id_)) for id_ in rendered.prompt_token_ids[:count])

    if tokenizer.strips_leading_space:
        return  # there the first token may hold a space that the text does not
    limit = len(rendered.text[:char].encode())
    assert size(token) <= limit
    if token < len(rendered.prompt_token_ids):
        beyond = size(token + 1) > limit
        inside = rendered.text.encode()[: size(token + 1)].decode("utf-8", "ignore").encode()
        assert beyond or len(inside) < size(token + 1), "the boundary was not the last"


def test_parts_of_a_chat(byte_level: Any, templates: dict[str, str]) -> None:
    rendered = ChatTemplate(templates["chatml"], byte_level.ours).render(MESSAGES)
    assert texts(rendered) == {
        ("system", 0): "<|im_start|>system\nBe brief.",
        ("system", 1): "\nBe kind.<|im_end|>\n",
        ("message", 1): "<|im_start|>user\nHello 👩‍👩‍👧‍👦<|im_end|>\n",
        ("message", 2): "<|im_start|>assistant\nHi.<|im_end|>\n",
        ("message", 3): "<|im_start|>user\nBye.<|im_end|>\n",
    }
    assert rendered.text.endswith("Bye.<|im_end|>\n<|im_start|>assistant\n"), "the generation prompt is of none"


def test_tokens_of_a_part_are_its_text(byte_level: Any, templates: dict[str, str]) -> None:
    rendered = ChatTemplate(templates["chatml"], byte_level.ours).render(MESSAGES)
    for segment in rendered.segments():
        ids = rendered.prompt_token_ids[segment.start_token : segment.end_token]
        text = rendered.text[segment.start_char : segment.end_char]
        assert byte_level.ours.decode(ids, skip_special_tokens=False) == text


def test_tools_inside_the_system_block(byte_level: Any, templates: dict[str, str]) -> None:
    rendered = ChatTemplate(templates["tools_in_system"], byte_level.ours).render(MESSAGES, tools=TOOLS)
    found = texts(rendered)
    assert found["tool", 0].startswith("<|im_start|>system\nBe brief.\nBe kind.\n\n# Tools")
    assert found["tool", 0].rstrip().endswith('{"name": "alpha", "parameters": {}}}')
    assert found["tool", 1].strip() == '{"type": "function", "function": {"name": "beta", "parameters": {}}}'
    assert found["tool", 2].strip().startswith('{"type": "function", "function": {"name": "beta_two"')
    assert found["system", 1].endswith("Answer with <tool_call>.<|im_end|>\n")
    assert found["message", 1] == "<|im_start|>user\nHello 👩‍👩‍👧‍👦<|im_end|>\n"


def test_system_text_that_moves_into_the_user_message(byte_level: Any, templates: dict[str, str]) -> None:
    """The system message renders nothing alone, and yet it has an end inside the first user message."""
    rendered = ChatTemplate(templates["brackets"], byte_level.ours).render(MESSAGES)
    found = texts(rendered)
    assert found["system", 0].endswith("[INST] Be brief.")
    assert found["system", 1] == "\nBe kind."
    assert found["message", 1] == "\n\nHello 👩‍👩‍👧‍👦 [/INST]"


def test_tools_written_into_the_system_message_are_parts_of_their_own(
    byte_level: Any, templates: dict[str, str]
) -> None:
    rendered = ChatTemplate(templates["chatml"], byte_level.ours).render(MESSAGES, tools=TOOLS)
    check(rendered, byte_level.ours)
    found = texts(rendered)
    assert found["tool", 1].strip() == '{"type": "function", "function": {"name": "beta", "parameters": {}}}'
    assert "beta_two" in found["tool", 2]
    assert found["system", 0].endswith("\n\nBe brief.")
    assert found["message", 1] == "<|im_start|>user\nHello 👩‍👩‍👧‍👦<|im_end|>\n"


def test_tools_the_template_does_not_show_have_no_text(byte_level: Any, templates: dict[str, str]) -> None:
    chat = ChatTemplate(templates["headers"], byte_level.ours)  # shows them before what the user says first
    segments = check(chat.render(MESSAGES[2:3], tools=TOOLS), byte_level.ours)
    assert [s.end_char for s in segments if s.kind == "tool"] == [0, 0, 0]
    assert [s for s in segments if s.kind != "tool"] == chat.render(MESSAGES[2:3]).segments()


def test_reasoning_dropped_later_moves_the_boundary_before_it(byte_level: Any, templates: dict[str, str]) -> None:
    messages = [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because.", "reasoning_content": "hm"},
        {"role": "user", "content": "Really?"},
    ]
    rendered = ChatTemplate(templates["tools_in_system"], byte_level.ours).render(messages)
    assert texts(rendered)["message", 1] == "<|im_start|>assistant\n"


def test_tools_shown_late_leave_earlier_messages_without_a_boundary(byte_level: Any) -> None:
    """The tools stand before the last message, so they move with every turn: nothing before is stable."""
    source = """
{%- for m in messages %}
    {%- if loop.last %}{{ tools | tojson }}{% endif %}{{ '(' + m.content + ')' }}
{%- endfor %}"""
    messages = [{"role": "user", "content": text} for text in "abc"]
    rendered = ChatTemplate(source, byte_level.ours).render(messages, tools=TOOLS)
    segments = check(rendered, byte_level.ours)
    assert rendered.text.startswith("(a)(b)[{")
    assert [s.end_char for s in segments] == [0, 0, 0, 0, 3, len(rendered.text)]


def test_continued_message_reaches_to_the_end(byte_level: Any, templates: dict[str, str]) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "See you"}]
    chat = ChatTemplate(templates["chatml"], byte_level.ours)
    rendered = chat.render(messages, add_generation_prompt=False, continue_final_message=True)
    segments = check(rendered, byte_level.ours)
    assert segments[-1].end_char == len(rendered.text)
    assert segments[-1].end_token == len(rendered.prompt_token_ids)


def test_token_across_a_boundary_belongs_to_the_later_part(byte_level: Any) -> None:
    """With "th" at the end of one message and "e" at the start of the next, "the" is one token."""
    chat = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", byte_level.ours)
    rendered = chat.render([{"role": "user", "content": " th"}, {"role": "user", "content": "e "}])
    first, second = check(rendered, byte_level.ours)
    assert (first.end_char, first.end_token) == (3, 0)
    assert (second.start_token, second.end_token) == (0, len(rendered.prompt_token_ids))


def test_boundary_inside_a_character_of_several_tokens_is_before_it(byte_level: Any) -> None:
    chat = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", byte_level.ours)
    rendered = chat.render([{"role": "user", "content": "a"}, {"role": "user", "content": "𐍈"}])
    first, _ = check(rendered, byte_level.ours)
    assert (first.end_char, first.end_token) == (1, 1)


def test_prefix_the_template_refuses_adds_nothing_to_the_one_before(byte_level: Any) -> None:
    source = """
{%- if messages | length == 2 %}{{ raise_exception('never two') }}{% endif %}
{%- for m in messages %}{{ '(' + m.content + ')' }}{% endfor %}"""
    chat = ChatTemplate(source, byte_level.ours)
    rendered = chat.render([{"role": "user", "content": text} for text in "abc"])
    assert [s.end_char for s in rendered.segments()] == [3, 3, 9]
    with pytest.raises(TemplateError):
        chat.render([{"role": "user", "content": text} for text in "ab"])


def test_segments_are_those_of_every_longer_conversation(case: Any, templates: dict[str, str]) -> None:
    """Rolling breakpoints: the parts of turn n are found again, unchanged, in turn n + 1."""
    chat = ChatTemplate(templates["chatml"], case.ours)
    whole = chat.render(MESSAGES).segments()
    for count in range(1, len(MESSAGES)):
        earlier = chat.render(MESSAGES[: count + 1]).segments()
        assert whole[: len(earlier)] == earlier


contents = st.text(max_size=12) | st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=8)), max_size=3
)


@settings(max_examples=60)
@given(
    system=st.none() | contents,
    turns=st.lists(contents, min_size=1, max_size=4),
    tools=st.integers(0, 3),
    prompt=st.booleans(),
)
def test_any_conversation_is_cut_without_gaps(
    case: Any, template: str, system: Any, turns: list[Any], tools: int, prompt: bool
) -> None:
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
    rendered = ChatTemplate(template, case.ours).render(
        messages, tools=TOOLS[:tools] or None, add_generation_prompt=prompt
    )
    segments = check(rendered, case.ours)
    assert len([s for s in segments if s.kind == "message"]) == len(turns)
    assert len([s for s in segments if s.kind == "tool"]) == tools
    if not prompt:
        assert segments[-1].end_char == len(rendered.text)
