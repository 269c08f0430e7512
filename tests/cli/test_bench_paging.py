"""`octavo bench paging`: both ways serve the same load from the same memory, and what it says of memory adds up."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterator
from contextlib import closing, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from octavo import cli
from octavo.cli import pictures
from octavo.cli.bench import load, paging
from octavo.cli.bench.results import MemoryUse, PagingResult, ServedUse
from octavo.config import EngineConfig
from octavo.engine.assemble import assemble
from octavo.engine.engine import Engine
from octavo.errors import OctavoError
from octavo.planner.contiguous import Held, Lengths

OPTIONS = ("--requests", 16, "--max-model-len", 256, "--repeats", 2)


@pytest.fixture(scope="module")
def measured(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """One run of the command: what its JSON says, and the picture it drew."""
    picture = tmp_path_factory.mktemp("paging") / "paging.png"
    arguments = ["bench", "paging", "--model", tiny_model, *OPTIONS, "--json", "--output", picture]
    with redirect_stdout(StringIO()) as shown:
        assert cli.main([str(argument) for argument in arguments]) == 0
    assert str(tiny_model.parent) not in shown.getvalue()
    return json.loads(shown.getvalue()), picture


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[Engine]:
    with closing(assemble(tiny_model, EngineConfig(kv_memory="64KiB", max_model_len=128)).engine) as engine:
        yield engine


def test_paged_more_sequences_fit_and_more_of_the_memory_is_real_tokens(measured):
    result, _ = measured
    contiguous, paged = result["contiguous"], result["paged"]
    assert contiguous["most_running"] == 2 and paged["most_running"] > 2
    assert paged["mean_running"] > contiguous["mean_running"]
    assert paged["share_real"] > contiguous["share_real"]
    assert paged["share_real_of_reserved"] > 0.7 > contiguous["share_real_of_reserved"]


def test_the_figures_add_up(measured):
    result, _ = measured
    assert (result["num_requests"], result["max_model_len"], result["block_size"]) == (16, 256, 16)
    assert result["kv_tokens"] == 2 * 256
    for way in (result["contiguous"], result["paged"], *result["guesses"].values()):
        shares = [way[f"share_{part}"] for part in ("real", "later", "unused", "free")]
        assert sum(shares) == pytest.approx(1) and min(shares) >= -1e-9
    for way in (result["contiguous"], result["paged"]):
        assert len(way["seconds"]) == 2
        seconds = statistics.median(way["seconds"])
        assert way["tokens_per_second"] == pytest.approx(result["num_output_tokens"] / seconds)
        assert len(way["moments"]) == len(way["num_running"]) == len(way["num_tokens"]) == len(way["num_reserved"])
        assert way["moments"] == sorted(way["moments"])
        assert max(way["num_reserved"]) <= result["kv_tokens"]
        assert way["num_running"][-1] == way["num_tokens"][-1] == way["num_reserved"][-1] == 0
    assert result["contiguous"]["num_preemptions"] == result["contiguous"]["num_recomputed_tokens"] == 0


def test_a_better_guess_of_the_length_lets_more_run(measured):
    result, _ = measured
    running = [result["contiguous"]["mean_running"]]
    running += [result["guesses"][name]["mean_running"] for name in ("power_of_two", "exact")]
    assert running == sorted(running) and running[0] < running[-1]


def test_the_picture_is_drawn(measured):
    _, picture = measured
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert 10_000 < picture.stat().st_size < 150_000


def test_the_picture_names_its_bars_and_says_what_was_simulated(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(pictures, "_save", lambda figure, path: drawn.append(figure))
    pictures.draw_paging(some_result(), tmp_path / "some.png")
    shares, running, speed = drawn[0].axes
    assert [label.get_text() for label in shares.get_xticklabels()][-1] == "paged"
    assert "simulated" in shares.get_title(loc="left")
    assert [len(line.get_ydata()) for line in running.lines] == [3, 3]
    assert [label.get_text() for label in speed.get_xticklabels()] == ["reserved", "paged"]


def test_the_table_fits_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    paging._show(some_result())
    shown = capsys.readouterr().out
    assert "2.00 times as fast" in " ".join(shown.split())
    [row] = [line for line in shown.splitlines() if "reserved: longest" in line]
    assert "12,345" in row


def some_result() -> PagingResult:
    steps = [Held(2, 1, 4, 2, 14), Held(2, 0, 6, 0, 14), Held(0, 0, 0, 0, 0)]
    use, moments = MemoryUse(20, steps), [0.1, 0.2, 0.3]
    return PagingResult(
        engine="a model",
        kv_dtype="bf16",
        kv_bytes=10**12,
        block_size=16,
        max_model_len=10,
        seed=0,
        load=[Lengths(2, 12_345)],
        contiguous=ServedUse(use, [1.0], moments, 0, 0),
        guesses={"power_of_two": use, "exact": use},
        paged=ServedUse(use, [0.5], moments, 3, 40),
    )


def test_shares_are_means_until_nobody_waits():
    use = some_result().paged.use
    assert (use.real, use.later, use.unused, use.free) == pytest.approx((5 / 20, 1 / 20, 14 / 20, 0))
    assert use.real_of_reserved == pytest.approx(5 / 20)
    assert (use.mean_running, use.most_running) == (2, 2)


def test_sequences_that_end_in_the_step_that_admits_them_hold_nothing():
    """As with prompts and replies of one token each."""
    use = MemoryUse(20, [Held(0, 1, 0, 0, 0), Held(0, 0, 0, 0, 0)])
    assert (use.real, use.real_of_reserved, use.free, use.most_running) == (0, 0, 1, 0)


def test_a_load_is_mixed_fits_the_context_and_is_the_same_for_the_same_seed():
    requests = load.mixed_load(random.Random(7), 4000, 2048)
    assert requests == load.mixed_load(random.Random(7), 4000, 2048)
    assert all(request.num_tokens <= 2048 for request in requests)
    assert min(min(request.num_prompt_tokens, request.num_output_tokens) for request in requests) >= 1
    assert statistics.fmean(request.num_prompt_tokens for request in requests) == pytest.approx(161, rel=0.1)
    assert statistics.fmean(request.num_output_tokens for request in requests) == pytest.approx(338, rel=0.1)


@pytest.mark.parametrize("longest", [2, 3])
def test_a_load_fits_the_least_context_too(longest):
    assert all(request.num_tokens <= longest for request in load.mixed_load(random.Random(0), 100, longest))


def test_what_is_held_is_what_the_engine_holds_and_a_run_leaves_nothing_behind(engine):
    requests = [Lengths(40, 30), Lengths(7, 60), Lengths(90, 10)]
    prompts = [[5 + number] * lengths.num_prompt_tokens for number, lengths in enumerate(requests)]
    first, second = (load.serve(engine, requests, prompts, 3) for _ in range(2))
    assert [len(reply) for reply in first.replies] == [30, 60, 10]
    assert first.replies == second.replies and first.steps == second.steps
    assert first.num_recomputed_tokens >= 0
    # The blocks of prompts hold 48, 16 and 96 tokens; the answers will fill them all.
    assert first.steps[0] == Held(3, 0, num_tokens=40 + 7 + 90, num_later=8 + 9 + 6, num_unused=0)
    assert all(held.num_reserved % 16 == 0 for held in first.steps)
    engine.check_idle()


def test_a_reply_or_a_step_that_differs_fails():
    steps = [Held(1, 0, 1, 0, 0)]
    one, other = load.Run(steps, [0.1], [[1, 2]]), load.Run(steps, [0.1], [[1, 3]])
    paging._check(steps, [one], [one])
    with pytest.raises(OctavoError, match="reply 0 differs"):
        paging._check(steps, [one], [other])
    with pytest.raises(OctavoError, match="the engine ran other sequences"):
        paging._check([Held(2, 0, 1, 0, 0)], [one], [one])


# Bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--kv-memory", "20KiB", "--max-model-len", 512), ("20,480 bytes", "512 tokens", "raise kv_memory")),
        (("--requests", 2), ("2 sequences", "--requests", "--kv-memory")),
        (("--max-model-len", 10_000), ("10000", "512")),
        (("--kv-memory", "much"), ("'much'",)),
        (("--kv-dtype", "int3"), ("int3", "int8")),
    ],
)
def test_what_cannot_be_measured_is_one_line(options, words, tiny_model, capsys):
    arguments = ["bench", "paging", "--model", tiny_model, *options]
    assert cli.main([str(argument) for argument in arguments]) == 1
    shown = capsys.readouterr()
    error = shown.err.splitlines()[-1]
    assert shown.out == "" and error.startswith("octavo: error:")
    for word in words:
        assert word in error


@pytest.mark.parametrize("options", [("--requests", "1"), ("--requests", "1000000000000"), ("--max-model-len", "1")])
def test_what_is_out_of_range_is_refused_before_anything_is_loaded(options, capsys):
    assert cli.main(["bench", "paging", "--model", "no-such-model", *options]) == 2
    assert options[0] in capsys.readouterr().err


def test_it_has_help(capsys):
    assert cli.main(["bench", "paging", "--help"]) == 0
    assert "--kv-memory" in capsys.readouterr().out
