"""Arithmetic in the two fields, against Python's integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from evokern.simt.exact import field
from evokern.simt.exact.field import NO_Q, P, Q, Value

SITE = np.uint64(5)


def _random(shape: tuple[int, ...] = (400,), seed: int = 0) -> Value:
    rng = np.random.default_rng(seed)
    return Value(rng.integers(0, P, shape, np.uint64), rng.integers(0, Q, shape, np.uint64))


def _ints(values: np.ndarray) -> np.ndarray:
    return values.astype(object)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % n for n in range(2, int(number**0.5) + 1))


def test_the_moduli_are_as_stated() -> None:
    """P = 2 Q + 1, both are prime and 3 modulo 4, and G has the order Q."""
    assert P == 2 * Q + 1 and P % 4 == Q % 4 == 3 and _is_prime(P) and _is_prime(Q)
    assert pow(field.G, Q, P) == 1 and field.G != 1


def test_sums_and_products() -> None:
    """Sums, products, multiply-adds and negations act on both residues."""
    x, y, z = (_random(seed=seed) for seed in range(3))
    for one, modulus in (("p", P), ("q", Q)):
        a, b, c = (_ints(getattr(value, one)) for value in (x, y, z))
        assert (_ints(getattr(field.add(x, y), one)) == (a + b) % modulus).all()
        assert (_ints(getattr(field.multiply(x, y), one)) == a * b % modulus).all()
        assert (_ints(getattr(field.fma(x, y, z), one)) == (a * b + c) % modulus).all()
        assert (_ints(getattr(field.negate(x), one)) == -a % modulus).all()


def test_matrix_products_are_exact() -> None:
    """The largest residues and random ones give the same products as Python's integers."""
    x, y = _random((3, 16, 16)), _random((3, 16, 8), 1)
    x.p[0], y.p[0], x.q[0], y.q[0] = P - 1, P - 1, Q - 1, Q - 1
    found = field.matmul(x, y)
    assert (_ints(found.p) == _ints(x.p) @ _ints(y.p) % P).all()
    assert (_ints(found.q) == _ints(x.q) @ _ints(y.q) % Q).all()


def test_reciprocals_and_roots() -> None:
    """X / x is 1; the square of a root is x or -x; roots of products are products of roots."""
    x, y = _random(), _random(seed=1)
    one = field.multiply(x, field.reciprocal(x, SITE))
    assert (one.p == 1).all() and (one.q == 1).all() and one.bad is None
    root = field.root(x)
    square = field.multiply(root, root)
    assert ((square.p == x.p) | (square.p == field.negate(x).p)).all()
    assert (field.root(field.multiply(x, y)).p == field.multiply(root, field.root(y)).p).all()
    zero = field.reciprocal(Value(np.zeros(1, np.uint64), np.zeros(1, np.uint64)), SITE)
    assert zero.bad is not None and zero.bad[0] == SITE | field.ZERO << field.REASON_SHIFT


def test_exponentials_turn_sums_into_products() -> None:
    """2^(x + y) = 2^x 2^y; a second exponential is not comparable; very low arguments give zero."""
    x, y, never = _random(), _random(seed=1), np.zeros(400, np.bool_)
    power = field.exponential(field.add(x, y), never, SITE)
    product = field.multiply(field.exponential(x, never, SITE), field.exponential(y, never, SITE))
    assert (power.p == product.p).all() and (power.q == NO_Q).all() and power.bad is None
    assert [pow(field.G, int(q), P) for q in x.q[:50]] == field.exponential(x, never, SITE).p[:50].tolist()
    twice = field.exponential(power, never, SITE)
    assert twice.bad is not None and (twice.bad == SITE | field.SECOND << field.REASON_SHIFT).all()
    vanished = field.exponential(power, ~never, SITE)
    assert (vanished.p == 0).all() and not vanished.bad.any()  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [0.0, 1.0, -0.1, 3.5e38, 2.0**-149, 2.0**-1022, 1.0 / 768.0])
def test_constants_are_embedded_exactly(number: float) -> None:
    """A float m 2^e has the residue of that fraction."""
    exact = Fraction(number)
    value = field.embedded(np.array([number]), SITE)
    for found, modulus in ((value.p[0], P), (value.q[0], Q)):
        assert int(found) * exact.denominator % modulus == exact.numerator % modulus


def test_infinities_are_not_comparable() -> None:
    """Infinity and NaN have no residue, in floats and in halves."""
    value = field.embedded(np.array([np.inf, -np.inf, np.nan]), SITE)
    assert value.bad is not None and value.bad.all()
    table = field.narrow_table("f16")
    assert table.bad is not None and (table.bad != 0).sum() == 2 * 1024
