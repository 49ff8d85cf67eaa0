"""Scheduling of groups of lanes at segments, and return positions of calls.

There is one waiting group per segment and call depth. Among the groups in the deepest call, the group that is earliest
in the code runs next. Lanes that have fallen behind thus run first, and diverged lanes meet again where their paths
join. A group that has waited for a long time runs out of order, so that lanes for which others spin make progress.
"""

from __future__ import annotations

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch

MAX_DEPTH = 64
"""Maximum nesting of device function calls."""
MAX_WAIT = 4000
"""Number of segments that other lanes run before a waiting group runs out of order; polls count more than once."""
POLL_WEIGHT, TRY_WAIT_WEIGHT = 50, 1000
"""Number of segments for which a poll counts. A ``try_wait`` may also suspend the thread on a GPU."""
OUT_OF_ORDER_SEGMENTS = 256
"""Number of segments that a group may run out of order."""


class Schedule:
    """Groups of lanes that are waiting to run.

    Attributes:
        segments: number of segments in the program.
        groups: key → lanes that wait there; a key ranks a segment at a call depth.
        waiting_since: key → clock at the arrival of the first of these lanes.
        clock: number of segments run so far; polls count more than once.
        issued: warp instructions issued so far, for the limit.
        depth: call depth of the lanes that run.
        base: key of the first segment at that depth.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.segments = len(batch.program.segments)
        self.groups: dict[int, Active] = {}
        self.waiting_since: dict[int, int] = {}
        self.clock = 0
        self.issued = 0
        self.depth = 0
        self.base = self.key(0, 0)

    def load(self) -> None:
        """Reset the state for new blocks."""
        self.groups.clear()
        self.waiting_since.clear()
        self.issued = 0

    def key(self, depth: int, segment: int) -> int:
        """Return the rank of a segment at a call depth: deeper calls first, then code order."""
        return (MAX_DEPTH - depth) * self.segments + segment

    def push(self, key: int, active: Active) -> None:
        """Queue lanes for a segment; these lanes join the lanes that already wait there."""
        known = self.groups.get(key)
        if known is None:
            self.groups[key] = active
            self.waiting_since[key] = self.clock
        else:
            self.groups[key] = Active(known.mask | active.mask, known.count + active.count, self._batch.live_count)

    def pop(self) -> tuple[int, Active, int]:
        """Return (key, lanes, burst) of the next group to run; burst is −1 unless the group runs out of order."""
        groups, since = self.groups, self.waiting_since
        key, burst = min(groups), -1
        if len(groups) > 1:
            oldest = min(since, key=lambda one: (since[one], one))  # of a branch's sides, the first in the code
            if self.clock - since[oldest] > MAX_WAIT and oldest != key:
                key, burst = oldest, OUT_OF_ORDER_SEGMENTS
        del since[key]
        return key, groups.pop(key), burst

    def comes_first(self, key: int) -> bool:
        """Return whether lanes that arrive at a segment would run next; at most one other group may wait."""
        return (
            key < min(self.groups)
            and len(self.groups) < 2
            and self.clock - min(self.waiting_since.values()) <= MAX_WAIT
        )


class CallStack:
    """Segments at which lanes continue when a device function returns.

    Attributes:
        returns: call depth → segment to which each lane returns.
        inside: function called through a pointer → lanes in it, to detect recursion.
        copies: segment to return to → function → (to, from, bytes) of its result in the parameter area.
    """

    def __init__(self, batch: Batch) -> None:
        self._lanes = batch.lanes
        self.returns: list[Array] = []
        self.inside: dict[int, Array] = {}
        self.copies: dict[int, dict[int, tuple[int, int, int]]] = {}

    def load(self) -> None:
        """Reset the state for new blocks."""
        for inside in self.inside.values():
            inside.fill(False)

    def returns_at(self, depth: int) -> Array:
        """Return the row of segments to which lanes return from a call at a given depth."""
        while len(self.returns) <= depth:
            self.returns.append(np.zeros(self._lanes, np.int64))
        return self.returns[depth]

    def lanes_inside(self, function: int) -> Array:
        """Return the lanes inside a function that was called through a pointer."""
        return self.inside.setdefault(function, np.zeros(self._lanes, np.bool_))
