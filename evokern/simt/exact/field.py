"""Arithmetic in two prime fields, over arrays of lanes, and the words that hold its elements.

P = 2 Q + 1, and both are prime. An exponential maps the residue of its argument modulo Q to a power of G modulo P,
where G has the order Q. The law 2^(a + b) = 2^a 2^b therefore holds. Both primes are 3 modulo 4, so that
x^((P + 1) / 4) is a square root of x or of -x.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from evokern.simt.arrays import Array
from evokern.simt.numerics import STORAGE, decode, ignore_float_warnings

P, Q = 2147481143, 1073740571
G = 2
"""Base of exponentials, which generates the squares modulo P and has the order Q."""

_P, _Q = np.uint64(P), np.uint64(Q)
_Q_SHIFT, CODE_SHIFT = np.uint64(31), np.uint64(61)
_P_BITS, _Q_BITS = np.uint64((1 << 31) - 1), np.uint64((1 << 30) - 1)
NO_P, NO_Q = _P_BITS, _Q_BITS
"""Residues of values that have none: logarithms have none modulo P, and exponentials none modulo Q."""
PAYLOAD = np.uint64((1 << 61) - 1)
VANISHES = -1000.0
"""Binary logarithm below which an exponential is zero, so that finite masks hide keys completely."""

RAW, F16, BF16, LOW, HIGH, PAIR, WIDE, BAD = (np.uint64(code) for code in range(8))
"""Codes of a unit of two bytes: raw bits, a half, the lower or the upper part of a float, two bytes, a
part of a double, or not comparable. `ExactMemory.joined` describes the words of two numbers."""
CODES = {"f16": F16, "bf16": BF16, "f32": LOW, "tf32": LOW, "f64": WIDE, "e4m3": F16, "e5m2": BF16}
"""Format → code of the first unit. A byte has the code of a half, which occurs only in the table."""
WIDTHS = {"f16": 1, "bf16": 1, "f32": 2, "tf32": 2, "f64": 4, "e4m3": 1, "e5m2": 1}
"""Format → units of a value, or 1 for a byte."""
_NEXT_PART, _WIDE_PART = np.uint64(1 << 61), np.uint64(1 << 59)

REASONS = {
    1: "integer instructions change the bits of a floating-point value",
    2: "an exponential, a root or an integer result has no exact exponent, or a logarithm no residue",
    3: "the divisor is zero",
    4: "a value is infinite or not a number",
    5: "parts of different values, or of another format, are read as one value",
    6: "the instruction has no rule in exact arithmetic",
    7: "the result depends on the order of atomic operations",
    8: "a register is read that was never written",
}
"""Reasons why a value is not comparable."""
BITS, SECOND, ZERO, INFINITE, MIXED, NO_RULE, ORDER, UNWRITTEN = (np.uint64(number) for number in REASONS)
REASON_SHIFT = _Q_SHIFT


@dataclass(slots=True)
class Value:
    """Residues of one value per lane."""

    p: Array
    """Residue modulo P, uint64, or `NO_P`."""
    q: Array
    """Residue modulo Q, or `NO_Q`."""
    bad: Array | None = None
    """Where and why the value is not comparable; 0 if it is. None if all values are."""

    def map(self, change: Callable[[Array], Array]) -> Value:
        """Return the value whose arrays are the results of a function of these arrays."""
        return Value(change(self.p), change(self.q), None if self.bad is None else change(self.bad))

    def words(self, kind: str) -> Array:
        """Return the words of the values' first units."""
        words: Array = self.p | self.q << _Q_SHIFT | CODES[kind] << CODE_SHIFT
        if self.bad is not None:
            words = np.where(self.bad != 0, self.bad | BAD << CODE_SHIFT, words)
        return words


def unpacked(words: Array) -> tuple[Array, Array]:
    """Return the residues in words."""
    return words & _P_BITS, words >> _Q_SHIFT & _Q_BITS


def next_part(words: Array, number: int, units: int) -> Array:
    """Return the words of a further unit of values of two or four units, from those of the first."""
    return words + _NEXT_PART if units == 2 else words ^ _WIDE_PART * np.uint64(number)


def parts(words: Array, units: int) -> Array:
    """Return the words of all units of values, [units, ...], from those of the first; other words are repeated."""
    found = np.empty((units, *words.shape), np.uint64)
    found[0] = words
    if units > 1:
        numbers = words >> CODE_SHIFT == (LOW if units == 2 else WIDE)
        whole = bool(numbers.all())
        for number in range(1, units):
            part = next_part(words, number, units)
            found[number] = part if whole else np.where(numbers, part, words)
    return found


def joint(*bads: Array | None) -> Array | None:
    """Return where any of several values is not comparable."""
    found: Array | None = None
    for bad in bads:
        if bad is not None:
            found = bad if found is None else np.where(found != 0, found, bad)
    return found


