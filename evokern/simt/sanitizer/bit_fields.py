"""Bit fields of the 64-bit keys in shadow memory, packed and unpacked for whole rows."""

from __future__ import annotations

import numpy as np

from evokern.simt.arrays import Array


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
