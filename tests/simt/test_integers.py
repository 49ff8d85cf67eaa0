"""Integer and bit operations of PTX over lanes, against definitions on Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evokern.errors import InternalError
from evokern.simt import numerics

WORDS = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True)
def _quiet():
    with numerics.ignore_float_warnings():
        yield


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
    """Fields: bfe extracts and bfi inserts as the ISA's loops over bits do."""
    width = 8 * int(kind[1])
    a &= (1 << width) - 1
    array = np.array([a], f"u{kind[1]}").view(kind)
    many = [np.array([x, x], np.uint32) for x in (position, length)]
    extracted = bfe_truth(a, position, length, width, kind[0] == "i")
    assert numerics.bfe(array, position, length).tolist() == [extracted]
    assert numerics.bfe(np.repeat(array, 2), *many).tolist() == [extracted] * 2
    target = (a * 0x9E3779B97F4A7C15) & ((1 << width) - 1)
    expected = target
    for i in range(length):
        if position + i < width:
            expected = expected & ~(1 << (position + i)) | (a >> i & 1 if i < width else 0) << (position + i)
    word = f"u{kind[1]}"
    source, into = np.array([a, a], word), np.array([target, target], word)
    assert numerics.bfi(source[:1], into[:1], position, length).tolist() == [expected]
    assert numerics.bfi(source, into, *many).tolist() == [expected] * 2


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
    """Funnels: shf keeps the upper or lower half of {b, a} shifted, its count wrapped or clamped."""
    wide = a | b << 32
    for clamp, n in ((False, count & 31), (True, min(count, 32))):
        many = np.array([count, count], np.uint32)
        pair = [np.repeat(x, 2) for x in u32(a, b)]
        assert numerics.shf("l", *pair, many, clamp=clamp).tolist() == 2 * [(wide << n) >> 32 & 0xFFFFFFFF]
        assert numerics.shf("r", *pair, many, clamp=clamp).tolist() == 2 * [wide >> n & 0xFFFFFFFF]
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

    def wrap(total):
        return low(total, 32, signed_a or signed_b)

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
