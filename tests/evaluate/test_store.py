"""Evaluations are kept whole and found again; whatever else lies in their place is no evaluation."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.evaluate.report import ContextQuality, FormatReport, Recall, Report
from octavo.evaluate.store import MAX_BYTES, Place, store, stored

PLACE = Place("aa", "bb", ("int4:int4", "int8:int8"), 1, "generic:cc")


def report_of(place: Place) -> Report:
    quality = ContextQuality(512, 4088, 14.7, 0.01, 0.2, 0.95, Recall((0.1, 0.9), (-3.0, -2.5), 0.5, 40), 100.0)
    return Report(
        "tiny",
        "generic",
        2,
        "text",
        "dd",
        (
            FormatReport("bf16", ("bf16:bf16",) * 2, 100, (quality,)),
            FormatReport("int4-full", place.layers, 40, (replace(quality, perplexity=15.1),)),
        ),
    )


def test_what_was_stored_is_found_again(cache: Path) -> None:
    assert stored(PLACE) is None
    store(PLACE, report_of(PLACE))
    assert stored(PLACE) == report_of(PLACE)
    assert PLACE.path.parent == cache / "evaluations"
    assert len(list(PLACE.path.parent.iterdir())) == 1


def test_the_latest_evaluation_counts(cache: Path) -> None:
    store(PLACE, report_of(PLACE))
    later = replace(report_of(PLACE), text="another")
    store(PLACE, later)
    assert stored(PLACE) == later


@pytest.mark.parametrize(
    "change",
    [
        {"weights_digest": "ab"},
        {"spec_digest": "bc"},
        {"layers": ("int4:int4", "int4:int4")},
        {"layout_version": 2},
        {"numerics_id": "avx2:cc"},
    ],
)
def test_whatever_changes_the_figures_is_another_place(change: dict[str, Any], cache: Path) -> None:
    other = replace(PLACE, **change)
    store(PLACE, report_of(PLACE))
    assert other.path != PLACE.path
    assert stored(other) is None
    other.path.write_bytes(PLACE.path.read_bytes())
    assert stored(other) is None


def cut_short(data: bytes) -> bytes:
    return data[: len(data) // 2]


def a_figure_changed(data: bytes) -> bytes:
    assert data.count(b"15.1") == 1
    return data.replace(b"15.1", b"14.1")


def another_version(data: bytes) -> bytes:
    return json.dumps(json.loads(data) | {"version": 2}).encode()


DAMAGE: list[Callable[[bytes], bytes]] = [
    cut_short,
    a_figure_changed,
    another_version,
    lambda data: b"",
    lambda data: b"[]",
    lambda data: b"null",
    lambda data: b"{}",
    lambda data: b"\xff\xfe",
    lambda data: b"[" * 100_000,
    lambda data: b"9" * 10_000,
    lambda data: data + b" " * MAX_BYTES,
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_no_evaluation(
    damage: Callable[[bytes], bytes], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store(PLACE, report_of(PLACE))
    PLACE.path.write_bytes(damage(PLACE.path.read_bytes()))
    assert stored(PLACE) is None
    assert "is not used" in caplog.text
    store(PLACE, report_of(PLACE))
    assert stored(PLACE) == report_of(PLACE)


WRONG: list[Callable[[dict[str, Any]], Any]] = [
    lambda report: report["formats"].pop(),
    lambda report: report["formats"][0].update(contexts=[]),
    lambda report: report["formats"][1].update(contexts=[]),
    lambda report: report["formats"][1]["contexts"][0].update(context=1024),
    lambda report: report["formats"][1].update(layers=["bf16:bf16"]),
    lambda report: report["formats"][1]["contexts"][0].update(perplexity=0),
    lambda report: report["formats"][1]["contexts"][0].update(perplexity=float("nan")),
    lambda report: report["formats"][1]["contexts"][0]["recall"].update(depths=[]),
    lambda report: report["formats"][1]["contexts"][0].update(recall="none"),
    lambda report: report.update(threads=[]),
]


@pytest.mark.parametrize("change", WRONG)
def test_a_sound_file_with_impossible_figures_is_no_evaluation(
    change: Callable[[dict[str, Any]], Any], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = report_of(PLACE).as_json()
    change(facts)
    store(PLACE, type("Forged", (), {"as_json": lambda self: facts})())  # type: ignore[arg-type]
    assert stored(PLACE) is None


def test_a_folder_in_its_place_is_no_evaluation(cache: Path) -> None:
    PLACE.path.mkdir(parents=True)
    assert stored(PLACE) is None


@pytest.mark.parametrize("target", ["pipe", "/dev/zero", "itself", "nothing"])
def test_what_is_no_file_is_no_evaluation_and_is_not_waited_for(target: str, cache: Path) -> None:
    PLACE.path.parent.mkdir(parents=True)
    os.mkfifo(cache / "pipe")
    PLACE.path.symlink_to({"pipe": cache / "pipe", "itself": PLACE.path}.get(target, Path(target)))
    assert stored(PLACE) is None
    store(PLACE, report_of(PLACE))
    assert stored(PLACE) == report_of(PLACE)


def test_a_cache_that_cannot_be_written_loses_the_evaluation_and_says_so(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write_text("no folder")
    with caplog.at_level(logging.WARNING):
        store(PLACE, report_of(PLACE))
    assert "cannot keep the evaluation" in caplog.text
    assert stored(PLACE) is None


def test_without_a_home_nothing_is_kept_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", "~no-such-user/cache")
    store(PLACE, report_of(PLACE))
    assert "there is no folder for the cache" in caplog.text


def test_it_is_for_its_owner_alone(cache: Path) -> None:
    store(PLACE, report_of(PLACE))
    assert PLACE.path.stat().st_mode & 0o077 == 0
