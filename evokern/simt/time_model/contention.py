"""What the pipes of one SM are booked for, stretch by stretch of its clocks: how warps come in each other's way.

A warp that comes to a piece of work takes what is left of each pipe while it runs, evenly, and is not done before every
pipe had time for it. Who comes earlier in the walk is served first, but gaps are filled afterwards: warps are walked
segment by segment, not clock by clock.
"""

from __future__ import annotations

import numpy as np

from evokern.simt.arrays import Array

STRETCH = 32.0
"""Clocks of a stretch, within which work is spread evenly: well below the segments of a tuned kernel."""
MOST = 1 << 16
"""Stretches kept: a walk of more than 2 million clocks goes on with stretches twice as long, and so on."""
_ROUNDING = 1e-9


class Pipes:
    """The pipes of one SM and the clocks for which each is taken."""

    def __init__(self, count: int) -> None:
        """Start with nothing taken.

        Args:
            count: how many pipes.
        """
        self._taken = np.zeros((count, 256))
        self._stretch = STRETCH
        self._last = 0.0

    @property
    def taken(self) -> Array:
        """Clocks taken of each pipe in all."""
        return np.asarray(self._taken.sum(1))

    def share(self, start: float, end: float, need: Array) -> float:
        """Take some clocks of every pipe, spread over what is left of them; return when the last has had time for it.

        Args:
            start: clock at which the work begins.
            end: clock before which it cannot be done, for other reasons.
            need: clocks of each pipe.
        """
        self._reach(end, float(need.max()))
        first, free, sums = self._room(slice(None), start, end, need)
        last = np.minimum((sums < need[:, None] - _ROUNDING).sum(1), sums.shape[1] - 1)
        over = sums[np.arange(len(need)), last] - need
        done = max(end, float(np.where(need > 0, (first + last + 1) * self._stretch - over, 0.0).max()))
        until = max(int(-(-done // self._stretch)) - first, int(last.max()) + 1, 1)
        until = min(until, free.shape[1])
        part = need / np.maximum(sums[:, until - 1], _ROUNDING)
        self._taken[:, first : first + until] += free[:, :until] * part[:, None]
        self._last = max(self._last, (first + until) * self._stretch)
        return done

    def queue(self, pipe: int, start: float, need: float) -> float:
        """Take all that is left of one pipe until it had time for some work; return when that is.

        Args:
            pipe: which.
            start: clock at which the work begins.
            need: clocks of it.
        """
        if need <= 0:
            return start
        self._reach(start, need)
        first, _, sums = self._room(pipe, start, start + need, need)
        last = int(np.searchsorted(sums, need - _ROUNDING))
        over = float(sums[last]) - need
        sums[last] = need
        self._taken[pipe, first : first + last + 1] += np.diff(sums[: last + 1], prepend=0.0)
        self._last = max(self._last, (first + last + 1) * self._stretch)
        return (first + last + 1) * self._stretch - over

    def _room(self, pipes: int | slice, start: float, end: float, need: Array | float) -> tuple[int, Array, Array]:
        """Return the first stretch of some work, what is left of pipes from there on, and its sums up to the need.

        Looks further the longer it finds too little; `_reach` has seen to it that there is enough.
        """
        first, stop = int(start // self._stretch), int(end // self._stretch) + 1
        while True:
            free = self._free(pipes, first, stop, start)
            sums = free.cumsum(-1)
            short = float(np.max(need - sums[..., -1]))
            if short <= _ROUNDING:
                return first, free, sums
            further = stop + max(int(short // self._stretch) + 1, stop - first)
            stop = min(further, self._taken.shape[1])

    def _free(self, pipes: int | slice, first: int, stop: int, start: float) -> Array:
        """Return what is left of pipes in some stretches, of the first only what comes after the start."""
        free: Array = self._stretch - self._taken[pipes, first:stop]
        # What is taken of the first stretch lies before the start as far as there is room: else work of a warp that
        # follows its own would be held back by it, and what that left of the stretch would be lost for good.
        free[..., 0] = np.minimum(free[..., 0], (first + 1) * self._stretch - start)
        return free

    def _reach(self, clock: float, need: float) -> None:
        """Keep enough stretches for work that may begin at a clock, and if need be behind all that is booked."""
        end = max(clock, self._last) + need
        while end // self._stretch + 2 > self._taken.shape[1]:
            kept = self._taken
            if kept.shape[1] >= MOST:
                kept = kept.reshape(len(kept), -1, 2).sum(2)
                self._stretch *= 2
            self._taken = np.concatenate([kept, np.zeros_like(kept)], 1)
