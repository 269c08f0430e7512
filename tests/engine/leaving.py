"""Run by test_leaving.py in a process of its own: Python ends, or forks, while an engine computes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

from exactness_lab import small_lab

from octavo.async_engine import AsyncEngine
from octavo.engine.assemble import Assembly
from octavo.engine.sampling_params import SamplingParams
from octavo.errors import EngineDeadError
from octavo.llm import LLM

core = small_lab("mha", "generic").start(threads=1, num_blocks=200).engine
endless = SamplingParams(max_tokens=None, ignore_eos=True)


def stream_for_ever(llm: LLM, began: threading.Event) -> None:
    while True:
        for _ in llm.stream([1, 2, 3], endless):
            began.set()


if sys.argv[1] == "exit in a daemon thread":
    began = threading.Event()
    llm = LLM.from_assembly(Assembly(core, None, None, None))  # type: ignore[arg-type]
    threading.Thread(target=stream_for_ever, args=(llm, began), daemon=True).start()
    began.wait()
    sys.exit()

engine = AsyncEngine.from_assembly(Assembly(core, None, None, None))  # type: ignore[arg-type]
loop = asyncio.new_event_loop()
outputs = engine.generate([1, 2, 3], endless)
loop.run_until_complete(anext(outputs))

if sys.argv[1] == "fork":
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        loop = asyncio.new_event_loop()  # the other one has threads in the parent, too
        assert not engine.is_healthy
        try:
            loop.run_until_complete(anext(engine.generate([1, 2, 3], endless)))
        except EngineDeadError as error:
            assert "forked" in str(error), error
        else:
            raise AssertionError("somebody answered")
        try:
            loop.run_until_complete(engine.stats())
        except EngineDeadError as error:
            assert "forked" in str(error), error
        sys.exit()  # and not os._exit: the child leaves Python as its parent does
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status}"
    loop.run_until_complete(anext(outputs))
