"""Named caches over HTTP: computed once, used by name from every endpoint, within a quota, each tenant's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from live_server import LiveServer, live_server, served_model
from openai import OpenAI
from standing_clock import Clock

from octavo.server.config import ServerConfig
from octavo.server.keys import Key, KeyRing

RULES = "You are the keeper of a lighthouse on a small island, and you answer in one short sentence. " * 5
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
TOOLS = [{"name": "weather", "description": "Tells how warm it is.", "input_schema": WEATHER}]
OPENAI_TOOLS = [{"type": "function", "function": {"name": "weather", "description": TOOLS[0]["description"]}}]
OPENAI_TOOLS[0]["function"]["parameters"] = WEATHER
EARLIER = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I keep the light."}]
ASKED = [{"role": "user", "content": "What do you see tonight?"}]
STORY = "The old miller counted his sacks every night, and every night there was one sack too many. " * 6


@dataclass
class Client:
    """One tenant at a server."""

    live: LiveServer
    clock: Clock
    key: str

    def send(self, method: str, path: str, **body: Any) -> httpx.Response:
        content = None if method in ("GET", "DELETE") else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        return httpx.request(method, f"{self.live.openai_url}{path}", content=content, headers=headers, timeout=60)

    def create(self, **body: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.send("POST", "/caches", model=self.live.model, **body).raise_for_status().json()
        return found

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.send("GET", f"/{name}").raise_for_status().json()
        return found

    def refused(self, method: str, path: str, status: int = 400, **body: Any) -> dict[str, Any]:
        answer = self.send(method, path, **body)
        assert answer.status_code == status, answer.text
        error: dict[str, Any] = answer.json()["error"]
        return error

    def openai(self) -> OpenAI:
        return OpenAI(base_url=self.live.openai_url, api_key=self.key, max_retries=0, timeout=60)

    def anthropic(self) -> Anthropic:
        return Anthropic(base_url=self.live.url, api_key=self.key, max_retries=0, timeout=60)

    def chat(self, messages: Any = ASKED, **more: Any) -> Any:
        with self.openai() as client:
            return client.chat.completions.create(
                model=self.live.model, messages=messages, temperature=0, max_completion_tokens=8, **more
            )

    def message(self, messages: Any = ASKED, max_tokens: int = 8, cache: str | None = None, **more: Any) -> Any:
        extra = {"temperature": 0} if cache is None else {"temperature": 0, "cache": cache}
        with self.anthropic() as client:
            return client.messages.create(
                model=self.live.model, messages=messages, max_tokens=max_tokens, extra_body=extra, **more
            )

    def complete(self, prompt: Any, **more: Any) -> Any:
        with self.openai() as client:
            return client.completions.create(model=self.live.model, prompt=prompt, temperature=0, max_tokens=8, **more)

    def fill_memory(self) -> None:
        """Ask for so much that nothing stays of what nobody keeps: these prompts themselves are not to be kept."""
        summary, options = self.live.engine.summary, {"prompt_cache_options": {"mode": "explicit"}}
        size = summary.max_model_len - 8
        for number in range(summary.num_tokens // size + 1):
            self.complete([100 + number] * size, extra_body=options)


Start = Callable[..., Callable[[], Client]]


@pytest.fixture(scope="module")
def start(live: LiveServer) -> Iterator[Start]:
    """Serve the session's engine anew, with settings; what it returns makes a client of a new tenant."""
    numbers = count()
    keys = KeyRing([Key.of(f"key {number}", f"tenant-{number}") for number in range(200)], b"a salt of these tests")
    with ExitStack() as stack:

        def serve(**settings: Any) -> Callable[[], Client]:
            clock = Clock()
            config = ServerConfig(shutdown_timeout=1, **settings)
            server = stack.enter_context(live_server(live.engine, config, keys=keys, clock=clock))
            return lambda: Client(server, clock, f"key {next(numbers)}")

        yield serve


@pytest.fixture(scope="module")
def tenant(start: Start) -> Callable[[], Client]:
    return start(max_cache_tokens=100_000)


@pytest.fixture
def client(tenant: Callable[[], Client], live: LiveServer) -> Iterator[Client]:
    """A tenant that nothing is cached for."""
    one = tenant()
    yield one
    one.live.until_idle()


# What a cache is


