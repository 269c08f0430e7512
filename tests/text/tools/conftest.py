"""Vocabularies in which the markers of calls are tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tool_templates import MARKERS

from octavo.text.tokenizer import Tokenizer

CONTROL_TYPE = 3


@pytest.fixture(scope="session")
def with_tokens(make_gguf: Callable[..., Any], byte_level_fields: dict[str, Any]) -> Tokenizer:
    """``<tool_call>`` and ``<think>`` as ordinary added tokens, the markers of other families as special ones."""
    fields = dict(byte_level_fields)
    fields["tokens"] = [*fields["tokens"], *MARKERS]
    fields["token_type"] = [*fields["token_type"], *[CONTROL_TYPE] * len(MARKERS)]
    tokenizer: Tokenizer = make_gguf({**fields, "pre": "gpt-2"}).ours
    return tokenizer


@pytest.fixture(scope="session")
def all_special(make_gguf: Callable[..., Any], byte_level_fields: dict[str, Any]) -> Tokenizer:
    """Every marker is a special token, those of Hermes and of reasoning too."""
    fields = dict(byte_level_fields)
    fields["tokens"] = [*fields["tokens"], *MARKERS]
    changed = [CONTROL_TYPE if type_ == 4 else type_ for type_ in fields["token_type"]]
    fields["token_type"] = [*changed, *[CONTROL_TYPE] * len(MARKERS)]
    tokenizer: Tokenizer = make_gguf({**fields, "pre": "gpt-2"}).ours
    return tokenizer
