"""Accesses of one instruction to a state space; all state spaces have the same interface.

`SpaceAccess` is the interface; shared, local and global memory implement it: they locate, check, count and execute
accesses. Generic addresses are sorted by their window (`by_state_space`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from evokern.simt.arrays import RAW, Active, Array
from evokern.simt.batch import Batch, Occurrence
from evokern.simt.event_counter import EventCounter
from evokern.simt.memory.buffers import WINDOW_BITS
from evokern.simt.memory.global_space import AccessSite
from evokern.simt.state import MachineState

_Kind = TypeVar("_Kind")
Values = Callable[[Active], Array]
"""Active lanes → values to store, one element each."""
Update = Callable[[Active, Array, Array], None]
"""(active lanes, memory as unsigned elements, index of each lane): function that reads and writes memory."""
Reach = Callable[[Active, Array], Iterator[tuple[_Kind, Active, Array]]]
"""(active lanes, addresses) → for each state space: its accesses, its lanes, and their addresses in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Rules for an instruction's accesses, which apply in addition to bounds and alignment checks."""

    races: bool = True
    """Whether accesses to shared memory are checked for races; False for accesses that define their own order."""
    synchronises: bool = False
    """Whether the access takes part in ordering blocks, as volatile and relaxed accesses do."""
    releases: bool = False
    """Whether the access publishes earlier writes of its block."""
    collisions: bool = False
    """Whether to report lanes that store different values to one address of shared memory at the same time."""
    cluster: bool = False
    """Whether addresses of shared memory may belong to other blocks of the cluster."""
    block_scope: bool = False
    """Whether the access synchronises only in the scope of its block, which is smaller than the cluster."""
    counted: bool = True
    """Whether wavefronts and local bytes are counted; False if elements move together and the caller counts them."""


PLAIN = AccessRules()
"""Rules for plain loads and stores."""


class SpaceAccess(ABC):
    """Accesses of one instruction to one state space.

    Lanes with an address outside every allocation are reported and skipped. A misaligned address ends the launch.
    """

    @abstractmethod
    def load(self, active: Active, address: Array, offset: int) -> tuple[Active | None, Array]:
        """Read one element per lane.

        Args:
            active: the lanes.
            address: addresses within the space, one per active lane or a single one.
            offset: bytes to add.

        Returns:
            The lanes with a valid access (None if there are none), and the values read.
        """

    @abstractmethod
    def store(self, active: Active, address: Array, offset: int, values: Values) -> Active | None:
        """Write one element per lane.

        Args:
            active: the lanes.
            address: addresses within the space, one per active lane or a single one.
            offset: bytes to add.
            values: function that returns the values of the lanes with a valid access.

        Returns:
            The lanes with a valid access; None if there are none.
        """


class AtomicAccess(SpaceAccess):
    """Accesses to a state space that supports atomic updates."""

    @abstractmethod
    def update(self, active: Active, address: Array, offset: int, change: Update) -> None:
        """Read and write one element per lane atomically."""


