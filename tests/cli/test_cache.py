"""``octavo cache`` on a folder that nobody has: what it shows, what it changes, and what it refuses."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tier_blocks import block, data_of, open_tier, origin, slabs, store

from octavo import cli
from octavo.cli.cache.tables import ago, size
from octavo.config import default_kv_disk
from octavo.server.keys import cache_salt, server_secret
from octavo.tiers.folder import TierFolder

Cache = Callable[..., tuple[int, str, str]]
OURS = [block(n) for n in range(3)]
BRANCH = [*OURS[:2], block(2, "other"), block(3, "other")]
SYSTEM = "the quick brown fox jumps over the lazy dog, and the dog sleeps on"


@pytest.fixture
def hers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Blocks of the tenant alice of a server of this user."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return [block(n, of=origin(tenant=cache_salt(server_secret(), "alice"))) for n in range(5)]


@pytest.fixture
def folder(hers: list[Any]) -> Path:
    """The default one, with what nobody and what alice stored."""
    tier = open_tier(default_kv_disk())
    store(tier, *OURS, *hers)
    tier.close()
    return default_kv_disk()


@pytest.fixture
def cache(capsys: pytest.CaptureFixture[str]) -> Cache:
    def run(*arguments: object) -> tuple[int, str, str]:
        status = cli.main(["cache", *map(str, arguments)])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


def found(cache: Cache, *arguments: object) -> Any:
    status, out, err = cache(*arguments, "--json")
    assert status == 0, err
    return json.loads(out)


def id_of(chain: list[Any]) -> str:
    return str(chain[-1].key.block_hash.hex()[:12])


def test_prefixes_are_listed_with_whose_they_are(folder: Path, hers: list[Any], cache: Cache) -> None:
    listed = found(cache, "ls")
    assert {each["id"]: each["num_tokens"] for each in listed["prefixes"]} == {id_of(OURS): 48, id_of(hers): 80}
    assert listed["num_blocks"] == 8 and listed["folder"] == str(folder)
    assert [each["id"] for each in found(cache, "ls", "--tenant", "alice")["prefixes"]] == [id_of(hers)]
    assert [each["id"] for each in found(cache, "ls", "--tenant", "")["prefixes"]] == [id_of(OURS)]
    assert found(cache, "ls", "--tenant", "bob")["prefixes"] == found(cache, "ls", "-m", "other")["prefixes"] == []
    status, out, _ = cache("ls")
    assert status == 0 and id_of(OURS) in out and id_of(hers) in out and "2 prefixes in 8 blocks" in out


def test_looking_changes_nothing_but_the_index_and_the_lock(folder: Path, cache: Cache) -> None:
    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".slab"}

    before = files()
    for command in ("ls", "stat", "verify"):
        assert cache(command)[0] == 0
    assert files() == before
    opened = TierFolder(folder, limit=2**30)
    assert len(opened) == 8
    opened.close()


def test_a_folder_that_is_not_there_holds_nothing_and_is_not_made(tmp_path: Path, cache: Cache) -> None:
    nowhere = tmp_path / "nowhere"
    for command in (["ls"], ["stat"], ["verify"], ["clear"]):
        status, out, _ = cache(*command, "--kv-disk", nowhere)
        assert status == 0 and str(nowhere) in out
        assert found(cache, *command, "--kv-disk", nowhere)["num_blocks" if command[0] != "verify" else "num_ok"] == 0
    status, _, err = cache("pin", "0123", "--kv-disk", nowhere)
    assert status == 1 and f"nothing is kept in {nowhere}" in err
    assert not nowhere.exists()


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path, cache: Cache) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "letter.txt").write_text("Dear all")
    assert cache("ls", "--kv-disk", tmp_path)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_folder_that_others_may_enter_is_refused(folder: Path, cache: Cache) -> None:
    folder.chmod(0o755)
    status, _, err = cache("ls")
    assert status == 1 and "chmod 700" in err
    status, _, err = cache("ls", "--kv-disk", folder / "lock")
    assert status == 1 and "cannot be used as a disk tier" in err


def test_stat_says_how_much_it_is_and_whose(folder: Path, cache: Cache) -> None:
    status, out, _ = cache("stat")
    assert status == 0 and "8 blocks" in out and "model bf16" in out and "sha256:" in out
    usage = found(cache, "stat")
    assert usage["limit"] is None
    assert [part["num_blocks"] for part in usage["tenants"]] == [5, 3]


def test_verify_fails_where_something_was_damaged_and_once(folder: Path, cache: Cache) -> None:
    status, out, _ = cache("verify")
    assert status == 0 and out.startswith("8 blocks are as they were stored (")
    with slabs(folder)[0].open("r+b") as file:
        file.seek(8192 + 1000)
        file.write(b"something else")
    status, out, err = cache("verify")
    assert status == 1 and "7 blocks are as they were stored; 1 were damaged and are gone" in out
    assert "verifying" in err
    assert found(cache, "verify") | {"seconds": 0} == {
        "num_ok": 7,
        "num_damaged": 0,
        "num_foreign": 0,
        "num_unreadable": 0,
        "num_bytes": 7 * 8192,
        "seconds": 0,
    }


def test_clear_asks_and_without_a_terminal_wants_it_said(
    folder: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, err = cache("clear")
    assert status == 1 and "8 blocks" in err and "--yes" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text, err: "Forget 8 blocks" in text and not err)
    status, _, err = cache("clear")
    assert status == 1 and "nothing was forgotten" in err
    assert len(found(cache, "ls")["prefixes"]) == 2
    monkeypatch.setattr("typer.confirm", lambda text, err: True)
    status, out, _ = cache("clear")
    assert status == 0 and out.startswith("forgot 8 blocks")
    assert found(cache, "ls")["prefixes"] == []


def test_a_tenants_bytes_are_gone_from_the_files(folder: Path, hers: list[Any], cache: Cache) -> None:
    assert found(cache, "clear", "--tenant", "alice", "--yes")["num_blocks"] == 5
    files = b"".join(path.read_bytes() for path in slabs(folder))
    assert not any(data_of(each)[:64] in files for each in hers)
    assert all(data_of(each)[:64] in files for each in OURS)


def test_a_prefix_goes_but_for_what_others_begin_with(folder: Path, cache: Cache) -> None:
    tier = open_tier(folder)
    store(tier, *BRANCH)
    tier.close()
    assert found(cache, "clear", id_of(BRANCH), "--yes")["num_blocks"] == 2
    assert id_of(OURS) in {each["id"] for each in found(cache, "ls")["prefixes"]}
    status, _, err = cache("clear", id_of(OURS), "--tenant", "alice", "--yes")
    assert status == 1 and "give no tenant or model with them" in err


def test_pins_are_shown_and_undone(folder: Path, cache: Cache) -> None:
    assert cache("pin", id_of(OURS)[:6])[:2] == (0, "pinned 3 blocks, 3 of them for the first time\n")
    assert [each["is_pinned"] for each in found(cache, "ls", "--tenant", "")["prefixes"]] == [True]
    assert "pinned" in cache("ls")[1]
    assert cache("unpin", id_of(OURS))[:2] == (0, "unpinned 3 blocks\n")
    status, _, err = cache("pin", "xyz")
    assert status == 1 and "no stored prefix has the id 'xyz'" in err


def test_a_tenant_that_cannot_be_one_is_refused(folder: Path, cache: Cache) -> None:
    for name in ("a b", "alice,", "sha256:", "sha256:xyz"):
        status, _, err = cache("ls", "--tenant", name)
        assert status == 1 and repr(name.split(",")[-1]) in err
    assert found(cache, "ls", "--tenant", "bob, alice")["prefixes"] == found(cache, "ls", "--tenant", "*")["prefixes"]


def test_sizes_and_times_are_readable() -> None:
    now = time.time()
    assert [ago(now - seconds) for seconds in (0, 59, 61, 7300, 3 * 86400)] == [
        "0 s ago",
        "59 s ago",
        "1 min ago",
        "2 h ago",
        "3 d ago",
    ]
    assert ago(None) == "-" and ago(now + 100) == "0 s ago"
    assert [size(each) for each in (0, 2**20, 3 * 2**29)] == ["0.0 MiB", "1.0 MiB", "1.50 GiB"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2 of FILE is not JSON"),
        ("[" * 100_000, "line 2 of FILE is not JSON"),
        ("17", "line 2 of FILE is not a JSON object with prompt or messages"),
        ("{}", "line 2 of FILE: there is nothing to cache"),
        ('{"prompt": 7}', "line 2 of FILE: prompt: input should be a valid string; got 7"),
        ('{"text": "x"}', "line 2 of FILE: text is not a parameter"),
        (
            '{"prompt": "x", "messages": [{"role": "user", "content": "x"}]}',
            "line 2 of FILE: prompt is a text of its own",
        ),
        ('{"messages": [{"role": "nobody", "content": "x"}]}', "line 2 of FILE: messages[0].role must be one of"),
        ('{"prompt": "x", "pin": 1}', "line 2 of FILE: pin: input should be a valid boolean; got 1"),
    ],
)
def test_a_line_that_cannot_be_warmed_is_named(
    line: str, why: str, tmp_path: Path, assert_one_line_error_in_process: Callable[..., None]
) -> None:
    file = tmp_path / "warm.jsonl"
    file.write_text(f'{{"prompt": "The first one is right."}}\n{line}\n')
    assert_one_line_error_in_process(["cache", "warm", str(file)], 1, why.replace("FILE", repr(str(file))))


def test_a_warm_file_that_cannot_be_read_is_refused(
    tmp_path: Path, assert_one_line_error_in_process: Callable[..., None]
) -> None:
    assert_one_line_error_in_process(["cache", "warm", str(tmp_path / "none")], 1, "No such file")
    (tmp_path / "latin").write_bytes(b'{"prompt": "\xe9"}')
    assert_one_line_error_in_process(["cache", "warm", str(tmp_path / "latin")], 1, "it is not UTF-8 text")
    assert_one_line_error_in_process(["serve", "--warm", str(tmp_path / "none")], 1, "No such file")


@pytest.fixture
def warm_file(tmp_path: Path) -> Path:
    file = tmp_path / "warm.jsonl"
    lines = [{"messages": [{"role": "system", "content": SYSTEM}], "pin": True}, {"prompt": SYSTEM, "tenant": "alice"}]
    file.write_text("\n\n".join(map(json.dumps, lines)))
    return file


def test_what_is_warmed_is_stored_once_however_often_it_is_warmed(
    tiny_model: Path, warm_file: Path, tmp_path: Path, hers: list[Any], cache: Cache
) -> None:
    command = ("warm", warm_file, tiny_model, "--kv-memory", "1MiB", "--kv-disk", tmp_path / "kv")
    first, again = found(cache, *command), found(cache, *command)
    assert [each["line"] for each in first["warmed"]] == [1, 3]
    assert first["num_cached_tokens"] == 0 and first["num_stored_tokens"] == first["num_storable_tokens"] > 0
    assert again["num_stored_tokens"] == first["num_stored_tokens"]
    listed = found(cache, "ls", "--kv-disk", tmp_path / "kv")["prefixes"]
    ours, theirs = (each["id"] for each in first["warmed"])
    assert {each["id"]: each["is_pinned"] for each in listed} == {ours: True, theirs: False}
    assert [
        each["id"] for each in found(cache, "ls", "--kv-disk", tmp_path / "kv", "--tenant", "alice")["prefixes"]
    ] == [theirs]
    assert stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o700
    status, out, _ = cache(*command)
    assert status == 0 and ours in out and "are on the disk" in out


def test_a_prompt_that_is_too_long_is_named_by_its_line(
    tiny_model: Path, tmp_path: Path, context: int, cache: Cache
) -> None:
    file = tmp_path / "warm.jsonl"
    file.write_text(json.dumps({"prompt": "the fox " * context}))
    status, _, err = cache("warm", file, tiny_model, "--kv-memory", "1MiB", "--kv-disk", tmp_path / "kv")
    assert status == 1 and f"line 1 of {str(file)!r}: " in err and f"{context}" in err


def test_what_has_no_room_on_the_disk_fails_and_says_how_much(tiny_model: Path, tmp_path: Path, cache: Cache) -> None:
    file = tmp_path / "warm.jsonl"
    file.write_text(json.dumps({"prompt": "the quick brown fox " * 30}))
    limit = ("--kv-disk-limit", str(2**21 + 20_000))
    status, out, _ = cache(
        "warm", file, tiny_model, "--kv-memory", "1MiB", "--kv-disk", tmp_path / "kv", *limit, "--json"
    )
    assert status == 1 and 0 < json.loads(out)["num_stored_tokens"] < json.loads(out)["num_storable_tokens"]


@pytest.fixture
def serving(environment: dict[str, str], tiny_model: Path, warm_file: Path, tmp_path: Path) -> Iterator[str]:
    """``octavo serve --warm``, and its address."""
    arguments = ["--port", "0", "--kv-memory", "1MiB", "--kv-disk", str(tmp_path / "kv"), "--warm", str(warm_file)]
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo", "serve", str(tiny_model), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://"), process.stderr.read()
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_server_is_warm_when_it_is_ready_and_answers_for_its_folder(
    serving: str, tmp_path: Path, cache: Cache
) -> None:
    listed = found(cache, "ls", "--kv-disk", tmp_path / "kv")["prefixes"]
    assert sorted(each["is_pinned"] for each in listed) == [False, True]
    assert found(cache, "stat", "--kv-disk", tmp_path / "kv")["limit"] is not None
    model = httpx.get(f"{serving}/v1/models").json()["data"][0]["id"]
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "fox"}]
    body = {"model": model, "messages": messages, "max_tokens": 1}
    usage = httpx.post(f"{serving}/v1/chat/completions", json=body, timeout=60).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 16
