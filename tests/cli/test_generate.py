"""`octavo generate`: the answer alone on stdout, whatever the prompt came from."""

from __future__ import annotations

import json

from octavo import LLM, SamplingParams


def test_json_is_one_object_and_nothing_else(octavo, tiny_model):
    done = octavo("generate", "-m", tiny_model, "--json", "--max-tokens", 8, "the fox")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    answer = json.loads(done.stdout)
    assert answer["prompt"] == "<|user|>the fox<|end|><|assistant|>"
    assert answer["num_output_tokens"] == len(answer["outputs"][0]["token_ids"]) <= 8
    assert answer["outputs"][0]["finish_reason"] in ("stop", "length")
    assert answer["seconds"]["first_token"] > 0


def test_the_prompt_from_stdin_is_the_prompt_as_an_argument(octavo, tiny_model):
    options = ("generate", "-m", tiny_model, "--json", "--max-tokens", 8)
    argument = json.loads(octavo(*options, "the lazy dog ✓").stdout)
    stdin = json.loads(octavo(*options, input="the lazy dog ✓\n").stdout)
    assert stdin["prompt"] == argument["prompt"]
    assert stdin["outputs"] == argument["outputs"]


def test_the_streamed_text_is_the_text_that_the_library_gives(octavo, tiny_model):
    prompt = "the quick brown fox"
    with LLM(tiny_model, kv_memory="1MiB") as llm:
        [output] = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=40))
    done = octavo("generate", "-m", tiny_model, "--raw", "--max-tokens", 40, prompt)
    assert done.returncode == 0, done.stderr
    assert done.stdout.removesuffix("\n") == output.outputs[0].text.removesuffix("\n")


def test_a_seed_makes_several_answers_repeatable_and_different(octavo, tiny_model):
    options = ("generate", "-m", tiny_model, "--json", "--n", 3, "--temperature", 1, "--seed", 7, "--max-tokens", 8)
    first, again = (json.loads(octavo(*options, "fox").stdout)["outputs"] for _ in range(2))
    assert first == again
    assert [answer["index"] for answer in first] == [0, 1, 2]
    assert len({tuple(answer["token_ids"]) for answer in first}) > 1


def test_several_answers_are_divided_by_a_line(octavo, smollm2_gguf):
    done = octavo("generate", "-m", smollm2_gguf, "--n", 2, "What is the capital of France?")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("---\n")
    assert first == second
    assert "Paris" in first


def test_a_stop_string_ends_the_answer_and_is_left_out(octavo, smollm2_gguf):
    done = octavo("generate", "-m", smollm2_gguf, "--stop", " Paris", "What is the capital of France?")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The capital of France is\n"


def test_max_tokens_by_default_is_what_the_context_leaves(octavo, tiny_model, context):
    done = octavo("generate", "-m", tiny_model, "--raw", "--json", "z" * (context - 3))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_output_tokens"] <= 3
