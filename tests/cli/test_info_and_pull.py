"""`octavo info` and `octavo pull`: what there is, without starting an engine."""

from __future__ import annotations

import json

from octavo import LLM, _native
from octavo.config import EngineConfig
from octavo.planner import bytes_per_block, bytes_per_token, kv_formats


def test_info_reads_no_weights(octavo, tiny_model, tmp_path):
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    done = octavo("info", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    model = json.loads(done.stdout)["model"]
    assert (model["num_layers"], model["num_heads"], model["num_kv_heads"], model["head_dim"]) == (2, 4, 2, 16)
    assert model["attention"] == "GQA"
    assert model["location"] == str(tmp_path)


def test_info_says_what_the_engine_allocates(octavo, tiny_model):
    done = octavo("info", tiny_model, "--json", "--kv-memory", "1MiB", "--block-size", 32)
    cache = json.loads(done.stdout)["kv_cache"]
    with LLM(tiny_model, kv_memory="1MiB", block_size=32) as llm:
        summary = llm.summary
    assert cache["bytes"] == summary.allocated_bytes
    assert cache["num_blocks"] == summary.num_blocks
    assert cache["num_tokens"] == summary.num_tokens
    assert cache["bytes_per_token"] == summary.bytes_per_token
    assert cache["max_model_len"] == summary.max_model_len


def test_info_describes_a_model_that_does_not_fit_here(octavo, tiny_model, tmp_path):
    config = json.loads((tiny_model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4096, "intermediate_size": 2**20}))
    facts = json.loads(octavo("info", tmp_path, "--json").stdout)
    assert facts["model"]["num_layers"] == 4096
    assert facts["kv_cache"]["bytes_per_token"] == 4096 * 2 * 2 * 16 * 2
    assert "holds 0 tokens" in facts["kv_cache"]["refused"]
    assert "holds 0 tokens" in octavo("info", tmp_path).stdout


def test_info_says_how_many_layers_have_a_window(octavo, tmp_path):
    from transformers import Gemma3TextConfig

    Gemma3TextConfig(num_hidden_layers=8, sliding_window=512, architectures=["Gemma3ForCausalLM"]).save_pretrained(
        tmp_path
    )
    assert "sliding window 512 in 7 of 8 layers" in octavo("info", tmp_path).stdout


def test_info_says_what_the_machine_offers(octavo, tiny_model):
    machine = json.loads(octavo("info", tiny_model, "--json").stdout)["machine"]
    assert machine["instruction_sets"] == _native.supported_isas()
    assert machine["threads"] == _native.available_threads()
    assert machine["free_memory_bytes"] > 0


def test_info_for_people_names_the_bytes_per_token_and_block(octavo, smollm2_gguf):
    from octavo.model.source import resolve_model

    spec = resolve_model(smollm2_gguf).spec
    shown = octavo("info", smollm2_gguf).stdout
    assert f"{bytes_per_token(spec, kv_formats(spec, EngineConfig())):,} bytes" in shown
    assert f"{bytes_per_block(spec, 16, kv_formats(spec, EngineConfig())):,} bytes for 16 tokens" in shown
    assert "GQA" in shown


def test_info_in_a_pipe_folds_nothing(octavo, tiny_model, tmp_path):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    (folder / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    assert str(folder) in octavo("info", folder).stdout


def test_pull_from_a_file_prints_where_the_model_lies(octavo, smollm2_gguf, tmp_path):
    cache = tmp_path / "cache"
    done = octavo("pull", "--from", smollm2_gguf, OCTAVO_CACHE=str(cache))
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    assert line.startswith(str(cache))
    assert "fetching smollm2 (98 MB)" in done.stderr
    assert octavo("info", "smollm2", "--json", OCTAVO_CACHE=str(cache)).returncode == 0


def test_pull_of_a_folder_checks_it(octavo, assert_one_line_error, tiny_model, tmp_path):
    assert octavo("pull", tiny_model).stdout == f"{tiny_model}\n"
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    assert_one_line_error(octavo("pull", tmp_path), 1, str(tmp_path), "model.safetensors")
