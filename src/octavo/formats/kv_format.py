"""KVFormat: how the keys and the values of a layer are written down, and the names users know formats by."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from octavo.formats import bf16, fp8, int4, int8
from octavo.formats.codec import Codec

CODECS: dict[str, Codec] = {codec.NAME: codec for codec in (bf16, int8, fp8, int4)}
"""Every codec by its name."""


@dataclass(frozen=True, slots=True)
class KVFormat:
    """The codec of keys and the codec of values, by name."""

    key: str
    value: str

    def __str__(self) -> str:
        """The name it has, else ``"key:value"``."""
        return next((name for name, known in KV_DTYPES.items() if known == self), self.codecs)

    @property
    def codecs(self) -> str:
        """``"key:value"``: what is written down for good, for it names the codecs and nothing that may be renamed."""
        return f"{self.key}:{self.value}"

    @property
    def head_dim_step(self) -> int:
        """A head_dim must be a multiple of this."""
        return max(codec.HEAD_DIM_STEP for codec in self._codecs)

    def suits(self, head_dim: int) -> bool:
        """Whether vectors of so many elements can be written down in it."""
        return head_dim % self.head_dim_step == 0

    @property
    def is_gated(self) -> bool:
        """Whether it is too lossy for some models to be used unseen: keys in 4 bits."""
        return self.key == int4.NAME

    @property
    def at_8_bits(self) -> KVFormat:
        """The same with int8 in place of int4."""
        return KVFormat(*(int8.NAME if name == int4.NAME else name for name in (self.key, self.value)))

    def bytes_per_token(self, head_dim: int) -> int:
        """Bytes of one token's key and value of one KV head, scales included."""
        return sum(codec.code_bytes(head_dim) + codec.scale_bytes(head_dim) for codec in self._codecs)

    @property
    def _codecs(self) -> tuple[Codec, Codec]:
        return CODECS[self.key], CODECS[self.value]


KV_DTYPES = {
    "bf16": KVFormat("bf16", "bf16"),
    "int8": KVFormat("int8", "int8"),
    "fp8": KVFormat("fp8", "fp8"),
    "int4": KVFormat("int8", "int4"),
    "int4-full": KVFormat("int4", "int4"),
}
"""What ``kv_dtype`` may name. ``int4`` keeps keys in 8 bits: 4-bit values are cheap in quality, 4-bit keys are not."""


def parse_kv_dtype(text: str) -> KVFormat:
    """The format of a name in :data:`KV_DTYPES`, or of keys and values apart: ``"int8:int4"``.

    Raises:
        ValueError: it is neither; the message says what is allowed.
    """
    if text in KV_DTYPES:
        return KV_DTYPES[text]
    key, colon, value = text.partition(":")
    if colon and key in CODECS and value in CODECS:
        return KVFormat(key, value)
    raise ValueError(f"one of {', '.join(KV_DTYPES)}, or KEY:VALUE with each of {', '.join(CODECS)}")


def layer_formats(kv_format: KVFormat, num_layers: int, layers_at_8_bits: Collection[int] = ()) -> tuple[KVFormat, ...]:
    """The format of each layer; those of ``layers_at_8_bits`` have int8 in place of int4."""
    return tuple(kv_format.at_8_bits if layer in layers_at_8_bits else kv_format for layer in range(num_layers))
