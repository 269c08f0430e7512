"""API keys: what a file may hold, what is kept of a key, and what tenants' caches are salted with."""

from __future__ import annotations

import hashlib
import hmac
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.server import keys
from octavo.server.keys import Key, KeyRing, append_key, environment_keys, new_key, read_keys, server_secret

SECRET = b"s" * 32


def file_of(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_what_is_appended_is_read_again_and_opens_the_server(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    texts = [new_key(), new_key(), new_key()]
    made = [Key.of(texts[0], "alice"), Key.of(texts[1], "alice"), Key.of(texts[2], "root", is_admin=True)]
    for key in made:
        append_key(path, key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_keys(path) == made
    found = [KeyRing(read_keys(path), SECRET).find(text) for text in texts]
    assert [(caller.tenant, caller.is_admin) for caller in found if caller] == [
        ("alice", False),
        ("alice", False),
        ("root", True),
    ]


def test_a_file_holds_the_sha256_and_never_the_key(tmp_path: Path) -> None:
    text = new_key()
    append_key(tmp_path / "keys", Key.of(text, "alice"))
    kept = (tmp_path / "keys").read_text()
    assert kept == f"alice sha256:{hashlib.sha256(text.encode()).hexdigest()}\n"
    assert text not in repr(Key.of(text, "alice"))


def test_comments_and_empty_lines_are_no_keys_and_a_missing_last_newline_does_no_harm(tmp_path: Path) -> None:
    first = Key.of("one", "alice")
    path = file_of(tmp_path, f"# who is who\n\n   {first.line}   ")
    append_key(path, Key.of("two", "bob"))
    assert [key.tenant for key in read_keys(path)] == ["alice", "bob"]


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        "octavo-the-key-itself",
        "alice octavo-the-key-itself",
        f"alice sha256:{'0' * 63}",
        f"alice sha256:{'0' * 64} root",
        f"alice sha256:{'0' * 64} admin too",
        f"al/ice sha256:{'0' * 64}",
        f"alice md5:{'0' * 32}",
    ],
)
def test_a_line_that_is_no_key_is_named_and_not_quoted(tmp_path: Path, line: str) -> None:
    path = file_of(tmp_path, f"# comment\n{line}\n")
    with pytest.raises(ConfigError, match="line 2 of") as refused:
        read_keys(path)
    assert "octavo-the-key-itself" not in str(refused.value)


def test_a_file_that_others_may_write_is_refused_and_one_that_they_may_read_is_not(tmp_path: Path) -> None:
    line = Key.of("one", "alice").line
    for mode in (0o620, 0o602):
        with pytest.raises(ConfigError, match="chmod"):
            read_keys(file_of(tmp_path, line, mode))
    assert read_keys(file_of(tmp_path, line, 0o644))
    assert keys.is_readable_by_others(tmp_path / "keys")


def test_a_file_that_cannot_be_read_is_a_readable_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_keys(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "binary").chmod(0o600)
    with pytest.raises(ConfigError, match="UTF-8"):
        read_keys(tmp_path / "binary")
    with pytest.raises(ConfigError, match="directory"):
        read_keys(tmp_path)


def test_a_file_of_something_else_gets_no_key(tmp_path: Path) -> None:
    path = file_of(tmp_path, "dear diary\n")
    with pytest.raises(ConfigError):
        append_key(path, Key.of("one", "alice"))
    assert path.read_text() == "dear diary\n"


def test_no_keys_and_equal_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match="no API keys"):
        KeyRing([], SECRET)
    with pytest.raises(ConfigError, match="twice"):
        KeyRing([Key.of("one", "alice"), Key.of("one", "bob")], SECRET)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True), st.text())
def test_a_key_is_found_if_and_only_if_it_is_one_of_them(texts: list[str], asked: str) -> None:
    ring = KeyRing([Key.of(text, f"t{number}") for number, text in enumerate(texts)], SECRET)
    found = ring.find(asked)
    assert (found is not None) == (asked in texts)
    assert all((caller := ring.find(text)) is not None and caller.tenant == f"t{n}" for n, text in enumerate(texts))


