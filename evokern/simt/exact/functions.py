"""Functions with laws, and functions without: logarithms in the field, formal functions, and their constants.

The logarithm inverts the exponential: it maps a power of G modulo P to its exponent modulo Q. Therefore it keeps the
laws log(x y) = log x + log y and log 2^x = x. It maps -x as x, and has no residue modulo P. An error function, a sine
or a cosine is a random function of the residue modulo P: equal arguments give equal results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np

from evokern.ptx.syntax import Immediate, Instruction
from evokern.simt.arrays import Array
from evokern.simt.exact.field import (
    NO_P,
    NO_Q,
    SECOND,
    ZERO,
    G,
    P,
    Q,
    Value,
    add,
    embedded,
    exponential,
    multiply,
    negate,
    powers,
    reciprocal,
    reduced,
    worse,
)

_BOUND = math.isqrt(P) + 1
"""Every residue is a quotient of two numbers below this one, up to the sign."""
_SIZE, _STEPS, _SMALL = 1 << 16, 1 << 18, 256
"""Numbers in the table of logarithms; powers of G from which those of the primes below the third number are read."""


@cache
def _logarithms() -> Array:
    """Return the logarithms of all numbers below `_BOUND` to base G, modulo Q; that of -1 is 0.

    For a prime r from `_SMALL` on, P = r m k ± s gives log r = log s - log m - log k.
    """
    greatest = np.ones(_SIZE, np.int64)
    for number in range(2, _SIZE):
        if greatest[number] == 1:
            greatest[number::number] = number
    result = np.zeros(_SIZE, np.int64)
    primes = np.flatnonzero(greatest[:_BOUND] == np.arange(_BOUND))[1:]
    small = _small_logarithms(primes[primes < _SMALL])
    for number, prime in enumerate(primes.tolist()):
        if number < small.size:
            found = int(small[number])
        else:
            m = np.tile(_BOUND // prime + np.arange(1, 400), 2)
            k = P // (prime * m) + (np.arange(m.size) >= m.size // 2)
            s = np.abs(P - prime * m * k)
            rest = greatest[s.clip(max=_SIZE - 1)]
            at = ((greatest[k] < prime) & (greatest[m] < prime) & (s < _SIZE) & (rest < prime)).argmax()
            found = int(result[s[at]] - result[k[at]] - result[m[at]]) % Q
        factor = prime
        while factor < _SIZE:
            result[factor::factor] += found
            factor *= prime
    return result % Q


def _small_logarithms(primes: Array) -> Array:
    """Return the logarithms of a few primes: half of those of their squares, which are powers of G."""
    known, back = powers(G, _STEPS), np.uint64(pow(G, -_STEPS, P))
    order, squares = known.argsort(), (primes * primes).astype(np.uint64)
    known = known[order]
    found = np.full(primes.size, -1)
    for start in range(0, Q, _STEPS):
        at = known.searchsorted(squares).clip(max=_STEPS - 1)
        found = np.where((found < 0) & (known[at] == squares), start + order[at], found)
        squares = reduced(squares * back, np.uint64(P))
    return found * ((Q + 1) // 2) % Q


def logarithm(x: Value, site: np.uint64) -> Value:
    """Return log2 |x|, which has no residue modulo P."""
    table = _logarithms()
    above, below = np.full(x.p.shape, P, np.int64), x.p.astype(np.int64)
    earlier, factor = np.zeros_like(above), np.ones_like(above)
    while (going := below >= _BOUND).any():  # Euclid's algorithm: below = ± x factor, with both below the square root
        whole = np.where(going, above // np.maximum(below, 1), 0)
        above, below = np.where(going, below, above), np.where(going, above - whole * below, below)
        earlier, factor = np.where(going, factor, earlier), np.where(going, earlier + whole * factor, factor)
    q = (table[below] - table[np.minimum(factor, _BOUND - 1)]) % Q
    bad = worse(x.bad, x.p == 0, site, ZERO)
    return Value(np.full_like(x.p, NO_P), q.astype(np.uint64), worse(bad, x.p == NO_P, site, SECOND))


def _formal(x: Value, site: np.uint64, salt: int, odd: bool = True) -> Value:
    """Return a random function of the residues modulo P, which is odd or has no symmetry."""
    upper = (x.p > P // 2) & odd
    mixed = np.where(upper, P - x.p, x.p) + np.uint64(salt << 32)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    found = reduced(mixed ^ mixed >> np.uint64(31), np.uint64(P))
    found = np.where((x.p == 0) & odd, np.uint64(0), found)
    bad = worse(x.bad, x.p == NO_P, site, SECOND)
    return Value(np.where(upper & (found != 0), P - found, found), np.full_like(found, NO_Q), bad)


def sine(x: Value, site: np.uint64) -> Value:
    """Return the sine for a random tangent t of half the angle, 2 t / (1 + t²); -1 has no root, so 1 + t² is not 0."""
    tangent = _formal(x, site, 0)
    return multiply(add(tangent, tangent), _secant(tangent, site))


def cosine(x: Value, site: np.uint64) -> Value:
    """Return the cosine for the same tangent, (1 - t²) / (1 + t²)."""
    tangent = _formal(x, site, 0)
    square = multiply(tangent, tangent)
    return multiply(add(_whole(tangent), negate(square)), _secant(tangent, site))


def _whole(like: Value, number: int = 1) -> Value:
    one = np.full_like(like.p, number)
    return Value(one, one)


def _secant(tangent: Value, site: np.uint64) -> Value:
    return reciprocal(add(_whole(tangent), multiply(tangent, tangent)), site)


def hyperbolic_tangent(x: Value, site: np.uint64) -> Value:
    """Return 1 - 2 / (e^(2 x) + 1)."""
    double = multiply(add(x, x), embedded(np.full(1, np.float32(math.log2(math.e)), np.float64), site))
    inverse = reciprocal(add(exponential(double, np.zeros(x.p.shape, np.bool_), site), _whole(x)), site)
    return add(_whole(x), negate(add(inverse, inverse)))


ODD, OTHERS = ("erf", "atan", "asin", "cbrt", "rcbrt", "erfinv"), ("acos", "erfcinv", "erfcx", "lgamma", "tgamma")
"""Functions whose only law is f(-x) = -f(x), and functions without a law."""
FUNCTIONS: dict[str, Callable[[Value, np.uint64], Value]] = {
    "copy": lambda x, site: x,
    "lg2": logarithm,
    "sin": sine,
    "cos": cosine,
    "tanh": hyperbolic_tangent,
    **{name: partial(_formal, salt=salt, odd=name in ODD) for salt, name in enumerate((*ODD, *OTHERS), 1)},
}
"""Name → function of a value and the number of the instruction."""
MARK, MARKED = 0x45564B00, ("copy", "ex2", "lg2", "sin", "cos", *ODD, *OTHERS)
"""Third operand of an `slct` of `evokern_functions.h`: the first number, and the functions in order."""


def arguments(name: str, x: Value) -> set[int]:
    """Return what identifies the arguments, up to their signs, of a function with laws that are not known here."""
    if name not in ("sin", "cos") and (name == "erf" or name not in (*ODD, *OTHERS)):
        return set()
    angle = np.uint64((0 if name in ("sin", "cos") else MARKED.index(name)) << 32)
    return set(np.unique(np.minimum(x.p, P - x.p) + angle).tolist())


def marked_function(i: Instruction) -> str | None:
    """Return the function that an `slct` marks, or None."""
    last = i.operands[3]
    number = int(last.value) - MARK if isinstance(last, Immediate) else -1
    return MARKED[number] if 0 <= number < len(MARKED) else None


def is_signless(i: Instruction) -> bool:
    """Return whether the result of an instruction may be that of the negation of its operand."""
    return i.opcode in ("sqrt", "rsqrt", "lg2") or (i.opcode == "slct" and marked_function(i) == "lg2")
