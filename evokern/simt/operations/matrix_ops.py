"""Matrix instructions: wmma (PTX ISA 9.7.14.4), and mma, ldmatrix, stmatrix, movmatrix (9.7.14.5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from evokern.errors import InternalError
from evokern.ptx.matrix_shapes import shape_of
from evokern.ptx.syntax import Immediate, Instruction, Operand, Vector
from evokern.ptx.unsupported import Unsupported
from evokern.simt.arrays import Action, Active, Array
from evokern.simt.batch import Batch
from evokern.simt.binder import Binder
from evokern.simt.matrix import bind_mma, bind_wmma, matrix_move, wmma_elements
from evokern.simt.memory.buffers import SHARED_WINDOW
from evokern.simt.operations.memory_access import element_access
from evokern.simt.operations.memory_ops import address_rows, space_of
from evokern.simt.operations.spaces import SharedAccess, widened
from evokern.simt.operations.table import operation
from evokern.simt.operations.wmma_moves import count_moves, moves

_KINDS = ("f16", "bf16", "tf32", "f32", "f64", "s8", "u8", "s32", "e4m3", "e5m2", "s4", "u4", "b1")
_FACTOR = {"f16": 2, "bf16": 2, "s8": 1, "u8": 1, "tf32": 4, "f64": 8, "f32": 4, "s32": 4}


def items_of(operand: Operand) -> tuple[Operand, ...]:
    """Return the registers of a vector operand, or the single register."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def mma_of(i: Instruction) -> Any:
    """Return the function that computes an mma or wmma.mma instruction.

    Raises:
        Unsupported: the tensor-core model does not support the shape or type.
    """
    kinds = [word for word in i.modifiers if word in _KINDS]
    try:
        if i.opcode == "wmma":
            shape = shape_of(i)
            layouts = [word for word in i.modifiers if word in ("row", "col")]
            if len(layouts) != 2:
                raise Unsupported(f"{i.name}")
            if len(kinds) == 2:
                return bind_wmma(shape, kinds[0], "f16", kinds[1], i.has("satfinite"))
            return bind_wmma(shape, kinds[0], kinds[1], kinds[3], i.has("satfinite"))
        if i.has("sp") or any(word.startswith("sp") for word in i.modifiers) or "block_scale" in i.modifiers:
            raise Unsupported(f"sparse or scaled {i.name} is not supported")
        if not i.has("row") or not i.has("col") or len(kinds) != 4:
            raise Unsupported(f"{i.name}")
        return bind_mma(shape_of(i), kinds[0], kinds[1], kinds[2], kinds[3], i.has("satfinite"))
    except InternalError as error:
        raise Unsupported(str(error)) from None


@operation("mma", "9.7.14.5.14", pipe="tensor", kind="warp")
def mma(i: Instruction, b: Binder) -> Action:
    """Compute D = a × b + c on the registers of whole warps."""
    return bind_products([i], b)


