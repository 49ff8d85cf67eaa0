"""Booked clock intervals of an SM's pipes, to compute the delays that warps cause each other.

While a warp runs, its work evenly takes the free share of each pipe. The work ends only when every pipe has had time
for it. Warps that are simulated earlier are served first, but later ones fill gaps, because warps are simulated segment
by segment, not clock by clock.
"""

from __future__ import annotations

import numpy as np

from evokern.simt.arrays import Array

INTERVAL_CLOCKS = 32.0
"""Clocks per interval, in which work is spread evenly; much shorter than the segments of a tuned kernel."""
MAX_INTERVALS = 1 << 16
"""Maximum number of intervals; when they no longer suffice (first beyond 2 million clocks), the interval doubles."""
_ROUNDING = 1e-9


class Pipes:
    """Pipes of one SM and their booked clocks."""

    def __init__(self, count: int) -> None:
        """Start without bookings.

        Args:
            count: number of pipes.
        """
        self._taken = np.zeros((count, 256))
        self._stretch = INTERVAL_CLOCKS
        self._last = 0.0

    @property
    def taken(self) -> Array:
        """Total number of booked clock cycles of each pipe."""
        return np.asarray(self._taken.sum(1))

    def share(self, start: float, end: float, need: Array) -> float:
        """Book clocks on every pipe, spread over the pipe's free time; return when the last pipe finishes.

        Args:
            start: clock at which the work starts.
            end: earliest end of the work for other reasons.
            need: clocks to book on each pipe.
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
        """Book all free time of a pipe until a given amount of work is done; return the clock at which it is done.

        Args:
            pipe: index of the pipe.
            start: clock at which the work starts.
            need: clocks of the work.
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
        """Return the first interval of some work, the free time of pipes from there on, and its cumulative sums.

        The search range grows until there is enough free time; `_reach` guarantees that there is.
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
        """Return the free time of pipes in some intervals; the first interval counts only from the start on."""
        free: Array = self._stretch - self._taken[pipes, first:stop]
        # Bookings of the first interval count as before the start if possible. Otherwise, a warp's own earlier work
        # would delay its next work, and the rest of the interval would be lost.
        free[..., 0] = np.minimum(free[..., 0], (first + 1) * self._stretch - start)
        return free

    def _reach(self, clock: float, need: float) -> None:
        """Extend the intervals to cover work that may start at a clock, or after all bookings."""
        end = max(clock, self._last) + need
        while end // self._stretch + 2 > self._taken.shape[1]:
            kept = self._taken
            if kept.shape[1] >= MAX_INTERVALS:
                kept = kept.reshape(len(kept), -1, 2).sum(2)
                self._stretch *= 2
            self._taken = np.concatenate([kept, np.zeros_like(kept)], 1)