def test_a_new_cache_is_warm_and_says_how_long_it_lives(client: Client) -> None:
    cache = client.create(system=RULES, messages=EARLIER, ttl="5m", display_name="the keeper")
    assert cache["object"] == "cache" and cache["kind"] == "chat" and cache["display_name"] == "the keeper"
    assert cache["model"] == client.live.model
    assert cache["warmed"] and cache["usage"]["cached_tokens"] == cache["usage"]["total_tokens"] > 90
    assert cache["ttl"] == 300
    created, expires = (datetime.fromisoformat(cache[name]) for name in ("created_at", "expire_time"))
    assert expires - created == timedelta(minutes=5)
    assert abs(created - datetime.now(UTC)) < timedelta(minutes=1)
    assert client.get(cache["name"]) == cache


def test_it_lives_for_an_hour_if_nothing_is_said_and_can_be_given_a_time_of_day(client: Client) -> None:
    assert client.create(prompt=STORY)["ttl"] == 3600
    end = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    assert client.create(prompt=STORY, expire_time=end)["ttl"] == pytest.approx(7200, abs=30)
    assert client.create(prompt=STORY, ttl=90.5)["ttl"] == 90.5


def test_a_name_is_known_with_and_without_what_all_names_begin_with(client: Client) -> None:
    name = client.create(prompt=STORY)["name"]
    bare = name.removeprefix("caches/")
    assert client.get(f"caches/{bare}") == client.get(f"caches/{name}")
    for cache in (name, bare):
        assert client.complete(" In the morning", extra_body={"cache": cache}).choices


def test_creating_counts_as_a_request_and_leaves_an_idle_engine(client: Client) -> None:
    before = client.live.app.state.octavo.service.ledger.total.prompt_tokens
    cache = client.create(system=RULES)
    after = client.live.app.state.octavo.service.ledger.total.prompt_tokens
    assert after - before == cache["usage"]["total_tokens"]
    client.live.until_idle()
    client.live.check_idle()


# Used by name


def test_a_chat_that_begins_with_a_cache_is_the_whole_chat_token_for_token(
    client: Client, tenant: Callable[[], Client]
) -> None:
    cache = client.create(system=RULES, messages=EARLIER)
    short = client.chat(logprobs=True, top_logprobs=2, extra_body={"cache": cache["name"]})
    whole = tenant().chat([{"role": "system", "content": RULES}, *EARLIER, *ASKED], logprobs=True, top_logprobs=2)
    assert short.choices[0].logprobs == whole.choices[0].logprobs
    assert short.choices[0].message.content == whole.choices[0].message.content
    assert short.usage.prompt_tokens == whole.usage.prompt_tokens
    assert whole.usage.prompt_tokens_details.cached_tokens == 0
    assert short.usage.prompt_tokens_details.cached_tokens == cache["usage"]["total_tokens"]


def test_a_message_that_begins_with_a_cache_is_the_whole_message_and_reads_it_without_a_mark(
    client: Client, tenant: Callable[[], Client]
) -> None:
    cache = client.create(system=RULES, tools=TOOLS)
    short = client.message(cache=cache["name"])
    whole = tenant().message(system=RULES, tools=TOOLS)
    assert [block.to_dict() for block in short.content] == [block.to_dict() for block in whole.content]
    usage = short.usage
    assert usage.cache_read_input_tokens == cache["usage"]["total_tokens"]
    assert usage.cache_creation_input_tokens == 0
    assert usage.input_tokens + usage.cache_read_input_tokens == whole.usage.input_tokens


def test_a_mark_behind_a_cache_writes_what_lies_between(client: Client) -> None:
    cache = client.create(system=RULES)
    marked = [{"role": "user", "content": [{"type": "text", "text": STORY, "cache_control": {"type": "ephemeral"}}]}]
    first = client.message(marked, cache=cache["name"]).usage
    assert first.cache_read_input_tokens == cache["usage"]["total_tokens"]
    assert first.cache_creation_input_tokens > 100
    second = client.message(marked, cache=cache["name"]).usage
    assert second.cache_read_input_tokens == first.cache_read_input_tokens + first.cache_creation_input_tokens
    assert (second.cache_creation_input_tokens, second.input_tokens) == (0, first.input_tokens)


