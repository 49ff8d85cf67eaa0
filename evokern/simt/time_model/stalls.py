"""Instructions at which warps wait in the simulation, for operands, copies, products or barriers.

A warp issues in order, one instruction per clock. It stalls at an instruction that issues later than that. The total
waiting time of a segment's warps (`Clocks.waits`) is divided among its instructions in proportion to their delays. This
is necessary because a stall hides the issue of the following instructions. A wait at a barrier belongs to the barrier
instruction. Waits for pipes of the SM are not assigned to instructions but counted for the launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from evokern.simt.arrays import Array


@dataclass(slots=True, eq=False)
class MeanStalls:
    """Waits in a segment after a given predecessor: clock cycles of a warp by instruction, summed over simulations."""

    whole: dict[int, float] = field(default_factory=dict)
    """All waits, including those at the barrier before the segment."""
    inner: dict[int, float] = field(default_factory=dict)
    """All waits, without those at that barrier."""


class Stalls:
    """Clock cycles that the warps of a batch spent waiting, by instruction."""

    def __init__(self, warps: int) -> None:
        self._warps = warps
        self._clocks: dict[int, float] = {}
        self._barrier = np.full(warps, -1)
        self._late: list[tuple[int, float]] = []
        self._met: dict[int, float] = {}
        self._inner: dict[int, float] = {}

    @property
    def of_mean_warp(self) -> dict[int, float]:
        """Map from instruction number to the clock cycles that an average warp spends waiting at the instruction."""
        return {number: clocks / self._warps for number, clocks in self._clocks.items()}

    def add_delay(self, number: int, clocks: Array) -> None:
        """Record by how many clock cycles each warp issued an instruction later than possible."""
        self._late.append((number, float(clocks.sum())))

    def arrived(self, number: int, at: Array | slice) -> None:
        """Record the barrier instruction at which some warps will wait next."""
        self._barrier[at] = number

    def met(self, at: Array | slice, clocks: Array) -> None:
        """Record how long warps waited at their barrier."""
        numbers = self._barrier[at]
        for number in np.unique(numbers[clocks > 0]):
            self._met[int(number)] = float(clocks[numbers == number].sum())

    def segment(self, waited: float) -> None:
        """Divide the total wait of a segment's warps among its delayed instructions."""
        total = sum(clocks for _, clocks in self._late)
        for number, clocks in self._late if total > 0 else ():
            self._inner[number] = self._inner.get(number, 0.0) + waited * clocks / total
        self._late = []

    def add_simulated(self, mean: MeanStalls, warps: int) -> None:
        """Add the records since the previous segment, and store their mean with the segment."""
        for found, means in ((self._met, (mean.whole,)), (self._inner, (mean.whole, mean.inner))):
            for number, clocks in found.items():
                for one in means:
                    one[number] = one.get(number, 0.0) + clocks / warps
                self._add(number, clocks)
        self._met, self._inner = {}, {}

    def add_skipped(self, mean: MeanStalls, warps: int, walks: int, *, whole: bool) -> None:
        """Add the waits of a segment that took its mean time; `whole` includes the waits at the preceding barrier."""
        for number, clocks in (mean.whole if whole else mean.inner).items():
            self._add(number, clocks / walks * warps)
        for number, clocks in self._met.items():
            self._add(number, clocks)
        self._met = {}

    def _add(self, number: int, clocks: float) -> None:
        self._clocks[number] = self._clocks.get(number, 0.0) + clocks
