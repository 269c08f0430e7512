"""`octavo plan`: from a configuration alone to flags that start an engine of the bytes it said."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hf_configs import REAL

from octavo import LLM, cli
from octavo.formats.kv_format import KV_DTYPES
from octavo.model.gguf_source import GgufSource
from octavo.model.hf_config import spec_from_hf_config
from octavo.planner import compare, solve

LLAMA = spec_from_hf_config(REAL["Llama-3.1-8B"])
Run = Callable[..., str]


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A folder with nothing but a config.json."""
    (tmp_path / "config.json").write_text(json.dumps(REAL["Llama-3.1-8B"]))
    return tmp_path


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `octavo plan` in this process and return what it printed."""

    def run(*arguments: object) -> str:
        status = cli.main(["plan", *map(str, arguments)])
        shown = capsys.readouterr()
        assert (status, shown.err) == (0, "")
        return shown.out

    return run


def test_the_table_has_every_format_with_its_bytes_and_what_fits(plan: Run, llama: Path) -> None:
    shown = plan(llama, "--memory", "24GiB", "--context", "16k")
    rows = {cells[0]: cells[1:] for line in shown.splitlines() if (cells := line.lstrip("> ").split())}
    for row in compare(LLAMA, memory="24GiB", context=16384):
        assert row.plan is not None
        costs = (row.bytes_per_token, row.bytes_per_block, 16384, row.plan.concurrency, row.plan.kv_bytes)
        assert rows[row.kv_dtype][:5] == [f"{number:,}" for number in costs]
    assert "> bf16" in shown and "> int8" not in shown
    assert "int4-full: after octavo eval-kv" in shown


def test_what_a_format_lacks_stands_in_its_row(plan: Run, llama: Path) -> None:
    shown = plan(llama, "--memory", "24GiB", "--context", "16k", "--concurrency", 8)
    assert "Solved for format" in shown and "> int8" in shown
    assert "-7.09 GiB" in shown and "bf16 does not fit." in shown


def test_it_says_what_mha_would_have_cost(plan: Run, llama: Path) -> None:
    shown = plan(llama, "--memory", "24GiB", "--kv-dtype", "int8")
    assert "GQA: 32 heads share the keys and values of 8." in shown
    assert "266,240 bytes instead of 66,560, 4.0 times as much" in shown


@pytest.mark.parametrize(
    ("left_out", "given"),
    [
        ("memory", ["--context", "8k", "--concurrency", 8, "--kv-dtype", "fp8"]),
        ("context", ["--memory", "32GiB", "--concurrency", 8, "--kv-dtype", "fp8"]),
        ("concurrency", ["--memory", "32GiB", "--context", "8k", "--kv-dtype", "fp8"]),
        ("kv_dtype", ["--memory", "32GiB", "--context", "8k", "--concurrency", 8]),
        ("nothing", ["--memory", "32GiB", "--context", "8k", "--concurrency", 8, "--kv-dtype", "fp8"]),
    ],
)
def test_what_is_left_out_is_found(plan: Run, llama: Path, left_out: str, given: list[object]) -> None:
    found = json.loads(plan(llama, *given, "--json"))["plan"]
    question = {str(option).removeprefix("--").replace("-", "_"): value for option, value in _pairs(given)}
    expected = solve(LLAMA, **question)  # type: ignore[arg-type]
    assert (found["solved"], expected.solved) == (left_out, left_out)
    assert (found["memory"], found["kv_bytes"]) == (expected.memory, expected.kv_bytes)


def _pairs(given: list[object]) -> list[tuple[object, object]]:
    return list(zip(given[::2], given[1::2], strict=True))


def test_with_nothing_given_it_plans_for_the_memory_that_is_free(plan: Run, tiny_model: Path) -> None:
    from octavo.planner import free_memory

    before = free_memory()
    found = json.loads(plan(tiny_model, "--json"))["plan"]
    assert found["memory"] == pytest.approx(before, rel=0.5)
    assert found["solved"] == "concurrency"


@pytest.mark.parametrize("options", [["--kv-dtype", "fp8:int8"], ["--block-size", 64, "--kv-8bit-layers", "0-1"]])
def test_the_flags_start_an_engine_of_the_planned_bytes(plan: Run, octavo: Any, tiny_model: Path, options: Any) -> None:
    answer = json.loads(plan(tiny_model, "--memory", "200MiB", "--context", 200, *options, "--json"))
    there = json.loads(octavo("info", tiny_model, "--json", *answer["flags"]).stdout)["kv_cache"]
    assert there["bytes"] == answer["plan"]["kv_bytes"]
    assert (there["max_model_len"], there["kv_dtype"]) == (200, answer["plan"]["kv_dtype"])
    done = octavo("generate", "-m", tiny_model, "--raw", "a", "--max-tokens", 1, *answer["flags"])
    assert done.returncode == 0, done.stderr


def test_the_start_says_the_format_and_what_was_planned_and_allocated(smollm2_gguf: Path) -> None:
    settings = solve(
        GgufSource(smollm2_gguf, "smollm2").spec,
        context="1k",
        concurrency=2,
        kv_dtype="int4",
        kv_8bit_layers=[29, 0],
    ).settings
    with LLM(smollm2_gguf, **settings) as llm:
        summary = llm.summary
    size = settings["kv_memory"]
    assert summary.planned_bytes == summary.allocated_bytes == size
    assert f"in int4 (8 bits in layers 0, 29), planned {size:,} bytes, allocated {size:,}; context 1,024" in str(
        summary
    )


def test_the_line_to_start_with_can_be_pasted(plan: Run, tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(REAL["Qwen3-0.6B"]))
    shown = plan(folder, "--memory", "8GiB", "--context", "2k", "--kv-dtype", "int4", "--kv-8bit-layers", "0,26-27")
    [line] = re.findall(r"^It starts with: (.*)$", shown, re.M)
    words = shlex.split(line)
    assert words[:3] == ["octavo", "chat", str(folder)]
    assert words[words.index("--kv-8bit-layers") + 1] == "0,26,27"


def test_layers_with_a_window_are_counted_by_it(plan: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(REAL["gemma-3-1b"]))
    shown = plan(tmp_path, "--memory", "8GiB", "--context", "32k")
    assert "26 layers, 22 of them with a window of 512" in shown
    assert "MQA: 4 heads share the keys and values of 1." in shown

    windowed = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 4096}
    of_llama = {"attention_bias", "mlp_bias", "pretraining_tp", "rope_scaling"}
    mistral = {key: value for key, value in REAL["Llama-3.1-8B"].items() if key not in of_llama} | windowed
    (tmp_path / "config.json").write_text(json.dumps(mistral))
    assert "32 layers, all of them with a window of 4,096" in plan(tmp_path, "--memory", "24GiB", "--context", "32k")


def test_a_gguf_file_is_planned_by_its_header(plan: Run, smollm2_gguf: Path) -> None:
    shown = json.loads(plan(smollm2_gguf, "--memory", "1GiB", "--json"))
    assert {row["kv_dtype"]: row["bytes_per_token"] for row in shown["formats"]} == {
        "bf16": 23_040,
        "int8": 11_880,
        "fp8": 11_880,
        "int4": 9_540,
        "int4-full": 7_200,
    }


def test_json_has_every_format_and_no_other_word(plan: Run, llama: Path) -> None:
    shown = json.loads(plan(llama, "--memory", "24GiB", "--context", "16k", "--concurrency", 8, "--json"))
    assert [row["kv_dtype"] for row in shown["formats"]] == [*KV_DTYPES]
    assert [row["fits"] for row in shown["formats"]] == [False, True, True, True, True]
    assert shown["attention"]["mha_bytes_per_token"] == 4 * shown["attention"]["bytes_per_token"]
    assert "7,611,006,976 bytes too few" in shown["formats"][0]["refusal"]


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--memory", "24GiB", "--context", "128k", "--concurrency", 8], 1, ["too few", "a context of 29,200 tokens"]),
        (["--memory", "4GiB"], 1, ["bytes too few in 4,294,967,296", "memory of 16,"]),
        (["--context", "8q"], 1, ["'8q'", "8k"]),
        (["--context", "200k"], 1, ["204,800", "131,072"]),
        (["--memory", "big"], 1, ["'big'"]),
        (["--concurrency", "0"], 1, ["concurrency", "512"]),
        (["--concurrency", "many"], 2, ["--concurrency"]),
        (["--kv-dtype", "int3"], 1, ["kv_dtype", "int3", "int4-full"]),
        (["--kv-8bit-layers", "3-1"], 2, ["'3-1'", "0,1,28-29"]),
        (["--kv-8bit-layers", ""], 2, ["layers"]),
        (["--kv-8bit-layers", "40"], 1, ["layer 40", "0 to 31"]),
        (["--block-size", "17"], 1, ["block_size"]),
    ],
)
def test_what_cannot_be_read_or_met_is_one_line(
    assert_one_line_error_in_process: Any, llama: Path, options: list[object], status: int, words: list[str]
) -> None:
    assert_one_line_error_in_process(["plan", str(llama), *map(str, options)], status, *words)


def test_a_format_that_the_head_dim_cannot_hold_is_refused_alone_and_noted_in_the_table(
    plan: Run, assert_one_line_error_in_process: Any, tiny_model: Path
) -> None:
    """head_dim 16: int4 needs 32."""
    assert_one_line_error_in_process(["plan", str(tiny_model), "--kv-dtype", "int4"], 1, "multiple of 32", "16")
    shown = plan(tiny_model, "--memory", "1GiB")
    assert "int4: needs a head_dim that is a multiple of 32." in shown


def test_of_a_hub_id_the_configuration_alone_is_fetched(plan: Run, llama: Path, monkeypatch: Any) -> None:
    import huggingface_hub

    asked = []

    def snapshot_download(repo_id: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((repo_id, allow_patterns))
        return str(llama)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert "meta-llama/Llama-3.1-8B: 32 layers" in plan("meta-llama/Llama-3.1-8B", "--memory", "24GiB")
    assert asked == [("meta-llama/Llama-3.1-8B", ["config.json"])]
