"""Conversions and moves (PTX ISA 9.7.9.3 mov, 9.7.9.20 cvta, 9.7.9.21 cvt, 9.7.9.19 isspacep)."""

from __future__ import annotations

from functools import partial

import numpy as np

from evokern.ptx.syntax import TYPE_BYTES, Instruction, Register, Symbol, Vector
from evokern.ptx.unsupported import Unsupported
from evokern.simt import numerics
from evokern.simt.arrays import DTYPES, Action, Array
from evokern.simt.binder import Binder
from evokern.simt.clusters.layout import RANK_BITS
from evokern.simt.memory.buffers import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BITS
from evokern.simt.operations.integer import assign, kind_of
from evokern.simt.operations.table import operation

_ROUNDINGS = ("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi")
_FORMATS = (
    "u8",
    "s8",
    "u16",
    "s16",
    "u32",
    "s32",
    "u64",
    "s64",
    "f16",
    "bf16",
    "f32",
    "f64",
    "tf32",
    "f16x2",
    "bf16x2",
    "e4m3x2",
    "e5m2x2",
)


@operation("cvt", "9.7.9.21")
def cvt(i: Instruction, b: Binder) -> Action:
    """Convert a value to another type."""
    kinds = [word for word in i.modifiers if word in _FORMATS]
    unknown = [word for word in i.modifiers if word[0] in "eu" and word not in _FORMATS]
    if len(kinds) != 2 or unknown or i.has("rs"):
        raise Unsupported(f"conversion {i.name}")
    to, source = kinds
    rounding = next((word for word in i.modifiers if word in _ROUNDINGS), None)
    ftz, sat, clamps = i.has("ftz"), i.has("sat"), tuple(filter(i.has, ("sat", "satfinite", "relu")))
    if to.endswith("x2"):
        if len(i.operands) == 3:
            high, low = b.src(i.operands[1], source), b.src(i.operands[2], source)
            pair = partial(numerics.convert_pair, to, source, rounding=rounding or "rn", clamps=clamps)
            return assign(b.dst(i.operands[0], to), pair, high, low)
        packed = partial(numerics.convert_packed, to, source, rounding=rounding or "rn", clamps=clamps)
        return assign(b.dst(i.operands[0], to), packed, b.src(i.operands[1], source))
    value = b.src(i.operands[1], source)
    wide = b.wide(i.operands[0], to) if to[0] in "us" else to
    out = b.dst(i.operands[0], wide)
    if to[0] in "us" and source[0] in "us" and not sat:
        if DTYPES[wide] == DTYPES[to] or TYPE_BYTES[to] >= TYPE_BYTES[source]:
            return partial(np.copyto, out, value, casting="unsafe")
        narrow = np.dtype(DTYPES[to])
        return assign(out, lambda: value.astype(narrow))
    if (to, source) in (("f64", "f32"), ("f32", "f64")) and rounding in (None, "rn") and not (ftz or sat):
        return partial(np.copyto, out, value, casting="unsafe")
    if (to, source) == ("f32", "f16") and not sat:
        return partial(_from_half, value, out)
    convert = partial(numerics.convert, to, source, rounding=rounding, ftz=ftz, clamps=clamps)
    return assign(out, convert, value)


def _from_half(value: Array, out: Array) -> None:
    out[...] = numerics.decode("f16", value)


@operation("mov", "9.7.9.3-4", pipe="integer")
def mov(i: Instruction, b: Binder) -> Action:
    """Copy a value, an address or a special register; pack and unpack vectors."""
    kind = kind_of(i)
    target, source = i.operands
    clock = source.name if isinstance(source, Register) and b.state.specials.dynamic(source.name) else ""
    if clock and isinstance(target, Vector):
        raise Unsupported(f"reading {clock} into a vector is not supported")
    if isinstance(source, Vector) or isinstance(target, Vector):
        return _pack(i, b, kind)
    if clock:
        out = b.dst(target, kind)
        read = b.state.specials.reader(clock, b.pc)
        return assign(out, read)
    if kind != "pred":
        kind = f"u{8 * TYPE_BYTES[kind]}"
    if isinstance(source, Symbol):
        return partial(np.copyto, b.dst(target, kind), b.src(source, kind))
    return partial(np.copyto, b.dst(target, kind), b.src(source, kind))


def _pack(i: Instruction, b: Binder, kind: str) -> Action:
    """Split a register into a vector or join one (9.7.9.4): element 0 is the least significant."""
    target, source = i.operands
    whole = f"u{8 * TYPE_BYTES[kind]}"
    if TYPE_BYTES[kind] == 16:
        raise Unsupported("128-bit registers")
    if isinstance(source, Vector) and not isinstance(target, Vector):
        part = f"u{8 * TYPE_BYTES[kind] // len(source.items)}"
        rows = [b.src(item, part) for item in source.items]
        out = b.dst(target, whole)
        columns = [out.view(DTYPES[part])[index :: len(rows)] for index in range(len(rows))]

        def join() -> None:
            for column, row in zip(columns, rows, strict=True):
                column[...] = row

        return join
    if isinstance(target, Vector):
        part = f"u{8 * TYPE_BYTES[kind] // len(target.items)}"
        value = b.src(source, whole)
        pieces = [value.view(DTYPES[part])[index :: len(target.items)] for index in range(len(target.items))]
        outs = [b.dst(item, b.wide(item, part)) for item in target.items]

        def split() -> None:
            for out, piece in zip(outs, pieces, strict=True):
                out[...] = piece

        return split
    raise Unsupported(f"{i.name} from vector to vector is not supported")


@operation("cvta", "9.7.9.20")
def cvta(i: Instruction, b: Binder) -> Action:
    """Convert addresses between the generic address space and a state space."""
    kind = kind_of(i)
    words = (word.split("::")[0] for word in i.modifiers)
    space = next((word for word in words if word in ("global", "shared", "local", "const", "param")), None)
    value, out = b.src(i.operands[1], kind), b.dst(i.operands[0], kind)
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space or "", 0)
    if window == 0 or kind != "u64":
        return partial(np.copyto, out, value)
    return partial(np.subtract if i.has("to") else np.add, value, np.array([window], np.uint64), out)


@operation("isspacep", "9.7.9.19")
def isspacep(i: Instruction, b: Binder) -> Action:
    """Test whether a generic address is in a state space."""
    value = b.src(i.operands[1], "u64")
    bits = np.array([WINDOW_BITS], np.uint64)
    space = i.modifiers[0].split("::")[0]
    out = b.dst(i.operands[0], "pred")
    if space == "shared" and not i.has("shared::cluster") and b.state.batch.geometry.ranks > 1:
        rank = b.state.specials.row("%cluster_ctarank")
        assert rank is not None
        first, shift = np.uint64(SHARED_WINDOW >> RANK_BITS), np.uint64(RANK_BITS)
        return assign(out, lambda: value >> shift == first + rank)
    if space in ("shared", "local"):
        wanted = np.uint64((SHARED_WINDOW if space == "shared" else LOCAL_WINDOW) >> WINDOW_BITS)
        return assign(out, lambda: (value >> bits) == wanted)
    if space == "global":
        return assign(out, lambda: (value >> bits) > np.uint64(LOCAL_WINDOW >> WINDOW_BITS))
    raise Unsupported(f"isspacep.{space}")
