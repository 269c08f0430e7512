"""/admin/disk, and ``octavo cache`` where a server has the folder: the same answers, for administrators alone."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import LiveServer, live_server

from octavo import cli
from octavo.async_engine import AsyncEngine
from octavo.server.keys import Key, KeyRing
from octavo.tiers.base import tenant_digest
from octavo.tiers.folder import TierFolder

SYSTEM = "You answer for a small library. Be kind, be brief, and do not make up opening hours. " * 3
SECRET = bytes(range(32))
RING = KeyRing([Key.of("root", "operator", is_admin=True), Key.of("alice", "alice"), Key.of("bob", "bob")], SECRET)
Cache = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def engine(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncEngine]:
    folder = tmp_path_factory.mktemp("disk") / "kv"
    running = AsyncEngine(
        smollm2_gguf, kv_memory="32MiB", max_model_len=512, threads=2, kv_disk=folder, kv_disk_limit="64MiB"
    )
    yield running
    running.shutdown()


@pytest.fixture
def server(engine: AsyncEngine) -> Iterator[LiveServer]:
    """With keys, and an empty folder that says where it is."""
    disk = engine.assembly.disk
    assert disk is not None
    with live_server(engine, keys=RING) as live:
        live.run(engine.reset_prefix_cache())
        disk.flush()
        disk.folder.clear()
        disk.folder.announce({"url": live.url})
        yield live


@pytest.fixture
def cache(engine: AsyncEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Run ``octavo cache`` as an administrator: its status, stdout and stderr."""
    monkeypatch.setenv("OCTAVO_ADMIN_KEY", "root")
    disk = engine.assembly.disk
    assert disk is not None

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        status = cli.main(["cache", command, *arguments, "--kv-disk", str(disk.folder.path)])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


def ask(server: LiveServer, method: str, path: str, key: str = "root", **request: Any) -> Any:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.request(method, f"{server.url}/admin/disk{path}", headers=headers, timeout=60, **request)


