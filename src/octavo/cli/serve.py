"""octavo serve: an endpoint for clients of the OpenAI and Anthropic APIs."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.cli.options import (
    BlockSize,
    Debug,
    Isa,
    KVDtype,
    KVMemory,
    MaxModelLen,
    MaxNumSeqs,
    ModelArgument,
    Threads,
    given,
)


def serve(
    model: ModelArgument = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="Port to listen on; 0: any that is free.")] = 8000,
    kv_memory: KVMemory = None,
    kv_dtype: KVDtype = None,
    block_size: BlockSize = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    threads: Threads = None,
    isa: Isa = None,
    debug: Debug = False,
) -> None:
    """Serve the OpenAI and Anthropic APIs over HTTP."""
    from octavo.async_engine import AsyncEngine
    from octavo.cli.starting import open_assembly
    from octavo.server.app import create_app
    from octavo.server.run import serve as run

    options = given(
        kv_memory=kv_memory,
        kv_dtype=kv_dtype,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        threads=threads,
        isa=isa,
    )
    engine = AsyncEngine.from_assembly(open_assembly(model, options))
    try:
        run(create_app(engine), host=host, port=port)
    finally:
        engine.shutdown()
