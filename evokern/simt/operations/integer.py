"""Integer arithmetic, bit fields, logic and shifts (PTX ISA 9.7.1, 9.7.2, 9.7.8)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from evokern.ptx.instruction_set import data_type
from evokern.ptx.syntax import TYPE_BYTES, Immediate, Instruction
from evokern.ptx.unsupported import Unsupported
from evokern.simt import numerics
from evokern.simt.arrays import DTYPES, Action, Array
from evokern.simt.binder import Binder
from evokern.simt.operations.table import operation


def kind_of(instruction: Instruction) -> str:
    """Return the instruction's data type."""
    kind = data_type(instruction)
    if kind is None:
        raise Unsupported(f"{instruction.name} has no type")
    return kind


def assign(out: Array, function: Any, *sources: Any) -> Action:
    """Return a step that stores the result of a function of rows."""

    def run() -> None:
        out[...] = function(*sources)

    return run


def unsigned(kind: str) -> str:
    """Return the unsigned type of the same width, in which two's complement arithmetic gives the same bits."""
    return f"u{8 * TYPE_BYTES[kind]}"


def _each(i: Instruction, b: Binder, kind: str) -> tuple[Array, list[Array]]:
    sources = [b.src(operand, kind) for operand in i.operands[1:]]
    return b.dst(i.operands[0], kind), sources


@operation("add sub", "9.7.1.1-2, 9.7.2.1-4", family="integer")
def add(i: Instruction, b: Binder) -> Action:
    """Compute a wrapping sum or difference; ``.sat`` clamps, ``.cc`` stores the carry."""
    kind = kind_of(i)
    if kind in ("u16x2", "s16x2"):
        return _pairwise(i, b, {"add": np.add, "sub": np.subtract}[i.opcode])
    if i.has("sat"):
        out, (x, y) = _each(i, b, "s32")
        return assign(out, numerics.saturated, i.opcode, x, y)
    if i.has("cc"):
        return _carry(i, b, with_carry=False)
    out, (x, y) = _each(i, b, unsigned(kind))
    return partial(np.add if i.opcode == "add" else np.subtract, x, y, out)


def _pairwise(i: Instruction, b: Binder, function: Any) -> Action:
    narrow = np.int16 if kind_of(i) == "s16x2" else np.uint16
    out = b.dst(i.operands[0], "u32")
    x, y = (b.src(operand, "u32") for operand in i.operands[1:3])

    def run() -> None:
        out.view(narrow)[...] = (
            function(x.view(narrow), y.view(narrow))
            if x.size == y.size
            else function(
                np.broadcast_to(x, out.shape).copy().view(narrow), np.broadcast_to(y, out.shape).copy().view(narrow)
            )
        )

    return run


@operation("addc subc", "9.7.2.2, 9.7.2.4", family="integer")
def addc(i: Instruction, b: Binder) -> Action:
    """Compute a sum or difference with the carry of the previous instruction."""
    return _carry(i, b, with_carry=True)


def _carry(i: Instruction, b: Binder, *, with_carry: bool) -> Action:
    kind = unsigned(kind_of(i))
    out, (x, y) = _each(i, b, kind)
    carry = b.state.batch.carry()
    keep = i.has("cc")
    subtract = i.opcode.startswith("sub")
    one = DTYPES[kind]

    def run() -> None:
        if subtract:
            first = x - y
            borrow = x < y
            if with_carry:
                step = carry.astype(one)
                borrow = borrow | (first < step)
                first = first - step
            out[...] = first
            if keep:
                carry[...] = borrow
        else:
            first = x + y
            over = first < x
            if with_carry:
                step = carry.astype(one)
                second = first + step
                over = over | (second < first)
                first = second
            out[...] = first
            if keep:
                carry[...] = over

    return run


@operation("mul", "9.7.1.3", family="integer")
def mul(i: Instruction, b: Binder) -> Action:
    """Compute a product: its lower half (``.lo``), its upper half (``.hi``) or all bits (``.wide``)."""
    kind = kind_of(i)
    if i.has("wide"):
        wide = f"{kind[0]}{16 * TYPE_BYTES[kind]}"
        x, y = (b.src(operand, kind) for operand in i.operands[1:3])
        out = b.dst(i.operands[0], wide)
        return partial(np.multiply, x, y, out, dtype=DTYPES[wide])
    if i.has("hi"):
        out, (x, y) = _each(i, b, kind)
        return assign(out, numerics.mul_hi, x, y)
    out, (x, y) = _each(i, b, unsigned(kind))
    return partial(np.multiply, x, y, out)


