"""Log of all accesses to each word since the last synchronisation, because a key holds only one reader.

Reads of a word are not ordered with each other, and neither are atomic updates. The next writer must therefore be
ordered after all of them. Each access stores its key as the word's latest key and is appended to a log. If the writer
has seen the latest access, it has seen all of them. Otherwise, the log is searched. A table holds the latest stamp for
each word and warp, and the lane if it was always the same. Pairs that the table cannot show to be ordered are compared
with every access to their words.
"""

from __future__ import annotations

import numpy as np

from evokern.simt.arrays import Array, sparse_zeros
from evokern.simt.sanitizer.access_keys import STAMP, Conflicts, KeyTable, WordAccess, repeated
from evokern.simt.sanitizer.thread_order import ThreadOrder

ENTRIES = 1 << 20
"""Least number of logged accesses above which only the latest access of each thread to each word is kept."""
_SEVERAL = 255
"""Marker for several lanes, in place of a lane number in the warp."""


NONE = Conflicts(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint64))
"""Empty result."""


class AccessLog:
    """Log of the reads, or of the atomic updates, of all words.

    Attributes:
        latest: key of each word's latest access.
        used: whether there was any access.
    """

    def __init__(self, order: ThreadOrder, words: int, words_of_block: int) -> None:
        """Create an empty log.

        Args:
            order: happens-before order.
            words: number of words.
            words_of_block: number of words of each block; 0 if all blocks share them.
        """
        self._order = order
        self._words, self._words_of_block = words, words_of_block
        self._columns = order.warps if words_of_block else 1
        self.latest = KeyTable(np.empty(words, np.uint64) if words_of_block else sparse_zeros(words, np.uint64))
        self.used = False
        self._thread = (np.arange(order.blocks * order.width) % order.width).astype(np.uint64)
        self._waiting: list[tuple[Array, int, Array, Array]] = []
        self._patterns: dict[tuple[int, bytes, bytes], int] = {}
        """(words per element, elements, lanes) → index in the pending accesses."""
        self._seen_words: list[Array] = []
        self._seen_lanes: list[Array] = []
        self._seen_keys: list[Array] = []
        self._entries, self._most = 0, ENTRIES
        self._period = -1
        self._table: Array | None = None
        self._lane: Array | None = None
        self._mark: Array | None = None

    def load(self, stretch: slice) -> None:
        """Clear the log for new blocks; ``stretch`` is the range of words of the first block."""
        self.latest.keys[stretch] = 0
        self.used = False
        self._clear()

    def _clear(self) -> None:
        self._waiting.clear()
        self._patterns.clear()
        self._seen_words.clear()
        self._seen_lanes.clear()
        self._seen_keys.clear()
        self._entries, self._most = 0, ENTRIES
        self._period = self._order.period

    def add(self, lanes: Array, element: Array, count: int, keys: Array) -> None:
        """Record an access.

        Args:
            lanes: lanes that access.
            element: index of the element that each lane accesses, in units of ``count`` words; one row per instruction
                if there are several.
            count: words per element.
            keys: keys of the access, one per element.
        """
        self.latest.view(count)[element] = repeated(keys, count) if keys.ndim == 1 else _rows(keys, count)
        self.used = True
        if self._period != self._order.period:
            self._clear()
        entry = element if element.base is None else element.copy(), count, lanes, keys
        if self._order.ranks > 1 and self._replace_earlier(entry):
            return
        self._waiting.append(entry)
        self._entries += element.size * count
        if self._entries > self._most:
            self._compact()

    def _replace_earlier(self, entry: tuple[Array, int, Array, Array]) -> bool:
        """Replace an earlier access of the same threads to the same words; return whether there was one.

        Without this, loops would fill the log of a cluster, because the barriers of its blocks do not clear it.
        """
        element, count, lanes, _ = entry
        at = self._patterns.setdefault((count, element.tobytes(), lanes.tobytes()), len(self._waiting))
        if at == len(self._waiting):
            return False
        self._waiting[at] = entry
        return True

    def copy(self, source: slice, target: slice, lanes: int) -> None:
        """Copy the records of a block to another block, whose lane numbers are larger by `lanes`."""
        self.latest.keys[target] = self.latest.keys[source]
        self._merge_pending()
        if self._table is not None and self._lane is not None:
            self._table[target], self._lane[target] = self._table[source], self._lane[source]
        for at in range(len(self._seen_words)):
            words = self._seen_words[at]
            mine = (words >= source.start) & (words < source.stop)
            if mine.any():
                self._seen_words.append(words[mine] + (target.start - source.start))
                self._seen_lanes.append(self._seen_lanes[at][mine] + lanes)
                self._seen_keys.append(self._seen_keys[at][mine])

    # ---- comparing

    def meetings(self, access: WordAccess) -> Conflicts:
        """Return the accesses by other threads of the block that are not ordered before the given access."""
        if not self.used:
            return NONE
        keys = self.latest.take(access.element, access.count)
        order = self._order
        floor, level = (order.near_floor, order.near_level) if self._words_of_block else (order.floor, order.level)
        late = keys >= (access.active.pick(floor)[:, None] if level is None else level)
        if not late.any():
            return NONE
        met = access.pairs(keys, late)
        self._merge_pending()
        suspect = self._suspects(met.lanes, met.words)
        return self._exact(met.lanes[suspect], met.words[suspect]) if suspect.any() else NONE

    def _merge_pending(self) -> None:
        """Merge the pending accesses into the table."""
        if self._period != self._order.period:
            self._clear()
        if not self._waiting:
            return
        words, lanes, keys = (np.concatenate(parts) for parts in zip(*map(_expanded, self._waiting), strict=True))
        self._waiting.clear()
        self._patterns.clear()
        # The words of a block are few, so only the log of global memory needs to be short.
        joined = (words, lanes, keys) if self._words_of_block else _by_warp(words, lanes, keys)
        for seen, part in zip((self._seen_words, self._seen_lanes, self._seen_keys), joined, strict=True):
            seen.append(part)
        if self._table is None or self._lane is None:
            self._table = np.zeros((self._words, self._columns), np.uint32)
            self._lane = np.zeros((self._words, self._columns), np.uint8 if self._words_of_block else np.int64)
        column = (lanes % self._order.width) >> 5 if self._words_of_block else 0
        place = words * self._columns + column
        mine = (lanes & 31).astype(np.uint8) if self._words_of_block else lanes + 1
        several = _SEVERAL if self._words_of_block else -1
        table, who = self._table.reshape(-1), self._lane.reshape(-1)
        mixed = (table[place] >= STAMP.of(self._order.floor)[lanes]) & (who[place] != mine)
        table[place] = STAMP.of(keys)
        who[place] = mine
        mixed |= who[place] != mine
        who[place[mixed]] = several

    def _suspects(self, lanes: Array, words: Array) -> Array:
        """Return which pairs the table cannot show to be ordered."""
        assert self._table is not None and self._lane is not None
        order = self._order
        if not self._words_of_block:
            mine = self._lane[words, 0] == lanes + 1
            unseen: Array = self._table[words, 0] >= STAMP.of(order.floor)[lanes]
            suspects: Array = unseen & ~mine
            return suspects
        warp = lanes >> 5
        late = self._table[words] >= STAMP.of(order.limits()).reshape(-1, order.warps)[warp]
        at, own = np.arange(lanes.size), warp % order.warps
        late[at, own] &= self._lane[words, own] != (lanes & 31)
        found: Array = late.any(1)
        return found

    def _exact(self, lanes: Array, words: Array) -> Conflicts:
        """Compare with every access to the words."""
        order = self._order
        if self._mark is None:
            self._mark = np.zeros(self._words, np.bool_)
        self._mark[words] = True
        parts = []
        for known, who, keys in zip(self._seen_words, self._seen_lanes, self._seen_keys, strict=True):
            hit = np.flatnonzero(self._mark[known])
            if hit.size:
                parts.append((known[hit], who[hit], keys[hit]))
        self._mark[words] = False
        if not parts:
            return NONE
        known, who, keys = _latest(*_by_lane(*(np.concatenate(part) for part in zip(*parts, strict=True))))
        first, last = np.searchsorted(known, words, "left"), np.searchsorted(known, words, "right")
        times = last - first
        pair = np.repeat(np.arange(words.size), times)
        entry = np.arange(pair.size) - np.repeat(np.cumsum(times) - times, times) + np.repeat(first, times)
        mine, other, key = lanes[pair], who[entry], keys[entry]
        late = (mine // order.width == other // order.width) & (mine != other)
        mine, other, key, pair = mine[late], other[late], key[late], pair[late]
        unseen = STAMP.of(key) >= order.seen(mine, other % order.width)
        return Conflicts(mine[unseen], words[pair[unseen]], key[unseen])

    def _compact(self) -> None:
        """Drop accesses that every thread has seen, and all but the latest access of each thread to each word."""
        self._merge_pending()
        words, lanes, keys = _latest(
            np.concatenate(self._seen_words), np.concatenate(self._seen_lanes), np.concatenate(self._seen_keys)
        )
        kept = keys >= self._order.floor.min()
        self._seen_words, self._seen_lanes, self._seen_keys = [words[kept]], [lanes[kept]], [keys[kept]]
        # If most entries are still needed, the next attempt waits for as many new ones.
        self._entries = int(np.count_nonzero(kept))
        self._most = max(ENTRIES, 2 * self._entries)


def _rows(keys: Array, count: int) -> Array:
    """Convert rows of keys to rows of elements that repeat each key `count` times."""
    return repeated(keys.reshape(-1), count).reshape(keys.shape)


def _expanded(entry: tuple[Array, int, Array, Array]) -> tuple[Array, Array, Array]:
    """Return words, lanes and keys of an entry, with one item per lane and word."""
    element, count, lanes, keys = entry
    rows = element.size // max(lanes.size, 1)
    words = (element.reshape(-1, 1) * count + np.arange(count)).reshape(-1)
    return words, np.repeat(np.tile(lanes, rows), count), np.repeat(keys.reshape(-1), count)


def _by_warp(words: Array, lanes: Array, keys: Array) -> tuple[Array, Array, Array]:
    """Join the accesses of whole warps to one word, as when all threads read the same number; see `_by_lane`."""
    same = np.r_[0, np.cumsum((words[1:] == words[:-1]) & (keys[1:] == keys[:-1] + np.uint64(1)))]
    start = np.zeros(words.size, np.bool_)
    start[:-31] = (lanes[:-31] & 31 == 0) & (lanes[31:] == lanes[:-31] + 31) & (same[31:] - same[:-31] == 31)
    at = np.flatnonzero(start)
    single = np.ones(words.size, np.bool_)
    single[at[:, None] + np.arange(32)] = False
    return (
        np.concatenate([words[single], words[at]]),
        np.concatenate([lanes[single], ~lanes[at]]),
        np.concatenate([keys[single], keys[at]]),
    )


def _by_lane(words: Array, lanes: Array, keys: Array) -> tuple[Array, Array, Array]:
    """Return one access per lane; a negative lane stands for the warp whose first lane is its complement."""
    warp, within = lanes < 0, np.arange(32)
    return (
        np.concatenate([words[~warp], np.repeat(words[warp], 32)]),
        np.concatenate([lanes[~warp], (~lanes[warp][:, None] + within).reshape(-1)]),
        np.concatenate([keys[~warp], (keys[warp][:, None] + within.astype(np.uint64)).reshape(-1)]),
    )


def _latest(words: Array, lanes: Array, keys: Array) -> tuple[Array, Array, Array]:
    """Return the latest access of each thread to each word, sorted by word."""
    order = np.lexsort((keys, lanes, words))
    words, lanes, keys = words[order], lanes[order], keys[order]
    last = np.r_[(words[1:] != words[:-1]) | (lanes[1:] != lanes[:-1]), np.ones(min(words.size, 1), np.bool_)]
    return words[last], lanes[last], keys[last]
