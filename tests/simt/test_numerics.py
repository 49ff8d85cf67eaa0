"""Arithmetic and approximations of PTX over lanes against exact fractions and the ISA's tables."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounding_truth import ARITY, DIRECTIONS, assert_same_bits, expected_value, operands_for, rounded_to

from evokern.errors import InternalError
from evokern.simt import numerics
from evokern.simt.numerics.exact import fma_directed, fma_nearest


@pytest.fixture(autouse=True)
def _quiet():
    with numerics.ignore_float_warnings():
        yield


@pytest.mark.thorough
@pytest.mark.parametrize("rounding", DIRECTIONS)
@pytest.mark.parametrize("name", list(ARITY))
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_one_exact_rounding_in_every_direction(kind, name, rounding):
    """f32 and f64 operations equal the exact result rounded once, bit for bit, zeros' signs included."""
    columns = operands_for(kind, ARITY[name], 600, seed=len(name) + len(rounding))
    if name in ("div", "rcp"):
        keep = columns[-1] != 0
        columns = [column[keep] for column in columns]
    if name == "sqrt":
        columns = [np.abs(columns[0])]
    got = numerics.bind(name, kind, rounding=rounding)(*columns)
    expected = [expected_value(name, kind, [float(v) for v in row], rounding) for row in zip(*columns, strict=True)]
    assert_same_bits(np.array(expected).astype(got.dtype), got, columns)


@pytest.mark.parametrize("rounding", DIRECTIONS)
def test_f64_multiply_add_survives_cancellation_overflow_and_underflow(rounding):
    """a*b + c with c near -a*b, at both ends of the exponent range, is the exact result rounded once."""
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(500) * 2.0 ** rng.integers(-540, 512, 500).astype(float) for _ in range(2))
    product = a * b
    c = np.choose(rng.integers(0, 4, 500), [-product, np.nextafter(-product, 0), -product * 1.5, product * 2.0**-54])
    keep = np.isfinite(c)
    columns = [a[keep], b[keep], c[keep]]
    got = numerics.bind("fma", "f64", rounding=rounding)(*columns)
    expected = [expected_value("fma", "f64", [float(v) for v in row], rounding) for row in zip(*columns, strict=True)]
    assert_same_bits(np.array(expected), got, columns)


def test_f32_multiply_add_rounds_once_where_two_roundings_differ():
    """Sums that float64 rounds onto the middle between two f32 go to the side of the exact value."""
    a = np.array([1 + 2.0**-12, 1 + 2.0**-12, -(1 + 2.0**-12)], np.float32)
    b = np.array([1 + 2.0**-12] * 3, np.float32)
    tiny = np.array([2.0**-80, -(2.0**-80), 2.0**-80], np.float32)
    middle = Fraction(1 + 2.0**-12) ** 2
    got = numerics.bind("fma", "f32")(a, b, tiny)
    expected = [
        float(rounded_to("f32", s * middle + Fraction(float(t)), "rn")) for s, t in zip((1, 1, -1), tiny, strict=True)
    ]
    assert expected == got.tolist()
    assert got[0] != got[1]


def test_subnormal_f32_multiply_add_rounds_once():
    """A subnormal sum that float64 rounds onto the middle between two f32 goes to the side of the exact value."""
    columns = [
        np.array([v], np.float32) for v in ((1 + 2.0**-15) * 2.0**-75, (1 - 2.0**-15) * 2.0**-75, 2.0**-127 + 2.0**-149)
    ]
    assert columns[2].tolist() == numerics.bind("fma", "f32")(*columns).tolist()


