"""int8: symmetric, one float16 scale for a vector: s = max|x| / 127, x ~ s * code with codes -127 to 127.

Keys are turned by an orthonormal Hadamard transform first, and queries with them, as for int4: it halves what
int8 costs.

NaN is stored as 0. Infinities, and what is beyond 127 * 65504, are stored as the largest number of either sign. A key
is turned before that: one infinity or NaN reaches every element it is mixed with.
"""

from __future__ import annotations

import numpy as np

from octavo.formats.codec import Codes, Encoded, Floats, Scales
from octavo.formats.hadamard import hadamard
from octavo.formats.scales import scaled

NAME = "int8"
HEAD_DIM_STEP = 16
"""A head_dim must be a multiple of this."""
BITS = 8
CODE_TYPE = np.int8


def code_bytes(head_dim: int) -> int:
    """Bytes of one vector's elements."""
    return head_dim


def scale_bytes(head_dim: int) -> int:
    """Bytes of one vector's scale."""
    return 2


def encode_key(x: Floats) -> Encoded:
    """Keys, turned: single large elements, which keys have, would cost all others their precision."""
    return encode(hadamard(x))


def encode_value(x: Floats) -> Encoded:
    """Values as they are."""
    return encode(x)


def encode(x: Floats) -> Encoded:
    """Codes and scales ``[n, 1]`` of ``x [n, head_dim]``, rounded to nearest even.

    NaN gives code 0, an infinity plus or minus 127; a scale that rounds to 0 gives codes 0.
    """
    units, scales = scaled(x, 127)
    return Encoded(np.rint(units).astype(np.int8), scales)


def decode(codes: Codes, scales: Scales) -> Floats:
    """``scale * code``, float32 ``[n, head_dim]``; exact."""
    return codes.astype(np.float32) * scales.astype(np.float32)
