"""What is wrong with a request for completions is answered 400, with the field's name as the client wrote it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from live_server import LiveServer

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 3}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": ["a", 3]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt[1]"),
    ({"prompt": [[1], [2.5]]}, "prompt[1][0]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [[1], [10**30]]}, "prompt[1]"),
    ({"prompt": "\ud800"}, "prompt"),
    ({"messages": []}, "messages"),
    ({"suffix": "x"}, "suffix"),
    ({"suffix": 3}, "suffix"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"best_of": 0}, "best_of"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": 1}, "echo"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 5000}, "max_tokens"),
    ({"prompt": ["a", "a"], "max_tokens": 5000}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"stream_options": {}}, "stream_options"),
    ({"structured_outputs": {"grammar": "start: nothing"}}, "structured_outputs.grammar"),
    ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ({"temperature": float("inf")}, "temperature"),
    ({"tools": []}, "tools"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[f"{param}-{place}" for place, (_, param) in enumerate(WRONG)])
def test_a_wrong_field_is_refused_by_its_name(live: LiveServer, fields: dict[str, Any], param: str) -> None:
    content = json.dumps({"model": live.model, "prompt": "Hi", "max_tokens": 2, **fields})
    headers = {"content-type": "application/json"}
    response = httpx.post(f"{live.openai_url}/completions", content=content, headers=headers, timeout=60)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error"), error
