"""What the file of a peer gives to `benchmarks.compare`, and which there are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

from benchmarks.peers import llama_cpp, octavo, openvino, transformers, vllm
from benchmarks.peers.engine import Engine
from benchmarks.peers.place import ROOT, Place
from benchmarks.peers.worker import Worker


class Peer(Protocol):
    """A module of this package. Its ``open_engine`` runs in the peer's own environment, all else in Octavo's."""

    __name__: str
    NAME: str

    def set_up(self, place: Place) -> None:
        """Make its environment and model files, where they are not made yet.

        Raises:
            PeerError: a step failed.
        """

    def python(self, place: Place) -> Path:
        """The interpreter that its engine runs in."""

    def environment(self, place: Place, threads: int) -> Mapping[str, str]:
        """Variables that must be set before its process starts."""

    def open_engine(self, work: Path, threads: int) -> Engine:
        """Load it; bf16 weights, a 16-bit KV cache, at most ``threads`` threads."""


OCTAVO = cast(Peer, octavo)
PEERS = tuple(cast(Peer, module) for module in (llama_cpp, openvino, vllm, transformers))
BY_NAME = {peer.NAME: peer for peer in PEERS}


def start(peer: Peer, place: Place, threads: int) -> Worker:
    """Start its process; the engine is not loaded yet."""
    module = peer.__name__.rpartition(".")[2]
    command = [str(peer.python(place)), "-m", "benchmarks.peers.serve", module, str(place.work), str(threads)]
    return Worker(peer.NAME, command, peer.environment(place, threads), place.log(f"{module}.run"), ROOT)