@pytest.mark.parametrize("rounding", DIRECTIONS)
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_cancellation_and_overflow_at_the_edges(kind, rounding):
    """Cancellation gives +0, or -0 rounding down; overflow is infinity or the largest value, as the direction says."""
    dtype = numerics.STORAGE[kind].type
    largest = float(np.finfo(dtype).max)
    ulp = float(np.finfo(dtype).eps)
    least = float(np.finfo(dtype).smallest_subnormal)
    cases = [
        *[("add", pair) for pair in ([3.5, -3.5], [-0.0, -0.0], [0.0, -0.0], [largest, largest])],
        *[("mul", pair) for pair in ([-0.0, 3.0], [-largest, 2.0], [2.0**-75, 2.0**-75])],
        *[("div", pair) for pair in ([largest, 0.5], [-largest, 0.5], [0.0, -4.0], [least, 2.0], [-3 * least, 2.0])],
        *[
            ("fma", three)
            for three in ([2.0, -3.0, 6.0], [0.0, -3.0, 0.0], [largest, 2.0, -largest], [largest, 2.0, 0.0])
        ],
        *[("fma", three) for three in ([1.0, 1.0, ulp / 2], [1.0 + ulp, 1.0, ulp / 2])],
        ("sub", [2.0, 2.0]),
        ("rcp", [2.0**-140]),
    ]
    for name, operands in cases:
        operands = [float(dtype(v)) for v in operands]
        got = numerics.bind(name, kind, rounding=rounding)(*[np.array([v], dtype) for v in operands])
        expected = np.array([expected_value(name, kind, operands, rounding)]).astype(dtype)
        assert_same_bits(expected, got, [np.array([name])])


@pytest.mark.parametrize("name", ["add", "div", "sqrt", "fma", "mul"])
def test_invalid_operations_and_infinities_agree_in_every_direction(name):
    """Infinities, NaN and divisions by zero do not depend on the direction."""
    special = [0.0, -0.0, 1.0, -2.0, math.inf, -math.inf, math.nan]
    grid = np.array(np.meshgrid(*[special] * ARITY[name])).reshape(ARITY[name], -1)
    grid = grid[:, ~np.isfinite(grid).all(axis=0) | (grid[-1] == 0) & (name == "div")]
    for kind in ("f32", "f64"):
        columns = [row.astype(numerics.STORAGE[kind]) for row in grid]
        nearest = numerics.bind(name, kind)(*columns)
        for rounding in DIRECTIONS[1:]:
            assert np.array_equal(nearest, numerics.bind(name, kind, rounding=rounding)(*columns), equal_nan=True)


def test_both_f64_multiply_adds_agree():
    """Error-free transformations and 128-bit integers give the same bits, ties included."""
    a, b, c = operands_for("f64", 3, 4000, seed=9)
    odd = np.random.default_rng(1).integers(1 << 52, 1 << 53, (2, a.size)).astype(np.float64)
    for x, y, z in ((a, b, c), (odd[0], np.full(a.size, 0.5), odd[1] / 2), (odd[0], odd[1], -odd[0] * odd[1])):
        assert_same_bits(fma_directed(x, y, z, "rn"), fma_nearest(x, y, z), [x, y, z])


def test_f32_nan_results_are_canonical():
    """Any NaN result of an f32 operation is 0x7fffffff."""
    nan = np.array([0xFFC00001, 0x7F800001, 0x7F800000], np.uint32).view(np.float32)
    one = np.array([1.0, 2.0, -np.inf], np.float32)
    assert numerics.bind("add", "f32")(nan, one).view(np.uint32).tolist() == [0x7FFFFFFF] * 3


@pytest.mark.parametrize("name", ["add", "mul", "fma"])
def test_ftz_flushes_operands_and_results_with_their_sign(name):
    """With .ftz a subnormal operand counts as zero and a subnormal result is zero of its sign."""
    tiny = np.array([2.0**-130, -(2.0**-130), 2.0**-126], np.float32)
    if name == "add":
        got = numerics.bind("add", "f32", ftz=True)(tiny, np.array([-0.0, -0.0, -(1.5 * 2.0**-126)], np.float32))
        expected = [0.0, -0.0, -0.0]
    elif name == "mul":
        got = numerics.bind("mul", "f32", ftz=True)(tiny, np.array([2.0**100, 2.0**100, -0.5], np.float32))
        expected = [0.0, -0.0, -0.0]
    else:
        got = numerics.bind("fma", "f32", ftz=True)(tiny, np.full(3, 2.0**100, np.float32), np.zeros(3, np.float32))
        expected = [0.0, 0.0, 2.0**-26]
    assert_same_bits(np.array(expected, np.float32), got, [tiny])


