"""How much memory this process may still take: the machine's and that of every control group around it."""

from __future__ import annotations

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_MEMINFO = Path("/proc/meminfo")
_UNKNOWN = 2**63 - 1


def free_memory() -> int:
    """Bytes that can be had without swapping: the least of what the machine and each control group leave."""
    return min([_machine(), *_control_groups()])


def _machine() -> int:
    for line in _lines(_MEMINFO):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNKNOWN


def _control_groups() -> list[int]:
    """Bytes left in this process's control group and its parents, where one has a limit (versions 2 and 1)."""
    left = []
    for line in _lines(_MEMBERSHIP):
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = _CGROUPS / controllers
        names = ("memory.max", "memory.current", "")
        if controllers == "memory":
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        # Inside a container the path may be the host's and lead nowhere; the root is the container's then.
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(root):
                left += _left_in(group, *names)
    return left


def _left_in(group: Path, limit_name: str, usage_name: str, prefix: str) -> list[int]:
    limit, usage = _number(group / limit_name), _number(group / usage_name)
    if limit is None or usage is None:
        return []
    # Files that lie in the page cache count as used, and make room for whoever asks.
    stat = dict(line.split(maxsplit=1) for line in _lines(group / "memory.stat"))
    cached = sum(int(stat.get(prefix + name, 0)) for name in ("inactive_file", "active_file"))
    return [max(limit - usage + cached, 0)]


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _lines(path: Path) -> list[str]:
    """A kernel file's lines; none where this kernel, or this container, has no such file."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
