from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest

from octavo.engine.sampling_params import SamplingParams
from octavo.errors import InvalidRequestError, OctavoError

OUT_OF_RANGE = [
    ("n", 0),
    ("n", True),
    ("n", 129),
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", "hot"),
    ("temperature", math.inf),
    ("temperature", 10**400),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 1e-60),
    ("repetition_penalty", math.inf),
    ("logit_bias", {5: 101.0}),
    ("logit_bias", {5: -(10**400)}),
    ("logit_bias", {-1: 0.0}),
    ("logit_bias", {"5": 0.0}),
    ("logit_bias", [5]),
    ("seed", 2**64),
    ("seed", 1.0),
    ("stop", ["a", ""]),
    ("stop", [1]),
    ("stop", ["a"] * 17),
    ("stop", ["a", "b" * 4097]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", "12"),
    ("ignore_eos", 1),
    ("max_tokens", -1),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("logprobs", 21),
    ("logprobs", -1),
    ("prompt_logprobs", 21),
    ("skip_special_tokens", None),
    ("include_stop_str_in_output", 0),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [2**31]),
    ("skip_reading_prefix_cache", "no"),
    ("use_cache", None),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_name_with_what_is_allowed(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        SamplingParams(**{name: value})
    assert refused.value.param == name
    assert name in str(refused.value)
    assert isinstance(refused.value, (ValueError, OctavoError))


def test_the_edges_of_every_range_are_allowed() -> None:
    SamplingParams(temperature=0, top_p=1e-9, top_k=-1, min_p=1.0, max_tokens=0, seed=-(2**63))
    SamplingParams(temperature=100, top_k=0, presence_penalty=-2, frequency_penalty=2, max_tokens=None)
    SamplingParams(logit_bias={0: -100, 7: 100}, logprobs=0, prompt_logprobs=20, min_tokens=16, seed=2**64 - 1)


def test_defaults_are_those_users_know() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.max_tokens, params.n) == (1.0, 1.0, 16, 1)


def test_one_stop_string_and_a_list_of_one_are_the_same() -> None:
    assert SamplingParams(stop="END") == SamplingParams(stop=["END"])
    assert SamplingParams(stop="END").stop_strings == ("END",)
    assert SamplingParams(stop=None).stop_strings == ()


def test_a_token_named_twice_is_one() -> None:
    assert SamplingParams(stop_token_ids=[7, 5, 7, 7]).stop_token_ids == (7, 5)


def test_params_are_frozen_and_can_be_copied() -> None:
    bias = {3: 1.0}
    params = SamplingParams(logit_bias=bias, stop=["x"], allowed_token_ids=[1, 2])
    bias[4] = 2.0
    assert params.logit_bias == {3: 1.0}
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2  # type: ignore[misc]
    assert copy.deepcopy(params) == params == pickle.loads(pickle.dumps(params))
    assert dataclasses.replace(params, n=2).n == 2


def test_numbers_of_numpy_are_numbers() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),
        max_tokens=np.int64(5),
        seed=np.int64(-1),
        stop_token_ids=[np.int32(3)],
        logit_bias={np.int64(7): np.float64(1.5)},
    )
    plain = SamplingParams(temperature=0.5, max_tokens=5, seed=-1, stop_token_ids=[3], logit_bias={7: 1.5})
    assert params == plain
    assert type(params.seed) is int and type(params.temperature) is float
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        SamplingParams(max_tokens=np.float32(5))
    with pytest.raises(InvalidRequestError, match="temperature"):
        SamplingParams(temperature=np.float32("nan"))
