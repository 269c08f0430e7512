"""A tokenizer from a Hugging Face folder: ``tokenizer.json`` and the files beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from octavo.errors import ModelError, ModelNotFoundError, UnsupportedModelError
from octavo.text.postprocess import keep_whole_offsets, mark_special
from octavo.text.tokenizer import Tokenizer

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Read the tokenizer of a model folder.

    ``tokenizer.json`` is the tokenizer, and what goes around a text is its to say (as in transformers, which
    leaves ``add_bos_token`` and ``add_eos_token`` in the configuration unread). ``tokenizer_config.json`` and
    ``special_tokens_map.json`` name the special tokens and may add tokens.

    Raises:
        ModelNotFoundError: the folder has no tokenizer.
        UnsupportedModelError: it has one of a kind Octavo does not read; the message says what to do.
        ModelError: a file is damaged.
    """
    backend = _backend(folder)
    config_path = folder / "tokenizer_config.json"
    config = _read_json(config_path)
    named = _named_tokens(config, _read_json(folder / "special_tokens_map.json"))
    _add_tokens(backend, config.get("added_tokens_decoder") or {}, config_path)
    mark_special(backend, set(named.values()))
    keep_whole_offsets(backend)
    return Tokenizer(backend, special_tokens=named)


def _backend(folder: Path) -> Backend:
    path = folder / "tokenizer.json"
    if not _is_file(path):
        if (folder / "tokenizer.model").is_file():
            raise UnsupportedModelError(
                f"{folder} has only a sentencepiece tokenizer.model; Octavo reads tokenizer.json. "
                "Make one with transformers (AutoTokenizer.from_pretrained(folder).save_pretrained(folder)) "
                "or use a GGUF file"
            )
        raise ModelNotFoundError(f"{folder} has no tokenizer.json")
    try:
        return Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every kind of damage
        raise ModelError(f"{path} cannot be read: {error}") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise ModelError(f"cannot look at {path}: {error.strerror or error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    if not _is_file(path):
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        # A JSON text may write half a surrogate pair, which no tokenizer takes: this raises UnicodeEncodeError then.
        json.dumps(content, ensure_ascii=False).encode()
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object; it holds {type(content).__name__}")
    return content


def _named_tokens(config: Mapping[str, Any], special_map: Mapping[str, Any]) -> dict[str, str]:
    named = {}
    for name in _NAMED:
        value = config[name] if name in config else special_map.get(name)
        content = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(content, str) and content:
            named[name] = content
    return named


def _add_tokens(backend: Backend, listed: Any, path: Path) -> None:
    """Add the tokens ``tokenizer_config.json`` lists that ``tokenizer.json`` lacks, in order of their ids."""
    present = backend.get_added_tokens_decoder()
    try:
        tokens = {int(key): _added_token(fields) for key, fields in listed.items() if int(key) not in present}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: added_tokens_decoder does not map ids to tokens ({error!r})") from error
    for token_id, token in sorted(tokens.items(), key=lambda item: item[0]):
        backend.add_tokens([token])
        if backend.token_to_id(token.content) != token_id:
            raise ModelError(
                f"{path} gives token {token.content!r} the id {token_id}; "
                f"tokenizer.json gives it {backend.token_to_id(token.content)}"
            )


def _added_token(fields: Mapping[str, Any]) -> AddedToken:
    flags = {flag: fields[flag] for flag in ("single_word", "lstrip", "rstrip", "normalized") if flag in fields}
    return AddedToken(fields["content"], special=bool(fields.get("special")), **flags)
