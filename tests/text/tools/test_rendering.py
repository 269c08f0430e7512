"""What a template shows of tools is left to it; what it does not show is written into the messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tool_templates import CALLS, TEMPLATES, TOOLS

from octavo.errors import InvalidRequestError
from octavo.model.gguf_source import GgufSource
from octavo.text.chat import ChatTemplate
from octavo.text.loading import load_tokenizer
from octavo.text.tools.tool_format import Call

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Bern?"}


def call(name: str, arguments: Any, id_: str = "call_1") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: str, id_: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content}


CALLING = {"role": "assistant", "content": "Let me see.", "tool_calls": [call("weather", {"z": 1, "city": "Köln"})]}
ANSWERED = [USER, CALLING, result("18 °C")]


@pytest.fixture(scope="module")
def chat(smollm2_gguf: Path) -> ChatTemplate:
    """The embedded model's own template, which knows no tools."""
    source = GgufSource(smollm2_gguf, "smollm2")
    return ChatTemplate(source.chat_template, load_tokenizer(source.tokenizer_source, source.name))


def test_the_documented_rendering(chat: ChatTemplate) -> None:
    messages = [SYSTEM, *ANSWERED, result("19 °C"), {"role": "user", "content": "And?"}]
    text = chat.render(messages, tools=TOOLS[:1]).text
    head, _, rest = text.partition("</tools>")
    assert head == (
        "<|im_start|>system\n# Tools\n\nYou can call functions to help with the user's request. These are their "
        f"signatures:\n<tools>\n{json.dumps(TOOLS[0], ensure_ascii=False)}\n"
    )
    instructions, _, conversation = rest.partition("\n\nBe brief.")
    assert (
        '<tool_call>\n{"name": "function name", "arguments": {"argument name": "value"}}\n</tool_call>' in instructions
    )
    assert conversation == (
        "<|im_end|>\n<|im_start|>user\nBern?<|im_end|>\n"
        '<|im_start|>assistant\nLet me see.\n<tool_call>\n{"name": "weather", "arguments": {"z": 1, "city": "Köln"}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n18 °C\n</tool_response>\n"
        "<tool_response>\n19 °C\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_without_tools_nothing_is_added(chat: ChatTemplate) -> None:
    assert chat.render([SYSTEM, USER], tools=[]).text == chat.render([SYSTEM, USER]).text
    assert "tool" not in chat.render([SYSTEM, USER]).text


def test_tools_without_a_system_message_make_one(chat: ChatTemplate) -> None:
    text = chat.render([USER], tools=TOOLS[:1]).text
    assert text.startswith("<|im_start|>system\n# Tools\n")
    assert text.endswith(
        "answer without calling one.<|im_end|>\n<|im_start|>user\nBern?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_cache_markers_on_tools_calls_and_results_change_nothing(chat: ChatTemplate) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}

    def parts(text: str, **marks: Any) -> list[dict[str, Any]]:
        return [{"type": "text", "text": text, **marks}]

    def messages(**marks: Any) -> list[dict[str, Any]]:
        return [
            {**SYSTEM, "content": parts("Be brief.", **marks)},
            {**USER, "content": parts("Bern?", **marks)},
            {**CALLING, "content": parts("Let me see.", **marks), **marks},
            {**result(""), "content": parts("18 °C", **marks), **marks},
        ]

    plain = chat.render(messages(), tools=TOOLS)
    marked = chat.render(messages(**mark), tools=[{**tool, **mark} for tool in TOOLS])
    as_text = chat.render([SYSTEM, *ANSWERED], tools=TOOLS)
    assert plain.prompt_token_ids == marked.prompt_token_ids == as_text.prompt_token_ids
    assert plain.segments() == marked.segments()


def test_a_history_grows_without_changing_what_is_before(chat: ChatTemplate) -> None:
    """A conversation that goes on finds the cached blocks of its earlier turns."""
    messages = [SYSTEM, *ANSWERED, result("19 °C"), {"role": "assistant", "content": "18."}, USER]
    whole = chat.render(messages, tools=TOOLS, add_generation_prompt=False).text
    for count in range(2, len(messages)):
        before = chat.render(messages[:count], tools=TOOLS, add_generation_prompt=False).text
        assert whole.startswith(before.removesuffix("<|im_end|>\n"))


def test_arguments_may_be_an_object_or_its_text(chat: ChatTemplate) -> None:
    def rendered(arguments: Any) -> str:
        return chat.render([USER, {"role": "assistant", "tool_calls": [call("weather", arguments)]}], tools=TOOLS).text

    assert rendered('{"z": 1,  "city": "K\\u00f6ln"}') == rendered({"z": 1, "city": "Köln"})
    assert rendered({"city": "Köln", "z": 1}) != rendered({"z": 1, "city": "Köln"}), "they keep their order"
    assert rendered("") == rendered(None) == rendered({})


@pytest.mark.parametrize("arguments", ["[1]", "{", "null", "x", '{"a": NaN}', [1], 3, '{"a": ' * 2000, True])
def test_arguments_that_are_no_object_are_refused_by_name(chat: ChatTemplate, arguments: Any) -> None:
    messages = [USER, {"role": "assistant", "tool_calls": [call("f", {}), call("weather", arguments)]}]
    with pytest.raises(InvalidRequestError, match="JSON object") as caught:
        chat.render(messages)
    assert caught.value.param == "messages[1].tool_calls[1].function.arguments"


@pytest.mark.parametrize("name", ["smollm3", "granite", "phi4"])
def test_calls_a_template_does_not_show_are_written_as_its_model_writes_them(byte_level: Any, name: str) -> None:
    template = ChatTemplate(TEMPLATES[name], byte_level.ours)
    text = template.render(ANSWERED, tools=TOOLS, add_generation_prompt=False).text
    function = CALLING["tool_calls"][0]["function"]
    written = template.tool_format.write([Call(function["name"], function["arguments"])])
    assert f"<|im_start|>assistant\nLet me see.\n{written}<|im_end|>\n<|im_start|>tool\n18 °C<|im_end|>\n" in text
    assert "<tools>" not in text, "the tools are the template's affair"


def test_ids_are_shortened_where_the_template_wants_nine_characters(byte_level: Any) -> None:
    template = ChatTemplate(TEMPLATES["mistral"], byte_level.ours)
    calls = [call(name, arguments, f"call_{at}") for at, (name, arguments) in enumerate(CALLS)]
    messages = [USER, {"role": "assistant", "tool_calls": calls}, result("18", "call_0"), result("12:00", "call_1")]
    text = template.render(messages, tools=TOOLS).text
    ids = [part.partition('"')[0] for part in text.split('"id": "')[1:]]
    assert [len(id_) for id_ in ids] == [9, 9]
    assert f"<|im_start|>tool\n18{ids[0]}<|im_end|>\n<|im_start|>tool\n12:00{ids[1]}<|im_end|>" in text
    kept = [USER, {"role": "assistant", "tool_calls": [call("now", {}, "abcDEF123")]}]
    assert '"id": "abcDEF123"' in template.render(kept, tools=TOOLS).text


def test_a_template_of_turns_gets_tools_from_the_user_and_results_with_what_follows(byte_level: Any) -> None:
    template = ChatTemplate(TEMPLATES["turns"], byte_level.ours)
    text = template.render([*ANSWERED, {"role": "user", "content": "And?"}], tools=TOOLS).text
    assert text.startswith("<|im_start|>user\n# Tools\n")
    assert "answer without calling one.\n\nBern?<|im_end|>\n" in text
    assert "<|im_start|>user\n<tool_response>\n18 °C\n</tool_response>\nAnd?<|im_end|>\n" in text


def test_a_reply_that_has_begun_is_continued_after_its_calls_results(chat: ChatTemplate) -> None:
    messages = [*ANSWERED, {"role": "assistant", "content": "It is"}]
    text = chat.render(messages, tools=TOOLS, add_generation_prompt=False, continue_final_message=True).text
    assert text.endswith("</tool_response><|im_end|>\n<|im_start|>assistant\nIt is")
