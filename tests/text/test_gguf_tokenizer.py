"""The tokenizer a GGUF file describes is the one transformers makes of it, or the one its model was published with."""

from __future__ import annotations

import copy
import io
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers, pre_tokenizers

from octavo.errors import ModelError, UnsupportedModelError
from octavo.text.gguf_tokenizer import tokenizer_from_gguf

quick = settings(max_examples=80)
any_text = st.text(max_size=80)
spiky_text = st.lists(
    st.sampled_from(
        [
            " ",
            "  ",
            "\n",
            "\t",
            "\r\n",
            "a",
            "é",
            "'s",
            "7",
            "42",
            "你",
            "😀",
            "<|im_end|>",
            "<s>",
            "<|user|>",
            "e\u0301",
            "aB",
            "/",
        ]
    ),
    max_size=20,
).map("".join)


BYTE_LEVEL = [
    "gpt-2",
    "default",
    "smollm",
    "refact",
    "llama-bpe",
    "smaug-bpe",
    "dbrx",
    "qwen2",
    "olmo",
    "gpt-4o",
    "tekken",
]
WHOLE_WORDS = ["llama-bpe", "smaug-bpe", "tekken"]
PHI3_TOKENS = ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]


def as_published(case: Any, name: str) -> Any:
    """The case with what the published ``tokenizer.json`` has and transformers' conversion has not."""
    reference = copy.deepcopy(case.reference)
    backend = reference.backend_tokenizer
    if name in ("smollm", "refact"):
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if name in ("qwen2", "olmo"):
        backend.normalizer = normalizers.NFC()
    if name in WHOLE_WORDS:
        backend.model.ignore_merges = True
    if name == "phi3":
        state = json.loads(backend.to_str())
        for token in state["added_tokens"]:
            token["rstrip"] = token["content"] in ("</s>", *PHI3_TOKENS[1:])
        reference._tokenizer = Backend.from_str(json.dumps(state))
    return case._replace(reference=reference)


@pytest.fixture(scope="module")
def published_smollm2(smollm2_case: Any) -> Any:
    return as_published(smollm2_case, "smollm")


@pytest.fixture(scope="module")
def phi3(make_gguf: Callable[..., Any], sentencepiece_fields: dict[str, Any]) -> Any:
    """A vocabulary as Phi-3 has it: control tokens at its end, none of them Mistral's."""
    kept = len(sentencepiece_fields["tokens"]) - 2
    fields = {key: value[:kept] if isinstance(value, list) else value for key, value in sentencepiece_fields.items()}
    fields["tokens"] = [*fields["tokens"], *PHI3_TOKENS]
    fields["token_type"] = [3, *fields["token_type"][1:], *[3] * len(PHI3_TOKENS)]  # "<unk>" is one as well
    fields["scores"] = [*fields["scores"], *[-1000.0] * len(PHI3_TOKENS)]
    return as_published(make_gguf(fields, "phi3"), "phi3")


@pytest.fixture(scope="module", params=[*BYTE_LEVEL, "mistral", "phi3"])
def any_case(request: pytest.FixtureRequest, make_gguf: Callable[..., Any], byte_level_fields: dict[str, Any]) -> Any:
    if request.param == "mistral":
        return request.getfixturevalue("sentencepiece")
    if request.param == "phi3":
        return request.getfixturevalue("phi3")
    return as_published(make_gguf({**byte_level_fields, "pre": request.param}), request.param)


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
    assert (ours.bos_token_id, ours.eos_token_ids) == (1, frozenset({0, 2}))
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


def test_without_scores_of_its_own_a_vocabulary_is_in_order_of_merges(
    sentencepiece: Any, sentencepiece_fields: dict[str, Any], varied_texts: list[str]
) -> None:
    fields = {**sentencepiece_fields, "scores": [-1000.0] * len(sentencepiece_fields["scores"])}
    tokenizer = tokenizer_from_gguf({f"tokenizer.ggml.{key}": value for key, value in fields.items()})
    for text in varied_texts:
        assert tokenizer.encode(text) == sentencepiece.ours.encode(text)