def test_a_response_that_begins_with_a_cache_is_the_whole_response(
    client: Client, tenant: Callable[[], Client]
) -> None:
    cache = client.create(system=RULES)
    common = {"model": client.live.model, "input": "Is it cold?", "temperature": 0, "max_output_tokens": 8}
    with client.openai() as one, tenant().openai() as other:
        short = one.responses.create(**common, extra_body={"cache": cache["name"]})
        whole = other.responses.create(**common, instructions=RULES)
    assert short.output_text == whole.output_text
    assert short.usage.input_tokens == whole.usage.input_tokens
    assert short.usage.input_tokens_details.cached_tokens == cache["usage"]["total_tokens"]


def test_a_completion_goes_on_with_the_text_of_a_cache(client: Client, tenant: Callable[[], Client]) -> None:
    cache = client.create(prompt=STORY)
    prompt = "So one night he stayed awake"
    short = client.complete(prompt, extra_body={"cache": cache["name"]})
    whole = tenant().complete(STORY + prompt)
    assert short.choices[0].text == whole.choices[0].text
    assert short.usage.prompt_tokens == whole.usage.prompt_tokens
    # The space at the end of the text may become part of the word that follows.
    assert cache["usage"]["total_tokens"] - 1 <= short.usage.prompt_tokens_details.cached_tokens
    token_ids = client.live.engine.tokenizer.encode(prompt)
    by_ids = client.complete(token_ids, extra_body={"cache": cache["name"]})
    assert by_ids.usage.prompt_tokens == cache["usage"]["total_tokens"] + len(token_ids)
    assert by_ids.usage.prompt_tokens_details.cached_tokens >= cache["usage"]["total_tokens"]


def test_streams_begin_with_a_cache_too(client: Client) -> None:
    cache = client.create(system=RULES)
    with client.openai() as openai:
        chunks = list(
            openai.chat.completions.create(
                model=client.live.model,
                messages=ASKED,
                temperature=0,
                max_completion_tokens=8,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"cache": cache["name"]},
            )
        )
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == cache["usage"]["total_tokens"]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == client.chat(extra_body={"cache": cache["name"]}).choices[0].message.content


def test_tokens_are_counted_with_those_of_the_cache(client: Client) -> None:
    cache = client.create(system=RULES, tools=TOOLS)["name"]
    with client.anthropic() as anthropic:
        counted = anthropic.messages.count_tokens(
            model=client.live.model, messages=ASKED, extra_body={"cache": cache}
        ).input_tokens
        whole = anthropic.messages.count_tokens(
            model=client.live.model, messages=ASKED, system=RULES, tools=TOOLS
        ).input_tokens
    assert counted == whole
    sent = client.send("POST", "/responses/input_tokens", input=ASKED[0]["content"], cache=cache).json()
    assert sent["input_tokens"] == counted


def test_tools_of_a_cache_are_called_whichever_api_they_came_from(client: Client) -> None:
    ours, theirs = (client.create(system=RULES, tools=tools) for tools in (OPENAI_TOOLS, TOOLS))
    assert ours["usage"]["total_tokens"] == theirs["usage"]["total_tokens"]
    named = {"type": "function", "function": {"name": "weather"}}
    extra = {"cache": theirs["name"], "max_completion_tokens": 40}
    reply = client.chat(tool_choice=named, parallel_tool_calls=False, extra_body=extra).choices[0]
    assert json.loads(reply.message.tool_calls[0].function.arguments).keys() == {"city"}
    message = client.message(max_tokens=40, tool_choice={"type": "any"}, cache=ours["name"])
    assert [block.name for block in message.content if block.type == "tool_use"][:1] == ["weather"]
    silent = client.chat(tool_choice="none", extra_body={"cache": ours["name"]}).choices[0]
    assert silent.message.tool_calls is None


def test_only_tools_can_be_cached(client: Client) -> None:
    cache = client.create(tools=TOOLS)
    usage = client.message(cache=cache["name"]).usage
    assert usage.cache_read_input_tokens == cache["usage"]["total_tokens"]


def test_explicit_mode_reads_a_named_cache_and_no_more(client: Client) -> None:
    cache = client.create(system=RULES)
    client.chat(extra_body={"cache": cache["name"]})  # leaves more than the cache in memory
    options = {"mode": "explicit"}
    usage = client.chat(extra_body={"cache": cache["name"], "prompt_cache_options": options}).usage
    assert usage.prompt_tokens_details.cached_tokens == cache["usage"]["total_tokens"]
    without = client.chat(
        [{"role": "system", "content": RULES}, *ASKED], extra_body={"prompt_cache_options": options}
    ).usage
    assert without.prompt_tokens_details.cached_tokens == 0


