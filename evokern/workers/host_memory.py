"""Memory of this machine: available memory and memory in use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Return the bytes of memory available to programs; None if the system does not report them (/proc/meminfo)."""
    return _meminfo().get("MemAvailable")


def memory_in_use() -> dict[str, int]:
    """Return the `used_bytes` and `total_bytes` of memory: of the container if it has a limit, else of the machine.

    Memory that the system can reclaim at once, such as cached files, does not count as used. The result is empty if the
    system does not report its memory (/proc/meminfo; `memory.current`, `memory.max` and `memory.stat` of cgroup v2).
    """
    machine = _meminfo()
    if not {"MemTotal", "MemAvailable"} <= machine.keys():
        return {}
    found = {
        "used_bytes": machine["MemTotal"] - machine["MemAvailable"],
        "total_bytes": machine["MemTotal"],
    }
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        current = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        own = {"used_bytes": max(0, current - int(stat["inactive_file"])), "total_bytes": limit}
    except (OSError, ValueError, KeyError):  # no limit ("max"), or no cgroup v2
        return found
    return own if limit < machine["MemTotal"] else found


def memory_text(memory: Mapping[str, int]) -> str:
    """Return the result of `memory_in_use` as text such as `13.2 of 16 GiB of memory in use`."""
    if "used_bytes" not in memory:
        return "memory use unknown"
    return f"{memory['used_bytes'] / 2**30:.3g} of {memory['total_bytes'] / 2**30:.3g} GiB of memory in use"


def _meminfo() -> dict[str, int]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    parts = (line.split() for line in lines)
    return {part[0].rstrip(":"): int(part[1]) * 1024 for part in parts if len(part) == 3 and part[2] == "kB"}
