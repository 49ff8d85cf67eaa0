"""Whether this process is a worker, which may die with what it runs, or the one that a person started; its memory."""

from __future__ import annotations

import resource
from pathlib import Path

_worker = False


def become_worker() -> None:
    """Say that this process is expendable: its parent notices its death and goes on."""
    global _worker
    _worker = True


def is_worker() -> bool:
    """Return whether this process is a worker."""
    return _worker


def limit_memory(room: int) -> None:
    """Bound this process's address space to what it has and some bytes more (setrlimit(2), RLIMIT_AS).

    What it runs then fails by itself, before the system ends some process of its own choice.

    Args:
        room: bytes that it may still take.
    """
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + room
    wanted = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, wanted))