def worse(bad: Array | None, where: Array, site: np.uint64, reason: np.uint64) -> Array | None:
    """Return `bad`, with a further reason for some lanes."""
    if not where.any():
        return bad
    return joint(bad, np.where(where, site | reason << REASON_SHIFT, np.uint64(0)))


def _without(none: np.uint64, result: Array, *sources: Array) -> Array:
    for source in sources:
        if source.max(initial=0) >= none:
            result = np.where(source == none, none, result)
    return result


def _computed(p: Array, q: Array, *sources: Value) -> Value:
    """Return a value with some residues, except for residues that depend on a source without one."""
    p, q = _without(NO_P, p, *(one.p for one in sources)), _without(NO_Q, q, *(one.q for one in sources))
    return Value(p, q, joint(*(one.bad for one in sources)))


def lost(x: Value, site: np.uint64) -> Value:
    """Return x, which is not comparable where it has no residue at all."""
    if x.p.max(initial=0) < NO_P:
        return x
    return Value(x.p, x.q, worse(x.bad, (x.p == NO_P) & (x.q == NO_Q), site, SECOND))


def reduced(numbers: Array, modulus: np.uint64) -> Array:
    """Return numbers modulo a prime, in place; a quotient and a product take less time than NumPy's remainder."""
    whole = numbers // modulus
    whole *= modulus
    numbers -= whole
    return numbers


def _folded(numbers: Array, modulus: np.uint64) -> Array:
    """Return numbers below twice the modulus modulo a prime; a negative difference wraps to a larger number."""
    folded: Array = np.minimum(numbers, numbers - modulus)
    return folded


def add(x: Value, y: Value) -> Value:
    """Return x + y."""
    return _computed(_folded(x.p + y.p, _P), _folded(x.q + y.q, _Q), x, y)


def negate(x: Value) -> Value:
    """Return -x."""
    return _computed(_folded(_P - x.p, _P), _folded(_Q - x.q, _Q), x)


def multiply(x: Value, y: Value) -> Value:
    """Return x y."""
    return _computed(reduced(x.p * y.p, _P), reduced(x.q * y.q, _Q), x, y)


def fma(x: Value, y: Value, z: Value) -> Value:
    """Return x y + z."""
    return _computed(reduced(x.p * y.p + z.p, _P), reduced(x.q * y.q + z.q, _Q), x, y, z)


def power(base: Array, exponent: int, modulus: int) -> Array:
    """Return base^exponent modulo a prime."""
    m, result = np.uint64(modulus), np.ones_like(base)
    for bit in bin(exponent)[2:]:
        result = reduced(result * result, m)
        if bit == "1":
            result = reduced(result * base, m)
    return result


def reciprocal(x: Value, site: np.uint64) -> Value:
    """Return 1 / x."""
    found = _computed(power(x.p, P - 2, P), np.where(x.q == 0, NO_Q, power(x.q, Q - 2, Q)), x)
    return lost(Value(found.p, found.q, worse(x.bad, x.p == 0, site, ZERO)), site)


