"""Bit fields of 64-bit keys: what the shadows of memory keep of an access, packed and unpacked for whole rows."""

from __future__ import annotations

import numpy as np

from evokern.simt.arrays import Array


class BitField:
    """A run of bits within a key.

    Attributes:
        most: largest value that it holds.
        mask: its bits within a key.
    """

    __slots__ = ("_shift", "_top", "mask", "most", "shift")

    def __init__(self, shift: int, bits: int) -> None:
        """Lay the field out.

        Args:
            shift: bits of the key below it.
            bits: its own.
        """
        self.shift, self.most = shift, (1 << bits) - 1
        self.mask = np.uint64(self.most << shift)
        self._shift, self._top = np.uint64(shift), shift + bits == 64

    def pack(self, value: int) -> int:
        """Return a value where the field lies; fields are joined with ``|``."""
        return value << self.shift

    def pack_all(self, values: Array) -> Array:
        """Return values, unsigned 64-bit ones, where the field lies."""
        return values << self._shift

    def of(self, keys: Array) -> Array:
        """Return the field of keys, as signed numbers."""
        field = keys >> self._shift if self._top else (keys & self.mask) >> self._shift
        return field.view(np.int64)

    def alone(self, keys: Array) -> Array:
        """Return keys with all other fields nought."""
        return keys & self.mask

    def set(self, keys: Array, value: int) -> None:
        """Give keys one value in this field, in place."""
        keys &= ~self.mask
        keys |= np.uint64(self.pack(value))
