"""Counters: what the launch issued, per instruction and per source line.

Filled in by the machine while it runs; `Counters` is the frozen result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evokern.simt.arrays import Active, Array

if TYPE_CHECKING:
    from evokern.simt.machine import Machine


class EventCounter:
    """Events that need addresses: wavefronts and sectors."""

    def __init__(self, machine: Machine, instructions: int) -> None:
        self.machine = machine
        self.async_bytes = 0
        self.wavefronts = np.zeros(instructions, np.int64)
        self.ideal_wavefronts = np.zeros(instructions, np.int64)

    def shared(self, number: int, active: Active, index: Array, width: int) -> None:
        """Count the wavefronts of a shared access."""

    def local(self, number: int, active: Active, width: int) -> None:
        """Count the sectors of a local access."""

    def sectors(self, number: int, active: Active, index: Array, width: int, *, write: bool) -> None:
        """Count the sectors of a global access."""