@operation("mad", "9.7.1.4", family="integer")
def mad(i: Instruction, b: Binder) -> Action:
    """Multiply (as ``mul`` does) and add; ``.sat`` clamps the sum of the signed upper half."""
    kind = kind_of(i)
    multiply, plus = np.multiply, np.add
    if i.has("cc"):
        return _madc(i, b, with_carry=False)
    if i.has("wide"):
        wide = f"{kind[0]}{16 * TYPE_BYTES[kind]}"
        x, y = (b.src(operand, kind) for operand in i.operands[1:3])
        z = b.src(i.operands[3], wide)
        out = b.dst(i.operands[0], wide)
        product = b.temporary(wide)
        dtype = DTYPES[wide]

        def run_wide() -> None:
            multiply(x, y, product, dtype=dtype)
            plus(product, z, out)

        return run_wide
    if i.has("hi"):
        out, (x, y, z) = _each(i, b, kind)
        if i.has("sat"):
            return assign(out, lambda: numerics.saturated("add", numerics.mul_hi(x, y), z))
        return assign(out, lambda: numerics.mul_hi(x, y) + z)
    out, (x, y, z) = _each(i, b, unsigned(kind))
    product = b.temporary(unsigned(kind))

    def run() -> None:
        multiply(x, y, product)
        plus(product, z, out)

    return run


@operation("madc", "9.7.2.6", family="integer")
def madc(i: Instruction, b: Binder) -> Action:
    """Multiply and add with the carry of the previous instruction."""
    return _madc(i, b, with_carry=True)


def _madc(i: Instruction, b: Binder, *, with_carry: bool) -> Action:
    kind = kind_of(i)
    out, (x, y, z) = _each(i, b, kind)
    carry = b.state.batch.carry()
    keep, high = i.has("cc"), i.has("hi")
    plain = DTYPES[unsigned(kind)]

    def run() -> None:
        product = (numerics.mul_hi(x, y) if high else x.view(plain) * y.view(plain)).view(plain)
        first = product + z.view(plain)
        over = first < product
        if with_carry:
            step = carry.astype(plain)
            second = first + step
            over = over | (second < first)
            first = second
        out.view(plain)[...] = first
        if keep:
            carry[...] = over

    return run


@operation("mul24 mad24", "9.7.1.5-6", family="integer")
def mul24(i: Instruction, b: Binder) -> Action:
    """Compute a product of 24-bit numbers."""
    out, sources = _each(i, b, kind_of(i))
    high = i.has("hi")
    if i.opcode == "mul24":
        return assign(out, lambda: numerics.mul24(sources[0], sources[1], high=high))
    return assign(out, lambda: numerics.mul24(sources[0], sources[1], high=high) + sources[2])


@operation("sad", "9.7.1.7", family="integer")
def sad(i: Instruction, b: Binder) -> Action:
    """Compute c + |a − b|."""
    out, sources = _each(i, b, kind_of(i))
    return assign(out, numerics.sad, *sources)


@operation("div rem", "9.7.1.8-9", family="integer")
def div(i: Instruction, b: Binder) -> Action:
    """Compute a quotient, rounded toward zero, or its remainder; for divisor 0, all bits are one, as on an H200."""
    out, (x, y) = _each(i, b, kind_of(i))
    divide = i.opcode == "div"

    def run() -> None:
        rest = np.fmod(x, y)
        result = np.floor_divide(x - rest, y) if divide else rest
        zero = y == 0
        if zero.any():
            result = np.where(zero, ~np.zeros_like(result), result)
        out[...] = result

    return run


@operation("abs neg", "9.7.1.10-11", family="integer")
def absolute(i: Instruction, b: Binder) -> Action:
    """Compute an absolute value or negation."""
    out, (x,) = _each(i, b, kind_of(i))
    return partial(np.absolute if i.opcode == "abs" else np.negative, x, out)


@operation("min max", "9.7.1.12-13", family="integer")
def extreme(i: Instruction, b: Binder) -> Action:
    """Compute a minimum or maximum; ``.relu`` clamps negative results to zero."""
    function = np.minimum if i.opcode == "min" else np.maximum
    if kind_of(i) in ("u16x2", "s16x2"):
        return _pairwise(i, b, function)
    out, (x, y) = _each(i, b, kind_of(i))
    if i.has("relu"):
        return assign(out, lambda: np.maximum(function(x, y), 0))
    return partial(function, x, y, out=out)


