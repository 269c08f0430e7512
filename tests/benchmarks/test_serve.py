"""benchmarks.serve from its command line to its tables, on a server that is made up."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import made_up_server
import pytest
from benchmarks.peers import llama_cpp, octavo, vllm
from benchmarks.peers.errors import PeerError
from benchmarks.peers.place import Place
from benchmarks.peers.recipe import HOST, Recipe, ServingPeer
from benchmarks.serving.answer import read
from benchmarks.serving.chat import chat_body
from benchmarks.serving.client import exchange, post
from benchmarks.serving.load import NUM_REPLY_TOKENS, NUM_TURNS, NUM_USERS, Passages, chat_load
from benchmarks.serving.overhead import NUM_STREAMS, NUM_TOKENS, Overhead
from benchmarks.serving.server import Server, free_port

from benchmarks import serve


class MadePeer:
    """A peer whose server is made up, or whatever program it is given."""

    def __init__(self, name: str, command: Sequence[str] = ()) -> None:
        self.NAME = name
        self.__name__ = f"made.{name}"
        self._command = command

    def serve(self, place: Place, threads: int, port: int) -> Recipe:
        program = [sys.executable, made_up_server.__file__, str(port)]
        return Recipe(self._command or program, {}, "/ready")


class Letters:
    """A tokenizer with a token per letter."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


PASSAGES = Passages(Letters(), "abcdefghijklmnopqrstuvwxyz" * 1000, 0)
RECIPE = MadePeer("Octavo").serve(Place(Path()), 2, 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    port = free_port()
    with Server("made", MadePeer("made").serve(Place(tmp_path), 2, port), port, tmp_path / "log") as started:
        assert started.wait_until_ready(30) == made_up_server.MODEL
        yield started


def test_many_replies_are_read_at_once_and_each_is_whole(server: Server) -> None:
    prompts = ["a" * number for number in range(1, 17)]
    bodies = [{"prompt": prompt, "max_tokens": 20} for prompt in prompts]
    span = exchange(server.port, [post("/v1/completions", body) for body in bodies])
    answers = {reply.user: read(reply, 20) for reply in span.replies}
    assert [answers[user].text for user in range(16)] == ["".join(made_up_server.words(p, 20)) for p in prompts]
    assert 0 < span.client_seconds < span.seconds
    assert max(answer.seconds for answer in answers.values()) <= span.seconds


def test_a_user_goes_on_when_the_reply_is_there(server: Server) -> None:
    said = ["one", "two", "three"]

    def then(reply: object) -> bytes | None:
        return post("/v1/completions", {"prompt": said.pop(), "max_tokens": 1}) if said else None

    span = exchange(server.port, [post("/v1/completions", {"prompt": "zero", "max_tokens": 1})], then)
    assert [read(reply, 1).num_prompt_tokens for reply in span.replies] == [4, 5, 3, 3]


def test_a_server_that_breaks_off_is_an_error() -> None:
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        listening.listen()

        def break_off() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)

        accepting = threading.Thread(target=break_off)
        accepting.start()
        (reply,) = exchange(listening.getsockname()[1], [post("/", {})]).replies
        accepting.join()
    with pytest.raises(PeerError, match="did not answer"):
        read(reply, 1)


def test_a_server_that_is_gone_is_an_error() -> None:
    with pytest.raises(PeerError, match="connection to the server failed"):
        exchange(free_port(), [post("/", {})])


def test_a_server_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    recipe = Recipe(["sh", "-c", "echo no model; exit 1"], {}, "/ready")
    with Server("made", recipe, free_port(), tmp_path / "log") as server, pytest.raises(PeerError, match="no model"):
        server.wait_until_ready(30)


def test_servers_take_turns_and_one_that_fails_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "OCTAVO", MadePeer("Octavo"))
    peers = [MadePeer("good"), MadePeer("bad", ["false"])]
    rounds = serve.measure_chat(peers, Place(tmp_path), 2, [chat_load(PASSAGES, seed) for seed in range(2)])
    assert rounds["bad"] == [None, None]
    for measured in (*rounds["Octavo"], *rounds["good"]):
        assert measured is not None
        sizes = [answer.num_prompt_tokens for answer in measured.answers]  # here: messages
        assert sorted(sizes) == sorted([2 * turn for turn in range(1, NUM_TURNS + 1)] * NUM_USERS)
        assert {answer.num_tokens for answer in measured.answers} == {NUM_REPLY_TOKENS}


class MadeLLM:
    """Answers as the made-up server does, or otherwise."""

    def __init__(self, same: bool = True) -> None:
        self._same = same

    def generate(self, prompts: list[str], params: object, use_tqdm: bool) -> list[SimpleNamespace]:
        texts = ["".join(made_up_server.words(prompt, NUM_TOKENS)) if self._same else "" for prompt in prompts]
        return [SimpleNamespace(outputs=[SimpleNamespace(text=text)]) for text in texts]

    def chat(self, messages: object, params: object, stream: bool) -> Iterator[str]:
        return iter(["a"])


def test_http_is_measured_beside_the_engine(server: Server) -> None:
    overhead = Overhead(MadeLLM(), server.port, RECIPE, made_up_server.MODEL, PASSAGES)  # type: ignore[arg-type]
    pair = overhead.streams(http_first=True)
    assert 0 < pair.client < pair.http
    assert pair.llm < pair.http
    assert [one.added > 0 for one in overhead.first_tokens(3)] == [True] * 3


def test_a_server_that_answers_otherwise_is_no_comparison(server: Server) -> None:
    overhead = Overhead(MadeLLM(same=False), server.port, RECIPE, "", PASSAGES)  # type: ignore[arg-type]
    with pytest.raises(PeerError, match="the server answers prompt 0 with"):
        overhead.streams(http_first=False)


def test_the_table_goes_to_the_results_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[tuple[str, str]] = []
    monkeypatch.setattr(serve, "OCTAVO", MadePeer("Octavo"))
    monkeypatch.setattr(serve, "PEERS", {"good": MadePeer("good")})
    monkeypatch.setattr(serve, "add_section", lambda title, text: written.append((title, text)))
    asked = ["--only", "chat", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["serve", *asked, "--work", str(tmp_path), "--write"])
    serve.main()
    [(title, text)] = written
    assert title.startswith("The server (`python -m benchmarks.serve --only chat --repeats 1")
    assert "| requests per second |" in text
    assert text in capsys.readouterr().out


@pytest.mark.parametrize("peer", [octavo, llama_cpp, vllm], ids=lambda peer: peer.NAME)
def test_every_server_is_asked_for_replies_of_one_length(peer: ServingPeer, tmp_path: Path) -> None:
    recipe = peer.serve(Place(tmp_path), 2, 8123)
    assert "8123" in recipe.command
    body = chat_body([{"role": "user", "content": "hi"}], 9, recipe, "m")
    assert body["max_tokens"] == 9
    assert body.get("min_tokens") == 9 or body.get("ignore_eos") is True


def test_the_streams_are_as_many_as_promised() -> None:
    assert (NUM_STREAMS, NUM_USERS, NUM_TURNS) == (16, 8, 6)
