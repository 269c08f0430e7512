"""What prompt caching saves: one conversation by each API, with the cache and without it.

    python -m benchmarks.prompt_caching [--repeats N] [--threads N] [--work DIR] [--write]

A system prompt of 2,000 tokens, 8 turns, replies of 32 tokens, greedy, over HTTP and streamed. Anthropic's API gets an
automatic breakpoint with every request, OpenAI's chat completions nothing, and its responses the id of the one before.
Both ways ask the same server the same things, in turns; without the cache means that it is flushed before each request.
Replies must be equal: a hit equals a miss.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.peers import octavo
from benchmarks.peers.errors import PeerError
from benchmarks.peers.place import Place
from benchmarks.peers.recipe import HOST
from benchmarks.results import RESULTS, add_section, machine
from benchmarks.serve import passages
from benchmarks.serving.load import chat_load
from benchmarks.serving.server import Server, free_port
from octavo.config import user_cache
from octavo.model.embedded import EMBEDDED_MODEL

NUM_TURNS = 8
NUM_REPLY_TOKENS = 32
_LOAD_SECONDS = 120
_QUESTION = "Question {number}: {text}"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: seconds to its first text and in all; tokens of its prompt, and those of them that were reused."""

    first: float
    total: float
    prompt: int
    reused: int
    text: str


class Client(ABC):
    """One API's way of having a conversation."""

    path: str

    def __init__(self, http: httpx.Client, model: str, system: str) -> None:
        self._http = http
        self._common = {"model": model, "stream": True, "temperature": 0}
        self._system = system
        self._messages: list[dict[str, Any]] = []

    def ask(self, question: str) -> Turn:
        self._messages.append({"role": "user", "content": question})
        began, first, text, events = time.perf_counter(), None, "", []
        with self._http.stream("POST", self.path, json={**self._common, **self._body()}) as response:
            if response.status_code != 200:
                raise PeerError(f"{self.path}: {response.read().decode()}")
            for event in _events(response.iter_lines()):
                events.append(event)
                piece = self._piece(event)
                if piece and first is None:
                    first = time.perf_counter() - began
                text += piece
        total = time.perf_counter() - began
        self._messages.append({"role": "assistant", "content": text})
        prompt, reused = self._usage(events)
        return Turn(total if first is None else first, total, prompt, reused, text)

    @abstractmethod
    def _body(self) -> dict[str, Any]:
        """The request, but for what all have in common."""

    @abstractmethod
    def _piece(self, event: dict[str, Any]) -> str:
        """The text in an event."""

    @abstractmethod
    def _usage(self, events: list[dict[str, Any]]) -> tuple[int, int]:
        """Tokens of the prompt, and of them those that were reused."""


class Messages(Client):
    path = "/v1/messages"

    def _body(self) -> dict[str, Any]:
        return {
            "system": self._system,
            "messages": self._messages,
            "max_tokens": NUM_REPLY_TOKENS,
            "cache_control": {"type": "ephemeral"},
        }

    def _piece(self, event: dict[str, Any]) -> str:
        return str(event["delta"]["text"]) if event["type"] == "content_block_delta" else ""

    def _usage(self, events: list[dict[str, Any]]) -> tuple[int, int]:
        usage = events[0]["message"]["usage"]
        read: int = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + usage["cache_creation_input_tokens"] + read, read


