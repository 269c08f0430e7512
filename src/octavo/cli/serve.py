"""octavo serve: an endpoint for clients of the OpenAI and Anthropic APIs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import (
    BlockSize,
    Debug,
    Isa,
    KV8BitLayers,
    KVDisk,
    KVDiskLimit,
    KVDiskTtl,
    KVDtype,
    KVMemory,
    MaxModelLen,
    MaxNumSeqs,
    ModelArgument,
    NoDisk,
    NoKVQualityGate,
    Threads,
    given,
    kv_disk,
    kv_format,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.async_engine import AsyncEngine
    from octavo.server.config import ServerConfig
    from octavo.server.context import Context
    from octavo.server.keys import Key, KeyRing
    from octavo.server.warming import WarmLine

_INTERRUPTED = 130


def serve(
    model: ModelArgument = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="Port to listen on; 0: any that is free.")] = 8000,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name that requests ask for; may be repeated, the first is reported. Default: the model's own.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="API keys, hashed; octavo key writes them. $OCTAVO_API_KEY holds one, too."),
    ] = None,
    allow_anyone: Annotated[
        bool, typer.Option("--allow-anyone", help="Listen to other machines although there are no API keys.")
    ] = False,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Origin whose pages may call, or * for any; may be repeated."),
    ] = None,
    max_body: Annotated[str, typer.Option(metavar="SIZE", help="Most bytes of one request.")] = "16MiB",
    max_queue: Annotated[
        int, typer.Option(metavar="N", help="Most answers that wait beside those that run; more get 429.")
    ] = 256,
    max_concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most answers of one tenant at once; more get 429. Default: any number."),
    ] = None,
    max_connections: Annotated[int, typer.Option(metavar="N", help="Most connections; more get 503.")] = 1024,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="A request that takes longer ends with an error. Default: none does."),
    ] = None,
    client_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time a client has to send a request, or to take an answer.")
    ] = 60,
    keep_alive: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time a connection may lie idle between requests.")
    ] = 75,
    shutdown_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for running answers after SIGTERM or Ctrl-C.")
    ] = 30,
    max_stored: Annotated[
        int, typer.Option(metavar="N", help="Most responses kept for one tenant; see store of /v1/responses.")
    ] = 1000,
    max_stored_bytes: Annotated[str, typer.Option(metavar="SIZE", help="Most bytes of them.")] = "256MiB",
    min_cache_tokens: Annotated[
        int, typer.Option(metavar="N", help="Fewest tokens up to a breakpoint for it to count as cached.")
    ] = 0,
    anthropic_usage: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="What Anthropic's usage reports as read: by its contract (contract), or all (physical)."
        ),
    ] = "contract",
    openai_usage: Annotated[
        str,
        typer.Option(metavar="HOW", help="cached_tokens to the token (exact), or as OpenAI rounds them (rounded)."),
    ] = "exact",
    max_history: Annotated[
        int, typer.Option(metavar="N", help="Most prompts of one tenant kept to explain misses by.")
    ] = 1000,
    max_history_bytes: Annotated[str, typer.Option(metavar="SIZE", help="Most bytes of them.")] = "64MiB",
    max_caches: Annotated[int, typer.Option(metavar="N", help="Most named caches of one tenant.")] = 100,
    max_cache_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most tokens of them together. Default: what the retention budget holds."),
    ] = None,
    share_cache: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TENANTS", help="Tenants that find each other's prompts cached: alice,bob; may be repeated."
        ),
    ] = None,
    drop_system_line: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="Leave out lines that begin so at the start of a system prompt; may be repeated."
        ),
    ] = None,
    public_metrics: Annotated[
        bool, typer.Option("--public-metrics", help="Let anybody read /metrics, not administrators alone.")
    ] = False,
    vllm_metrics: Annotated[bool, typer.Option("--vllm-metrics", help="Give metrics under vLLM's names, too.")] = False,
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="What is logged: debug, info, warning or error.")
    ] = "info",
    otel: Annotated[
        bool,
        typer.Option("--otel", help="Send OpenTelemetry spans, as $OTEL_EXPORTER_OTLP_ENDPOINT alone does, too."),
    ] = False,
    retention_budget: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Share of the KV cache for what clients and named caches keep there. Default: 0.5."
        ),
    ] = None,
    warm: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Beginnings of prompts to compute or load before requests are taken."),
    ] = None,
    kv_memory: KVMemory = None,
    kv_dtype: KVDtype = None,
    kv_8bit_layers: KV8BitLayers = None,
    no_kv_quality_gate: NoKVQualityGate = False,
    kv_disk_folder: KVDisk = None,
    kv_disk_limit: KVDiskLimit = None,
    kv_disk_ttl: KVDiskTtl = None,
    no_disk: NoDisk = False,
    block_size: BlockSize = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    threads: Threads = None,
    isa: Isa = None,
    debug: Debug = False,
) -> None:
    """Serve the OpenAI and Anthropic APIs over HTTP.

    One line on stdout says the address once requests are taken; logs go to stderr.
    """
    from octavo.server.config import ServerConfig

    config = ServerConfig(
        host=host,
        port=port,
        allow_anyone=allow_anyone,
        model_names=served_model_name or (),
        max_body=max_body,
        max_queue=max_queue,
        max_concurrency=max_concurrency,
        max_connections=max_connections,
        timeout=timeout,
        client_timeout=client_timeout,
        keep_alive=keep_alive,
        shutdown_timeout=shutdown_timeout,
        max_stored=max_stored,
        max_stored_bytes=max_stored_bytes,
        min_cache_tokens=min_cache_tokens,
        anthropic_usage=anthropic_usage,
        openai_usage=openai_usage,
        max_history=max_history,
        max_history_bytes=max_history_bytes,
        max_caches=max_caches,
        max_cache_tokens=max_cache_tokens,
        share_cache=share_cache or (),
        drop_system_lines=drop_system_line or (),
        cors_origins=cors_origin or (),
        public_metrics=public_metrics,
        vllm_metrics=vllm_metrics,
    )
    engine = given(
        **kv_format(kv_dtype, kv_8bit_layers, no_kv_quality_gate),
        **kv_disk(kv_disk_folder, kv_disk_limit, kv_disk_ttl, no_disk),
        retention_budget=retention_budget,
        kv_memory=kv_memory,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        threads=threads,
        isa=isa,
    )
    _serve(model, engine, config, api_key_file, log_level, otel, warm)


def _serve(
    model: str | None,
    engine_options: dict[str, Any],
    config: ServerConfig,
    api_key_file: Path | None,
    log_level: str,
    otel: bool,
    warm: Path | None,
) -> None:
    from octavo.async_engine import AsyncEngine
    from octavo.cli.starting import open_assembly
    from octavo.server import run, tracing
    from octavo.server.app import create_app
    from octavo.server.auth import check_bind
    from octavo.server.logs import check_level, configure
    from octavo.server.warming import read_warm_file

    # What is wrong with all this is said before a model is loaded.
    check_level(log_level)
    keys = _key_ring(api_key_file, config.share_cache)
    check_bind(config.host, keys is not None, config.allow_anyone)
    warm_lines = [] if warm is None else read_warm_file(warm)
    provider = tracing.open_provider(required=otel)
    with run.listen(config) as listener:
        engine = AsyncEngine.from_assembly(open_assembly(model, engine_options))
        try:
            name = [*config.model_names, engine.summary.model][0]
            spans = None if provider is None else tracing.Tracing(provider, name)
            app = create_app(engine, config, keys=keys, tracing=spans)
            configure(log_level)
            if warm is not None:
                _warm(app.state.octavo, warm, warm_lines)
            ended = run.serve(app, listener, lambda: _tell(run.url_of(listener), engine))
        finally:
            engine.shutdown()
            if provider is not None:
                provider.shutdown()
    if not ended:
        raise typer.Exit(_INTERRUPTED)


def _warm(context: Context, file: Path, lines: list[WarmLine]) -> None:
    import asyncio

    from octavo.cli.progress import prompt_progress
    from octavo.server.warming import warm_lines

    with prompt_progress("warming") as report:
        warmed = asyncio.run(warm_lines(context.service, file, lines, context.keys, report))
    tokens, cached = sum(each.num_tokens for each in warmed), sum(each.num_cached_tokens for each in warmed)
    print(f"octavo: warmed {len(lines):,} prompts of {tokens:,} tokens, {cached:,} of them found", file=sys.stderr)


def _tell(url: str, engine: AsyncEngine) -> None:
    from octavo.server.logs import log_start

    if engine.assembly.disk is not None:
        engine.assembly.disk.folder.announce({"url": url})
    log_start(url, engine.summary)
    print(url, flush=True)


def _key_ring(file: Path | None, share_cache: Sequence[str]) -> KeyRing | None:
    """The keys of file and environment; ``None`` where neither is given."""
    from octavo.errors import ConfigError
    from octavo.server.keys import KeyRing, environment_keys, is_readable_by_others, read_keys, server_secret

    keys: list[Key] = environment_keys(os.environ)
    if file is not None:
        keys += read_keys(file)
        if is_readable_by_others(file):
            print(f"octavo: others can read the tenants' names in {file}; chmod 600 keeps them to you", file=sys.stderr)
    elif not keys:
        if share_cache:
            raise ConfigError("without API keys there is one tenant, which has one cache; leave --share-cache out")
        return None
    return KeyRing(keys, server_secret(), share_cache)
