"""Role of this process (worker or main process), and its memory limit."""

from __future__ import annotations

import resource
from pathlib import Path

_worker = False


def become_worker() -> None:
    """Mark this process as a worker, which may crash without affecting the search."""
    global _worker
    _worker = True


def is_worker() -> bool:
    """Return whether this process is a worker."""
    return _worker


def limit_memory(room: int) -> None:
    """Limit the address space of this process to its current size plus `room` bytes (setrlimit(2), RLIMIT_AS).

    An excessive allocation then fails in this process, before the system kills an arbitrary process.
    """
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + room
    wanted = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, wanted))
