"""How much memory this process may still take: the machine's and that of every control group around it."""

from __future__ import annotations

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def free_memory() -> int:
    """Bytes that can be had without swapping: the least of what the machine and each control group leave."""
    return min(_machine(), *_control_groups(), 2**63 - 1)


def _machine() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 2**63 - 1


def _control_groups() -> list[int]:
    """Bytes left in this process's control group and its parents, where one has a limit (versions 2 and 1)."""
    left = []
    for line in _lines(_MEMBERSHIP):
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = _CGROUPS / controllers
        names = ("memory.max", "memory.current", "inactive_file")
        if controllers == "memory":
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        # Inside a container the path may be the host's and lead nowhere; the root is the container's then.
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(root):
                left += _left_in(group, *names)
    return left


def _left_in(group: Path, limit_name: str, usage_name: str, reclaimable_name: str) -> list[int]:
    limit, usage = _number(group / limit_name), _number(group / usage_name)
    if limit is None or usage is None:
        return []
    reclaimable = 0
    for line in _lines(group / "memory.stat"):
        key, value = line.split()
        if key == reclaimable_name:
            reclaimable = int(value)
    return [max(limit - usage + reclaimable, 0)]


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _lines(path: Path) -> list[str]:
    """A kernel file's lines; none where this kernel, or this container, has no such file."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