def test_sat_clamps_to_the_unit_interval_and_nan_to_zero():
    """.sat gives values in [0, 1] and +0 for NaN."""
    a = np.array([-3, -0.0, 0.25, 7, np.inf, np.nan], np.float32)
    got = numerics.bind("add", "f32", sat=True)(a, np.zeros(6, np.float32))
    assert_same_bits(np.array([0, 0, 0.25, 1, 1, 0], np.float32), got, [a])


FUNCTIONS = {
    "ex2": (lambda x: 2.0**x, -120, 120),
    "lg2": (math.log2, 1e-30, 1e30),
    "rcp": (lambda x: 1 / x, 1e-30, 1e30),
    "rsqrt": (lambda x: 1 / math.sqrt(x), 1e-30, 1e30),
    "sqrt": (math.sqrt, 0, 1e30),
    "sin": (math.sin, -6.28, 6.28),
    "cos": (math.cos, -6.28, 6.28),
    "tanh": (math.tanh, -20, 20),
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_approximations_lie_within_one_unit_of_the_function(name):
    """f32 approximations are the float64 value rounded once, so well within the ISA's bound."""
    function, low, high = FUNCTIONS[name]
    rng = np.random.default_rng(3)
    values = (
        rng.uniform(low, high, 500) if low < 0 else np.exp(rng.uniform(math.log(max(low, 1e-30)), math.log(high), 500))
    )
    values = values.astype(np.float32)
    got = numerics.bind(name, "f32", rounding="approx")(values)
    expected = np.array([function(float(v)) for v in values])
    assert (np.abs(got - expected) <= 0.501 * np.spacing(np.abs(expected).astype(np.float32))).all()


@pytest.mark.parametrize(
    ("name", "inputs", "results"),
    [
        ("ex2", [-np.inf, -0.0, np.inf, np.nan, -149.0, 128.0], [0.0, 1.0, np.inf, np.nan, 2.0**-149, np.inf]),
        ("lg2", [-np.inf, -1.0, -0.0, 0.0, np.inf], [np.nan, np.nan, -np.inf, -np.inf, np.inf]),
        ("rcp", [-np.inf, -0.0, 0.0, np.inf], [-0.0, -np.inf, np.inf, 0.0]),
        ("rsqrt", [-np.inf, -1.0, -0.0, 0.0, np.inf], [np.nan, np.nan, -np.inf, np.inf, 0.0]),
        ("sqrt", [-np.inf, -1.0, -0.0, 0.0, np.inf], [np.nan, np.nan, -0.0, 0.0, np.inf]),
        ("sin", [-np.inf, -0.0, 0.0, np.inf], [np.nan, -0.0, 0.0, np.nan]),
        ("cos", [-np.inf, -0.0, np.inf], [np.nan, 1.0, np.nan]),
        ("tanh", [-np.inf, -0.0, np.inf, 2.0**-140], [-1.0, -0.0, 1.0, 2.0**-140]),
    ],
)
def test_approximations_follow_the_tables_of_special_values(name, inputs, results):
    """Infinities, signed zeros and subnormals give what the ISA's table says, NaN the canonical one."""
    got = numerics.bind(name, "f32", rounding="approx")(np.array(inputs, np.float32))
    expected = np.array(results, np.float32)
    expected.view(np.uint32)[np.isnan(expected)] = 0x7FFFFFFF
    assert_same_bits(expected, got, [np.array(inputs)])


def test_fast_division_flushes_huge_divisors():
    """div.approx by more than 2^126 is zero, or NaN for an infinite dividend; div.full is not."""
    a, b = np.array([1.0, np.inf, -8.0], np.float32), np.array([2.0**127, 2.0**127, 4.0], np.float32)
    assert [(v if v == v else True) for v in numerics.bind("div", "f32", rounding="approx")(a, b).tolist()] == [
        0.0,
        True,
        -2.0,
    ]
    assert numerics.bind("div.full", "f32", rounding="approx")(a, b)[0] == 2.0**-127


@pytest.mark.parametrize("kind", ["f16", "bf16", "f16x2"])
def test_half_exponential_and_tangent(kind):
    """ex2 and tanh of the half formats are the function rounded once."""
    base = kind.removesuffix("x2")
    values = np.linspace(-8, 8, 64)
    patterns = numerics.encode(base, values)
    operand = patterns.view(np.uint32) if kind != base else patterns
    for name, function in (("ex2", np.exp2), ("tanh", np.tanh)):
        got = numerics.bind(name, kind, rounding="approx")(operand).view(patterns.dtype)
        expected = numerics.encode(base, function(numerics.decode(base, patterns).astype(np.float64)))
        assert np.array_equal(expected, got)


def test_gross_f64_reciprocal_has_an_empty_lower_word():
    """rcp.approx.ftz.f64 keeps 20 bits of fraction and clears the lower word."""
    values = np.array([3.0, -7.5, 1e300, 0.0, 1e-320])
    got = numerics.bind("rcp", "f64", rounding="approx")(values)
    assert (got.view(np.uint64) & np.uint64(0xFFFFFFFF)).tolist() == [0] * 5
    assert np.allclose(1 / values[:3], got[:3], rtol=2.0**-20)
    assert [np.inf, np.inf] == got[3:].tolist()


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16", "f16x2", "bf16x2"])
@pytest.mark.parametrize("name", ["add", "mul", "fma"])
def test_immediates_and_any_shape(kind, name):
    """An operand of one number, as immediates are, acts as an array of it, and arrays may have any shape."""
    dtype = numerics.STORAGE[kind]
    patterns = np.random.default_rng(2).integers(0, 1 << 30, (3, 40), dtype=np.uint32)
    rows = [row.astype(dtype) for row in patterns[: ARITY[name]]]
    single = [*rows[:-1], rows[-1][:1].reshape(())]
    expected = numerics.bind(name, kind)(*rows[:-1], np.repeat(rows[-1][:1], 40))
    got = numerics.bind(name, kind)(*single)
    table = numerics.bind(name, kind)(*[row.reshape(4, 10) for row in [*rows[:-1], np.repeat(rows[-1][:1], 40)]])
    assert np.array_equal(got, expected, equal_nan=dtype.kind == "f")
    assert np.array_equal(table.ravel(), expected, equal_nan=dtype.kind == "f")


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
def test_directions_enclose_the_nearest_result(a, b, c):
    """Rounding down, to nearest and up are in order, and to zero is one of the outer two."""
    columns = [np.array([v], np.float32) for v in (a, b, c)]
    down, nearest, up, zero = (numerics.bind("fma", "f32", rounding=r)(*columns)[0] for r in ("rm", "rn", "rp", "rz"))
    if not np.isnan(nearest):
        assert down <= nearest <= up
        assert zero in (down, up)


def test_unknown_combinations_are_refused_by_name():
    """A name or modifier that PTX does not have is an error that names it."""
    with pytest.raises(InternalError, match="'fmaa'"):
        numerics.bind("fmaa", "f32")
    with pytest.raises(InternalError, match="rz"):
        numerics.bind("fma", "f16", rounding="rz")
    with pytest.raises(InternalError, match="f7"):
        numerics.stored("f7", np.zeros(1))
    with pytest.raises(InternalError, match="4 bytes"):
        numerics.stored("f32", np.zeros(1))
