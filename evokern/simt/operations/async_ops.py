"""Asynchronous copies (PTX ISA 9.7.9.25), fences (9.7.13.4), and hints without effect on results."""

from __future__ import annotations

from functools import partial

import numpy as np

from evokern.ptx.syntax import Immediate, Instruction, Operand, Register
from evokern.ptx.unsupported import Unsupported
from evokern.simt.arrays import RAW, Action, Active, Array
from evokern.simt.binder import Binder
from evokern.simt.memory.buffers import SHARED_WINDOW
from evokern.simt.memory.global_space import AccessSite
from evokern.simt.memory.mbarrier_state import MbarrierCall
from evokern.simt.operations.bulk_ops import bind_bulk_copy
from evokern.simt.operations.memory_ops import address_rows
from evokern.simt.operations.spaces import widened
from evokern.simt.operations.table import operation
from evokern.simt.sanitizer.async_copies import AsyncCopy

MOST_SLEEP_NS = 1_000_000
"""Longest sleep of one ``nanosleep`` in nanoseconds (PTX ISA 9.7.19.2)."""


@operation("cp", "9.7.9.25", pipe="load_store", kind="effect", results=0)
def cp(i: Instruction, b: Binder) -> Action:
    """Bind all forms of ``cp.async`` and of bulk copies."""
    if i.has("bulk", "reduce"):
        return bind_bulk_copy(i, b)
    state, active_of = b.state, b.active
    if i.has("commit_group"):
        return lambda: state.copies.commit(active_of())
    if i.has("wait_all"):
        return lambda: state.copies.wait(active_of(), None)
    if i.has("wait_group"):
        operand = i.operands[0]
        if not isinstance(operand, Immediate):
            raise Unsupported("cp.async.wait_group with a register operand is not supported")
        most = int(operand.value)
        return lambda: state.copies.wait(active_of(), most)
    if i.has("mbarrier"):
        return _mbarrier_arrive(i, b)
    return _copy(i, b)


def _copy(i: Instruction, b: Binder) -> Action:
    state, batch, number, active_of = b.state, b.state.batch, b.pc, b.active
    width_operand = i.operands[2]
    if not isinstance(width_operand, Immediate) or int(width_operand.value) not in (4, 8, 16):
        raise Unsupported(f"{i.name} of {width_operand!r} bytes is not supported")
    width = int(width_operand.value)
    extra = i.operands[3] if len(i.operands) > 3 and "cache_hint" not in i.name else None
    if "cache_hint" in i.name and len(i.operands) > 4:
        extra = i.operands[3]
    target, target_offset = address_rows(i.operands[0], b, "shared")
    source, source_offset = address_rows(i.operands[1], b, "global")
    generic = "shared" not in i.modifiers and not any(word.startswith("shared") for word in i.modifiers)
    ignore, size = _source_size(extra, b)
    site, partial_site = AccessSite(number, width), AccessSite(number, 1)

    def gather(active: Active) -> tuple[Active, Array, Array | None]:
        """Return the lanes that copy, their data, and the source indices of full-width copies."""
        data = np.zeros(active.count, RAW[width])
        whole: Array | None = None
        if ignore is not None:
            whole = ~active.pick(ignore)
        elif size is not None:
            bytes_wanted = np.broadcast_to(active.pick(size), (active.count,))
            whole = bytes_wanted >= width
            some = ~whole & (bytes_wanted > 0)
            if some.any():
                _partial(active, some, bytes_wanted, data)
        if whole is None or whole.all():
            return (active, *read(active, data, None))
        if whole.any():
            read(batch.restrict(active, whole), data, whole)
        return active, data, None

    def read(active: Active, data: Array, where: Array | None) -> tuple[Array, Array | None]:
        sound, index = state.globals.locate(active, widened(active.pick(source)), source_offset, site, write=False)
        if sound is None:
            return data, None
        state.globals.note_read(sound, index, site, synchronises=False)
        if state.events is not None:
            state.events.sectors(number, sound, index, width, write=False)
        found = state.globals.view(width).take(index, mode="clip")
        if where is None and sound is active:
            return found, None if site.read_only else index
        places = np.flatnonzero(where) if where is not None else np.arange(active.count)
        data[places[np.searchsorted(active.lanes, sound.lanes)]] = found
        return data, None

    def _partial(active: Active, some: Array, wanted: Array, data: Array) -> None:
        raw = data.view(np.uint8).reshape(-1, width)
        for at in range(width):
            takes = some & (wanted > at)
            if not takes.any():
                break
            part = batch.restrict(active, takes)
            sound, index = state.globals.locate(
                part, widened(part.pick(source)), source_offset + at, partial_site, write=False
            )
            if sound is not None:
                raw[np.searchsorted(active.lanes, sound.lanes), at] = state.globals.view(1).take(index, mode="clip")

    def run() -> None:
        active = active_of()
        if not active.count:
            return
        address = active.pick(target)
        if generic:
            address = widened(address) - np.uint64(SHARED_WINDOW)
        sound, index, leaders = state.shared.locate(active, address, target_offset, width, number)
        if sound is None:
            return
        if sound is not active:
            active = sound
        active, data, origin = gather(active)
        if state.events is not None:
            state.events.shared(number, active, index, width, copied=True)
        state.copies.issue(AsyncCopy(active, index, data, origin, width, number), leaders)

    return run


