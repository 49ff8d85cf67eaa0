"""Memory that is released to the copy engine before a read of it is complete.

`evokern.ptx.early_reads` names the reads that an arrival may publish before an instruction uses their registers. Only
these are followed here, from the read to the first use, at whose time stamp the read is complete. A bulk copy that
overwrites the memory must be ordered after this stamp, or after a ``fence.proxy.async`` that follows the read. A use by
any lane completes the read of its warp. The finding is reported only if an instruction really uses the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from evokern.simt.arrays import Action, Active, Array
from evokern.simt.batch import Batch
from evokern.simt.sanitizer.access_keys import NUMBER, Conflicts, WordAccess
from evokern.simt.sanitizer.findings import place_text
from evokern.simt.sanitizer.shared_shadow import SharedShadow

_MOST = 64
"""Maximum number of executions of a read, of its releases, and of fences that are kept; the oldest are dropped."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Read:
    """Execution of a read by several lanes."""

    number: int
    """The instruction."""
    stamp: int
    """Time stamp."""
    count: int
    """Adjacent words that each lane reads."""
    lanes: Array
    first: Array
    """First word of each lane."""
    done: Array
    """Stamp at which the read of each lane is complete; 0 before."""
    used: Array
    """Whether an instruction has used the registers of each lane."""
    copy: Array
    """Instruction of a copy that overwrote the words of a lane too early; -1 without one."""
    releases: list[tuple[int, int]] = field(default_factory=list)
    """(instruction, time stamp) of arrivals after the read."""
    release: int = -1
    """Arrival to report."""

    @classmethod
    def of(cls, access: WordAccess, stamp: int) -> _Read:
        """Return the read of an access."""
        lanes = access.active.lanes
        none = np.zeros(lanes.size, np.int64)
        return cls(
            number=access.number,
            stamp=stamp,
            count=access.count,
            lanes=lanes,
            first=access.element * access.count,
            done=none,
            used=none > 0,
            copy=none - 1,
        )

    def part(self, chosen: Array) -> _Read:
        """Return the read of the chosen lanes."""
        rows = {name: getattr(self, name)[chosen] for name in ("lanes", "first", "done", "used", "copy")}
        return replace(self, **rows, releases=list(self.releases))

    def same_words(self, other: _Read) -> bool:
        """Return whether another execution of the same instruction reads the same words in the same lanes."""
        return np.array_equal(self.lanes, other.lanes) and np.array_equal(self.first, other.first)


