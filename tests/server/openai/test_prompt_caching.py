"""OpenAI's contract of prompt caching, through its SDK over HTTP: every figure is worked out from the prompt's text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
import pytest
from live_server import LiveServer, live_server
from openai import AsyncOpenAI, OpenAI
from standing_clock import Clock

from octavo.server.config import ServerConfig
from octavo.server.keys import Key, KeyRing

MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}
EXPLICIT = {"mode": "explicit"}
HALF_AN_HOUR, HALF_A_DAY = 1800, 43200
STORY = "The raven flew over seven hills and told the old miller what it had seen there. " * 4
RULES = "Answer in one word. Never argue with a raven."


@dataclass
class Service:
    """A server and its clock; each test asks as tenants of its own, so that nothing is cached for it."""

    live: LiveServer
    clock: Clock
    tenants: Iterator[int] = field(default_factory=count)

    def tokens(self, text: str) -> list[int]:
        return self.live.engine.tokenizer.encode(text, add_special_tokens=False)

    def key(self) -> str:
        return _key(next(self.tenants))


def _key(number: int) -> str:
    return f"octavo-key-of-tenant-{number:04}"


Start = Callable[..., Service]


@pytest.fixture(scope="module")
def start(live: LiveServer) -> Iterator[Start]:
    """Serve the session's engine anew; settings as ServerConfig has them."""
    keys = KeyRing([Key.of(_key(number), f"tenant {number}") for number in range(100)], b"a salt of this test")
    tenants = count()
    with ExitStack() as stack:

        def serve(**settings: Any) -> Service:
            clock = Clock()
            config = ServerConfig(shutdown_timeout=1, **settings)
            return Service(
                stack.enter_context(live_server(live.engine, config, keys=keys, clock=clock)), clock, tenants
            )

        yield serve


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    return start()


class Client:
    """The SDK as one tenant, with what every request of these tests says."""

    def __init__(self, service: Service, sdk: OpenAI) -> None:
        self.sdk = sdk
        self.tokens = service.tokens
        self.clock = service.clock
        self._model = service.live.model

    def chat(self, messages: Sequence[Any], **fields: Any) -> Any:
        """The usage of a short chat."""
        asked = {"model": self._model, "messages": messages, "temperature": 0, "max_completion_tokens": 2, **fields}
        return self.sdk.chat.completions.create(**asked).usage

    def complete(self, prompt: Any, **fields: Any) -> Any:
        """The usage of a completion."""
        asked = {"model": self._model, "prompt": prompt, "temperature": 0, "max_tokens": 2, **fields}
        return self.sdk.completions.create(**asked).usage

    def respond(self, input: Any, **fields: Any) -> Any:
        """A short response, whole."""
        asked = {"model": self._model, "input": input, "temperature": 0, "max_output_tokens": 2, **fields}
        return self.sdk.responses.create(**asked)

    def length(self, *messages: tuple[str, str]) -> int:
        return len(self.tokens(chatml(*messages)))

    def prompt(self, *messages: tuple[str, str]) -> list[int]:
        """All of a prompt, with what the answer begins with."""
        return self.tokens(chatml(*messages) + "<|im_start|>assistant\n")


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with OpenAI(base_url=service.live.openai_url, api_key=service.key(), max_retries=0, timeout=60) as sdk:
        yield Client(service, sdk)
    service.live.until_idle()


def chatml(*messages: tuple[str, str]) -> str:
    """The model's template by hand."""
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)


