"""Instructions across the lanes of a warp (PTX ISA 9.7.9.6 shfl, 9.7.13.9-14 vote, match, redux, elect)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evokern.ptx.syntax import TYPE_BYTES, Instruction, Pair, Register
from evokern.ptx.unsupported import Unsupported
from evokern.simt.arrays import Action, Array, ballot
from evokern.simt.binder import Binder
from evokern.simt.operations.integer import kind_of
from evokern.simt.operations.table import operation


def shuffle_sources(i: Instruction, b: Binder) -> Callable[[], tuple[Array, Array]]:
    """Return a function that returns the lane that each lane reads in a shuffle, and whether it is in the segment."""
    other, clamp = (b.src(operand, "u32") for operand in i.operands[2:4])
    mode = next(word for word in i.modifiers if word in ("up", "down", "bfly", "idx"))
    lane = np.arange(b.state.batch.lanes, dtype=np.int64) % 32
    base = np.arange(b.state.batch.lanes, dtype=np.int64) - lane

    def sources() -> tuple[Array, Array]:
        shift, limit = other.astype(np.int64) & 31, clamp.astype(np.int64)
        segment = limit >> 8 & 31
        most = lane & segment | limit & 31 & ~segment
        if mode == "up":
            wanted = lane - shift
            inside = wanted >= most
        else:
            wanted = {"down": lane + shift, "bfly": lane ^ shift, "idx": lane & segment | shift & ~segment}[mode]
            inside = wanted <= most
        return base + np.where(inside, wanted, lane), inside

    if other.shape[0] != 1 or clamp.shape[0] != 1:
        return sources
    fixed = sources()
    return lambda: fixed


@operation("shfl", "9.7.9.6", pipe="load_store", kind="warp")
def shfl(i: Instruction, b: Binder) -> Action:
    """Exchange values between lanes (up, down, butterfly or indexed) within segments of the warp."""
    batch, shared, number, active_of = b.state.batch, b.state.shared, b.pc, b.active
    target = i.operands[0]
    out = b.dst(target.first if isinstance(target, Pair) else target, "u32")
    inside_out = b.dst(target.second, "pred") if isinstance(target, Pair) else None
    value, sources = b.src(i.operands[1], "u32"), shuffle_sources(i, b)

    def run() -> None:
        active = active_of()
        shared.met(active)
        source, inside = sources()
        if not active.all:
            lost = active.mask & ~active.mask[source]
            if lost.any():
                batch.report_lanes(
                    "inactive_shuffle",
                    number,
                    np.flatnonzero(lost),
                    detail=f"Lane {int(source[lost][0]) % 32} is read but does not take part",
                )
        moved = value.take(source, mode="clip") if value.shape[0] > 1 else value
        np.copyto(out, moved, where=active.mask)
        if inside_out is not None:
            np.copyto(inside_out, inside, where=active.mask)

    return run


@operation("vote", "9.7.13.9", pipe="integer", kind="warp")
def vote(i: Instruction, b: Binder) -> Action:
    """Compute ``all``, ``any``, ``uni`` or ``ballot`` over the lanes in the mask."""
    shared, active_of = b.state.shared, b.active
    target = i.operands[0]
    source = i.operands[1]
    assert isinstance(source, Register)
    row, negated = b.src(Register(source.name), "pred"), source.negated
    mode = next(word for word in i.modifiers if word in ("all", "any", "uni", "ballot"))
    out = b.dst(target, "u32" if mode == "ballot" else "pred")

    def run() -> None:
        active = active_of()
        shared.met(active)
        mask = active.mask
        yes = ballot(mask & ~row if negated else mask & row)
        if mode == "ballot":
            result = yes
        else:
            here = ballot(mask)
            result = {"all": yes == here, "any": yes != 0, "uni": (yes == here) | (yes == 0)}[mode]
        np.copyto(out, np.repeat(result, 32), where=mask)

    return run


@operation("activemask", "9.7.13.11", pipe="integer", kind="effect")
def activemask(i: Instruction, b: Binder) -> Action:
    """Return the lanes that currently execute together."""
    active_of = b.active
    out = b.dst(i.operands[0], "u32")

    def run() -> None:
        mask = active_of().mask
        np.copyto(out, np.repeat(ballot(mask), 32), where=mask)

    return run


@operation("match", "9.7.13.10", pipe="integer", kind="warp")
def match(i: Instruction, b: Binder) -> Action:
    """Find the lanes with the same value."""
    shared, active_of = b.state.shared, b.active
    target = i.operands[0]
    kind = f"u{8 * TYPE_BYTES[kind_of(i)]}"
    value = b.src(i.operands[1], kind)
    out = b.dst(target.first if isinstance(target, Pair) else target, "u32")
    flag = b.dst(target.second, "pred") if isinstance(target, Pair) else None
    every = i.has("all")
    lanes = b.state.batch.lanes

    def run() -> None:
        active = active_of()
        shared.met(active)
        rows = np.broadcast_to(value, (lanes,)).reshape(-1, 32)
        mask = active.mask.reshape(-1, 32)
        same = (rows[:, :, None] == rows[:, None, :]) & mask[:, None, :]
        words = np.packbits(same, axis=2, bitorder="little").view(np.uint32)[:, :, 0].reshape(-1)
        if every:
            here = np.repeat(ballot(active.mask), 32)
            agreed = words == here
            words = np.where(agreed, here, np.uint32(0))
            if flag is not None:
                np.copyto(flag, agreed, where=active.mask)
        np.copyto(out, words, where=active.mask)

    return run


_REDUCE: dict[str, tuple[Any, Any]] = {
    "add": (np.add, lambda info: 0),
    "min": (np.minimum, lambda info: info.max),
    "max": (np.maximum, lambda info: info.min),
    "and": (np.bitwise_and, lambda info: -1 if info.min < 0 else info.max),
    "or": (np.bitwise_or, lambda info: 0),
    "xor": (np.bitwise_xor, lambda info: 0),
}


@operation("redux", "9.7.13.12", pipe="integer", kind="warp")
def redux(i: Instruction, b: Binder) -> Action:
    """Reduce integers over the lanes in the mask."""
    shared, active_of = b.state.shared, b.active
    kind = kind_of(i)
    if kind not in ("u32", "s32", "b32"):
        raise Unsupported(f"{i.name}")
    value, out = b.src(i.operands[1], kind), b.dst(i.operands[0], kind)
    function, neutral = _REDUCE[next(word for word in i.modifiers if word in _REDUCE)]
    start = out.dtype.type(neutral(np.iinfo(out.dtype)))

    def run() -> None:
        active = active_of()
        shared.met(active)
        rows = np.where(active.mask, value, start).reshape(-1, 32)
        np.copyto(out, np.repeat(function.reduce(rows, axis=1, dtype=out.dtype), 32), where=active.mask)

    return run


@operation("elect", "9.7.13.14", pipe="integer", kind="warp")
def elect(i: Instruction, b: Binder) -> Action:
    """Elect the lowest lane in the mask."""
    shared, active_of = b.state.shared, b.active
    target = i.operands[0]
    if not isinstance(target, Pair):
        raise Unsupported("elect without a predicate is not supported")
    leader, flag = b.dst(target.first, "u32"), b.dst(target.second, "pred")
    lane = np.arange(b.state.batch.lanes) % 32

    def run() -> None:
        active = active_of()
        shared.met(active)
        lowest = np.repeat(active.mask.reshape(-1, 32).argmax(1), 32)
        np.copyto(leader, lowest.astype(np.uint32), where=active.mask)
        np.copyto(flag, lane == lowest, where=active.mask)

    return run
