"""ModelSource: where a model comes from, whatever the files look like."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.model.spec import ModelSpec


class Tensor(NamedTuple):
    """One weight in its place: ``bits`` is C-contiguous uint16 holding bfloat16, shaped as the spec says."""

    slot: str
    layer: int
    bits: npt.NDArray[np.uint16]


class ModelSource(ABC):
    """A model that was found. Making one reads metadata only; weights are read when they are asked for.

    Attributes:
        name: what the user called it.
        location: the folder or file it was found in.
        spec: what it computes.
        tokenizer_source: what the text room builds a tokenizer from: a folder, or GGUF metadata.
        chat_template: the template's text, several by name, or ``None``.
        eos_token_ids: tokens that end a reply, by its configuration; the tokenizer may know more.
    """

    name: str
    location: Path
    spec: ModelSpec
    tokenizer_source: Path | Mapping[str, Any]
    chat_template: str | dict[str, str] | None
    eos_token_ids: tuple[int, ...]

    @property
    @abstractmethod
    def needs_dequantising(self) -> bool:
        """Whether turning the weights into bfloat16 takes so long that a packed copy is worth its place."""

    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files that hold the weights; fetches them if they are not here yet.

        Raises:
            ModelNotFoundError: they cannot be fetched.
            WeightsError: one is missing.
        """

    @abstractmethod
    def check(self) -> None:
        """Compare what the weight files say they hold with the spec, reading none of the weights.

        Raises:
            WeightsError: a tensor is missing, unknown, or of the wrong shape or type, or a file is cut short.
        """

    @abstractmethod
    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of ``spec.tensor_shapes()``, in that order, each read when it is its turn.

        Raises:
            WeightsError: as :meth:`check`, or a file cannot be read.
        """
