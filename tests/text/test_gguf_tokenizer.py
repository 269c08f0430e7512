"""The tokenizer a GGUF file describes is the one transformers makes of it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from octavo.errors import ModelError, UnsupportedModelError
from octavo.text.gguf_tokenizer import tokenizer_from_gguf

quick = settings(max_examples=150)
any_text = st.text(max_size=80)
spiky_text = st.lists(
    st.sampled_from(
        [" ", "  ", "\n", "\t", "\r\n", "a", "é", "'s", "7", "42", "你", "😀", "<|im_end|>", "<s>", "_", "."]
    ),
    max_size=20,
).map("".join)


def as_published(case: Any) -> Any:
    """The case with the split of SmolLM's published ``tokenizer.json`` in the reference.

    transformers does not know the name ``smollm`` in a GGUF file and takes GPT-2's split instead.
    """
    reference = copy.deepcopy(case.reference)
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return case._replace(reference=reference)


@pytest.fixture(scope="module")
def published_smollm2(smollm2_case: Any) -> Any:
    return as_published(smollm2_case)


@pytest.fixture(scope="module", params=["gpt-2", "default", "smollm", "llama-bpe", "qwen2", "llama"])
def any_case(
    request: pytest.FixtureRequest,
    make_gguf: Callable[..., Any],
    byte_level_fields: dict[str, Any],
    sentencepiece_fields: dict[str, Any],
) -> Any:
    if request.param == "llama":
        return make_gguf(sentencepiece_fields)
    case = make_gguf({**byte_level_fields, "pre": request.param})
    return as_published(case) if request.param == "smollm" else case


def same_ids(case: Any, text: str) -> None:
    for special in (False, True):
        ours = case.ours.encode(text, add_special_tokens=special)
        theirs = case.reference(text, add_special_tokens=special)["input_ids"]
        assert ours == theirs, (text, [case.ours.token(i) for i in ours], case.reference.tokenize(text))


def test_ids_equal_transformers_on_varied_text(any_case: Any, varied_texts: list[str], digit_texts: list[str]) -> None:
    for text in [*varied_texts, *digit_texts, " ".join(varied_texts)]:
        same_ids(any_case, text)


@quick
@given(text=any_text | spiky_text)
def test_ids_equal_transformers_on_any_text(any_case: Any, text: str) -> None:
    same_ids(any_case, text)


@quick
@given(text=any_text | spiky_text)
def test_decoding_equals_transformers(any_case: Any, text: str) -> None:
    ids = any_case.ours.encode(text)
    for skip in (False, True):
        assert any_case.ours.decode(ids, skip) == any_case.reference.decode(ids, skip_special_tokens=skip)


def test_embedded_model_ids_equal_transformers(
    smollm2_case: Any, published_smollm2: Any, varied_texts: list[str], digit_texts: list[str]
) -> None:
    for text in varied_texts:
        same_ids(smollm2_case, text)
    for text in [*varied_texts, *digit_texts]:
        same_ids(published_smollm2, text)


@quick
@example("\n\n1. First")
@given(text=any_text | spiky_text)
def test_embedded_model_ids_equal_transformers_on_any_text(published_smollm2: Any, text: str) -> None:
    same_ids(published_smollm2, text)


def test_line_breaks_before_a_digit_are_one_token_as_smollm2_was_trained(smollm2_case: Any) -> None:
    tokens = [smollm2_case.ours.token(id_) for id_ in smollm2_case.ours.encode("\n\n1.")]
    assert tokens == ["ĊĊ", "1", "."]


def test_embedded_model_names_its_tokens(smollm2_case: Any) -> None:
    ours = smollm2_case.ours
    assert ours.vocab_size == 49152
    assert (ours.bos_token_id, ours.eos_token_ids) == (1, frozenset({2}))
    assert ours.special_tokens == smollm2_case.reference.special_tokens_map
    assert ours.encode("hi") == ours.encode("hi", add_special_tokens=False)


def test_named_tokens_equal_transformers(case: Any) -> None:
    assert case.ours.special_tokens == case.reference.special_tokens_map
    assert case.ours.bos_token_id == case.reference.bos_token_id
    assert case.reference.eos_token_id in case.ours.eos_token_ids
    specials = {id_ for id_ in range(case.ours.vocab_size) if case.ours.is_special(id_)}
    assert specials == {id_ for id_, token in case.reference.added_tokens_decoder.items() if token.special}


def test_sentencepiece_adds_bos_unless_told_otherwise(sentencepiece: Any) -> None:
    assert sentencepiece.ours.encode("hi")[0] == 1
    quiet = tokenizer_from_gguf({**sentencepiece.metadata, "tokenizer.ggml.add_bos_token": False})
    assert quiet.encode("hi") == sentencepiece.ours.encode("hi", add_special_tokens=False)


def test_eos_is_added_where_the_file_asks(sentencepiece: Any) -> None:
    tokenizer = tokenizer_from_gguf({**sentencepiece.metadata, "tokenizer.ggml.add_eos_token": True})
    ids = tokenizer.encode("hi")
    assert (ids[0], ids[-1]) == (1, 2)


def test_of_equal_scores_the_longer_left_part_merges_first(
    make_gguf: Callable[..., Any], sentencepiece_fields: dict[str, Any]
) -> None:
    pieces = {"α": -9.0, "β": -9.0, "γ": -9.0, "δ": -9.0, "αβ": -1.0, "γδ": -5.0, "αβγ": -5.0}
    case = make_gguf(
        {
            **sentencepiece_fields,
            "tokens": [*sentencepiece_fields["tokens"], *pieces],
            "token_type": [*sentencepiece_fields["token_type"], *[1] * len(pieces)],
            "scores": [*sentencepiece_fields["scores"], *pieces.values()],
        }
    )
    same_ids(case, "αβγδ")
    assert [case.ours.token(id_) for id_ in case.ours.encode("αβγδ", False)] == ["▁", "αβγ", "δ"]


def test_llama3_adds_bos_where_the_file_does_not_say(byte_level: Any) -> None:
    metadata = {**byte_level.metadata, "tokenizer.ggml.pre": "llama-bpe"}
    del metadata["tokenizer.ggml.add_bos_token"]
    assert tokenizer_from_gguf(metadata).encode("hi")[0] == byte_level.ours.bos_token_id


def test_space_prefix_is_obeyed(sentencepiece: Any) -> None:
    bare = tokenizer_from_gguf({**sentencepiece.metadata, "tokenizer.ggml.add_space_prefix": False})
    assert bare.token(sentencepiece.ours.encode("the", False)[0]).startswith("▁")
    assert not bare.token(bare.encode("the", False)[0]).startswith("▁")
    assert bare.decode(bare.encode(" the")) == " the"
    assert bare.decode(bare.encode("the")) == "the"


def test_end_of_turn_is_taken_from_the_file_or_found_by_name(byte_level: Any) -> None:
    tokens = byte_level.metadata["tokenizer.ggml.tokens"]
    im_end, eot = tokens.index("<|im_end|>"), tokens.index("<|eot_id|>")
    assert byte_level.ours.eos_token_ids == {im_end, eot}
    named = tokenizer_from_gguf({**byte_level.metadata, "tokenizer.ggml.eot_token_id": 0})
    assert named.eos_token_ids == {im_end, 0}


def test_tokens_outside_the_byte_alphabet_stay_whole(byte_level: Any) -> None:
    metadata = dict(byte_level.metadata)
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<｜User｜>", "   "]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 3, 4]
    tokenizer = tokenizer_from_gguf(metadata)
    last = tokenizer.vocab_size - 1
    assert tokenizer.vocab_size == len(metadata["tokenizer.ggml.tokens"])
    assert tokenizer.encode("<｜User｜>") == [last - 1]
    assert tokenizer.decode([last - 1, last], skip_special_tokens=False) == "<｜User｜>   "


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"model": "bert"}, UnsupportedModelError, "'bert'"),
        ({"model": None}, ModelError, "tokenizer.ggml.model"),
        ({"pre": "deepseek-coder"}, UnsupportedModelError, "'deepseek-coder'.*qwen2"),
        ({"tokens": None}, ModelError, "tokenizer.ggml.tokens"),
        ({"tokens": [1, 2]}, ModelError, "list of str"),
        ({"token_type": [1, 1]}, ModelError, "token_type 2"),
        ({"merges": ["a b c"]}, ModelError, "'a b c'"),
        ({"merges": ["zzz qqq"]}, ModelError, "does not fit"),
        ({"merges": None}, ModelError, "merges"),
        ({"bos_token_id": 10**6}, ModelError, "1000000.*ids 0 to"),
    ],
)
def test_bad_metadata_is_refused_by_name(
    byte_level: Any, change: dict[str, Any], error: type[Exception], says: str
) -> None:
    metadata = {**byte_level.metadata, **{f"tokenizer.ggml.{key}": value for key, value in change.items()}}
    with pytest.raises(error, match=says):
        tokenizer_from_gguf(metadata)


@pytest.mark.parametrize("name", ["$A", "$B", "::0", "a b:0", "<s>:1", " "])
def test_a_token_put_around_a_text_may_be_spelt_in_any_way(sentencepiece_fields: dict[str, Any], name: str) -> None:
    """What a post-processor's template means by such a text is not what the vocabulary means by it."""
    tokens = [name if token == "<s>" else token for token in sentencepiece_fields["tokens"]]
    fields = {**sentencepiece_fields, "tokens": tokens}
    tokenizer = tokenizer_from_gguf({f"tokenizer.ggml.{key}": value for key, value in fields.items()})
    assert tokenizer.encode("the")[0] == tokens.index(name) == tokenizer.bos_token_id


def test_a_token_of_a_hundred_thousand_characters_costs_no_more_than_its_vocabulary_can_cut_it_into(
    sentencepiece_fields: dict[str, Any],
) -> None:
    """All 100,000 ways to cut it would be ten thousand million characters."""
    grown = {
        "tokens": [*sentencepiece_fields["tokens"], "a" * 100_000],
        "token_type": [*sentencepiece_fields["token_type"], 1],
        "scores": [*sentencepiece_fields["scores"], 0.0],
    }
    fields = {**sentencepiece_fields, **grown}
    began = time.monotonic()
    tokenizer_from_gguf({f"tokenizer.ggml.{key}": value for key, value in fields.items()})
    assert time.monotonic() - began < 30