def _source_size(extra: Operand | None, b: Binder) -> tuple[Array | None, Array | None]:
    if extra is None:
        return None, None
    if isinstance(extra, Register) and b.type_of(extra) == "pred":
        return b.src(extra, "pred"), None
    return None, b.src(extra, "u32")


def _mbarrier_arrive(i: Instruction, b: Binder) -> Action:
    """Bind ``cp.async.mbarrier.arrive``; the copies complete at the earliest time at which the barrier may complete."""
    state, active_of = b.state, b.active
    row, offset = address_rows(i.operands[0], b, "shared")
    call = MbarrierCall(number=b.pc, offset=offset)
    increment = not i.has("noinc")

    def run() -> None:
        active = active_of()
        state.copies.wait(active, None)
        if not increment:
            state.mbarriers.arrive(active, active.pick(row), call, np.ones(active.count, np.int64))

    return run


@operation("membar fence", "9.7.13.4", pipe="control", kind="effect", results=0)
def fence(i: Instruction, b: Binder) -> Action:
    """Bind memory fences; they only affect the race check, because every access is visible immediately."""
    if i.has("proxy") and i.has("tensormap"):
        raise Unsupported(f"{i.name}")
    state, active_of = b.state, b.active
    if i.has("proxy") and i.has("async"):
        if i.has("global"):
            return lambda: None
        return lambda: state.proxy_fences.fence(active_of())

    within_block = i.has("cta", "cluster")
    if i.has("mbarrier_init"):
        return lambda: state.mbarriers.publish(active_of())
    if state.batch.geometry.ranks > 1 and within_block:
        return _fence_within_cluster(i, b)

    def fence_() -> None:
        active = active_of()
        if not within_block:
            state.globals.fence(active)
        if state.order is not None:
            state.order.fence(active)

    return fence_


def _fence_within_cluster(i: Instruction, b: Binder) -> Action:
    """Bind a fence in the scope of a block or cluster."""
    order, active_of = b.state.order, b.active
    if order is None or any(word.startswith("sync_restrict") for word in i.modifiers):
        return lambda: None
    return lambda: order.fence(active_of(), near=i.has("cta"))


@operation("nanosleep", "9.7.19.2", pipe="control", kind="effect", results=0)
def nanosleep(i: Instruction, b: Binder) -> Action:
    """Bind ``nanosleep``: a warp sleeps for the longest duration that one of its lanes requests.

    The ISA guarantees a duration between 0 and twice the requested one, and at most 1 ms.
    """
    state, number, active_of, row = b.state, b.pc, b.active, b.src(i.operands[0], "u32")

    def run() -> None:
        active = active_of()
        of_lanes = np.zeros(active.mask.size, np.int64)
        of_lanes[active.lanes] = np.minimum(active.pick(row), MOST_SLEEP_NS)
        total_ns = int(of_lanes.reshape(-1, 32).max(1).sum())
        state.specials.sleep(total_ns)
        if state.events is not None:
            state.events.sleep(number, total_ns)

    return run


@operation("griddepcontrol", "9.7.13.13", pipe="control", results=0)
def idle(i: Instruction, b: Binder) -> Action:
    """Bind the ordering of grids, which never overlap in the machine."""

    def run() -> None:
        return None

    return run


@operation("createpolicy", "9.7.9.18")
def createpolicy(i: Instruction, b: Binder) -> Action:
    """Create a cache eviction policy: opaque bits that other instructions use as a hint."""
    return partial(np.copyto, b.dst(i.operands[0], "u64"), np.zeros(1, np.uint64))