class ChatCompletions(Client):
    path = "/v1/chat/completions"

    def _body(self) -> dict[str, Any]:
        return {
            "messages": [{"role": "system", "content": self._system}, *self._messages],
            "max_completion_tokens": NUM_REPLY_TOKENS,
            "stream_options": {"include_usage": True},
        }

    def _piece(self, event: dict[str, Any]) -> str:
        return event["choices"][0]["delta"].get("content") or "" if event["choices"] else ""

    def _usage(self, events: list[dict[str, Any]]) -> tuple[int, int]:
        usage = events[-1]["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


class Responses(Client):
    path = "/v1/responses"
    _previous: str | None = None

    def _body(self) -> dict[str, Any]:
        return {
            "instructions": self._system,
            "input": self._messages[-1]["content"],
            "max_output_tokens": NUM_REPLY_TOKENS,
            "previous_response_id": self._previous,
        }

    def _piece(self, event: dict[str, Any]) -> str:
        return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""

    def _usage(self, events: list[dict[str, Any]]) -> tuple[int, int]:
        response = events[-1]["response"]
        self._previous = response["id"]
        return response["usage"]["input_tokens"], response["usage"]["input_tokens_details"]["cached_tokens"]


APIS: tuple[type[Client], ...] = (Messages, ChatCompletions, Responses)


def main() -> None:
    arguments = _arguments()
    rounds = measure(Place(arguments.work), arguments.threads, arguments.repeats)
    text = (
        f"{date.today()}, {machine()}, {arguments.threads} threads, {EMBEDDED_MODEL} in bf16, "
        f"medians of {arguments.repeats} rounds:\n\n{table(rounds)}"
    )
    print(text)
    if arguments.write:
        command = shlex.join(["python", "-m", "benchmarks.prompt_caching", *_given()])
        add_section(f"Prompt caching (`{command}`)", text)


Rounds = dict[str, list[tuple[list[Turn], list[Turn]]]]
"""By the API's path, for each round: the turns with the cache, and those without."""


def measure(place: Place, threads: int, repeats: int) -> Rounds:
    """Have the conversations, by each API and both ways, ``repeats`` times.

    Raises:
        PeerError: the server failed, or a reply differs.
    """
    rounds: Rounds = {api.path: [] for api in APIS}
    port = free_port()
    with (
        Server(octavo.NAME, octavo.serve(place, threads, port), port, place.log("octavo.prompt_caching")) as server,
        httpx.Client(base_url=f"http://{HOST}:{port}", timeout=300) as http,
    ):
        model = server.wait_until_ready(_LOAD_SECONDS)
        for number in range(repeats):
            for api in APIS:
                load = chat_load(passages(number), number)
                questions = [
                    _QUESTION.format(number=turn, text=said[0]) for turn, said in enumerate(load.turns[:NUM_TURNS])
                ]
                ways = [play(api(http, model, load.system), http, questions, cached=cached) for cached in (True, False)]
                if [turn.text for turn in ways[0]] != [turn.text for turn in ways[1]]:
                    raise PeerError(f"{api.path}: replies differ with the cache and without it")
                rounds[api.path].append((ways[0], ways[1]))
                print(f"{api.path}: {_seconds(ways[0]):.2f} s with, {_seconds(ways[1]):.2f} s without", file=sys.stderr)
    return rounds


def play(client: Client, http: httpx.Client, questions: list[str], *, cached: bool) -> list[Turn]:
    """The conversation, beginning with an empty cache."""
    turns = []
    for number, question in enumerate(questions):
        if number == 0 or not cached:
            http.post("/admin/cache/flush").raise_for_status()
        turns.append(client.ask(question))
    return turns


def table(rounds: Rounds) -> str:
    lines = [
        "| API | prompt tokens, all turns | reused | first text after, from turn 2 on | without | ratio "
        "| conversation | without | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for path, pairs in rounds.items():
        with_cache, without = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        firsts = [median(turn.first for turns in way for turn in turns[1:]) for way in (with_cache, without)]
        wholes = [median(map(_seconds, way)) for way in (with_cache, without)]
        prompt = sum(turn.prompt for turn in with_cache[0])
        reused = sum(turn.reused for turn in with_cache[0])
        lines.append(
            f"| `{path}` | {prompt:,} | {reused / prompt:.1%} | {firsts[0] * 1e3:,.0f} ms | {firsts[1] * 1e3:,.0f} ms "
            f"| {firsts[1] / firsts[0]:.1f} x | {wholes[0]:.2f} s | {wholes[1]:.2f} s | {wholes[1] / wholes[0]:.1f} x |"
        )
    return "\n".join(lines) + "\n"


def _seconds(turns: list[Turn]) -> float:
    return sum(turn.total for turn in turns)


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            if event.get("type") != "ping":
                yield event


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prompt_caching",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds; medians count (default: 5)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--work", type=Path, default=user_cache() / "peers", metavar="DIR", help="default: %(default)s")
    parser.add_argument("--write", action="store_true", help=f"append the table to {RESULTS.name}")
    return parser.parse_args()


def _given() -> list[str]:
    return [word for word in sys.argv[1:] if word != "--write"]


if __name__ == "__main__":
    main()
