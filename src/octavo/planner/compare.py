"""One load in every KV format side by side, and what heads that share keys and values save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from octavo.config import EngineConfig
from octavo.errors import CapacityError
from octavo.formats.kv_format import KV_DTYPES
from octavo.model.spec import ModelSpec
from octavo.planner.sizes import bytes_per_block, bytes_per_token, kv_formats, needs_evaluation
from octavo.planner.solve import Plan, solve


@dataclass(frozen=True, slots=True)
class FormatRow:
    """What one format costs and does for a load.

    ``plan``: what fits in this format. Where nothing does, ``refusal`` says why, and ``plan`` is what the load that was
    asked for would take. ``bytes_per_token`` and ``bytes_per_block`` are ``None`` for a format that this model's
    head_dim does not allow. ``needs_evaluation``: an engine refuses this format until ``octavo eval-kv`` has passed it
    for the model.
    """

    kv_dtype: str
    needs_evaluation: bool
    bytes_per_token: int | None = None
    bytes_per_block: int | None = None
    plan: Plan | None = None
    refusal: str | None = None

    @property
    def fits(self) -> bool:
        return self.refusal is None


@dataclass(frozen=True, slots=True)
class HeadSharing:
    """What keys and values cost that query heads share, and what they would cost if none did (MHA).

    ``kind`` is that of :func:`attention_kind`.
    """

    kind: str
    num_heads: int
    num_kv_heads: int
    bytes_per_token: int
    mha_bytes_per_token: int

    @property
    def factor(self) -> float:
        """How many times as much MHA takes."""
        return self.mha_bytes_per_token / self.bytes_per_token


def compare(
    spec: ModelSpec,
    *,
    memory: int | str | None = None,
    context: int | str | None = None,
    concurrency: int | None = None,
    kv_dtype: str | None = None,
    kv_8bit_layers: Sequence[int] | None = None,
    block_size: int = 16,
) -> list[FormatRow]:
    """The same question as to :func:`solve`, answered in every format that has a name, and in ``kv_dtype``.

    Raises:
        ConfigError: as :func:`solve`, but for a format that this model's head_dim does not allow: its row says so.
    """
    rows = []
    for name in dict.fromkeys([*KV_DTYPES, str(EngineConfig(kv_dtype=kv_dtype or "bf16").kv_format)]):
        config = EngineConfig(kv_dtype=name, kv_8bit_layers=kv_8bit_layers, block_size=block_size)
        row = _costs(spec, config)
        rows.append(_answered(row, spec, config, memory, context, concurrency) if row.fits else row)
    return rows


def _answered(
    row: FormatRow,
    spec: ModelSpec,
    config: EngineConfig,
    memory: int | str | None,
    context: int | str | None,
    concurrency: int | None,
) -> FormatRow:
    solve_for = partial(
        solve,
        spec,
        context=context,
        concurrency=concurrency,
        kv_dtype=config.kv_dtype,
        kv_8bit_layers=config.kv_8bit_layers,
        block_size=config.block_size,
    )
    try:
        return replace(row, plan=solve_for(memory=memory))
    except CapacityError as error:
        asked = None if context is None or concurrency is None or memory is None else solve_for(memory=None)
        return replace(row, plan=asked, refusal=str(error))


def _costs(spec: ModelSpec, config: EngineConfig) -> FormatRow:
    kv_format = config.kv_format
    if not kv_format.suits(spec.head_dim):
        refusal = f"needs a head_dim that is a multiple of {kv_format.head_dim_step}"
        return FormatRow(config.kv_dtype, needs_evaluation=kv_format.is_gated, refusal=refusal)
    formats = kv_formats(spec, config)
    return FormatRow(
        config.kv_dtype,
        needs_evaluation=needs_evaluation(formats),
        bytes_per_token=bytes_per_token(spec, formats),
        bytes_per_block=bytes_per_block(spec, config.block_size, formats),
    )


def head_sharing(spec: ModelSpec, config: EngineConfig) -> HeadSharing:
    """What this model's keys and values cost in the format of ``config``, beside MHA with as many query heads.

    Raises:
        ConfigError: the format does not fit the model.
    """
    formats = kv_formats(spec, config)
    return HeadSharing(
        attention_kind(spec),
        spec.num_heads,
        spec.num_kv_heads,
        bytes_per_token(spec, formats),
        bytes_per_token(replace(spec, num_kv_heads=spec.num_heads), formats),
    )


def attention_kind(spec: ModelSpec) -> str:
    """``"MHA"`` (Vaswani et al. 2017), ``"GQA"`` (Ainslie et al. 2023) or ``"MQA"`` (Shazeer 2019)."""
    if spec.num_kv_heads == spec.num_heads:
        return "MHA"
    return "MQA" if spec.num_kv_heads == 1 else "GQA"