@operation("popc clz", "9.7.1.14-15", family="integer")
def count(i: Instruction, b: Binder) -> Action:
    """Count the set bits or the leading zeros."""
    source = b.src(i.operands[1], unsigned(kind_of(i)))
    return assign(b.dst(i.operands[0], "u32"), numerics.popc if i.opcode == "popc" else numerics.clz, source)


@operation("bfind", "9.7.1.16", family="integer")
def bfind(i: Instruction, b: Binder) -> Action:
    """Find the highest bit that differs from the sign bit."""
    source = b.src(i.operands[1], kind_of(i))
    return assign(b.dst(i.operands[0], "u32"), partial(numerics.bfind, shiftamt=i.has("shiftamt")), source)


@operation("fns", "9.7.1.17", family="integer")
def fns(i: Instruction, b: Binder) -> Action:
    """Find the n-th set bit, counted from a base position."""
    mask, base, offset = b.src(i.operands[1], "u32"), b.src(i.operands[2], "u32"), b.src(i.operands[3], "s32")
    out = b.dst(i.operands[0], "u32")

    def find(word: int, start: int, nth: int) -> int:
        if nth == 0:
            return start if word >> start & 1 else 0xFFFFFFFF
        step = 1 if nth > 0 else -1
        left = abs(nth)
        position = start
        while 0 <= position < 32:
            if word >> position & 1:
                left -= 1
                if left == 0:
                    return position
            position += step
        return 0xFFFFFFFF

    def run() -> None:
        rows = np.broadcast_arrays(mask, base, offset)
        out[...] = [find(int(m), int(s), int(n)) for m, s, n in zip(*rows, strict=True)]

    return run


@operation("brev", "9.7.1.18", family="integer")
def brev(i: Instruction, b: Binder) -> Action:
    """Reverse the order of the bits."""
    out, (x,) = _each(i, b, unsigned(kind_of(i)))
    return assign(out, numerics.brev, x)


@operation("bfe", "9.7.1.19", family="integer")
def bfe(i: Instruction, b: Binder) -> Action:
    """Extract a bit field; signed types extend its sign."""
    source = b.src(i.operands[1], kind_of(i))
    place, length = b.src(i.operands[2], "u32"), b.src(i.operands[3], "u32")
    return assign(b.dst(i.operands[0], kind_of(i)), numerics.bfe, source, place, length)


@operation("bfi", "9.7.1.20", family="integer")
def bfi(i: Instruction, b: Binder) -> Action:
    """Insert a bit field."""
    kind = unsigned(kind_of(i))
    source, target = b.src(i.operands[1], kind), b.src(i.operands[2], kind)
    place, length = b.src(i.operands[3], "u32"), b.src(i.operands[4], "u32")
    return assign(b.dst(i.operands[0], kind), numerics.bfi, source, target, place, length)


@operation("szext", "9.7.1.21", family="integer")
def szext(i: Instruction, b: Binder) -> Action:
    """Extend a number of a given bit width to the whole register."""
    kind = kind_of(i)
    value, width = b.src(i.operands[1], kind), b.src(i.operands[2], "u32")
    clamp = i.has("clamp")
    signed = kind[0] == "s"

    out = b.dst(i.operands[0], kind)

    def run() -> None:
        bits = np.minimum(width, 32) if clamp else width & np.uint32(31)
        shift = (np.uint32(32) - bits).astype(np.int64)
        wide = value.view(np.uint32).astype(np.int64) << shift & 0xFFFFFFFF
        if signed:
            wide = wide.astype(np.uint32).view(np.int32).astype(np.int64) if wide.ndim else wide
        result = np.where(shift >= 32, 0, wide >> np.minimum(shift, 31))
        out.view(np.uint32)[...] = result.astype(np.int64).astype(np.uint32)

    return run


@operation("bmsk", "9.7.1.22", family="integer")
def bmsk(i: Instruction, b: Binder) -> Action:
    """Create a bit mask from a position and a width."""
    place, width = b.src(i.operands[1], "u32"), b.src(i.operands[2], "u32")
    clamp = i.has("clamp")

    def mask() -> Array:
        start, bits = place.astype(np.uint64), width.astype(np.uint64)
        if clamp:
            start, bits = np.minimum(start, 32), np.minimum(bits, 32)
        else:
            start, bits = start & np.uint64(31), bits & np.uint64(31)
        one = np.uint64(1)
        result: Array = (((one << bits) - one) << start).astype(np.uint32)
        return result

    return assign(b.dst(i.operands[0], "u32"), mask)