def test_every_key_is_compared_whichever_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = KeyRing([Key.of(text, "alice") for text in "abcde"], SECRET)
    compared: list[bytes] = []
    in_constant_time = hmac.compare_digest

    def compare(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return in_constant_time(known, given)

    monkeypatch.setattr(keys.hmac, "compare_digest", compare)
    for asked in ("a", "e", "wrong"):
        compared.clear()
        ring.find(asked)
        assert len(compared) == 5


def test_a_tenant_s_salt_is_the_same_under_all_its_keys_and_nobody_else_s() -> None:
    ring = KeyRing([Key.of("1", "alice"), Key.of("2", "alice"), Key.of("3", "bob")], SECRET)
    other = KeyRing([Key.of("1", "alice")], b"t" * 32)
    salts = [caller.cache_salt for text in "123" if (caller := ring.find(text))]
    assert salts[0] == salts[1] == hmac.new(SECRET, b"alice", "sha256").digest()
    elsewhere = other.find("1")
    assert elsewhere is not None
    assert len({salts[0], salts[2], elsewhere.cache_salt, b""}) == 4


def test_the_environment_gives_a_key_for_everybody_and_one_for_the_admin() -> None:
    assert environment_keys({}) == []
    found = environment_keys({"OCTAVO_API_KEY": "one", "OCTAVO_ADMIN_KEY": "two"})
    assert found == [Key.of("one", "default"), Key.of("two", "admin", is_admin=True)]


@pytest.mark.parametrize("text", ["", "two words", "caf\u00e9", "line\nbreak"])
def test_a_variable_that_no_client_could_match_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match="OCTAVO_ADMIN_KEY") as refused:
        environment_keys({"OCTAVO_ADMIN_KEY": text})
    assert not text or text not in str(refused.value)


def test_the_server_s_secret_is_made_once_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(server_secret())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1 and len(found[0]) == 32
    [secret] = (tmp_path / "server").iterdir()  # nothing half-made stays beside it
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_secret_that_others_can_read_or_that_is_damaged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    server_secret()
    path = tmp_path / "server" / "secret"
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="delete it"):
        server_secret()
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match="delete it"):
        server_secret()


def salts(*groups: str) -> dict[str, bytes]:
    names = ("alice", "bob", "carol")
    ring = KeyRing([Key.of(name, name) for name in names], SECRET, groups)
    return {name: caller.cache_salt for name in names if (caller := ring.find(name)) is not None}


def test_only_tenants_of_one_group_have_one_salt() -> None:
    apart, together = salts(), salts("bob, alice")
    assert len(set(apart.values())) == 3
    assert together["alice"] == together["bob"] and together["carol"] == apart["carol"]
    assert together["alice"] not in apart.values()
    assert together == salts("alice,bob")
    assert len(set(salts("*").values())) == 1
    assert salts("*")["alice"] != salts("alice,bob,carol")["alice"]


def test_who_leaves_a_group_finds_nothing_of_it_and_leaves_nothing_of_its_own_there() -> None:
    assert salts("alice,bob,carol")["alice"] != salts("alice,bob")["alice"]
    assert salts("alice,bob")["alice"] != salts()["alice"]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (["alice,bob", "bob,carol"], "tenant 'bob' shares its cache in two groups"),
        (["alice,bob", "*"], "two groups"),
        (["alice,dave"], "alice, bob, carol, or \\* for all of them; got 'dave' in 'alice,dave'"),
        (["alice"], "at least two tenants; got 'alice'"),
        (["alice,alice"], "named twice in 'alice,alice'"),
        (["alice,"], "got '' in 'alice,'"),
    ],
)
def test_a_group_that_is_none_is_refused(groups: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        salts(*groups)
