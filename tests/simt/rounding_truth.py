"""Independent truth for rounded arithmetic: exact fractions, rounded from the definition in IEEE 754."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from evokern.simt import numerics

DIRECTIONS = ("rn", "rz", "rm", "rp")


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
PARAMETERS |= {"f16": (11, -14, 15), "e5m2": (3, -14, 15), "e4m3": (4, -6, 8)}


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


def assert_same_bits(expected: np.ndarray, got: np.ndarray, columns: list[np.ndarray]) -> None:
    word = f"u{got.dtype.itemsize}"
    differ = np.flatnonzero(expected.view(word) != got.view(word))
    shown = [([column[i] for column in columns], expected[i], got[i]) for i in differ[:3]]
    assert shown == []


def random_floats(number: int, low: int, high: int) -> np.ndarray:
    rng = np.random.default_rng(11)
    return (rng.standard_normal(number) * 2.0 ** rng.integers(low, high, number)).astype(np.float32)
