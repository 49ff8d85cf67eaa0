"""PTX arithmetic over lanes against independent truth: exact fractions, torch's conversions, and bit-by-bit definitions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evokern.errors import InternalError
from evokern.simt import numerics

DIRECTIONS = ("rn", "rz", "rm", "rp")
WORDS = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True)
def _quiet():
    with numerics.quiet():
        yield


# --------------------------------------------------------------------------------------------------- truth by fractions


def rounded(value: Fraction, precision: int, lowest: int, largest: Fraction, rounding: str) -> Fraction | float:
    """IEEE 754 rounding of an exact value, from its definition; infinity on overflow."""
    if value == 0:
        return value
    numerator, denominator = abs(value).numerator, value.denominator
    exponent = numerator.bit_length() - denominator.bit_length()
    if Fraction(2) ** exponent > abs(value):
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, lowest) - precision + 1)
    steps = value / unit
    integer = {
        "rn": lambda: round(steps),
        "rz": lambda: math.trunc(steps),
        "rm": lambda: math.floor(steps),
        "rp": lambda: math.ceil(steps),
        "rna": lambda: math.copysign(1, steps) * math.floor(abs(steps) + Fraction(1, 2)),
    }[rounding]()
    result = Fraction(integer) * unit
    if abs(result) <= largest:
        return result
    to_infinity = rounding in ("rn", "rna") or (rounding == "rp" and value > 0) or (rounding == "rm" and value < 0)
    return (math.inf if value > 0 else -math.inf) if to_infinity else (largest if value > 0 else -largest)


PARAMETERS = {"f64": (53, -1022, 1023), "f32": (24, -126, 127), "tf32": (11, -126, 127), "bf16": (8, -126, 127)}
PARAMETERS |= {"f16": (11, -14, 15), "e5m2": (3, -14, 15)}


def rounded_to(kind: str, value: Fraction, rounding: str) -> Fraction | float:
    precision, lowest, highest = PARAMETERS[kind]
    largest = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** highest
    return rounded(value, precision, lowest, largest, rounding)


def exact(name: str, operands: list[float]) -> Fraction | float | None:
    """Exact result of finite operands; None for a root, whose value is no fraction."""
    x = [Fraction(v) for v in operands]
    match name:
        case "add":
            return x[0] + x[1]
        case "sub":
            return x[0] - x[1]
        case "mul":
            return x[0] * x[1]
        case "fma":
            return x[0] * x[1] + x[2]
        case "div":
            return x[0] / x[1]
        case _:
            return 1 / x[0]


def zero_sign(name: str, operands: list[float], rounding: str) -> float:
    """Sign of an exactly zero result (IEEE 754, 6.3)."""
    sign = [math.copysign(1.0, v) for v in operands]
    if name in ("mul", "div"):
        return sign[0] * sign[1]
    first, second = (sign[0] * sign[1], sign[2]) if name == "fma" else (sign[0], sign[1])
    if name == "sub":
        second = -second
    return first if first == second else (-1.0 if rounding == "rm" else 1.0)


def expected_value(name: str, kind: str, operands: list[float], rounding: str) -> float:
    if name == "sqrt":
        return expected_root(kind, operands[0], rounding)
    value = exact(name, operands)
    result = rounded_to(kind, value, rounding)
    if value == 0:
        return math.copysign(0.0, zero_sign(name, operands, rounding))
    return math.copysign(float(result), 1 if value > 0 else -1)


def expected_root(kind: str, operand: float, rounding: str) -> float:
    """Root by integers: isqrt of the operand scaled by an even power of two, a sticky bit for the rest."""
    if operand == 0:
        return operand
    scaled = Fraction(operand) * Fraction(4) ** 1200
    root = math.isqrt(int(scaled))
    sticky = Fraction(0) if root * root == scaled else Fraction(1, 2)
    return float(rounded_to(kind, (root + sticky) / Fraction(2) ** 1200, rounding))


def operands_for(kind: str, count: int, number: int, seed: int) -> list[np.ndarray]:
    """Operands that meet: random patterns, close exponents, few significant bits, and the edges of the format."""
    rng = np.random.default_rng(seed)
    dtype, word = numerics.STORAGE[kind], np.dtype(f"u{numerics.STORAGE[kind].itemsize}")
    edges = np.array([0.0, 1.0, 1.5, 2.0, 3.0, 0.5, 0.1, 1 / 3], dtype)
    info = np.finfo(dtype)
    edges = np.concatenate(
        [edges, np.array([info.max, info.tiny, info.smallest_subnormal, info.eps, 1 + info.eps], dtype)]
    )
    edges = np.concatenate([edges, np.nextafter(edges, dtype.type(0)), np.nextafter(edges, dtype.type(9))])
    columns = []
    for _ in range(count):
        patterns = rng.integers(0, 2 ** (8 * word.itemsize), number, dtype=word).view(dtype)
        near = (rng.standard_normal(number) * 2.0 ** rng.integers(-3, 4, number)).astype(dtype)
        coarse = (rng.integers(-64, 65, number) * 2.0 ** rng.integers(-9, 30, number)).astype(dtype)
        small = (rng.standard_normal(number) * float(info.tiny) * 2.0 ** rng.integers(-4, 30, number)).astype(dtype)
        edge = rng.choice(edges, number) * rng.choice(np.array([-1, 1], dtype), number)
        columns.append(np.choose(rng.integers(0, 5, number), [patterns, near, coarse, small, edge]).astype(dtype))
    finite = np.logical_and.reduce([np.isfinite(column) for column in columns])
    return [column[finite] for column in columns]


ARITY = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "div": 2, "rcp": 1, "sqrt": 1}


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


def assert_same_bits(expected: np.ndarray, got: np.ndarray, columns: list[np.ndarray]) -> None:
    word = f"u{got.dtype.itemsize}"
    differ = np.flatnonzero(expected.view(word) != got.view(word))
    shown = [([column[i] for column in columns], expected[i], got[i]) for i in differ[:3]]
    assert [] == shown


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


def test_f32_nan_results_are_canonical():
    """Any NaN result of an f32 operation is 0x7fffffff."""
    nan = np.array([0xFFC00001, 0x7F800001, 0x7F800000], np.uint32).view(np.float32)
    one = np.array([1.0, 2.0, -np.inf], np.float32)
    assert [0x7FFFFFFF] * 3 == numerics.bind("add", "f32")(nan, one).view(np.uint32).tolist()


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


# --------------------------------------------------------------------------------------------------------------- halves


def half_values(kind: str) -> np.ndarray:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    tensor = torch.from_numpy(patterns.view(np.int16)).view(torch.float16 if kind == "f16" else torch.bfloat16)
    return tensor.to(torch.float64).numpy()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_decoding_equals_torch_for_every_half_pattern(kind):
    """All 65,536 patterns decode to torch's values."""
    got = numerics.decode(kind, np.arange(1 << 16, dtype=np.uint16))
    assert np.array_equal(half_values(kind), got.astype(np.float64), equal_nan=True)


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_decoding_equals_torch_for_every_byte(kind):
    """All 256 patterns decode to torch's values, NaN and infinities included."""
    patterns = np.arange(256, dtype=np.uint8)
    dtype = torch.float8_e4m3fn if kind == "e4m3" else torch.float8_e5m2
    expected = torch.from_numpy(patterns).view(dtype).to(torch.float32).numpy()
    assert np.array_equal(expected, numerics.decode(kind, patterns), equal_nan=True)


