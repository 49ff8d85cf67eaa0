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
from evokern.simt.exact.field import (
    BAD,
    BF16,
    CODE_SHIFT,
    CODES,
    MIXED,
    NEXT_PART,
    PAYLOAD,
    RAW,
    REASON_SHIFT,
    REASONS,
    Value,
    embedded,
    floats,
    half_table,
    unpacked,
    upper,
)
from evokern.simt.memory.buffers import Buffer, Memory

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
        end: time on the monotonic clock after which no further batch of blocks runs.
        late: whether the time was over.
    """

    def __init__(self, memory: Memory, end: float = math.inf) -> None:
        self.memory, self.end, self.late = memory, end, False
        self._words: Array = np.zeros(0, np.uint64)
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
        self.late = self.late or time.monotonic() > self.end
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

    def write(self, buffer: Buffer, kind: str, value: Value) -> None:
        """Set the shadow of a buffer of floating-point elements."""
        units = buffer.size // 2 // value.p.size
        words = value.words(kind)
        start = buffer.offset // 2
        for unit in range(units):
            self.words[start + unit : start + buffer.size // 2 : units] = upper(words) if unit else words

    def read(self, buffer: Buffer, kind: str) -> Value:
        """Return the shadow of a buffer of floating-point elements."""
        units = 1 if kind in ("f16", "bf16") else 2
        start, count = buffer.offset // 2, buffer.size // 2 // units
        words = np.ascontiguousarray(self.words[start : start + count * units].reshape(count, units).T)
        raw = self.memory.storage[buffer.offset : buffer.offset + buffer.size]
        bits = raw.view(np.uint16 if units == 1 else np.uint32)
        return valued(words[0] if units == 1 else words, bits, kind, OUTPUT)


def valued(words: Array, bits: Array, kind: str, site: np.uint64) -> Value:
    """Return the values that units represent in a format.

    Args:
        words: words of one unit of each value, or for `f32` of two units; a single row of `LOW` words is a whole value.
        bits: real bits of the values, uint16 or uint32.
        kind: `f16`, `bf16`, `f32` or `tf32`.
        site: number of the reading instruction.
    """
    wanted = CODES[kind]
    first = words[0] if kind in ("f32", "tf32") else words
    codes = first >> CODE_SHIFT
    right = codes == wanted
    whole = words.shape[0] == 1 or kind in ("f16", "bf16")
    if not whole:
        right &= words[1] == first + NEXT_PART
    p, q = unpacked(first)
    if right.all():
        return Value(p, q)
    raw = codes == RAW
    bad = np.where(codes == BAD, first & PAYLOAD, np.uint64(0))
    if not whole:
        second = words[1] >> CODE_SHIFT
        # bfloat16 is the upper half of a float whose lower half is zero.
        extended = raw & (second == BF16) & (bits & np.uint32(0xFFFF) == 0)
        upper_p, upper_q = unpacked(words[1])
        p, q = np.where(extended, upper_p, p), np.where(extended, upper_q, q)
        right |= extended
        raw &= second == RAW
        bad = np.where((second == BAD) & (bad == 0), words[1] & PAYLOAD, bad)
    if raw.any():
        known = embedded_bits(kind, bits, site)
        p, q = np.where(raw, known.p, p), np.where(raw, known.q, q)
        if known.bad is not None:
            bad = np.where(raw, known.bad, bad)
    mixed = ~(right | raw) & (bad == 0)
    if mixed.any():
        bad = np.where(mixed, site | MIXED << REASON_SHIFT, bad)
    return Value(p, q, bad if bad.any() else None)


def embedded_bits(kind: str, bits: Array, site: np.uint64) -> Value:
    """Return the values of raw bits in a format."""
    if kind in ("f32", "tf32"):
        return embedded(floats(kind, bits).astype(np.float64), site)
    table, at = half_table(kind), bits.astype(np.int64)
    assert table.bad is not None
    bad = table.bad[at]
    return Value(table.p[at], table.q[at], np.where(bad != 0, bad | site, bad) if bad.any() else None)


class SpacePlane:
    """Shadow of one state space, seen by the lanes of a batch."""

    def __init__(
        self, words: Callable[[], Array], real: Callable[[], Array], base: Array | None, window: int = 0
    ) -> None:
        """Create the shadow.

        Args:
            words: function that returns the words of the whole space.
            real: function that returns its real bytes.
            base: byte at which each lane's part starts; None if all lanes share the space.
            window: lowest address of the space.
        """
        self._words, self._real, self._base, self._window = words, real, base, window

    @property
    def words(self) -> Array:
        """The words of the space."""
        return self._words()

    def units(self, active: Active, address: Array, offset: int) -> Array:
        """Return the first unit of each lane's access; addresses outside the space become the nearest unit."""
        where = address.astype(np.int64) + (offset - self._window)
        if where.shape[0] != active.count:
            where = np.repeat(where, active.count)
        if self._base is not None:
            where = where + active.pick(self._base)
        return where >> 1

    def load(self, first: Array, count: int) -> Array:
        """Return the words of `count` units from each first unit, [units, lanes]."""
        at = first[None] + np.arange(count)[:, None]
        return self.words.take(at, mode="clip")

    def real(self, first: Array) -> Array:
        """Return the four real bytes from each first unit on, as uint32."""
        return self._real().view(np.uint32).take(first >> 1, mode="clip")

    def store(self, first: Array, units: Array) -> None:
        """Set the words from each first unit on; accesses outside the space are left out."""
        words = self.words
        good = (first >= 0) & (first + units.shape[0] <= words.size)
        if not good.all():
            first, units = first[good], units[:, good]
        for at, row in enumerate(units):
            words[first + at] = row
