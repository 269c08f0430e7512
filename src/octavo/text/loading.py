"""A model's tokenizer, from whatever its source has: a folder, or GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.errors import ModelError
from octavo.text.folder_tokenizer import tokenizer_from_folder
from octavo.text.gguf_tokenizer import tokenizer_from_gguf
from octavo.text.tokenizer import Tokenizer, is_panic


def load_tokenizer(origin: Path | Mapping[str, Any], name: str) -> Tokenizer:
    """The tokenizer that ``origin`` holds, as :attr:`octavo.model.base.ModelSource.tokenizer_source` gives it.

    Args:
        name: what the user calls the model, for messages.

    Raises:
        ModelError: there is none, or it cannot be read.
    """
    try:
        return tokenizer_from_folder(origin) if isinstance(origin, Path) else tokenizer_from_gguf(origin)
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ModelError(f"the tokenizer of {name} cannot be read: {error}") from error
