"""Small tokenizers for these tests: trained here, written as GGUF, read by us and by transformers."""

from __future__ import annotations

import json
import pydoc_data.topics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from octavo.text.gguf_tokenizer import tokenizer_from_gguf
from octavo.text.tokenizer import Tokenizer

CONTROL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
]
USER_DEFINED = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
NORMAL_TYPE, UNKNOWN_TYPE, CONTROL_TYPE, USER_DEFINED_TYPE, BYTE_TYPE = 1, 2, 3, 4, 6

VARIED_TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two leading spaces, and three   inside, and trailing  ",
    "\ttabs\t\tand\nline\n\nbreaks\r\nof\n \n every kind\n",
    "I'm we'll they've DON'T it's 'quoted' l'été",
    "def f(x: int) -> int:\n    return x ** 2  # squared\n\n\tif x:\n",
    "naïve café — “quotes” … €100",
    "e\u0301 n\u0303 a\u0308\u0323 combining, and a zalgo h̷̡̛e̴̢",
    "שלום עולם, مرحبا بالعالم \u202bRTL\u202c",
    "你好，世界。日本語のテキスト 한국어 ภาษาไทย हिन्दी",
    "👩‍👩‍👧‍👦 family, 👍🏽 skin, 🇩🇪 flag, ❤️ variation, 😀😀",
    "\x00\x01\x07\x1b[31m control \x7f\x85\xa0\u200b\ufeff\u2028 characters",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0010ffff",
    "special <|im_start|>user\nhi<|im_end|> <|endoftext|>and <think>hm</think> in text <|nearly|>",
    "<s>[INST] hi [/INST]</s> <unk> <0x41>",
    "a▁b ▁ ▁▁ Ġ Ċ",
    "x" * 300,
]
DIGIT_TEXTS = [
    "3.14159 1,000,000 0xFF 2024-01-31",
    "a  1",
    "\n\n1. First\n\n2. Second",
    "x1  22   333\t4444",
    "٣٤٥ ½½ ½ ² Ⅷ 一二三",
]

