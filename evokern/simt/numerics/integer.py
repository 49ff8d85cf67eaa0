"""PTX integer arithmetic over lanes.

Source: PTX ISA 8.5, section 9.7.1 (`add`, `sub`, `mul`, `mul24`, `sad`, `dp4a`, `dp2a`).
"""

from __future__ import annotations

import numpy as np

from evokern.simt.numerics.formats import Array


def mul_hi(a: Array, b: Array) -> Array:
    """Return the upper half of the product of two integers of 16, 32 or 64 bits (PTX ISA 9.7.1.3 `mul.hi`)."""
    size = a.dtype.itemsize
    if size < 8:
        wide = np.dtype(f"{a.dtype.kind}{2 * size}")
        product: Array = a.astype(wide) * b.astype(wide) >> wide.type(8 * size)
        return product.astype(a.dtype)
    x, y = a.view(np.uint64), b.view(np.uint64)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, y0, y1 = x & mask, x >> half, y & mask, y >> half
    middle, cross = x1 * y0, x0 * y1
    carry = ((x0 * y0) >> half) + (middle & mask) + (cross & mask)
    high: Array = x1 * y1 + (middle >> half) + (cross >> half) + (carry >> half)
    if a.dtype.kind == "i":  # Subtract the contribution of the two sign bits from the unsigned product.
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.view(a.dtype)


def mul24(a: Array, b: Array, *, high: bool = False) -> Array:
    """Return bits 0 to 31 (or 16 to 47 if `high`) of the product of 24-bit integers (PTX ISA 9.7.1.5)."""
    if a.dtype.kind == "i":
        x, y = ((v.astype(np.int64) << 40) >> 40 for v in (a, b))
    else:
        x, y = (v.astype(np.int64) & 0xFFFFFF for v in (a, b))
    product = x * y
    return (product >> 16 if high else product).astype(a.dtype)


def sad(a: Array, b: Array, c: Array) -> Array:
    """Return c + |a - b|, wrapping (PTX ISA 9.7.1.7), in the type of the arrays."""
    difference = np.where(a < b, b - a, a - b)
    return c + difference


def saturated(name: str, a: Array, b: Array) -> Array:
    """Return `add.sat.s32` or `sub.sat.s32` (PTX ISA 9.7.1.1, 9.7.1.2): clamp instead of wrap.

    Args:
        name: `add` or `sub`.
        a: int32.
        b: int32.
    """
    wide = a.astype(np.int64) + b if name == "add" else a.astype(np.int64) - b
    return np.clip(wide, -(1 << 31), (1 << 31) - 1).astype(np.int32)


def dp4a(a: Array, b: Array, c: Array) -> Array:
    """Return c + the dot product of four bytes (PTX ISA 9.7.1.23).

    Args:
        a: uint32 for `.u32`, int32 for `.s32`; its four bytes have the same signedness.
        b: likewise, independent of `a`.
        c: 32 bits; the sum wraps.

    Returns:
        int32 if `a` or `b` is signed, else uint32.
    """
    x, y = _bytes(a), _bytes(b)
    product = x * y
    total: Array = product[..., 0] + product[..., 1] + product[..., 2] + product[..., 3]
    total += c.view(np.int32)
    return total.view(np.uint32 if a.dtype.kind == b.dtype.kind == "u" else np.int32)


def dp2a(a: Array, b: Array, c: Array, *, high: bool = False) -> Array:
    """Return c + the dot product of the two halves of `a` with two bytes of `b` (PTX ISA 9.7.1.24).

    Args:
        a: uint32 or int32; its halves have the same signedness.
        b: uint32 or int32; bytes 0 and 1 are used, or 2 and 3 with `high`.
        c: 32 bits; the sum wraps.
        high: `.hi` instead of `.lo`.
    """
    halves = np.ascontiguousarray(a)[..., None].view(f"{a.dtype.kind}2").astype(np.int32)
    parts = _bytes(b)
    first = 2 if high else 0
    total: Array = halves[..., 0] * parts[..., first] + halves[..., 1] * parts[..., first + 1]
    total += c.view(np.int32)
    return total.view(np.uint32 if a.dtype.kind == b.dtype.kind == "u" else np.int32)


def _bytes(values: Array) -> Array:
    return np.ascontiguousarray(values)[..., None].view(f"{values.dtype.kind}1").astype(np.int32)
