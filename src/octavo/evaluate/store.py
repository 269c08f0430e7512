"""Where evaluations are kept: one small file in the user's cache for each model, its build, and a KV format."""

from __future__ import annotations

import hashlib
import json
import logging
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from octavo import _native
from octavo.config import user_cache
from octavo.errors import ConfigError
from octavo.evaluate.report import Report
from octavo.formats.kv_format import KVFormat
from octavo.model.appearing import appearing, write_all
from octavo.model.spec import ModelSpec
from octavo.model.weights import LoadedModel

VERSION = 1
"""Of the file, and of what its figures mean: raise it when either changes, and older files are not read."""
MAX_BYTES = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Whatever decides the figures, speed aside: another model, format, instruction set or build is another place.

    ``weights_digest`` and ``spec_digest`` name the model, in hexadecimal; ``layers`` are the formats of its layers;
    ``numerics_id`` is the instruction set and the hash of the native sources.
    """

    weights_digest: str
    spec_digest: str
    layers: tuple[str, ...]
    layout_version: int
    numerics_id: str

    @classmethod
    def of(cls, loaded: LoadedModel, spec: ModelSpec, layers: Sequence[KVFormat]) -> Place:
        """Of a loaded model in these formats.

        Args:
            spec: as the source has it. ``loaded.spec`` may depend on the longest request of one start (longrope), and
                an evaluation shall serve every start.
        """
        return cls(
            weights_digest=loaded.weights_digest.hex(),
            spec_digest=spec.digest().hex(),
            layers=tuple(layer.codecs for layer in layers),
            layout_version=_native.LAYOUT_VERSION,
            numerics_id=loaded.numerics_id,
        )

    @property
    def path(self) -> Path:
        """The file; not created here.

        Raises:
            ConfigError: there is no home directory for the cache.
        """
        name = hashlib.sha256(_canonical(asdict(self))).hexdigest()
        return user_cache() / "evaluations" / f"{name}.json"


def store(place: Place, report: Report) -> None:
    """Keep a report on bf16 and one other format: whole or not at all. If that fails, warn and keep none."""
    content = {"version": VERSION, "place": asdict(place), "report": report.as_json()}
    signed = content | {"sha256": hashlib.sha256(_canonical(content)).hexdigest()}
    try:
        with appearing(place.path) as file:
            write_all(file, memoryview(json.dumps(signed, indent=1).encode()))
    except (OSError, ConfigError) as error:  # minutes of measuring are not thrown away for want of a folder
        _log.warning("cannot keep the evaluation: %s", error)


def stored(place: Place) -> Report | None:
    """The report that was kept there; ``None`` if there is none, it is damaged, or another version wrote it."""
    try:
        data = _regular_file(place.path)
    except OSError:  # none was kept, or the cache cannot be read: either way there is no evaluation
        return None
    try:
        return _read(data, place)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        _log.warning("the evaluation %s is not used: %s", place.path, error)
        return None


def _regular_file(path: Path) -> bytes:
    """A little more than a record has, at most. A pipe or a device, which may never answer, is an OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path} is no file")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _read(data: bytes, place: Place) -> Report:
    if len(data) > MAX_BYTES:
        raise ValueError("it is too large to be one")
    content = json.loads(data)
    digest = content.pop("sha256")
    if content["version"] != VERSION:
        raise ValueError("another version of Octavo wrote it")
    if hashlib.sha256(_canonical(content)).hexdigest() != digest:
        raise ValueError("it is damaged")
    if _canonical(content["place"]) != _canonical(asdict(place)):
        raise ValueError("it is of something else")
    report = Report.from_json(content["report"])
    if len(report.formats) != 2 or report.formats[1].layers != place.layers:
        raise ValueError("it is not about this format")
    lengths = [[quality.context for quality in each.contexts] for each in report.formats]
    if not lengths[0] or lengths[0] != lengths[1]:
        raise ValueError("its formats were evaluated at different lengths of context, or at none")
    return report


def _canonical(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
