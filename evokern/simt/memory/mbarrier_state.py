"""State of one barrier object in shared memory (``mbarrier``), and the instructions that use such objects."""

from __future__ import annotations

from dataclasses import dataclass

from evokern.simt.arrays import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class MbarrierCall:
    """An instruction that uses barrier objects."""

    number: int
    """The instruction."""
    offset: int = 0
    """Bytes to add to addresses."""
    relaxed: bool = False
    """Whether it neither publishes nor acquires accesses."""
    drop: bool = False
    """Whether later phases expect one arrival less."""
    parity: bool = False
    """Whether it waits for a parity instead of a token's phase."""
    cluster: bool = False
    """Whether the objects may be in other blocks of the cluster."""
    near: bool = False
    """Whether its scope is the block, in a cluster of several."""


@dataclass(slots=True, kw_only=True)
class Mbarrier:
    """State of one barrier object."""

    expected: int
    """Number of arrivals that end a phase."""
    pending: int
    """Arrivals still missing in this phase."""
    lane: int = 0
    """The lane that initialised it."""
    stamp: int = 0
    """Time stamp of the initialisation."""
    published: int = -1
    """Arrivals of its lane at the cluster's barrier before ``fence.mbarrier_init``; -1 without this fence."""
    reported: bool = False
    """Whether a use before its initialisation was reported."""
    used: Array
    """Time stamp of the latest use by each thread of its cluster; 0 before the first."""
    phase: int = 0
    """Number of phases that have ended."""
    bytes: int = 0
    """Announced bytes still missing; negative if more have arrived."""
    announced: tuple[int, int] = (-1, 0)
    """Latest instruction that announced bytes in this phase, and all bytes that this phase announced."""
    brought: tuple[int, int, str] = (-1, 0, "")
    """Latest copy that brought bytes in this phase, all bytes brought in it, and the tile of the copy."""

    ended: tuple[int, bool] = (-1, False)
    """Step of the record in which the last arrival or copy of the latest phase was issued; whether it was a copy."""

    def settle(self, step: int, *, copied: bool = False) -> bool:
        """End the phase if no arrival and no bytes are missing; return whether the phase ended."""
        if self.pending > 0 or self.bytes != 0:
            return False
        self.phase += 1
        self.pending = self.expected
        self.ended = step, copied
        self.announced, self.brought = (-1, 0), (-1, 0, "")
        return True

    def announce(self, number: int, size: int) -> None:
        """Expect more bytes or, with a negative size, count bytes that have arrived."""
        self.bytes += size
        if size > 0:
            self.announced = number, self.announced[1] + size


def ended_phases(barrier: Mbarrier, call: MbarrierCall, token: Array) -> Array:
    """Return for each lane whether the phase that it awaits has ended: a token's, or the latest of a parity."""
    found: Array = (token & 1) != (barrier.phase & 1) if call.parity else token < barrier.phase
    return found