def random_floats(number: int, low: int, high: int) -> np.ndarray:
    rng = np.random.default_rng(11)
    return (rng.standard_normal(number) * 2.0 ** rng.integers(low, high, number)).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("f16", torch.float16), ("bf16", torch.bfloat16), ("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)],
)
def test_encoding_to_nearest_equals_torch(kind, dtype):
    """f32 values within range, midpoints and subnormals included, round to torch's patterns."""
    span = {"f16": (-28, 12), "bf16": (-140, 120), "e4m3": (-14, 6), "e5m2": (-20, 12)}[kind]
    middles = numerics.decode(kind, np.arange(120, dtype=numerics.STORAGE[kind])).astype(np.float64)
    middles = ((middles[1:] + middles[:-1]) / 2).astype(np.float32)
    values = np.concatenate([random_floats(20000, *span), middles, -middles])
    expected = torch.from_numpy(values).to(dtype)
    word = f"u{numerics.STORAGE[kind].itemsize}"
    expected = expected.view(torch.int16 if word == "u2" else torch.uint8).numpy().view(word)
    inside = np.abs(values) < numerics.FORMATS[kind].largest
    assert np.array_equal(expected[inside], numerics.encode(kind, values).view(word)[inside])


@pytest.mark.parametrize("rounding", [*DIRECTIONS, "rna"])
@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32", "e5m2"])
def test_encoding_rounds_once_in_every_direction(kind, rounding):
    """float32 and float64 values round as their exact fractions do, to infinity or the largest value beyond range."""
    span = {"f16": (-28, 20), "bf16": (-140, 127), "tf32": (-140, 127), "e5m2": (-20, 18)}[kind]
    single = random_floats(300, *span)
    double = single.astype(np.float64) * (1 + 2.0**-40)
    for values in (single, double):
        got = numerics.decode(kind, numerics.encode(kind, values, rounding)).astype(np.float64)
        expected = [float(rounded_to(kind, Fraction(float(v)), rounding)) for v in values]
        assert expected == got.tolist()


