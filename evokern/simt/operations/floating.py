"""Floating-point arithmetic in all formats (PTX ISA 9.7.3, 9.7.4, 9.7.5)."""

from __future__ import annotations

from functools import partial

import numpy as np

from evokern.ptx.syntax import Instruction
from evokern.ptx.unsupported import Unsupported
from evokern.simt import numerics
from evokern.simt.arrays import Action
from evokern.simt.binder import Binder
from evokern.simt.operations.integer import assign, kind_of
from evokern.simt.operations.table import operation

_ROUNDINGS = ("rn", "rz", "rm", "rp")
_PLAIN = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def _rounding(i: Instruction) -> str:
    return "approx" if i.has("approx", "full") else next((word for word in i.modifiers if word in _ROUNDINGS), "rn")


@operation("add sub mul", "9.7.3.3-5", family="float", pipe="fp32")
def arithmetic(i: Instruction, b: Binder) -> Action:
    """Compute a sum, difference or product with one rounding."""
    kind = kind_of(i)
    if "f32" in i.modifiers[:-1] or "f16" in i.modifiers or "bf16" in i.modifiers:
        raise Unsupported(f"mixed-precision {i.name}")
    x, y = (b.src(operand, kind) for operand in i.operands[1:3])
    out = b.dst(i.operands[0], kind)
    rounding = _rounding(i)
    if rounding == "rn" and not i.has("ftz", "sat"):
        return partial(_PLAIN[i.opcode], x, y, out)
    return assign(out, numerics.bind(i.opcode, kind, rounding=rounding, ftz=i.has("ftz"), sat=i.has("sat")), x, y)


@operation("fma mad", "9.7.3.6-7", family="float", pipe="fp32")
def fma(i: Instruction, b: Binder) -> Action:
    """Compute a product plus a sum with one rounding."""
    kind = kind_of(i)
    x, y, z = (b.src(operand, kind) for operand in i.operands[1:4])
    function = numerics.bind("fma", kind, rounding=_rounding(i), ftz=i.has("ftz"), sat=i.has("sat"))
    return assign(b.dst(i.operands[0], kind), function, x, y, z)


@operation("div", "9.7.3.8", family="float", pipe="fp32")
def div(i: Instruction, b: Binder) -> Action:
    """Compute a quotient, which is exactly rounded unless ``.full`` or ``.approx`` is present."""
    kind = kind_of(i)
    x, y = (b.src(operand, kind) for operand in i.operands[1:3])
    name = "div.full" if i.has("full") else "div"
    function = numerics.bind(name, kind, rounding=_rounding(i), ftz=i.has("ftz"))
    return assign(b.dst(i.operands[0], kind), function, x, y)


@operation("rcp sqrt", "9.7.3.13, 9.7.3.15", family="float", pipe="sfu")
def root(i: Instruction, b: Binder) -> Action:
    """Compute a reciprocal or square root, which is exactly rounded unless ``.approx`` is present."""
    kind = kind_of(i)
    function = numerics.bind(i.opcode, kind, rounding=_rounding(i), ftz=i.has("ftz"))
    return assign(b.dst(i.operands[0], kind), function, b.src(i.operands[1], kind))


@operation("rsqrt sin cos lg2 ex2 tanh", "9.7.3.16-22", family="float", pipe="sfu")
def approximation(i: Instruction, b: Binder) -> Action:
    """Compute a function that chips only approximate, within the error bounds of the ISA."""
    kind = kind_of(i)
    function = numerics.bind(i.opcode, kind, rounding="approx", ftz=i.has("ftz"))
    return assign(b.dst(i.operands[0], kind), function, b.src(i.operands[1], kind))


@operation("ex2 tanh", "9.7.4.9-10", family="half", pipe="sfu")
def half_approximation(i: Instruction, b: Binder) -> Action:
    """Compute the base-2 exponential or hyperbolic tangent of halves."""
    return approximation(i, b)