class EarlyReleases:
    """Reads of a batch that an arrival may publish before they are complete."""

    def __init__(self, batch: Batch, shadow: SharedShadow | None) -> None:
        self._batch, self._shadow, self._table = batch, shadow, batch.program.early_reads
        self._reads: dict[int, list[_Read]] = {}
        """Instruction → its executions."""
        self._fences: list[tuple[Array, int]] = []
        """Lanes and time stamps of the latest fences."""
        self._period = -1
        if shadow is not None and self._table.reads:
            shadow.followed, shadow.follow = self._table.reads, self._follow
            shadow.order.on_copy(self._copy)
            self._mark = np.zeros(shadow.writer.keys.size, np.bool_)

    def load(self) -> None:
        """Reset the state for new blocks."""
        self._reads.clear()
        self._fences.clear()

    def _copy(self, source: int, target: int) -> None:
        """Copy the reads of a block to a block that separates from it."""
        assert self._shadow is not None
        width, words = self._shadow.order.width, self._mark.size // self._shadow.order.blocks
        for reads in self._reads.values():
            for one in [read.part(read.lanes // width == source) for read in reads]:
                if one.lanes.size:
                    one.lanes = one.lanes + (target - source) * width
                    one.first = one.first + (target - source) * words
                    reads.append(one)

    # ---- instructions on the way

    def checks_before(self, number: int) -> list[Action]:
        """Return what to do before an instruction; nearly all instructions need nothing."""
        table, batch = self._table, self._batch
        if self._shadow is None or not table.reads:
            return []
        steps: list[Action] = []
        if number in table.reads:
            steps.append(lambda: self._forget(number))
        if number in table.uses:
            steps.append(lambda: self._complete(batch.active, table.uses[number], used=True))
        if number in table.completions:
            steps.append(lambda: self._complete(batch.active, table.completions[number], used=False))
        if number in table.releases:
            steps.append(lambda: self._release(table.releases[number], number))
        return steps

    def _forget(self, number: int) -> None:
        """Drop reads whose registers are about to be overwritten before an instruction has used them.

        If their values may have been copied, the latest read of each lane is kept.
        """
        reads = self._reads.get(number, [])
        mask = self._batch.active.mask
        latest = self._stamps(reads, np.maximum, 0) if reads and number in self._table.rotating else None
        kept = []
        for one in reads:
            dropped = mask[one.lanes] & ~one.used
            if latest is not None:
                dropped &= latest[one.lanes] != one.stamp
            if not dropped.any():
                kept.append(one)
            elif not dropped.all():
                kept.append(one.part(~dropped))
        self._reads[number] = kept

    def _stamps(self, reads: list[_Read], choose: np.ufunc, start: int) -> Array:
        """Return the earliest or latest stamp of each lane's unused reads."""
        found = np.full(self._batch.lanes, start)
        for one in reads:
            mine = one.lanes[~one.used]
            found[mine] = choose(found[mine], one.stamp)
        return found

    def _follow(self, access: WordAccess) -> None:
        assert self._shadow is not None
        order = self._shadow.order
        new = _Read.of(access, order.now)
        if self._period != order.period:  # All threads have seen the earlier uses.
            self._period = order.period
            self._reads = {at: [one for one in reads if not one.used.all()] for at, reads in self._reads.items()}
        reads = self._reads.setdefault(new.number, [])
        for at, one in enumerate(reads):
            if one.done.all() and one.same_words(new):  # An earlier round of a loop.
                del reads[at]
                break
        reads.append(new)
        del reads[:-_MOST]

    def _release(self, numbers: tuple[int, ...], number: int) -> None:
        """Note that threads have arrived after these reads."""
        assert self._shadow is not None
        for one in self._executions(numbers):
            one.releases.append((number, self._shadow.order.now))
            del one.releases[:-_MOST]

    def _executions(self, numbers: Iterable[int]) -> list[_Read]:
        return [one for number in numbers for one in self._reads.get(number, ())]

    def _complete(self, active: Active, numbers: tuple[int, ...], *, used: bool) -> None:
        """Note that reads of the active lanes are complete; report those whose data were overwritten before."""
        assert self._shadow is not None
        order = self._shadow.order
        for number in numbers:
            reads = [one for one in self._reads.get(number, ()) if not one.used.all()]
            rotates = used and len(reads) > 1 and number in self._table.rotating
            oldest = self._stamps(reads, np.minimum, order.now) if rotates else None
            for one in reads:
                mine = active.mask[one.lanes] & ~one.used
                if oldest is not None:
                    mine &= oldest[one.lanes] == one.stamp
                if not mine.any():
                    continue
                one.done[mine & (one.done == 0)] = order.now
                order.dirty = True
                if used:
                    one.used[mine] = True
                    self._report(one, mine & (one.copy >= 0))

    # ---- the asynchronous proxy

    def fence(self, active: Active) -> None:
        """Record a ``fence.proxy.async``, which covers the reads that its threads have seen."""
        if self._reads and self._shadow is not None:
            self._shadow.order.dirty = True
            self._fences.append((active.lanes, self._shadow.order.now))
            del self._fences[:-_MOST]

    def overwrite(self, lane: int, access: WordAccess) -> None:
        """Check the words that a copy of one lane overwrites against the reads that may not be complete."""
        reads = self._executions(self._reads)
        if not reads:
            return
        assert self._shadow is not None
        order, words = self._shadow.order, access.words.reshape(-1)
        first, last = int(words.min()), int(words.max())
        self._mark[words] = True
        for one in reads:
            near = (one.first + one.count > first) & (one.first <= last)
            if not one.releases or not near.any():
                continue
            complete = (one.done > 0) & self._ordered(lane, one.lanes, one.done)
            warps = np.zeros(self._batch.lanes >> 5, np.bool_)
            warps[one.lanes[complete] >> 5] = True
            late = near & ~warps[one.lanes >> 5] & self._ordered(lane, one.lanes, one.stamp)
            late &= self._mark[one.first[:, None] + np.arange(one.count)].any(1)
            if late.any():
                late[late] = ~self._fenced(lane, one.lanes[late], one.stamp)
            if late.any():
                one.copy[late] = access.number
                reader = one.lanes[late][:1]
                known = int(order.seen(np.array([lane]), reader % order.width)[0])
                possible = [at for at, reads in self._table.releases.items() if one.number in reads]
                one.release = ([at for at, stamp in one.releases if stamp < known] or possible)[-1]
                self._report(one, late & one.used)
        self._mark[words] = False

    def _ordered(self, lane: int, others: Array, stamps: Array | int) -> Array:
        """Return whether a lane is ordered after what lanes of its cluster did at time stamps."""
        assert self._shadow is not None
        order = self._shadow.order
        seen = order.seen(np.full(others.size, lane), others % order.width) > stamps
        found: Array = (others >> 5 == lane >> 5) | (seen & (others // order.width == lane // order.width))
        return found

    def _fenced(self, lane: int, readers: Array, stamp: int) -> Array:
        """Return for which readers a fence lies between their read at a time stamp and an instruction of a lane."""
        found = np.zeros(readers.size, np.bool_)
        for lanes, at in self._fences:
            if at > stamp:
                fencing = lanes[self._ordered(lane, lanes, at)]
                for fencer in fencing[np.unique(fencing >> 5, return_index=True)[1]].tolist():
                    found |= self._ordered(fencer, readers, stamp)
        return found

    def _report(self, one: _Read, late: Array) -> None:
        """Report lanes of a read that was released too early."""
        assert self._shadow is not None
        batch = self._batch
        if not late.any():
            return
        reading, copying = (
            place_text(batch.source_location(number), batch.program.instructions[number].text)
            for number in (one.number, int(one.copy[late][0]))
        )
        detail = (
            f"No instruction has used the data that {reading} reads before this arrival releases their memory, which "
            f"the copy at {copying} overwrites"
        )
        keys = np.full(np.count_nonzero(late), NUMBER.pack(one.number), np.uint64)
        self._shadow.report("early_release", one.release, Conflicts(one.lanes[late], one.first[late], keys), detail)
        one.copy[late] = -1