def test_satfinite_and_relu_follow_the_isa():
    """.satfinite clamps overflow and infinity, .relu clamps negatives, and NaN is canonical in both."""
    values = np.array([1e6, -np.inf, -1.0, np.nan, 2.0], np.float32)
    assert [0x7E, 0xFE, 0xB8, 0x7F, 0x40] == numerics.encode("e4m3", values, satfinite=True).tolist()
    assert [0x7B, 0xFB, 0xBC, 0x7F, 0x40] == numerics.encode("e5m2", values, satfinite=True).tolist()
    assert [0x7BFF, 0xFBFF, 0xBC00, 0x7FFF, 0x4000] == numerics.encode("f16", values, satfinite=True).view(
        "u2"
    ).tolist()
    assert [0x7C00, 0, 0, 0x7FFF, 0x4000] == numerics.encode("f16", values, relu=True).view("u2").tolist()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_half_operations_round_once(kind, name):
    """f16 and bf16 operations equal the exact result rounded once; packed pairs equal their halves."""
    rng = np.random.default_rng(len(name))
    columns = [rng.integers(0, 1 << 16, 3000, dtype=np.uint16) for _ in range(ARITY[name])]
    if name == "fma":  # let the addend be tiny beside a product half-way between two numbers, or cancel it
        columns[0][1000:2000] = numerics.encode(kind, 1 + rng.integers(0, 128, 1000) / 128.0).view(np.uint16)
        columns[1][1000:2000] = numerics.encode(kind, 1 + rng.integers(0, 128, 1000) / 128.0).view(np.uint16)
    values = [numerics.decode(kind, column).astype(np.float64) for column in columns]
    finite = np.logical_and.reduce([np.isfinite(v) for v in values])
    got = numerics.bind(name, kind)(*columns)
    expected = [expected_value(name, kind, list(row), "rn") for row in zip(*[v[finite] for v in values], strict=True)]
    assert_same_bits(numerics.encode(kind, np.array(expected)), got[finite], [v[finite] for v in values])
    pairs = [column.view(np.uint32) for column in columns]
    assert np.array_equal(got.view(np.uint32), numerics.bind(name, f"{kind}x2")(*pairs))


