"""Shadows in memory: one word for every two bytes of global, shared and local memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evokern.ptx.lines import UNKNOWN_LOCATION, SourceLocation
from evokern.ptx.program import PtxProgram
from evokern.simt.arrays import Active, Array, sparse_zeros
from evokern.simt.clusters.layout import RANK_BITS
from evokern.simt.exact.field import (
    BAD,
    BF16,
    CODE_SHIFT,
    CODES,
    MIXED,
    PAIR,
    PAYLOAD,
    RAW,
    REASON_SHIFT,
    REASONS,
    WIDTHS,
    Value,
    embedded,
    floats,
    lost,
    narrow_table,
    next_part,
    parts,
    unpacked,
)
from evokern.simt.memory.buffers import Buffer, Memory
from evokern.simt.numerics import STORAGE

OUTPUT = np.uint64((1 << 31) - 1)
"""Number in place of an instruction's, for values that the comparison of outputs reads."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a value is not comparable, and where in the program."""

    reason: str
    location: SourceLocation
    instruction: str
    """PTX instruction; empty for the comparison of the outputs."""


class ExactMemory:
    """Shadow of global memory, which lasts over the launches of one call.

    Attributes:
        memory: the real memory.
        end: time on the clock after which no further batch of blocks runs.
        clock: returns the time in seconds.
        late: whether the time was over.
        arguments: arguments of functions with laws that are not known; see `functions.arguments`.
    """

    def __init__(self, memory: Memory, end: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self.memory, self.end, self.clock, self.late = memory, end, clock, False
        self.arguments = set[int]()
        self._words: Array = np.zeros(0, np.uint64)
        self._pairs: Array = np.zeros((2, 0), np.uint64)
        self._used = 0
        self._programs: list[tuple[int, PtxProgram]] = []

    @property
    def words(self) -> Array:
        """The word of every two bytes of the storage, which grows with new allocations."""
        size = self.memory.storage.size // 2
        if self._words.size < size:
            grown = sparse_zeros(size, np.uint64)
            for buffer in self.memory.buffers:
                part = slice(buffer.offset // 2, min((buffer.offset + buffer.size + 1) // 2, self._words.size))
                if part.start < part.stop:
                    grown[part] = self._words[part]
            self._words = grown
        return self._words

    def is_late(self) -> bool:
        """Return whether the time is over."""
        self.late = self.late or self.clock() > self.end
        return self.late

    def site(self, program: PtxProgram) -> int:
        """Return the number of a program's first instruction among all programs of the call."""
        for start, known in self._programs:
            if known is program:
                return start
        start = sum(len(known.instructions) for _, known in self._programs)
        self._programs.append((start, program))
        return start

    def obstacle(self, payload: int) -> Obstacle:
        """Return the reason and the instruction in a value's field `bad`."""
        number = payload & ((1 << int(REASON_SHIFT)) - 1)
        if number == OUTPUT:
            return Obstacle(REASONS[payload >> int(REASON_SHIFT)], UNKNOWN_LOCATION, "")
        start, program = max((item for item in self._programs if item[0] <= number), key=lambda item: item[0])
        instruction = program.instructions[number - start]
        location = program.lines.source_location(instruction.location)
        return Obstacle(REASONS[payload >> int(REASON_SHIFT)], location, instruction.text)

    def joined(self, low: Array, high: Array) -> Array:
        """Return the words of units of two bytes: places in a table of both words, if a byte is a number."""
        bad = np.where(low >> CODE_SHIFT == BAD, low, np.where(high >> CODE_SHIFT == BAD, high, RAW))
        numbers = (bad == RAW) & ((low | high) != RAW)
        first, self._used = self._used, self._used + int(np.count_nonzero(numbers))
        if self._used > self._pairs.shape[1]:
            self._pairs = np.concatenate([self._pairs[:, :first], np.zeros((2, self._used), np.uint64)], 1)
        self._pairs[:, first : self._used] = low[numbers], high[numbers]
        bad[numbers] = np.arange(first, self._used, dtype=np.uint64) | PAIR << CODE_SHIFT
        return bad

    def split(self, words: Array, bad: np.uint64) -> Array:
        """Return the words of the bytes of units, [2, ...]; `bad` replaces those of parts of wider numbers."""
        codes = words >> CODE_SHIFT
        pairs = codes == PAIR
        other = np.where((codes == RAW) | (codes == BAD), words, bad)
        if not pairs.any():
            return np.stack([other, other])
        found = self._pairs.take((words & PAYLOAD).astype(np.int64), 1, mode="clip")
        return np.where(pairs, found, other)

    def write(self, buffer: Buffer, kind: str, value: Value) -> None:
        """Set the shadow of a buffer of floating-point elements, of two bytes or more each."""
        units = WIDTHS[kind]
        words = parts(value.words(kind), units).T.reshape(-1)
        self.words[buffer.offset // 2 : buffer.offset // 2 + words.size] = words

    def read(self, buffer: Buffer, kind: str) -> Value:
        """Return the shadow of a buffer of floating-point elements."""
        dtype = STORAGE[kind]
        raw = self.memory.storage[buffer.offset : buffer.offset + buffer.size]
        bits = raw.view(f"u{dtype.itemsize}")
        words = self.words[buffer.offset // 2 : (buffer.offset + buffer.size + 1) // 2]
        if dtype.itemsize == 1:
            words = self.split(words, OUTPUT | MIXED << REASON_SHIFT | BAD << CODE_SHIFT).T.reshape(-1)[: bits.size]
        elif dtype.itemsize > 2:
            words = np.ascontiguousarray(words.reshape(bits.size, -1).T)
        return lost(valued(words, bits, kind, OUTPUT), OUTPUT)


def valued(words: Array, bits: Array, kind: str, site: np.uint64) -> Value:
    """Return the values that units, or bytes of units, represent in a format.

    Args:
        words: words of one unit or byte of each value, or for wider formats [units, ...]; a single row is enough for
            values that are known to be whole.
        bits: real bits of the values.
        kind: format.
        site: number of the reading instruction.
    """
    units = WIDTHS[kind]
    first, rest = (words[0], words[1:]) if units > 1 else (words, words[:0])
    codes = first >> CODE_SHIFT
    right = codes == CODES[kind]
    for number, word in enumerate(rest, 1):
        right &= word == next_part(first, number, units)
    p, q = unpacked(first)
    if right.all():
        return Value(p, q)
    raw = codes == RAW
    bad = np.where(codes == BAD, first & PAYLOAD, np.uint64(0))
    if rest.size and units == 2:
        # bfloat16 is the upper half of a float whose lower half is zero.
        extended = raw & (rest[0] >> CODE_SHIFT == BF16) & (bits & np.uint32(0xFFFF) == 0)
        upper_p, upper_q = unpacked(rest[0])
        p, q = np.where(extended, upper_p, p), np.where(extended, upper_q, q)
        right |= extended
    for word in rest:
        raw &= word == RAW
        bad = np.where((word >> CODE_SHIFT == BAD) & (bad == 0), word & PAYLOAD, bad)
    own = np.broadcast_to(bits, raw.shape)[raw]
    if own.any():  # the word of raw zeros has the residues of zero
        known = embedded_bits(kind, own, site)
        p, q = p.copy(), q.copy()
        p[raw], q[raw] = known.p, known.q
        if known.bad is not None:
            bad[raw] = known.bad
    mixed = ~(right | raw) & (bad == 0)
    if mixed.any():
        bad = np.where(mixed, site | MIXED << REASON_SHIFT, bad)
    return Value(p, q, bad if bad.any() else None)


def embedded_bits(kind: str, bits: Array, site: np.uint64) -> Value:
    """Return the values of raw bits in a format."""
    if WIDTHS[kind] > 1:
        return embedded(floats(kind, bits).astype(np.float64), site)
    table, at = narrow_table(kind), bits.view(f"u{bits.itemsize}").astype(np.int64)
    assert table.bad is not None
    bad = table.bad[at]
    return Value(table.p[at], table.q[at], np.where(bad != 0, bad | site, bad) if bad.any() else None)


class SpacePlane:
    """Shadow of one state space, seen by the lanes of a batch."""

    def __init__(
        self,
        words: Callable[[], Array],
        real: Callable[[], Array],
        base: Array | None,
        window: int = 0,
        cluster: tuple[Array, int] | None = None,
    ) -> None:
        """Create the shadow.

        Args:
            words: function that returns the words of the whole space.
            real: function that returns its real bytes.
            base: byte at which each lane's part starts; None if all lanes share the space.
            window: lowest address of the space.
            cluster: window of each lane's block and bytes of a block, if addresses may belong to another block.
        """
        self._words, self._real, self._base, self._window, self._cluster = words, real, base, window, cluster

    @property
    def words(self) -> Array:
        """The words of the space."""
        return self._words()

    def places(self, active: Active, address: Array, offset: int) -> Array:
        """Return the first byte of each lane's access; accesses outside the space move into it."""
        where = address.astype(np.int64) + (offset - self._window)
        if address.dtype.itemsize == 4:
            where &= 0xFFFFFFFF
        if where.shape[0] != active.count:
            where = np.repeat(where, active.count)
        if self._cluster is not None:
            own, size = self._cluster
            where = (where & (1 << RANK_BITS) - 1) + ((where >> RANK_BITS) - (active.pick(own) >> RANK_BITS)) * size
        return where if self._base is None else where + active.pick(self._base)

    def load(self, first: Array, count: int) -> Array:
        """Return the words of `count` units from each first byte on, [units, lanes]."""
        at = (first >> 1)[None] + np.arange(count)[:, None]
        return self.words.take(at, mode="clip")

    def real(self, first: Array, kind: str) -> Array:
        """Return the real bits of the values of a format that start at each first byte."""
        size = STORAGE[kind].itemsize
        return self._real().view(f"u{size}").take(first // size, mode="clip")

    def store(self, first: Array, units: Array) -> None:
        """Set the words from each first byte on; accesses outside the space are left out."""
        words, first = self.words, first >> 1
        good = (first >= 0) & (first + units.shape[0] <= words.size)
        if not good.all():
            first, units = first[good], units[:, good]
        for at, row in enumerate(units):
            words[first + at] = row