def root(x: Value) -> Value:
    """Return a square root of x, or of -x if x has none; sqrt(x y) = sqrt(x) sqrt(y) holds."""
    return _computed(power(x.p, (P + 1) // 4, P), power(x.q, (Q + 1) // 4, Q), x)


def powers(base: int, count: int) -> Array:
    """Return the powers of a number modulo P with the exponents below `count`, a power of two."""
    found = np.ones(1, np.uint64)
    while found.size < count:
        found = np.concatenate([found, reduced(found * np.uint64(pow(base, found.size, P)), _P)])
    return found


@cache
def _power_tables() -> tuple[Array, Array]:
    """Return the powers of G with the exponents n and n 2^15, for n below 2^15."""
    return powers(G, 1 << 15), powers(pow(G, 1 << 15, P), 1 << 15)


def exponential(x: Value, vanishes: Array, site: np.uint64) -> Value:
    """Return 2^x; `vanishes` marks arguments so low that the real result is zero."""
    low, high = _power_tables()
    e = x.q.astype(np.int64)
    p = reduced(low[e & 0x7FFF] * high[e >> 15], _P)
    bad = worse(x.bad, x.q == NO_Q, site, SECOND)
    if vanishes.any():
        p = np.where(vanishes, np.uint64(0), p)
        bad = None if bad is None else np.where(vanishes, np.uint64(0), bad)
    return Value(p, np.full_like(p, NO_Q), bad)


def matmul(x: Value, y: Value, z: Value | None = None) -> Value:
    """Return x y + z from the residues of matrices [..., M, K], [..., K, N] and [..., M, N], with K up to 64."""
    p = _marked_matmul(x.p, y.p, None if z is None else z.p, P, NO_P)
    q = _marked_matmul(x.q, y.q, None if z is None else z.q, Q, NO_Q)
    bad = None if z is None else z.bad
    if y.bad is not None:
        bad = joint(np.broadcast_to(y.bad.max(-2)[..., None, :], p.shape), bad)
    if x.bad is not None:
        bad = joint(np.broadcast_to(x.bad.max(-1)[..., :, None], p.shape), bad)
    return Value(p, q, bad)


def _marked_matmul(x: Array, y: Array, z: Array | None, modulus: int, none: np.uint64) -> Array:
    """Multiply matrices; results that depend on a value without a residue have none."""
    marks = [one == none for one in (x, y)]
    if marks[0].all() or marks[1].all():
        shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
        return np.full(shape, none)
    result = _matmul(x, y, z, np.uint64(modulus))
    if marks[0].any() or marks[1].any():
        result = np.where(marks[0].any(-1)[..., :, None] | marks[1].any(-2)[..., None, :], none, result)
    return result if z is None else _without(none, result, z)


def _matmul(x: Array, y: Array, z: Array | None, modulus: np.uint64) -> Array:
    """Multiply matrices with one factor in two limbs, so that every float64 sum is exact."""
    limbs = np.empty((2, *y.shape))
    limbs[0], limbs[1] = y & np.uint64(0xFFFF), y >> np.uint64(16)
    low, high = np.matmul(x.astype(np.float64), limbs).astype(np.uint64)
    high = reduced(high, modulus)
    high <<= np.uint64(16)
    high += low
    if z is not None:
        high += z
    return reduced(high, modulus)


@cache
def _powers_of_two(modulus: int) -> Array:
    return np.array([pow(2, n % (modulus - 1), modulus) for n in range(-1200, 1100)], np.uint64)


def _related_constants() -> dict[float, tuple[np.uint64, np.uint64]]:
    """Return the residues of constants in float32 and float64 that depend on others: ln(2) is 1 / log2(e)."""
    e, ten, half = (Fraction(float(np.float32(one))) for one in (math.log2(math.e), math.log2(10), math.sqrt(0.5)))
    pairs = ((math.log2(math.e), e), (math.log2(10), ten), (math.log(2), 1 / e), (math.log10(2), 1 / ten),
             (math.log(10), ten / e), (math.log10(math.e), e / ten), (math.sqrt(2), 1 / half))  # fmt: skip
    return {
        number: (_residue(fraction, P), _residue(fraction, Q))
        for exact, fraction in pairs
        for number in (exact, float(np.float32(exact)))
    }


def _residue(fraction: Fraction, modulus: int) -> np.uint64:
    return np.uint64(fraction.numerator * pow(fraction.denominator, -1, modulus) % modulus)


_RELATED = _related_constants()


def integers(values: Array) -> Value:
    """Return the residues of int64 numbers."""
    return Value(np.mod(values, P).astype(np.uint64), np.mod(values, Q).astype(np.uint64))


def embedded(values: Array, site: np.uint64) -> Value:
    """Return the residues of float64 numbers m 2^e, which are exact."""
    if values.size > 1 and bool((values == values.flat[0]).all()):  # for example zeros
        return embedded(values.reshape(-1)[:1], site).map(lambda part: np.full(values.shape, part[0]))
    finite = np.isfinite(values)
    fraction, exponent = np.frexp(np.where(finite, values, 0.0))
    whole = np.ldexp(fraction, 53).astype(np.int64)
    at = exponent.astype(np.int64) - 53 + 1200
    found = integers(whole)
    p = reduced(found.p * _powers_of_two(P)[at], _P)
    q = reduced(found.q * _powers_of_two(Q)[at], _Q)
    for number, (of_p, of_q) in _RELATED.items():
        here = values == number
        if here.any():
            p, q = np.where(here, of_p, p), np.where(here, of_q, q)
    return Value(p, q, worse(None, ~finite, site, INFINITE))


@cache
def narrow_table(kind: str) -> Value:
    """Return the residues of all patterns of a format with one or two bytes."""
    dtype = STORAGE[kind]
    with ignore_float_warnings():
        values = decode(kind, np.arange(1 << 8 * dtype.itemsize).astype(f"u{dtype.itemsize}").view(dtype))
        return embedded(values.astype(np.float64), np.uint64(0))


def floats(kind: str, bits: Array) -> Array:
    """Return the real numbers that some bits represent in a format."""
    if kind == "f64":
        return bits.view(np.float64)
    if kind in ("f32", "tf32"):
        return bits.view(np.float32)
    return decode(kind, bits.view(STORAGE[kind])).astype(np.float32)