def test_half_modifiers():
    """.sat, .relu and .ftz of f16 do what they say."""
    a = np.array([-2.0, 0.5, 3.0, np.nan, 2.0**-20], np.float16)
    zero = np.zeros(5, np.float16)
    assert [0, 0.5, 1, 0, 2.0**-20] == numerics.bind("add", "f16", sat=True)(a, zero).tolist()
    relu = numerics.bind("fma", "f16", relu=True)(a, np.ones(5, np.float16), zero).view(np.uint16)
    assert [0, 0x3800, 0x4200, 0x7FFF, 0x0010] == relu.tolist()
    assert 0 == numerics.bind("add", "f16", ftz=True)(a, zero)[4]


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16", "f16x2"])
def test_extremes_order_zeros_and_treat_nan_as_the_isa_says(kind):
    """min and max give the number beside a NaN, -0 < +0, .NaN gives NaN, .xorsign.abs compares magnitudes."""
    base = kind.removesuffix("x2")
    a = numerics.encode(base, np.array([-0.0, 0.0, np.nan, 1.0, -3.0, np.nan]))
    b = numerics.encode(base, np.array([0.0, -0.0, 2.0, np.nan, 2.0, np.nan]))
    run = lambda name, **how: _extreme(name, kind, base, a, b, **how)  # noqa: E731
    assert [-0.0, -0.0, 2.0, 1.0, -3.0] == run("min")[:5] and np.signbit(run("min")[:2]).all()
    assert [0.0, 0.0, 2.0, 1.0, 2.0] == run("max")[:5] and not np.signbit(run("max")[:2]).any()
    assert math.isnan(run("min")[5])
    assert [False, False, True, True, False, True] == np.isnan(run("max", nan=True)).tolist()
    assert -3.0 == run("max", xorsign=True)[4] and -2.0 == run("min", xorsign=True)[4]


def _extreme(name, kind, base, a, b, **how):
    if kind.endswith("x2"):
        a, b = (x.view(np.uint32) for x in (a, b))
    got = numerics.bind_extreme(name, kind, **how)(a, b)
    return numerics.decode(base, got.view(numerics.STORAGE[base])).tolist()


# ---------------------------------------------------------------------------------------------------------- conversions


