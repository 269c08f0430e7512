"""A tokenizer read from a folder is the one transformers reads, and all kinds keep the same promises."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from octavo.errors import InvalidRequestError, ModelError, ModelNotFoundError, UnsupportedModelError
from octavo.text.folder_tokenizer import tokenizer_from_folder


@pytest.fixture
def folder(case: Any, tmp_path: Path) -> Path:
    """A model folder as transformers saves it."""
    case.reference.save_pretrained(tmp_path)
    return tmp_path


def change(path: Path, **fields: Any) -> None:
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**content, **fields}))


def test_folder_gives_the_ids_transformers_gives(folder: Path, varied_texts: list[str], digit_texts: list[str]) -> None:
    ours, theirs = tokenizer_from_folder(folder), AutoTokenizer.from_pretrained(folder)
    for text in [*varied_texts, *digit_texts]:
        for special in (False, True):
            assert ours.encode(text, special) == theirs(text, add_special_tokens=special)["input_ids"]
    assert ours.special_tokens == theirs.special_tokens_map
    assert ours.bos_token_id == theirs.bos_token_id


def test_folder_and_gguf_agree(folder: Path, case: Any, varied_texts: list[str]) -> None:
    ours = tokenizer_from_folder(folder)
    assert ours.vocab_size == case.ours.vocab_size
    for text in varied_texts:
        ids = ours.encode(text)
        assert ids == case.ours.encode(text)
        assert ours.decode(ids) == case.ours.decode(ids)


@pytest.mark.parametrize(("bos", "eos"), [(True, False), (False, True), (True, True), (False, False)])
def test_what_surrounds_a_text_is_for_tokenizer_json_to_say(folder: Path, bos: bool, eos: bool) -> None:
    change(folder / "tokenizer_config.json", add_bos_token=bos, add_eos_token=eos)
    ours, theirs = tokenizer_from_folder(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.encode("hi there") == theirs("hi there")["input_ids"]
    assert (
        ours.encode("hi there", add_special_tokens=False) == theirs("hi there", add_special_tokens=False)["input_ids"]
    )


def test_truncation_and_padding_in_the_file_do_nothing(folder: Path) -> None:
    file = folder / "tokenizer.json"
    expected = tokenizer_from_folder(folder).encode("a b c d e f")
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 50}, "direction": "Left", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    change(file, truncation=truncation, padding=padding)
    assert tokenizer_from_folder(folder).encode("a b c d e f") == expected


def test_special_tokens_may_be_named_in_the_older_file(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    eos = config.pop("eos_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    change(folder / "special_tokens_map.json", eos_token={"content": eos, "lstrip": False})
    assert tokenizer_from_folder(folder).special_tokens["eos_token"] == eos


def test_tokens_added_by_the_configuration_are_added(folder: Path, case: Any) -> None:
    new = case.ours.vocab_size
    change(
        folder / "tokenizer_config.json",
        added_tokens_decoder={str(new): {"content": "<extra>", "special": True}},
    )
    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer.encode("<extra>", add_special_tokens=False) == [new]
    assert tokenizer.is_special(new)
    change(folder / "tokenizer_config.json", added_tokens_decoder={str(new + 5): {"content": "<extra>"}})
    with pytest.raises(ModelError, match=f"id {new + 5}"):
        tokenizer_from_folder(folder)


@pytest.mark.parametrize("listed", [[1], "x", {"x": {}}, {"1000": {}}, {"1000": "x"}, {"1000": {"content": 5}}])
def test_added_tokens_that_make_no_sense_are_refused_with_their_file(folder: Path, listed: object) -> None:
    change(folder / "tokenizer_config.json", added_tokens_decoder=listed)
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        tokenizer_from_folder(folder)


def test_a_named_token_that_is_no_unicode_is_refused_with_its_file(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"bos_token": "\\ud800"}')
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        tokenizer_from_folder(folder)


def test_sentencepiece_model_alone_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x0b")
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.model.*save_pretrained"):
        tokenizer_from_folder(tmp_path)


def test_folder_without_a_tokenizer_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no tokenizer\.json"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[]", "\x00", "[" * 100_000])
def test_damaged_files_are_named(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(ModelError, match=name):
        tokenizer_from_folder(folder)


def test_decoders_octavo_does_not_read_are_named(folder: Path) -> None:
    change(folder / "tokenizer.json", decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    with pytest.raises(UnsupportedModelError, match="WordPiece"):
        tokenizer_from_folder(folder)


def test_a_long_text_holds_up_no_other_thread(byte_level: Any) -> None:
    text, longest = "hello world " * 150_000, 0.0
    work = threading.Thread(target=byte_level.ours.encoding, args=(text,))
    begun = last = time.perf_counter()
    work.start()
    while work.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert longest < (last - begun) / 2


@pytest.mark.parametrize("text", ["\ud800", "half \udfff pair", "\ud83d", 5, None, b"bytes", ["a"]])
def test_what_is_not_text_is_refused(case: Any, text: Any) -> None:
    for encode in (case.ours.encode, case.ours.encoding):
        with pytest.raises(InvalidRequestError) as caught:
            encode(text)
        assert caught.value.param == "prompt"


@settings(max_examples=200)
@given(text=st.text(max_size=60))
def test_byte_level_text_survives_the_round_trip(byte_level: Any, text: str) -> None:
    assert byte_level.ours.decode(byte_level.ours.encode(text), skip_special_tokens=False) == text


@settings(max_examples=200)
@given(text=st.text(max_size=60))
def test_offsets_cover_the_bytes_of_each_token(byte_level: Any, text: str) -> None:
    encoding = byte_level.ours.encoding(text, add_special_tokens=False)
    ids, offsets = encoding.ids, encoding.offsets
    assert ids == byte_level.ours.encode(text, add_special_tokens=False)
    for token_id, (start, end) in zip(ids, offsets, strict=True):
        assert byte_level.ours.token_bytes(token_id) in text[start:end].encode()
    assert [end for _, end in offsets] == sorted(end for _, end in offsets)
    assert not text or offsets[-1][1] == len(text)


def test_white_space_tokens_have_whole_offsets(folder: Path) -> None:
    """Trimmed offsets would put a breakpoint one token late."""
    change(
        folder / "tokenizer.json",
        post_processor={
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
    )
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("add_bos_token", None)
    config.pop("add_eos_token", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    offsets = tokenizer_from_folder(folder).encoding("a \n\n b", add_special_tokens=False).offsets
    assert sorted({end for _, end in offsets})[-1] == 6
    assert all(start < end for start, end in offsets)


def test_tokens_and_ids_name_each_other(case: Any) -> None:
    ours = case.ours
    for id_ in (0, 5, ours.vocab_size - 1):
        assert ours.token_id(ours.token(id_)) == id_
    for outside in (-1, ours.vocab_size, 2**40):
        assert ours.token(outside) is None
        assert ours.token_bytes(outside) == b""
    assert ours.token_id("no such token") is None


def test_a_tokenizer_that_gives_up_on_a_text_is_an_error_of_ours(folder: Path) -> None:
    """A post-processor that asks for a second text makes the library panic, and a panic is no Exception."""
    content = json.loads((folder / "tokenizer.json").read_text())
    second = [{"Sequence": {"id": "B", "type_id": 0}}]
    content["post_processor"] = {"type": "TemplateProcessing", "single": second, "pair": second, "special_tokens": {}}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = tokenizer_from_folder(folder)
    with pytest.raises(InvalidRequestError, match="tokenizer fails"):
        tokenizer.encode("the")