@pytest.mark.parametrize("name", ["llama-bpe", "tekken"])
def test_bos_is_added_where_the_file_does_not_say(byte_level: Any, name: str) -> None:
    metadata = {**byte_level.metadata, "tokenizer.ggml.pre": name}
    del metadata["tokenizer.ggml.add_bos_token"]
    assert tokenizer_from_gguf(metadata).encode("hi")[0] == byte_level.ours.bos_token_id


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_a_word_that_is_a_token_needs_no_merges_where_the_model_was_trained_so(byte_level: Any, name: str) -> None:
    metadata = {**byte_level.metadata, "tokenizer.ggml.pre": name}
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "Ġxylophonics"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]
    tokenizer = tokenizer_from_gguf(metadata)
    whole = tokenizer.encode(" xylophonics", False) == [tokenizer.vocab_size - 1]
    assert whole == (name in WHOLE_WORDS)


def test_space_prefix_is_obeyed(sentencepiece: Any) -> None:
    bare = tokenizer_from_gguf({**sentencepiece.metadata, "tokenizer.ggml.add_space_prefix": False})
    assert bare.token(sentencepiece.ours.encode("the", False)[0]).startswith("▁")
    assert not bare.token(bare.encode("the", False)[0]).startswith("▁")
    assert bare.decode(bare.encode(" the")) == " the"
    assert bare.decode(bare.encode("the")) == "the"


def test_white_space_after_phi3s_own_tokens_belongs_to_them(phi3: Any) -> None:
    tokens = [phi3.ours.token(id_) for id_ in phi3.ours.encode("<|user|>\nthe<|end|>\n<|assistant|>\n", False)]
    assert tokens == ["<|user|>", "▁the", "<|end|>", "<|assistant|>"]
    assert phi3.ours.decode(phi3.ours.encode("<|endoftext|>\n", False), False) == "<|endoftext|> \n"


def test_a_text_that_begins_with_a_space_keeps_it(phi3: Any, sentencepiece: Any) -> None:
    """Llama 2's way and Phi-3's. Mistral's newer vocabularies were published without it."""
    assert phi3.ours.decode(phi3.ours.encode(" the")) == " the"
    assert sentencepiece.ours.decode(sentencepiece.ours.encode(" the")) == "the"


def test_a_reply_ends_where_the_file_says_or_the_vocabulary(byte_level: Any) -> None:
    tokens = byte_level.metadata["tokenizer.ggml.tokens"]
    ends = {tokens.index(token) for token in ("<|im_end|>", "<|eot_id|>", "<|endoftext|>")}
    assert byte_level.ours.eos_token_ids == ends
    named = tokenizer_from_gguf(
        {**byte_level.metadata, "tokenizer.ggml.eot_token_id": 300, "tokenizer.ggml.eom_token_id": 301}
    )
    assert named.eos_token_ids == {*ends, 300, 301}


@pytest.mark.parametrize(
    ("family", "eos", "others", "ends"),
    [
        ("Gemma 2 and 3", "<eos>", ["<start_of_turn>", "<end_of_turn>"], {"<eos>", "<end_of_turn>"}),
        ("Phi-4-mini", "<|endoftext|>", ["<|user|>", "<|end|>"], {"<|endoftext|>", "<|end|>"}),
        ("Qwen 2.5 and 3", "<|im_end|>", ["<|endoftext|>", "<|im_start|>"], {"<|im_end|>", "<|endoftext|>"}),
        (
            "Granite 3",
            "<|end_of_text|>",
            ["<|start_of_role|>", "<|end_of_role|>", "<fim_prefix>"],
            {"<|end_of_text|>"},
        ),
        ("OLMo 2", "<|endoftext|>", ["<|endofprompt|>", "<|im_end|>"], {"<|endoftext|>", "<|im_end|>"}),
    ],
)
def test_a_reply_ends_as_its_family_ends_it(
    byte_level: Any, family: str, eos: str, others: list[str], ends: set[str]
) -> None:
    old = byte_level.metadata["tokenizer.ggml.tokens"]
    kept = [
        token for token, kind in zip(old, byte_level.metadata["tokenizer.ggml.token_type"], strict=True) if kind == 1
    ]
    metadata = {**byte_level.metadata, "tokenizer.ggml.tokens": [*kept, eos, *others]}
    metadata["tokenizer.ggml.token_type"] = [1] * len(kept) + [3] * (1 + len(others))
    for key in ("bos", "unknown", "padding"):
        del metadata[f"tokenizer.ggml.{key}_token_id"]
    tokenizer = tokenizer_from_gguf({**metadata, "tokenizer.ggml.eos_token_id": len(kept)})
    assert {tokenizer.token(id_) for id_ in tokenizer.eos_token_ids} == ends
    assert all(tokenizer.is_special(id_) for id_ in tokenizer.eos_token_ids)


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