@pytest.mark.parametrize("rounding", DIRECTIONS)
@pytest.mark.parametrize("source", ["s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("to", ["f16", "f32", "f64"])
def test_integers_round_once_to_floats(source, to, rounding):
    """Integers of every size, the extreme ones included, round exactly in every direction."""
    rng = np.random.default_rng(5)
    info = np.iinfo(numerics.STORAGE[source])
    wide = rng.integers(info.min, info.max, 200, dtype=info.dtype, endpoint=True) >> rng.integers(0, 30, 200).astype(
        info.dtype
    )
    edges = [info.min, info.max, info.max - 1, 0, 1, info.max // 2 + 1, (1 << 24) + 1, min(info.max, (1 << 53) + 1)]
    values = np.concatenate([wide, np.array(edges, info.dtype)])
    got = numerics.decode(to, numerics.convert(to, source, values, rounding)).astype(np.float64)
    assert [float(rounded_to(to, Fraction(int(v)), rounding)) for v in values] == got.tolist()


@pytest.mark.parametrize(
    ("rounding", "function"), [("rni", round), ("rzi", math.trunc), ("rmi", math.floor), ("rpi", math.ceil)]
)
@pytest.mark.parametrize("to", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
def test_floats_round_and_clamp_to_integers(source, to, rounding, function):
    """Floats round in the four ways and clamp to the target's range; infinities clamp too."""
    info = np.iinfo(numerics.STORAGE[to])
    values = np.concatenate(
        [random_floats(200, -3, 70), [0.5, 1.5, 2.5, -0.5, -1.5, 255.5, 2.0**31, -(2.0**63), 2.0**64]]
    )
    patterns = numerics.encode(source, np.concatenate([values, [np.inf, -np.inf]]))
    exact_values = numerics.decode(source, patterns).astype(np.float64)
    got = numerics.convert(to, source, patterns, rounding)
    clamp = lambda v: (
        info.max if v == math.inf else info.min if v == -math.inf else min(max(function(v), info.min), info.max)
    )  # noqa: E731
    assert [clamp(float(v)) for v in exact_values] == got.tolist()


def test_nan_becomes_zero_or_the_top_bit():
    """NaN converts to 0, or to the top bit alone from f64 or to 64 bits."""
    single, double = np.array([np.nan], np.float32), np.array([np.nan])
    assert [0, 0, 1 << 63, 1 << 31] == [
        int(numerics.convert("s32", "f32", single, "rni")[0]),
        int(numerics.convert("u16", "f32", single, "rzi")[0]),
        int(numerics.convert("u64", "f32", single, "rzi")[0]),
        int(numerics.convert("u32", "f64", double, "rzi")[0]),
    ]
    assert -(1 << 63) == numerics.convert("s64", "f64", double, "rzi")[0]


def test_integer_conversions_wrap_or_saturate():
    """Integers wrap to a narrower type and clamp with .sat."""
    values = np.array([-5, 300, 70000, -70000], np.int32)
    assert values.astype(np.uint8).tolist() == numerics.convert("u8", "s32", values).tolist()
    assert [0, 255, 255, 0] == numerics.convert("u8", "s32", values, sat=True).tolist()
    assert [0, 300, 70000, 0] == numerics.convert("u64", "s32", values, sat=True).tolist()


def test_float_conversions_with_integer_rounding_flush_and_sat():
    """cvt.rni.f32.f32 gives integral values with the sign kept; .ftz and .sat apply to f32."""
    values = np.array([2.5, -0.4, 2.0**-130, 7.0, np.nan], np.float32)
    got = numerics.convert("f32", "f32", values, "rni")
    assert_same_bits(np.array([2, -0.0, 0, 7], np.float32), got[:4], [values[:4]])
    assert 0 == numerics.convert("f64", "f32", values, ftz=True)[2]
    assert [1, 0, 2.0**-130, 1, 0] == numerics.convert("f32", "f32", values, sat=True).tolist()


@pytest.mark.parametrize("to", ["f16x2", "bf16x2", "e4m3x2", "e5m2x2"])
def test_packing_puts_the_first_operand_into_the_upper_half(to):
    """cvt.x2 d, a, b holds a above b, and converting back in pairs gives both."""
    element = to.removesuffix("x2")
    high, low = np.array([1.0, -2.0], np.float32), np.array([0.5, 4.0], np.float32)
    packed = numerics.convert_pair(to, "f32", high, low, satfinite=True)
    parts = packed.view(f"u{packed.dtype.itemsize // 2}").reshape(-1, 2)
    assert high.tolist() == numerics.decode(element, np.ascontiguousarray(parts[:, 1])).tolist()
    assert low.tolist() == numerics.decode(element, np.ascontiguousarray(parts[:, 0])).tolist()
    if element[0] == "e":
        halves = numerics.convert_packed("f16x2", to, packed).view(np.float16).reshape(-1, 2)
        assert [[0.5, 1.0], [4.0, -2.0]] == halves.tolist()
        assert (
            packed.tolist()
            == numerics.convert_packed(to, "f16x2", halves.view(np.uint32)[:, 0], satfinite=True).tolist()
        )


# ------------------------------------------------------------------------------------------------------- approximations

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
    got = numerics.bind(name, "f32", approx=True)(values)
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
    got = numerics.bind(name, "f32", approx=True)(np.array(inputs, np.float32))
    expected = np.array(results, np.float32)
    expected.view(np.uint32)[np.isnan(expected)] = 0x7FFFFFFF
    assert_same_bits(expected, got, [np.array(inputs)])


def test_fast_division_flushes_huge_divisors():
    """div.approx by more than 2^126 is zero, or NaN for an infinite dividend; div.full is not."""
    a, b = np.array([1.0, np.inf, -8.0], np.float32), np.array([2.0**127, 2.0**127, 4.0], np.float32)
    assert [0.0, True, -2.0] == [
        (v if v == v else True) for v in numerics.bind("div", "f32", approx=True)(a, b).tolist()
    ]
    assert 2.0**-127 == numerics.bind("div.full", "f32", approx=True)(a, b)[0]


@pytest.mark.parametrize("kind", ["f16", "bf16", "f16x2"])
def test_half_exponential_and_tangent(kind):
    """ex2 and tanh of the half formats are the function rounded once."""
    base = kind.removesuffix("x2")
    values = np.linspace(-8, 8, 64)
    patterns = numerics.encode(base, values)
    operand = patterns.view(np.uint32) if kind != base else patterns
    for name, function in (("ex2", np.exp2), ("tanh", np.tanh)):
        got = numerics.bind(name, kind, approx=True)(operand).view(patterns.dtype)
        expected = numerics.encode(base, function(numerics.decode(base, patterns).astype(np.float64)))
        assert np.array_equal(expected, got)


def test_gross_f64_reciprocal_has_an_empty_lower_word():
    """rcp.approx.ftz.f64 keeps 20 bits of fraction and clears the lower word."""
    values = np.array([3.0, -7.5, 1e300, 0.0, 1e-320])
    got = numerics.bind("rcp", "f64", approx=True)(values)
    assert [0] * 5 == (got.view(np.uint64) & np.uint64(0xFFFFFFFF)).tolist()
    assert np.allclose(1 / values[:3], got[:3], rtol=2.0**-20)
    assert [np.inf, np.inf] == got[3:].tolist()


# ------------------------------------------------------------------------------------------------------------- integers


def u32(*values: int) -> list[np.ndarray]:
    return [np.array([value], np.uint32) for value in values]


@given(a=WORDS, b=WORDS, c=WORDS, lut=st.integers(0, 255))
def test_lop3_applies_its_table_to_every_bit(a, b, c, lut):
    """lop3 is the sum of the table's minterms."""
    expected = 0
    for index in range(8):
        if lut >> index & 1:
            terms = [x if index >> (2 - place) & 1 else ~x for place, x in enumerate((a, b, c))]
            expected |= terms[0] & terms[1] & terms[2]
    assert expected & 0xFFFFFFFF == numerics.lop3(lut)(*u32(a, b, c))[0]


def test_lop3_has_every_table():
    """All 256 tables are the function of 0xF0, 0xCC and 0xAA that they are named after."""
    for lut in range(256):
        assert lut == numerics.lop3(lut)(*u32(0xF0, 0xCC, 0xAA))[0] & 0xFF
    with pytest.raises(InternalError, match="256"):
        numerics.lop3(256)


@given(a=WORDS, b=WORDS, selector=st.integers(0, 0xFFFF))
def test_prmt_picks_bytes(a, b, selector):
    """Each selector takes a byte of {b, a}, or replicates its sign; constant and varying selectors agree."""
    source = (a | b << 32).to_bytes(8, "little")
    expected = []
    for place in range(4):
        code = selector >> (4 * place) & 15
        byte = source[code & 7]
        expected.append((0xFF if byte > 127 else 0) if code > 7 else byte)
    wanted = int.from_bytes(bytes(expected), "little")
    assert wanted == numerics.prmt(*u32(a, b), selector)[0]
    assert wanted == numerics.prmt(*u32(a, b, selector))[0]


def test_prmt_modes_follow_their_definitions():
    """The named modes rotate, replicate and clamp as the ISA's table says."""
    a, b = u32(0x03020100, 0x07060504)
    seen = {
        mode: [int(numerics.prmt(a, b, c, mode)[0]) for c in range(4)]
        for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    }
    assert seen == {
        "f4e": [0x03020100, 0x04030201, 0x05040302, 0x06050403],
        "b4e": [0x05060700, 0x06070001, 0x07000102, 0x00010203],
        "rc8": [0x00000000, 0x01010101, 0x02020202, 0x03030303],
        "ecl": [0x03020100, 0x03020101, 0x03020202, 0x03030303],
        "ecr": [0x00000000, 0x01010100, 0x02020100, 0x03020100],
        "rc16": [0x01000100, 0x03020302, 0x01000100, 0x03020302],
    }
    assert seen["ecl"] == [int(numerics.prmt(a, b, np.array([c], np.uint32), "ecl")[0]) for c in range(4)]


def bfe_truth(a: int, position: int, length: int, width: int, signed: bool) -> int:
    """The ISA's pseudo-code of `bfe`."""
    bits = [a >> i & 1 for i in range(width)]
    sign = 0 if not signed or length == 0 else bits[min(position + length - 1, width - 1)]
    result = sum((sign if i >= length or position + i >= width else bits[position + i]) << i for i in range(width))
    return result - (result >> (width - 1) << width) if signed else result


@given(
    a=st.integers(0, 2**64 - 1),
    position=st.integers(0, 255),
    length=st.integers(0, 255),
    kind=st.sampled_from(["u4", "i4", "u8", "i8"]),
)
def test_bit_fields_follow_the_pseudo_code(a, position, length, kind):
    """bfe extracts and bfi inserts as the ISA's loops over bits do."""
    width = 8 * int(kind[1])
    a &= (1 << width) - 1
    array = np.array([a], f"u{kind[1]}").view(kind)
    assert bfe_truth(a, position, length, width, kind[0] == "i") == int(numerics.bfe(array, position, length)[0])
    target = (a * 0x9E3779B97F4A7C15) & ((1 << width) - 1)
    expected = target
    for i in range(length):
        if position + i < width:
            expected = expected & ~(1 << (position + i)) | (a >> i & 1 if i < width else 0) << (position + i)
    word = f"u{kind[1]}"
    assert expected == int(numerics.bfi(np.array([a], word), np.array([target], word), position, length)[0])


@given(a=st.integers(0, 2**64 - 1), kind=st.sampled_from(["u4", "i4", "u8", "i8"]))
def test_bit_searches_and_counts(a, kind):
    """clz, popc, brev and bfind equal their definitions on binary digits."""
    width = 8 * int(kind[1])
    a &= (1 << width) - 1
    array = np.array([a], f"u{kind[1]}")
    digits = f"{a:0{width}b}"
    assert len(digits) - len(digits.lstrip("0")) == numerics.clz(array)[0]
    assert digits.count("1") == numerics.popc(array)[0]
    assert int(digits[::-1], 2) == int(numerics.brev(array)[0])
    sought = "0" if kind[0] == "i" and digits[0] == "1" else "1"
    place = digits.find(sought)
    expected = 0xFFFFFFFF if place < 0 else width - 1 - place
    assert expected == numerics.bfind(array.view(kind))[0]
    assert (0xFFFFFFFF if place < 0 else place) == numerics.bfind(array.view(kind), shiftamt=True)[0]


@given(a=WORDS, b=WORDS, count=WORDS)
def test_funnel_shifts(a, b, count):
    """shf keeps the upper or lower half of {b, a} shifted, its count wrapped or clamped."""
    wide = a | b << 32
    for clamp, n in ((False, count & 31), (True, min(count, 32))):
        amount = np.array([count], np.uint32)
        assert (wide << n) >> 32 & 0xFFFFFFFF == numerics.shf("l", *u32(a, b), amount, clamp=clamp)[0]
        assert wide >> n & 0xFFFFFFFF == numerics.shf("r", *u32(a, b), amount, clamp=clamp)[0]


@given(
    a=st.integers(0, 2**64 - 1), b=st.integers(0, 2**64 - 1), kind=st.sampled_from(["u2", "i2", "u4", "i4", "u8", "i8"])
)
def test_upper_halves_of_products(a, b, kind):
    """mul.hi equals the upper half of Python's product, signed and unsigned, up to 64 bits."""
    x, y = (np.array([v & (1 << 8 * int(kind[1])) - 1], f"u{kind[1]}").view(kind) for v in (a, b))
    assert int(x[0]) * int(y[0]) >> 8 * int(kind[1]) == int(numerics.mul_hi(x, y)[0])


def low(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (value >> (bits - 1) << bits) if signed else value


@given(a=WORDS, b=WORDS, c=WORDS, signed_a=st.booleans(), signed_b=st.booleans())
def test_dot_products_of_bytes_and_halves(a, b, c, signed_a, signed_b):
    """dp4a and dp2a equal sums over bytes with independent signs, wrapping at 32 bits."""
    x, y = (np.array([v], np.uint32).view(np.int32 if s else np.uint32) for v, s in ((a, signed_a), (b, signed_b)))
    left = [low(a >> 8 * i, 8, signed_a) for i in range(4)]
    right = [low(b >> 8 * i, 8, signed_b) for i in range(4)]
    wrap = lambda total: low(total, 32, signed_a or signed_b)  # noqa: E731
    addend = np.array([c], np.uint32)
    assert wrap(c + sum(p * q for p, q in zip(left, right, strict=True))) == int(numerics.dp4a(x, y, addend)[0])
    halves = [low(a >> 16 * i, 16, signed_a) for i in range(2)]
    assert wrap(c + halves[0] * right[0] + halves[1] * right[1]) == int(numerics.dp2a(x, y, addend)[0])
    assert wrap(c + halves[0] * right[2] + halves[1] * right[3]) == int(numerics.dp2a(x, y, addend, high=True)[0])


@given(a=WORDS, b=WORDS, c=WORDS, signed=st.booleans())
def test_small_integer_arithmetic(a, b, c, signed):
    """mul24, sad and saturating sums equal Python's integers cut to 32 bits."""
    kind = np.int32 if signed else np.uint32
    x, y, z = (np.array([v], np.uint32).view(kind) for v in (a, b, c))
    product = low(a, 24, signed) * low(b, 24, signed)
    assert low(product, 32, signed) == int(numerics.mul24(x, y)[0])
    assert low(product >> 16, 32, signed) == int(numerics.mul24(x, y, high=True)[0])
    assert low(int(z[0]) + abs(int(x[0]) - int(y[0])), 32, signed) == int(numerics.sad(x, y, z)[0])
    if signed:
        for name, total in (("add", int(x[0]) + int(y[0])), ("sub", int(x[0]) - int(y[0]))):
            assert min(max(total, -(2**31)), 2**31 - 1) == int(numerics.saturated(name, x, y)[0])


# ----------------------------------------------------------------------------------------------------------------- laws


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
def test_directions_enclose_the_nearest_result(a, b, c):
    """Rounding down, to nearest and up are in order, and to zero is one of the outer two."""
    columns = [np.array([v], np.float32) for v in (a, b, c)]
    down, nearest, up, zero = (numerics.bind("fma", "f32", rounding=r)(*columns)[0] for r in ("rm", "rn", "rp", "rz"))
    if not np.isnan(nearest):
        assert down <= nearest <= up
        assert zero in (down, up)


@given(st.sampled_from(["f16", "bf16", "tf32", "e4m3", "e5m2"]), st.integers(0, 2**32 - 1), st.sampled_from(DIRECTIONS))
def test_representable_values_survive_every_rounding(kind, pattern, rounding):
    """encode gives decode's patterns back, except for the payload of NaN."""
    dtype = numerics.STORAGE[kind]
    bits = np.array([pattern & (0xFFFFE000 if kind == "tf32" else 0xFFFFFFFF)], np.uint32).astype(f"u{dtype.itemsize}")
    values = numerics.decode(kind, bits)
    back = numerics.encode(kind, values, rounding).view(bits.dtype)
    assert (numerics.CANONICAL_NAN[kind] if np.isnan(values[0]) else bits[0]) == back[0]


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
