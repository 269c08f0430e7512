"""The gate: no start with 4-bit keys unless a stored evaluation of this very model passes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from octavo.config import EngineConfig
from octavo.errors import ConfigError, KVQualityError
from octavo.evaluate import Report, Text, default_text, evaluate
from octavo.evaluate.gate import check_kv_quality, is_sufficient, shortcomings, verdict
from octavo.evaluate.store import Place, store
from octavo.model.source import resolve_model
from octavo.model.weights import LoadedModel, load_model
from octavo.planner import kv_formats

PAGES = Text("some pages", default_text().content[:20_000])
FULL = EngineConfig(kv_dtype="int4-full")


@pytest.fixture(scope="module")
def loaded(small_model: Path) -> LoadedModel:
    return load_model(resolve_model(small_model), threads=1)


@pytest.fixture(scope="module")
def good_report(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A real one, which a random model's even predictions let pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OCTAVO_CACHE", str(tmp_path_factory.mktemp("cache")))
        return evaluate(small_model, ["int4-full"], text=PAGES, contexts=[512], max_tokens=4608)


def changed(report: Report, *, recall_lost: float = 0.0, **changes: Any) -> Report:
    """The same report with another outcome for its last format at its longest context."""
    bf16, other = report.formats
    quality = replace(other.contexts[-1], **changes)
    if recall_lost:
        assert quality.recall is not None
        logprobs = tuple(value - recall_lost for value in bf16.contexts[-1].recall.logprobs)  # type: ignore[union-attr]
        quality = replace(quality, recall=replace(quality.recall, logprobs=logprobs))
    return replace(report, formats=(bf16, replace(other, contexts=(*other.contexts[:-1], quality))))


def place(small_model: Path, loaded: LoadedModel, config: EngineConfig = FULL) -> Place:
    spec = resolve_model(small_model).spec
    return Place.of(loaded, spec, kv_formats(spec, config))


def check(small_model: Path, loaded: LoadedModel, config: EngineConfig = FULL) -> None:
    check_kv_quality(resolve_model(small_model), loaded, config)


def test_without_an_evaluation_a_start_is_refused_and_says_what_to_run(
    small_model: Path, loaded: LoadedModel, cache: Path
) -> None:
    with pytest.raises(KVQualityError) as refused:
        check(small_model, loaded)
    assert f"octavo eval-kv {shlex.quote(str(small_model))} --formats int4-full" in str(refused.value)
    assert "--no-kv-quality-gate" in str(refused.value)
    assert isinstance(refused.value, ConfigError)


def test_the_command_it_names_evaluates_what_was_asked_for(small_model: Path, loaded: LoadedModel, cache: Path) -> None:
    config = EngineConfig(kv_dtype="int4:fp8", kv_8bit_layers=[0], isa="generic")
    with pytest.raises(KVQualityError, match="--formats int4:fp8 --kv-8bit-layers 0 --isa generic"):
        check(small_model, loaded, config)


def test_an_evaluation_opens_the_gate_for_its_model_alone(
    small_model: Path, loaded: LoadedModel, good_report: Report, cache: Path
) -> None:
    assert shortcomings(good_report) == []
    store(place(small_model, loaded), good_report)
    check(small_model, loaded)
    other = replace(loaded, weights_digest=bytes(32))
    with pytest.raises(KVQualityError, match="there is no evaluation"):
        check(small_model, other)


def test_an_engine_asks_the_gate(small_model: Path, cache: Path) -> None:
    settings: dict[str, Any] = {"kv_dtype": "int4-full", "kv_memory": "1MiB", "threads": 1}
    with pytest.raises(KVQualityError, match="there is no evaluation"):
        LLM(small_model, **settings)
    evaluate(small_model, ["int4-full"], text=PAGES, contexts=[512], max_tokens=4608)
    with LLM(small_model, **settings) as llm:
        assert llm.summary.kv_dtype == "int4-full"


def test_an_explicit_setting_overrides_the_gate(small_model: Path, loaded: LoadedModel, cache: Path) -> None:
    check(small_model, loaded, EngineConfig(kv_dtype="int4-full", kv_quality_gate=False))


@pytest.mark.parametrize(
    "settings",
    [
        {"kv_dtype": "bf16"},
        {"kv_dtype": "int8"},
        {"kv_dtype": "fp8"},
        {"kv_dtype": "int4"},
        {"kv_dtype": "int4-full", "kv_8bit_layers": [0, 1]},
    ],
)
def test_without_4_bit_keys_there_is_no_gate(
    settings: dict[str, Any], small_model: Path, loaded: LoadedModel, cache: Path
) -> None:
    check(small_model, loaded, EngineConfig(**settings))


def test_a_perplexity_that_is_too_high_is_refused_with_its_figures(
    small_model: Path, loaded: LoadedModel, good_report: Report, cache: Path
) -> None:
    bf16 = good_report.formats[0].contexts[-1].perplexity
    store(place(small_model, loaded), changed(good_report, perplexity=1.07 * bf16))
    with pytest.raises(KVQualityError) as refused:
        check(small_model, loaded)
    for figure in (f"{1.07 * bf16:.3f}", f"{bf16:.3f}", "+7.0%", "at most +5.0%", "at 512 tokens"):
        assert figure in str(refused.value)


def test_a_recall_that_collapsed_is_refused_with_its_figures(
    small_model: Path, loaded: LoadedModel, good_report: Report, cache: Path
) -> None:
    store(place(small_model, loaded), changed(good_report, recall_lost=2.5))
    with pytest.raises(KVQualityError, match=r"-2\.50 nats at 512 tokens against bf16 \(at least -1\.00\)"):
        check(small_model, loaded)


@pytest.mark.parametrize("perplexity", [float("inf"), float("nan")])
def test_figures_that_are_no_numbers_do_not_pass(perplexity: float, good_report: Report) -> None:
    assert len(shortcomings(changed(good_report, perplexity=perplexity))) == 1
    assert len(shortcomings(changed(good_report, recall_lost=float("inf")))) == 1


def test_the_longest_context_counts(good_report: Report) -> None:
    bf16, other = good_report.formats
    [short] = other.contexts
    bad, longer = replace(short, perplexity=9 * short.perplexity), replace(short, context=1024)
    reference = replace(bf16, contexts=(bf16.contexts[0], replace(bf16.contexts[0], context=1024)))
    assert shortcomings(replace(good_report, formats=(reference, replace(other, contexts=(bad, longer))))) == []
    bad = replace(bad, context=1024)
    assert shortcomings(replace(good_report, formats=(reference, replace(other, contexts=(short, bad))))) != []


def test_damage_is_no_evaluation_and_no_crash(
    small_model: Path, loaded: LoadedModel, good_report: Report, cache: Path
) -> None:
    where = place(small_model, loaded)
    store(where, good_report)
    where.path.write_bytes(where.path.read_bytes()[:-20])
    with pytest.raises(KVQualityError, match="there is no evaluation"):
        check(small_model, loaded)


@pytest.mark.parametrize("settings", [{"contexts": [256], "max_tokens": 4608}, {"contexts": [512], "max_tokens": 1024}])
def test_a_quick_look_opens_nothing_and_replaces_nothing(
    settings: dict[str, Any], small_model: Path, loaded: LoadedModel, good_report: Report, cache: Path
) -> None:
    report = evaluate(small_model, ["int4-full"], text=PAGES, **settings)
    assert not is_sufficient(report, loaded.spec)
    assert "too shortly" in verdict(report.only("int4-full"), loaded.spec)
    with pytest.raises(KVQualityError, match="there is no evaluation"):
        check(small_model, loaded)
    store(place(small_model, loaded), good_report)
    evaluate(small_model, ["int4-full"], text=PAGES, **settings)
    check(small_model, loaded)


def test_a_lesser_evaluation_does_not_replace_a_longer_one(
    small_model: Path, loaded: LoadedModel, good_report: Report, cache: Path
) -> None:
    """Close to a limit chance decides: nobody shall pass by asking for less until it does."""
    bf16, other = changed(good_report, perplexity=1.07 * good_report.formats[0].contexts[-1].perplexity).formats
    longer = [replace(each, contexts=(replace(each.contexts[-1], context=1024),)) for each in (bf16, other)]
    store(place(small_model, loaded), replace(good_report, formats=tuple(longer)))
    evaluate(small_model, ["int4-full"], text=PAGES, contexts=[512], max_tokens=4608)
    with pytest.raises(KVQualityError, match="at 1,024 tokens"):
        check(small_model, loaded)
    store(place(small_model, loaded), changed(good_report, perplexity=1.07 * bf16.contexts[-1].perplexity))
    evaluate(small_model, ["int4-full"], text=PAGES, contexts=[512], max_tokens=4608)
    check(small_model, loaded)


def test_all_of_a_short_model_is_enough(good_report: Report, loaded: LoadedModel) -> None:
    quality = replace(good_report.formats[0].contexts[0], context=384)
    report = replace(good_report, formats=(replace(good_report.formats[0], contexts=(quality,)),))
    assert not is_sufficient(report, loaded.spec)
    assert is_sufficient(report, replace(loaded.spec, max_position_embeddings=384))


def test_verdicts_are_in_words(good_report: Report, loaded: LoadedModel) -> None:
    assert verdict(good_report, loaded.spec) == "passes the quality gate"
    assert verdict(changed(good_report, recall_lost=3.0), loaded.spec).startswith(
        "does not pass the quality gate: facts"
    )
