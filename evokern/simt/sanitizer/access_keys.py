"""Keys: 64-bit records of accesses in shadow memory. The top bits contain the time stamp, so later keys are larger."""

from __future__ import annotations

import numpy as np

from evokern.simt.arrays import RAW, Array
from evokern.simt.sanitizer.bit_fields import BitField

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
