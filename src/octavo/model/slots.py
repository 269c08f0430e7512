"""Slots: which tensors of a file hold what a model needs, complete and of the right shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.errors import WeightsError
from octavo.model.spec import ModelSpec

TensorKey = tuple[str, int]
"""(slot, layer) as ``_native.Model.set_tensor`` names a tensor; layer -1 is no layer."""
Slots = tuple[str, ...]
"""What one tensor of a file holds."""


class TensorNames(NamedTuple):
    """How one kind of file names its tensors.

    ``whole_model`` maps full names to slots, ``per_layer`` what follows the number that ``layer`` matches. A tensor
    of several slots holds their rows one after another.
    """

    whole_model: Mapping[str, str]
    layer: re.Pattern[str]
    per_layer: Mapping[str, Slots]

    def keys(self, name: str) -> tuple[TensorKey, ...]:
        """The places of a tensor by its name in the file; none if no model has such a tensor."""
        if name in self.whole_model:
            return ((self.whole_model[name], -1),)
        match = self.layer.fullmatch(name)
        if match is None:
            return ()
        return tuple((slot, int(match.group(1))) for slot in self.per_layer.get(match.group(2), ()))


class StoredAt(NamedTuple):
    """Where a slot lies: in the tensor ``name`` of a file, from row ``first`` on; ``whole``: it is all of it."""

    name: str
    first: int
    whole: bool

    def cut(self, tensor: npt.NDArray[np.uint16], rows: int) -> npt.NDArray[np.uint16]:
        """The slot's own ``rows`` of the tensor that was read."""
        return tensor if self.whole else tensor[self.first : self.first + rows]


def find_slots(
    where: str, spec: ModelSpec, names: TensorNames, stored: Mapping[str, tuple[int, ...]], ignored: re.Pattern[str]
) -> dict[TensorKey, StoredAt]:
    """Where every tensor of ``spec`` lies; complete, of the right shapes, and nothing is left over.

    Args:
        where: what to call the file or folder in messages.
        stored: shape of every tensor, by its name there.
        ignored: names of tensors that are not read.

    Raises:
        WeightsError: a tensor is missing, unknown or of the wrong shape.
    """
    shapes = spec.tensor_shapes()
    found: dict[TensorKey, StoredAt] = {}
    surplus: list[str] = []
    for name, shape in stored.items():
        keys = names.keys(name)
        if not all(key in shapes for key in keys) or not (keys or ignored.search(name)):
            surplus.append(name)
            continue
        first = 0
        for key in keys:
            found[key] = StoredAt(name, first, whole=len(keys) == 1)
            first += shapes[key][0]
        if keys:
            check_shape(where, name, shape, (first, *shapes[keys[0]][1:]))
    missing = [_describe(key) for key in shapes if key not in found]
    if missing:
        raise WeightsError(f"{where} lacks {_some(missing)}")
    if surplus:
        raise WeightsError(
            f"{where} holds {_some(surplus)}, which this architecture does not use; Octavo ignores no weight"
        )
    return found


def check_shape(where: str, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise WeightsError unless a tensor has the shape that the configuration implies."""
    if found != wanted:
        raise WeightsError(
            f"{where}: tensor {name} has shape {list(found)}, the model's configuration says {list(wanted)}"
        )


def _describe(key: TensorKey) -> str:
    slot, layer = key
    return slot if layer < 0 else f"{slot} of layer {layer}"


def _some(names: list[str]) -> str:
    listed = ", ".join(names[:4])
    return listed if len(names) <= 4 else f"{listed} and {len(names) - 4} more"
