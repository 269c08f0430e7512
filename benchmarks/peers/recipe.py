"""How an engine's own HTTP server is started, and the little that servers ask for in different words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from benchmarks.peers.place import Place

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A server that speaks ``/v1/chat/completions`` once it is up.

    Attributes:
        command: listens at `HOST`, at the port that it was made for.
        environment: beside this process's own.
        ready: the path that answers 200 once requests are served.
        ignores_end: its ``ignore_eos`` keeps the tokens that end a reply from being drawn, and it has no
            ``min_tokens``, which does so elsewhere.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    ready: str
    ignores_end: bool = False

    def exact_length(self, num_tokens: int) -> dict[str, Any]:
        """The fields of a request that make a reply just so long: what would end it before is not drawn."""
        length = {"max_tokens": num_tokens}
        return length | ({"ignore_eos": True} if self.ignores_end else {"min_tokens": num_tokens})


class ServingPeer(Protocol):
    """A module of this package whose engine has a server of its own."""

    __name__: str
    NAME: str

    def serve(self, place: Place, threads: int, port: int) -> Recipe:
        """bf16 weights, a 16-bit KV cache with room for the chat load, at most ``threads`` threads."""