class Trained:
    """A vocabulary trained by sentencepiece itself, and as llama.cpp's converter writes it."""

    def __init__(self, corpus: list[str], space_prefix: bool, kept: Sequence[str]) -> None:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([line for text in corpus for line in text.split("\n") if line.strip()]),
            model_writer=model,
            model_type="bpe",
            vocab_size=900,
            byte_fallback=True,
            character_coverage=0.99,
            add_dummy_prefix=space_prefix,
            remove_extra_whitespaces=False,
            normalization_rule_name="identity",
            user_defined_symbols=list(kept),
            control_symbols=["<start_of_turn>", "<end_of_turn>"],
            minloglevel=2,
        )
        self.reference = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        pieces = [self.reference.id_to_piece(id_) for id_ in range(self.reference.vocab_size())]
        self.fields = {
            "model": "llama",
            "tokens": [piece.replace("▁", " ") if piece in kept else piece for piece in pieces],
            "token_type": [4 if piece in kept else self._type(id_) for id_, piece in enumerate(pieces)],
            "scores": [-1000.0 if piece in kept else self.reference.get_score(id_) for id_, piece in enumerate(pieces)],
            "unknown_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "add_space_prefix": space_prefix,
        }
        self.ours = tokenizer_from_gguf({f"tokenizer.ggml.{key}": value for key, value in self.fields.items()})

    def _type(self, id_: int) -> int:
        kinds = {2: self.reference.is_unknown, 3: self.reference.is_control, 6: self.reference.is_byte}
        return next((number for number, holds in kinds.items() if holds(id_)), 1)


@pytest.fixture(scope="module")
def gemma(corpus: list[str]) -> Trained:
    """No space before a text; runs of line breaks and of spaces are tokens that are kept whole."""
    return Trained(corpus, space_prefix=False, kept=["\n\n", "\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁", "<table>"])


@pytest.fixture(scope="module")
def llama2(corpus: list[str]) -> Trained:
    return Trained(corpus, space_prefix=True, kept=[])


runs = st.lists(
    st.sampled_from([" ", "  ", "     ", " " * 9, "\n", "\n\n", "\n" * 7, "the", "▁▁", "é", "<table>", "x"])
)


def same_as_sentencepiece(trained: Trained, text: str) -> None:
    text = text.replace("\0", "")  # which ends a text for sentencepiece
    assert trained.ours.encode(text, False) == trained.reference.encode(text)
    assert trained.ours.decode(trained.ours.encode(text, False)) == text.replace("▁", " ")


@quick
@given(text=any_text | runs.map("".join))
def test_gemmas_ids_and_text_equal_sentencepieces_own(gemma: Trained, text: str) -> None:
    same_as_sentencepiece(gemma, text)


@quick
@given(text=any_text | runs.map("".join))
def test_llama2s_ids_and_text_equal_sentencepieces_own(llama2: Trained, text: str) -> None:
    same_as_sentencepiece(llama2, text)


def test_gemma_equals_transformers_too(make_gguf: Callable[..., Any], gemma: Trained, varied_texts: list[str]) -> None:
    case = make_gguf(gemma.fields, "gemma2")
    for text in [*varied_texts, "a  b   c    d", "\n\n\n\n\nx"]:
        same_ids(case, text)
        ids = case.ours.encode(text)
        assert case.ours.decode(ids) == case.reference.decode(ids, skip_special_tokens=True)