def chat(server: LiveServer, key: str, question: str) -> tuple[int, int]:
    """Its prompt's tokens, and how many of them were cached."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"model": server.model, "messages": messages, "max_tokens": 1}
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.post(f"{server.openai_url}/chat/completions", json=body, headers=headers, timeout=60)
    usage = answer.raise_for_status().json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def stored(server: LiveServer, key: str, question: str) -> int:
    """Ask, and have all of it on the disk. Returns how many blocks that is."""
    num_tokens, _ = chat(server, key, question)
    disk = server.engine.assembly.disk
    assert disk is not None
    disk.flush()
    return num_tokens // 16


def prefixes(server: LiveServer, **chosen: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(server, "GET", "/prefixes", params=chosen).raise_for_status().json()["prefixes"]
    return found


ENDPOINTS = [("GET", ""), ("GET", "/prefixes"), *(("POST", f"/{verb}") for verb in ("verify", "clear", "pin", "unpin"))]


@pytest.mark.parametrize(("method", "path"), [*ENDPOINTS, ("POST", "/warm")])
def test_they_are_for_administrators(server: LiveServer, method: str, path: str) -> None:
    body = {"ids": ["0"], "prompt": "x"} if method == "POST" else None
    assert ask(server, method, path, key="alice", json=body).status_code == 403
    assert ask(server, method, path, key="nobody", json=body).status_code == 401


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_a_server_without_a_disk_tier_says_so(live: LiveServer, method: str, path: str) -> None:
    body = {"ids": ["0"]} if method == "POST" else None
    answer = httpx.request(method, f"{live.url}/admin/disk{path}", json=body)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "no_disk_tier"


def test_tenants_are_told_apart_by_name_and_cleared_alone(server: LiveServer, cache: Cache) -> None:
    hers, his = stored(server, "alice", "Name a river."), stored(server, "bob", "Name a long river, and a lake.")
    assert [each["num_blocks"] for each in prefixes(server, tenant="alice")] == [hers]
    assert [each["num_blocks"] for each in prefixes(server, tenant="bob")] == [his]
    digest = tenant_digest(RING.salt_of("alice")).hex()
    assert prefixes(server, tenant=f"sha256:{digest[:9]}") == prefixes(server, tenant="alice")
    assert prefixes(server, tenant="") == prefixes(server, tenant="operator") == []
    status, out, _ = cache("ls", "--tenant", "alice", "--json")
    assert status == 0 and json.loads(out)["prefixes"] == prefixes(server, tenant="alice")
    status, out, _ = cache("clear", "--tenant", "alice", "--yes")
    assert status == 0 and out.startswith(f"forgot {hers} blocks")
    assert [each["num_blocks"] for each in prefixes(server)] == [his]
    assert ask(server, "GET", "/prefixes", params={"tenant": "a b"}).json()["error"]["param"] == "tenant"


def test_usage_is_that_of_the_folder(server: LiveServer, cache: Cache) -> None:
    blocks = stored(server, "alice", "Name a river.")
    found = ask(server, "GET", "").json()
    assert (found["num_blocks"], found["limit"]) == (blocks, 64 * 2**20)
    assert [(part["num_blocks"], part["tenant"]) for part in found["tenants"]] == [
        (blocks, tenant_digest(RING.salt_of("alice")).hex())
    ]
    status, out, _ = cache("stat", "--json")
    assert status == 0 and json.loads(out) == found
    status, out, _ = cache("stat")
    assert status == 0 and "of at most 64.0 MiB" in out and f"{blocks} blocks" in out


def test_pins_are_set_and_undone_by_a_beginning_of_an_id(server: LiveServer, cache: Cache) -> None:
    blocks = stored(server, "alice", "Name a river.")
    (prefix,) = prefixes(server)
    assert ask(server, "POST", "/pin", json={"ids": [prefix["id"][:5]]}).json() == {
        "num_blocks": blocks,
        "num_changed": blocks,
    }
    assert prefixes(server)[0]["is_pinned"]
    status, out, _ = cache("unpin", prefix["id"])
    assert (status, out) == (0, f"unpinned {blocks} blocks\n")
    assert not prefixes(server)[0]["is_pinned"]
    status, _, err = cache("pin", "nothing")
    assert status == 1 and "no stored prefix has the id 'nothing'" in err


def test_verify_says_how_far_it_is_and_drops_what_is_damaged(server: LiveServer, cache: Cache) -> None:
    blocks = stored(server, "alice", "Name a river.")
    disk = server.engine.assembly.disk
    assert disk is not None
    lines = [json.loads(line) for line in ask(server, "POST", "/verify").text.splitlines()]
    total = sum(block.place.slot_bytes for block in disk.folder.blocks())
    assert lines[0] == {"done": 0, "total": total} and lines[-2] == {"done": total, "total": total}
    assert (lines[-1]["num_ok"], lines[-1]["num_damaged"]) == (blocks, 0)
    place = disk.folder.blocks()[0].place
    (slab,) = disk.folder.path.glob(f"{place.slot_bytes}-*.slab")
    with slab.open("r+b") as file:
        file.seek(place.slot * place.slot_bytes + 2000)
        file.write(b"not what was stored")
    status, out, _ = cache("verify")
    assert status == 1 and out.startswith(f"{blocks - 1} blocks are as they were stored; 1 were damaged and are gone")
    assert cache("verify", "--json")[0] == 0
    assert not prefixes(server)[0]["is_whole"]


def test_who_hangs_up_ends_the_verification(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_early = threading.Event()

    def endless(folder: TierFolder, progress: Callable[[int, int], None]) -> None:
        end = time.monotonic() + 20
        try:
            while time.monotonic() < end:
                progress(0, 1)
                time.sleep(0.01)
        except Exception:
            ended_early.set()
            raise

    monkeypatch.setattr("octavo.server.disk_tier.verify", endless)
    with httpx.stream("POST", f"{server.url}/admin/disk/verify", headers={"authorization": "Bearer root"}) as answer:
        assert json.loads(next(answer.iter_lines())) == {"done": 0, "total": 1}
    assert ended_early.wait(10)


def test_clear_wants_to_be_told_what(server: LiveServer) -> None:
    blocks = stored(server, "alice", "Name a river.")
    for body in ({}, {"dry_run": True}, {"everything": True, "tenant": "alice"}, {"ids": ["0"], "model": "x"}):
        assert ask(server, "POST", "/clear", json=body).status_code == 400
    dry = ask(server, "POST", "/clear", json={"everything": True, "dry_run": True}).json()
    assert dry["num_blocks"] == blocks == len(prefixes(server)) * blocks
    assert ask(server, "POST", "/clear", json={"everything": True}).json() == dry
    assert prefixes(server) == []


def test_what_was_cleared_is_no_hit_and_is_computed_again(server: LiveServer) -> None:
    stored(server, "alice", "Name a river.")
    ask(server, "POST", "/clear", json={"tenant": "alice"}).raise_for_status()
    server.run(server.engine.reset_prefix_cache())
    assert chat(server, "alice", "Name a river.")[1] == 0


def test_a_system_prompt_is_warmed_for_one_tenant_and_pinned(server: LiveServer, cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "warm.jsonl"
    line = {"messages": [{"role": "system", "content": SYSTEM}], "tenant": "alice", "pin": True}
    file.write_text(f"{json.dumps(line)}\n")
    status, out, err = cache("warm", str(file), "--json")
    assert status == 0, err
    (warmed,) = json.loads(out)["warmed"]
    tokens = warmed["num_tokens"]
    assert warmed["num_cached_tokens"] == 0 and warmed["num_stored_tokens"] == tokens // 16 * 16 >= 32
    assert [(each["id"], each["is_pinned"]) for each in prefixes(server, tenant="alice")] == [(warmed["id"], True)]
    assert chat(server, "alice", "Name a river.")[1] == tokens
    assert chat(server, "bob", "Name a river.")[1] == 0
    server.run(server.engine.reset_prefix_cache())
    again = ask(server, "POST", "/warm", json=line).json()
    assert (again["id"], again["num_cached_tokens"]) == (warmed["id"], warmed["num_stored_tokens"])


def test_what_cannot_be_warmed_is_refused_by_its_field(server: LiveServer) -> None:
    for body, param in (
        ({}, "messages"),
        ({"prompt": "x", "tenant": "no name"}, "tenant"),
        ({"prompt": "word " * 600}, "prompt"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        ({"prompt": "x", "max_tokens": 1}, "max_tokens"),
    ):
        answer = ask(server, "POST", "/warm", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_a_line_that_the_server_refuses_is_named(server: LiveServer, cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "warm.jsonl"
    file.write_text(f"{json.dumps({'prompt': 'A short one.'})}\n\n{json.dumps({'prompt': 'word ' * 600})}\n")
    status, _, err = cache("warm", str(file))
    assert status == 1 and "line 3: " in err and "tokens" in err
    status, _, err = cache("warm", str(file), "--block-size", "32")
    assert status == 1 and "computes with its own model and settings" in err


def test_who_has_no_key_or_the_wrong_one_is_told_what_to_give(
    server: LiveServer, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache("ls")[0] == 0
    for key in ("alice", "nobody"):
        status, out, err = cache("ls", "--admin-key", key)
        assert (status, out) == (1, "") and server.url in err and "--admin-key or OCTAVO_ADMIN_KEY" in err
    monkeypatch.delenv("OCTAVO_ADMIN_KEY")
    status, _, err = cache("clear", "--yes")
    assert status == 1 and "the API key is missing" in err
    assert cache("ls", "--admin-key", "root")[0] == 0
    status, _, err = cache("ls", "--admin-key", "two\nlines")
    assert status == 1 and "printable ASCII" in err


def test_a_server_that_is_gone_and_a_program_that_is_none_are_told_apart(
    server: LiveServer, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = server.engine.assembly.disk
    assert disk is not None
    disk.folder.announce({"url": "http://127.0.0.1:9"})
    status, _, err = cache("ls")
    assert status == 1 and "belongs to the server at http://127.0.0.1:9, which cannot be asked" in err
    disk.folder.announce({})
    for command in (["ls"], ["warm", os.devnull]):
        status, _, err = cache(*command)
        assert status == 1 and f"process {os.getpid()} uses" in err and "Wait, or end it" in err


def test_a_proxy_is_not_asked_for_what_is_on_this_machine(
    server: LiveServer, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    assert cache("ls")[0] == 0
