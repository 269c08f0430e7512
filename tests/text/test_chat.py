"""Conversations are rendered and tokenised as transformers does it."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError, TemplateError
from octavo.text.chat import ChatTemplate
from octavo.text.messages import checked_messages

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Größe & <{name}> 你好",
            "parameters": {
                "type": "object",
                "properties": {"z": {"type": "string"}, "a": {"type": "integer"}},
            },
        },
    }
    for name in ("weather", "search", "weather_week")
]
CALL = {"type": "function", "id": "c1", "function": {"name": "weather", "arguments": {"z": "Köln", "a": 3}}}

USER, ASSISTANT = {"role": "user", "content": "Hello  "}, {"role": "assistant", "content": " Hi! 👋\n"}
SYSTEM = {"role": "system", "content": "  Be brief.\n"}
CONVERSATIONS = {
    "one": [USER],
    "turns": [USER, ASSISTANT, {"role": "user", "content": "Ça va? 你好 <|im_end|>"}],
    "system": [SYSTEM, USER, ASSISTANT, {"role": "user", "content": ""}],
    "thought": [
        USER,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes.", "reasoning": "hm"},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because.", "reasoning_content": "\nwell\n"},
    ],
    "nulls": [{"role": "user", "content": "x", "name": None, "tool_calls": None}],
}
CALLING = [
    SYSTEM,
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "18 °C"},
    {"role": "assistant", "content": "It is 18 °C."},
    USER,
]


def ours_and_theirs(case: Any, template: str, messages: list[Any], **options: Any) -> tuple[Any, Any]:
    """What both make of it: (text, ids), or the type of refusal."""
    kwargs = options.pop("chat_template_kwargs", {})
    options.setdefault("add_generation_prompt", False)
    try:
        rendered = ChatTemplate(template, case.ours).render(messages, chat_template_kwargs=kwargs, **options)
        ours: Any = (rendered.text, rendered.prompt_token_ids)
    except TemplateError:
        ours = "refused"
    try:
        text = case.reference.apply_chat_template(messages, chat_template=template, tokenize=False, **options, **kwargs)
        ids = case.reference.apply_chat_template(
            messages, chat_template=template, tokenize=True, return_dict=False, **options, **kwargs
        )
        theirs: Any = (text, ids)
    except Exception:  # whatever a template can raise
        theirs = "refused"
    return ours, theirs


@pytest.mark.parametrize("generation_prompt", [False, True])
@pytest.mark.parametrize("name", sorted(CONVERSATIONS))
def test_rendering_equals_transformers(case: Any, template: str, name: str, generation_prompt: bool) -> None:
    ours, theirs = ours_and_theirs(case, template, CONVERSATIONS[name], add_generation_prompt=generation_prompt)
    assert ours == theirs


@pytest.mark.parametrize("tools", [None, [], TOOLS[:1], TOOLS])
@pytest.mark.parametrize("name", ["headers", "tools_in_system"])
def test_rendering_with_tools_equals_transformers_where_the_template_takes_them(
    byte_level: Any, templates: dict[str, str], name: str, tools: Any
) -> None:
    for messages in (CALLING, CALLING[1:], CONVERSATIONS["system"]):
        ours, theirs = ours_and_theirs(byte_level, templates[name], messages, tools=tools, add_generation_prompt=True)
        assert ours == theirs


def test_the_templates_with_tools_show_them(byte_level: Any, templates: dict[str, str]) -> None:
    for name in ("headers", "tools_in_system"):
        text = ChatTemplate(templates[name], byte_level.ours).render(CALLING, tools=TOOLS).text
        assert "weather_week" in text
        assert "Größe & <search> 你好" in text
        assert text.index('"z"') < text.index('"a"'), "keys keep their order"


@pytest.mark.parametrize("content", ["Once upon", "Once upon ", " \n", "a time\n\n", "你好 👋"])
def test_continuing_the_last_message_equals_transformers(byte_level: Any, template: str, content: str) -> None:
    messages = [SYSTEM, USER, {"role": "assistant", "content": content}]
    ours, theirs = ours_and_theirs(byte_level, template, messages, continue_final_message=True)
    assert ours == theirs


def test_partial_assistant_turn_is_continued_without_a_marker(byte_level: Any, templates: dict[str, str]) -> None:
    template = ChatTemplate(templates["chatml"], byte_level.ours)
    messages = [USER, {"role": "assistant", "content": "The answer is"}]
    rendered = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered.text.endswith("<|im_start|>assistant\nThe answer is")


def test_continuing_a_list_of_parts_continues_the_last(byte_level: Any, templates: dict[str, str]) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    messages = [USER, {"role": "assistant", "content": parts}]
    ours, theirs = ours_and_theirs(byte_level, templates["parts"], messages, continue_final_message=True)
    assert ours == theirs
    assert ours[0].endswith("one two")


@settings(max_examples=60)
@given(texts=st.lists(st.text(max_size=30), min_size=1, max_size=4))
def test_any_text_renders_as_in_transformers(case: Any, templates: dict[str, str], texts: list[str]) -> None:
    roles = ["user", "assistant"] * 2
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    for name in ("chatml", "lines"):
        ours, theirs = ours_and_theirs(case, templates[name], messages, add_generation_prompt=True)
        assert ours == theirs


def test_text_parts_pass_through_where_the_template_takes_lists(byte_level: Any, templates: dict[str, str]) -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "A."}, {"type": "text", "text": "B."}]},
        {"role": "user", "content": [{"type": "text", "text": "C"}]},
    ]
    ours, theirs = ours_and_theirs(byte_level, templates["parts"], messages)
    assert ours == theirs
    assert "A.B." in ours[0]


def test_text_parts_are_joined_where_it_takes_none(byte_level: Any, templates: dict[str, str]) -> None:
    parts = [{"type": "text", "text": "A."}, {"type": "text", "text": "B."}]
    for name in ("chatml", "brackets", "tools_in_system", "lines", "headers"):
        template = ChatTemplate(templates[name], byte_level.ours)
        as_parts = template.render([{"role": "system", "content": parts}, USER])
        as_text = template.render([{"role": "system", "content": "A.\nB."}, USER])
        assert as_parts.text == as_text.text


def test_cache_markers_never_change_a_token(byte_level: Any, template: str) -> None:
    """Case 7: on the tools, on the system prompt, on messages, or nowhere."""
    mark = {"cache_control": {"type": "ephemeral"}}
    parts = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
    plain = [
        {"role": "system", "content": parts},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    marked = copy.deepcopy(plain)
    for message in marked:
        message.update(mark)
        for part in message["content"]:
            part.update(mark)
    chat = ChatTemplate(template, byte_level.ours)
    without = chat.render(plain, tools=TOOLS)
    with_markers = chat.render(marked, tools=[{**tool, **mark} for tool in TOOLS])
    assert with_markers.text == without.text
    assert with_markers.prompt_token_ids == without.prompt_token_ids
    assert with_markers.segments() == without.segments()


def test_template_variables_equal_transformers(byte_level: Any, templates: dict[str, str]) -> None:
    for kwargs in ({"enable_thinking": False}, {"enable_thinking": True}, {"bos_token": "<|eot_id|>"}):
        for name in ("tools_in_system", "parts"):
            ours, theirs = ours_and_theirs(
                byte_level, templates[name], [USER], add_generation_prompt=True, chat_template_kwargs=kwargs
            )
            assert ours == theirs


def test_documents_reach_the_template(byte_level: Any) -> None:
    template = "{% for d in documents %}{{ d.title }}: {{ d.text }};{% endfor %}"
    documents = [{"title": "T", "text": "x"}]
    assert ChatTemplate(template, byte_level.ours).render([USER], documents=documents).text == "T: x;"


def test_tool_use_template_serves_requests_with_tools(byte_level: Any) -> None:
    chat = ChatTemplate({"default": "plain", "tool_use": "tools"}, byte_level.ours)
    assert chat.render([USER]).text == "plain"
    assert chat.render([USER], tools=TOOLS).text == "tools"
    with pytest.raises(TemplateError, match="rag"):
        ChatTemplate({"rag": "x"}, byte_level.ours).render([USER])


def test_refusals_of_the_template_keep_their_words(byte_level: Any, templates: dict[str, str]) -> None:
    with pytest.raises(TemplateError, match="Roles must alternate") as caught:
        ChatTemplate(templates["brackets"], byte_level.ours).render([USER, USER])
    assert caught.value.param == "messages"


def test_a_message_the_template_drops_cannot_be_continued(byte_level: Any) -> None:
    chat = ChatTemplate("{{ messages[0].content }}", byte_level.ours)
    with pytest.raises(TemplateError, match="cannot be continued"):
        chat.render([USER, ASSISTANT], add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(_x=1) }}",
        "{{ range(10**9) | list }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + [] }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_templates_that_misbehave_are_stopped(byte_level: Any, source: str) -> None:
    chat = ChatTemplate(source, byte_level.ours)
    with pytest.raises(TemplateError):
        chat.render([USER])


@pytest.mark.parametrize(
    ("source", "says"), [(None, "no chat template"), ("", "no chat template"), ("a\n{% if %}", "line 2")]
)
def test_missing_and_broken_templates_are_named(byte_level: Any, source: str | None, says: str) -> None:
    with pytest.raises(TemplateError, match=says) as caught:
        ChatTemplate(source, byte_level.ours)
    assert caught.value.param == "chat_template"


def deep() -> Any:
    value: Any = "x"
    for _ in range(100):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (None, "messages"),
        (["hello"], "messages[0]"),
        ([USER, {"content": "x"}], "messages[1].role"),
        ([{"role": 3, "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "x", "extra": object()}], "messages[0].extra"),
        ([{"role": "user", "content": "x", "extra": {1: 2}}], "messages[0].extra"),
        ([{"role": "assistant", "content": "x", "tool_calls": "no"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
        ([{"role": "user", "content": "half \ud83d"}], "messages"),
    ],
)
def test_bad_messages_are_refused_with_their_place(byte_level: Any, messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate("{{ messages[0].content }}", byte_level.ours).render(messages)
    assert caught.value.param == param


def test_messages_nested_without_end_are_refused(byte_level: Any) -> None:
    chat = ChatTemplate("x", byte_level.ours)
    with pytest.raises(InvalidRequestError, match="nested"):
        chat.render([{"role": "user", "content": "x", "extra": deep()}])


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": "no"}, "tools"),
        ({"tools": ["no"]}, "tools[0]"),
        ({"documents": [1]}, "documents[0]"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"x": object()}}, "chat_template_kwargs.x"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_bad_options_are_refused_with_their_place(byte_level: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate("x", byte_level.ours).render([USER], **options)
    assert caught.value.param == param


def test_rendering_leaves_the_arguments_alone(byte_level: Any, template: str) -> None:
    messages, tools = copy.deepcopy(CALLING), copy.deepcopy(TOOLS)
    chat = ChatTemplate(template, byte_level.ours)
    with contextlib.suppress(TemplateError):  # some take no tool calls
        chat.render(messages, tools=tools).segments()
    chat.render(messages[:2], tools=tools).segments()
    assert (messages, tools) == (CALLING, TOOLS)


def test_embedded_model_chats_as_in_transformers(smollm2_case: Any) -> None:
    chat = ChatTemplate(smollm2_case.metadata["tokenizer.chat_template"], smollm2_case.ours)
    for messages in CONVERSATIONS.values():
        rendered = chat.render(messages)
        reference = smollm2_case.reference
        assert rendered.text == reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert rendered.prompt_token_ids == reference(rendered.text, add_special_tokens=False)["input_ids"]


def test_values_that_are_few_and_many_at_once_are_refused() -> None:
    """Sixty lists, each of which holds the one before it twice, have more values than anybody can copy."""
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    with pytest.raises(InvalidRequestError, match="at most 1,000,000") as refused:
        checked_messages([{"role": "user", "content": "hi", "extra": value}])
    assert refused.value.param.startswith("messages[0].extra")
