"""Evaluations: figures are transformers' own, a format that is bf16 costs nothing, equal runs give equal reports."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from octavo.errors import CapacityError, ConfigError
from octavo.evaluate import Report, Text, default_text, evaluate
from octavo.evaluate.evaluation import DEFAULT_CONTEXTS, DEFAULT_MAX_TOKENS, Evaluation, prepare
from octavo.evaluate.lane import Lane, lane_bytes
from octavo.evaluate.measure import Measurement, rows_at_once
from octavo.formats.kv_format import KV_DTYPES, KVFormat
from octavo.model.source import resolve_model
from octavo.model.weights import LoadedModel, load_model

PAGES = Text("some pages", default_text().content[:20_000])
"""A token a character, about, with the small model's tokenizer."""


@pytest.fixture(scope="module")
def evaluation(small_model: Path) -> Evaluation:
    return prepare(resolve_model(small_model), ["bf16"], text=PAGES, contexts=[300, 600], max_tokens=1200)


@pytest.fixture(scope="module")
def loaded(small_model: Path) -> LoadedModel:
    return load_model(resolve_model(small_model), threads=1)


@pytest.fixture(scope="module")
def reference(small_model: Path) -> Callable[[np.ndarray], torch.Tensor]:
    """transformers' log-probabilities ``[n, vocab]``, computed in float32."""
    model = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32).eval()

    def log_probabilities(tokens: np.ndarray) -> torch.Tensor:
        with torch.no_grad():
            return torch.log_softmax(model(torch.from_numpy(tokens)[None].long()).logits[0].double(), -1)

    return log_probabilities


def measurement(loaded: LoadedModel, *formats: KVFormat, context: int = 1024) -> Measurement:
    lanes = [Lane(loaded.spec, loaded.model, [each] * loaded.spec.num_layers, context) for each in formats]
    return Measurement(lanes, loaded.spec.vocab_size, lambda done, total: None, 1)


def test_perplexity_with_bf16_is_that_of_transformers(
    evaluation: Evaluation, loaded: LoadedModel, reference: Callable[[np.ndarray], torch.Tensor]
) -> None:
    report = evaluation.run(loaded)
    for material in evaluation.materials:
        expected = [
            -reference(window)[range(len(window) - 1), window[1:].tolist()].numpy() for window in material.windows
        ]
        quality = report.formats[0].at(material.context)
        assert quality.num_tokens == sum(map(len, expected))
        assert quality.perplexity == pytest.approx(math.exp(np.concatenate(expected).mean()), rel=2e-3)


def test_recall_is_that_of_transformers_asked_one_question_at_a_time(
    evaluation: Evaluation, loaded: LoadedModel, reference: Callable[[np.ndarray], torch.Tensor]
) -> None:
    material = evaluation.materials[1]
    measured = measurement(loaded, KV_DTYPES["bf16"])
    found = measured.recall(measured._lanes[0], material.haystacks[:1])
    expected = []
    for question in material.haystacks[0].questions:
        tokens = np.concatenate([material.haystacks[0].tokens, question.tokens])
        answer = range(len(tokens) - question.num_answer_tokens, len(tokens))
        expected.append(sum(reference(tokens)[at - 1, tokens[at]].item() for at in answer))
    assert found.logprobs == pytest.approx(expected, abs=0.1)
    assert found.num_questions == 10


def test_a_format_that_is_bf16_costs_exactly_nothing(evaluation: Evaluation, loaded: LoadedModel) -> None:
    """In a pool of its own, which held another text before."""
    first, second = evaluation.materials[1].windows
    measured = measurement(loaded, KV_DTYPES["bf16"], KV_DTYPES["bf16"])
    measured.window(second)
    bf16, other = measured.window(first)
    assert other.kl.tolist() == [0.0] * (len(first) - 1)
    assert other.agrees.all()
    assert other.nll.tolist() == bf16.nll.tolist()


def test_a_window_says_the_same_after_another_text_and_after_questions(
    evaluation: Evaluation, loaded: LoadedModel
) -> None:
    material = evaluation.materials[1]
    measured = measurement(loaded, KV_DTYPES["bf16"], KV_DTYPES["int8"])
    [_, before] = measured.window(material.windows[0])
    measured.decode_speeds(material.windows[0])
    measured.recall(measured._lanes[1], material.haystacks)
    measured.window(material.windows[1])
    [_, after] = measured.window(material.windows[0])
    assert after.nll.tolist() == before.nll.tolist()


def test_two_runs_are_equal_in_all_but_speed(small_model: Path, cache: Path) -> None:
    runs = [evaluate(small_model, ["int8", "int4-full"], text=PAGES, contexts=[512], max_tokens=1024) for _ in range(2)]
    assert runs[0] == runs[1]
    assert all(each.contexts[0].decode_tokens_per_second > 0 for run in runs for each in run.formats)


def test_formats_are_bf16_and_all_others_that_have_a_name_and_fit(small_model: Path, cache: Path) -> None:
    prepared = prepare(resolve_model(small_model))
    assert list(prepared.formats) == list(KV_DTYPES)
    assert [material.context for material in prepared.materials] == [512]


def test_a_format_counts_once_by_whatever_name(small_model: Path) -> None:
    prepared = prepare(resolve_model(small_model), text=PAGES, formats=["int8:int4", "int4", "bf16:bf16", "int8:fp8"])
    assert list(prepared.formats) == ["bf16", "int4", "int8:fp8"]


