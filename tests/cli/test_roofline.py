"""The roofline counts what cannot be avoided, no more and no less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.cli.bench import roofline
from octavo.cli.bench.roofline import Roof, Work
from octavo.formats.kv_format import KV_DTYPES, layer_formats
from octavo.model.source import resolve_model
from octavo.model.spec import LayerSpec
from octavo.planner import bytes_per_token


@pytest.fixture
def spec(tiny_model):
    return resolve_model(tiny_model).spec


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_step_of_decode_reads_every_matrix_once_and_every_key_and_value(spec, kv_dtype):
    formats = layer_formats(KV_DTYPES[kv_dtype], spec.num_layers)
    norms = sum(shape[0] for shape in spec.tensor_shapes().values() if len(shape) == 1)
    embedding = 0 if spec.tie_word_embeddings else spec.vocab_size * spec.hidden_size  # one row of it is read
    weights = 2 * (spec.num_parameters - norms - embedding)
    assert roofline.decode_step(spec, formats, 3, 100).bytes == weights + 3 * 100 * bytes_per_token(spec, formats)


def test_a_window_bounds_the_keys_that_are_read(spec):
    formats = layer_formats(KV_DTYPES["bf16"], spec.num_layers)
    windowed = replace(spec, layers=(LayerSpec(window=10),) * spec.num_layers)
    assert roofline.decode_step(windowed, formats, 1, 100) == roofline.decode_step(spec, formats, 1, 10)


@pytest.mark.parametrize("window", [None, 1, 7, 64, 500])
def test_a_prompt_has_as_many_pairs_of_query_and_key_as_can_be_counted(window):
    counted = sum(len(range(0 if window is None else max(0, q - window + 1), q + 1)) for q in range(64))
    assert roofline._pairs_seen(window, 64) == counted


def test_prefill_does_the_operations_of_its_tokens_one_by_one_but_for_the_head(spec):
    head = 2 * spec.vocab_size * spec.hidden_size
    formats = layer_formats(KV_DTYPES["bf16"], spec.num_layers)
    one_by_one = sum(roofline.decode_step(spec, formats, 1, length).operations - head for length in range(1, 51))
    assert roofline.prefill(spec, 2, 50).operations == 2 * one_by_one


def test_the_slower_of_memory_and_arithmetic_is_the_limit():
    roof = Roof(bytes_per_second=10.0, operations_per_second=100.0)
    assert roof.least_seconds(Work(20.0, 100.0)) == 2.0 and roof.bound(Work(20.0, 100.0)) == "memory"
    assert roof.least_seconds(Work(20.0, 400.0)) == 4.0 and roof.bound(Work(20.0, 400.0)) == "arithmetic"
    assert roof.mean(Roof(20.0, 200.0)) == Roof(15.0, 150.0)