@operation("dp4a dp2a", "9.7.1.23-24", family="integer")
def dot(i: Instruction, b: Binder) -> Action:
    """Compute a dot product of bytes, or of halves and bytes."""
    kinds = [word for word in i.modifiers if word in ("u32", "s32")]
    x, y = b.src(i.operands[1], kinds[0]), b.src(i.operands[2], kinds[1])
    z = b.src(i.operands[3], "u32")
    out = b.dst(i.operands[0], "u32")
    function = numerics.dp4a if i.opcode == "dp4a" else partial(numerics.dp2a, high=i.has("hi"))

    def run() -> None:
        out[...] = function(*np.broadcast_arrays(x, y, z)).view(np.uint32)

    return run


@operation("and or xor", "9.7.8.1-3")
def logic(i: Instruction, b: Binder) -> Action:
    """Compute a logical operation on bits or predicates."""
    kind = kind_of(i)
    function = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[i.opcode]
    if kind == "pred":
        x, y = (predicate(operand, b) for operand in i.operands[1:3])
        return partial(function, x, y, b.dst(i.operands[0], kind))
    out, (x, y) = _each(i, b, unsigned(kind))
    return partial(function, x, y, out)


def predicate(operand: Any, b: Binder) -> Array:
    """Return a predicate operand; negated predicates occur only in guards and ``set`` instructions."""
    return b.pred(operand)


@operation("not cnot", "9.7.8.4-5")
def invert(i: Instruction, b: Binder) -> Action:
    """Compute the complement (``not``), or test for zero (``cnot``)."""
    kind = kind_of(i)
    out, (x,) = _each(i, b, kind if kind == "pred" else unsigned(kind))
    if i.opcode == "cnot":
        return assign(out, np.equal, x, np.zeros(1, x.dtype))
    return partial(np.logical_not if kind == "pred" else np.bitwise_not, x, out)


@operation("lop3", "9.7.8.6")
def lop3(i: Instruction, b: Binder) -> Action:
    """Compute a bitwise function of three operands, given by a truth table."""
    table = i.operands[4]
    if not isinstance(table, Immediate) or i.has("BoolOp") or len(i.operands) != 5:
        raise Unsupported("lop3 with a predicate result is not supported")
    x, y, z = (b.src(operand, "u32") for operand in i.operands[1:4])
    return assign(b.dst(i.operands[0], "u32"), numerics.lop3(int(table.value)), x, y, z)


@operation("shl shr", "9.7.8.8-9", family="integer")
def shift(i: Instruction, b: Binder) -> Action:
    """Shift a number; a count beyond the width shifts all bits out."""
    kind = kind_of(i)
    typed = kind if i.opcode == "shr" and kind[0] == "s" else unsigned(kind)
    function = np.left_shift if i.opcode == "shl" else np.right_shift
    value = b.src(i.operands[1], typed)
    out = b.dst(i.operands[0], typed)
    bits = 8 * TYPE_BYTES[kind]
    if isinstance(i.operands[2], Immediate):
        places = min(int(i.operands[2].value) & 0xFFFFFFFF, bits)
        return partial(function, value, np.array([places], DTYPES[typed]), out)
    amount = b.src(i.operands[2], "u32")
    most = np.array([bits], np.uint32)

    def run() -> None:
        function(value, np.minimum(amount, most).astype(value.dtype), out)

    return run


@operation("shf", "9.7.8.7", family="integer")
def funnel(i: Instruction, b: Binder) -> Action:
    """Compute a funnel shift."""
    x, y, amount = (b.src(operand, "u32") for operand in i.operands[1:4])
    function = partial(numerics.shf, "l" if i.has("l") else "r", clamp=i.has("clamp"))
    return assign(b.dst(i.operands[0], "u32"), function, x, y, amount)


@operation("prmt", "9.7.9.7", family="integer")
def prmt(i: Instruction, b: Binder) -> Action:
    """Select four bytes of two registers."""
    modes = [word for word in i.modifiers if word != "b32"]
    x, y = b.src(i.operands[1], "u32"), b.src(i.operands[2], "u32")
    selector: Any = i.operands[3]
    selector = int(selector.value) if isinstance(selector, Immediate) else b.src(selector, "u32")
    return assign(b.dst(i.operands[0], "u32"), numerics.prmt, x, y, selector, modes[0] if modes else "")