class SharedAccess(AtomicAccess):
    """Accesses to shared memory; counts wavefronts and checks for races between threads."""

    __slots__ = ("_batch", "_cluster", "_events", "_number", "_order", "_rules", "_shadow", "_space", "_width")

    def __init__(self, state: MachineState, number: int, width: int, rules: AccessRules = PLAIN) -> None:
        self._batch, self._space, self._number, self._width = state.batch, state.shared, number, width
        self._rules, self._shadow, self._cluster = rules, state.shared.shadow, rules.cluster
        self._order = state.order if state.batch.program.orders_blocks else None
        self._events = state.events if rules.counted else None

    def load(self, active: Active, address: Array, offset: int) -> tuple[Active | None, Array]:
        """Read one element per lane."""
        width, number = self._width, self._number
        sound, index, leaders = self._space.locate(active, address, offset, width, number, cluster=self._cluster)
        if sound is None:
            return None, index
        if self._shadow is not None and self._rules.races:
            self._shadow.read(sound, index, width, number, leaders)
        elif self._shadow is not None:
            self._shadow.synchronising_access(sound, index, width, number, leaders, "read")
            if self._order is not None:
                self._order.load_at(sound, "shared", index * width, near=self._rules.block_scope)
        if self._events is not None:
            self._count(self._events, sound, index)
        return sound, self._space.view(width).take(index, mode="clip")

    def store(self, active: Active, address: Array, offset: int, values: Values) -> Active | None:
        """Write one element per lane."""
        width, number = self._width, self._number
        sound, index, leaders = self._space.locate(active, address, offset, width, number, cluster=self._cluster)
        if sound is None:
            return None
        raw = values(sound).view(RAW[width])
        if self._events is not None:
            self._count(self._events, sound, index)
        collide = False
        if self._shadow is not None:
            if self._rules.races:
                collide = self._shadow.write(sound, index, width, number, leaders)
            else:
                self._shadow.synchronising_access(sound, index, width, number, leaders, "write")
                if self._order is not None:
                    self._order.store_at(
                        sound, "shared", index * width, releases=self._rules.releases, near=self._rules.block_scope
                    )
        self._space.view(width)[index] = raw
        if collide and self._rules.collisions:
            self._report_lost(sound, index, raw)
        return sound

    def update(self, active: Active, address: Array, offset: int, change: Update) -> None:
        """Read and write one element per lane atomically."""
        width, number = self._width, self._number
        sound, index, leaders = self._space.locate(active, address, offset, width, number, cluster=self._cluster)
        if sound is None:
            return
        if self._shadow is not None:
            self._shadow.synchronising_access(sound, index, width, number, leaders, "update")
            if self._order is not None:
                self._order.update_at(
                    sound, "shared", index * width, releases=self._rules.releases, near=self._rules.block_scope
                )
        if self._events is not None:
            self._count(self._events, sound, index)
        change(sound, self._space.view(width), index)

    def _count(self, events: EventCounter, active: Active, index: Array) -> None:
        """Count an access: its wavefronts, and the lanes that access another block's memory."""
        events.shared(self._number, active, index, self._width)
        if self._cluster and self._space.ranks > 1:
            others = index * self._width // self._space.stride != self._batch.block_slot[active.lanes]
            events.cluster(self._number, int(np.count_nonzero(others)))

    def _report_lost(self, active: Active, index: Array, raw: Array) -> None:
        """Report lanes whose value another lane overwrote at the same time, which makes the result undefined."""
        width, number = self._width, self._number
        after = self._space.view(width).take(index, mode="clip")
        lost = after.view(np.uint8) != raw.view(np.uint8)
        if not lost.any():
            return
        bad = lost.reshape(-1, width).any(1)
        access = self._space.place_of(int(index[bad][0]) * width)
        detail = "Several threads write different values to the same address at the same time"
        self._batch.report("shared_race", Occurrence.of(number, active.lanes[bad], number), access, detail=detail)


class LocalAccess(SpaceAccess):
    """Accesses to local memory; counts bytes and checks for uninitialised reads."""

    __slots__ = ("_events", "_number", "_space", "_width")

    def __init__(self, state: MachineState, number: int, width: int, rules: AccessRules = PLAIN) -> None:
        self._space, self._number, self._width = state.local, number, width
        self._events = state.events if rules.counted else None

    def load(self, active: Active, address: Array, offset: int) -> tuple[Active | None, Array]:
        """Read one element per lane."""
        width, number = self._width, self._number
        sound, index = self._space.locate(active, address, offset, width, number)
        if sound is None:
            return None, index
        self._space.note_read(sound, index, width, number)
        if self._events is not None:
            self._events.local(number, sound, width)
        return sound, self._space.view(width).take(index, mode="clip")

    def store(self, active: Active, address: Array, offset: int, values: Values) -> Active | None:
        """Write one element per lane."""
        width, number = self._width, self._number
        sound, index = self._space.locate(active, address, offset, width, number)
        if sound is None:
            return None
        self._space.note_write(index, width)
        if self._events is not None:
            self._events.local(number, sound, width)
        self._space.view(width)[index] = values(sound).view(RAW[width])
        return sound