def bind_products(group: list[Instruction], b: Binder) -> Action:
    """Bind independent matrix products of one kind to run as a single product."""
    function = mma_of(group[0])
    batch, shared, active_of = b.state.batch, b.state.shared, b.active
    wide = "f64" in group[0].modifiers
    kind = "64" if wide else "32"
    file = batch.registers.bits[kind]
    lanes = batch.lanes
    count = len(group)

    def rows(place: int) -> Array:
        """Return the rows of one operand, indexed first by register, then by instruction."""
        table = [[slot_of(item, b, kind) for item in items_of(i.operands[place])] for i in group]
        return np.array(table).T.reshape(-1)

    d_rows, sources = rows(0), [rows(place) for place in (1, 2, 3)]
    buffers = [np.empty((source.size, lanes), file.dtype) for source in sources]
    shapes = [(source.size // count, count * lanes // 32, 32) for source in sources]
    views = [buffer.reshape(shape) for buffer, shape in zip(buffers, shapes, strict=True)]
    take = file.take

    def run() -> None:
        active = active_of()
        shared.met(active)
        for source, buffer in zip(sources, buffers, strict=True):
            take(source, 0, buffer, "clip")
        result = function(*views).view(file.dtype).reshape(d_rows.size, lanes)
        if active.full:
            file[d_rows] = result
        else:
            file[d_rows[:, None], active.lanes] = result[:, active.lanes]

    return run


def slot_of(operand: Operand, b: Binder, kind: str) -> int:
    """Return the register row that holds an operand of a matrix instruction."""
    name = getattr(operand, "name", None)
    known = b.routine.slots.get(name) if isinstance(name, str) else None
    if known is not None and known[0] == kind:
        return known[1]
    if isinstance(operand, Immediate):
        return b.constant_row(operand, kind)
    raise Unsupported(f"operand {operand!r} of a matrix instruction is not supported")


@operation("ldmatrix", "9.7.14.5.15", pipe="load_store", kind="warp")
def ldmatrix(i: Instruction, b: Binder) -> Action:
    """Load 8×8 matrices from shared memory as rows of 16 bytes; each lane provides a row address."""
    if not i.has("m8n8") or not i.has("b16"):
        raise Unsupported(f"{i.name}")
    batch, active_of = b.state.batch, b.active
    outs = [b.dst(item, "u32") for item in items_of(i.operands[0])]
    move = matrix_move(len(outs), transposed=i.has("trans"))
    row, offset = address_rows(i.operands[1], b, "shared")
    generic = space_of(i) == "generic"
    count = len(outs)
    matrices, order = SharedAccess(b.state, b.pc, 16), b.state.order

    def run() -> None:
        active = active_of()
        part, address = _addressing(batch, active, row, generic, move.addressing_lanes)
        sound, rows = matrices.load(part, address, offset)
        if sound is None:
            return
        if order is not None:
            order.met(active)
        if sound.count * 32 != batch.lanes * move.addressing_lanes:
            spread = np.zeros(batch.lanes // 32 * move.addressing_lanes, rows.dtype)
            lanes = sound.lanes
            spread[lanes // 32 * move.addressing_lanes + lanes % 32] = rows
            rows = spread
        if not i.has("trans"):
            words = rows.view(np.uint32).reshape(-1, count, 32)
        else:
            halves = rows.view(np.uint16).reshape(-1, count, 4, 2, 8)
            words = np.ascontiguousarray(halves.transpose(0, 1, 4, 2, 3)).view(np.uint32).reshape(-1, count, 32)
        for place, out in enumerate(outs):
            if active.full:
                out.reshape(-1, 32)[...] = words[:, place]
            else:
                np.copyto(out.reshape(-1, 32), words[:, place], where=active.mask.reshape(-1, 32))

    return run


def _addressing(batch: Batch, active: Active, row: Array, generic: bool, lanes: int) -> tuple[Active, Array]:
    """Return the lanes that provide row addresses, and their addresses in shared space."""
    if lanes < 32:
        mask = active.mask & (batch.thread % 32 < lanes)
        active = Active(mask, int(np.count_nonzero(mask)), batch.lanes + 1)
    address = active.pick(row)
    if generic:
        address = widened(address) - np.uint64(SHARED_WINDOW)
    return active, address


@operation("stmatrix", "9.7.14.5.16", pipe="load_store", kind="warp", results=0)
def stmatrix(i: Instruction, b: Binder) -> Action:
    """Store 8×8 matrices to shared memory, as the inverse of ldmatrix."""
    if not i.has("m8n8") or not i.has("b16"):
        raise Unsupported(f"{i.name}")
    batch, active_of = b.state.batch, b.active
    sources = [b.src(item, "u32") for item in items_of(i.operands[1])]
    row, offset = address_rows(i.operands[0], b, "shared")
    generic = space_of(i) == "generic"
    count = len(sources)
    lanes_used = 8 * count
    matrices, order = SharedAccess(b.state, b.pc, 16), b.state.order

    def values(sound: Active) -> Array:
        words = np.stack([np.broadcast_to(source, (batch.lanes,)).reshape(-1, 32) for source in sources], 1)
        if i.has("trans"):
            halves = words.view(np.uint16).reshape(-1, count, 8, 4, 2)
            rows = np.ascontiguousarray(halves.transpose(0, 1, 3, 4, 2)).view("V16").reshape(-1)
        else:
            rows = np.ascontiguousarray(words).view("V16").reshape(-1)
        lanes = sound.lanes
        stored: Array = rows[lanes // 32 * lanes_used + lanes % 32]
        return stored

    def run() -> None:
        active = active_of()
        part, address = _addressing(batch, active, row, generic, lanes_used)
        sound = matrices.store(part, address, offset, values)
        if sound is not None and order is not None:
            order.met(active)

    return run


@operation("movmatrix", "9.7.14.5.17", pipe="load_store", kind="warp")
def movmatrix(i: Instruction, b: Binder) -> Action:
    """Transpose an 8×8 matrix across a warp."""
    active_of = b.active
    source, out = b.src(i.operands[1], "u32"), b.dst(i.operands[0], "u32")

    def run() -> None:
        active = active_of()
        halves = np.ascontiguousarray(source).view(np.uint16).reshape(-1, 8, 8)
        turned = np.ascontiguousarray(halves.transpose(0, 2, 1)).view(np.uint32).reshape(-1)
        np.copyto(out, turned, where=active.mask)

    return run


@operation("wmma", "9.7.14.4", pipe="tensor", kind="warp")
def wmma(i: Instruction, b: Binder) -> Action:
    """Load, multiply or store fragments (``wmma``)."""
    if i.has("mma"):
        return bind_products([i], b)
    return _wmma_move(i, b, store=i.has("store"))


def _wmma_move(i: Instruction, b: Binder, *, store: bool) -> Action:
    """Bind ``wmma.load`` and ``wmma.store``, which move each element of a fragment by its row and column."""
    state, batch, number, active_of = b.state, b.state.batch, b.pc, b.active
    operand = next(word for word in i.modifiers if word in ("a", "b", "c", "d"))
    kind = next(word for word in i.modifiers if word in _FACTOR)
    try:
        rows, columns = wmma_elements(shape_of(i), operand, kind)
    except InternalError as error:
        raise Unsupported(str(error)) from None
    size = _FACTOR[kind]
    packed = max(1, 4 // size)
    registers, where = (i.operands[1], i.operands[0]) if store else (i.operands[0], i.operands[1])
    items = items_of(registers)
    plain = "u64" if size == 8 else "u32"
    files = [b.src(item, plain) if store else b.dst(item, plain) for item in items]
    row, offset = address_rows(where, b, space_of(i))
    stride = b.src(i.operands[2], "u32") if len(i.operands) > 2 else None
    m, n, k = shape_of(i)
    extent = {"a": (m, k), "b": (k, n)}.get(operand, (m, n))
    major = i.has("row")
    pitch = extent[1] if major else extent[0]
    lane = np.arange(batch.lanes) % 32
    element = np.dtype(f"u{size}")
    access = element_access(state, number, space_of(i), size)
    lines, places = (rows, columns) if major else (columns, rows)
    way = moves(lines, places, size, rows_of_16_bytes=operand in ("a", "b") and size == 2)

    def run() -> None:
        active = active_of()
        state.shared.met(active)
        step = active.pick(stride).astype(np.int64) if stride is not None else np.int64(pitch)
        base = widened(active.pick(row))
        mine = lane[active.lanes]
        if state.events is not None and space_of(i) != "global":
            matrix = base + np.uint64(offset), np.asarray(step * size)
            count_moves(state, number, active, matrix, way, space_of(i))
        for place, file in enumerate(files):
            parts = np.empty((active.count, packed), element)
            if store:
                word = np.ascontiguousarray(np.broadcast_to(active.pick(file), (active.count,)))
                parts[...] = word.view(element).reshape(active.count, -1)
            for piece in range(packed):
                at = place * packed + piece
                r, c = rows[mine, at], columns[mine, at]
                move = (r * step + c if major else c * step + r) * size + offset
                address = base + move.astype(np.uint64)
                parts[:, piece] = access(active, address, parts[:, piece].copy() if store else None)
            if not store:
                active.put(file, parts.view(file.dtype).reshape(-1))
        state.shared.met(active)

    return run
