"""Blocks that read or atomically updated each word of global memory during one launch.

For each word, the lowest and the highest accessing block are stored exactly. If both are the current writer's block, no
other block accessed the word. Programs with fences between blocks also need each block's latest access, which a log
stores.
"""

from __future__ import annotations

import numpy as np

from evokern.simt.arrays import Array, sparse_zeros
from evokern.simt.sanitizer.access_keys import BitField, KeyTable, WordAccess

BLOCK = BitField(40, 24)
"""Linear id of the block plus one; zero for words that were not accessed."""
TIME = BitField(16, 24)
"""Time of the access, given as the number of fences so far."""
ATOMIC = BitField(15, 1)
"""Whether the access takes part in ordering blocks (volatile, relaxed or atomic)."""
NUMBER = BitField(0, 15)
"""Instruction of the access."""
ENTRIES = 1 << 20
"""Number of logged accesses above which only the latest access of each block to each word is kept."""


class BlockHistory:
    """History of the reads, or of the atomic updates, of every word.

    Attributes:
        used: whether there was any access.
    """

    def __init__(self, words: int, *, logged: bool, ascending: bool = True) -> None:
        """Create an empty history.

        Args:
            words: number of words.
            logged: whether the latest access of every block is kept.
            ascending: whether the lanes of an access are sorted by block; lanes of clusters may not be.
        """
        self._words, self._logged, self._ascending = words, logged, ascending
        self.used = False
        self._ends: tuple[KeyTable, KeyTable] | None = None
        """Key of the lowest and of the highest block that accessed each word."""
        self._log: list[tuple[Array, Array]] = []
        self._entries = 0
        self._mark: Array | None = None

    def _both(self) -> tuple[KeyTable, KeyTable]:
        if self._ends is None:
            self._ends = KeyTable(sparse_zeros(self._words, np.uint64)), KeyTable(sparse_zeros(self._words, np.uint64))
        return self._ends

    def add(self, access: WordAccess, keys: Array) -> None:
        """Record an access, given one key per lane."""
        self.used = True
        element, count = access.element, access.count
        if not self._ascending:
            order = np.argsort(keys, kind="stable")  # The block is the upper part of a key.
            element, keys = element[order], keys[order]
        lows, highs = self._both()
        low, high = lows.view(count), highs.view(count)
        before = lows.take(element, count)
        # Lanes are sorted by block: the last to store is the highest block, in reverse order the lowest.
        least = np.minimum(np.where(before == 0, keys[:, None], before), keys[:, None])
        low[element[::-1]] = np.ascontiguousarray(least[::-1]).reshape(-1).view(low.dtype)
        most = np.maximum(highs.take(element, count), keys[:, None])
        high[element] = np.ascontiguousarray(most).reshape(-1).view(high.dtype)
        if self._logged:
            words = (element[:, None] * count + np.arange(count)).reshape(-1)
            each = np.repeat(keys, count)
            new = np.ones(words.size, np.bool_)
            new[1:] = (words[1:] != words[:-1]) | (each[1:] != each[:-1])  # threads of a block may share a word
            self._log.append((words[new], each[new]))
            self._entries += int(np.count_nonzero(new))
            if self._entries > ENTRIES:
                self._log = [_latest(*(np.concatenate(part) for part in zip(*self._log, strict=True)))]
                self._entries = min(self._log[0][0].size, ENTRIES // 2)

    def others(self, access: WordAccess, mine: Array) -> tuple[Array, Array, Array]:
        """Return other blocks' accesses to the words of an access, as (position of the lane, word, key).

        Args:
            access: the access.
            mine: block of each lane, as stored in keys.
        """
        none = np.zeros(0, np.int64)
        if not self.used:
            return none, none, none.astype(np.uint64)
        found = []
        for table in self._both():
            keys = table.take(access.element, access.count)
            row, part = np.nonzero((keys != 0) & (BLOCK.alone(keys) != mine[:, None]))
            found.append((row, access.element[row] * access.count + part, keys[row, part]))
        row, words, keys = (np.concatenate(part) for part in zip(*found, strict=True))
        return self._from_log(row, words, mine) if self._logged and row.size else (row, words, keys)

    def _from_log(self, row: Array, words: Array, mine: Array) -> tuple[Array, Array, Array]:
        if self._mark is None:
            self._mark = np.zeros(self._words, np.bool_)
        self._mark[words] = True
        parts = [(known[hit], keys[hit]) for known, keys in self._log if (hit := self._mark[known]).any()]
        self._mark[words] = False
        known, keys = _latest(*(np.concatenate(part) for part in zip(*parts, strict=True)))
        pairs = np.unique(np.stack([row, words], 1), axis=0)
        row, words = pairs[:, 0], pairs[:, 1]
        first, last = np.searchsorted(known, words, "left"), np.searchsorted(known, words, "right")
        times = last - first
        pair = np.repeat(np.arange(row.size), times)
        entry = np.arange(pair.size) - np.repeat(np.cumsum(times) - times, times) + np.repeat(first, times)
        other = BLOCK.alone(keys[entry]) != mine[row[pair]]
        return row[pair[other]], words[pair[other]], keys[entry[other]]


def keys_of(mine: Array, time: int, number: int, *, atomic: bool = False) -> Array:
    """Return the keys of an access, given the block of each lane."""
    return mine + np.uint64(TIME.pack(time) | NUMBER.pack(number & NUMBER.most) | ATOMIC.pack(atomic))


def _latest(words: Array, keys: Array) -> tuple[Array, Array]:
    """Return the latest access of each block to each word, sorted by word."""
    order = np.lexsort((keys, words))
    words, keys = words[order], keys[order]
    blocks = BLOCK.alone(keys)
    last = np.r_[(words[1:] != words[:-1]) | (blocks[1:] != blocks[:-1]), np.ones(min(words.size, 1), np.bool_)]
    return words[last], keys[last]
