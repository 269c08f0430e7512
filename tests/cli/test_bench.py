"""`octavo bench`: what it measures adds up, and what it compares is the same to the last bit."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from octavo import LLM, cli
from octavo.cli import pictures
from octavo.cli.bench import cache, disk, measure, prefix, roofline, throughput
from octavo.cli.bench.measure import FirstToken
from octavo.cli.bench.results import DISK_WAYS, CacheResult, DiskPoint, DiskResult
from octavo.errors import OctavoError

TOKENS, PROMPT = 8, 20


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run ``octavo bench`` in this process and return what it wrote to stdout."""
    status = cli.main(["bench", *map(str, arguments)])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    return shown.out


def assert_is_picture(path: Path) -> None:
    """A PNG of a size one can read, with something on it."""
    from matplotlib.image import imread

    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width >= 1000 and height >= 400
    assert len(data) < 150_000
    assert imread(path)[..., :3].std() > 0.01


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures.importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize("command", ["cache", "prefix", "paging", "throughput"])
def test_every_benchmark_has_help(command, capsys):
    assert cli.main(["bench", command, "--help"]) == 0
    assert "--debug" in capsys.readouterr().out


def test_without_a_benchmark_the_help_is_shown(capsys):
    assert cli.main(["bench"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "throughput" in shown.err


# octavo bench cache


def test_cache_times_every_token_both_ways_and_draws_it(tiny_model, tmp_path, capsys):
    picture = tmp_path / "cache.png"
    options = ("--tokens", TOKENS, "--prompt-tokens", PROMPT, "--json", "--output", picture)
    result = json.loads(run(capsys, "cache", "--model", tiny_model, *options))
    cached, uncached = result["with_cache"], result["without_cache"]
    assert (result["num_prompt_tokens"], result["num_output_tokens"]) == (PROMPT, TOKENS)
    assert len(cached["seconds"]) == TOKENS and min(cached["seconds"]) > 0
    assert uncached["steps"] == list(range(TOKENS))
    assert cached["total_seconds"] == pytest.approx(sum(cached["seconds"]))
    assert uncached["total_seconds"] == pytest.approx(sum(uncached["seconds"]))
    assert result["speedup"] == pytest.approx(uncached["total_seconds"] / cached["total_seconds"])
    assert not uncached["total_is_interpolated"]
    assert str(tiny_model.parent) not in json.dumps(result)
    assert_is_picture(picture)


def test_without_the_cache_every_step_computes_the_whole_context(tiny_model):
    with LLM(tiny_model, kv_memory="4MiB") as llm:
        cache._measure(llm, TOKENS, PROMPT, every=1)
        warm_up = PROMPT + 1
        with_cache = PROMPT + TOKENS - 1
        without = sum(PROMPT + step for step in range(TOKENS))
        assert llm.stats().num_computed_tokens == warm_up + 3 * with_cache + without


def test_cache_says_what_it_interpolated_in_words_and_in_the_picture(tiny_model, tmp_path, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(pictures, "_save", lambda figure, path: drawn.append(figure))
    options = ("--tokens", 10, "--prompt-tokens", PROMPT, "--every", 4, "--output", tmp_path / "some.png")
    shown = " ".join(run(capsys, "cache", "--model", tiny_model, *options).split())
    assert "4 of 10 steps were run" in shown and "interpolated" in shown
    legend = " ".join(text.get_text() for text in drawn[0].axes[0].get_legend().get_texts())
    assert "one step in 4 was run" in legend


def test_steps_that_were_not_run_count_with_what_lies_between_their_neighbours():
    result = CacheResult("", 3, every=2, cached=[1.0] * 6, steps=[0, 2, 4, 5], uncached=[1.0, 3.0, 5.0, 6.0])
    assert result.uncached_total == pytest.approx(1 + 2 + 3 + 4 + 5 + 6)
    assert result.speedup == pytest.approx(21 / 6)
    assert result.uncached_fit.slope == pytest.approx(1.0)
    assert result.positions == [3, 4, 5, 6, 7, 8]


def test_cache_fails_if_a_token_or_its_log_probability_differs(tiny_model):
    with LLM(tiny_model, kv_memory="4MiB") as llm:
        reply = cache._with_cache(llm, [5, 6, 7], 4).tokens
        assert cache._without_cache(llm, [5, 6, 7], reply, 3) > 0
        token, logprob = reply[3]
        for wrong in ((token + 1, logprob), (token, logprob * (1 + 2**-22))):
            with pytest.raises(OctavoError, match="token 3 of the reply differs"):
                cache._without_cache(llm, [5, 6, 7], [*reply[:3], wrong], 3)


def test_a_reply_beyond_the_context_is_one_line_with_both_sizes(tiny_model, capsys, context, without_matplotlib):
    assert cli.main(["bench", "cache", "--model", str(tiny_model), "--tokens", "1000"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("octavo: error:") and "1,032" in error and f"{context:,}" in error
    assert "--tokens" in error  # there is no --max-tokens


def test_the_table_of_a_slow_model_fits_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    steps = range(1000)
    uncached = [0.5 + 0.0123 * step for step in steps]
    cache._show(CacheResult("", 32, every=1, cached=[0.4567] * 1000, steps=list(steps), uncached=uncached))
    rows = capsys.readouterr().out.splitlines()
    assert any("6,644 s" in row and "12,179 ms" in row and "+12,300 µs" in row for row in rows)


# octavo bench prefix


def test_prefix_times_the_first_token_for_every_share_and_draws_it(tiny_model, tmp_path, capsys):
    picture = tmp_path / "prefix.png"
    options = ("--prompt-tokens", 100, "--repeats", 2, "--json", "--output", picture)
    result = json.loads(run(capsys, "prefix", "--model", tiny_model, *options))
    points = result["points"]
    assert [point["percent"] for point in points] == list(range(0, 101, 10))
    cached = [point["num_cached_tokens"] for point in points]
    assert cached[:10] == list(range(0, 100, 10))
    assert 90 <= cached[10] < 100  # the last token is always computed
    assert all(len(point["seconds"]) == 2 and min(point["seconds"]) > 0 for point in points)
    assert_is_picture(picture)


def test_prefix_fails_if_the_first_token_depends_on_the_share():
    one, other = FirstToken(7, -1.0, 0, 0.1), FirstToken(7, -1.0000001, 10, 0.1)
    prefix._check([one, one])
    with pytest.raises(OctavoError, match="the first token with 10 tokens cached"):
        prefix._check([one, other])


def test_prefix_shows_a_table(tiny_model, capsys, without_matplotlib):
    shown = run(capsys, "prefix", "--model", tiny_model, "--prompt-tokens", 40, "--repeats", 1)
    assert "50 %" in shown and "20 tokens" in shown


# octavo bench disk


def test_disk_times_the_first_token_from_everywhere_and_leaves_nothing_behind(tiny_model, tmp_path, capsys):
    picture = tmp_path / "disk.png"
    options = ("--prompt-tokens", 100, "--prompt-tokens", 40, "--repeats", 2, "--kv-disk", tmp_path / "here")
    result = json.loads(run(capsys, "disk", "--model", tiny_model, *options, "--json", "--output", picture))
    assert [point["num_prompt_tokens"] for point in result["points"]] == [40, 100]
    for point in result["points"]:
        assert list(point["seconds"]) == list(DISK_WAYS) == list(point["median_seconds"])
        assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in point["seconds"].values())
        cached = point["num_cached_tokens"]
        assert cached["computed"] == 0 and cached["memory"] == point["num_prompt_tokens"] - 1
        whole = (point["num_prompt_tokens"] - 1) // 16 * 16
        assert {cached[way] for way in DISK_WAYS[2:]} <= {0, whole}
    assert list((tmp_path / "here").iterdir()) == []
    assert_is_picture(picture)


def test_disk_fails_if_the_first_token_depends_on_the_place(tiny_model, tmp_path, monkeypatch):
    answers = (FirstToken(7, logprob, 0, 0.1) for logprob in (-1.0, -1.0, -1.0000001, -1.0))
    monkeypatch.setattr(measure, "first_token", lambda llm, prompt: next(answers))
    with (
        LLM(tiny_model, kv_memory="4MiB", kv_disk=tmp_path / "kv") as llm,
        pytest.raises(OctavoError, match="depends on where the prompt was kept"),
    ):
        disk._measure_prompt(llm, [5] * 40, DiskPoint(40), tmp_path / "kv")


def test_disk_shows_a_table_and_says_where_computing_was_quicker(capsys):
    point = DiskPoint(40)
    for way in DISK_WAYS:
        point.seconds[way].append(0.1 if way == "computed" else 0.02)
        point.num_cached_tokens[way] = 0 if way in ("computed", DISK_WAYS[3]) else 32
    disk._show(DiskResult("", [point]))
    shown = capsys.readouterr().out
    assert "100.0 ms" in shown and "(5.0 x)" in shown and "quicker" in shown


# octavo bench throughput


def test_throughput_says_what_it_reached_and_what_it_left_out(tiny_model, capsys, monkeypatch):
    monkeypatch.setattr(roofline, "measure_roof", lambda llm: roofline.Roof(1e10, 1e11))
    options = ("--max-model-len", 200, "--kv-memory", "2MiB", "--repeats", 3)
    result = json.loads(run(capsys, "throughput", "--model", tiny_model, *options, "--json"))
    assert [(f["kind"], f["count"], f["length"]) for f in result["figures"]] == [
        ("decode", 1, 128),
        ("decode", 8, 128),
        ("decode", 16, 128),
        ("decode", 32, 128),
        ("prefill", 1, 128),
        ("prefill", 8, 128),
    ]
    for figure in result["figures"]:
        assert figure["tokens_per_second"] > 0
        assert len(figure["seconds"]) == len(figure["roofs"]) == 3
        assert figure["share_of_limit"] == pytest.approx(
            figure["tokens_per_second"] / figure["limit_tokens_per_second"]
        )
    left_out = {(row["kind"], row["count"], row["length"]): row["why"] for row in result["left_out"]}
    assert len(result["figures"]) + len(left_out) == 11
    assert left_out["decode", 1, 7900] == "needs 7,965 tokens, the context has 200"


def test_a_run_that_is_lost_in_noise_moves_no_median():
    shape, work, roof = throughput.Shape("decode", 2, 10), roofline.Work(8.0, 1.0), roofline.Roof(1.0, 1.0)
    figure = throughput.Figure(shape, work, seconds=[20.0, -1.0, 10.0], roofs=[roof] * 3)
    assert (figure.tokens_per_second, figure.limit, figure.share) == (0.2, 0.25, 0.8)


def test_throughput_with_room_for_no_shape_is_one_line(tiny_model, capsys):
    assert cli.main(["bench", "throughput", "--model", str(tiny_model), "--max-model-len", "100"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("octavo: error:") and "193" in error and "100" in error and "max_model_len" in error


# Pictures, and leaving early


def test_matplotlib_is_asked_for_before_anything_is_loaded(
    without_matplotlib, tmp_path, assert_one_line_error_in_process
):
    arguments = ["bench", "cache", "--model", "no-such-model", "--output", str(tmp_path / "some.png")]
    assert_one_line_error_in_process(arguments, 1, "pip install matplotlib")


def test_without_matplotlib_and_without_a_name_there_is_a_hint_and_no_picture(
    without_matplotlib, tiny_model, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "cache", "--model", str(tiny_model), "--tokens", "3"]) == 0
    shown = capsys.readouterr()
    assert "times faster" in shown.out and "pip install matplotlib" in shown.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["picture.svg", "no-such-folder/picture.png", "folder.png", "long" * 99 + ".png"])
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_loaded(
    name, tmp_path, assert_one_line_error_in_process
):
    (tmp_path / "folder.png").mkdir()
    arguments = ["bench", "prefix", "--model", "no-such-model", "--output", str(tmp_path / name)]
    assert_one_line_error_in_process(arguments, 1, name, "--output")


def test_matplotlib_is_loaded_only_to_draw(environment, tiny_model):
    code = (
        "import sys; from octavo.cli import main; status = main(sys.argv[1:]);"
        "sys.exit(status or any(name.startswith('matplotlib') for name in sys.modules))"
    )
    command = [sys.executable, "-c", code, "bench", "throughput", "-m", tiny_model, "--max-model-len", 128]
    options = ["--kv-memory", "64KiB", "--repeats", 1]  # for one prompt of 128 tokens
    done = subprocess.run([*map(str, command + options)], env=environment, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_ctrl_c_ends_a_benchmark_quietly_with_130_and_leaves_nothing(environment, roomy_model, tmp_path):
    options = ["-m", str(roomy_model), "--tokens", "2000", "--output", str(tmp_path / "some.png")]
    command = [sys.executable, "-m", "octavo", "bench", "cache", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True) as process:
        while "the same reply without the cache" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(timeout=300) == 130
    assert rest.strip() == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["cache", "prefix"])
def test_a_prompt_no_machine_holds_is_refused_before_it_is_made_up(
    command: str, tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.Random.randrange", lambda *_: pytest.fail("a token was drawn"))
    assert cli.main(["bench", command, "--model", str(tiny_model), "--prompt-tokens", str(10**12)]) == 1
    assert "the prompt has 1,000,000,000,000 tokens; the context holds" in capsys.readouterr().err
