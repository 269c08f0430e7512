"""How a GGUF file's byte-level vocabulary wants text split before merging, by the name the file gives.

``tokenizer.ggml.pre`` names a rule of llama.cpp's, whose format this is. What is written down here is what the
published ``tokenizer.json`` of the models that carry a name has, where llama.cpp only comes near to it (it has no
Unicode normalisation, and stands in for ``\\p{Lu}`` and its like with lookaheads).

The models: ``gpt-2`` GPT-2; ``smollm`` SmolLM 1 and 2; ``refact`` Granite 3; ``starcoder`` and ``codeshell`` their
kin; ``llama-bpe`` Llama 3; ``smaug-bpe`` SmolLM3, which has Llama 3's vocabulary and adds no bos; ``dbrx`` OLMo 2,
Granite 4 and Phi-4; ``olmo`` OLMo 1; ``qwen2`` Qwen 2 to 3; ``gpt-4o`` Phi-4-mini; ``tekken`` Mistral Nemo and
later. ``default`` is what files from before there were names are read with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from octavo.errors import UnsupportedModelError

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_MARKS_OR_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES


def _words_by_case(ending: str) -> str:
    """Words that end where lower case turns to upper, each with ``ending`` if it has one."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}{upper}*{lower}+{ending}|{before}{upper}+{lower}*{ending}"


_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_MARKS}"
_GPT4O = rf"{_words_by_case(_CONTRACTION + '?')}|\p{{N}}{{1,3}}|{_MARKS_OR_SLASH}"
_TEKKEN = rf"{_words_by_case('')}|\p{{N}}|{_MARKS_OR_SLASH}"


@dataclass(frozen=True, slots=True)
class Split:
    """What is done to text before merging.

    Attributes:
        pattern: each match is merged by itself; ``None`` is GPT-2's rule.
        digits_apart: every digit is split off before anything else.
        composed: text is normalised to NFC first.
        whole_words: a match that is a token as it is, is that token, whatever merges would make of it.
        add_bos: bos goes before a text where the file does not say.
    """

    pattern: str | None = None
    digits_apart: bool = False
    composed: bool = False
    whole_words: bool = False
    add_bos: bool = False

    def install(self, backend: Backend) -> None:
        """Make ``backend`` split this way, and spell what is left in the byte alphabet."""
        steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if self.digits_apart else []
        if self.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None))
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
        if self.composed:
            backend.normalizer = normalizers.NFC()


_SPLITS: dict[str, Split] = {
    **dict.fromkeys(("default", "gpt-2"), Split()),
    "olmo": Split(composed=True),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), Split(digits_apart=True)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), Split(_LLAMA3, whole_words=True, add_bos=True)),
    "smaug-bpe": Split(_LLAMA3, whole_words=True),
    "dbrx": Split(_LLAMA3),
    "qwen2": Split(_QWEN2, composed=True),
    "deepseek-r1-qwen": Split(_QWEN2),
    "gpt-4o": Split(_GPT4O),
    "tekken": Split(_TEKKEN, whole_words=True, add_bos=True),
}


def split_named(name: str) -> Split:
    """The rule that ``tokenizer.ggml.pre`` names.

    Raises:
        UnsupportedModelError: the name is not known; the message lists those that are.
    """
    split = _SPLITS.get(name)
    if split is None:
        raise UnsupportedModelError(f"tokenizer.ggml.pre is {name!r}; Octavo knows {', '.join(sorted(_SPLITS))}")
    return split
