"""Accesses of one instruction to a state space: located, checked, counted and done, the same way for every space.

`SpaceAccess` is the contract; shared, local and global memory each keep it in their own way. Generic addresses are
sorted by the window that they lie in (`reach`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from evokern.simt.arrays import RAW, Active, Array
from evokern.simt.batch import Batch
from evokern.simt.event_counter import EventCounter
from evokern.simt.memory.buffers import WINDOW_BITS
from evokern.simt.memory.global_space import Site
from evokern.simt.state import MachineState

_Kind = TypeVar("_Kind")
Values = Callable[[Active], Array]
"""Active lanes → what they store, one element each."""
Update = Callable[[Active, Array, Array], None]
"""(active lanes, memory as unsigned elements, index of each lane's): reads and writes memory."""
Reach = Callable[[Active, Array], Iterator[tuple[_Kind, Active, Array]]]
"""(active lanes, addresses) → for each state space: its accesses, the lanes that mean it, their addresses in it."""


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What holds for the accesses of one instruction, beside being in bounds and aligned."""

    races: bool = True
    """Whether shared memory is checked for races; what has an order of its own is not."""
    synchronises: bool = False
    """Whether it takes part in the order of blocks, as volatile and relaxed accesses do."""
    releases: bool = False
    """Whether it publishes what its block wrote before."""
    collisions: bool = False
    """Whether lanes are reported that store different values to one place of shared memory at once."""
    cluster: bool = False
    """Whether addresses of shared memory may mean other blocks of the cluster."""
    near: bool = False
    """Whether it synchronises in the scope of a block, which is less than the cluster."""
    counted: bool = True
    """Whether wavefronts and local bytes are counted; False where elements travel together and the caller counts."""


PLAIN = AccessRules()
"""Loads and stores that nothing is said about."""


class SpaceAccess(ABC):
    """The accesses of one instruction to one state space.

    Lanes whose address is outside any allocation are told and take no part; a misaligned address ends the launch.
    """

    @abstractmethod
    def load(self, active: Active, address: Array, offset: int) -> tuple[Active | None, Array]:
        """Read an element per lane.

        Args:
            active: the lanes.
            address: addresses within the space, one per active lane or a single one.
            offset: bytes to add.

        Returns:
            The lanes whose access is sound, None when none is, and what they read.
        """

    @abstractmethod
    def store(self, active: Active, address: Array, offset: int, values: Values) -> Active | None:
        """Write an element per lane.

        Args:
            active: the lanes.
            address: addresses within the space, one per active lane or a single one.
            offset: bytes to add.
            values: asked for what the lanes store whose access is sound.

        Returns:
            The lanes whose access is sound, None when none is.
        """


class AtomicAccess(SpaceAccess):
    """The same to a space that has atomic updates."""

    @abstractmethod
    def update(self, active: Active, address: Array, offset: int, change: Update) -> None:
        """Read and write an element per lane in one step."""


class SharedAccess(AtomicAccess):
    """Shared memory: races between threads, wavefronts."""

    __slots__ = ("_batch", "_cluster", "_events", "_number", "_order", "_rules", "_shadow", "_space", "_width")

    def __init__(self, state: MachineState, number: int, width: int, rules: AccessRules = PLAIN) -> None:
        self._batch, self._space, self._number, self._width = state.batch, state.shared, number, width
        self._rules, self._shadow, self._cluster = rules, state.shared.shadow, rules.cluster
        self._order = state.order if state.batch.program.orders_blocks else None
        self._events = state.events if rules.counted else None

    def load(self, active: Active, address: Array, offset: int) -> tuple[Active | None, Array]:
        """Read an element per lane."""
        width, number = self._width, self._number
        sound, index, leaders = self._space.locate(active, address, offset, width, number, cluster=self._cluster)
        if sound is None:
            return None, index
        if self._shadow is not None and self._rules.races:
            self._shadow.read(sound, index, width, number, leaders)
        elif self._shadow is not None:
            self._shadow.strong(sound, index, width, number, leaders, reads=True, writes=False)
            if self._order is not None:
                self._order.load_at(sound, "shared", index * width, near=self._rules.near)
        if self._events is not None:
            self._count(self._events, sound, index)
        return sound, self._space.view(width).take(index, mode="clip")

    def store(self, active: Active, address: Array, offset: int, values: Values) -> Active | None:
        """Write an element per lane."""
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
                self._shadow.strong(sound, index, width, number, leaders, reads=False, writes=True)
                if self._order is not None:
                    self._order.store_at(
                        sound, "shared", index * width, releases=self._rules.releases, near=self._rules.near
                    )
        self._space.view(width)[index] = raw
        if collide and self._rules.collisions:
            self._report_lost(sound, index, raw)
        return sound

    def update(self, active: Active, address: Array, offset: int, change: Update) -> None:
        """Read and write an element per lane in one step."""
        width, number = self._width, self._number
        sound, index, leaders = self._space.locate(active, address, offset, width, number, cluster=self._cluster)
        if sound is None:
            return
        if self._shadow is not None:
            self._shadow.strong(sound, index, width, number, leaders, reads=True, writes=True)
            if self._order is not None:
                self._order.update_at(
                    sound, "shared", index * width, releases=self._rules.releases, near=self._rules.near
                )
        if self._events is not None:
            self._count(self._events, sound, index)
        change(sound, self._space.view(width), index)

    def _count(self, events: EventCounter, active: Active, index: Array) -> None:
        """Count an access: its wavefronts, and those lanes that reach another block's memory."""
        events.shared(self._number, active, index, self._width)
        if self._cluster and self._space.ranks > 1:
            others = index * self._width // self._space.stride != self._batch.block_slot[active.lanes]
            events.cluster(self._number, int(np.count_nonzero(others)))

    def _report_lost(self, active: Active, index: Array, raw: Array) -> None:
        """Report lanes whose value another lane has overwritten at once: which one stays is undefined."""
        width, number = self._width, self._number
        after = self._space.view(width).take(index, mode="clip")
        lost = after.view(np.uint8) != raw.view(np.uint8)
        if not lost.any():
            return
        bad = lost.reshape(-1, width).any(1)
        lane = int(active.lanes[bad][0])
        at, name, offset = self._space.place_of(int(index[bad][0]) * width, lane)
        self._batch.report(
            "shared_race",
            number,
            lane,
            count=int(np.count_nonzero(bad)),
            address=at,
            allocation=name,
            offset=offset,
            other=number,
            detail="Several threads write different values to the same address at the same time",
        )


class LocalAccess(SpaceAccess):
    """Local memory: reads of what was never written, bytes."""

    __slots__ = ("_events", "_number", "_space", "_width")

    def __init__(self, state: MachineState, number: int, width: int, rules: AccessRules = PLAIN) -> None:
        self._space, self._number, self._width = state.local, number, width
        self._events = state.events if rules.counted else None

    def load(self, active: Active, address: Array, offset: int) -> tuple[Active | None, Array]:
        """Read an element per lane."""
        width, number = self._width, self._number
        sound, index = self._space.locate(active, address, offset, width, number)
        if sound is None:
            return None, index
        self._space.note_read(sound, index, width, number)
        if self._events is not None:
            self._events.local(number, sound, width)
        return sound, self._space.view(width).take(index, mode="clip")

    def store(self, active: Active, address: Array, offset: int, values: Values) -> Active | None:
        """Write an element per lane."""
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
    """Global and constant memory: races between blocks, sectors."""

    __slots__ = ("_events", "_number", "_rules", "_site", "_space", "_width")

    def __init__(self, state: MachineState, number: int, width: int, rules: AccessRules = PLAIN) -> None:
        self._space, self._number, self._width, self._rules = state.globals, number, width, rules
        self._events = state.events
        self._site = Site()

    def load(self, active: Active, address: Array, offset: int) -> tuple[Active | None, Array]:
        """Read an element per lane."""
        width, number, site = self._width, self._number, self._site
        sound, index = self._space.locate(active, widened(address), offset, width, number, site, write=False)
        if sound is None:
            return None, index
        self._space.note_read(sound, index, width, number, site, synchronises=self._rules.synchronises)
        if self._events is not None:
            self._events.sectors(number, sound, index, width, write=False)
        return sound, self._space.view(width).take(index, mode="clip")

    def store(self, active: Active, address: Array, offset: int, values: Values) -> Active | None:
        """Write an element per lane."""
        width, number, site, rules = self._width, self._number, self._site, self._rules
        sound, index = self._space.locate(active, widened(address), offset, width, number, site, write=True)
        if sound is None:
            return None
        new = values(sound)
        self._space.note_write(
            sound, index, width, number, site, new, synchronises=rules.synchronises, releases=rules.releases
        )
        if self._events is not None:
            self._events.sectors(number, sound, index, width, write=True)
        self._space.view(width)[index] = new.view(RAW[width])
        return sound

    def update(self, active: Active, address: Array, offset: int, change: Update) -> None:
        """Read and write an element per lane in one step."""
        width, number, site = self._width, self._number, self._site
        sound, index = self._space.locate(active, widened(address), offset, width, number, site, write=True)
        if sound is None:
            return
        self._space.note_atomic(sound, index, width, number, site, releases=self._rules.releases)
        if self._events is not None:
            self._events.sectors(number, sound, index, width, write=True)
        change(sound, self._space.view(width), index)


def space_accesses(state: MachineState, number: int, width: int, rules: AccessRules = PLAIN) -> dict[str, SpaceAccess]:
    """Return state space → the accesses of one instruction to it.

    Args:
        state: the machine's state.
        number: the instruction.
        width: bytes that a lane moves.
        rules: what holds for them.
    """
    in_memory = GlobalAccess(state, number, width, rules)
    return {
        "shared": SharedAccess(state, number, width, rules),
        "local": LocalAccess(state, number, width, rules),
        "global": in_memory,
        "const": in_memory,
    }


def widened(address: Array) -> Array:
    """Return addresses as 64-bit, which 32-bit registers can hold only for small windows."""
    return address if address.dtype.itemsize == 8 else address.astype(np.uint64)


def reach(batch: Batch, space: str, accesses: Mapping[str, _Kind]) -> Reach[_Kind]:
    """Return what sorts lanes by the state space that their addresses lie in.

    Args:
        batch: the lanes.
        space: where all of them are, or ``generic``.
        accesses: state space → what is done there.
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
