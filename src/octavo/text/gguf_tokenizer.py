"""A tokenizer from the ``tokenizer.*`` metadata of a GGUF file.

A GGUF file has no ``tokenizer.json``: it has the vocabulary, the merges or scores, the special token ids,
and the *name* of the rule that splits text before merging (``tokenizer.ggml.pre``). What such a name means is
llama.cpp's to say, whose format this is. The result equals transformers' own conversion, with these
exceptions, in which transformers does not know what the file means and the model's published
``tokenizer.json`` agrees with us:

- ``smollm``, ``refact`` and their kin split off every digit before anything else. It shows after a run of white
  space: in ``"\\n\\n1"`` the line breaks are one token, as the model was trained.
- ``qwen2`` and ``olmo`` normalise text to NFC.
- ``llama-bpe``, ``smaug-bpe``, ``tekken`` and their kin take a word that is a token as it is, without merging.
- Control and user-defined tokens outside the byte alphabet (``<｜User｜>``) are kept whole.
- Runs of spaces that are user-defined tokens (Gemma) are cut from the left, the longest first, as sentencepiece
  does, where transformers merges them.
- Where every token has one score, the order of the vocabulary is the order of merges.
- Sentencepiece vocabularies other than Mistral's with ``[INST]`` put a space before a text that has one, and
  after special tokens: Llama 2, Mistral 0.1 and 0.2, and Phi-3, of which alone transformers knows.
- White space after one of Phi-3's own tokens belongs to that token.
- ``add_space_prefix`` is obeyed, and ``llama-bpe`` and ``tekken`` add bos where the file does not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from octavo.errors import ModelError, UnsupportedModelError
from octavo.text.gguf_splits import split_named
from octavo.text.pieces import byte_alphabet
from octavo.text.postprocess import keep_whole_offsets, mark_special, surround
from octavo.text.tokenizer import Tokenizer

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # tokenizer.ggml.token_type
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
_TEXT_ENDS = ("<|end_of_text|>", "<|endoftext|>", "<eos>")
_PHI3_KEEPS_SPACE_AFTER = ("<unk>", "<s>", "<|endoftext|>")


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer a GGUF file describes.

    ``metadata`` maps the file's keys to strings, numbers, and lists of them. Read are, under
    ``tokenizer.ggml.``: ``model``, ``pre``, ``tokens``, ``token_type``, ``merges``, ``scores``,
    ``add_bos_token``, ``add_eos_token``, ``add_space_prefix`` and the ids ``bos``, ``eos``, ``eot``, ``eom``,
    ``unknown``, ``padding``; and ``general.architecture``, for what Phi-3 does and its file does not say. A reply ends
    at the tokens the file names as ends, and at those whose spelling says so (``<end_of_turn>``).

    Raises:
        UnsupportedModelError: the kind of vocabulary or of splitting is one Octavo does not know; the message
            names it and lists those it knows.
        ModelError: the metadata is incomplete or contradicts itself.
    """
    fields = _Fields(metadata)
    model = fields.text("model")
    if model == "gpt2":
        backend, add_bos = _byte_level(fields)
    elif model == "llama":
        backend, add_bos = _sentencepiece(fields), True
    else:
        raise UnsupportedModelError(f"tokenizer.ggml.model is {model!r}; Octavo reads 'gpt2' and 'llama'")
    backend.add_tokens(_kept_whole(fields, sentencepiece=model == "llama"))
    ids = {name: fields.token_id(key) for name, key in _NAMED.items()}
    named = {name: fields.tokens[id_] for name, id_ in ids.items() if id_ is not None}
    ends = _ends(fields)
    special = {*ends, *(id_ for id_ in ids.values() if id_ is not None)}
    mark_special(backend, {fields.tokens[id_] for id_ in special if fields.types[id_] != _NORMAL})
    surround(
        backend,
        named.get("bos_token") if fields.flag("add_bos_token", add_bos) else None,
        named.get("eos_token") if fields.flag("add_eos_token", False) else None,
    )
    keep_whole_offsets(backend)
    return Tokenizer(backend, special_tokens=named, eos_token_ids=ends)


