"""Which instruction the warps of a walk wait at: for operands, copies, products and barriers.

A warp issues in order, one instruction a clock. Where it issues one later than that, it stalled there; what a segment's
warps waited in all (`Clocks.waits`) is split among its instructions in proportion to how late each of them was, since
a stall hides the issue of what follows it. A wait at a barrier is that barrier's. Waits for the pipes of an SM, which
other warps hold, are no instruction's and stay with the launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from evokern.simt.arrays import Array


@dataclass(slots=True, eq=False)
class MeanStalls:
    """Where warps waited in a segment after a certain one; clocks of a mean warp by instruction, summed over walks."""

    whole: dict[int, float] = field(default_factory=dict)
    """Everything, the barrier before the segment included."""
    inner: dict[int, float] = field(default_factory=dict)
    """The same without that barrier."""


class Stalls:
    """Clocks that the warps of a batch waited, by instruction."""

    def __init__(self, warps: int) -> None:
        self._warps = warps
        self._clocks: dict[int, float] = {}
        self._barrier = np.full(warps, -1)
        self._late: list[tuple[int, float]] = []
        self._met: dict[int, float] = {}
        self._inner: dict[int, float] = {}

    @property
    def of_mean_warp(self) -> dict[int, float]:
        """Instruction number → clocks that a mean warp waited at it."""
        return {number: clocks / self._warps for number, clocks in self._clocks.items()}

    def late(self, number: int, clocks: Array) -> None:
        """Note how much later than in turn an instruction was issued, warp by warp."""
        self._late.append((number, float(clocks.sum())))

    def arrived(self, number: int, at: Array | slice) -> None:
        """Note at which barrier instruction warps will wait next."""
        self._barrier[at] = number

    def met(self, at: Array | slice, clocks: Array) -> None:
        """Note how long warps waited at the barrier where they arrived."""
        numbers = self._barrier[at]
        for number in np.unique(numbers[clocks > 0]):
            self._met[int(number)] = float(clocks[numbers == number].sum())

    def segment(self, waited: float) -> None:
        """Split what the warps of a segment waited in all among the instructions that were late."""
        total = sum(clocks for _, clocks in self._late)
        for number, clocks in self._late if total > 0 else ():
            self._inner[number] = self._inner.get(number, 0.0) + waited * clocks / total
        self._late = []

    def walked(self, mean: MeanStalls, warps: int) -> None:
        """Take in what was noted since the last segment, and keep its mean with the segment."""
        for found, means in ((self._met, (mean.whole,)), (self._inner, (mean.whole, mean.inner))):
            for number, clocks in found.items():
                for one in means:
                    one[number] = one.get(number, 0.0) + clocks / warps
                self._add(number, clocks)
        self._met, self._inner = {}, {}

    def skipped(self, mean: MeanStalls, warps: int, walks: int, *, whole: bool) -> None:
        """Take in a segment that took its mean; `whole` where the barrier before it is part of that."""
        for number, clocks in (mean.whole if whole else mean.inner).items():
            self._add(number, clocks / walks * warps)
        for number, clocks in self._met.items():
            self._add(number, clocks)
        self._met = {}

    def _add(self, number: int, clocks: float) -> None:
        self._clocks[number] = self._clocks.get(number, 0.0) + clocks