TEMPLATES = {
    # ChatML as SmolLM2 has it: a default system prompt, content as text only.
    "chatml": """
{%- for m in messages -%}
    {%- if loop.first and m['role'] != 'system' -%}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
    {%- endif -%}
    {{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
""",
    # Headers as Llama 3 has them: trimmed content, tools shown in the first user message, results as JSON.
    "headers": """
{{- bos_token }}
{%- set shown = namespace(tools=tools is none) %}
{%- for m in messages %}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}
    {%- if m.role == 'user' and not shown.tools %}
        {%- set shown.tools = true %}
        {{- 'Call one of these functions:\\n\\n' }}
        {%- for t in tools %}{{- t | tojson(indent=4) + '\\n\\n' }}{%- endfor %}
    {%- endif %}
    {%- if m.tool_calls is defined %}
        {%- if m.tool_calls | length != 1 %}{{- raise_exception('One tool call at a time.') }}{%- endif %}
        {{- '{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' }}
        {{- m.tool_calls[0].function.arguments | tojson }}{{- '}' }}
    {%- elif m.role == 'tool' and m.content is mapping %}{{- m.content | tojson }}
    {%- else %}{{- m.content | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
""",
    # Brackets as Mistral has them: the system text moves into the first user message, roles must alternate.
    "brackets": """
{%- if messages[0]['role'] == 'system' %}{%- set head = messages[0]['content'] + '\\n\\n' %}
    {%- set turns = messages[1:] %}
{%- else %}{%- set head = '' %}{%- set turns = messages %}{%- endif %}
{{- bos_token }}
{%- for m in turns %}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user, assistant, user, ...') }}
    {%- endif %}
    {%- if m['role'] == 'user' %}
        {{- '[INST] ' + (head if loop.first else '') + m['content'] + ' [/INST]' }}
    {%- else %}{{- ' ' + m['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
""",
    # Tools inside the system block, as Qwen2.5 has them; reasoning of earlier turns dropped, as Qwen3 does.
    "tools_in_system": """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for t in tools %}{{- '\\n' }}{{- t | tojson }}{%- endfor %}
    {{- '\\n</tools>\\nAnswer with <tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'system' and loop.first %}{%- continue %}{%- endif %}
    {%- set said = m.content or '' %}
    {%- if m.role == 'assistant' %}
        {%- if '</think>' in said %}{%- set said = said.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and m.reasoning_content %}
            {{- '<think>\\n' + m.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- said }}
        {%- for call in m.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {%- set given = call.function.arguments %}
            {{- given if given is string else given | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + said + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}{{- '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    # Plain lines, as Zephyr has them: white space control is left to the environment.
    "lines": """
{% for m in messages %}
    {% if m['role'] == 'user' %}
{{ '<|user|>\\n' + m['content'] + eos_token }}
    {% elif m['role'] == 'system' %}
{{ '<|system|>\\n' + m['content'] + eos_token }}
    {% else %}
{{ '<|assistant|>' }}
{% generation %}{{ m['content'] + eos_token }}{% endgeneration %}
    {% endif %}
    {% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
    {% endif %}
{% endfor %}
""",
    # Content as a list of parts, or as text.
    "parts": """
{{- bos_token }}
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.content is string %}{{- m.content }}
    {%- else %}{%- for p in m.content %}{{- p.text }}{%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""",
}


class GgufCase(NamedTuple):
    """One GGUF file of tokenizer metadata: where it is, what it says, and both readings of it."""

    path: Path
    metadata: dict[str, Any]
    ours: Tokenizer
    reference: PreTrainedTokenizerBase

    def __repr__(self) -> str:
        return f"GgufCase({self.path})"


@pytest.fixture(scope="session")
def varied_texts() -> list[str]:
    return VARIED_TEXTS


@pytest.fixture(scope="session")
def digit_texts() -> list[str]:
    return DIGIT_TEXTS


@pytest.fixture(scope="session")
def templates() -> dict[str, str]:
    """Chat templates of the kinds models have, in our own words."""
    return TEMPLATES


@pytest.fixture(scope="session", params=sorted(TEMPLATES))
def template(request: pytest.FixtureRequest) -> str:
    return TEMPLATES[request.param]


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    topics = list(pydoc_data.topics.topics.values())[:12]
    return [*topics, *VARIED_TEXTS * 3, *DIGIT_TEXTS * 3]


@pytest.fixture(scope="session")
def byte_level_fields(corpus: list[str]) -> dict[str, Any]:
    """Metadata of a byte-level vocabulary, without the name of its split."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1200, initial_alphabet=sorted(alphabet), special_tokens=CONTROL)
    backend.train_from_iterator(corpus, trainer)
    vocab = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    tokens = [token for token, _ in vocab] + USER_DEFINED
    types = [CONTROL_TYPE] * len(CONTROL) + [NORMAL_TYPE] * (len(vocab) - len(CONTROL))
    merges = _merges(backend)
    return {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": types + [USER_DEFINED_TYPE] * len(USER_DEFINED),
        "merges": [" ".join(pair) for pair in merges],
        "bos_token_id": tokens.index("<|im_start|>"),
        "eos_token_id": tokens.index("<|im_end|>"),
        "unknown_token_id": tokens.index("<|endoftext|>"),
        "padding_token_id": tokens.index("<|im_end|>"),
        "add_bos_token": False,
    }


@pytest.fixture(scope="session")
def sentencepiece_fields(corpus: list[str]) -> dict[str, Any]:
    """Metadata of a sentencepiece vocabulary with scores, byte tokens and no merges."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=True)
    backend.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=900, limit_alphabet=120))
    learnt = [token for token, _ in sorted(backend.get_vocab().items(), key=lambda item: item[1])]
    merged = [token for token in learnt if len(token) > 1]
    single = [token for token in learnt if len(token) == 1]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *merged, *single, "[INST]", "[/INST]"]
    types = [UNKNOWN_TYPE, CONTROL_TYPE, CONTROL_TYPE] + [BYTE_TYPE] * 256
    types += [NORMAL_TYPE] * len(learnt) + [CONTROL_TYPE] * 2
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(learnt))] + [0.0] * 2
    return {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }


@pytest.fixture(scope="session")
def make_gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., GgufCase]:
    """Write a GGUF file of tokenizer fields and read it twice: by Octavo and by transformers."""

    def make(fields: dict[str, Any], architecture: str = "llama") -> GgufCase:
        path = tmp_path_factory.mktemp("gguf") / "tokenizer.gguf"
        _write_gguf(path, fields, architecture)
        metadata = read_metadata(path)
        reference = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        return GgufCase(path, metadata, tokenizer_from_gguf(metadata), reference)

    return make


@pytest.fixture(scope="session")
def byte_level(make_gguf: Callable[..., GgufCase], byte_level_fields: dict[str, Any]) -> GgufCase:
    return make_gguf({**byte_level_fields, "pre": "gpt-2"})


@pytest.fixture(scope="session")
def sentencepiece(make_gguf: Callable[..., GgufCase], sentencepiece_fields: dict[str, Any]) -> GgufCase:
    return make_gguf(sentencepiece_fields)


@pytest.fixture(scope="session", params=["byte_level", "sentencepiece"])
def case(request: pytest.FixtureRequest) -> GgufCase:
    """Both kinds of vocabulary in turn."""
    result: GgufCase = request.getfixturevalue(request.param)
    return result


@pytest.fixture(scope="session")
def smollm2_case(smollm2_gguf: Path) -> GgufCase:
    """The embedded model's own tokenizer."""
    metadata = read_metadata(smollm2_gguf)
    reference = AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)
    return GgufCase(smollm2_gguf, metadata, tokenizer_from_gguf(metadata), reference)


def read_metadata(path: Path) -> dict[str, Any]:
    return {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}


def _merges(backend: Backend) -> list[tuple[str, str]]:
    merges = json.loads(backend.to_str())["model"]["merges"]
    return [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in merges]


def _write_gguf(path: Path, fields: dict[str, Any], architecture: str) -> None:
    """The tokenizer fields, and what transformers needs to take the file for a model's."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(16)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(fields["tokens"]))
    for key, value in fields.items():
        name = f"tokenizer.ggml.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    writer.add_tensor("output_norm.weight", np.ones(16, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
