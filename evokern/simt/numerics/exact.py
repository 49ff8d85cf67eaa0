"""float64 fused multiply-add with exactly one rounding, in all four rounding modes.

NumPy has no fused multiply-add. This module has two methods, whose results the tests compare:

- `fma_nearest`: error-free transformations, about 40 vector operations. Algorithm 5 ("Fma emulation") of S. Boldo and
  G. Melquiond, "Emulation of a FMA and correctly-rounded sums: proved algorithms using rounding to odd", IEEE
  Transactions on Computers 57(4), 2008. It is valid while no partial product under- or overflows; other lanes use the
  second method.
- `fma_directed`: integers of 128 bits as two uint64 arrays. The smaller addend is shifted right, and its lost bits are
  or-ed into the last place. It is valid for all finite operands and all rounding modes.
"""

from __future__ import annotations

import numpy as np

from evokern.simt.numerics.formats import Array

_SPLIT = 134217729.0  # 2^27 + 1: Veltkamp's constant for 53 bits
_U = np.uint64


def two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the rounded sum and its exact error (Knuth, TAOCP 2, 4.2.2 theorem B)."""
    total = x + y
    y_part = total - x
    return total, (x - (total - y_part)) + (y - y_part)


def two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the rounded product and its exact error (Dekker 1971), for products without under- or overflow."""
    product = x * y
    scaled = _SPLIT * x
    x_high = scaled - (scaled - x)
    x_low = x - x_high
    scaled = _SPLIT * y
    y_high = scaled - (scaled - y)
    y_low = y - y_high
    return product, x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)


def sum_to_odd(x: Array, y: Array) -> Array:
    """Return x + y in float64, rounded to odd: the last bit of an inexact sum is one.

    A later rounding to 51 bits or fewer, in any direction, then equals one rounding of the exact sum (Boldo and
    Melquiond, theorem 3).
    """
    total, error = two_sum(x, y)
    bits = total.view(np.int64)
    even_inexact = (np.abs(error) > 0) & ((bits & 1) == 0)
    if np.count_nonzero(even_inexact):
        outward = (error > 0) == (total > 0)
        bits += np.where(even_inexact, np.where(outward, 1, -1), 0)
    return total


