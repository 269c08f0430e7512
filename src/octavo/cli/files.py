"""Files that a command was told to write: looked at before anything is measured for them."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.errors import ConfigError


def check_file(path: Path, option: str) -> None:
    """See that a file can be written there; it is not touched. After minutes of measuring it is too late to learn.

    Args:
        option: what the command calls it, such as ``"--output"``.

    Raises:
        ConfigError: it cannot.
    """
    try:
        possible = not path.is_dir() and os.access(path if path.exists() else path.parent, os.W_OK)
    except (OSError, ValueError):  # a name that no file can have
        possible = False
    if not possible:
        raise ConfigError(f"cannot write {str(path)!r}: choose a file in a folder that is there with {option}")
