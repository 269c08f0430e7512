"""POST /v1/cache/explain over HTTP: for any endpoint's request, and for one of the past."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from held_engine import held
from live_server import LiveServer, live_server
from standing_clock import Clock

from octavo.engine.engine import Engine
from octavo.server.config import ServerConfig
from octavo.server.keys import Key, KeyRing

SYSTEM = "You are a helper of few words, and each of them is well chosen."
QUESTION = "Name a river in France, please."
TOOLS = [
    {"type": "function", "function": {"name": name, "description": what, "parameters": {"type": "object"}}}
    for name, what in (("look", "Looks something up."), ("note", "Notes something down."))
]
KEYS = ("alice", "bob", "root")
ALICE = {"authorization": "Bearer alice"}


@dataclass
class Client:
    """One tenant of a server."""

    live: LiveServer
    key: str

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.post(f"{self.live.url}{path}", json=body, headers=headers, timeout=60)

    def send(self, path: str, **fields: Any) -> Any:
        answer = self.post(path, {"model": self.live.model, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def chat(self, *messages: dict[str, Any], **fields: Any) -> Any:
        asked = {"max_completion_tokens": 4, "temperature": 0, **fields}
        return self.send("/v1/chat/completions", messages=list(messages), **asked)

    def explain(self, **body: Any) -> Any:
        answer = self.post("/v1/cache/explain", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def would(self, path: str, **fields: Any) -> Any:
        """What is explained of a request that is not sent."""
        return self.explain(endpoint=path, request={"model": self.live.model, **fields})

    def would_chat(self, *messages: dict[str, Any], **fields: Any) -> Any:
        return self.would("/v1/chat/completions", messages=list(messages), **fields)


@dataclass
class Company:
    """A server with three tenants, of whom the last is an admin, and its clock."""

    live: LiveServer
    clock: Clock

    def __getattr__(self, name: str) -> Client:
        return Client(self.live, name)


def says(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


CHAT = [says("system", SYSTEM), says("user", QUESTION)]


@contextmanager
def company(live: LiveServer, **settings: Any) -> Iterator[Company]:
    """On the engine of ``live``, with salts that no other test has."""
    clock, config = Clock(), ServerConfig(**settings)
    ring = KeyRing([Key.of(name, name, name == "root") for name in KEYS], secrets.token_bytes(32), config.share_cache)
    with live_server(live.engine, config, keys=ring, clock=clock) as served:
        yield Company(served, clock)


@pytest.fixture
def ours(live: LiveServer) -> Iterator[Company]:
    with company(live) as served:
        yield served


def spans(told: Any) -> list[tuple[str, int, int]]:
    return [(cause["type"], *cause["tokens"]) for cause in told["causes"]]


def tokens_of(live: LiveServer, *messages: dict[str, Any], **more: Any) -> list[int]:
    return live.engine.assembly.render(messages, **more).prompt_token_ids


def shared(first: list[int], second: list[int]) -> int:
    return next(index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)


def test_a_prompt_that_was_never_sent(ours: Company) -> None:
    size = len(tokens_of(ours.live, *CHAT))
    told = ours.alice.would_chat(*CHAT)
    assert {cause.pop("message") != "" for cause in told["causes"]} == {True}
    assert told == {
        "object": "cache.explanation",
        "request_id": None,
        "prompt_tokens": size,
        "hit_tokens": 0,
        "hit_tokens_now": 0,
        "read_tokens": 0,
        "complete": False,
        "first_difference": None,
        "causes": [
            {"type": "not_seen", "tokens": [0, size - 1]},
            {"type": "last_token", "tokens": [size - 1, size]},
        ],
        "entries": [],
        "template": {"prefix_stable": True, "why_not": None},
    }


def test_a_prompt_that_is_there_is_reused_but_for_its_last_token(ours: Company) -> None:
    used = ours.alice.chat(*CHAT)["usage"]["prompt_tokens"]
    ours.clock.now += 100
    told = ours.alice.would_chat(*CHAT)
    assert (told["hit_tokens"], told["complete"], told["first_difference"]) == (used - 1, True, None)
    assert spans(told) == [("last_token", used - 1, used)]
    assert told["entries"] == [{"tokens": used, "ttl": 1800, "seconds_left": 1700.0}]


def change(messages: list[dict[str, Any]], index: int, content: str) -> list[dict[str, Any]]:
    return [*messages[:index], {**messages[index], "content": content}, *messages[index + 1 :]]


LONG = [*CHAT, says("assistant", "The Loire."), says("user", "And in Spain?")]


@pytest.mark.parametrize(
    ("index", "content", "segment", "texts"),
    [
        (0, "You are a helper of no words.", {"kind": "system", "index": 0}, ("helper of", " no words", " few words")),
        (1, "Name a river in Italy.", {"kind": "message", "index": 1}, ("river in", " Italy.", " France, please.")),
        (2, "The Rhone.", {"kind": "message", "index": 2}, ("assistant\nThe", " Rhone.", " Loire.")),
        (3, "And in Peru?", {"kind": "message", "index": 3}, ("user\nAnd in", " Peru?", " Spain?")),
    ],
)
def test_the_first_token_that_differs_is_named_with_its_place_and_its_text(
    ours: Company, index: int, content: str, segment: dict[str, Any], texts: tuple[str, str, str]
) -> None:
    sent = ours.alice.chat(*LONG)
    changed = change(LONG, index, content)
    first = shared(tokens_of(ours.live, *LONG), tokens_of(ours.live, *changed))
    told = ours.alice.would_chat(*changed)
    found = told["first_difference"]
    assert (found["token_index"], told["hit_tokens"]) == (first, first)
    assert found["segment"] == segment | ({"role": LONG[index]["role"]} if index else {})
    before, after, earlier = texts
    assert found["before"].endswith(before) and found["after"].startswith(after)
    assert found["earlier"]["after"].startswith(earlier) and found["earlier"]["in"] == "prompt"
    assert found["earlier"]["request_id"] == sent["id"].replace("chatcmpl-", "req_")
    assert spans(told)[0] == ("differs", first, told["prompt_tokens"] - 1)


def test_a_tool_that_changed_is_named(ours: Company) -> None:
    ours.alice.chat(*CHAT, tools=TOOLS, tool_choice="auto")
    other = {**TOOLS[1], "function": {**TOOLS[1]["function"], "name": "keep"}}
    told = ours.alice.would_chat(*CHAT, tools=[TOOLS[0], other])
    assert told["first_difference"]["segment"] == {"kind": "tool", "index": 1}


def test_an_answer_that_comes_back_changed_differs_in_the_answer(ours: Company) -> None:
    answer = ours.alice.chat(*CHAT)
    told = ours.alice.would_chat(*CHAT, says("assistant", "Certainly not."), says("user", "Why?"))
    found = told["first_difference"]
    assert found["segment"] == {"kind": "message", "index": 2, "role": "assistant"}
    assert found["earlier"]["in"] == "answer"
    assert answer["choices"][0]["message"]["content"].startswith(found["earlier"]["after"])
    assert found["token_index"] == answer["usage"]["prompt_tokens"] == told["hit_tokens"]


def test_the_next_turn_reuses_the_answer_and_differs_from_nothing(ours: Company) -> None:
    answer = ours.alice.chat(*CHAT)
    text, used = answer["choices"][0]["message"]["content"], answer["usage"]["total_tokens"]
    told = ours.alice.would_chat(*CHAT, says("assistant", text), says("user", "Why?"))
    assert told["first_difference"] is None
    assert told["hit_tokens"] == used - 1  # the last token of an answer is never computed
    assert spans(told)[0] == ("not_seen", used - 1, told["prompt_tokens"] - 1)


def test_a_difference_behind_the_last_message_is_in_the_generation_prompt(ours: Company) -> None:
    ours.alice.chat(*CHAT, says("user", "Well?"))
    told = ours.alice.would_chat(*CHAT)
    assert told["first_difference"]["segment"] == {"kind": "generation_prompt", "index": 0}
    assert told["first_difference"]["after"] == "assistant\n"


ENDPOINTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "/v1/messages": lambda text: {
        "max_tokens": 4,
        "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
        "messages": [says("user", text)],
    },
    "/v1/chat/completions": lambda text: {"max_tokens": 4, "messages": [says("system", SYSTEM), says("user", text)]},
    "/v1/responses": lambda text: {"max_output_tokens": 4, "instructions": SYSTEM, "input": text},
    "/v1/completions": lambda text: {"max_tokens": 4, "prompt": f"{SYSTEM} {text}"},
}
INDEX = {"/v1/messages": 0, "/v1/chat/completions": 1, "/v1/responses": 1}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_endpoint_s_request_is_explained_and_found_by_the_id_of_its_answer(ours: Company, endpoint: str) -> None:
    first, second = ENDPOINTS[endpoint](QUESTION), ENDPOINTS[endpoint]("Name a river in Spain, please.")
    sent = ours.alice.send(endpoint, **first)["id"]
    told = ours.alice.would(endpoint, **second)
    found = told["first_difference"]
    assert found["after"].startswith(" Spain, please.") and found["before"].endswith("Name a river in")
    assert found["earlier"]["after"].startswith(" France, please.")
    segment = {"kind": "message", "index": INDEX[endpoint], "role": "user"} if endpoint in INDEX else None
    assert found["segment"] == segment
    assert (told["template"] is None) == (endpoint not in INDEX)
    past = ours.alice.explain(request_id=sent)
    assert past["request_id"] == found["earlier"]["request_id"]
    assert past["request_id"].partition("_")[2] == sent.replace("-", "_").partition("_")[2]


def test_of_the_past_it_is_told_what_was_reused_then_and_would_be_now(ours: Company) -> None:
    ours.alice.chat(*CHAT)
    changed = change(CHAT, 1, "Name a river in Spain, please.")
    first = shared(tokens_of(ours.live, *CHAT), tokens_of(ours.live, *changed))
    sent = ours.alice.chat(*changed)
    told = ours.alice.explain(request_id=sent["id"])
    assert (told["hit_tokens"], told["hit_tokens_now"]) == (first, sent["usage"]["prompt_tokens"] - 1)
    assert told["read_tokens"] == sent["usage"]["prompt_tokens_details"]["cached_tokens"] == first
    assert spans(told)[0] == ("differs", first, told["prompt_tokens"] - 1)
    assert told["first_difference"]["token_index"] == first


def test_what_is_no_longer_there_was_evicted_or_flushed(ours: Company) -> None:
    used = ours.alice.chat(*CHAT)["usage"]["prompt_tokens"]
    ours.live.until_idle()
    ours.live.run(ours.live.engine.reset_prefix_cache())  # as if others had needed the memory
    assert spans(ours.alice.would_chat(*CHAT))[0] == ("evicted", 0, used - 1)
    ours.clock.now += 1
    assert ours.root.post("/admin/cache/flush", {}).status_code == 200
    told = ours.alice.would_chat(*CHAT)
    assert (spans(told)[0], told["entries"]) == (("flushed", 0, used - 1), [])


def test_what_somebody_is_about_to_compute_is_not_finished(ours: Company) -> None:
    answers: list[Any] = []
    chat = threading.Thread(target=lambda: answers.append(ours.alice.chat(*CHAT)))
    question = threading.Thread(target=lambda: answers.append(ours.alice.would_chat(*CHAT)))
    with held(ours.live.engine):
        chat.start()
        while not list(ours.live.app.state.octavo.service.history.of("alice")):
            time.sleep(0.001)
        question.start()
        question.join(0.5)  # it waits for the engine, as the chat does
    question.join()
    chat.join()
    told = next(each for each in answers if each["object"] == "cache.explanation")
    size = told["prompt_tokens"]
    assert spans(told) == [("not_finished", 0, size - 1), ("last_token", size - 1, size)]


MARKED = {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}


def test_what_is_kept_expires_and_is_reused_all_the_same(ours: Company) -> None:
    asked = {"max_tokens": 1, "system": [MARKED], "messages": [says("user", QUESTION)]}
    kept = ours.alice.send("/v1/messages", **asked)["usage"]["cache_creation_input_tokens"]
    told = ours.alice.would("/v1/messages", **asked)
    beyond = told["prompt_tokens"] - 1
    assert (told["read_tokens"], told["hit_tokens"], told["complete"]) == (kept, beyond, True)
    assert spans(told) == [("not_read", kept, beyond), ("last_token", beyond, beyond + 1)]
    ours.clock.now += 301
    told = ours.alice.would("/v1/messages", **asked)
    assert (told["read_tokens"], told["hit_tokens"], told["entries"]) == (0, beyond, [])
    assert spans(told) == [("expired", 0, kept), ("last_token", beyond, beyond + 1)]
    unmarked = ours.alice.would("/v1/messages", **{**asked, "system": SYSTEM})
    assert (unmarked["read_tokens"], unmarked["hit_tokens"]) == (0, beyond)


def test_a_request_that_reads_nothing_says_so(ours: Company) -> None:
    used = ours.alice.chat(*CHAT)["usage"]["prompt_tokens"]
    told = ours.alice.would_chat(*CHAT, prompt_cache_options={"mode": "explicit"})
    assert (told["hit_tokens"], spans(told)[0]) == (0, ("not_read", 0, used - 1))
    ours.alice.send("/v1/completions", prompt=QUESTION, max_tokens=1)
    scored = ours.alice.would("/v1/completions", prompt=QUESTION, max_tokens=1, echo=True, logprobs=0)
    assert (scored["hit_tokens"], spans(scored)[0][0]) == (0, "not_read")


def test_a_breakpoint_that_is_too_short_to_count_says_so(live: LiveServer) -> None:
    asked = {"max_tokens": 1, "system": [MARKED], "messages": [says("user", QUESTION)]}
    with company(live, min_cache_tokens=1000) as ours:
        ours.alice.send("/v1/messages", **asked)
        told = ours.alice.would("/v1/messages", **asked)
        kinds = [kind for kind, *_ in spans(told)]
        assert (kinds, told["read_tokens"], told["complete"]) == (["too_short", "not_read", "last_token"], 0, True)


def test_a_named_cache_is_part_of_the_prompt_that_is_explained(ours: Company) -> None:
    name = ours.alice.send("/v1/caches", messages=[CHAT[0]], ttl="300s")["name"]
    told = ours.alice.would_chat(CHAT[1], cache=name)
    assert told["prompt_tokens"] == len(tokens_of(ours.live, *CHAT))
    assert told["hit_tokens"] > 0


def test_nothing_is_computed_and_nothing_in_the_cache_changes(ours: Company) -> None:
    ours.alice.send("/v1/messages", max_tokens=1, system=[MARKED], messages=[says("user", QUESTION)])
    sent = ours.alice.chat(*CHAT)
    ours.live.until_idle()
    service = ours.live.app.state.octavo.service

    def state() -> Any:
        entries = [(salt, list(shelf.order.items())) for salt, shelf in service.entries._shelves.items()]
        records = [record.request_id for tenant in KEYS for record in service.history.of(tenant)]
        blocks = ours.live.engine._thread.call(_blocks).result(10)
        return repr(entries), records, blocks, ours.live.run(ours.live.engine.report())

    before = state()
    for client in (ours.alice, ours.bob, ours.root):
        client.would_chat(*CHAT)
        client.would_chat(*change(CHAT, 1, "What?"))
        client.would("/v1/messages", max_tokens=1, system=[MARKED], messages=[says("user", QUESTION)])
    ours.alice.explain(request_id=sent["id"])
    assert state() == before


def _blocks(engine: Engine) -> list[Any]:
    """All free blocks in the order in which they are evicted, and what they hold."""
    pool: Any = engine.kv._pool
    return [(block.block_id, block.block_hash, block.level, block.keep_until) for block in pool._free]


def test_another_tenant_s_prompts_change_no_byte_of_an_explanation(ours: Company) -> None:
    alone = ours.bob.post("/v1/cache/explain", explained(ours, CHAT)).content
    ours.alice.chat(*CHAT)
    assert ours.bob.post("/v1/cache/explain", explained(ours, CHAT)).content == alone


def explained(ours: Company, messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"endpoint": "/v1/chat/completions", "request": {"model": ours.live.model, "messages": messages}}


def test_another_tenant_s_request_cannot_be_told_from_one_that_never_was(ours: Company) -> None:
    sent = ours.alice.chat(*CHAT)["id"]
    answers = [ours.bob.post("/v1/cache/explain", {"request_id": name}) for name in (sent, "chatcmpl-0")]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].content == answers[1].content
    assert answers[0].json()["error"]["param"] == "request_id"


def test_an_admin_explains_anybody_s_request_and_sees_who_holds_how_much(ours: Company) -> None:
    sent = ours.alice.chat(*CHAT)
    used = sent["usage"]["prompt_tokens"]
    past = ours.root.explain(request_id=sent["id"])
    assert (past["tenant"], past["hit_tokens_now"]) == ("alice", used - 1)
    told = ours.root.would_chat(*CHAT)
    assert (told["tenant"], told["hit_tokens"]) == ("root", 0)
    (other,) = [cause for cause in told["causes"] if cause["type"] == "other_tenant"]
    assert (other["tokens"], other["tenant"]) == ([0, used - 1], "alice")
    assert "tenant" not in ours.alice.would_chat(*CHAT)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "endpoint", "endpoint is required, or a request_id alone"),
        ({"endpoint": "/v1/messages"}, "request", "request is required"),
        ({"request_id": "req_1", "request": {}}, "request_id", "not both"),
        ({"endpoint": "/v1/embeddings", "request": {}}, "endpoint", "'/v1/messages'"),
        ({"endpoint": "/v1/completions", "request": {}}, "request.model", "model is required"),
        (
            {"endpoint": "/v1/messages", "request": {"model": "?", "max_tokens": 1, "messages": 3}},
            "request.messages",
            "",
        ),
        ({"request_id": "req_1", "tenant": "bob"}, "tenant", "not a parameter"),
    ],
)
def test_a_question_that_is_none_is_refused(ours: Company, body: dict[str, Any], param: str, words: str) -> None:
    answer = ours.alice.post("/v1/cache/explain", body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]


def test_a_request_that_would_be_refused_is_refused_as_there(ours: Company) -> None:
    unknown = ours.alice.post(
        "/v1/cache/explain", explained(ours, CHAT) | {"request": {"model": "x", "messages": CHAT}}
    )
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "request.model")
    fields = {"model": ours.live.model, "prompt": ["a", "b"]}
    several = ours.alice.post("/v1/cache/explain", {"endpoint": "/v1/completions", "request": fields})
    assert (several.status_code, several.json()["error"]["param"]) == (400, "request.prompt")
    long = ours.alice.post("/v1/cache/explain", explained(ours, [says("user", "river " * 3000)]))
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert long.json()["error"]["param"] == "request.messages"


def test_what_was_refused_or_given_up_before_it_began_is_not_remembered(ours: Company) -> None:
    history = ours.live.app.state.octavo.service.history
    refused = {"model": ours.live.model, "messages": [says("user", "river " * 3000)]}
    assert ours.alice.post("/v1/chat/completions", refused).status_code == 400
    assert list(history.of("alice")) == []
    body = {"model": ours.live.model, "messages": CHAT}
    with held(ours.live.engine), pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{ours.live.url}/v1/chat/completions", json=body, headers=ALICE, timeout=0.3)
    ours.live.until_idle()
    assert list(history.of("alice")) == []


def test_what_was_given_up_in_its_midst_is_remembered_and_reused(ours: Company) -> None:
    body = {"model": ours.live.model, "messages": CHAT, "stream": True, "temperature": 0}
    with httpx.stream("POST", f"{ours.live.url}/v1/chat/completions", json=body, headers=ALICE, timeout=60) as answer:
        next(answer.iter_lines())
    ours.live.until_idle()
    assert ours.alice.would_chat(*CHAT)["complete"] is True
    told = ours.alice.would_chat(*CHAT, says("user", "Well?"))
    assert told["first_difference"]["segment"] == {"kind": "message", "index": 2, "role": "user"}
