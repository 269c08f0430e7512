"""`octavo demo`: it says what was saved, and fails if a cached reply is another reply."""

from __future__ import annotations

import re

import pytest

from octavo import LLM, SamplingParams, cli
from octavo.errors import OctavoError


def test_the_demo_shows_reuse_and_compares_every_reply(octavo, roomy_model):
    done = octavo("demo", roomy_model)
    assert done.returncode == 0, done.stderr
    assert "identical, bit for bit" in done.stdout
    turns = re.findall(r"│\s+(\d) │\s+(\d+) tokens │\s+(\d+) │\s+(\d+) │", done.stdout)
    assert [turn[0] for turn in turns] == ["1", "2", "3"]
    for _, prompt, reused, computed in turns:
        assert int(reused) + int(computed) == int(prompt)
    assert int(turns[0][2]) == 0
    assert int(turns[1][2]) >= int(turns[0][1]) // 16 * 16 > 0


def test_the_demo_fails_if_a_reply_differs(tiny_model):
    from octavo.cli.demo import _Pair
    from octavo.cli.reply import Reply

    params = SamplingParams(temperature=0, max_tokens=4, logprobs=0)
    with LLM(tiny_model, kv_memory="1MiB") as llm:
        one, other, third = llm.generate(["the fox", "the dog", "the fox"], params)
    _Pair(Reply(one), Reply(third)).check()
    with pytest.raises(OctavoError, match="differs"):
        _Pair(Reply(one), Reply(other)).check()


def test_a_context_too_short_for_the_demo_is_one_line(tiny_model, capsys):
    assert cli.main(["demo", str(tiny_model)]) == 1
    assert "context" in capsys.readouterr().err.splitlines()[-1]
