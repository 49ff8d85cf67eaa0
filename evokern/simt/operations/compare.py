"""Comparison and selection (PTX ISA 9.7.6, 9.7.7)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from evokern.ptx.instruction_set import FAMILY
from evokern.ptx.syntax import TYPE_BYTES, Instruction, Operand, Pair, Register
from evokern.ptx.unsupported import Unsupported
from evokern.simt import numerics
from evokern.simt.arrays import SIGNED, Action, Array
from evokern.simt.binder import Binder
from evokern.simt.operations.integer import assign, kind_of
from evokern.simt.operations.table import operation

_ORDERED: dict[str, Any] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_OPPOSITE = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
_COMBINE: dict[str, Any] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _floats(kind: str, row: Array, ftz: bool) -> Array:
    if kind in ("f32", "f64"):
        return numerics.flush(row) if ftz else row
    values = numerics.decode(kind, row)
    return numerics.flush(values, numerics.FORMATS[kind].smallest_normal) if ftz else values


def comparison(word: str, kind: str, ftz: bool) -> Any:
    """Return a comparison as a function of two rows.

    An unordered comparison (``ltu`` …) is the complement of the opposite ordered one. For NaN, ``ne`` on
    floating-point types is false, unlike in NumPy.
    """
    floating = FAMILY[kind] in ("float", "half")
    convert = FAMILY[kind] == "half" or (ftz and kind == "f32")

    def prepared(function: Any) -> Any:
        if not convert:
            return function
        return lambda x, y: function(_floats(kind, x, ftz), _floats(kind, y, ftz))

    if word == "num":
        return prepared(lambda x, y: ~(np.isnan(x) | np.isnan(y)))
    if word == "nan":
        return prepared(lambda x, y: np.isnan(x) | np.isnan(y))
    if word == "ne" and floating:
        return prepared(lambda x, y: (x < y) | (x > y))
    if word in _ORDERED:
        return prepared(_ORDERED[word])
    if word in _OPPOSITE:
        if word == "neu":
            return prepared(np.not_equal)
        opposite = comparison(_OPPOSITE[word], kind, ftz)
        return lambda x, y: ~opposite(x, y)
    raise Unsupported(f"comparison .{word}")


def _predicate(operand: Operand, b: Binder) -> tuple[Array, bool]:
    if isinstance(operand, Register) and operand.negated:
        return b.src(Register(operand.name), "pred"), True
    return b.src(operand, "pred"), False


@operation("setp", "9.7.6.2, 9.7.7.2")
def setp(i: Instruction, b: Binder) -> Action:
    """Compare, combine the result with a predicate, and set one or two predicates."""
    kind = kind_of(i)
    words = [word for word in i.modifiers if word not in ("ftz", kind)]
    x, y = b.src(i.operands[1], kind), b.src(i.operands[2], kind)
    function = comparison(words[0], kind, i.has("ftz"))
    combine = _COMBINE[words[1]] if len(words) > 1 else None
    target = i.operands[0]
    if kind in ("f16x2", "bf16x2"):
        return _packed_setp(i, b, kind, words, combine)
    if combine is None and not isinstance(target, Pair):
        out = b.dst(target, "pred")
        return partial(function, x, y, out) if isinstance(function, np.ufunc) else assign(out, function, x, y)
    first = b.dst(target.first if isinstance(target, Pair) else target, "pred")
    second = b.dst(target.second, "pred") if isinstance(target, Pair) else None
    with_row, negated = _predicate(i.operands[3], b) if combine is not None else (first, False)

    def run() -> None:
        result = function(x, y)
        opposite = ~result
        if combine is not None:
            third = ~with_row if negated else with_row
            result, opposite = combine(result, third), combine(opposite, third)
        first[...] = result
        if second is not None:
            second[...] = opposite

    return run


def _packed_setp(i: Instruction, b: Binder, kind: str, words: list[str], combine: Any) -> Action:
    element = kind[:-2]
    function = comparison(words[0], element, i.has("ftz"))
    target = i.operands[0]
    x, y = b.src(i.operands[1], "u32"), b.src(i.operands[2], "u32")
    low = b.dst(target.first if isinstance(target, Pair) else target, "pred")
    high = b.dst(target.second, "pred") if isinstance(target, Pair) else None
    third = b.src(i.operands[3], "pred") if combine is not None else None

    def run() -> None:
        result = function(_halves(x, 0), _halves(y, 0)), function(_halves(x, 1), _halves(y, 1))
        if combine is not None:
            result = combine(result[0], third), combine(result[1], third)
        low[...] = result[0]
        if high is not None:
            high[...] = result[1]

    return run


def _halves(row: Array, which: int) -> Array:
    result: Array = row.view(np.uint16)[which::2]
    return result


@operation("set", "9.7.6.1, 9.7.7.1")
def set_(i: Instruction, b: Binder) -> Action:
    """Compare and set a number: all bits one, or 1.0 for a floating-point result."""
    kinds = [word for word in i.modifiers if word in FAMILY]
    to, kind = kinds[0], kinds[-1]
    words = [word for word in i.modifiers if word not in ("ftz", *kinds)]
    combine = _COMBINE[words[1]] if len(words) > 1 else None
    third = b.src(i.operands[3], "pred") if combine is not None else None
    ones = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80}.get(to)
    if kind in ("f16x2", "bf16x2"):
        function = comparison(words[0], kind[:-2], i.has("ftz"))
        x, y = b.src(i.operands[1], "u32"), b.src(i.operands[2], "u32")
        out = b.dst(i.operands[0], "u32")
        true = 0xFFFF if ones is None else ones

        def run_packed() -> None:
            low, high = function(_halves(x, 0), _halves(y, 0)), function(_halves(x, 1), _halves(y, 1))
            if combine is not None:
                low, high = combine(low, third), combine(high, third)
            out[...] = np.where(low, np.uint32(true), np.uint32(0)) | np.where(
                high, np.uint32(true << 16), np.uint32(0)
            )

        return run_packed
    function = comparison(words[0], kind, i.has("ftz"))
    x, y = b.src(i.operands[1], kind), b.src(i.operands[2], kind)
    bits = "u16" if to in ("f16", "bf16", "u16", "s16") else "u32"
    out = b.dst(i.operands[0], bits)
    value = out.dtype.type(ones if ones is not None else np.iinfo(out.dtype).max)

    def run() -> None:
        result = function(x, y)
        if combine is not None:
            result = combine(result, third)
        out[...] = np.where(result, value, out.dtype.type(0))

    return run


@operation("selp", "9.7.6.3")
def selp(i: Instruction, b: Binder) -> Action:
    """Select one of two values by a predicate."""
    kind = kind_of(i)
    kind = f"u{8 * TYPE_BYTES[kind]}"
    x, y = b.src(i.operands[1], kind), b.src(i.operands[2], kind)
    which, negated = _predicate(i.operands[3], b)
    if negated:
        x, y = y, x
    return assign(b.dst(i.operands[0], kind), np.where, which, x, y)


@operation("slct", "9.7.6.4")
def slct(i: Instruction, b: Binder) -> Action:
    """Select one of two values by the sign of a third."""
    kinds = [word for word in i.modifiers if word in FAMILY]
    kind, by = kinds[0], kinds[-1]
    x, y, z = b.src(i.operands[1], kind), b.src(i.operands[2], kind), b.src(i.operands[3], by)
    ftz = i.has("ftz")
    assert by in SIGNED or by == "f32"
    return assign(b.dst(i.operands[0], kind), lambda: np.where((numerics.flush(z) if ftz else z) >= 0, x, y))
