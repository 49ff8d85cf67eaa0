"""Number formats of PTX, their arithmetic and conversions, against torch's conversions and exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rounding_truth import ARITY, DIRECTIONS, assert_same_bits, expected_value, random_floats, rounded_to

from evokern.simt import numerics


@pytest.fixture(autouse=True)
def _quiet():
    with numerics.ignore_float_warnings():
        yield


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
@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32", "e4m3", "e5m2"])
def test_encoding_rounds_once_in_every_direction(kind, rounding):
    """float32 and float64 values round as their exact fractions do, to infinity or the largest value beyond range."""
    span = {"f16": (-28, 20), "bf16": (-140, 127), "tf32": (-140, 127), "e5m2": (-20, 18), "e4m3": (-14, 6)}[kind]
    single = random_floats(300, *span)
    double = single.astype(np.float64) * (1 + 2.0**-40)
    for values in (single, double):
        got = numerics.decode(kind, numerics.encode(kind, values, rounding)).astype(np.float64)
        expected = [float(rounded_to(kind, Fraction(float(v)), rounding)) for v in values]
        assert expected == got.tolist()


def test_satfinite_and_relu_follow_the_isa():
    """.satfinite clamps overflow and infinity, .relu clamps negatives, and NaN is canonical in both."""
    values = np.array([1e6, -np.inf, -1.0, np.nan, 2.0], np.float32)
    assert numerics.encode("e4m3", values, satfinite=True).tolist() == [0x7E, 0xFE, 0xB8, 0x7F, 0x40]
    assert numerics.encode("e5m2", values, satfinite=True).tolist() == [0x7B, 0xFB, 0xBC, 0x7F, 0x40]
    assert numerics.encode("f16", values, satfinite=True).view("u2").tolist() == [
        0x7BFF,
        0xFBFF,
        0xBC00,
        0x7FFF,
        0x4000,
    ]
    assert numerics.encode("f16", values, relu=True).view("u2").tolist() == [0x7C00, 0, 0, 0x7FFF, 0x4000]


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
    assert numerics.bind("add", "f16", sat=True)(a, zero).tolist() == [0, 0.5, 1, 0, 2.0**-20]
    relu = numerics.bind("fma", "f16", relu=True)(a, np.ones(5, np.float16), zero).view(np.uint16)
    assert relu.tolist() == [0, 0x3800, 0x4200, 0x7FFF, 0x0010]
    assert numerics.bind("add", "f16", ftz=True)(a, zero)[4] == 0


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16", "f16x2"])
def test_extremes_order_zeros_and_treat_nan_as_the_isa_says(kind):
    """Beside a NaN stands the number, -0 < +0, .NaN gives NaN, and .xorsign.abs compares magnitudes."""
    base = kind.removesuffix("x2")
    a = numerics.encode(base, np.array([-0.0, 0.0, np.nan, 1.0, -3.0, np.nan]))
    b = numerics.encode(base, np.array([0.0, -0.0, 2.0, np.nan, 2.0, np.nan]))

    def run(name, **how):
        return _extreme(name, kind, base, a, b, **how)

    assert run("min")[:5] == [-0.0, -0.0, 2.0, 1.0, -3.0] and np.signbit(run("min")[:2]).all()
    assert run("max")[:5] == [0.0, 0.0, 2.0, 1.0, 2.0] and not np.signbit(run("max")[:2]).any()
    assert math.isnan(run("min")[5])
    assert np.isnan(run("max", nan=True)).tolist() == [False, False, True, True, False, True]
    assert run("max", xorsign=True)[4] == -3.0 and run("min", xorsign=True)[4] == -2.0


def _extreme(name, kind, base, a, b, **how):
    if kind.endswith("x2"):
        a, b = (x.view(np.uint32) for x in (a, b))
    got = numerics.bind_min_max(name, kind, **how)(a, b)
    return numerics.decode(base, got.view(numerics.STORAGE[base])).tolist()


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

    def clamp(v):
        if math.isinf(v):
            return info.max if v > 0 else info.min
        return min(max(function(v), info.min), info.max)

    assert [clamp(float(v)) for v in exact_values] == got.tolist()


def test_nan_becomes_zero_or_the_top_bit():
    """NaN converts to 0, or to the top bit alone from f64 or to 64 bits."""
    single, double = np.array([np.nan], np.float32), np.array([np.nan])
    assert [
        int(numerics.convert("s32", "f32", single, "rni")[0]),
        int(numerics.convert("u16", "f32", single, "rzi")[0]),
        int(numerics.convert("u64", "f32", single, "rzi")[0]),
        int(numerics.convert("u32", "f64", double, "rzi")[0]),
    ] == [0, 0, 1 << 63, 1 << 31]
    assert numerics.convert("s64", "f64", double, "rzi")[0] == -(1 << 63)


def test_integer_conversions_wrap_or_saturate():
    """Integers wrap to a narrower type and clamp with .sat."""
    values = np.array([-5, 300, 70000, -70000], np.int32)
    assert values.astype(np.uint8).tolist() == numerics.convert("u8", "s32", values).tolist()
    assert numerics.convert("u8", "s32", values, clamps=("sat",)).tolist() == [0, 255, 255, 0]
    assert numerics.convert("u64", "s32", values, clamps=("sat",)).tolist() == [0, 300, 70000, 0]


def test_float_conversions_with_integer_rounding_flush_and_sat():
    """cvt.rni.f32.f32 gives integral values with the sign kept; .ftz and .sat apply to f32."""
    values = np.array([2.5, -0.4, 2.0**-130, 7.0, np.nan], np.float32)
    got = numerics.convert("f32", "f32", values, "rni")
    assert_same_bits(np.array([2, -0.0, 0, 7], np.float32), got[:4], [values[:4]])
    assert numerics.convert("f64", "f32", values, ftz=True)[2] == 0
    assert numerics.convert("f32", "f32", values, clamps=("sat",)).tolist() == [1, 0, 2.0**-130, 1, 0]


@pytest.mark.parametrize("to", ["f16x2", "bf16x2", "e4m3x2", "e5m2x2"])
def test_packing_puts_the_first_operand_into_the_upper_half(to):
    """cvt.x2 d, a, b holds a above b, and converting back in pairs gives both."""
    element = to.removesuffix("x2")
    high, low = np.array([1.0, -2.0], np.float32), np.array([0.5, 4.0], np.float32)
    packed = numerics.convert_pair(to, "f32", high, low, clamps=("satfinite",))
    parts = packed.view(f"u{packed.dtype.itemsize // 2}").reshape(-1, 2)
    assert high.tolist() == numerics.decode(element, np.ascontiguousarray(parts[:, 1])).tolist()
    assert low.tolist() == numerics.decode(element, np.ascontiguousarray(parts[:, 0])).tolist()
    if element[0] == "e":
        halves = numerics.convert_packed("f16x2", to, packed).view(np.float16).reshape(-1, 2)
        assert halves.tolist() == [[0.5, 1.0], [4.0, -2.0]]
        assert (
            packed.tolist()
            == numerics.convert_packed(to, "f16x2", halves.view(np.uint32)[:, 0], clamps=("satfinite",)).tolist()
        )


@given(st.sampled_from(["f16", "bf16", "tf32", "e4m3", "e5m2"]), st.integers(0, 2**32 - 1), st.sampled_from(DIRECTIONS))
def test_representable_values_survive_every_rounding(kind, pattern, rounding):
    """What decode gives, encode gives back, except for the payload of NaN."""
    dtype = numerics.STORAGE[kind]
    bits = np.array([pattern & (0xFFFFE000 if kind == "tf32" else 0xFFFFFFFF)], np.uint32).astype(f"u{dtype.itemsize}")
    values = numerics.decode(kind, bits)
    back = numerics.encode(kind, values, rounding).view(bits.dtype)
    assert (numerics.CANONICAL_NAN[kind] if np.isnan(values[0]) else bits[0]) == back[0]