def fma_nearest(a: Array, b: Array, c: Array) -> Array:
    """Return a*b + c, rounded once to nearest even.

    Args:
        a: float64, like `b` and `c`; the shapes broadcast.
        b: second factor.
        c: addend.
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    product, product_error = two_product(a, b)
    low_sum, low_error = two_sum(c, product_error)
    high_sum, high_error = two_sum(product, low_sum)
    result: Array = high_sum + sum_to_odd(low_error, high_error)
    magnitude = np.abs(product)
    unsafe = ~((magnitude > 2.0**-900) & (magnitude < 2.0**990) & (np.abs(result) < np.inf))
    if np.count_nonzero(unsafe):
        result[unsafe] = fma_directed(a[unsafe], b[unsafe], c[unsafe], "rn")
    return result


def _shift_left(high: Array, low: Array, count: Array) -> tuple[Array, Array]:
    """Shift 128-bit integers left by 0 to 127 bits."""
    count = count.astype(np.uint64)
    far = count >= _U(64)
    near = count & _U(63)
    carried = np.where(near > 0, low >> ((_U(64) - near) & _U(63)), _U(0))
    return np.where(far, low << near, (high << near) | carried), np.where(far, _U(0), low << near)


def _shift_right_jam(high: Array, low: Array, count: Array) -> tuple[Array, Array]:
    """Shift 128-bit integers right by any count; lost bits set the last bit kept."""
    count = np.minimum(count, 127).astype(np.uint64)
    far = count >= _U(64)
    near = count & _U(63)
    back = (_U(64) - near) & _U(63)
    spilled_low = np.where(near > 0, low << back, _U(0))
    spilled_high = np.where(near > 0, high << back, _U(0))
    low_part = (low >> near) | spilled_high
    lost = np.where(far, low | spilled_high, spilled_low) != 0
    return np.where(far, _U(0), high >> near), np.where(far, high >> near, low_part) | lost.astype(np.uint64)


def _bit_length(values: Array) -> Array:
    """Return the bit lengths of uint64 values; 0 for 0."""
    upper = values >> _U(32)
    _, upper_length = np.frexp(upper.astype(np.float64))
    _, lower_length = np.frexp((values & _U(0xFFFFFFFF)).astype(np.float64))
    return np.where(upper > 0, upper_length + 32, lower_length)


def _normalised(high: Array, low: Array, exponent: Array) -> tuple[Array, Array, Array]:
    """Shift the leading one to bit 127; convert the exponent of bit 0 to the exponent of the leading one."""
    length = np.where(high > 0, _bit_length(high) + 64, _bit_length(low))
    high, low = _shift_left(high, low, np.where(length > 0, 128 - length, 0))
    return high, low, np.where(length > 0, exponent + length - 1, -(1 << 20))


def _significand(values: Array) -> tuple[Array, Array]:
    """Split finite float64 values into an integer significand and the exponent of its last place."""
    bits = values.view(np.uint64)
    biased = ((bits >> _U(52)) & _U(0x7FF)).astype(np.int64)
    fraction = bits & _U((1 << 52) - 1)
    return np.where(biased > 0, fraction | _U(1 << 52), fraction), np.maximum(biased, 1) - 1075


def _product(x: Array, y: Array) -> tuple[Array, Array]:
    """Multiply uint64 values into 128 bits, using 32-bit halves."""
    mask = _U(0xFFFFFFFF)
    x0, x1, y0, y1 = x & mask, x >> _U(32), y & mask, y >> _U(32)
    low, middle, cross = x0 * y0, x1 * y0, x0 * y1
    carry = (low >> _U(32)) + (middle & mask) + (cross & mask)
    return x1 * y1 + (middle >> _U(32)) + (cross >> _U(32)) + (carry >> _U(32)), (carry << _U(32)) | (low & mask)


def fma_directed(a: Array, b: Array, c: Array, rounding: str) -> Array:
    """Return a*b + c, rounded once in the mode `rounding` (`rn`, `rz`, `rm`, `rp`).

    Args:
        a: float64, like `b` and `c`, all of one shape.
        b: second factor.
        c: addend.
        rounding: rounding mode. Exact cancellation gives -0 under `rm` and +0 otherwise (IEEE 754 6.3).
    """
    a, b, c = (np.ascontiguousarray(x) for x in np.broadcast_arrays(a, b, c))
    special = ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c))
    sign_p, sign_c = np.signbit(a) ^ np.signbit(b), np.signbit(c)
    (m_a, e_a), (m_b, e_b), (m_c, e_c) = _significand(a), _significand(b), _significand(c)
    p_high, p_low, p_exponent = _normalised(*_product(m_a, m_b), e_a + e_b)
    c_high, c_low, c_exponent = _normalised(np.zeros_like(m_c), m_c, e_c)

    swap = (c_exponent > p_exponent) | (
        (c_exponent == p_exponent) & ((c_high > p_high) | ((c_high == p_high) & (c_low > p_low)))
    )
    big_high, big_low = np.where(swap, c_high, p_high), np.where(swap, c_low, p_low)
    small_high, small_low = np.where(swap, p_high, c_high), np.where(swap, p_low, c_low)
    exponent = np.where(swap, c_exponent, p_exponent)
    negative = np.where(swap, sign_c, sign_p)
    # Leave one bit for the carry: the 22 zeros below a 106-bit product keep every bit that cancellation can need.
    big_high, big_low = _shift_right_jam(big_high, big_low, np.ones_like(exponent))
    distance = exponent - np.where(swap, p_exponent, c_exponent) + 1
    small_high, small_low = _shift_right_jam(small_high, small_low, distance)

    added_low = big_low + small_low
    added_high = big_high + small_high + (added_low < big_low)
    borrowed_low = big_low - small_low
    borrowed_high = big_high - small_high - (big_low < small_low)
    same = sign_p == sign_c
    high, low = np.where(same, added_high, borrowed_high), np.where(same, added_low, borrowed_low)
    high, low, exponent = _normalised(high, low, exponent - 126)
    magnitude = _round_magnitude(high, low, exponent, negative, rounding)
    zero = (high | low) == 0
    negative = np.where(zero, np.where(same, sign_p, rounding == "rm"), negative)
    result = (magnitude | (negative.astype(np.uint64) << _U(63))).view(np.float64)
    return np.where(special, a * b + c, result)


def _round_magnitude(high: Array, low: Array, exponent: Array, negative: Array, rounding: str) -> Array:
    """Round a normalised 128-bit significand to the bits of a float64 magnitude."""
    tiny = np.maximum(-1022 - exponent, 0)
    _, window = _shift_right_jam(high, low, 73 + tiny)  # 53 bits, a guard bit and a sticky bit
    kept, below = window >> _U(2), window & _U(3)
    if rounding == "rn":
        up = (below == 3) | ((below == 2) & ((kept & _U(1)) == 1))
    elif rounding == "rz":
        up = np.zeros(kept.shape, bool)
    else:
        up = (below > 0) & (negative if rounding == "rm" else ~negative)
    biased = np.clip(exponent + 1022, 0, 2100).astype(np.uint64)
    bits = (biased << _U(52)) + kept + up.astype(np.uint64)
    infinity = _U(0x7FF0000000000000)
    if rounding == "rn":
        beyond: Array = np.full(kept.shape, infinity)
    elif rounding == "rz":
        beyond = np.full(kept.shape, infinity - _U(1))
    else:
        beyond = np.where(negative if rounding == "rm" else ~negative, infinity, infinity - _U(1))
    bits = np.where(bits >= infinity, beyond, bits)
    return np.where((high | low) == 0, _U(0), bits)
