"""What bytes a token stands for. Detokenising joins these bytes and reads them as UTF-8; nothing else.

Two spellings exist. *Byte-level* vocabularies (GPT-2, Llama 3, Qwen, SmolLM) write every byte as one
printable character. *Byte-fallback* vocabularies (sentencepiece: Llama 2, Mistral) write text as it is, a
space as U+2581, and a byte that no token covers as ``<0xE2>``.

Bytes rather than text, because a token may end inside a character and only the bytes of several tokens
together are text. Where the bytes of byte-fallback tokens are not UTF-8, this gives one U+FFFD per maximal
invalid part (as byte-level vocabularies do everywhere), whereas ``tokenizers`` replaces every byte of the
whole run, also of the valid characters in it: that cannot be streamed, since a later token would change text
already sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from octavo.errors import UnsupportedModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"


def byte_alphabet() -> dict[int, str]:
    """The 256 characters that byte-level vocabularies write bytes with: printable Latin-1 stands for itself,
    the others follow from U+0100 in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet, following = {}, 0x100
    for byte in range(256):
        alphabet[byte] = chr(byte) if byte in printable else chr(following)
        following += byte not in printable
    return alphabet


_BYTE_OF = {character: byte for byte, character in byte_alphabet().items()}


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a vocabulary writes bytes.

    Attributes:
        to_bytes: the bytes of an ordinary token, from its spelling.
        added_to_bytes: the bytes of an added token. Byte-level vocabularies write these as they are.
        strip_space: the first token of a text carries a space that is not part of the text.
    """

    to_bytes: Callable[[str], bytes]
    added_to_bytes: Callable[[str], bytes]
    strip_space: bool

    @classmethod
    def of(cls, backend: Backend) -> Spelling:
        """Read the spelling off the tokenizer's decoder.

        Raises:
            UnsupportedModelError: the decoder is neither byte-level nor byte-fallback; the message names it.
        """
        decoder: Any = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        steps: list[Any] = decoder["decoders"] if decoder and decoder["type"] == "Sequence" else [decoder]
        kinds = [step["type"] if step else "none" for step in steps]
        if kinds == ["ByteLevel"]:
            return cls(_byte_level, str.encode, strip_space=False)
        plain = kinds[:3] == ["Replace", "ByteFallback", "Fuse"]
        if plain and steps[0]["pattern"] == {"String": _SPACE} and steps[0]["content"] == " ":
            if kinds[3:] == []:
                return cls(_byte_fallback, _byte_fallback, strip_space=False)
            strip = {key: value for key, value in steps[3].items() if key != "type"}
            if kinds[3:] == ["Strip"] and strip == {"content": " ", "start": 1, "stop": 0}:
                return cls(_byte_fallback, _byte_fallback, strip_space=True)
        raise UnsupportedModelError(
            f"the tokenizer's decoder is {' + '.join(kinds)}; Octavo reads byte-level ('ByteLevel') and "
            "byte-fallback ('Replace + ByteFallback + Fuse', with or without 'Strip') vocabularies"
        )


class PieceTable(dict[int, bytes]):
    """Token id to bytes, worked out when first asked for. Ids outside the vocabulary stand for no bytes.

    ``skip`` are ids that stand for no bytes either: the special tokens, where those are left out of the text.
    """

    def __init__(self, backend: Backend, spelling: Spelling, size: int, added: dict[int, str], skip: frozenset[int]):
        super().__init__(dict.fromkeys(skip, b""))
        self._backend = backend
        self._spelling = spelling
        self._size = size
        self._added = added

    def __missing__(self, token_id: int) -> bytes:
        if not 0 <= token_id < self._size:
            return b""  # not kept: a caller could ask for any number of them
        if token_id in self._added:
            piece = self._spelling.added_to_bytes(self._added[token_id])
        else:
            token = self._backend.id_to_token(token_id)
            piece = b"" if token is None else self._spelling.to_bytes(token)
        self[token_id] = piece
        return piece


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()


def _byte_fallback(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    if match:
        return bytes([int(match.group(1), 16)])
    return token.replace(_SPACE, " ").encode()
