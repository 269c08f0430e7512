"""What surrounds an engine renders for it: whole conversations, and what many of them begin with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.errors import InvalidRequestError


def test_a_prefix_is_what_all_its_conversations_begin_with(make_assembly: Callable[..., tuple[Any, Any]]) -> None:
    assembly, _ = make_assembly()
    head = [{"role": "system", "content": "abc abc abc"}]
    prefix = assembly.render_prefix(head)
    for asked in ("abc", "cba", ""):
        assert assembly.render([*head, {"role": "user", "content": asked}]).prompt_token_ids[: len(prefix)] == prefix
    # "s" is no letter of the stand-in, and the last word may become a longer one.
    assert assembly.tokenizer.decode(prefix) == " abc abc"
    with pytest.raises(InvalidRequestError):
        assembly.render_prefix([])
