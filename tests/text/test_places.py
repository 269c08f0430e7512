"""Breakpoints end where nothing that comes later changes a token before them, and finding that costs few renders."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_templates import TEMPLATES as TOOL_TEMPLATES

from octavo.errors import InvalidRequestError, TemplateError
from octavo.text.chat import ChatTemplate, RenderedChat
from octavo.text.messages import text_parts
from octavo.text.places import Place
from octavo.text.segments import Segment
from octavo.text.templating import CompiledTemplate

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("alpha", "beta", "beta_two")]
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]},
    {"role": "user", "content": [{"type": "text", "text": "Here is a book."}, {"type": "text", "text": "Sum it up."}]},
    {"role": "assistant", "content": "It is about a whale."},
    {"role": "user", "content": "More."},
]
BOOK = Place("message", 1, part=0)


def called(*names: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name}} for name in names]}


def covered(rendered: RenderedChat, case: Any, *places: Place, within_turn: bool = False) -> list[str]:
    """The text of the tokens up to each place."""
    ids = rendered.prompt_token_ids
    ends = rendered.ends(places, within_turn=within_turn)
    return [case.ours.decode(ids[:end], skip_special_tokens=False) for end in ends]


def place(segment: Segment) -> Place:
    return Place(segment.kind, segment.index)


def test_whole_messages_end_where_their_segments_do(byte_level: Any, templates: dict[str, str]) -> None:
    rendered = ChatTemplate(templates["chatml"], byte_level.ours).render(MESSAGES)
    segments = [segment for segment in rendered.segments() if (segment.kind, segment.index) != ("system", 0)]
    assert rendered.ends([place(segment) for segment in segments]) == [segment.end_token for segment in segments]


def test_ends_come_in_the_order_asked_for(byte_level: Any, templates: dict[str, str]) -> None:
    rendered = ChatTemplate(templates["chatml"], byte_level.ours).render(MESSAGES)
    first, last, again = rendered.ends([Place("message", 3), Place("system", 1), Place("message", 3)])
    assert first == again > last > 0
    assert rendered.ends([]) == []


def test_a_part_ends_with_its_last_word_that_no_later_text_can_change(
    byte_level: Any, templates: dict[str, str]
) -> None:
    rendered = ChatTemplate(templates["chatml"], byte_level.ours).render(MESSAGES)
    (text,) = covered(rendered, byte_level, BOOK)
    assert text.endswith("<|im_start|>user\nHere is a"), "of 'book.' a longer word could be made"


def test_the_last_part_ends_with_its_message(byte_level: Any, templates: dict[str, str]) -> None:
    rendered = ChatTemplate(templates["chatml"], byte_level.ours).render(MESSAGES)
    last_part, message = rendered.ends([Place("message", 1, part=1), Place("message", 1)])
    assert last_part == message
    assert rendered.ends([Place("system", 1)]) == rendered.ends([Place("message", 0)])


@pytest.mark.parametrize("name", ["chatml", "tools_in_system", "brackets"])
def test_a_text_ends_where_it_would_if_more_followed_in_its_message(
    name: str, byte_level: Any, templates: dict[str, str]
) -> None:
    chat = ChatTemplate(templates[name], byte_level.ours)
    more = {"type": "text", "text": "And tell me why."}
    longer = [MESSAGES[0], {**MESSAGES[1], "content": [*MESSAGES[1]["content"], more]}]
    place = Place("message", 1, part=1)
    shorter, after = chat.render(MESSAGES[:2]), chat.render(longer)
    (end,) = shorter.text_ends([place])
    assert [end] == after.text_ends([place]) == after.ends([place])
    assert shorter.prompt_token_ids[:end] == after.prompt_token_ids[:end]
    assert byte_level.ours.decode(shorter.prompt_token_ids[:end]).endswith("Sum it"), "as a part that is not the last"
    assert shorter.text_ends([Place("message", 1)]) == shorter.ends([Place("message", 1)])


def test_a_part_before_calls_ends_before_them(byte_level: Any, templates: dict[str, str]) -> None:
    call = {**called("alpha"), "content": "I look it up now. Wait."}
    rendered = ChatTemplate(templates["tools_in_system"], byte_level.ours).render([*MESSAGES, call], tools=TOOLS)
    (text,) = covered(rendered, byte_level, Place("message", 4, part=0))
    assert text.endswith("I look it up now.")


def test_a_call_ends_before_the_next_one(byte_level: Any, templates: dict[str, str]) -> None:
    messages = [*MESSAGES, called("alpha", "beta"), *({"role": "tool", "content": name} for name in "ab")]
    rendered = ChatTemplate(templates["tools_in_system"], byte_level.ours).render(messages, tools=TOOLS)
    first, last, whole = covered(
        rendered, byte_level, Place("message", 4, call=0), Place("message", 4, call=1), Place("message", 4)
    )
    assert '"alpha", "arguments":' in first.rpartition("<|im_start|>")[2] and "beta" not in first.rpartition("alpha")[2]
    assert last == whole and whole.endswith("</tool_call><|im_end|>\n")


def test_a_result_ends_where_another_one_could_follow(byte_level: Any, templates: dict[str, str]) -> None:
    messages = [*MESSAGES, called("alpha"), {"role": "tool", "content": "it rains today"}]
    rendered = ChatTemplate(templates["tools_in_system"], byte_level.ours).render(messages, tools=TOOLS)
    (text,) = covered(rendered, byte_level, Place("message", 5))
    assert text.endswith("it rains today"), "'</tool_response>' is followed by another, or by the end of the turn"


def test_tools_end_one_after_another(byte_level: Any, templates: dict[str, str]) -> None:
    rendered = ChatTemplate(templates["tools_in_system"], byte_level.ours).render(MESSAGES, tools=TOOLS)
    first, second, system = covered(
        rendered, byte_level, Place("tool", 0), Place("tool", 1), Place("system", 1), within_turn=True
    )
    assert "alpha" in first and '"beta"' not in first
    assert '"beta"' in second and "beta_two" not in second
    assert system.endswith("Answer with <tool_call>.<|im_end|>\n")


def test_tools_the_template_does_not_show_cover_nothing(byte_level: Any, templates: dict[str, str]) -> None:
    chat = ChatTemplate(templates["headers"], byte_level.ours)  # shows them before what the user says first
    assert chat.render(MESSAGES[2:3], tools=TOOLS).ends([Place("tool", 0), Place("tool", 2)]) == [0, 0]


def test_system_text_that_moves_into_the_user_message_keeps_its_end(byte_level: Any, templates: dict[str, str]) -> None:
    rendered = ChatTemplate(templates["brackets"], byte_level.ours).render(MESSAGES)
    (text,) = covered(rendered, byte_level, Place("system", 1))
    assert text.endswith("[INST] Be brief.\nBe")


def test_reasoning_that_the_next_turn_drops_counts_within_its_turn(byte_level: Any, templates: dict[str, str]) -> None:
    call = {**called("alpha"), "reasoning_content": "hm"}
    messages = [*MESSAGES, call, {"role": "tool", "content": "it rains today"}]
    rendered = ChatTemplate(templates["tools_in_system"], byte_level.ours).render(messages, tools=TOOLS)
    (lasting,) = covered(rendered, byte_level, Place("message", 5))
    (within,) = covered(rendered, byte_level, Place("message", 5), within_turn=True)
    assert lasting.endswith("More.<|im_end|>\n<|im_start|>")
    assert within.endswith("it rains today")


def test_tools_that_move_with_the_last_message_cover_nothing(byte_level: Any) -> None:
    source = """
{%- for m in messages %}
    {%- if loop.last %}{{ tools | tojson }}{% endif %}{{ '(' + m.content + ') ' }}
{%- endfor %}"""
    messages = [{"role": "user", "content": f"{text} {text}"} for text in "abc"]
    rendered = ChatTemplate(source, byte_level.ours).render(messages, tools=TOOLS)
    assert rendered.ends([Place("tool", 2)]) == [0]
    first, last = covered(rendered, byte_level, Place("message", 1), Place("message", 2))
    assert (first, last) == ("(a", "(a a) (b"), "each up to where the tools stand when it is the last, and a safe word"


def test_where_the_template_cannot_be_run_on_less_the_place_before_counts(byte_level: Any) -> None:
    source = """
{%- if messages | length in (2, 4) or (messages | length == 3 and messages[1].content) %}
    {{- raise_exception('no') }}
{%- endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.content }}{% endfor %}"""
    chat = ChatTemplate(source, byte_level.ours)
    rendered = chat.render([{"role": "user", "content": text} for text in ("a", "", "c")])
    first, second = rendered.ends([Place("message", 0), Place("message", 1)])
    assert 0 < first == second
    with pytest.raises(TemplateError):
        chat.render([{"role": "user", "content": text} for text in "ab"])


def test_continued_message_may_go_on_inside_its_last_word(byte_level: Any, templates: dict[str, str]) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "The whale is whi"}]
    chat = ChatTemplate(templates["chatml"], byte_level.ours)
    rendered = chat.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert covered(rendered, byte_level, Place("message", 4))[0].endswith("The whale is")


@pytest.mark.parametrize(
    "wrong",
    [
        Place("tool", 0),
        Place("system", 2),
        Place("message", 4),
        Place("message", -1),
        Place("message", 1, part=2),
        Place("message", 1, call=0),
    ],
)
def test_place_that_is_not_there_is_refused(byte_level: Any, templates: dict[str, str], wrong: Place) -> None:
    rendered = ChatTemplate(templates["chatml"], byte_level.ours).render(MESSAGES)
    with pytest.raises(InvalidRequestError, match="is not in this conversation"):
        rendered.ends([wrong])


def test_a_few_places_in_a_long_conversation_cost_a_few_renders(
    byte_level: Any, templates: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [{"role": ("user", "assistant")[at % 2], "content": f"This is message {at}."} for at in range(99)]
    rendered = ChatTemplate(templates["tools_in_system"], byte_level.ours).render([MESSAGES[0], *turns], tools=TOOLS)
    renders: list[object] = []
    original = CompiledTemplate.render
    monkeypatch.setattr(CompiledTemplate, "render", lambda *given: renders.append(0) or original(*given))
    places = [Place("tool", 2), Place("system", 1), Place("message", 50), Place("message", 99)]
    ends = rendered.ends(places)
    assert len(renders) <= 8
    assert ends == sorted(ends) and ends[0] > 0
    assert rendered.ends(places) == ends and len(renders) <= 8, "they are remembered"


def test_a_part_of_a_reply_ends_before_reasoning_that_is_told_while_nothing_follows(
    byte_level: Any, templates: dict[str, str]
) -> None:
    parts = [{"type": "text", "text": text} for text in ("one ", "two ", "three")]
    reply = {"role": "assistant", "content": parts, "reasoning_content": "Hm."}
    asked = {"role": "user", "content": "Count!"}
    chat = ChatTemplate(templates["tools_in_system"], byte_level.ours)
    place = Place("message", 1, part=1)
    long = chat.render([asked, reply, asked])
    short = chat.render([asked, {**reply, "content": parts[:2]}], add_generation_prompt=False)
    assert "Hm." in short.text and "Hm." not in long.text
    end = long.ends([place])[0]
    assert end and short.prompt_token_ids[:end] == long.prompt_token_ids[:end]


def test_segment_of_a_token(byte_level: Any, templates: dict[str, str]) -> None:
    rendered = ChatTemplate(templates["chatml"], byte_level.ours).render(MESSAGES)
    for segment in rendered.segments():
        for token in (segment.start_token, segment.end_token - 1):
            assert rendered.segment_at(token) == segment
    assert rendered.segment_at(rendered.segments()[-1].end_token) is None, "the generation prompt is of none"
    assert rendered.segment_at(10**9) is None


def test_text_around_a_token(byte_level: Any, templates: dict[str, str]) -> None:
    rendered = ChatTemplate(templates["chatml"], byte_level.ours).render(MESSAGES)
    start = rendered.segments()[2].start_token
    assert rendered.text_around(start, 11) == ("<|im_end|>\n", "<|im_start|")
    assert rendered.text_around(0, 5) == ("", rendered.text[:5])
    assert rendered.text_around(len(rendered.prompt_token_ids), 10) == (rendered.text[-10:], "")
    before, after = rendered.text_around(start)
    assert len(before) == len(after) == 40


words = st.text(max_size=8) | st.sampled_from(["th", "e ", " a b ", "it's", "}\n\n", "  ", "12345", "do {x} or"])
contents = words | st.lists(st.builds(lambda text: {"type": "text", "text": text}, words), min_size=1, max_size=3)


@st.composite
def turns(draw: st.DrawFn, first: int = 0, reasoning: bool = True) -> list[dict[str, Any]]:
    """Messages of user and assistant in turn."""
    said = []
    for at in range(first, first + draw(st.integers(0 if first else 1, 4))):
        said.append({"role": ("user", "assistant")[at % 2], "content": draw(contents)})
        if at % 2 and reasoning and draw(st.booleans()):
            said[-1]["reasoning_content"] = draw(words)
    return said


def places_of(messages: list[dict[str, Any]], leading: int, tools: int) -> list[Place]:
    found = [Place("tool", index) for index in range(tools)]
    found += [Place("system", block) for block in range(len(text_parts(messages[0])) if leading else 0)]
    for index in range(leading, len(messages)):
        found += [Place("message", index, part=part) for part in range(len(text_parts(messages[index])))]
        found.append(Place("message", index))
    return found


def as_parts(content: Any) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


@settings(max_examples=30)
@given(data=st.data())
def test_nothing_that_comes_later_changes_what_a_place_covers(case: Any, template: str, data: st.DataObject) -> None:
    chat = ChatTemplate(template, case.ours)
    system = data.draw(st.none() | contents)
    leading = int(system is not None)
    messages = [{"role": "system", "content": system}] if leading else []
    messages += data.draw(turns())
    tools = TOOLS[: data.draw(st.integers(0, 3))]
    rendered = chat.render(messages, tools=tools or None, add_generation_prompt=data.draw(st.booleans()))
    places = places_of(messages, leading, len(tools))
    ends = rendered.ends(places)
    assert all(0 <= first <= second <= len(rendered.prompt_token_ids) for first, second in pairwise([0, *ends]))
    assert rendered.ends(places[::-1]) == ends[::-1]

    at = data.draw(st.sampled_from(range(len(places))))
    changed, changed_tools = changed_after(places[at], messages, leading, tools, data)
    other = chat.render(changed, tools=changed_tools or None, add_generation_prompt=data.draw(st.booleans()))
    end = rendered.ends([places[at]])[0]
    for known in (end, ends[at]):
        assert other.prompt_token_ids[:known] == rendered.prompt_token_ids[:known]


def changed_after(
    kept: Place, messages: list[dict[str, Any]], leading: int, tools: list[dict[str, Any]], data: st.DataObject
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Another conversation that is the same up to ``kept``; system text stays where there are tools."""
    if kept.kind == "tool":
        others = [{"type": "function", "function": {"name": "alphabet", "parameters": {}}}, *TOOLS]
        more = data.draw(st.lists(st.sampled_from(others), max_size=2))
        return [*messages[:leading], *data.draw(turns())], [*tools[: kept.index + 1], *more]
    index, part = (0, kept.index) if kept.kind == "system" else (kept.index, kept.part)
    message = messages[index]
    if part is not None and not (kept.kind == "system" and tools):
        blocks = as_parts(message["content"])
        more = data.draw(st.lists(st.builds(lambda text: {"type": "text", "text": text}, words), max_size=2))
        if part < len(blocks) - 1:  # the last one ends with its message
            content = [*blocks[: part + 1], *more]
            message = {**message, "content": content if isinstance(message["content"], list) else content[0]["text"]}
    elapsed = index + 1 - leading
    following = data.draw(turns(first=elapsed)) if elapsed else data.draw(turns())
    return [*messages[:index], message, *following], tools


