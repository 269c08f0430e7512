"""Octavo's server: what HTTP adds to the engine, and a chat load beside llama-server and vLLM's server.

    python -m benchmarks.serve [--only PART...] [--peers PEER...] [--repeats N] [--write]

overhead  16 streams of 128 tokens over HTTP and by `LLM.generate`, and the first token of a cached prompt of 2,000
          tokens by both, in turns. Replies must be equal.
chat      8 users at once, 6 turns each behind one system prompt of 2,000 tokens, replies of 64 tokens, greedy. Every
          server gets the same system prompt and the same questions; the history is made of its own replies. Servers
          take turns, and each starts afresh for each round: nothing is cached, and loading does not count.

The peers are those that `python -m benchmarks.compare --setup llama.cpp vLLM` sets up. The client shares the processors
with the servers, so it only reads and notes the time; how long it was busy stands beside the figures.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from benchmarks.peers import llama_cpp, octavo, vllm
from benchmarks.peers.errors import PeerError
from benchmarks.peers.place import Place
from benchmarks.peers.recipe import ServingPeer
from benchmarks.results import RESULTS, add_section, machine
from benchmarks.serving.chat import ChatRound, play, warm_up
from benchmarks.serving.load import NUM_TURNS, NUM_USERS, ChatLoad, Passages, chat_load
from benchmarks.serving.overhead import Overhead, Pair
from benchmarks.serving.report import Rounds, chat_table, overhead_table
from benchmarks.serving.server import Server, free_port
from octavo import LLM
from octavo.config import user_cache
from octavo.evaluate.text import default_text
from octavo.model.embedded import EMBEDDED_MODEL
from octavo.model.source import resolve_model
from octavo.text.loading import load_tokenizer

_LOAD_SECONDS = 900
"""vLLM compiles when it is started for the first time."""
_NUM_FIRST_TOKENS = 15
"""Pairs of first tokens in each round."""
PEERS: dict[str, ServingPeer] = {peer.NAME: peer for peer in (llama_cpp, vllm)}
OCTAVO: ServingPeer = octavo
PARTS = ("overhead", "chat")


def main() -> None:
    arguments = _arguments()
    place, parts = Place(arguments.work), arguments.only or PARTS
    threads, repeats = arguments.threads, arguments.repeats
    texts = [f"{date.today()}, {machine()}, {threads} threads, {EMBEDDED_MODEL} in bf16, medians of {repeats} rounds:"]
    if "overhead" in parts:
        texts.append(overhead_table(*measure_overhead(place, threads, repeats)))
    if "chat" in parts:
        peers = [PEERS[name] for name in arguments.peers or PEERS]
        loads = [chat_load(passages(seed), seed) for seed in range(repeats)]
        texts.append(f"Chat, {NUM_USERS} users x {NUM_TURNS} turns:\n")
        texts.append(chat_table(measure_chat(peers, place, threads, loads), OCTAVO.NAME))
    text = "\n".join(texts)
    print(text)
    if arguments.write:
        add_section(f"The server (`{_command()}`)", text)


def passages(seed: int) -> Passages:
    source = resolve_model(EMBEDDED_MODEL)
    return Passages(load_tokenizer(source.tokenizer_source, source.name), default_text().content, seed)


def measure_overhead(place: Place, threads: int, repeats: int) -> tuple[list[Pair], list[Pair]]:
    """Pairs of streams, and of first tokens.

    Raises:
        PeerError: Octavo's server failed, or answers otherwise than `LLM`.
    """
    streams: list[Pair] = []
    firsts: list[Pair] = []
    port = free_port()
    recipe = OCTAVO.serve(place, threads, port)
    with Server(OCTAVO.NAME, recipe, port, place.log("octavo.serve")) as server:
        model = server.wait_until_ready(_LOAD_SECONDS)
        with LLM(EMBEDDED_MODEL, threads=threads, kv_memory=octavo.KV_MEMORY) as llm:
            for turn in range(repeats):
                overhead = Overhead(llm, port, recipe, model, passages(turn))
                streams.append(overhead.streams(http_first=turn % 2 == 0))
                firsts += overhead.first_tokens(_NUM_FIRST_TOKENS)
                _say(f"16 streams: {streams[-1].ratio:.3f} x as long; first token: {firsts[-1].added * 1e3:+.1f} ms")
    return streams, firsts


def measure_chat(peers: Sequence[ServingPeer], place: Place, threads: int, loads: Sequence[ChatLoad]) -> Rounds:
    """One round for each load, every server in turn. A peer that fails is said so, and left out of that round.

    Raises:
        PeerError: Octavo's server failed.
    """
    rounds: dict[str, list[ChatRound | None]] = {peer.NAME: [] for peer in (OCTAVO, *peers)}
    for number, load in enumerate(loads):
        servers = [OCTAVO, *peers]
        first = number % len(servers)  # who begins changes, as in benchmarks.compare
        for peer in servers[first:] + servers[:first]:
            rounds[peer.NAME].append(_chat_round(peer, place, threads, load))
    return rounds


def _chat_round(peer: ServingPeer, place: Place, threads: int, load: ChatLoad) -> ChatRound | None:
    port = free_port()
    recipe = peer.serve(place, threads, port)
    try:
        with Server(peer.NAME, recipe, port, place.log(f"{peer.__name__.rpartition('.')[2]}.serve")) as server:
            model = server.wait_until_ready(_LOAD_SECONDS)
            warm_up(port, recipe, model)
            measured = play(load, port, recipe, model)
    except PeerError as error:
        if peer is OCTAVO:
            raise
        _say(f"{peer.NAME}: {error}")
        return None
    _say(f"{peer.NAME}: {measured.requests_per_second:.2f} requests/s, first {measured.median_first * 1e3:,.0f} ms")
    return measured


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), metavar="PEER", help=f"of: {', '.join(PEERS)}")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds; medians count (default: 5)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--work", type=Path, default=user_cache() / "peers", metavar="DIR", help="default: %(default)s")
    parser.add_argument("--write", action="store_true", help=f"append the tables to {RESULTS.name}")
    return parser.parse_args()


def _command() -> str:
    return shlex.join(["python", "-m", "benchmarks.serve", *(word for word in sys.argv[1:] if word != "--write")])


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
