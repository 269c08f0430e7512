"""What an answer says, whichever dialect it came in and whether whole or streamed: what can be compared.

Ids, times and how a stream was cut differ between two answers to the same request; everything else must not.
"""

from __future__ import annotations

import json
from typing import Any

from jiter import from_json

_OWN = {"id", "created", "created_at", "completed_at", "call_id", "item_id", "request_id", "system_fingerprint"}
"""Fields that belong to one answer alone."""


def plain_answer(path: str, answer: Any) -> dict[str, Any]:
    """What the body of an answer says, or the list of frames of a streamed one.

    Raises:
        AssertionError: a frame is an error.
    """
    if isinstance(answer, dict):
        return _WHOLE[path](answer)
    errors = [frame for frame in answer if frame.get("error") or frame.get("type") == "error"]
    assert not errors, errors
    return _STREAMED[path](answer)


def _chat(body: dict[str, Any]) -> dict[str, Any]:
    choices = {}
    for choice in body["choices"]:
        calls = choice["message"].get("tool_calls") or []
        choices[choice["index"]] = {
            "text": choice["message"].get("content") or "",
            "calls": [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
            "logprobs": _logprobs(choice),
            "finish": choice["finish_reason"],
        }
    return {"choices": choices, **_openai_usage(body["usage"])}


def _chat_stream(frames: list[dict[str, Any]]) -> dict[str, Any]:
    choices: dict[int, dict[str, Any]] = {}
    usage: dict[str, Any] = {}
    for frame in frames:
        usage = frame.get("usage") or usage
        for choice in frame["choices"]:
            empty = {"text": "", "calls": [], "logprobs": [], "finish": None}
            whole = choices.setdefault(choice["index"], empty)
            delta = choice["delta"]
            whole["text"] += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                if call["index"] == len(whole["calls"]):
                    whole["calls"].append((call["function"]["name"], ""))
                name, arguments = whole["calls"][call["index"]]
                whole["calls"][call["index"]] = name, arguments + (call["function"].get("arguments") or "")
            whole["logprobs"] += _logprobs(choice)
            assert whole["finish"] is None or not choice["finish_reason"], "an answer ends once"
            whole["finish"] = whole["finish"] or choice["finish_reason"]
    return {"choices": choices, **_openai_usage(usage)}


def _logprobs(choice: dict[str, Any]) -> list[Any]:
    return list((choice.get("logprobs") or {}).get("content") or [])


def _completion(body: dict[str, Any]) -> dict[str, Any]:
    return {**_completion_choices(body["choices"]), **_openai_usage(body["usage"])}


def _completion_stream(frames: list[dict[str, Any]]) -> dict[str, Any]:
    usage = next(frame["usage"] for frame in reversed(frames) if frame.get("usage"))
    return {**_completion_choices(c for frame in frames for c in frame["choices"]), **_openai_usage(usage)}


def _completion_choices(pieces: Any) -> dict[str, Any]:
    choices: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        whole = choices.setdefault(piece["index"], {"text": "", "tokens": [], "logprobs": [], "finish": None})
        whole["text"] += piece["text"]
        logprobs = piece.get("logprobs") or {}
        whole["tokens"] += logprobs.get("tokens") or []
        whole["logprobs"] += logprobs.get("token_logprobs") or []
        whole["finish"] = whole["finish"] or piece["finish_reason"]
    return {"choices": choices}


def _openai_usage(usage: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": usage["prompt_tokens"], "output": usage["completion_tokens"]}


def _message(body: dict[str, Any]) -> dict[str, Any]:
    blocks = [
        {**block, "input": json.dumps(block["input"])} if block["type"] == "tool_use" else block
        for block in body["content"]
    ]
    return _message_of(blocks, body["stop_reason"], body["stop_sequence"], body["usage"])


def _message_stream(frames: list[dict[str, Any]]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    reason = sequence = None
    usage: dict[str, Any] = {}
    for frame in frames:
        kind = frame["type"]
        if kind == "message_start":
            usage = frame["message"]["usage"]
        elif kind == "content_block_start":
            assert frame["index"] == len(blocks)
            blocks.append({**frame["content_block"]})
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = ""
        elif kind == "content_block_delta":
            delta = frame["delta"]
            name, target = {
                "text_delta": ("text", "text"),
                "input_json_delta": ("partial_json", "input"),
                "thinking_delta": ("thinking", "thinking"),
                "signature_delta": ("signature", "signature"),
            }[delta["type"]]
            blocks[frame["index"]][target] += delta[name]
        elif kind == "message_delta":
            reason, sequence = frame["delta"]["stop_reason"], frame["delta"].get("stop_sequence")
            usage = {**usage, **frame["usage"]}
    assert frames[-1]["type"] == "message_stop"
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.dumps(from_json(block["input"].encode() or b"{}", partial_mode=True))  # as the SDK
    return _message_of(blocks, reason, sequence, usage)


def _message_of(blocks: list[dict[str, Any]], reason: Any, sequence: Any, usage: dict[str, Any]) -> dict[str, Any]:
    read = usage.get("cache_read_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0
    return {
        "blocks": [_without_own(block) for block in blocks],
        "finish": (reason, sequence),
        "prompt": usage["input_tokens"] + read + written,
        "output": usage["output_tokens"],
    }


def _response(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "items": [_without_own(item) for item in body["output"]],
        "finish": (body["status"], body["incomplete_details"]),
        "prompt": body["usage"]["input_tokens"],
        "output": body["usage"]["output_tokens"],
    }


def _response_stream(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """The last frame holds the whole; the deltas must say the same."""
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    assert frames[-1]["type"] in ("response.completed", "response.incomplete"), frames[-1]
    whole = frames[-1]["response"]
    said = "".join(frame["delta"] for frame in frames if frame["type"] == "response.output_text.delta")
    parts = [part for item in whole["output"] if item["type"] == "message" for part in item["content"]]
    assert said == "".join(part["text"] for part in parts)
    passed = "".join(frame["delta"] for frame in frames if frame["type"] == "response.function_call_arguments.delta")
    assert passed == "".join(item["arguments"] for item in whole["output"] if item["type"] == "function_call")
    return _response(whole)


def _without_own(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_own(each) for name, each in value.items() if name not in _OWN}
    return [_without_own(each) for each in value] if isinstance(value, list) else value


_WHOLE = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/messages": _message,
    "/v1/responses": _response,
}
_STREAMED = {
    "/v1/chat/completions": _chat_stream,
    "/v1/completions": _completion_stream,
    "/v1/messages": _message_stream,
    "/v1/responses": _response_stream,
}