# What does not go together


def test_a_request_with_a_cache_has_no_tools_and_no_system_text_of_its_own(client: Client) -> None:
    cache, model = client.create(system=RULES)["name"], client.live.model
    chat: dict[str, Any] = {"model": model, "cache": cache, "messages": ASKED}
    assert client.refused("POST", "/chat/completions", **chat, tools=OPENAI_TOOLS)["param"] == "tools"
    for role in ("system", "developer"):
        own = {**chat, "messages": [{"role": role, "content": "Be brief."}, *ASKED]}
        assert client.refused("POST", "/chat/completions", **own)["param"] == "messages[0]"
    message = {**chat, "max_tokens": 4}
    assert "tools" in client.refused("POST", "/messages", **message, tools=TOOLS)["message"]
    assert "system" in client.refused("POST", "/messages", **message, system="Be brief.")["message"]
    response: dict[str, Any] = {"model": model, "cache": cache, "input": "Is it cold?"}
    assert client.refused("POST", "/responses", **response, instructions="Be brief.")["param"] == "instructions"
    own_input = [{"role": "developer", "content": "Be brief."}]
    assert client.refused("POST", "/responses", **{**response, "input": own_input})["param"] == "input[0]"


def test_a_tool_that_the_cache_has_not_cannot_be_chosen(client: Client) -> None:
    with_tools, without = (client.create(system=RULES, **more)["name"] for more in ({"tools": TOOLS}, {}))
    common = {"model": client.live.model, "messages": ASKED}
    named = {"type": "function", "function": {"name": "tide"}}
    error = client.refused("POST", "/chat/completions", **common, cache=with_tools, tool_choice=named)
    assert error["param"] == "tool_choice" and "'weather'" in error["message"]
    error = client.refused("POST", "/chat/completions", **common, cache=without, tool_choice="required")
    assert error["param"] == "tool_choice"
    tool = {"type": "tool", "name": "tide"}
    error = client.refused("POST", "/messages", **common, max_tokens=4, cache=with_tools, tool_choice=tool)
    assert "'tide'" in error["message"]


def test_a_text_begins_completions_alone_and_a_conversation_all_others(client: Client) -> None:
    text, chat = client.create(prompt=STORY)["name"], client.create(system=RULES)["name"]
    model = client.live.model
    assert client.refused("POST", "/completions", model=model, prompt="x", cache=chat)["param"] == "cache"
    assert client.refused("POST", "/chat/completions", model=model, messages=ASKED, cache=text)["param"] == "cache"
    assert client.refused("POST", "/responses", model=model, input="x", cache=text)["param"] == "cache"
    error = client.refused("POST", "/messages", model=model, messages=ASKED, max_tokens=4, cache=text)
    assert "/v1/completions" in error["message"]