class _Fields:
    """The ``tokenizer.ggml.*`` keys, checked as they are read."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.architecture = metadata.get("general.architecture")
        self.tokens: list[str] = self.list_of("tokens", str)
        self.types: list[int] = self.list_of("token_type", int, [_NORMAL] * len(self.tokens))
        if len(self.types) != len(self.tokens):
            raise ModelError(
                f"tokenizer.ggml.tokens has {len(self.tokens)} entries and token_type {len(self.types)}; "
                "the file is damaged"
            )

    def get(self, key: str) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise ModelError(f"tokenizer.ggml.{key} must be text; the file has {value!r}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        return default if value is None else bool(value)

    def list_of(self, key: str, kind: type, default: list[Any] | None = None) -> list[Any]:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, Sequence) or isinstance(value, str) or not value:
            raise ModelError(f"the file has no tokenizer.ggml.{key}")
        wrong = next((item for item in value if not isinstance(item, kind)), None)
        if wrong is not None:
            raise ModelError(f"tokenizer.ggml.{key} must be a list of {kind.__name__}; it holds {wrong!r}")
        return list(value)

    def token_id(self, key: str) -> int | None:
        value = self.get(f"{key}_token_id")
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise ModelError(
                f"tokenizer.ggml.{key}_token_id is {value!r}; the vocabulary has ids 0 to {len(self.tokens) - 1}"
            )
        return value

    def merges(self) -> list[tuple[str, str]]:
        pairs = [tuple(merge.split(" ")) for merge in self.list_of("merges", str)]
        wrong = next((pair for pair in pairs if len(pair) != 2), None)
        if wrong is not None:
            raise ModelError(f"tokenizer.ggml.merges must hold pairs; it holds {' '.join(wrong)!r}")
        return pairs

    def respell_spaces(self) -> None:
        """Write user-defined tokens of spaces as the rest of a sentencepiece vocabulary does: converters undo it."""
        present = set(self.tokens)
        for index, token in enumerate(self.tokens):
            respelt = token.replace(" ", "▁")
            if self.types[index] == _USER_DEFINED and respelt not in present:
                self.tokens[index] = respelt
                present.add(respelt)


def _byte_level(fields: _Fields) -> tuple[Backend, bool]:
    """GPT-2's scheme: text is split, then merged in the byte alphabet."""
    split = split_named(fields.text("pre", "default"))
    alphabet = byte_alphabet()
    letters = set(alphabet.values())
    vocab = {
        token
        if kind in (_CONTROL, _USER_DEFINED) or letters.issuperset(token)
        else "".join(alphabet[byte] for byte in token.encode()): index
        for index, (token, kind) in enumerate(zip(fields.tokens, fields.types, strict=True))
    }
    backend = _bpe(vocab, fields.merges(), ignore_merges=split.whole_words)
    split.install(backend)
    backend.decoder = decoders.ByteLevel()
    return backend, split.add_bos


def _sentencepiece(fields: _Fields) -> Backend:
    """Sentencepiece's BPE: no splitting, a space is U+2581, bytes stand in for characters it lacks.

    The space before a text goes before what follows a special token too, even if a space is there. Not so in
    vocabularies that have Mistral's control token ``[INST]``: there it goes before the text alone, if it has none.
    """
    prefix = fields.flag("add_space_prefix", True)
    if not prefix:
        fields.respell_spaces()
    vocab = {token: index for index, token in enumerate(fields.tokens)}
    merges = fields.merges() if fields.get("merges") else _merges_from_scores(fields, vocab)
    unknown = fields.token_id("unknown")
    options = {} if unknown is None else {"unk_token": fields.tokens[unknown]}
    once = any(token == "[INST]" and kind == _CONTROL for token, kind in zip(fields.tokens, fields.types, strict=True))
    backend = _bpe(vocab, merges, fuse_unk=True, byte_fallback=True, **options)
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = spaces
    if prefix and once:
        backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
    elif prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def _kept_whole(fields: _Fields, sentencepiece: bool) -> list[AddedToken]:
    """The tokens that are found in a text before it is split and merged.

    Sentencepiece looks for those it was told to keep (Gemma's runs of spaces) after spaces became U+2581. A prefix
    would be put before these tokens themselves; where there is one they are looked for as the file has them.
    """
    normalized = sentencepiece and not fields.flag("add_space_prefix", True)
    eats_space = sentencepiece and fields.architecture == "phi3"
    return [
        AddedToken(
            token,
            normalized=normalized and kind == _USER_DEFINED and "▁" in token,
            rstrip=eats_space and token not in _PHI3_KEEPS_SPACE_AFTER,
            special=kind == _CONTROL,
        )
        for token, kind in zip(fields.tokens, fields.types, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _merges_from_scores(fields: _Fields, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges a scored vocabulary implies: each way to cut a token in two tokens, best token first.

    Of equal scores, longer left parts come first, then longer right parts, then the order of the vocabulary. If all
    are equal, the file was made without sentencepiece's own: the vocabulary is in order of merges then.
    """
    scores: list[float] = fields.list_of("scores", float)
    if len(scores) != len(fields.tokens):
        raise ModelError(f"tokenizer.ggml.tokens has {len(fields.tokens)} entries and scores {len(scores)}")
    if len(set(scores)) == 1:
        scores = [-float(index) for index in range(len(scores))]
    merges = []
    lengths = {len(token) for token in vocab}
    for token, index in vocab.items():
        # Of all the ways to cut a long token, few can be in the vocabulary.
        places = range(1, len(token)) if len(token) < len(lengths) else [at for at in lengths if at < len(token)]
        lefts = [(left, len(left)) for at in places if (left := token[:at]) in vocab]
        pairs = [(left, right) for left, at in lefts if len(token) - at in lengths and (right := token[at:]) in vocab]
        pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(-scores[index], -len(left), -len(right), left, right) for left, right in pairs]
    merges.sort(key=lambda merge: merge[:3])
    return [(left, right) for *_, left, right in merges]


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> Backend:
    try:
        return Backend(BPE(vocab=vocab, merges=merges, **options))
    except Exception as error:  # the library raises bare Exception for a merge outside the vocabulary
        raise ModelError(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}") from error


def _ends(fields: _Fields) -> list[int]:
    """The tokens that end a reply: by the file's word, or by how they are spelt if they are kept whole."""
    named = [fields.token_id(key) for key in ("eos", "eot", "eom")]
    spelt = [
        index
        for index, (token, kind) in enumerate(zip(fields.tokens, fields.types, strict=True))
        if kind in (_CONTROL, _USER_DEFINED) and token in _TURN_ENDS + _TEXT_ENDS
    ]
    return [id_ for id_ in named if id_ is not None] + spelt
