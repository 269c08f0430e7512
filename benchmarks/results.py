"""Where results go, and what every figure stands beside."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

RESULTS = Path(__file__).with_name("RESULTS.md")


def machine() -> str:
    """Processor, cores and memory: what a figure means nothing without."""
    name = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "unknown processor",
    )
    return f"{name}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB"


def add_section(title: str, text: str) -> None:
    """Append to RESULTS.md, under a heading."""
    with RESULTS.open("a") as file:
        file.write(f"\n## {title}\n\n{text}")
