"""Anthropic's contract of prompt caching, through its SDK over HTTP; figures are worked out from the prompt's text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import anthropic
import httpx
import pytest
from caching_client import Caches, Figures, Tenant, caches, figures, unmarked
from held_engine import held
from live_server import LiveServer, live_server

from octavo.text.chat import ChatTemplate

M, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
RULES = "You are a librarian of few words who has read every book twice."
HOUSE = "The house closes at nine."
ASKED, ANSWERED, AGAIN = "Which book is the oldest here?", "It is the brown one.", "And which book is the newest?"


def text(words: str, mark: dict[str, str] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": words, **({"cache_control": mark} if mark else {})}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def said(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def tool(name: str, mark: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    marked = {"cache_control": mark} if mark else {}
    return {"name": name, "description": f"Find {name}.", "input_schema": {"type": "object"}, **marked, **more}


def shown(name: str) -> str:
    """The end of a tool as the template writes it."""
    return f'"Find {name}.", "parameters": {{"type": "object"}}}}}}'


def numbered(first: int, last: int) -> list[dict[str, Any]]:
    return [text(f"Note {number} is short.") for number in range(first, last + 1)]


@pytest.fixture(scope="module")
def served(live: LiveServer) -> Iterator[Caches]:
    with caches(live, b"the contract") as server:
        yield server


@pytest.fixture
def tenant(served: Caches) -> Iterator[Tenant]:
    with served.tenant() as one:
        yield one
    served.live.until_idle()


class Step(NamedTuple):
    """A request, and up to where its prompt is read, written for an hour, written for five minutes.

    ``wait``: seconds before it.
    """

    fields: dict[str, Any]
    read: str = ""
    hour: str = ""
    five: str = ""
    wait: float = 0


ONE = {"messages": [user(text(ASKED, M))]}
TWO = {"messages": [user(text(ASKED)), said(text(ANSWERED)), user(text(AGAIN, M))]}
BOTH = {"messages": [user(text(ASKED, M)), said(text(ANSWERED)), user(text(AGAIN, M))]}
LAYERS: dict[str, Any] = {
    "tools": [tool("books"), tool("maps", M)],
    "system": [text(RULES, M)],
    "messages": [user(text(ASKED, M))],
}
HOURS: dict[str, Any] = {
    "tools": [tool("books", HOUR)],
    "system": [text(RULES, HOUR)],
    "messages": [user(text(ASKED, M)), said(text(ANSWERED)), user(text(AGAIN, M))],
}


def with_notes(number: int) -> dict[str, Any]:
    """A message whose first block was written, and a mark that is ``number`` blocks behind it."""
    blocks = [text(ASKED), *numbered(1, number)]
    blocks[-1] = {**blocks[-1], "cache_control": M}
    return {"messages": [user(*blocks)]}


def with_calls(number: int, mark: dict[str, str] | None = M) -> dict[str, Any]:
    calls = [{"type": "tool_use", "id": f"t{n}", "name": "f", "input": {}} for n in range(number)]
    results = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": "no"} for n in range(number)]
    return {"messages": [user(text(ASKED)), said(*calls), user(*results, text(AGAIN, mark))]}


def within_a_result(*items: Any, after: str = AGAIN) -> dict[str, Any]:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": list(items)}
    return {"messages": [user(text(ASKED)), said(call), user(result, text(after))]}


SCENARIOS: dict[str, list[Step]] = {
    "what is written is read": [Step(ONE, five=ASKED), Step(ONE, read=ASKED)],
    "the rolling mark of a chat": [Step(ONE, five=ASKED), Step(TWO, ASKED, five=AGAIN), Step(TWO, AGAIN)],
    "a mark that stays and one that rolls": [Step(ONE, five=ASKED), Step(BOTH, ASKED, five=AGAIN), Step(BOTH, AGAIN)],
    "an answer that is another one": [
        Step(TWO, five=AGAIN),
        Step({"messages": [user(text(ASKED, M)), said(text("It is red.")), user(text(AGAIN, M))]}, five=AGAIN),
        Step({"messages": [user(text(ASKED, M)), said(text("It is blue.")), user(text(AGAIN, M))]}, ASKED, five=AGAIN),
    ],
    "without marks": [Step(unmarked(ONE)), Step(unmarked(ONE))],
    "marks that are taken off": [Step(ONE, five=ASKED), Step(unmarked(ONE))],
    "other tools": [
        Step(LAYERS, five=ASKED),
        Step({**LAYERS, "tools": [tool("books"), tool("stars", M)]}, five=ASKED),
        Step({**LAYERS, "tools": [tool("maps"), tool("books", M)]}, five=ASKED),
    ],
    "one more tool behind a marked one": [
        Step({**ONE, "tools": [tool("books", M)]}, five=ASKED),
        Step({**ONE, "tools": [tool("books", M), tool("maps")]}, shown("books"), five=ASKED),
    ],
    "another system text": [
        Step(LAYERS, five=ASKED),
        Step({**LAYERS, "system": [text("You are a sailor.", M)]}, shown("maps"), five=ASKED),
        Step({**LAYERS, "system": [text(f"{RULES} {HOUSE}", M)]}, shown("maps"), five=ASKED),
    ],
    "one more block of system text": [
        Step({**ONE, "system": [text(RULES, M)]}, five=ASKED),
        Step({**ONE, "system": [text(RULES, M), text(HOUSE, M)]}, RULES, five=ASKED),
    ],
    "a message that is another one": [
        Step(LAYERS, five=ASKED),
        Step({**LAYERS, "messages": [user(text(AGAIN, M))]}, RULES, five=AGAIN),
        Step({**LAYERS, "messages": [user(text(f"{ASKED} {AGAIN}", M))]}, RULES, five=AGAIN),
    ],
    "five minutes, from the last read on": [
        Step(ONE, five=ASKED),
        Step(ONE, ASKED, wait=299),
        Step(ONE, ASKED, wait=299),
        Step(ONE, five=ASKED, wait=301),
    ],
    "an hour, from the last read on": [
        Step({"messages": [user(text(ASKED, HOUR))]}, hour=ASKED),
        Step({"messages": [user(text(ASKED, HOUR))]}, ASKED, wait=3599),
        Step(ONE, ASKED, wait=3599),
        Step({"messages": [user(text(ASKED, HOUR))]}, hour=ASKED, wait=3601),
    ],
    "an hour first and five minutes behind it": [
        Step(HOURS, hour=RULES, five=AGAIN),
        Step(HOURS, AGAIN, wait=299),
        Step(HOURS, RULES, five=AGAIN, wait=301),
        Step(HOURS, hour=RULES, five=AGAIN, wait=3601),
    ],
    "a tool's hour alone": [
        Step({**ONE, "tools": [tool("books", HOUR)]}, hour=shown("books"), five=ASKED),
        Step({"tools": [tool("books", HOUR)], "messages": [user(text(AGAIN))]}, shown("books"), wait=1000),
    ],
    "twenty positions back, the mark's own included": [
        Step({"messages": [user(text(ASKED, M))]}, five=ASKED),
        Step(with_notes(19), ASKED, five="Note 19 is short."),
    ],
    "twenty-one positions back": [Step(ONE, five=ASKED), Step(with_notes(20), five="Note 20 is short.")],
    "twenty-one blocks between two marks": [Step(ONE, five=ASKED), Step(with_notes(22), five="Note 22 is short.")],
    "an earlier mark looks back from where it stands": [
        Step(ONE, five=ASKED),
        Step(
            {"messages": [user(text(ASKED), *numbered(1, 10), text("Half.", M), *numbered(11, 25), text("End.", M))]},
            ASKED,
            five="End.",
        ),
    ],
    "calls in a row are one position, and results too": [
        Step(ONE, five=ASKED),
        Step(with_calls(12), ASKED, five=AGAIN),
    ],
    "marks within a result": [
        Step(within_a_result(text("A long list.", M), text("Of books.")), five="A long list."),
        Step(within_a_result(text("A long list.", M), text("Of maps.")), "A long list."),
        Step(within_a_result(text("A short list.", M), text("Of maps.")), five="A short list."),
    ],
    "four marks": [
        Step(
            {
                "tools": [tool("books", HOUR)],
                "system": [text(RULES, HOUR), text(HOUSE, M)],
                "messages": [user(text(ASKED, M))],
            },
            hour=RULES,
            five=ASKED,
        ),
        Step(
            {"system": [text(RULES, M), text(HOUSE)], "tools": [tool("books")], "messages": [user(text(AGAIN))]}, RULES
        ),
    ],
    "the automatic mark rolls": [
        Step({"cache_control": M, "messages": [user(text(ASKED))]}, five=ASKED),
        Step({"cache_control": M, **unmarked(TWO)}, ASKED, five=AGAIN),
        Step({"cache_control": HOUR, **unmarked(TWO)}, AGAIN),
    ],
    "the automatic mark behind others": [
        Step({"cache_control": M, "system": [text(RULES, HOUR)], **unmarked(ONE)}, hour=RULES, five=ASKED),
        Step({"cache_control": M, "system": [text(RULES, HOUR)], **ONE}, ASKED),
    ],
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_contract(name: str, tenant: Tenant) -> None:
    for step in SCENARIOS[name]:
        tenant.clock.now += step.wait
        expected = tenant.expected(step.fields, step.read, step.hour, step.five)
        assert tenant.figures(**step.fields) == expected


def test_figures_are_exact_to_the_token_within_blocks_of_the_kv_cache(tenant: Tenant) -> None:
    """A chat that goes on otherwise right behind a mark reads up to the mark, wherever in a block that is."""
    block_size = tenant.live.engine.assembly.engine.config.block_size
    marks = set()
    for extra in range(5):
        system = [text(" ".join([RULES, *["Indeed."] * extra]), M)]
        first = tenant.figures(system=system, messages=[user(text(ASKED))])
        second = tenant.figures(system=system, messages=[user(text(AGAIN))])
        assert first.five == second.read > 0 and second.five == 0
        marks.add(first.five % block_size)
    assert marks - {0}, "none of them between two tokens of one block"


def test_what_the_engine_has_lost_is_written_again(tenant: Tenant) -> None:
    expected = tenant.expected(ONE, five=ASKED)
    assert tenant.figures(**ONE) == expected
    tenant.live.run(tenant.live.engine.reset_prefix_cache())
    assert tenant.figures(**ONE) == expected, "the entry lives, the blocks do not"
    assert tenant.figures(**ONE) == tenant.expected(ONE, read=ASKED)


def test_a_flush_forgets_entries_and_blocks(live: LiveServer) -> None:
    with live_server(live.engine) as server, anthropic.Anthropic(base_url=server.url, api_key="none") as sdk:
        tenant = Tenant(server, None, sdk)  # type: ignore[arg-type]
        tenant.figures(**ONE)
        assert tenant.figures(**ONE) == tenant.expected(ONE, read=ASKED)
        httpx.post(f"{server.url}/admin/cache/flush").raise_for_status()
        assert tenant.figures(**ONE) == tenant.expected(ONE, five=ASKED)


def test_requests_that_are_cold_at_once_all_write(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, arrived = tenant.live.engine, []
    accept = engine.accept

    async def counted(*args: Any, **fields: Any) -> Any:
        arrived.append(args)
        return await accept(*args, **fields)

    monkeypatch.setattr(engine, "accept", counted)
    with ThreadPoolExecutor(3) as pool:
        with held(engine):
            asked = [pool.submit(tenant.ask, **ONE) for _ in range(3)]
            deadline = time.monotonic() + 30
            while len(arrived) < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
        found = [figures(each.result(60)) for each in asked]
    assert found == [tenant.expected(ONE, five=ASKED)] * 3
    assert tenant.figures(**ONE) == tenant.expected(ONE, read=ASKED)


def test_an_entry_is_read_from_the_beginning_of_its_answer_on(tenant: Tenant) -> None:
    with tenant.sdk.messages.stream(model=tenant.live.model, max_tokens=200, **ONE) as stream:
        next(iter(stream))
        assert tenant.figures(**ONE) == tenant.expected(ONE, read=ASKED)


def test_a_prompt_is_warmed_without_an_answer(tenant: Tenant) -> None:
    cold = tenant.ask(**ONE, max_tokens=0)
    assert (cold.content, cold.stop_reason, cold.usage.output_tokens) == ([], "max_tokens", 0)
    assert figures(cold) == tenant.expected(ONE, five=ASKED)
    assert tenant.figures(**ONE) == tenant.expected(ONE, read=ASKED)


def test_streams_tell_the_same_figures_at_their_start_and_at_their_end(tenant: Tenant) -> None:
    for expected in (tenant.expected(HOURS, hour=RULES, five=AGAIN), tenant.expected(HOURS, read=AGAIN)):
        events = list(tenant.sdk.messages.create(model=tenant.live.model, max_tokens=2, stream=True, **HOURS))
        start, delta = events[0], next(event for event in events if event.type == "message_delta")
        assert start.type == "message_start" and figures(start.message) == expected
        assert delta.type == "message_delta"
        usage = delta.usage
        assert usage.cache_read_input_tokens == expected.read
        assert usage.cache_creation_input_tokens == expected.hour + expected.five
        assert usage.input_tokens == expected.input
    with tenant.sdk.messages.stream(model=tenant.live.model, max_tokens=2, **HOURS) as stream:
        assert figures(stream.get_final_message()) == expected


def test_an_answer_that_is_continued_is_all_read_but_its_last_token(tenant: Tenant) -> None:
    fields: Any = {"cache_control": M, "messages": [user(text(ASKED)), said(text("It is one of the"))]}
    first = tenant.figures(**fields)
    assert first.read == 0 and first.five > 0
    again = tenant.figures(**fields)
    assert again.five == 0 and first.five - 1 <= again.read <= first.five


FORGETFUL = """
{%- if tools %}{{- tools | tojson }}{%- endif %}
{%- set said = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set said.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.reasoning_content and loop.index0 > said.last %}{{- '<think>' + m.reasoning_content + '</think>' }}{%- endif %}
{%- if m.content %}{{- m.content }}{%- endif %}
{%- for c in m.tool_calls or [] %}{{- '\\n<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' }}
{{- (c.function.arguments | tojson) + '}\\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def test_calls_of_one_turn_go_on_where_a_template_drops_reasoning_with_the_next(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = tenant.live.engine.assembly
    monkeypatch.setattr(assembly, "_compiled", ChatTemplate(FORGETFUL, assembly.tokenizer))

    def called(number: int) -> list[dict[str, Any]]:
        thought = {"type": "thinking", "thinking": f"I look at shelf {number}.", "signature": ""}
        call = {"type": "tool_use", "id": f"t{number}", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"Shelf {number} is empty."}
        return [said(thought, call), user(result)]

    loop = [user(text(ASKED)), *called(1), *called(2)]
    assert tenant.figures(**ONE) == tenant.expected(ONE, five=ASKED)
    for count, read in ((3, ASKED), (5, "Shelf 1 is empty.")):
        fields = {"cache_control": M, "messages": loop[:count]}
        assert "I look at shelf 1." in tenant.text(fields)
        assert tenant.figures(**fields) == tenant.expected(fields, read, five=f"Shelf {count // 2} is empty.")
    fields = {"cache_control": M, "messages": [*loop, said(text(ANSWERED)), user(text(AGAIN))]}
    assert "shelf 1" not in tenant.text(fields), "the reasoning is gone"
    found, expected = tenant.figures(**fields), tenant.expected(fields, ASKED, five=AGAIN)
    assert expected.read <= found.read <= expected.read + 2 and found.input == expected.input


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": [user(*(text(f"{n}", M) for n in range(5)))]}, "messages[0].content[4].cache_control"),
    ({"messages": [user(*(text(f"{n}", M) for n in range(4)), text("x"))], "cache_control": M}, "cache_control"),
    ({"messages": [user(text("a", M), text("b", HOUR))]}, "messages[0].content[1].cache_control.ttl"),
    ({"messages": [user(text("a", M))], "cache_control": HOUR}, "cache_control.ttl"),
    ({"system": [text("a", M)], "messages": [user(text("b"))], "cache_control": HOUR}, "cache_control.ttl"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED)
def test_a_broken_rule_is_refused_for_messages_and_for_counts(
    fields: dict[str, Any], named: str, tenant: Tenant
) -> None:
    for ask in (tenant.ask, lambda **more: tenant.sdk.messages.count_tokens(model=tenant.live.model, **more)):
        with pytest.raises(anthropic.BadRequestError) as refused:
            ask(**fields)
        body: Any = refused.value.body
        assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
        assert body["error"]["message"].startswith(f"{named}")


def test_tenants_read_nothing_of_each_other(served: Caches) -> None:
    with served.tenant() as alice, served.tenant() as bob:
        for one in (alice, bob):
            assert one.figures(**ONE) == one.expected(ONE, five=ASKED)
        assert alice.figures(**ONE) == alice.expected(ONE, read=ASKED)


def test_prompts_that_are_too_short_are_not_cached(live: LiveServer) -> None:
    with caches(live, b"too short") as server, server.tenant() as tenant:
        least = tenant.upto(ONE, ASKED)
    for minimum, five in ((least, ASKED), (least + 1, "")):
        with caches(live, b"%d" % minimum, min_cache_tokens=minimum) as server, server.tenant() as tenant:
            assert tenant.figures(**ONE) == tenant.expected(ONE, five=five)
            assert tenant.figures(**ONE) == tenant.expected(ONE, read=five)


def test_all_that_is_reused_can_be_reported(live: LiveServer) -> None:
    with caches(live, b"physical", anthropic_usage="physical") as server, server.tenant() as tenant:
        plain = unmarked(ONE)
        total = len(tenant.tokens(tenant.text(plain)))
        assert tenant.figures(**plain) == Figures(0, 0, 0, total)
        assert tenant.figures(**plain) == Figures(total - 1, 0, 0, 1)
        assert tenant.figures(**ONE) == Figures(total - 1, 0, 0, 1)


def test_marks_change_neither_what_is_said_nor_what_is_reused(live: LiveServer) -> None:
    """On the tools, on the system text, rolling on the last message, and none: the same tokens, the same answer."""
    tools, system, messages = [tool("books")], [text(RULES), text(HOUSE)], TWO["messages"]
    places: list[dict[str, Any]] = [
        {},
        {"tools": [tool("books", HOUR)]},
        {"system": [text(RULES), text(HOUSE, M)]},
        {"messages": messages},
        {"tools": [tool("books", HOUR)], "system": [text(RULES, HOUR), text(HOUSE, M)], "messages": messages},
        {"cache_control": M},
    ]
    with caches(live, b"case seven", anthropic_usage="physical") as server, server.tenant() as tenant:
        plain = {"tools": tools, "system": system, "messages": unmarked(messages)}
        total = len(tenant.tokens(tenant.text(plain)))
        answers = [tenant.ask(**{**plain, **place}, max_tokens=8) for place in places]
        assert {str(answer.content) for answer in answers} == {str(answers[0].content)}
        assert [sum(figures(answer)) for answer in answers] == [total] * len(places)
        assert [figures(answer).read for answer in answers] == [0, *[total - 1] * (len(places) - 1)]


HEADER = "x-anthropic-billing-header: cc_version=2.1; cch={};"


def test_a_line_that_is_another_one_each_time_breaks_no_prefix_if_it_is_left_out(live: LiveServer) -> None:
    def asked(number: str) -> dict[str, Any]:
        return {"system": [text(HEADER.format(number)), text(RULES, M)], "messages": [user(text(ASKED))]}

    prefixes = ["x-anthropic-billing-header:"]
    with caches(live, b"volatile", drop_system_lines=prefixes) as server, server.tenant() as tenant:
        without = {"system": [text(RULES)], "messages": [user(text(ASKED))]}
        first, second = (figures(tenant.ask(**asked(number))) for number in ("00a1", "99ff"))
        assert first == tenant.expected(without, five=RULES)
        assert second == tenant.expected(without, read=RULES)
        counted = tenant.sdk.messages.count_tokens(model=server.live.model, **asked("0"))
        assert counted.input_tokens == sum(first)
    with caches(live, b"volatile too") as server, server.tenant() as tenant:
        assert [tenant.figures(**asked(number)).read for number in ("00a1", "99ff")] == [0, 0]
