"""A tokenizer from the ``tokenizer.*`` metadata of a GGUF file.

A GGUF file has no ``tokenizer.json``: it has the vocabulary, the merges or scores, the special token ids,
and the *name* of the rule that splits text before merging (``tokenizer.ggml.pre``). What such a name means is
llama.cpp's to say, whose format this is. The result equals transformers' own conversion, with these
exceptions, in which transformers does not know what the name means and the model's published
``tokenizer.json`` agrees with us:

- ``smollm`` and its kin split off every digit before anything else. It shows after a run of white space: in
  ``"\\n\\n1"`` the line breaks are one token, as the model was trained.
- ``llama-bpe`` and its kin take a word that is a token as it is, without merging.
- Control and user-defined tokens outside the byte alphabet (``<｜User｜>``) are kept whole.
- ``add_space_prefix`` is obeyed, and ``llama-bpe`` adds bos where the file does not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from octavo.errors import ModelError, UnsupportedModelError
from octavo.text.pieces import byte_alphabet
from octavo.text.postprocess import keep_whole_offsets, mark_special, surround
from octavo.text.tokenizer import Tokenizer

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # tokenizer.ggml.token_type
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _REST


@dataclass(frozen=True, slots=True)
class _Split:
    """How text is split before merging. ``None`` for ``pattern``: GPT-2's rule."""

    pattern: str | None = None
    digits_apart: bool = False
    whole_words: bool = False
    add_bos: bool = False


_SPLITS: dict[str, _Split] = {
    **dict.fromkeys(("default", "gpt-2"), _Split()),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), _Split(digits_apart=True)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _Split(_LLAMA3, whole_words=True, add_bos=True)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _Split(_QWEN2)),
}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer a GGUF file describes.

    ``metadata`` maps the file's keys to strings, numbers, and lists of them. Read are, under
    ``tokenizer.ggml.``: ``model``, ``pre``, ``tokens``, ``token_type``, ``merges``, ``scores``,
    ``add_bos_token``, ``add_eos_token``, ``add_space_prefix`` and the ids ``bos``, ``eos``, ``eot``,
    ``unknown``, ``padding``. A file that names no end of turn has the first of the usual ones that is a control token
    of its vocabulary.

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
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind == _CONTROL)
            for token, kind in zip(fields.tokens, fields.types, strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    ids = {name: fields.token_id(key) for name, key in _NAMED.items()}
    named = {name: fields.tokens[id_] for name, id_ in ids.items() if id_ is not None}
    mark_special(
        backend,
        {fields.tokens[id_] for id_ in ids.values() if id_ is not None and fields.types[id_] != _NORMAL},
    )
    surround(
        backend,
        named.get("bos_token") if fields.flag("add_bos_token", add_bos) else None,
        named.get("eos_token") if fields.flag("add_eos_token", False) else None,
    )
    keep_whole_offsets(backend)
    return Tokenizer(backend, special_tokens=named, eos_token_ids=_turn_ends(fields))


class _Fields:
    """The ``tokenizer.ggml.*`` keys, checked as they are read."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
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


def _byte_level(fields: _Fields) -> tuple[Backend, bool]:
    """GPT-2's scheme: text is split, then merged in the byte alphabet."""
    name = fields.text("pre", "default")
    split = _SPLITS.get(name)
    if split is None:
        raise UnsupportedModelError(f"tokenizer.ggml.pre is {name!r}; Octavo knows {', '.join(sorted(_SPLITS))}")
    alphabet = byte_alphabet()
    letters = set(alphabet.values())
    vocab = {
        token
        if kind in (_CONTROL, _USER_DEFINED) or letters.issuperset(token)
        else "".join(alphabet[byte] for byte in token.encode()): index
        for index, (token, kind) in enumerate(zip(fields.tokens, fields.types, strict=True))
    }
    backend = _bpe(vocab, fields.merges(), ignore_merges=split.whole_words)
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split.digits_apart else []
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend, split.add_bos


def _sentencepiece(fields: _Fields) -> Backend:
    """Sentencepiece's BPE: no splitting, a space is U+2581, bytes stand in for characters it lacks."""
    vocab = {token: index for index, token in enumerate(fields.tokens)}
    merges = fields.merges() if fields.get("merges") else _merges_from_scores(fields, vocab)
    unknown = fields.token_id("unknown")
    options = {} if unknown is None else {"unk_token": fields.tokens[unknown]}
    prefix = fields.flag("add_space_prefix", True)
    backend = _bpe(vocab, merges, fuse_unk=True, byte_fallback=True, **options)
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first" if prefix else "never", split=False)
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def _merges_from_scores(fields: _Fields, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges a scored vocabulary implies: each way to cut a token in two tokens, best token first.

    Of equal scores, longer left parts come first, then longer right parts, then the order of the vocabulary.
    """
    scores: list[float] = fields.list_of("scores", float)
    if len(scores) != len(fields.tokens):
        raise ModelError(f"tokenizer.ggml.tokens has {len(fields.tokens)} entries and scores {len(scores)}")
    merges = []
    lengths = {len(token) for token in vocab}  # of all the ways to cut a long token, few can be in the vocabulary
    for token, index in vocab.items():
        cuts = [(token[:at], token[at:]) for at in lengths if at < len(token) and len(token) - at in lengths]
        pairs = [(left, right) for left, right in cuts if left in vocab and right in vocab]
        pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(-scores[index], -len(left), -len(right), left, right) for left, right in pairs]
    merges.sort(key=lambda merge: merge[:3])
    return [(left, right) for *_, left, right in merges]


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> Backend:
    try:
        return Backend(BPE(vocab=vocab, merges=merges, **options))
    except Exception as error:  # the library raises bare Exception for a merge outside the vocabulary
        raise ModelError(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}") from error


def _turn_ends(fields: _Fields) -> list[int]:
    eot = fields.token_id("eot")
    if eot is not None:
        return [eot]
    control = {fields.tokens[i]: i for i, kind in enumerate(fields.types) if kind == _CONTROL}
    return [control[token] for token in _TURN_ENDS if token in control][:1]
