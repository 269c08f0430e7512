from __future__ import annotations

from exactness_lab import small_lab

from octavo.engine.engine import Engine
from octavo.engine.sampling_params import SamplingParams
from octavo.kv.hashing import Namespace


def test_an_end_token_that_only_the_tokenizer_knows_is_not_shown_to_the_native_core() -> None:
    """It would be refused there, in the middle of a step: one request would end the engine."""
    lab = small_lab("mha", "generic")
    run = lab.start(threads=1)
    namespace = Namespace(
        weights_digest=b"w",
        spec_digest=b"s",
        kv_formats=("bf16",),
        block_size=16,
        layout_version=1,
        numerics_id="generic",
    )
    vocab_size = lab.spec.vocab_size
    engine = Engine(
        run.engine.config,
        run.runner,
        run.engine.plan,
        namespace,
        None,
        vocab_size=vocab_size,
        eos_token_ids=[1, vocab_size, vocab_size + 5, -1],
    )
    engine.add(engine.intake.accept([1, 2, 3], SamplingParams(max_tokens=4, min_tokens=3, seed=1)))
    while engine.has_unfinished:
        engine.step()
    engine.check_idle()