def said(*messages: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": text} for role, text in messages]


def marked(role: str, *parts: str, at: int = -1, mark: dict[str, Any] = MARK) -> dict[str, Any]:
    """A message of several texts, of which one carries a mark."""
    texts: list[dict[str, Any]] = [{"type": "text", "text": part} for part in parts]
    texts[at].update(mark)
    return {"role": role, "content": texts}


def figures(usage: Any) -> tuple[int, int, int]:
    """Of the prompt: all tokens, those read, those written."""
    if hasattr(usage, "input_tokens"):
        details = usage.input_tokens_details
        split = details.cache_write_tokens_details
        assert split.ttl_30m_tokens + split.ttl_12h_tokens == details.cache_write_tokens
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
        return usage.input_tokens, details.cached_tokens, details.cache_write_tokens
    details = usage.prompt_tokens_details
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return usage.prompt_tokens, details.cached_tokens, details.cache_write_tokens


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens that both begin with, and that the second can find: one is always computed."""
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    return min(same, len(second) - 1)


def test_without_a_word_about_it_a_prompt_is_cached_and_read_to_the_last_token_that_is_the_same(client: Client) -> None:
    asked = (("system", RULES), ("user", STORY))
    edited = (("system", RULES), ("user", STORY.replace("seven hills and told", "seven hills and sold")))
    extended = (*asked, ("assistant", "Ravens."), ("user", "How many hills?"))
    prompt = client.prompt(*asked)

    assert figures(client.chat(said(*asked))) == (len(prompt), 0, len(prompt))
    assert figures(client.chat(said(*asked))) == (len(prompt), len(prompt) - 1, 1)
    for later in (edited, extended):
        longer = client.prompt(*later)
        found = shared(prompt, longer)
        assert found > 20 and figures(client.chat(said(*later))) == (len(longer), found, len(longer) - found)


def test_the_answer_is_cached_too(client: Client) -> None:
    asked = (("system", RULES), ("user", STORY))
    completion = client.sdk.chat.completions.create(
        model=client._model,
        messages=said(*asked),
        temperature=0,
        max_completion_tokens=8,  # type: ignore[arg-type]
    )
    answer = completion.choices[0].message.content or ""
    computed = client.prompt(*asked) + client.tokens(answer)
    longer = client.prompt(*asked, ("assistant", answer), ("user", "Go on."))
    assert completion.usage is not None
    kept = len(client.prompt(*asked)) + completion.usage.completion_tokens - 1  # the last token was never computed
    found = min(shared(computed, longer), kept)
    assert figures(client.chat(said(*asked, ("assistant", answer), ("user", "Go on."))))[1] == found


def test_a_prompt_of_another_tenant_is_not_read(client: Client, service: Service) -> None:
    asked = said(("system", RULES), ("user", STORY))
    total, _, _ = figures(client.chat(asked))
    with OpenAI(base_url=service.live.openai_url, api_key=service.key(), max_retries=0) as sdk:
        assert figures(Client(service, sdk).chat(asked)) == (total, 0, total)


def test_explicit_marks_are_read_and_written_to_the_token_and_nothing_beyond_them(client: Client) -> None:
    for number, question in enumerate(("Who flew?", "Who listened?", "Who flew?")):
        messages = [marked("system", RULES), *said(("user", question))]
        total, rules = len(client.prompt(("system", RULES), ("user", question))), client.length(("system", RULES))
        expected = (total, rules, 0) if number else (total, 0, rules)
        assert figures(client.chat(messages, prompt_cache_options=EXPLICIT)) == expected


def test_a_mark_in_the_middle_of_a_message_ends_with_the_last_word_that_nothing_can_join(client: Client) -> None:
    head = f"<|im_start|>system\n{RULES}<|im_end|>\n<|im_start|>user\n"
    assert STORY.endswith(" had seen there. ")
    kept = client.tokens(head + STORY.removesuffix(" there. "))
    for number, question in enumerate(("Who flew?", "Who listened?")):
        messages = [*said(("system", RULES)), marked("user", STORY.strip(), question, at=0)]
        whole = client.tokens(f"{head}{STORY.strip()}\n{question}<|im_end|>\n<|im_start|>assistant\n")
        assert whole[: len(kept)] == kept
        expected = (len(whole), len(kept), 0) if number else (len(whole), 0, len(kept))
        assert figures(client.chat(messages, prompt_cache_options=EXPLICIT)) == expected


def test_a_mark_whose_text_grew_is_another_one(client: Client) -> None:
    client.chat([marked("user", "One two three")], prompt_cache_options=EXPLICIT)
    assert figures(client.chat([marked("user", "One two three four")], prompt_cache_options=EXPLICIT))[1] == 0


def test_in_explicit_mode_nothing_is_cached_without_marks(client: Client) -> None:
    asked = said(("system", RULES), ("user", STORY))
    client.chat(asked)
    total = len(client.prompt(("system", RULES), ("user", STORY)))
    assert figures(client.chat(asked, prompt_cache_options=EXPLICIT)) == (total, 0, 0)


def test_what_is_written_implicitly_can_be_read_at_a_mark(client: Client) -> None:
    messages = [marked("system", RULES), *said(("user", "Who flew?"))]
    client.chat(messages)
    rules = client.length(("system", RULES))
    assert figures(client.chat(messages, prompt_cache_options=EXPLICIT))[1:] == (rules, 0)


@pytest.mark.parametrize(("mode", "most"), [("implicit", 3), ("explicit", 4)])
def test_of_many_marks_the_latest_are_written(client: Client, mode: str, most: int) -> None:
    turns = [("user" if turn % 2 == 0 else "assistant", f"Turn {turn}.") for turn in range(6)] + [("user", "Now?")]
    messages = [marked("system", RULES), *(marked(role, text) for role, text in turns[:-1]), *said(turns[-1])]
    client.chat(messages, prompt_cache_options={"mode": mode})

    told = [("system", RULES), *turns]
    ends = [client.length(*told[: number + 1]) for number in range(len(messages) - 1)]
    for number, end in enumerate(ends):
        shorter = [*messages[: number + 1], *said(("user", "Another question?"))]
        expected = end if number >= len(ends) - most else 0
        unmarked = [{**message, "content": message["content"][0]["text"]} for message in shorter[:number]]
        probe = [*unmarked, *shorter[number:]]
        assert figures(client.chat(probe, prompt_cache_options=EXPLICIT))[1] == expected


def test_reading_considers_the_eighty_latest_marks(client: Client) -> None:
    client.chat([marked("user", "Zero"), *said(("assistant", "."))], prompt_cache_options=EXPLICIT)
    found = client.length(("system", DEFAULT_SYSTEM), ("user", "Zero"))
    for more, expected in ((79, found), (80, 0)):
        parts: list[dict[str, Any]] = [{"type": "text", "text": f"{more}: {number}", **MARK} for number in range(more)]
        messages = [marked("user", "Zero"), {"role": "user", "content": parts}]
        assert figures(client.chat(messages, prompt_cache_options=EXPLICIT))[1] == expected


DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@pytest.mark.parametrize(
    ("options", "mark", "lives"),
    [
        (EXPLICIT, MARK, HALF_AN_HOUR),
        ({**EXPLICIT, "ttl": "12h"}, MARK, HALF_A_DAY),
        ({**EXPLICIT, "ttl": "12h"}, {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}, HALF_AN_HOUR),
        (EXPLICIT, {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}, HALF_A_DAY),
        (EXPLICIT, {"cache_control": {"type": "ephemeral"}}, 300),
        (EXPLICIT, {"cache_control": {"type": "ephemeral", "ttl": "1h"}}, 3600),
    ],
)
def test_what_a_mark_keeps_lives_as_long_as_it_says_from_its_last_use(
    client: Client, options: Any, mark: Any, lives: int
) -> None:
    def ask(question: str) -> tuple[int, int]:
        messages = [marked("system", RULES, mark=mark), *said(("user", question))]
        return figures(client.chat(messages, prompt_cache_options=options))[1:]

    rules = client.length(("system", RULES))
    assert ask("Who flew?") == (0, rules)
    client.clock.now += lives - 1
    assert ask("Who listened?") == (rules, 0)
    client.clock.now += lives - 1
    assert ask("Who saw it?") == (rules, 0)
    client.clock.now += lives
    assert ask("Who forgot?") == (0, rules)


def test_litellm_s_marks_on_messages_and_tools_are_breakpoints(client: Client) -> None:
    control = {"cache_control": {"type": "ephemeral"}}
    function = {"name": "look", "description": "Looks around.", "parameters": {"type": "object", "properties": {}}}
    tool = {"type": "function", "function": function, **control}
    rules = client.length(("system", RULES))
    asked = [{"role": "system", "content": RULES, **control}, *said(("user", "Who flew?"))]
    assert figures(client.chat(asked, prompt_cache_options=EXPLICIT))[1:] == (0, rules)
    with_tools = {"tools": [tool], "prompt_cache_options": EXPLICIT, "tool_choice": "none"}
    _, read, written = figures(client.chat(said(("user", "Look!")), **with_tools))
    assert read == 0 < written
    assert figures(client.chat(said(("user", "Listen!")), **with_tools))[1:] == (written, 0)


def test_old_clients_ask_for_a_day_and_are_told_the_same(client: Client) -> None:
    asked = said(("system", RULES), ("user", STORY))
    total, _, written = figures(client.chat(asked, prompt_cache_retention="24h"))
    assert written == total
    for word in ("in_memory", "in-memory"):
        assert figures(client.chat(asked, prompt_cache_retention=word))[1:] == (total - 1, 1)


def test_a_stream_ends_with_the_same_figures(client: Client) -> None:
    asked = said(("system", RULES), ("user", STORY))
    total, _, _ = figures(client.chat(asked))
    stream = client.sdk.chat.completions.create(
        model=client._model, messages=asked, max_tokens=2, stream=True, stream_options={"include_usage": True}
    )
    assert figures(list(stream)[-1].usage) == (total, total - 1, 1)
    events = list(client.respond(asked, stream=True))
    assert events[-1].type == "response.incomplete" and figures(events[-1].response.usage) == (total, total - 1, 1)


async def test_requests_at_once_read_what_the_first_has_computed(service: Service, client: Client) -> None:
    asked = said(("system", RULES), ("user", STORY))
    total, _, _ = figures(client.chat(asked))
    async with AsyncOpenAI(base_url=service.live.openai_url, api_key=client.sdk.api_key, max_retries=0) as sdk:
        fields: dict[str, Any] = {"model": service.live.model, "messages": asked, "max_completion_tokens": 2}
        answers = await asyncio.gather(*(sdk.chat.completions.create(**fields) for _ in range(4)))
    assert [figures(answer.usage) for answer in answers] == [(total, total - 1, 1)] * 4


def test_completions_of_text_and_of_ids_read_each_other_s_prompts(client: Client, service: Service) -> None:
    ids = service.live.engine.tokenizer.encode(STORY)
    assert figures(client.complete(STORY)) == (len(ids), 0, len(ids))
    assert figures(client.complete(ids)) == (len(ids), len(ids) - 1, 1)
    assert figures(client.complete(ids[:30])) == (30, 29, 1)
    other = [*ids[:17], *ids[:5]]
    assert figures(client.complete([ids, other, ids[:9]])) == (
        len(ids) + len(other) + 9,
        len(ids) - 1 + shared(ids, other) + 8,
        1 + len(other) - shared(ids, other) + 1,
    )
    extra = {"prompt_cache_options": EXPLICIT, "prompt_cache_key": "k", "prompt_cache_retention": "24h"}
    assert figures(client.complete(ids, extra_body=extra)) == (len(ids), 0, 0)


@pytest.mark.parametrize("total", [1023, 1100])
def test_openai_s_own_minimum_and_rounding_are_a_setting(start: Start, total: int) -> None:
    service = start(openai_usage="rounded")
    with OpenAI(base_url=service.live.openai_url, api_key=service.key(), max_retries=0) as sdk:
        client = Client(service, sdk)
        ids = [100 + number % 400 for number in range(total)]
        assert figures(client.complete(ids, max_tokens=0))[1] == 0
        rounded = (total - 1) // 128 * 128 if total >= 1024 else 0
        assert figures(client.complete(ids, max_tokens=0)) == (total, rounded, 1)


def test_responses_that_go_on_read_what_came_before(client: Client) -> None:
    first = client.respond(STORY, max_output_tokens=6)
    answer = first.output_text
    asked = (("system", DEFAULT_SYSTEM), ("user", STORY))
    assert figures(first.usage) == (len(client.prompt(*asked)), 0, len(client.prompt(*asked)))
    second = client.respond("Go on.", previous_response_id=first.id)
    longer = client.prompt(*asked, ("assistant", answer), ("user", "Go on."))
    kept = len(client.prompt(*asked)) + first.usage.output_tokens - 1
    found = min(shared(client.prompt(*asked) + client.tokens(answer), longer), kept)
    assert figures(second.usage) == (len(longer), found, len(longer) - found)


def test_marks_of_stored_input_are_looked_up_by_who_goes_on_with_it(client: Client) -> None:
    part = {"type": "input_text", "text": STORY, "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
    first = client.respond([{"role": "user", "content": [part]}], prompt_cache_options=EXPLICIT)
    kept = client.length(("system", DEFAULT_SYSTEM), ("user", STORY))
    split = first.usage.input_tokens_details.cache_write_tokens_details
    assert (split.ttl_12h_tokens, split.ttl_30m_tokens) == (kept, 0) and figures(first.usage)[1:] == (0, kept)
    second = client.respond("Go on.", previous_response_id=first.id, prompt_cache_options=EXPLICIT)
    assert figures(second.usage)[1:] == (kept, 0)
    [item] = client.sdk.responses.input_items.list(first.id).data
    assert item.content[0].prompt_cache_breakpoint.ttl == "12h"  # type: ignore[union-attr]


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "required"}, {"text": {"format": {"type": "json_object"}}}])
def test_prewarming_computes_the_prompt_and_says_nothing(client: Client, fields: Any) -> None:
    if "tool_choice" in fields:
        parameters = {"type": "object", "properties": {}}
        fields = {**fields, "tools": [{"type": "function", "name": "look", "parameters": parameters, "strict": True}]}
    warmed = client.respond(STORY, prompt_cache_options={"prewarm": True}, **fields)
    assert (warmed.status, warmed.output, warmed.usage.output_tokens) == ("completed", [], 0)
    total, read, written = figures(warmed.usage)
    assert (read, written) == (0, total)
    answered = client.respond(STORY, **fields)
    assert figures(answered.usage) == (total, total - 1, 1) and answered.usage.output_tokens > 0
    assert client.sdk.responses.retrieve(warmed.id).output == []


def test_prewarming_can_be_streamed_and_gone_on_with(client: Client) -> None:
    events = list(client.respond(STORY, prompt_cache_options={"prewarm": True}, stream=True))
    assert [event.type for event in events] == ["response.created", "response.in_progress", "response.completed"]
    told = (("system", DEFAULT_SYSTEM), ("user", STORY))
    longer = client.prompt(*told, ("user", "Go on."))
    later = client.respond("Go on.", previous_response_id=events[-1].response.id)
    assert figures(later.usage)[:2] == (len(longer), shared(client.prompt(*told), longer))


def compared(client: Client, input: Any, with_id: str, **fields: Any) -> dict[str, Any]:
    """What a response is told of its use of the cache."""
    options = {**fields.pop("options", {}), "comparison_response_id": with_id}
    response = client.respond(input, prompt_cache_options=options, **fields)
    assert response.prompt_cache_options.comparison_response_id == with_id
    return dict(response.prompt_cache_diagnostics.to_dict())


def test_a_response_that_reads_all_of_another_s_prompt_is_told_of_a_hit(client: Client) -> None:
    first = client.respond(STORY)
    assert first.prompt_cache_diagnostics is None
    assert compared(client, STORY, first.id) == {"type": "cache_hit"}
    assert compared(client, "Go on.", first.id, previous_response_id=first.id) == {"type": "cache_hit"}
    changed = {"prompt_cache_key": "another", "service_tier": "flex", "text": {"format": {"type": "json_object"}}}
    assert compared(client, STORY, first.id, **changed) == {"type": "cache_hit"}


def test_a_miss_names_what_changed_and_how_many_tokens_that_cost(client: Client) -> None:
    first = client.respond(STORY, instructions=RULES)
    before = client.prompt(("system", RULES), ("user", STORY))
    for rules, story in ((RULES + " Be kind.", STORY), (RULES, STORY.replace("seven hills", "nine hills"))):
        found = shared(before, client.prompt(("system", rules), ("user", story)))
        now = len(client.prompt(("system", rules), ("user", story)))
        assert compared(client, story, first.id, instructions=rules) == {
            "type": "cache_miss",
            "reason": "input_changed",
            "comparison_reusable_tokens": found,
            "cache_missed_tokens": min(len(before), now - 1) - found,
        }
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": True}
    told = compared(client, STORY, first.id, instructions=RULES, tools=[tool])
    assert (told["type"], told["reason"]) == ("cache_miss", "tools_changed")


def test_a_mark_that_is_read_is_a_hit_whatever_follows_it(client: Client) -> None:
    def asked(question: str) -> list[dict[str, Any]]:
        part = {"type": "input_text", "text": RULES, **MARK}
        return [{"role": "system", "content": [part]}, *said(("user", question))]

    first = client.respond(asked("Who flew?"), prompt_cache_options=EXPLICIT)
    assert compared(client, asked("Who listened?"), first.id, options=EXPLICIT) == {"type": "cache_hit"}
    client.clock.now += HALF_AN_HOUR
    assert compared(client, asked("Who saw it?"), first.id, options=EXPLICIT) == {"type": "unavailable"}


def test_what_no_text_explains_and_what_is_not_there_is_said_to_be_so(client: Client, service: Service) -> None:
    first = client.respond(STORY)
    assert compared(client, STORY, first.id, options=EXPLICIT) == {"type": "unavailable"}  # it reads nothing
    missing = {"type": "comparison_response_not_found"}
    assert compared(client, STORY, "resp_" + "0" * 32) == missing
    with OpenAI(base_url=service.live.openai_url, api_key=service.key(), max_retries=0) as sdk:
        assert compared(Client(service, sdk), STORY, first.id) == missing


def test_a_response_that_is_kept_and_whose_prompt_is_not_cannot_be_compared(start: Start) -> None:
    service = start(max_history=0)
    with OpenAI(base_url=service.live.openai_url, api_key=service.key(), max_retries=0) as sdk:
        client = Client(service, sdk)
        assert compared(client, "Hi", client.respond("Hi").id) == {"type": "unavailable"}


def test_usage_is_told_by_key_to_the_tenant_alone(client: Client, service: Service) -> None:
    def told(api_key: str) -> Any:
        reply = httpx.get(f"{service.live.openai_url}/cache/usage", headers={"x-api-key": api_key})
        return reply.json()["data"]

    assert told(client.sdk.api_key) == []
    asked = said(("system", RULES), ("user", STORY))
    total, _, _ = figures(client.chat(asked, prompt_cache_key="stories"))
    client.chat(asked, prompt_cache_key="stories")
    prompts = figures(client.complete(["One", "Two and three"], extra_body={"prompt_cache_key": "numbers"}))
    client.respond("Hi", prompt_cache_key="stories")
    hi = len(client.prompt(("system", DEFAULT_SYSTEM), ("user", "Hi")))
    read = shared(client.prompt(("system", RULES)), client.prompt(("system", DEFAULT_SYSTEM)))
    assert told(client.sdk.api_key) == [
        {
            "prompt_cache_key": "stories",
            "requests": 3,
            "prompt_tokens": 2 * total + hi,
            "cached_tokens": total - 1 + read,
            "cache_write_tokens": total + 1 + hi - read,
        },
        {
            "prompt_cache_key": "numbers",
            "requests": 1,
            "prompt_tokens": prompts[0],
            "cached_tokens": prompts[1],
            "cache_write_tokens": prompts[2],
        },
    ]
    assert told(service.key()) == []
