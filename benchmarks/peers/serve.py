"""The other end of `worker.Worker`: loads one engine in its own environment, then answers a question per line.

    python -m benchmarks.peers.serve ENGINE WORK THREADS

Lines of JSON on the standard streams:

    -> (started)                                      {"version": "..."}   or   {"error": "..."}
    {"measure": {shape}, "seed": 7}               ->  {"seconds": 0.1, "cold": null}
    {"roof": true}                                ->  {"bytes_per_second": 6e10, "operations_per_second": 4.7e11}
    (end of file)                                 ->  the process ends
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from benchmarks.peers.lifetime import die_with_parent
from benchmarks.peers.shapes import Shape

if TYPE_CHECKING:
    from benchmarks.peers.engine import Engine


def main() -> None:
    die_with_parent()
    module, work, threads = sys.argv[1:]
    with _answers_alone() as answers:

        def say(answer: dict[str, Any]) -> None:
            print(json.dumps(answer), file=answers, flush=True)

        try:
            engine = importlib.import_module(f"benchmarks.peers.{module}").open_engine(Path(work), int(threads))
        except Exception as error:  # whatever an engine raises is for the parent to show
            say(_as_error(error))
            sys.exit(1)
        say({"version": engine.version})
        for line in sys.stdin:
            try:
                say(_answer(engine, json.loads(line)))
            except Exception as error:  # as above; the next question may fare better
                say(_as_error(error))


def _answer(engine: Engine, question: dict[str, Any]) -> dict[str, Any]:
    if "roof" in question:
        roof = engine.roof()
        return {} if roof is None else {"bytes_per_second": roof[0], "operations_per_second": roof[1]}
    return asdict(engine.measure(Shape(**question["measure"]), question["seed"]))


def _as_error(error: Exception) -> dict[str, str]:
    traceback.print_exception(error)
    return {"error": f"{type(error).__name__}: {error}"}


def _answers_alone() -> TextIO:
    """The stream that the parent reads. What engines print to standard output goes to the log, like their errors."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


if __name__ == "__main__":
    main()
