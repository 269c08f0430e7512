"""Whatever is given where: an error of ours, never one of Python's, and an engine that goes on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from octavo.config import EngineConfig
from octavo.engine.sampling_params import SamplingParams
from octavo.errors import OctavoError, shown
from octavo.llm import LLM

UNPRINTABLE = 10**5000  # Python refuses to print a number of more than 4300 digits


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


VALUES: dict[str, Any] = {
    "None": None,
    "True": True,
    "minus one": -1,
    "one": 1,
    "2**31": 2**31,
    "2**64": 2**64,
    "too long for a float": 10**400,
    "too long to print": UNPRINTABLE,
    "minus too long": -UNPRINTABLE,
    "half": 0.5,
    "nan": math.nan,
    "inf": math.inf,
    "complex": 5j,
    "no text": "",
    "text": "ab",
    "half a surrogate pair": "\ud800",
    "many digits": "9" * 5000,
    "bytes": b"ab",
    "no list": [],
    "no dict": {},
    "list in list": [[]],
    "numbers": [1, 2],
    "long number in list": [UNPRINTABLE],
    "long float in dict": {1: 10**400},
    "long key": {UNPRINTABLE: 1},
    "None key": {None: 1},
    "mixed keys": {None: 1, "a": 2, 3: 4},
    "text key": {"a": 1},
    "object": object(),
    "unprintable": Broken(),
    "array": np.array([1, 2]),
    "square array": np.ones((2, 2)),
    "scalar array": np.array(3),
    "numpy int": np.int64(3),
    "set": {1, 2},
    "function": len,
}
ONE = SamplingParams(max_tokens=1)
USER = {"role": "user", "content": "ab"}


@pytest.fixture(scope="module")
def llm(make_assembly: Callable[..., tuple[Any, Any]]) -> LLM:
    return LLM.from_assembly(make_assembly()[0])


@pytest.fixture(params=VALUES.values(), ids=VALUES.keys())
def value(request: pytest.FixtureRequest) -> Any:
    return request.param


def only_errors_of_ours(calls: Iterator[Callable[[], object]]) -> None:
    for call in calls:
        try:
            call()
        except OctavoError as error:
            assert len(str(error)) < 1500


def test_any_value_of_a_sampling_parameter(value: Any) -> None:
    fields = [field.name for field in dataclasses.fields(SamplingParams)]
    only_errors_of_ours(lambda name=name: SamplingParams(**{name: value}) for name in fields)
    only_errors_of_ours(lambda name=name: SamplingParams(**{name: [value]}) for name in fields)
    only_errors_of_ours(iter([lambda: SamplingParams(logit_bias={1: value})]))


def test_any_value_of_a_setting(value: Any) -> None:
    fields = [field.name for field in dataclasses.fields(EngineConfig)]
    only_errors_of_ours(lambda name=name: EngineConfig(**{name: value}) for name in fields)


def test_any_value_as_a_prompt_or_option(llm: LLM, value: Any) -> None:
    prompts = [value, [value], {"prompt": value}, {"prompt_token_ids": value}, {"prompt_token_ids": [value]}]
    only_errors_of_ours(lambda prompt=prompt: llm.generate(prompt, ONE) for prompt in prompts)
    only_errors_of_ours(lambda prompt=prompt: list(llm.stream(prompt, ONE)) for prompt in prompts)
    options = ("priority", "cache_salt", "timeout")
    only_errors_of_ours(lambda name=name: llm.generate("ab", ONE, **{name: value}) for name in options)
    only_errors_of_ours(lambda name=name: list(llm.stream("ab", ONE, **{name: value})) for name in options)
    only_errors_of_ours(
        iter(
            [
                lambda: llm.generate("ab", value),
                lambda: llm.generate(["ab"], [value]),
                lambda: list(llm.stream("ab", value)),
                lambda: llm.engine.intake.accept("ab", ONE, request_id=value),
            ]
        )
    )
    llm.engine.check_idle()


def test_any_value_in_a_conversation(llm: LLM, value: Any) -> None:
    call = {"function": {"name": value, "arguments": value}}
    messages = [
        value,
        {"role": value, "content": "ab"},
        {"role": "user", "content": value},
        {"role": "user", "content": [value]},
        {"role": "user", "content": [{"type": value, "text": "ab"}]},
        {"role": "user", "content": [{"type": "text", "text": value}]},
        {**USER, "other": value},
        {"role": "assistant", "content": "ab", "reasoning": value},
        *({"role": "assistant", "tool_calls": calls} for calls in (value, [value], [{"function": value}], [call])),
    ]
    if isinstance(value, (str, int, float)):
        messages.append({**USER, value: "ab"})
    only_errors_of_ours(lambda message=message: llm.chat([USER, message], ONE) for message in messages)
    only_errors_of_ours(iter([lambda: llm.chat(value, ONE), lambda: llm.chat([[value]], ONE)]))
    template = (
        {"tools": value},
        {"tools": [value]},
        {"tools": [{"type": "function", "function": value}]},
        {"add_generation_prompt": value},
        {"continue_final_message": value},
        {"chat_template": value},
        {"chat_template": {"default": value}},
        {"chat_template_kwargs": value},
        {"chat_template_kwargs": {"x": value}},
    )
    only_errors_of_ours(lambda given=given: llm.chat([USER], ONE, **given) for given in template)
    llm.engine.check_idle()


def test_every_value_can_be_shown_and_none_at_length(value: Any) -> None:
    assert 0 < len(shown(value)) <= 200
    assert len(shown([value] * 10_000)) <= 200