def test_layers_at_8_bits_are_evaluated_as_such(small_model: Path, cache: Path) -> None:
    report = evaluate(small_model, ["int4-full"], text=PAGES, contexts=[64], max_tokens=64, kv_8bit_layers=[1])
    assert report.format("int4-full").layers == ("int4:int4", "int8:int8")
    assert report.format("int4-full").bytes_per_token == 2 * 2 * (32 // 2 + 4) + 2 * 2 * (32 + 2)


def test_recall_is_left_out_where_a_context_is_too_short_for_it(small_model: Path, cache: Path) -> None:
    report = evaluate(small_model, ["bf16"], text=PAGES, contexts=[64, 512], max_tokens=512)
    assert report.formats[0].at(64).recall is None
    assert report.formats[0].at(512).recall is not None


def test_progress_ends_at_all_of_it(small_model: Path, cache: Path) -> None:
    told: list[tuple[int, int]] = []
    evaluate(
        small_model, ["int8"], text=PAGES, contexts=[64, 512], max_tokens=600, progress=lambda *both: told.append(both)
    )
    assert told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert len({total for _, total in told}) == 1


@pytest.mark.parametrize("broken", [False, True])
def test_a_report_goes_through_json_unchanged(broken: bool, small_model: Path, cache: Path) -> None:
    report = evaluate(small_model, ["int8"], text=PAGES, contexts=[64, 512], max_tokens=512)
    facts = report.as_json()
    if broken:
        facts["formats"][1]["contexts"][1] |= {"perplexity": None, "kl_mean": None, "kl_p99": None}
        facts["formats"][1]["contexts"][1]["recall"]["logprobs"][0] = None
        report = Report.from_json(facts)
        assert report.perplexity_increase("int8", 512) == math.inf
    text = json.dumps(facts, allow_nan=False)
    again = Report.from_json(json.loads(text))
    assert again == report
    assert again.as_json() == facts


def test_bytes_of_a_lane_are_what_its_pool_takes(loaded: LoadedModel) -> None:
    for each in KV_DTYPES.values():
        layers = [each] * loaded.spec.num_layers
        assert Lane(loaded.spec, loaded.model, layers, 100)._pool.nbytes == lane_bytes(loaded.spec, layers, 100)


def test_rows_of_logits_stay_few_where_the_vocabulary_is_large() -> None:
    assert [rows_at_once(size) for size in (300, 49_152, 262_144, 2**24)] == [128, 128, 32, 16]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"formats": ["int9"]}, "kv_dtype must be one of"),
        ({"formats": []}, "formats must be a list of KV formats"),
        ({"formats": "int8"}, "formats must be a list of KV formats"),
        ({"contexts": [8]}, "a whole number from 16 to 1024"),
        ({"contexts": [1025]}, "a whole number from 16 to 1024"),
        ({"contexts": ["512"]}, "a whole number from 16 to 1024"),
        ({"formats": 8}, "formats must be a list of KV formats"),
        ({"formats": iter(["int8"])}, "formats must be a list of KV formats"),
        ({"contexts": []}, "contexts must be a list"),
        ({"contexts": iter([512])}, "contexts must be a list"),
        ({"contexts": 512.0}, "contexts must be a list"),
        ({"contexts": b"AB"}, "contexts must be a list"),
        ({"text": "a page"}, "text must be a Text, as read_text makes one"),
        ({"max_tokens": 0}, "max_tokens must be a whole number from 1"),
        ({"kv_8bit_layers": [2]}, "layers 0 to 1"),
        ({"text": Text("mine", "too short")}, r"'mine' has \d tokens, too few for a context of 512 tokens"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(settings: dict[str, Any], message: str, small_model: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(resolve_model(small_model), **{"text": PAGES, **settings})


@pytest.mark.parametrize("settings", [{"threads": 0}, {"threads": 2**40}, {"threads": "2"}, {"isa": "foo"}])
def test_what_no_engine_starts_with_is_refused_before_the_model_is_looked_for(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        evaluate("no-such-model", **settings)


def test_a_format_that_the_head_dim_does_not_suit_is_refused_when_it_is_named(tmp_path: Path) -> None:
    from random_models import random_model
    from transformers import LlamaConfig

    shape = {"hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 3, "num_key_value_heads": 3}
    config = LlamaConfig(vocab_size=256, num_hidden_layers=1, head_dim=16, **shape)
    random_model(config).save_pretrained(tmp_path)
    source = resolve_model(tmp_path)
    with pytest.raises(ConfigError, match="head_dim"):
        prepare(source, ["int4"])


def test_the_default_text_is_long_enough_for_the_defaults() -> None:
    """Also at ten characters a token, twice what English has."""
    assert len(default_text().content) > 10 * max(DEFAULT_MAX_TOKENS, *DEFAULT_CONTEXTS)


def test_what_this_machine_has_no_memory_for_is_refused_before_weights_are_read(
    small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = prepare(resolve_model(small_model), text=PAGES, contexts=[64]).nbytes
    monkeypatch.setattr("octavo.evaluate.evaluation.free_memory", lambda: needed - 1)
    monkeypatch.setattr("octavo.evaluate.evaluation.load_model", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(CapacityError, match=f"takes {needed:,} bytes.* {needed - 1:,} bytes are free"):
        evaluate(small_model, text=PAGES, contexts=[64])
