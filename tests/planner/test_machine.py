"""What memory is free: the least that the machine and the control groups around this process leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.planner import machine


def test_free_memory_is_what_the_kernel_says_or_less() -> None:
    available = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    assert 0 < machine.free_memory() <= int(available.split()[1]) * 1024 * 1.1


@pytest.mark.parametrize(
    ("membership", "files", "left"),
    [
        (
            "0::/",
            {"memory.max": "1000", "memory.current": "600", "memory.stat": "inactive_file 60\nactive_file 40"},
            [500],
        ),
        ("0::/", {"memory.max": "max", "memory.current": "600"}, []),
        ("0::/", {}, []),
        # The path is the host's and leads nowhere here; the root is this container's own group.
        ("0::/host/path", {"memory.max": "1000", "memory.current": "999"}, [1]),
        ("0::/", {"memory.max": "1000", "memory.current": "1200"}, [0]),
        (
            "0::/a/b",
            {"a/memory.max": "900", "a/memory.current": "100", "a/b/memory.max": "max", "a/b/memory.current": "1"},
            [800],
        ),
        (
            "4:memory:/x\n3:cpuset:/x",
            {"memory/x/memory.limit_in_bytes": "50", "memory/x/memory.usage_in_bytes": "20"},
            [30],
        ),
    ],
)
def test_every_control_group_around_the_process_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: dict[str, str], left: list[int]
) -> None:
    for name, content in {"cgroup": membership, **{f"groups/{key}": value for key, value in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    (tmp_path / "meminfo").write_text("")  # says nothing, so that the groups alone count
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path / "groups")
    assert machine.free_memory() == min([2**63 - 1, *left])
