from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.engine.sampling_params import SamplingParams


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_array_is_laid_out_as_the_native_core_reads_it(make_engine: Callable[..., Any], count: int) -> None:
    """numpy calls one row contiguous wherever it lies, so that a column of a packed table may be crooked."""
    engine, runner = make_engine()
    seen: list[tuple[str, np.ndarray]] = []
    for name in ("execute", "sample"):
        call = getattr(runner, name)

        def spied(*arguments: Any, call: Any = call) -> Any:
            seen.extend((field.name, getattr(arguments[-1], field.name)) for field in dataclasses.fields(arguments[-1]))
            return call(*arguments)

        setattr(runner, name, spied)
    for index in range(count):
        engine.add(engine.intake.accept([1, 2 + index], SamplingParams(max_tokens=2, logit_bias={3: 1.0}, seed=1)))
    while engine.has_unfinished:
        engine.step()
    assert {"token_ids", "block_tables", "seeds", "bias_values", "bitmask"} <= {name for name, _ in seen}
    for name, array in seen:
        assert array.flags.c_contiguous and array.flags.aligned, name
