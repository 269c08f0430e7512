"""Evaluation: what is to be measured of which model. Whatever can be wrong with it is found when it is made."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.config import EngineConfig
from octavo.errors import CapacityError, ConfigError, shown
from octavo.evaluate.gate import extent, is_sufficient
from octavo.evaluate.lane import Lane, lane_bytes
from octavo.evaluate.measure import Material, Measurement, Progress, rows_at_once
from octavo.evaluate.recall import haystack
from octavo.evaluate.report import FormatReport, Report
from octavo.evaluate.store import Place, store, stored
from octavo.evaluate.text import Text, Windows, default_text
from octavo.formats.kv_format import KV_DTYPES, KVFormat
from octavo.model.base import ModelSource
from octavo.model.source import resolve_model
from octavo.model.spec import ModelSpec
from octavo.model.weights import LoadedModel, choose_isa, load_model
from octavo.planner import bytes_per_token, free_memory, kv_formats
from octavo.text.loading import load_tokenizer

DEFAULT_CONTEXTS = (512, 2048, 8192)
"""Those of them that the model goes to."""
DEFAULT_MAX_TOKENS = 12_288
"""Of text, for each length of context."""
MIN_CONTEXT = 16
_MOST_HAYSTACKS = 4


def evaluate(
    model: str | Path,
    formats: Sequence[str] | None = None,
    *,
    text: Text | None = None,
    contexts: Sequence[int] | None = None,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    kv_8bit_layers: Sequence[int] | None = None,
    threads: int | None = None,
    isa: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measure what KV formats cost a model in quality; ``docs/quality.md`` explains every figure.

    What is found is remembered for the gate (:mod:`octavo.evaluate.gate`), if it is enough for that.

    Args:
        model: see :func:`octavo.model.source.resolve_model`.
        formats, text, contexts, max_tokens, kv_8bit_layers: see :func:`prepare`.
        threads, isa: see :func:`octavo.model.weights.load_model`.
        progress: told (tokens computed, tokens in all), over all formats.

    Raises:
        ModelError: the model cannot be found or used.
        ConfigError: as :func:`prepare` and :func:`check_start`.
        CapacityError: as :func:`prepare`, or this machine does not give the memory.
    """
    check_start(threads=threads, isa=isa)
    evaluation = prepare(
        resolve_model(model),
        formats,
        text=text,
        contexts=contexts,
        max_tokens=max_tokens,
        kv_8bit_layers=kv_8bit_layers,
    )
    return evaluation.run(load_model(evaluation.source, threads=threads, isa=isa), progress)


