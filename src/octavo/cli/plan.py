"""``octavo plan``: how much memory, context and concurrency go together, in every KV format. Reads no weights."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import BlockSize, Debug, Json, KV8BitLayers, KVDtype, ModelArgument

if TYPE_CHECKING:
    from rich.table import Table

    from octavo.model.spec import ModelSpec
    from octavo.planner import FormatRow, HeadSharing, Plan

_GATED = "after octavo eval-kv"
_WORDS = {"memory": "memory", "context": "context", "concurrency": "concurrency", "kv_dtype": "format"}


def plan(
    model: ModelArgument = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory in all, for weights, KV cache and the process, such as 16GiB. Default: solved for, or what is "
            "free here.",
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Tokens of prompt and reply of each sequence, such as 8k (8192). Default: solved for, or as long as "
            "one sequence can be.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", help="Sequences of that many tokens that run at once. Default: solved for."),
    ] = None,
    kv_dtype: KVDtype = None,
    kv_8bit_layers: KV8BitLayers = None,
    block_size: BlockSize = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Find memory, context, concurrency or KV format from the others.

    Reads the model's configuration alone: a folder with a config.json is enough, and of a hub id nothing else is
    fetched. Shows what every KV format costs and what fits with it, to the byte, with the flags that start an engine
    like that. Where more is left out than one: memory is what is free here, the format bf16, and the context as long
    as one sequence can be. What cannot be met is refused with what is missing and what would fit.
    """
    from octavo.cli.progress import byte_progress
    from octavo.config import EngineConfig
    from octavo.model.source import DEFAULT_MODEL, resolve_spec
    from octavo.planner import compare, free_memory, head_sharing, solve

    here = free_memory() if memory is None and (context is None or concurrency is None) else None
    question: dict[str, Any] = {
        "memory": memory if here is None else here,
        "context": context,
        "concurrency": concurrency,
        "kv_dtype": kv_dtype,
        "kv_8bit_layers": kv_8bit_layers,
        "block_size": EngineConfig().block_size if block_size is None else block_size,
    }
    name = DEFAULT_MODEL if model is None else model
    with byte_progress(f"fetching {name}") as report:
        spec = resolve_spec(name, progress=report)
    found = solve(spec, **question)
    answer = _Answer(name, spec, found, compare(spec, **question), head_sharing(spec, EngineConfig(**found.settings)))
    if as_json:
        print(json.dumps(answer.as_json()))
    else:
        answer.show()


@dataclass(frozen=True, slots=True)
class _Answer:
    """The plan, the same question in every format, and what is said about them."""

    name: str
    spec: ModelSpec
    plan: Plan
    rows: list[FormatRow]
    sharing: HeadSharing

    @property
    def flags(self) -> list[str]:
        """What starts an engine like this: options of ``octavo chat`` and of every other command that starts one."""
        flags = []
        for setting, value in self.plan.settings.items():
            if setting != "block_size" or value != _default_block_size():
                shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                flags += [f"--{setting.replace('_', '-')}", shown]
        return flags

    def as_json(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "model": self.name,
            "plan": {**asdict(plan), "kv_bytes": plan.kv_bytes, "spare_bytes": plan.spare_bytes},
            "flags": self.flags,
            "formats": [_row_as_json(row) for row in self.rows],
            "attention": {**asdict(self.sharing), "factor": self.sharing.factor},
        }

    def show(self) -> None:
        from rich.console import Console

        # What is no screen has no width to fold a table at.
        console = Console() if sys.stdout.isatty() else Console(width=200)
        console.print(self._found(), highlight=False)
        console.print(self._table())
        for line in self._remarks():
            console.print(line, highlight=False, soft_wrap=True)

    def _found(self) -> str:
        plan, windows = self.plan, [layer.window for layer in self.spec.layers if layer.window is not None]
        which = "all" if len(windows) == self.spec.num_layers else f"{len(windows)}"
        window = f", {which} of them with a window of {max(windows):,}" if windows else ""
        solved = "Everything was given, and fits" if plan.solved == "nothing" else f"Solved for {_WORDS[plan.solved]}"
        return (
            f"{self.name}: {self.spec.num_layers} layers{window}; {plan.weight_bytes:,} bytes of weights in bf16, "
            f"{plan.process_bytes:,} set aside for the process.\n"
            f"{solved}: {plan.concurrency:,} x {plan.context:,} tokens in {plan.kv_dtype} take {plan.kv_bytes:,} bytes "
            f"of KV cache, {_human(plan.memory - plan.spare_bytes)} in all"
            + (".\n" if plan.solved == "memory" else f" of {_human(plan.memory)}.\n")
        )

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 1))
        table.add_column("", no_wrap=True)
        last = "in all" if self.plan.solved == "memory" else "left"
        for name in ("per token", f"{self.plan.block_size}-token block", "context", "at once", "KV bytes", last):
            table.add_column(name, justify="right")
        for row in self.rows:
            chosen = row.kv_dtype == self.plan.kv_dtype
            table.add_row(f"{'>' if chosen else ' '} {row.kv_dtype}", *self._cells(row), style="bold" if chosen else "")
        return table

    def _cells(self, row: FormatRow) -> list[str]:
        costs = [f"{size:,}" for size in (row.bytes_per_token, row.bytes_per_block) if size is not None]
        plan = row.plan
        if plan is None:
            return [*(costs or ["-", "-"]), *["-"] * 4]
        memory = self.plan.memory
        left = _human(plan.memory) if self.plan.solved == "memory" else _human(memory - plan.memory + plan.spare_bytes)
        return [*costs, f"{plan.context:,}", f"{plan.concurrency:,}", f"{plan.kv_bytes:,}", left]

    def _remarks(self) -> Iterator[str]:
        for row in self.rows:
            if row.plan is None:
                yield f"{row.kv_dtype}: {row.refusal}."
            elif not row.fits:
                yield f"{row.kv_dtype} does not fit."
            elif row.needs_evaluation:
                yield f"{row.kv_dtype}: {_GATED} has passed it for this model."
        yield ""
        yield f"It starts with: octavo chat {shlex.join([self.name, *self.flags])}"
        yield self._in_words()

    def _in_words(self) -> str:
        sharing, plan = self.sharing, self.plan
        if sharing.kind == "MHA":
            return f"MHA: each of {sharing.num_heads} heads has keys and values of its own; none are shared."
        return (
            f"{sharing.kind}: {sharing.num_heads} heads share the keys and values of {sharing.num_kv_heads}. With MHA "
            f"a token would take {sharing.mha_bytes_per_token:,} bytes instead of {sharing.bytes_per_token:,}, "
            f"{sharing.factor:.1f} times as much, and this KV cache {_human(plan.kv_bytes * sharing.factor)}."
        )


def _row_as_json(row: FormatRow) -> dict[str, Any]:
    plan = row.plan
    return {
        "kv_dtype": row.kv_dtype,
        "fits": row.fits,
        "needs_evaluation": row.needs_evaluation,
        "bytes_per_token": row.bytes_per_token,
        "bytes_per_block": row.bytes_per_block,
        "context": plan and plan.context,
        "concurrency": plan and plan.concurrency,
        "kv_bytes": plan and plan.kv_bytes,
        "bytes_in_all": plan and plan.memory - plan.spare_bytes,
        "refusal": row.refusal,
    }


def _human(size: float) -> str:
    """``"1.50 GiB"``; below one, in MiB."""
    return f"{size / 2**30:,.2f} GiB" if abs(size) >= 2**30 else f"{size / 2**20:,.1f} MiB"


def _default_block_size() -> int:
    from octavo.config import EngineConfig

    return EngineConfig().block_size
