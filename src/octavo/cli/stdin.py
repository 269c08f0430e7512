"""Text from stdin, as UTF-8 whatever the locale says."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from octavo.errors import InvalidRequestError


def read_all() -> str:
    """All of stdin, without one final line break (as ``$(...)`` in a shell).

    Raises:
        InvalidRequestError: it is not UTF-8.
    """
    return _decode(sys.stdin.buffer.read()).removesuffix("\n")


def read_lines() -> Iterator[str]:
    """Stdin line by line, each as soon as it is there, without its line break.

    Raises:
        InvalidRequestError: a line is not UTF-8.
    """
    for line in sys.stdin.buffer:
        yield _decode(line).rstrip("\r\n")


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"stdin must be UTF-8 text; byte {error.start} is 0x{data[error.start]:02x}"
        ) from None
