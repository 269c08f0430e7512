"""Whatever is passed in: a typed error that names the argument, nothing written, and the next good call works."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from octavo import _native

VOCAB = 101


def ints(*values):
    return np.asarray(values, np.int32)


def table(*rows):
    return np.asarray([rows], np.int32)


class Calls:
    """One model and pool, and for each function the arguments of a good call, by name."""

    def __init__(self, native):
        self.shape = native.Shape(vocab_size=VOCAB)
        self.model = native.model_of(self.shape, _native.supported_isas()[0], threads=2)
        self.pool = native.pool_of(self.shape)
        self.pool_of = native.pool_of
        self.logits = np.full((2, VOCAB), 7, np.float32)

    def forward(self):
        """Twenty tokens of one sequence, and two that extend another of 18."""
        return {
            "pool": self.pool,
            "token_ids": np.arange(22, dtype=np.int32),
            "query_start_loc": ints(0, 20, 22),
            "seq_lens": ints(20, 18),
            "block_tables": table([1, 2], [3, 4]),
            "copies": np.asarray([[0, 1], [0, 2], [0, 4]], np.int32),
            "logit_rows": ints(19, 21),
            "logits": self.logits,
        }

    def score(self):
        return {"hidden_rows": ints(0, 5, 21), "targets": ints(1, 2, 3), "num_top": 2}

    def sample(self):
        """Three samples from two rows, each with something of everything."""
        return {
            "logits": np.random.default_rng(0).normal(size=(2, VOCAB)).astype(np.float32),
            "rows": ints(0, 1, 1),
            "temperature": np.asarray([0, 1, 2], np.float32),
            "top_k": ints(0, 5, 0),
            "top_p": np.asarray([1, 0.9, 0.5], np.float32),
            "min_p": np.zeros(3, np.float32),
            "repetition_penalty": np.ones(3, np.float32),
            "presence_penalty": np.zeros(3, np.float32),
            "frequency_penalty": np.zeros(3, np.float32),
            "seeds": np.arange(3, dtype=np.uint64),
            "choices": ints(0, 0, 1),
            "positions": ints(0, 1, 2),
            "prompt_starts": ints(0, 0, 2, 3),
            "prompt_tokens": ints(5, 6, 7),
            "output_starts": ints(0, 1, 1, 2),
            "output_tokens": ints(8, 9),
            "bias_starts": ints(0, 0, 1, 2),
            "bias_tokens": ints(3, 4),
            "bias_values": np.asarray([1, -np.inf], np.float32),
            "bitmask_rows": ints(-1, 0, 1),
            "bitmask": np.full((2, 4), -1, np.int32),
            "num_top": ints(-1, 0, 3),
        }

    def call(self, function, changes=()):
        """Positionally, as the runner does."""
        return getattr(self.model, function)(*(getattr(self, function)() | dict(changes)).values())

    def pool_bytes(self):
        return b"".join(self.pool.block(b).tobytes() for b in range(self.pool.num_blocks))


@pytest.fixture(scope="module")
def calls(native):
    calls = Calls(native)
    calls.call("forward")
    return calls


def refuse(calls, function, changes, error, match):
    """The call fails as told, changes nothing, and the same object still does what it did."""
    calls.call("forward")
    before, logits = calls.pool_bytes(), calls.logits.copy()
    expected = calls.call(function)
    with pytest.raises(error, match=match):
        calls.call(function, changes)
    assert calls.pool_bytes() == before
    assert np.array_equal(calls.logits, logits)
    again = calls.call(function)
    for one, other in zip(expected or (), again or (), strict=True):
        assert np.array_equal(one, other)
    calls.call("forward")
    assert np.array_equal(calls.logits, logits)


def good_arguments(function):
    """Those of Calls, for naming test cases before there is a model."""
    calls = Calls.__new__(Calls)
    calls.pool, calls.logits = None, np.zeros((2, VOCAB), np.float32)
    return getattr(calls, function)()


ARRAYS = [
    (function, name)
    for function in ("forward", "score", "sample")
    for name, value in good_arguments(function).items()
    if isinstance(value, np.ndarray)
]


@pytest.mark.parametrize(("function", "name"), ARRAYS)
def test_an_array_of_another_kind_is_refused_by_name(calls, function, name):
    good = getattr(calls, function)()[name]
    other = np.float64 if good.dtype == np.float32 else np.int64 if good.dtype == np.int32 else np.uint32
    spread = np.empty((*good.shape[:-1], 2 * good.shape[-1]), good.dtype)[..., ::2]
    spread[...] = good
    for bad in (
        good.astype(other),
        good.astype(good.dtype.newbyteorder()),
        good[None],
        good.reshape(-1)[0],  # a scalar
        spread if good.size > 1 else good[None],
        good.tolist(),
        None,
        "text",
        object(),
    ):
        with pytest.raises(TypeError, match=rf"^{name} must be a C-contiguous .*; got "):
            calls.call(function, {name: bad})
    odd = np.frombuffer(bytearray(good.nbytes + 1), good.dtype, good.size, offset=1).reshape(good.shape)
    for bad in (good.astype(other), odd):
        refuse(calls, function, {name: bad}, TypeError, f"^{name} must be")


@pytest.mark.parametrize(("function", "name"), ARRAYS)
def test_an_array_of_another_length_is_refused(calls, function, name):
    good = getattr(calls, function)()[name]
    longer = np.concatenate([good, good[-1:]])
    if (function, name) in {("forward", "copies"), ("sample", "bitmask"), ("sample", "logits")}:
        calls.call(function, {name: longer})  # nothing else tells how many there are
    else:
        refuse(calls, function, {name: longer}, ValueError, ".")
    if name != "copies":
        refuse(calls, function, {name: good[:0]}, ValueError, ".")
    if name != "copies" and good.ndim > 1 and good.shape[-1] > 1:
        narrow = np.ascontiguousarray(good[..., :-1])
        refuse(calls, function, {name: narrow}, ValueError, name)


def changed(array, index, value):
    array = array.copy()
    array[index] = value
    return array


LOW, HIGH = -(2**31), 2**31 - 1


def bad_forward_values():
    arguments = good_arguments("forward")
    for value in (-1, VOCAB, LOW, HIGH):
        yield "token_ids", changed(arguments["token_ids"], 3, value), r"^token_ids\[3\] is "
    for value in (-1, 22, LOW, HIGH):
        yield "logit_rows", changed(arguments["logit_rows"], 1, value), r"^logit_rows\[1\] is "
    for starts in ([1, 20, 22], [0, 20, 21], [0, 20, 23], [0, -1, 22], [0, LOW, 22], [0, HIGH, 22], [0, 23, 22]):
        yield "query_start_loc", ints(*starts), "^query_start_loc must "
    yield "query_start_loc", ints(0, 0, 22), "sequence 0 has no tokens"
    for value in (-1, 0, 1, LOW, HIGH, 2**24 + 1):
        yield "seq_lens", changed(arguments["seq_lens"], 1, value), "^seq_lens is "
    yield "seq_lens", ints(20, 33), "^block_tables is too narrow"
    for value in (-1, 8, LOW, HIGH):
        yield "block_tables", changed(arguments["block_tables"], (0, 0, 0), value), r"^block_tables\[0\] is "
        yield "copies", ints(value, 1).reshape(1, 2), r"^copies \(source\)"
        yield "copies", ints(1, value).reshape(1, 2), r"^copies \(target\)"
    yield "block_tables", table([0, 2], [3, 4]), "sequence 0 would write into the null block"
    yield "block_tables", table([1, 2], [3, 0]), "sequence 1 would write into the null block"
    yield "block_tables", np.repeat(arguments["block_tables"], 2, 0), "^block_tables has 2"
    yield "copies", ints(1, 0).reshape(1, 2), r"^copies \(target\)"
    yield "copies", ints(0, 1, 2).reshape(1, 3), "^copies must be pairs"
    yield "token_ids", ints(), "^token_ids must hold"
    yield "logits", np.zeros((2, VOCAB + 1), np.float32), "logits"


@pytest.mark.parametrize(("name", "value", "match"), list(bad_forward_values()))
def test_a_forward_pass_refuses(calls, name, value, match):
    refuse(calls, "forward", {name: value}, ValueError, match)


def test_read_only_logits_are_refused(calls):
    logits = np.zeros((2, VOCAB), np.float32)
    logits.flags.writeable = False
    refuse(calls, "forward", {"logits": logits}, TypeError, "^logits must be a C-contiguous writable")


def test_table_entries_past_the_sequence_and_null_blocks_already_computed_may_be_anything(calls):
    """Only what is read is checked: padding is not, and the null block is a block of zeros like any other."""
    tables = table([1, 2, -1], [0, 4, HIGH])
    calls.call("forward", {"block_tables": tables})


@pytest.mark.parametrize(
    "changes",
    [{"num_kv_heads": 4}, {"head_dim": 32}, {"windows": (0, 0, 0)}, {"windows": (0,)}],
    ids=["heads", "head_dim", "deeper", "shallower"],
)
def test_a_pool_made_for_another_model_is_refused(calls, native, changes):
    foreign = native.pool_of(native.Shape(vocab_size=VOCAB, **changes))
    refuse(calls, "forward", {"pool": foreign}, ValueError, "pool was made for another model")


@pytest.mark.parametrize("pool", [None, 3, "pool", object()])
def test_something_else_than_a_pool_is_refused(calls, pool):
    refuse(calls, "forward", {"pool": pool}, TypeError, "pool: octavo._native.KVPool")


def test_a_pool_with_more_groups_wants_a_table_for_each(calls, native):
    hybrid = native.pool_of(native.Shape(vocab_size=VOCAB, windows=(0, 8)))
    refuse(calls, "forward", {"pool": hybrid}, ValueError, "^block_tables has 1 entries, expected 2")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"hidden_rows": ints(0, 5, 22)}, r"^hidden_rows\[2\] is 22"),
        ({"hidden_rows": ints(-1, 5, 21)}, r"^hidden_rows\[0\] is -1"),
        ({"targets": ints(1, VOCAB, 3)}, r"^targets\[1\] is"),
        ({"targets": ints(1, -1, 3)}, r"^targets\[1\] is"),
        ({"targets": ints(1, 2)}, "^targets has 2"),
        ({"num_top": -1}, "^num_top is -1"),
        ({"num_top": VOCAB + 1}, "^num_top is"),
    ],
)
def test_scoring_refuses(calls, changes, match):
    refuse(calls, "score", changes, ValueError, match)


def test_scoring_before_any_pass_is_refused(native):
    model = native.model_of(native.Shape(), "generic")
    with pytest.raises(ValueError, match="hidden_rows name tokens of the last forward pass"):
        model.score(ints(0), ints(0), 1)


def test_scoring_nothing_gives_nothing(calls):
    logprobs, ranks, top_ids, top_logprobs = calls.model.score(ints(), ints(), 4)
    assert logprobs.shape == ranks.shape == (0,)
    assert top_ids.shape == top_logprobs.shape == (0, 4)


def bad_sample_values():
    floats = {
        "temperature": (-1, -1e-30, np.nan, -np.inf),
        "top_p": (-0.1, 1.1, np.nan, np.inf),
        "min_p": (-0.1, 1.1, np.nan, np.inf),
        "repetition_penalty": (0, -1, np.nan, np.inf),
        "presence_penalty": (np.nan, np.inf, -np.inf),
        "frequency_penalty": (np.nan, np.inf, -np.inf),
        "bias_values": (np.nan,),
    }
    for name, values in floats.items():
        for value in values:
            yield name, 1, value
    integers = {
        "rows": (-1, 2, LOW, HIGH),
        "top_k": (-1, LOW),
        "prompt_tokens": (-1, VOCAB, LOW, HIGH),
        "output_tokens": (-1, VOCAB, LOW, HIGH),
        "bias_tokens": (-1, VOCAB, LOW, HIGH),
        "bitmask_rows": (-2, 2, LOW, HIGH),
        "num_top": (-2, VOCAB + 1, LOW, HIGH),
    }
    for name, values in integers.items():
        for value in values:
            yield name, 1, value
    for name in ("prompt_starts", "output_starts", "bias_starts"):
        for index, value in ((0, 1), (0, -1), (1, HIGH), (1, LOW), (3, HIGH), (3, LOW), (3, 0)):
            yield name, index, value


@pytest.mark.parametrize(("name", "index", "value"), list(bad_sample_values()))
def test_sampling_refuses(calls, name, index, value):
    bad = changed(calls.sample()[name], index, value)
    refuse(calls, "sample", {name: bad}, ValueError, f"^{name}")


def test_sampling_nothing_gives_nothing(calls):
    empty = {k: v[:0] for k, v in calls.sample().items() if k not in ("logits", "bitmask")}
    for name in ("prompt_starts", "output_starts", "bias_starts"):
        empty[name] = ints(0)
    for result in calls.call("sample", empty):
        assert result.size == 0


GOOD_TENSOR = np.zeros((64, 32), np.uint16)


@pytest.mark.parametrize(
    ("slot", "layer", "tensor", "error", "match"),
    [
        ("nobody", 0, GOOD_TENSOR, ValueError, "no slot 'nobody' at layer 0"),
        ("q", 2, GOOD_TENSOR, ValueError, "no slot 'q' at layer 2"),
        ("q", -1, GOOD_TENSOR, ValueError, "no slot 'q' at layer -1"),
        ("q", -2, GOOD_TENSOR, ValueError, "no slot 'q' at layer -2"),
        ("embed", 0, GOOD_TENSOR, ValueError, "no slot 'embed' at layer 0"),
        ("lm_head", -1, np.zeros((VOCAB, 32), np.uint16), ValueError, "no slot 'lm_head'"),
        ("q", 0, GOOD_TENSOR[:-1], ValueError, r"tensor for q has shape \[63, 32\], expected \[64, 32\]"),
        ("q", 0, GOOD_TENSOR.T.copy(), ValueError, "tensor for q has shape"),
        ("q", 0, GOOD_TENSOR[None], ValueError, "tensor for q has shape"),
        ("q", 0, GOOD_TENSOR[:0], ValueError, "tensor for q has shape"),
        ("final_norm", -1, GOOD_TENSOR, ValueError, "tensor for final_norm has shape"),
        ("q", 0, GOOD_TENSOR.T, TypeError, "^tensor must be a C-contiguous uint16"),
        ("q", 0, GOOD_TENSOR.astype(np.float32), TypeError, "^tensor must be .*; got ndarray of float32"),
        ("q", 0, GOOD_TENSOR.astype(np.int16), TypeError, "^tensor must be .*; got ndarray of int16"),
        ("q", 0, None, TypeError, "^tensor must be .*; got NoneType"),
        (3, 0, GOOD_TENSOR, TypeError, "slot: str"),
        ("q", 2**40, GOOD_TENSOR, TypeError, "layer: int"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(calls, slot, layer, tensor, error, match):
    weights = [bytes(view) for _, view in calls.model.buffers()]
    with pytest.raises(error, match=match):
        calls.model.set_tensor(slot, layer, tensor)
    assert [bytes(view) for _, view in calls.model.buffers()] == weights


MODEL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "norm_eps": 1e-5,
    "attention_scale": 0.25,
    "tie_word_embeddings": True,
    "inv_freq": np.ones((1, 8), np.float32),
    "windows": [0, 0],
    "isa": "generic",
    "threads": 1,
}


@pytest.mark.parametrize(
    ("name", "value", "error", "match"),
    [
        *[("isa", value, ValueError, "^isa is '.*'; this machine runs .*generic") for value in ("", "sse9", "AVX2")],
        *[("threads", value, ValueError, "^threads is ") for value in (0, -1, 257, LOW)],
        *[("head_dim", value, ValueError, "^head_dim ") for value in (17, 1024, 0, -16, 8)],
        *[("num_kv_heads", value, ValueError, "num_kv_heads") for value in (0, 3, 5, -1)],
        *[("num_heads", value, ValueError, "num_heads|num_kv_heads") for value in (0, 1, 3, HIGH)],
        *[("hidden_size", value, ValueError, "^hidden_size ") for value in (0, 1, 33, -2, HIGH)],
        *[("intermediate_size", value, ValueError, "^intermediate_size ") for value in (0, -2, HIGH)],
        *[("vocab_size", value, ValueError, "^vocab_size ") for value in (0, -1, 2**24 + 1)],
        *[("norm_eps", value, ValueError, "^norm_eps ") for value in (-1.0, np.nan, np.inf)],
        *[("attention_scale", value, ValueError, "^attention_scale ") for value in (np.nan, np.inf)],
        ("windows", [], ValueError, "number of layers is 0"),
        ("windows", [0, -1], ValueError, "^a window is -1"),
        ("inv_freq", np.ones((1, 9), np.float32), ValueError, "number of rotary frequencies is 9; allowed are 1 to 8"),
        ("inv_freq", np.ones((2, 8), np.float32), ValueError, "^rotary_scales has 1 entries, expected 2"),
        ("inv_freq", -np.ones((1, 8), np.float32), ValueError, "^inv_freq must lie"),
        ("inv_freq", np.full((1, 8), np.nan, np.float32), ValueError, "^inv_freq must lie"),
        ("inv_freq", np.ones((1, 8)), TypeError, "^inv_freq must be a C-contiguous float32"),
        ("inv_freq", np.ones(8, np.float32), TypeError, "^inv_freq must be a C-contiguous float32"),
        *[("rotary_scales", [value], ValueError, "^a rotary scale must") for value in (0.0, -1.0, np.nan, np.inf)],
        *[("layer_rotaries", value, ValueError, "rotar") for value in ([0], [0, 1], [0, -2])],
        *[("qk_norm", value, ValueError, "^qk_norm is '.*'; allowed are none, head, full") for value in ("", "HEAD")],
        ("activation", "relu", ValueError, "^activation is 'relu'; allowed are silu, gelu_tanh"),
        ("pre_norm", False, ValueError, "must norm before"),
        *[
            (name, value, ValueError, f"^{name} must be above 0")
            for name in ("embed_scale", "residual_scale", "logit_scale", "attention_softcap", "logit_softcap")
            for value in (-1.0, np.nan, np.inf)
        ],
        ("norm_offset", np.nan, ValueError, "^norm_offset must be finite"),
        ("inv_freq", None, TypeError, "^inv_freq must be"),
        ("windows", None, TypeError, "windows"),
        ("vocab_size", 2**40, TypeError, "vocab_size"),
        ("vocab_size", 1.5, TypeError, "vocab_size"),
        ("isa", None, TypeError, "isa"),
    ],
)
def test_a_model_that_cannot_be_is_refused(name, value, error, match):
    with pytest.raises(error, match=match):
        _native.Model(**MODEL | {name: value})
    assert _native.Model(**MODEL).threads == 1


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"isa": "sse9"}, "^isa is 'sse9'; this machine runs .*generic"),
        ({"threads": 0}, "^threads is 0"),
        ({"threads": 257}, "^threads is 257"),
        ({"megabytes": 0}, "^megabytes is 0"),
        ({"megabytes": HIGH}, "^megabytes is"),
    ],
)
def test_a_roof_that_cannot_be_measured_is_refused(changes, match):
    with pytest.raises(ValueError, match=match):
        _native.measure_roof(**{"isa": "generic", "threads": 1, "megabytes": 1} | changes)


POOL = {
    "group_sizes": [2],
    "layer_group": [0, 0],
    "layer_index": [0, 1],
    "num_kv_heads": 2,
    "head_dim": 16,
    "block_size": 16,
    "num_blocks": 4,
}


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"group_sizes": []}, ValueError, "at least one group"),
        ({"layer_group": [], "layer_index": []}, ValueError, "at least one group and one layer"),
        ({"layer_group": [0, 1]}, ValueError, "^layer_group is 1"),
        ({"layer_group": [0, -1]}, ValueError, "^layer_group is -1"),
        ({"layer_index": [0, 2]}, ValueError, "^layer_index is 2"),
        ({"layer_index": [0, -1]}, ValueError, "^layer_index is -1"),
        ({"layer_index": [0]}, ValueError, "^layer_index has 1"),
        ({"group_sizes": [0]}, ValueError, "group's size is 0"),
        ({"group_sizes": [HIGH]}, ValueError, "group's size is"),
        ({"num_kv_heads": 0}, ValueError, "^num_kv_heads is 0"),
        ({"head_dim": 24}, ValueError, "head_dim"),
        ({"head_dim": 1024}, ValueError, "head_dim"),
        ({"block_size": 0}, ValueError, "block_size"),
        ({"block_size": 24}, ValueError, "block_size"),
        ({"block_size": 2048}, ValueError, "block_size"),
        ({"num_blocks": 0}, ValueError, "^num_blocks is 0"),
        ({"num_blocks": 1}, ValueError, "^num_blocks is 1"),
        ({"num_blocks": -1}, ValueError, "^num_blocks is -1"),
        ({"num_blocks": 2**40}, TypeError, "num_blocks"),
        ({"group_sizes": None}, TypeError, "group_sizes"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(changes, error, match):
    with pytest.raises(error, match=match):
        _native.KVPool(**POOL | changes)


@pytest.mark.parametrize("num_blocks", [2**14, 2**15, 2**16, HIGH])
def test_a_pool_whose_bytes_overflow_is_refused(num_blocks):
    """2**49 bytes a block: 2**15 of them are 2**64, which a careless product takes for none."""
    widest = {"group_sizes": [2**14], "num_kv_heads": 2**14, "head_dim": 512, "block_size": 1024}
    with pytest.raises(MemoryError):
        _native.KVPool(**POOL | widest | {"num_blocks": num_blocks})


@pytest.mark.parametrize("block_id", [-1, 4, LOW, HIGH])
def test_a_block_out_of_range_is_refused(block_id):
    with pytest.raises(ValueError, match=r"^block_id is .*; allowed are 0 to 3"):
        _native.KVPool(**POOL).block(block_id)


def test_views_outlive_what_they_look_into(native):
    shape = native.Shape()
    views = [view for _, view in native.model_of(shape, "generic").buffers()]
    block = native.pool_of(shape).block(3)
    block[:] = 1
    assert sum(int(view.sum()) for view in views) > 0
    assert block.sum() == block.size


@pytest.mark.filterwarnings("ignore:nanobind")
def test_an_object_that_was_never_initialised_is_refused():
    model, pool = _native.Model.__new__(_native.Model), _native.KVPool.__new__(_native.KVPool)
    for attribute in ("isa", "threads", "weight_bytes"):
        with pytest.raises(TypeError):
            getattr(model, attribute)
    for use in (model.buffers, lambda: model.score(ints(), ints(), 0), lambda: pool.block(0)):
        with pytest.raises((TypeError, RuntimeError)):
            use()
    with pytest.raises(TypeError):
        _native.Model(**MODEL).__init__(**MODEL)


def test_a_second_thread_is_told_that_the_model_is_busy(native):
    """While one thread is inside a long pass every other call fails at once, and the pass is not disturbed."""
    shape = native.Shape(vocab_size=VOCAB, intermediate_size=1024)
    model, pool = native.model_of(shape, "generic"), native.pool_of(shape, block_size=1024, num_blocks=3)
    n = 2048
    logits = np.zeros((1, VOCAB), np.float32)
    arguments = (np.arange(n, dtype=np.int32) % VOCAB, ints(0, n), ints(n), table([1, 2]))
    arguments = (*arguments, np.zeros((0, 2), np.int32), ints(n - 1), logits)
    model.forward(pool, *arguments)
    expected = logits.copy()
    logits[:] = 0

    failures = []

    def run():
        try:
            model.forward(pool, *arguments)
        except Exception as error:  # shown below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    refused = dict.fromkeys(("forward", "score", "sample", "set_tensor"), 0)
    sample = good_arguments("sample")
    while thread.is_alive():
        for name, call in {
            "forward": lambda: model.forward(pool, *arguments),
            "score": lambda: model.score(ints(0), ints(0), 1),
            "sample": lambda: model.sample(*sample.values()),
            "set_tensor": lambda: model.set_tensor("final_norm", -1, np.full(32, 0x3F80, np.uint16)),
        }.items():
            if thread.is_alive():
                try:
                    call()
                except RuntimeError as error:
                    refused[name] += "busy in another thread" in str(error)
    thread.join()
    assert all(refused.values()), refused
    assert all("busy" in str(error) for error in failures)  # it may itself have met one of the calls above
    model.forward(pool, *arguments)
    assert np.array_equal(logits, expected)


def run_script(script, *arguments):
    """In a process of its own, so that a crash is seen as a failure of this test alone."""
    command = [sys.executable, "-X", "faulthandler", str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("isa", _native.supported_isas())
def test_random_arguments_never_crash(isa):
    done = run_script(Path(__file__).with_name("fuzz.py"), isa, 700, 1, 2024)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space, which only Linux enforces")
def test_a_thread_that_the_system_refuses_is_an_error():
    done = run_script(Path(__file__).with_name("starve.py"))
    assert done.returncode == 0, done.stderr[-3000:]
