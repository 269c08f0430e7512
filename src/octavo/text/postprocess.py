"""What a tokenizer puts around a text, and offsets that tell the truth."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing


def surround(backend: Backend, bos: str | None, eos: str | None) -> None:
    """Let ``backend`` put ``bos`` before every text and ``eos`` after it; ``None`` puts nothing there."""
    # Named for their place and not by their text, which could mean something in a template ("$B", "<s>:1").
    specials = [
        {"id": place, "ids": [backend.token_to_id(token)], "tokens": [token]}
        for place, token in (("bos", bos), ("eos", eos))
        if token
    ]
    single = [*(["bos:0"] if bos else []), "$A:0", *(["eos:0"] if eos else [])]
    backend.post_processor = TemplateProcessing(single=single, pair=[*single, "$B:1"], special_tokens=specials)


def keep_whole_offsets(backend: Backend) -> None:
    """Stop the post-processor from trimming white space off offsets.

    A token of white space would else seem to end where it starts, and a breakpoint would fall one token late.
    """
    processor = backend.post_processor
    if processor is None:
        return
    state = json.loads(processor.__getstate__())
    for step in state.get("processors", [state]):
        if "trim_offsets" in step:
            step["trim_offsets"] = False
    processor.__setstate__(json.dumps(state).encode())
    backend.post_processor = processor


def mark_special(backend: Backend, tokens: set[str]) -> None:
    """Make sure these tokens of the vocabulary are matched whole and count as special."""
    added: dict[str, AddedToken] = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    missing: list[Any] = []
    for content in sorted(tokens):
        if backend.token_to_id(content) is None:
            continue
        token = added.get(content, AddedToken(content, normalized=False, special=True))
        if content not in added or not token.special:
            token.special = True
            missing.append(token)
    backend.add_special_tokens(missing)
