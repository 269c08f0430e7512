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
from octavo.text.tokenizer import TemplateSource, Tokenizer

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Read the tokenizer of a model folder.

    ``tokenizer.json`` is the tokenizer, and what goes around a text is its to say (as in transformers, which
    leaves ``add_bos_token`` and ``add_eos_token`` in the configuration unread). ``tokenizer_config.json`` and
    ``special_tokens_map.json`` name the special tokens, may add tokens, and may hold the chat template, which
    ``chat_template.jinja`` overrides. ``generation_config.json``, or else ``config.json``, lists what ends a
    generation.

    Raises:
        ModelNotFoundError: the folder has no tokenizer.
        UnsupportedModelError: it has one of a kind Octavo does not read; the message says what to do.
        ModelError: a file is damaged.
    """
    backend = _backend(folder)
    config = _read_json(folder / "tokenizer_config.json")
    named = _named_tokens(config, _read_json(folder / "special_tokens_map.json"))
    _add_tokens(backend, config.get("added_tokens_decoder") or {}, folder)
    mark_special(backend, set(named.values()))
    keep_whole_offsets(backend)
    return Tokenizer(
        backend,
        special_tokens=named,
        eos_token_ids=_eos_ids(folder),
        chat_template=_chat_template(folder, config),
    )


def _backend(folder: Path) -> Backend:
    path = folder / "tokenizer.json"
    if not path.is_file():
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


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
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


def _add_tokens(backend: Backend, listed: Mapping[str, Any], folder: Path) -> None:
    """Add the tokens ``tokenizer_config.json`` lists that ``tokenizer.json`` lacks, in order of their ids."""
    present = backend.get_added_tokens_decoder()
    for token_id, fields in sorted((int(key), value) for key, value in listed.items()):
        if token_id in present:
            continue
        flags = {flag: fields[flag] for flag in ("single_word", "lstrip", "rstrip", "normalized") if flag in fields}
        backend.add_tokens([AddedToken(fields["content"], special=bool(fields.get("special")), **flags)])
        if backend.token_to_id(fields["content"]) != token_id:
            raise ModelError(
                f"{folder / 'tokenizer_config.json'} gives token {fields['content']!r} the id {token_id}; "
                f"tokenizer.json gives it {backend.token_to_id(fields['content'])}"
            )


def _eos_ids(folder: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            if not all(isinstance(id_, int) and not isinstance(id_, bool) and id_ >= 0 for id_ in ids):
                raise ModelError(f"{folder / name}: eos_token_id must be a token id or a list of them; got {value!r}")
            return ids
    return []


def _chat_template(folder: Path, config: Mapping[str, Any]) -> TemplateSource | None:
    templates: dict[str, str] = {}
    source = config.get("chat_template")
    if isinstance(source, str):
        templates["default"] = source
    elif isinstance(source, list):
        templates.update((entry["name"], entry["template"]) for entry in source)
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    if list(templates) == ["default"]:
        return templates["default"]
    return templates or None
