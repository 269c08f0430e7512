"""What somebody is told who asks for an address that is not there: most often /v1 is missing in it, or there twice."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from octavo.errors import shown


def nothing_at(path: str, known: Collection[str]) -> str:
    """A message for ``path``, which is none of the paths that are ``known``."""
    nothing = f"there is nothing at {shown(path)}"
    meant = _meant(path, known)
    if meant is None:
        return f"{nothing}; /openapi.json lists what there is"
    if path.count("v1") == meant.count("v1"):
        return f"{nothing}; did you mean {meant}?"
    return f"{nothing}, but at {meant}: the base URL of OpenAI's clients ends in /v1, that of Anthropic's does not"


def _meant(path: str, known: Collection[str]) -> str | None:
    if len(path) > 100:
        return None
    parts = [part for part in path.split("/") if part]
    while parts[:1] == ["v1"]:
        del parts[0]
    bare = "/" + "/".join(parts)
    for likely in (f"/v1{bare}", bare):
        if likely in known:
            return likely
    return next(iter(get_close_matches(path, known, 1, 0.9)), None)
