"""Keys: 64-bit records of accesses in shadow memory. The top bits contain the time stamp, so later keys are larger."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evokern.simt.arrays import RAW, Active, Array


class BitField:
    """Range of bits in a key.

    Attributes:
        most: largest value of the field.
        mask: bits of the field in a key.
    """

    __slots__ = ("_shift", "_top", "mask", "most", "shift")

    def __init__(self, shift: int, bits: int) -> None:
        """Define the field.

        Args:
            shift: number of bits below the field.
            bits: number of bits of the field.
        """
        self.shift, self.most = shift, (1 << bits) - 1
        self.mask = np.uint64(self.most << shift)
        self._shift, self._top = np.uint64(shift), shift + bits == 64

    def pack(self, value: int) -> int:
        """Return a value shifted to the field's position; combine fields with ``|``."""
        return value << self.shift

    def pack_all(self, values: Array) -> Array:
        """Return an array of unsigned 64-bit values shifted to the field's position."""
        return values << self._shift

    def of(self, keys: Array) -> Array:
        """Return the field's values in keys, as signed numbers."""
        field = keys >> self._shift if self._top else (keys & self.mask) >> self._shift
        return field.view(np.int64)

    def alone(self, keys: Array) -> Array:
        """Return keys with all other fields set to zero."""
        return keys & self.mask

    def set(self, keys: Array, value: int) -> None:
        """Set this field to one value in all keys, in place."""
        keys &= ~self.mask
        keys |= np.uint64(self.pack(value))


STAMP = BitField(32, 32)
"""Time stamp of the access."""
NUMBER = BitField(13, 19)
"""Instruction of the access."""
THREAD = BitField(0, 13)
"""Number of the accessing thread in its cluster (8 blocks of 1024 threads) or, without clusters, in its block."""
NEVER_WRITTEN = np.uint64(STAMP.pack(STAMP.most))
"""Smallest key of a word that was never written."""
IN_FLIGHT = STAMP.most - 1
"""Stamp of a word that an asynchronous copy has yet to write."""
NOT_READABLE = np.uint64(STAMP.pack(IN_FLIGHT))
"""Smallest key of a word that was never written or that an asynchronous copy has yet to write."""


def wide(count: int) -> np.dtype[np.void]:
    """Return the NumPy type of an element that consists of `count` adjacent keys."""
    size = 8 * count
    return RAW.get(size, np.dtype(f"V{size}")) if size > 8 else np.dtype(f"V{size}")


def in_elements(keys: Array, count: int) -> Array:
    """View an array of keys as elements of `count` keys each."""
    return keys if count == 1 else keys[: keys.size // count * count].view(wide(count))


def repeated(keys: Array, count: int) -> Array:
    """Return elements that repeat each key `count` times."""
    return keys if count == 1 else np.repeat(keys, count).view(wide(count))


@dataclass(frozen=True, slots=True)
class Conflicts:
    """Pairs of accesses to one word."""

    lanes: Array
    """Lanes of the new access."""
    words: Array
    """Words that both accesses touch."""
    keys: Array
    """Keys of the earlier accesses."""

    def where(self, chosen: Array) -> Conflicts:
        """Return the chosen pairs."""
        return Conflicts(self.lanes[chosen], self.words[chosen], self.keys[chosen])


@dataclass(slots=True, eq=False)
class WordAccess:
    """Access of lanes to words of shadow memory; not frozen, because one is created for each access that runs."""

    active: Active
    element: Array
    """Element that each lane accesses, in units of `count` words."""
    count: int
    """Words per element."""
    number: int
    """The instruction."""

    @classmethod
    def at(cls, active: Active, index: Array, width: int, number: int, granularity: int) -> WordAccess:
        """Return the access to indices in units of its width; the width and the size of a word are in bytes."""
        element = index if width >= granularity else index * width // granularity
        return cls(active, element, max(width // granularity, 1), number)

    @property
    def words(self) -> Array:
        """Words of each lane."""
        return self.element[:, None] * self.count + np.arange(self.count)

    def pairs(self, keys: Array, chosen: Array) -> Conflicts:
        """Return the chosen pairs of a lane and a key, given the keys of all words, one row per lane."""
        row, part = np.nonzero(chosen)
        return Conflicts(self.active.lanes[row], self.element[row] * self.count + part, keys[row, part])


class KeyTable:
    """One key per word, which can be read and written as elements of several keys."""

    __slots__ = ("_views", "keys")

    def __init__(self, keys: Array) -> None:
        self.keys = keys
        self._views: dict[int, Array] = {}

    def view(self, count: int) -> Array:
        """View the keys as elements of `count` keys."""
        view = self._views.get(count)
        if view is None:
            view = self._views[count] = in_elements(self.keys, count)
        return view

    def take(self, element: Array, count: int) -> Array:
        """Return the keys of elements, one row of `count` keys each."""
        return self.view(count).take(element, mode="clip").view(np.uint64).reshape(-1, count)
