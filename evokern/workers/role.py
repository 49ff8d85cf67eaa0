"""Whether this process is a worker, which may die with what it runs, or the one that a person started."""

from __future__ import annotations

_worker = False


def become_worker() -> None:
    """Say that this process is expendable: its parent notices its death and goes on."""
    global _worker
    _worker = True


def is_worker() -> bool:
    """Return whether this process is a worker."""
    return _worker
