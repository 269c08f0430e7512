"""Conversations that are extended, edited, branched, given other tools, grown old and evicted, in any order.

For every request: the figures add up, nothing is reported as read that was not reused, the reuse is the longest that
could be, the answer is that of an empty cache, and the explanation names the first token that differs.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from caching_client import Caches, Tenant, caches, figures
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import LiveServer

from octavo.engine.outputs import CompletionOutput
from octavo.engine.sampling_params import SamplingParams
from octavo.server.prompt_cache.history import Record

MAX_TOKENS = 3
TEXTS = ["Name a river.", "Name a river in France, please.", "Why?", "And one more, " * 4, "Yes. No."]
SYSTEMS = ["Be brief.", "Be brief, and answer with one word.", "You know rivers. " * 6]
TOOLS = [
    {"name": name, "description": f"Looks up a {name}.", "input_schema": {"type": "object"}}
    for name in ("river", "town", "mountain")
]


@dataclass
class Story:
    """One tenant's conversation, and what is known independently of what was computed for it."""

    tenant: Tenant
    data: st.DataObject
    system: list[str] = field(default_factory=lambda: [SYSTEMS[0]])
    tools: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=lambda: [said("user", TEXTS[:1])])
    sent: list[list[int]] = field(default_factory=list)
    there: list[list[int]] = field(default_factory=list)

    def extend(self) -> None:
        self.messages += [said("assistant", [self.draw(TEXTS)]), said("user", self.texts())]

    def edit(self) -> None:
        message = self.draw(self.messages)
        message["content"] = said(message["role"], self.texts())["content"]

    def branch(self) -> None:
        turns = (len(self.messages) + 1) // 2
        self.messages = [dict(message) for message in self.messages[: 2 * self.draw(range(1, turns + 1)) - 1]]

    def change_tools(self) -> None:
        self.tools = self.data.draw(st.lists(st.sampled_from(TOOLS), unique_by=lambda tool: tool["name"], max_size=2))

    def change_system(self) -> None:
        self.system = self.data.draw(st.lists(st.sampled_from(SYSTEMS), min_size=1, max_size=2))

    def grow_old(self) -> None:
        self.tenant.clock.now += self.draw([100, 301, 3601])

    def evict(self) -> None:
        self.tenant.live.run(self.tenant.live.engine.reset_prefix_cache())
        self.there.clear()

    def texts(self) -> list[str]:
        return self.data.draw(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3))

    def draw(self, values: Any) -> Any:
        return self.data.draw(st.sampled_from(values))

    def request(self) -> dict[str, Any]:
        """The conversation as it stands, marked in up to four places."""
        system = [{"type": "text", "text": text} for text in self.system]
        messages = [{**m, "content": [dict(block) for block in m["content"]]} for m in self.messages]
        tools = [dict(tool) for tool in self.tools]
        blocks: list[dict[str, Any]] = [*tools, *system, *(block for m in messages for block in m["content"])]
        marked = self.data.draw(st.sets(st.integers(0, len(blocks) - 1), max_size=4))
        num_hours = self.data.draw(st.integers(0, 4))
        for number, place in enumerate(sorted(marked)):
            blocks[place]["cache_control"] = {"type": "ephemeral", "ttl": "1h" if number < num_hours else "5m"}
        shown = {"tools": tools} if tools else {}
        return {"system": system, "messages": messages, "max_tokens": MAX_TOKENS, **shown}

    def ask(self) -> None:
        request = self.request()
        told = self.explained(request)
        message = self.tenant.ask(**request)
        record = self.record()
        prompt = record.prompt.tolist()

        read, hour, five, rest = figures(message)
        assert read + hour + five + rest == len(prompt) == len(self.tenant.tokens(self.tenant.text(request)))
        reused = min(max([shared(prompt, known) for known in self.there], default=0), len(prompt) - 1)
        assert record.num_cached == told["hit_tokens"] == told["hit_tokens_now"] == reused
        assert read <= reused and read == told["read_tokens"]
        self.check_difference(told["first_difference"], prompt)

        [output] = record.outputs
        assert output.tolist() == self.computed_anew(prompt)
        self.sent.append([*prompt, *output])
        self.there.append([*prompt, *output[:-1]])  # the last token is drawn, and not computed

    def explained(self, request: dict[str, Any]) -> dict[str, Any]:
        body = {"endpoint": "/v1/messages", "request": {"model": self.tenant.live.model, "temperature": 0, **request}}
        told: dict[str, Any] = self.tenant.sdk.post("/v1/cache/explain", cast_to=object, body=body)  # type: ignore[assignment]
        return told

    def check_difference(self, told: dict[str, Any] | None, prompt: list[int]) -> None:
        longest = max([shared(prompt, known) for known in self.sent], default=0)
        others = {known[longest] for known in self.sent if shared(prompt, known) == longest < len(known)}
        if longest in (0, len(prompt)) or not others:
            assert told is None
            return
        assert told is not None and told["token_index"] == longest
        decode = self.tenant.live.engine.tokenizer.decode
        assert decode(prompt[longest:], skip_special_tokens=False).startswith(told["after"])
        assert told["earlier"]["after"]

    def record(self) -> Record:
        history = self.tenant.live.app.state.octavo.service.history
        newest: Record = next(iter(history.of(self.tenant_name())))
        return newest

    def tenant_name(self) -> str:
        return f"tenant-{int(self.tenant.sdk.api_key.rpartition('-')[2])}"  # type: ignore[union-attr]

    def computed_anew(self, prompt: list[int]) -> list[int]:
        """What the engine answers where nothing is cached: under a salt that nobody has."""

        async def answer() -> list[int]:
            params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0)
            whole = CompletionOutput(0)
            async for output in self.tenant.live.engine.generate(prompt, params, cache_salt=secrets.token_bytes(16)):
                assert output.num_cached_tokens == 0
                for completion in output.outputs:
                    whole.extend(completion)
            return whole.token_ids

        return self.tenant.live.run(answer())


def said(role: str, texts: list[str]) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


def shared(first: list[int], second: list[int]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(map(len, (first, second)))
    )


@pytest.fixture(scope="module")
def served(live: LiveServer) -> Iterator[Caches]:
    with caches(live, secrets.token_bytes(32)) as found:
        yield found


STEPS = {
    step.__name__: step
    for step in (
        Story.extend,
        Story.edit,
        Story.branch,
        Story.change_tools,
        Story.change_system,
        Story.grow_old,
        Story.evict,
    )
}


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whatever_becomes_of_a_conversation(served: Caches, data: st.DataObject) -> None:
    with served.tenant() as tenant:
        story = Story(tenant, data)
        story.ask()
        for name in data.draw(st.lists(st.sampled_from(sorted(STEPS)), max_size=6)):
            STEPS[name](story)
            story.ask()