class GlobalAccess(AtomicAccess):
    """Accesses to global and constant memory; counts sectors and checks for races between blocks."""

    __slots__ = ("_events", "_number", "_rules", "_site", "_space", "_width")

    def __init__(self, state: MachineState, number: int, width: int, rules: AccessRules = PLAIN) -> None:
        self._space, self._number, self._width, self._rules = state.globals, number, width, rules
        self._events = state.events
        self._site = AccessSite(number, width)

    def load(self, active: Active, address: Array, offset: int) -> tuple[Active | None, Array]:
        """Read one element per lane."""
        width, number, site = self._width, self._number, self._site
        sound, index = self._space.locate(active, widened(address), offset, site, write=False)
        if sound is None:
            return None, index
        self._space.note_read(sound, index, site, synchronises=self._rules.synchronises)
        if self._events is not None:
            self._events.sectors(number, sound, index, width, write=False)
        return sound, self._space.view(width).take(index, mode="clip")

    def store(self, active: Active, address: Array, offset: int, values: Values) -> Active | None:
        """Write one element per lane."""
        width, number, site, rules = self._width, self._number, self._site, self._rules
        sound, index = self._space.locate(active, widened(address), offset, site, write=True)
        if sound is None:
            return None
        new = values(sound)
        self._space.note_write(sound, index, site, new, synchronises=rules.synchronises, releases=rules.releases)
        if self._events is not None:
            self._events.sectors(number, sound, index, width, write=True)
        self._space.view(width)[index] = new.view(RAW[width])
        return sound

    def update(self, active: Active, address: Array, offset: int, change: Update) -> None:
        """Read and write one element per lane atomically."""
        width, number, site = self._width, self._number, self._site
        sound, index = self._space.locate(active, widened(address), offset, site, write=True)
        if sound is None:
            return
        self._space.note_atomic(sound, index, site, releases=self._rules.releases)
        if self._events is not None:
            self._events.sectors(number, sound, index, width, write=True)
        change(sound, self._space.view(width), index)


def space_accesses(state: MachineState, number: int, width: int, rules: AccessRules = PLAIN) -> dict[str, SpaceAccess]:
    """Return a map from each state space to an instruction's accesses to it.

    Args:
        state: the machine's state.
        number: the instruction.
        width: bytes per lane.
        rules: rules for these accesses.
    """
    in_memory = GlobalAccess(state, number, width, rules)
    return {
        "shared": SharedAccess(state, number, width, rules),
        "local": LocalAccess(state, number, width, rules),
        "global": in_memory,
        "const": in_memory,
    }


def widened(address: Array) -> Array:
    """Return addresses as 64-bit numbers, because 32-bit registers can only hold addresses of small state spaces."""
    return address if address.dtype.itemsize == 8 else address.astype(np.uint64)


def by_state_space(batch: Batch, space: str, accesses: Mapping[str, _Kind]) -> Reach[_Kind]:
    """Return a function that sorts lanes by the state space of their addresses.

    Args:
        batch: the lanes.
        space: state space of all addresses, or ``generic``.
        accesses: state space → accesses to it.
    """
    if space != "generic":
        only = accesses[space]

        def all_of_them(active: Active, address: Array) -> Iterator[tuple[_Kind, Active, Array]]:
            yield only, active, address

        return all_of_them

    def by_window(active: Active, address: Array) -> Iterator[tuple[_Kind, Active, Array]]:
        window = widened(address) >> np.uint64(WINDOW_BITS)
        for name, wanted in (("shared", 1), ("local", 2), ("global", 0)):
            chosen = window > 2 if not wanted else window == wanted
            if not wanted:
                chosen |= window == 0
            if not chosen.any():
                continue
            low = np.uint64(wanted << WINDOW_BITS)
            if chosen.all():
                yield accesses[name], active, address - low if wanted else address
                return
            part = batch.restrict(active, chosen)
            yield accesses[name], part, address[chosen] - low if wanted else address[chosen]

    return by_window