def test_errors_name_messages_by_the_clients_own_numbers(client: Client) -> None:
    cache = client.create(system=RULES, messages=EARLIER)["name"]
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{"}}
    messages = [*ASKED, {"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "Well?"}]
    error = client.refused("POST", "/chat/completions", model=client.live.model, messages=messages, cache=cache)
    assert error["param"].startswith("messages[1].tool_calls[0]")
    assert "messages[1]" in error["message"]


def test_a_prompt_that_is_too_long_with_the_cache_is_the_usual_error(client: Client) -> None:
    cache = client.create(system=RULES)
    room = client.live.engine.summary.max_model_len - cache["usage"]["total_tokens"]
    messages = [{"role": "user", "content": "well " * room}]
    error = client.refused("POST", "/chat/completions", model=client.live.model, messages=messages, cache=cache["name"])
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


# Names that there are not


def test_an_unknown_name_is_not_found_in_each_dialect(client: Client) -> None:
    model, name = client.live.model, "caches/none"
    for path, body in (
        ("/chat/completions", {"messages": ASKED}),
        ("/completions", {"prompt": "x"}),
        ("/responses", {"input": "x"}),
        ("/responses/input_tokens", {"input": "x"}),
    ):
        error = client.refused("POST", path, 404, model=model, cache=name, **body)
        assert (error["param"], error["code"]) == ("cache", "cache_not_found")
        assert repr(name) in error["message"]
    for path, more in (("/messages", {"max_tokens": 4}), ("/messages/count_tokens", {})):
        error = client.refused("POST", path, 404, model=model, cache=name, messages=ASKED, **more)
        assert error["type"] == "not_found_error" and repr(name) in error["message"]
    for method, body in (("GET", {}), ("PATCH", {"ttl": 5}), ("DELETE", {})):
        assert client.refused(method, f"/{name}", 404, **body)["code"] == "cache_not_found"


def test_another_tenants_cache_cannot_be_told_from_none(client: Client, tenant: Callable[[], Client]) -> None:
    name, other = client.create(system=RULES)["name"], tenant()
    unknown = "caches/" + "0" * 32
    chat = {"model": client.live.model, "messages": ASKED}
    for method, path, body in (
        ("GET", "/{name}", {}),
        ("PATCH", "/{name}", {"ttl": 5}),
        ("DELETE", "/{name}", {}),
        ("POST", "/chat/completions", {**chat, "cache": "{name}"}),
    ):
        answers = []
        for each in (name, unknown):
            sent = {key: each if value == "{name}" else value for key, value in body.items()}
            answers.append(other.send(method, path.replace("{name}", each), **sent))
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].text == answers[1].text.replace(unknown.split("/")[1], name.split("/")[1])
    assert other.send("GET", "/caches").json()["data"] == []
    assert other.refused("GET", f"/caches?after={name}")["param"] == "after"
    assert client.get(name)["warmed"]


# Time


def test_a_cache_is_gone_when_its_time_is_over_whoever_reads_it(start: Start) -> None:
    client = start(max_cache_tokens=10_000)()
    name = client.create(system=RULES, ttl="10m")["name"]
    client.clock.now += 599
    assert client.message(cache=name).usage.cache_read_input_tokens > 0
    assert client.get(name)["ttl"] == 1  # reading has not prolonged it
    client.clock.now += 1
    assert client.send("GET", f"/{name}").status_code == 404
    assert client.send("GET", "/caches").json()["data"] == []
    error = client.refused("POST", "/chat/completions", 404, model=client.live.model, messages=ASKED, cache=name)
    assert error["code"] == "cache_not_found"


def test_its_end_can_be_put_off_and_brought_forward(start: Start) -> None:
    client = start(max_cache_tokens=10_000)()
    name = client.create(system=RULES, ttl=600)["name"]
    client.clock.now += 500
    longer = client.send("PATCH", f"/{name}", ttl="1h").json()
    assert (longer["ttl"], longer["warmed"]) == (3600, True)
    client.clock.now += 3000
    assert client.get(name)["ttl"] == 600
    assert client.send("PATCH", f"/{name}", ttl=10).json()["ttl"] == 10
    client.clock.now += 10
    assert client.send("GET", f"/{name}").status_code == 404


@pytest.mark.parametrize(
    ("times", "param"),
    [
        ({"ttl": 0}, "ttl"),
        ({"ttl": -1}, "ttl"),
        ({"ttl": "soon"}, "ttl"),
        ({"ttl": "5 m"}, "ttl"),
        ({"ttl": True}, "ttl"),
        ({"ttl": float("nan")}, "ttl"),
        ({"ttl": "8d"}, "ttl"),
        ({"ttl": [5]}, "ttl"),
        ({"expire_time": "2020-01-01T00:00:00Z"}, "expire_time"),
        ({"expire_time": "2999-01-01T00:00:00Z"}, "expire_time"),
        ({"expire_time": "2020-01-01"}, "expire_time"),
        ({"expire_time": "2999-01-01T00:00:00"}, "expire_time"),
        ({"expire_time": "soon"}, "expire_time"),
        ({"expire_time": 5}, "expire_time"),
        ({"ttl": 5, "expire_time": "in an hour"}, "expire_time"),
    ],
)
def test_what_is_no_time_is_refused(client: Client, times: dict[str, Any], param: str) -> None:
    assert client.refused("POST", "/caches", model=client.live.model, prompt=STORY, **times)["param"] == param
    assert client.send("GET", "/caches").json()["data"] == []


def test_one_time_is_enough(client: Client) -> None:
    both = {"ttl": 5, "expire_time": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}
    assert client.refused("POST", "/caches", model=client.live.model, prompt=STORY, **both)["param"] == "expire_time"
    name = client.create(prompt=STORY)["name"]
    assert client.refused("PATCH", f"/{name}", **both)["param"] == "expire_time"
    assert client.refused("PATCH", f"/{name}")["param"] == "ttl"


@pytest.mark.parametrize("field", ["model", "messages", "system", "tools", "prompt", "display_name"])
def test_nothing_but_the_time_can_be_changed(client: Client, field: str) -> None:
    name = client.create(prompt=STORY)["name"]
    assert client.refused("PATCH", f"/{name}", ttl=5, **{field: "x"})["param"] == field
    assert client.get(name)["ttl"] == 3600


# What can be cached


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x", "system": "y"}, "prompt"),
        ({"prompt": "x", "messages": EARLIER}, "prompt"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"system": 5}, "system"),
        ({"system": "x", "tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
        ({"tools": [*TOOLS, *TOOLS]}, "tools[1].name"),
        ({"tools": [*TOOLS, *OPENAI_TOOLS]}, "tools[1].type"),
        ({"prompt": "x", "colour": "red"}, "colour"),
        ({"prompt": "word " * 3000}, "prompt"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, "messages"),
        ({"system": "word " * 3000}, "system"),
        ({"prompt": "x", "display_name": "x" * 129}, "display_name"),
    ],
)
def test_what_cannot_be_cached_is_refused_by_its_field(client: Client, body: dict[str, Any], param: str) -> None:
    error = client.refused("POST", "/caches", model=client.live.model, **body)
    assert error["param"] == param, error
    assert client.send("GET", "/caches").json()["data"] == []


def test_a_tool_that_can_never_be_called_is_refused_when_it_is_cached(client: Client) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "colour"}}}
    for tools in (
        [{"name": "paint", "input_schema": schema}],
        [{"type": "function", "function": {"name": "paint", "parameters": schema}}],
    ):
        error = client.refused("POST", "/caches", model=client.live.model, system=RULES, tools=tools)
        assert error["param"].startswith("tools")
    assert client.send("GET", "/caches").json()["data"] == []