def check_start(*, threads: int | None, isa: str | None) -> None:
    """See that a model can be loaded like that, before anything is fetched or read.

    Raises:
        ConfigError: no engine has so many threads, or this machine lacks the instruction set.
    """
    EngineConfig(threads=threads)
    choose_isa(isa)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model, the formats it will be computed in, bf16 first, and what it will be given.

    ``formats``: the format of each layer, by the name of the whole. ``materials``: one for each length of context,
    ascending.
    """

    source: ModelSource
    text: Text
    formats: dict[str, tuple[KVFormat, ...]]
    materials: tuple[Material, ...]

    @property
    def nbytes(self) -> int:
        """Memory that weights, KV pools and logits will take."""
        spec = self.source.spec
        # Twice for two buffers of logits, and twice that for bf16's probabilities in double precision.
        logits = 4 * 4 * rows_at_once(spec.vocab_size) * spec.vocab_size
        return spec.weight_bytes + sum(self._lane_bytes(layers) for layers in self.formats.values()) + logits

    def run(self, loaded: LoadedModel, progress: Progress | None = None) -> Report:
        """Measure, and remember what was found where that is enough for the gate.

        Raises:
            CapacityError: this machine does not give the memory.
        """
        spec, model = loaded.spec, loaded.model
        lanes = [Lane(spec, model, layers, self._longest) for layers in self.formats.values()]
        total = len(lanes) * sum(material.num_tokens for material in self.materials)
        measurement = Measurement(lanes, spec.vocab_size, progress or _say_nothing, total)
        found = [measurement.at(material) for material in self.materials]
        formats = tuple(
            FormatReport(
                kv_dtype=name,
                layers=tuple(layer.codecs for layer in layers),
                bytes_per_token=bytes_per_token(spec, layers),
                contexts=tuple(contexts[lane] for contexts in found),
            )
            for lane, (name, layers) in enumerate(self.formats.items())
        )
        report = Report(
            model=self.source.name.rstrip("/").rsplit("/", 1)[-1],
            isa=model.isa,
            threads=model.threads,
            text=self.text.name,
            text_sha256=self.text.sha256,
            formats=formats,
        )
        self._remember(loaded, report)
        return report

    def _remember(self, loaded: LoadedModel, report: Report) -> None:
        if not is_sufficient(report, self.source.spec):
            return
        for name, layers in self.formats.items():
            if name == _BF16:
                continue
            place, found = Place.of(loaded, self.source.spec, layers), report.only(name)
            kept = stored(place)
            if kept is not None and extent(kept) > extent(found):
                _log.warning("a longer evaluation of %s is kept already, and stays", name)
            else:
                store(place, found)

    @property
    def _longest(self) -> int:
        return self.materials[-1].context

    def _lane_bytes(self, layers: Sequence[KVFormat]) -> int:
        return lane_bytes(self.source.spec, layers, self._longest)


def prepare(
    source: ModelSource,
    formats: Sequence[str] | None = None,
    *,
    text: Text | None = None,
    contexts: Sequence[int] | None = None,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    kv_8bit_layers: Sequence[int] | None = None,
) -> Evaluation:
    """Decide what is measured, reading the model's metadata and tokenizer and no weights.

    Args:
        formats: names as ``kv_dtype`` takes them. ``None``: all that have a name and that this model's head_dim fits.
            bf16 is always among them.
        text: what is predicted. ``None``: :func:`octavo.evaluate.text.default_text`.
        contexts: lengths of context in tokens. ``None``: those of :data:`DEFAULT_CONTEXTS` that the model goes to, or
            all it has.
        max_tokens: most tokens of text for each length of context; one whole window is taken in any case.
        kv_8bit_layers: layers that keep 8 bits where a format says 4.

    Raises:
        ModelError: the tokenizer cannot be read.
        ConfigError: there is no such format or it does not fit the model; a context is longer than the model's or than
            the text.
        CapacityError: this machine has not the memory free.
    """
    spec = source.spec
    layers = _formats(spec, formats, kv_8bit_layers)
    lengths = _contexts(spec, contexts)
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise ConfigError(f"max_tokens must be a whole number from 1; got {shown(max_tokens)}")
    if text is not None and not isinstance(text, Text):
        raise ConfigError(f"text must be a Text, as read_text makes one of a file; got {shown(text)}")
    text = default_text() if text is None else text
    tokenizer = load_tokenizer(source.tokenizer_source, source.name)
    windows = Windows(text, tokenizer)
    windows.check(lengths)
    materials = []
    for context in lengths:
        cut = windows.cut(context, max_tokens)
        planted = [
            haystack(
                lambda part: tokenizer.encode(part, add_special_tokens=False),
                windows.prefix,
                window[len(windows.prefix) :],
                context,
                seed=f"{context}:{number}",
            )
            for number, window in enumerate(cut[:_MOST_HAYSTACKS])
        ]
        materials.append(Material(context, cut, [each for each in planted if each is not None]))
    evaluation = Evaluation(source, text, layers, tuple(materials))
    # Said before weights are read: the system would promise more than it has, and end the process when it is used.
    if evaluation.nbytes > (free := free_memory()):
        raise CapacityError(
            f"this takes {evaluation.nbytes:,} bytes for weights, the KV pools of all formats at once, and logits; "
            f"{free:,} bytes are free. Give fewer formats or shorter contexts"
        )
    return evaluation


_log = logging.getLogger(__name__)
_BF16 = "bf16"


def _formats(
    spec: ModelSpec, names: Sequence[str] | None, kv_8bit_layers: Sequence[int] | None
) -> dict[str, tuple[KVFormat, ...]]:
    if names is None:
        names = [name for name, known in KV_DTYPES.items() if known.suits(spec.head_dim)]
    elif not _is_list(names):
        raise ConfigError(f"formats must be a list of KV formats, one at least; got {shown(names)}")
    formats = {}
    for name in [_BF16, *names]:
        config = EngineConfig(kv_dtype=name, kv_8bit_layers=kv_8bit_layers)
        formats[str(config.kv_format)] = kv_formats(spec, config)
    return formats


def _contexts(spec: ModelSpec, contexts: Sequence[int] | None) -> list[int]:
    longest = spec.max_position_embeddings
    if contexts is None:
        return [context for context in DEFAULT_CONTEXTS if context <= longest] or [longest]
    if not _is_list(contexts):
        raise ConfigError(f"contexts must be a list of numbers of tokens, one at least; got {shown(contexts)}")
    for context in contexts:
        if isinstance(context, bool) or not isinstance(context, int) or not MIN_CONTEXT <= context <= longest:
            raise ConfigError(
                f"a context to evaluate must be a whole number from {MIN_CONTEXT} to {longest}, this model's; "
                f"got {shown(context)}"
            )
    return sorted(set(contexts))


def _is_list(value: object) -> bool:
    """Whether it is a list, or the like, with something in it."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)) and len(value) > 0


def _say_nothing(done: int, total: int) -> None:
    """Progress that nobody asked for."""
