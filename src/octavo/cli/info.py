"""``octavo info``: what a model is, what its KV cache costs, and what this machine offers. Reads no weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.options import (
    BlockSize,
    Debug,
    Json,
    KV8BitLayers,
    KVDtype,
    KVMemory,
    MaxModelLen,
    MaxNumSeqs,
    ModelArgument,
    given,
    kv_format,
)

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.model.base import ModelSource
    from octavo.model.spec import ModelSpec

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def info(
    model: ModelArgument = None,
    kv_memory: KVMemory = None,
    kv_dtype: KVDtype = None,
    kv_8bit_layers: KV8BitLayers = None,
    block_size: BlockSize = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a model, its KV bytes, and what this machine offers.

    Reads the model's configuration, not its weights. The KV cache shown is the one an engine would allocate if it
    started now; where there is too little memory for that, it says so.
    """
    from octavo.cli.progress import byte_progress
    from octavo.config import EngineConfig
    from octavo.model.source import DEFAULT_MODEL, resolve_model

    config = EngineConfig(
        **given(
            kv_memory=kv_memory,
            max_num_seqs=max_num_seqs,
            block_size=block_size,
            max_model_len=max_model_len,
            **kv_format(kv_dtype, kv_8bit_layers),
        )
    )
    name = DEFAULT_MODEL if model is None else model
    with byte_progress(f"fetching {name}") as report:
        source = resolve_model(name, progress=report)
    facts = {
        "model": _model(source),
        "kv_cache": _kv_cache(source.spec, config),
        "machine": _machine(),
    }
    if as_json:
        print(json.dumps(facts))
    else:
        _show(facts)


def _model(source: ModelSource) -> dict[str, Any]:
    from octavo.planner import attention_kind

    spec = source.spec
    return {
        "name": source.name,
        "location": str(source.location),
        "architecture": spec.architecture,
        "num_parameters": spec.num_parameters,
        "weight_bytes": spec.weight_bytes,
        "num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "vocab_size": spec.vocab_size,
        "attention": attention_kind(spec),
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "windows": sorted({layer.window for layer in spec.layers if layer.window is not None}),
        "num_windowed_layers": sum(layer.window is not None for layer in spec.layers),
        "tie_word_embeddings": spec.tie_word_embeddings,
        "context": spec.max_position_embeddings,
        "has_chat_template": source.chat_template is not None,
    }


def _kv_cache(spec: ModelSpec, config: EngineConfig) -> dict[str, Any]:
    """What an engine with this configuration would allocate if it started now, or why it would not start."""
    from octavo.errors import CapacityError
    from octavo.planner import bytes_per_block, bytes_per_token, free_memory, kv_formats, plan

    formats = kv_formats(spec, config)
    costs: dict[str, Any] = {
        "kv_dtype": str(config.kv_format),
        "bytes_per_token": bytes_per_token(spec, formats),
        "block_size": config.block_size,
        "bytes_per_block": bytes_per_block(spec, config.block_size, formats),
    }
    try:
        planned = plan(spec, config, free_memory=max(free_memory() - spec.weight_bytes, 0))
    except CapacityError as error:
        return costs | {"refused": str(error)}
    return costs | {
        "num_blocks": planned.num_blocks,
        "num_tokens": planned.num_tokens,
        "bytes": planned.nbytes,
        "max_model_len": planned.max_model_len,
    }


def _machine() -> dict[str, Any]:
    from octavo import _native
    from octavo.model.weights import choose_isa
    from octavo.planner import free_memory

    return {
        "instruction_sets": _native.supported_isas(),
        "instruction_set": choose_isa(),
        "threads": _native.available_threads(),
        "free_memory_bytes": free_memory(),
        "huge_pages": _huge_pages(),
    }


def _huge_pages() -> str:
    """The kernel's setting (always, madvise, never); Octavo asks for them, which ``never`` refuses."""
    try:
        setting = _HUGE_PAGES.read_text()
    except OSError:
        return "unknown"
    return setting.partition("[")[2].partition("]")[0] or "unknown"


def _show(facts: dict[str, Any]) -> None:
    rows = _rows(facts)
    if not sys.stdout.isatty():
        # What is no screen has no width to fold a path at.
        print("\n".join(f"{name:<18}{value}" for name, value in rows))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    Console().print(table)


def _allocation(cache: dict[str, Any]) -> str:
    return (
        f"{cache['num_blocks']:,} blocks for {cache['num_tokens']:,} tokens, {cache['bytes']:,} bytes, "
        f"requests of up to {cache['max_model_len']:,} tokens"
    )


def _windows(model: dict[str, Any]) -> str:
    if not model["windows"]:
        return ""
    sizes = ", ".join(f"{window:,}" for window in model["windows"])
    return f", sliding window {sizes} in {model['num_windowed_layers']} of {model['num_layers']} layers"


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    model, cache, machine = facts["model"], facts["kv_cache"], facts["machine"]
    return [
        ("model", model["name"]),
        ("from", model["location"]),
        ("architecture", f"{model['architecture']}, {model['num_parameters'] / 1e6:,.1f} M parameters"),
        ("layers", f"{model['num_layers']}, hidden size {model['hidden_size']:,}"),
        (
            "heads",
            f"{model['num_heads']} for queries, {model['num_kv_heads']} for keys and values "
            f"({model['attention']}), head_dim {model['head_dim']}",
        ),
        ("context", f"{model['context']:,} tokens{_windows(model)}"),
        ("chat template", "yes" if model["has_chat_template"] else "no: use octavo generate --raw"),
        ("weights", f"{model['weight_bytes']:,} bytes in memory (bf16)"),
        ("KV per token", f"{cache['bytes_per_token']:,} bytes ({cache['kv_dtype']})"),
        ("KV per block", f"{cache['bytes_per_block']:,} bytes for {cache['block_size']} tokens"),
        ("KV cache here", cache.get("refused") or _allocation(cache)),
        (
            "instruction sets",
            f"{', '.join(machine['instruction_sets'])} (in use: {machine['instruction_set']})",
        ),
        ("threads", f"{machine['threads']}"),
        ("free memory", f"{machine['free_memory_bytes']:,} bytes"),
        ("huge pages", machine["huge_pages"]),
    ]