def test_errors_of_a_system_text_are_not_told_of_a_message(client: Client) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{"}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    error = client.refused("POST", "/caches", model=client.live.model, system=RULES, messages=messages)
    assert error["param"].startswith("messages[1].tool_calls[0]")


# Lists


def test_a_list_has_pages_the_newest_first(client: Client) -> None:
    names = [client.create(prompt=f"{number} {STORY}")["name"] for number in range(3)][::-1]
    first = client.send("GET", "/caches?limit=2").json()
    assert [cache["name"] for cache in first["data"]] == names[:2]
    assert (first["first_id"], first["last_id"], first["has_more"]) == (names[0], names[1], True)
    second = client.send("GET", f"/caches?limit=2&after={first['last_id']}").json()
    assert [cache["name"] for cache in second["data"]] == names[2:] and not second["has_more"]
    assert client.refused("GET", "/caches?limit=0")["param"] == "limit"
    assert client.refused("GET", "/caches?after=caches/none")["param"] == "after"


def test_a_deleted_cache_is_gone(client: Client) -> None:
    name = client.create(system=RULES)["name"]
    assert client.send("DELETE", f"/{name}").json() == {"name": name, "object": "cache", "deleted": True}
    assert client.send("GET", f"/{name}").status_code == 404
    assert client.send("DELETE", f"/{name}").status_code == 404


# Quotas


def test_a_quota_of_caches_is_kept_to_and_says_what_is_in_use(start: Start) -> None:
    tenant = start(max_caches=2, max_cache_tokens=10_000)
    client = tenant()
    names = [client.create(prompt=STORY)["name"] for _ in range(2)]
    error = client.refused("POST", "/caches", model=client.live.model, prompt=STORY)
    assert error["code"] == "cache_quota_exceeded" and "2 of 2 are in use" in error["message"]
    assert tenant().create(prompt=STORY)  # each tenant has its own
    client.send("DELETE", f"/{names[0]}")
    assert client.create(prompt=STORY, ttl=60)
    client.clock.now += 60
    assert client.create(prompt=STORY)  # in place of the one that has expired


def test_a_quota_of_tokens_is_kept_to_and_says_what_was_asked(start: Start) -> None:
    client = start(max_cache_tokens=250)()
    used = client.create(prompt=STORY)["usage"]["total_tokens"]
    asked = len(client.live.engine.tokenizer.encode(STORY * 2))
    error = client.refused("POST", "/caches", model=client.live.model, prompt=STORY * 2)
    assert error["code"] == "cache_quota_exceeded"
    assert all(f"{number:,}" in error["message"] for number in (asked, 250, used))
    assert len(client.send("GET", "/caches").json()["data"]) == 1


async def test_of_two_that_come_at_once_the_quota_lets_one_in(start: Start) -> None:
    client = start(max_caches=1, max_cache_tokens=10_000)()
    headers = {"authorization": f"Bearer {client.key}"}
    async with httpx.AsyncClient(base_url=client.live.openai_url, headers=headers, timeout=60) as http:
        bodies = [{"model": client.live.model, "prompt": f"{number} {STORY}"} for number in range(4)]
        answers = await asyncio.gather(*[http.post("/caches", json=body) for body in bodies])
    assert sorted(answer.status_code for answer in answers) == [200, 400, 400, 400]
    assert len((await asyncio.to_thread(client.send, "GET", "/caches")).json()["data"]) == 1


def test_a_creation_that_fails_leaves_nothing(start: Start) -> None:
    client = start(max_caches=1, max_cache_tokens=10_000, timeout=1e-9)()
    error = client.refused("POST", "/caches", 504, model=client.live.model, prompt=STORY)
    assert error["type"]
    shelves = client.live.app.state.octavo.service.caches._shelves
    assert shelves == {}


def test_what_is_shorter_than_the_server_caches_is_refused(start: Start) -> None:
    client = start(min_cache_tokens=1024)()
    error = client.refused("POST", "/caches", model=client.live.model, prompt=STORY)
    assert "1,024" in error["message"]


# In memory


@pytest.fixture(scope="module")
def small(smollm2_gguf: Path) -> Iterator[Client]:
    """A server with so little memory that it is soon full."""
    with served_model(smollm2_gguf, kv_memory="16MiB", max_model_len=512) as server:
        yield Client(server, Clock(), "none")


def test_a_cache_outlives_what_nobody_keeps_until_it_is_deleted(small: Client) -> None:
    client = small
    cache = client.create(system=RULES)
    client.fill_memory()
    assert client.get(cache["name"])["warmed"]
    usage = client.message(cache=cache["name"]).usage
    assert usage.cache_read_input_tokens == cache["usage"]["total_tokens"]
    client.send("DELETE", f"/{cache['name']}")
    client.fill_memory()
    again = client.chat([{"role": "system", "content": RULES}, *ASKED]).usage
    assert again.prompt_tokens_details.cached_tokens == 0


def test_a_beginning_that_another_cache_shares_outlives_the_deleted_one(small: Client) -> None:
    client = small
    kept, gone = (client.create(system=RULES, messages=more) for more in (EARLIER[:1], EARLIER))
    client.send("DELETE", f"/{gone['name']}")
    client.fill_memory()
    assert client.get(kept["name"])["warmed"]
    client.send("DELETE", f"/{kept['name']}")


def test_what_was_forgotten_is_computed_by_the_next_use_and_not_before(small: Client) -> None:
    client = small
    cache = client.create(system=RULES)
    client.live.run(client.live.engine.reset_prefix_cache())
    cold = client.get(cache["name"])
    assert not cold["warmed"] and cold["usage"]["cached_tokens"] == 0
    extended = client.send("PATCH", f"/{cache['name']}", ttl="2h").json()
    assert not extended["warmed"]
    assert client.message(cache=cache["name"]).usage.cache_read_input_tokens == 0
    assert client.get(cache["name"])["warmed"]
    client.fill_memory()  # it is kept again, too
    assert client.get(cache["name"])["warmed"]


def test_without_a_quota_in_tokens_the_retention_budget_is_it(small: Client) -> None:
    budget = int(small.live.engine.summary.num_tokens * 0.5)
    body = {"model": small.live.model, "prompt": STORY * 3}
    while (answer := small.send("POST", "/caches", **body)).is_success:
        assert sum(each["usage"]["total_tokens"] for each in small.send("GET", "/caches").json()["data"]) <= budget
    assert f"{budget:,}" in answer.json()["error"]["message"]
