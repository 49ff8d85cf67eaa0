"""Accesses to single elements at computed addresses, for instructions other than plain loads and stores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.operations.spaces import AccessRules, by_state_space, space_accesses
from evokern.simt.state import MachineState

ElementAccess = Callable[[Active, Array, Array | None], Array]
"""(lanes, 64-bit addresses, values to store or None) → values."""


def element_access(state: MachineState, number: int, space: str, width: int) -> ElementAccess:
    """Return a function that loads or stores one element per lane, with all checks.

    The function does not count wavefronts, because a fragment's elements move together; the caller counts them.

    Args:
        state: the machine's state.
        number: the instruction, for findings.
        space: state space, or ``generic``.
        width: bytes of an element.
    """
    reached = by_state_space(state.batch, space, space_accesses(state, number, width, AccessRules(counted=False)))

    def access(active: Active, address: Array, values: Array | None) -> Array:
        result = np.zeros(active.count, f"u{width}") if values is None else values
        if not active.count:
            return result
        lanes = active.lanes

        def stored(sound: Active) -> Array:
            return result[np.searchsorted(lanes, sound.lanes)]

        for there, some, where in reached(active, address):
            if values is not None:
                there.store(some, where, 0, stored)
                continue
            sound, found = there.load(some, where, 0)
            if sound is not None:
                result[np.searchsorted(lanes, sound.lanes)] = found.view(result.dtype)
        return result

    return access