@operation("abs neg", "9.7.3.9-10", family="float", pipe="fp32")
def sign(i: Instruction, b: Binder) -> Action:
    """Compute an absolute value or negation; only the sign bit changes, unless ``.ftz`` flushes."""
    kind = kind_of(i)
    x, out = b.src(i.operands[1], kind), b.dst(i.operands[0], kind)
    function = np.absolute if i.opcode == "abs" else np.negative
    if i.has("ftz"):
        return assign(out, lambda: function(numerics.flush(x)))
    return partial(function, x, out)


@operation("abs neg", "9.7.4.5-6", family="half", pipe="fp16")
def half_sign(i: Instruction, b: Binder) -> Action:
    """Compute an absolute value or negation of halves; only the sign bit changes, unless ``.ftz`` flushes."""
    kind = kind_of(i)
    bits = "u32" if kind.endswith("x2") else "u16"
    mask = {"u32": 0x7FFF7FFF, "u16": 0x7FFF}[bits]
    x, out = b.src(i.operands[1], bits), b.dst(i.operands[0], bits)
    function = np.bitwise_and if i.opcode == "abs" else np.bitwise_xor
    pattern = np.array([mask if i.opcode == "abs" else mask ^ (0xFFFFFFFF if bits == "u32" else 0xFFFF)], x.dtype)
    if i.has("ftz"):
        one = np.array([0x3C003C00 if bits == "u32" else 0x3C00], x.dtype)
        flushed = numerics.bind("mul", kind, ftz=True)
        return assign(out, lambda: function(flushed(x, one).view(x.dtype), pattern))
    return partial(function, x, pattern, out)


@operation("min max", "9.7.3.11-12", family="float", pipe="fp32")
def extreme(i: Instruction, b: Binder) -> Action:
    """Compute a minimum or maximum; a number takes precedence over NaN unless ``.NaN`` is present."""
    return _extreme(i, b)


@operation("min max", "9.7.4.7-8", family="half", pipe="fp16")
def half_extreme(i: Instruction, b: Binder) -> Action:
    """Compute a minimum or maximum of halves."""
    return _extreme(i, b)


def _extreme(i: Instruction, b: Binder) -> Action:
    kind = kind_of(i)
    sources = [b.src(operand, kind) for operand in i.operands[1:]]
    function = numerics.bind_min_max(i.opcode, kind, ftz=i.has("ftz"), nan=i.has("NaN"), xorsign=i.has("xorsign"))
    out = b.dst(i.operands[0], kind)
    if len(sources) == 3:
        return assign(out, lambda: function(function(sources[0], sources[1]), sources[2]))
    return assign(out, function, *sources)


@operation("copysign", "9.7.3.2", family="float", pipe="fp32")
def copysign(i: Instruction, b: Binder) -> Action:
    """Compute the second operand with the sign of the first."""
    kind = kind_of(i)
    sign_of, value = b.src(i.operands[1], kind), b.src(i.operands[2], kind)
    return partial(np.copysign, value, sign_of, b.dst(i.operands[0], kind))


@operation("testp", "9.7.3.1", family="float", pipe="fp32")
def testp(i: Instruction, b: Binder) -> Action:
    """Test the class of a number."""
    kind = kind_of(i)
    x = b.src(i.operands[1], kind)
    tiny = np.finfo(x.dtype).tiny
    tests = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda v: ~np.isnan(v),
        "notanumber": np.isnan,
        "normal": lambda v: np.isfinite(v) & ((np.abs(v) >= tiny) | (v == 0)),
        "subnormal": lambda v: (np.abs(v) < tiny) & (v != 0),
    }
    return assign(b.dst(i.operands[0], "pred"), tests[i.modifiers[0]], x)


@operation("add sub mul fma", "9.7.4.1-4", family="half", pipe="fp16")
def half_arithmetic(i: Instruction, b: Binder) -> Action:
    """Compute a sum, difference, product or multiply-add of halves with one rounding."""
    kind = kind_of(i)
    if i.has("oob"):
        raise Unsupported(f"{i.name}")
    sources = [b.src(operand, kind) for operand in i.operands[1:]]
    function = numerics.bind(i.opcode, kind, ftz=i.has("ftz"), sat=i.has("sat"), relu=i.has("relu"))
    return assign(b.dst(i.operands[0], kind), function, *sources)
