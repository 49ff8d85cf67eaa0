"""Keys: what the shadows keep of an access in 64 bits, its time stamp on top, so that later ones have larger keys."""

from __future__ import annotations

import numpy as np

from evokern.simt.arrays import RAW, Array
from evokern.simt.sanitizer.bit_fields import BitField

STAMP = BitField(32, 32)
"""When an access happened."""
NUMBER = BitField(13, 19)
"""Its instruction."""
THREAD = BitField(0, 13)
"""Its thread within the cluster: 1024 of each of 8 blocks; without clusters, within the block."""
NEVER = np.uint64(STAMP.pack(STAMP.most))
"""Least key of words that nobody wrote."""
IN_FLIGHT = STAMP.most - 1
"""Stamp of words that an asynchronous copy is about to write."""
FAR = np.uint64(STAMP.pack(IN_FLIGHT))
"""Least key of words that nobody wrote, or that an asynchronous copy is about to write."""


def wide(count: int) -> np.dtype[np.void]:
    """Return the element type of so many keys side by side."""
    size = 8 * count
    return RAW.get(size, np.dtype(f"V{size}")) if size > 8 else np.dtype(f"V{size}")


def in_elements(keys: Array, count: int) -> Array:
    """Return an array of keys as elements of so many."""
    return keys if count == 1 else keys[: keys.size // count * count].view(wide(count))


def repeated(keys: Array, count: int) -> Array:
    """Return elements that hold the same key so many times."""
    return keys if count == 1 else np.repeat(keys, count).view(wide(count))