@settings(max_examples=20)
@given(data=st.data())
@pytest.mark.parametrize("name", ["plain", "qwen", "mistral_args", "smollm3", "granite", "phi4_single"])
def test_no_later_call_or_result_changes_what_a_place_covers(byte_level: Any, name: str, data: st.DataObject) -> None:
    chat = ChatTemplate(TOOL_TEMPLATES[name], byte_level.ours)

    def calls(more: int) -> dict[str, Any]:
        names = data.draw(st.lists(st.sampled_from(["alpha", "beta", "beta_two"]), min_size=more, max_size=3))
        return {"role": "assistant", "content": data.draw(words), "tool_calls": called(*names)["tool_calls"]}

    def results() -> list[dict[str, Any]]:
        said = data.draw(st.lists(contents, max_size=2))
        return [{"role": "tool", "tool_call_id": "123456789", "content": content} for content in said]

    head = [{"role": "user", "content": "Go."}]
    call = calls(1)
    messages = [*head, call, *results()]
    rendered = chat.render(messages, tools=TOOLS)
    places = [Place("message", 1, call=number) for number in range(len(call["tool_calls"]))]
    places += [Place("message", 1), *(Place("message", at) for at in range(2, len(messages)))]
    ends = rendered.ends(places)
    within = rendered.ends(places, within_turn=True)
    assert within == sorted(within) and ends == sorted(ends)
    at = data.draw(st.sampled_from(range(len(places))))
    index, number = places[at].index, places[at].call
    kept = messages[index]
    if number is not None and number < len(call["tool_calls"]) - 1:
        kept = {**kept, "tool_calls": [*kept["tool_calls"][: number + 1], *calls(0)["tool_calls"]]}
    other = chat.render([*messages[:index], kept, *results(), *data.draw(turns(first=1))], tools=TOOLS)
    for known in (ends[at], within[at]):
        assert other.prompt_token_ids[:known] == rendered.prompt_token_ids[:known]
