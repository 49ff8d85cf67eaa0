"""Single-element accesses at computed addresses, for instructions that are not plain loads and stores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.simt.arrays import RAW, Active, Array
from evokern.simt.globals import Site
from evokern.simt.operations.memory_ops import Access, by_window
from evokern.simt.state import MachineState

ElementAccess = Callable[[Active, Array, Array | None], Array]
"""(lanes, 64-bit addresses, values to store or None) → values."""


def element_access(
    state: MachineState, number: int, space: str, width: int, *, wavefronts: bool = True
) -> ElementAccess:
    """Return a function that loads or stores one element per lane, with every check.

    Args:
        state: the machine's state.
        number: the instruction, for findings.
        space: state space, or ``generic``.
        width: bytes of an element.
        wavefronts: count those of shared memory; False where elements travel together and the caller counts.
    """
    site = Site()
    moved: dict[str, Array | None] = {"values": None, "result": None, "lanes": None}

    def shared(active: Active, address: Array, offset: int) -> None:
        sound, index, part = state.shared.locate(active, address, offset, width, number)
        if sound is None:
            return
        shadow, values = state.shared.shadow, moved["values"]
        if wavefronts and state.events is not None:
            state.events.shared(number, sound, index, width)
        if values is not None:
            if shadow is not None:
                shadow.write(sound, index, width, number, part)
            state.shared.view(width)[index] = values[place(sound)].view(RAW[width])
        else:
            if shadow is not None:
                shadow.read(sound, index, width, number, part)
            deliver(sound, state.shared.view(width).take(index, mode="clip"))

    def global_(active: Active, address: Array, offset: int) -> None:
        values = moved["values"]
        sound, index = state.globals.locate(active, address, offset, width, number, site, write=values is not None)
        if sound is None:
            return
        if state.events is not None:
            state.events.sectors(number, sound, index, width, write=values is not None)
        if values is not None:
            state.globals.note_write(sound, index, width, number, site, values[place(sound)], synchronises=False)
            state.globals.view(width)[index] = values[place(sound)].view(RAW[width])
        else:
            state.globals.note_read(sound, index, width, number, site, synchronises=False)
            deliver(sound, state.globals.view(width).take(index, mode="clip"))

    def local(active: Active, address: Array, offset: int) -> None:
        sound, index = state.local.locate(active, address, offset, width, number)
        if sound is None:
            return
        values = moved["values"]
        if values is not None:
            state.local.note_write(index, width)
            state.local.view(width)[index] = values[place(sound)].view(RAW[width])
        else:
            state.local.note_read(sound, index, width, number)
            deliver(sound, state.local.view(width).take(index, mode="clip"))

    def place(active: Active) -> Array:
        lanes = moved["lanes"]
        assert lanes is not None
        return np.searchsorted(lanes, active.lanes)

    def deliver(active: Active, found: Array) -> None:
        result = moved["result"]
        assert result is not None
        result[place(active)] = found.view(result.dtype)

    parts: dict[str, Access] = {"shared": shared, "local": local, "global": global_, "const": global_}
    work = by_window(state.batch, parts) if space == "generic" else parts[space]

    def access(active: Active, address: Array, values: Array | None) -> Array:
        result = np.zeros(active.count, f"u{width}") if values is None else values
        moved["values"], moved["result"], moved["lanes"] = values, result, active.lanes
        if active.count:
            work(active, address, 0)
        return result

    return access
