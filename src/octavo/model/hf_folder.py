"""A model in a Hugging Face folder: config.json, tokenizer files, and safetensors in one file or shards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import ModelNotFoundError, UnsupportedModelError, WeightsError
from octavo.model.architectures.registry import architecture_named
from octavo.model.base import ModelSource, Tensor
from octavo.model.hf_config import spec_from_hf_config
from octavo.model.reading import is_file
from octavo.model.safetensors_file import SafetensorsFile
from octavo.model.slots import StoredAt, TensorKey, find_slots
from octavo.model.spec import ModelSpec

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class HfFolder(ModelSource):
    """A folder as transformers' ``save_pretrained`` writes it.

    Args:
        folder: the folder; its config.json is read at once.
        name: what the user called the model.
        fetch: called once before the weight files are first looked at, to bring them here.

    Raises:
        ModelNotFoundError: there is no config.json.
        WeightsError: a JSON file cannot be read.
        UnsupportedModelError: the configuration asks for what Octavo does not do.
    """

    def __init__(self, folder: Path, name: str, fetch: Callable[[], object] | None = None) -> None:
        self.name = name
        self.location = folder
        self.tokenizer_source = folder
        self._folder = folder
        self._fetch = fetch
        if not is_file(folder / "config.json"):
            raise ModelNotFoundError(_what_is_there(folder))
        config = _read_json(folder / "config.json")
        self.spec = spec_from_hf_config(config)
        generation_config = _read_json(folder / "generation_config.json", missing={})
        self.eos_token_ids = _eos_token_ids(generation_config, config, self.spec)
        self.chat_template = _chat_template(folder)

    @property
    def needs_dequantising(self) -> bool:
        return False

    def files(self) -> tuple[Path, ...]:
        return tuple(self._shards)

    def check(self) -> None:
        for at in self._slots.values():
            self._stored[at.name].check_dtype(at.name)

    def tensors(self) -> Iterator[Tensor]:
        self.check()
        self._check_tied_copy()
        name, whole = "", np.empty(0, np.uint16)
        for (slot, layer), shape in self.spec.tensor_shapes().items():
            at = self._slots[slot, layer]
            if at.name != name:  # a tensor that holds several slots is read once
                name, whole = at.name, self._stored[at.name].read(at.name)
            yield Tensor(slot, layer, at.cut(whole, shape[0]))

    @cached_property
    def _shards(self) -> dict[Path, set[str]]:
        """Weight files in order, each with the tensors the index promises in it: none where there is no index."""
        if self._fetch is not None:
            self._fetch()
        single, index = self._folder / WEIGHTS_FILE, self._folder / INDEX_FILE
        if is_file(single):
            return {single: set()}
        if not is_file(index):
            raise _no_weights(self._folder)
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise WeightsError(f"{index} has no weight_map that names the weight files")
        shards: dict[Path, set[str]] = {}
        for tensor, file_name in sorted(weight_map.items(), key=lambda entry: str(entry[1])):
            if not isinstance(file_name, str) or Path(file_name).name != file_name:
                raise WeightsError(f"{index} names {file_name!r}, which is not a file of this folder")
            shards.setdefault(self._folder / file_name, set()).add(tensor)
        return shards

    @cached_property
    def _stored(self) -> dict[str, SafetensorsFile]:
        """Every tensor name of every weight file, with its file."""
        stored: dict[str, SafetensorsFile] = {}
        for path, promised in self._shards.items():
            file = SafetensorsFile(path)
            for tensor in sorted(promised - file.tensors.keys()):
                raise WeightsError(f"{path} lacks tensor {tensor}, which {INDEX_FILE} says it holds")
            for tensor in file.tensors:
                if tensor in stored:
                    raise WeightsError(f"tensor {tensor} is in both {stored[tensor].path} and {path}")
                stored[tensor] = file
        return stored

    @cached_property
    def _slots(self) -> dict[TensorKey, StoredAt]:
        architecture = architecture_named(self.spec.architecture)
        stored = {name: file.tensors[name].shape for name, file in self._stored.items()}
        if self.spec.tie_word_embeddings:
            stored.pop(architecture.hf_lm_head, None)
        return find_slots(str(self._folder), self.spec, architecture.hf_tensors, stored, architecture.hf_ignored)

    def _check_tied_copy(self) -> None:
        """A tied model may store its embedding twice; two that differ would mean it is not tied."""
        lm_head = architecture_named(self.spec.architecture).hf_lm_head
        copy = self._stored.get(lm_head)
        if not self.spec.tie_word_embeddings or copy is None:
            return
        name = self._slots["embed", -1].name
        if not np.array_equal(copy.read(lm_head), self._stored[name].read(name)):
            raise WeightsError(
                f"{self._folder}: config.json ties lm_head to the embedding, but {lm_head} is not {name}"
            )


def _read_json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    if missing is not None and not is_file(path):
        return missing
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} must hold a JSON object; it holds {type(content).__name__}")
    return content


def _eos_token_ids(generation_config: dict[str, Any], config: dict[str, Any], spec: ModelSpec) -> tuple[int, ...]:
    given = generation_config.get("eos_token_id")
    if given is None:
        given = config.get("eos_token_id")
    ids = [] if given is None else given if isinstance(given, list) else [given]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < spec.vocab_size:
            raise UnsupportedModelError(
                f"eos_token_id {token!r} is not a token of the vocabulary, 0 to {spec.vocab_size - 1}"
            )
    return tuple(dict.fromkeys(ids))


def _chat_template(folder: Path) -> str | dict[str, str] | None:
    """The template files beside the tokenizer, else what tokenizer_config.json holds, as in transformers."""
    templates = {path.stem: _read_text(path) for path in sorted(folder.glob("additional_chat_templates/*.jinja"))}
    if is_file(folder / "chat_template.jinja"):
        templates["default"] = _read_text(folder / "chat_template.jinja")
    if templates:
        return templates["default"] if list(templates) == ["default"] else templates
    source = folder / "tokenizer_config.json"
    template = _read_json(source, missing={}).get("chat_template")
    if template is None or isinstance(template, str):
        return template
    try:
        named = {entry["name"]: entry["template"] for entry in template}
    except (TypeError, KeyError) as error:
        raise WeightsError(f"{source}: chat_template is neither a text nor a list of named texts") from error
    if not all(isinstance(text, str) for entry in named.items() for text in entry):
        raise WeightsError(f"{source}: chat_template is neither a text nor a list of named texts")
    return named


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(f"cannot read {path}: {error}") from error


def _what_is_there(folder: Path) -> str:
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if ggufs:
        return f"{folder} has no config.json; to run a GGUF file of it, name the file: {folder / ggufs[0]}"
    return f"{folder} has no config.json, so it is not a Hugging Face model folder"


def _no_weights(folder: Path) -> Exception:
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    if pickled:
        return UnsupportedModelError(
            f"{folder} has its weights as {pickled[0]} only; Octavo reads safetensors. Convert it with "
            "transformers: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)"
        )
    return WeightsError(f"{folder} has neither {WEIGHTS_FILE} nor {INDEX_FILE}")
