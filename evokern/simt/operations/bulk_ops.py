"""Bulk copies (PTX ISA 9.7.9.25.4), tensor copies (9.7.9.25.5), and the barrier objects (9.7.13.15) that count them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evokern.hardware.tensor_map import BYTES, SWIZZLES, TensorMap, unpacked
from evokern.ptx.syntax import Address, Immediate, Instruction, Operand, Sink
from evokern.ptx.unsupported import Unsupported
from evokern.simt.arrays import Action, Active, Array, Repeated
from evokern.simt.batch import Occurrence
from evokern.simt.binder import Binder
from evokern.simt.clusters.layout import RANK_BITS
from evokern.simt.memory.buffers import SHARED_WINDOW
from evokern.simt.memory.bulk_copies import Arrival
from evokern.simt.memory.global_space import AccessSite
from evokern.simt.memory.mbarrier_state import MbarrierCall
from evokern.simt.memory.tensor_tiles import CHUNK, Pieces, linear_pieces, tile_pieces
from evokern.simt.operations.memory_ops import address_rows, lane_addresses, reaches_cluster, space_of
from evokern.simt.operations.spaces import widened
from evokern.simt.operations.table import operation
from evokern.simt.state import MachineState

_ONE = np.ones(1, np.int64)
_OWN = np.uint64((1 << RANK_BITS) - 1)
SWIZZLED_ALIGNMENT = 128
"""Alignment of a tile in shared memory, bytes (CUDA Programming Guide, "Tensor Memory Access")."""


def bind_bulk_copy(i: Instruction, b: Binder) -> Action:
    """Bind a bulk copy, or an instruction for the groups of bulk copies."""
    state, active_of = b.state, b.active
    if i.has("prefetch"):
        return lambda: None
    if i.has("commit_group"):
        return lambda: state.bulk.commit(active_of())
    if i.has("wait_group"):
        operand = i.operands[0]
        if not isinstance(operand, Immediate):
            raise Unsupported(f"{i.name} with a register operand")
        most = int(operand.value)
        return lambda: state.bulk.wait(active_of(), most)
    if i.has("reduce") or any(word.startswith(("im2col", "tile::")) for word in i.modifiers):
        raise Unsupported(f"{i.name}")
    if i.has("bulk_group"):
        return _bind_store(i, b)
    return _bind_load(i, b)


@dataclass(frozen=True)
class _Part:
    """Lanes whose copies have the same shape."""

    active: Active
    shared: Array
    """Address of each lane's tile in shared memory."""
    pieces: Pieces
    extents: Array
    """Bytes of each lane's tile."""
    text: str = ""
    """The tile, for messages."""


class _Shape:
    """Operands that determine which bytes a copy moves."""

    def __init__(self, i: Instruction, b: Binder, shared: Operand, memory: Operand, size: Operand | None) -> None:
        self._state, self._number = b.state, b.pc
        self._shared, self._memory = lane_addresses(shared, b, "shared"), lane_addresses(memory, b, "global")
        self._size = b.src(size, "u32") if size is not None else None
        items = memory.coordinates.items if isinstance(memory, Address) and memory.coordinates is not None else ()
        self._corner = [b.src(item, "s32") for item in items]
        if i.has("tensor") and not i.has(f"{len(items)}d"):
            raise Unsupported(f"{i.name} with {len(items)} coordinates")

    def parts(self, active: Active) -> list[_Part]:
        """Return the copies of the active lanes by shape, without those that are reported as invalid."""
        return self._linear(active) if self._size is not None else self._tiles(active)

    def _linear(self, active: Active) -> list[_Part]:
        sizes = np.broadcast_to(active.pick(self._size), (active.count,)).astype(np.int64)  # type: ignore[arg-type]
        good = (sizes % CHUNK == 0) & (sizes > 0)
        if not good.all():
            detail = f"A bulk copy of {int(sizes[~good][0])} bytes is not a positive multiple of {CHUNK}"
            self._misaligned(active.lanes[~good], detail)
            active, sizes = self._state.batch.restrict(active, good), sizes[good]
            if not active.count:
                return []
        return [_Part(active, self._shared(active), linear_pieces(self._memory(active).view(np.int64), sizes), sizes)]

    def _misaligned(self, lanes: Array, detail: str) -> None:
        batch = self._state.batch
        batch.report("misaligned", Occurrence.of(self._number, lanes), detail=detail)
        if not batch.options.past_misaligned:
            batch.stop()

    def _tiles(self, active: Active) -> list[_Part]:
        state, rank = self._state, len(self._corner)
        site, width = AccessSite(self._number, CHUNK), BYTES // CHUNK
        lanes = Repeated(active, np.repeat(np.arange(active.count), width))
        at = (self._memory(active)[:, None] + np.arange(0, BYTES, CHUNK, dtype=np.uint64)).reshape(-1)
        sound, index = state.globals.locate(lanes, at, 0, site, write=False)
        if sound is not lanes:
            return []
        raw = state.globals.view(CHUNK).take(index, mode="clip").view(np.uint8).reshape(-1, BYTES)
        groups: dict[TensorMap | None, list[int]] = {}
        starts = np.zeros(active.count, np.uint64)
        for place, row in enumerate(raw):
            found = unpacked(row.tobytes())
            groups.setdefault(None if found is None or found[0].rank != rank else found[0], []).append(place)
            starts[place] = 0 if found is None else found[1]
        shared = self._shared(active)
        rows = [np.broadcast_to(active.pick(row), (active.count,)) for row in self._corner]
        corner = np.stack(rows, 1).astype(np.int64)
        parts = []
        for shape, members in groups.items():
            chosen = np.zeros(active.count, np.bool_)
            chosen[members] = True
            some = active if chosen.all() else state.batch.restrict(active, chosen)
            if shape is None:
                what = unpacked(raw[members[0]].tobytes())
                detail = f"The tensor map has {what[0].rank} dimensions, but the copy has {rank}" if what else ""
                detail = detail or "The address of the tensor map does not contain one"
                state.batch.report("tensor_map", Occurrence.of(self._number, some.lanes), detail=detail)
                continue
            if SWIZZLES[shape.swizzle] > shape.box[0] * shape.element_bytes:
                inner = shape.box[0] * shape.element_bytes
                detail = (
                    f"a tile with rows of {inner} bytes and swizzle {shape.swizzle} is not supported: fill the span"
                )
                raise state.batch.program.refuse(state.batch.program.instructions[self._number], detail)
            bad = (shared[chosen] & np.uint64(SWIZZLED_ALIGNMENT - 1)) != 0
            if bad.any():
                detail = f"A tile in shared memory must start at a multiple of {SWIZZLED_ALIGNMENT} bytes"
                self._misaligned(some.lanes[bad], detail)
            pieces = tile_pieces(shape, starts[chosen], corner[chosen], shared[chosen])
            extents = np.full(some.count, shape.tile_bytes)
            text = f"the tile is {'×'.join(map(str, reversed(shape.tile)))} {shape.dtype}"
            parts.append(_Part(some, shared[chosen], pieces, extents, text))
        return parts


def _bind_load(i: Instruction, b: Binder) -> Action:
    """Bind a copy to shared memory that signals a barrier object there."""
    state, number, active_of = b.state, b.pc, b.active
    tensor, operands = i.has("tensor"), i.operands
    if not i.has("global"):
        raise Unsupported(f"{i.name} between blocks")
    size, rest = (None, operands[2:]) if tensor else (operands[2], operands[3:])
    shape, barrier = _Shape(i, b, operands[0], operands[1], size), lane_addresses(rest[0], b, "shared")
    masks = b.src(rest[1], "u16") if i.has("multicast::cluster") else None
    call = MbarrierCall(number=number, cluster=reaches_cluster(i))

    def run() -> None:
        active = active_of()
        if not active.count:
            return
        stamp = state.bulk.now()
        for part in shape.parts(active):
            loaded = 0 if state.events is None else state.events.tally.arrays["load_sectors"][number]
            data = state.bulk.fetch(part.active, part.pieces, number, state.events)
            there = barrier(part.active)
            if masks is None:
                _send(state, _Sent(part, data, there, np.arange(part.active.count)), call, stamp)
                continue
            wanted = np.broadcast_to(part.active.pick(masks), (part.active.count,)).astype(np.int64)
            if state.events is not None:
                state.events.multicast(number, loaded, (wanted[:, None] >> np.arange(16) & 1).sum(1))
            for rank in range(16):
                named = np.flatnonzero(wanted >> rank & 1)
                if named.size:
                    _send(state, _Sent(part, data, there, named, rank), call, stamp)
        state.bulk.issued()

    return run


@dataclass(frozen=True)
class _Sent:
    """Copies of some lanes to their own addresses or, in a multicast, to the block of one rank."""

    part: _Part
    data: tuple[Array, Array | None]
    barrier: Array
    """Address of each lane's barrier object."""
    chosen: Array
    """Positions of the lanes that copy."""
    rank: int = -1

    def to_rank(self, address: Array) -> Array:
        """Return addresses of the chosen lanes, moved to the rank."""
        found: Array = address[self.chosen]
        return found if self.rank < 0 else found & _OWN | np.uint64(self.rank << RANK_BITS)


def _send(state: MachineState, sent: _Sent, call: MbarrierCall, stamp: int) -> None:
    """Let tiles arrive in shared memory, and signal the barrier objects in the same blocks."""
    part, number = sent.part, call.number
    some = np.zeros(part.active.count, np.bool_)
    some[sent.chosen] = True
    active = part.active if some.all() else state.batch.restrict(part.active, some)
    tiles, first = state.bulk.place(
        active, sent.to_rank(part.shared), part.extents[sent.chosen], number, cluster=call.cluster
    )
    found, places = state.mbarriers.locate(active, sent.to_rank(sent.barrier), call)
    if tiles is None or found is not active:
        return
    if not state.mbarriers.same_block(active, sent.to_rank(part.shared), sent.to_rank(sent.barrier), number):
        return
    data, words = sent.data
    step = -1 if state.events is None else state.events.step
    bounds = np.searchsorted(part.pieces.chunk_owner, np.arange(part.active.count + 1))
    for at, lane in enumerate(active.lanes.tolist()):
        mine = slice(*bounds[sent.chosen[at] : sent.chosen[at] + 2])
        index = first[at] + part.pieces.chunks[mine] // CHUNK
        kept = None if words is None else words[mine]
        if state.mbarriers.overwritten(lane, index, CHUNK, number):
            continue
        state.mbarriers.expects_copy(lane, int(places[at]), number)
        state.bulk.issue(
            Arrival(
                lane=lane,
                index=index,
                data=data[mine],
                number=number,
                stamp=stamp,
                step=step,
                tile=part.text,
                words=kept,
            ),
            int(places[at]),
        )


def _bind_store(i: Instruction, b: Binder) -> Action:
    """Bind a copy from shared to global memory."""
    state, number, active_of = b.state, b.pc, b.active
    if i.has("cp_mask"):
        raise Unsupported(f"{i.name}")
    size = None if i.has("tensor") else i.operands[2]
    shape = _Shape(i, b, i.operands[1], i.operands[0], size)

    def run() -> None:
        active = active_of()
        if not active.count:
            return
        state.bulk.now()
        for part in shape.parts(active):
            tiles, first = state.bulk.place(part.active, part.shared, part.extents, number)
            if tiles is None:
                continue
            bounds = np.searchsorted(part.pieces.chunk_owner, np.arange(part.active.count + 1))
            index = first[part.pieces.chunk_owner] + part.pieces.chunks // CHUNK
            for at, lane in enumerate(part.active.lanes.tolist()):
                state.bulk.read(lane, index[slice(*bounds[at : at + 2])], number)
            state.bulk.deliver(part.active, part.pieces, index, number, state.events)
        state.bulk.issued()

    return run


@operation("mbarrier", "9.7.13.15", pipe="load_store", kind="effect", results=1)
def mbarrier(i: Instruction, b: Binder) -> Action:
    """Initialise an mbarrier, arrive at it, announce bytes, test it or wait for it."""
    state, active_of = b.state, b.active
    kind = i.modifiers[0]
    operands = list(i.operands)
    result: Operand | None = None
    if operands and not isinstance(operands[0], Address):
        result = operands.pop(0)
    if kind == "pending_count":
        raise Unsupported(f"{i.name}")
    row, offset = address_rows(operands[0], b, "shared")
    generic = space_of(i) == "generic"
    call = MbarrierCall(
        number=b.pc,
        offset=offset,
        relaxed=i.has("relaxed"),
        drop=kind == "arrive_drop",
        parity=i.has("parity"),
        cluster=reaches_cluster(i),
        near=i.has("cta") and state.batch.geometry.ranks > 1,
    )

    def where() -> Array:
        address = active_of().pick(row)
        return widened(address) - np.uint64(SHARED_WINDOW) if generic else address

    if kind in ("init", "inval"):
        count = b.src(operands[1], "u32") if kind == "init" else None
        return lambda: state.mbarriers.init(
            active_of(), where(), call, None if count is None else active_of().pick(count)
        )
    if kind in ("expect_tx", "complete_tx"):
        amount = b.src(operands[1], "u32")
        sign = 1 if kind == "expect_tx" else -1
        return lambda: state.mbarriers.expect(
            active_of(), where(), call, active_of().pick(amount).astype(np.int64) * sign
        )
    if kind in ("arrive", "arrive_drop"):
        announce = i.has("expect_tx")
        extra = b.src(operands[1], "u32") if len(operands) > 1 else None
        out = None if result is None or isinstance(result, Sink) else b.dst(result, "u64")

        def arrive() -> None:
            active = active_of()
            value = active.pick(extra).astype(np.int64) if extra is not None else _ONE
            counts, expect = (_ONE, value) if announce else (value, None)
            tokens = state.mbarriers.arrive(active, where(), call, counts, expect)
            if out is not None:
                active.put(out, tokens)

        return arrive
    if kind in ("test_wait", "try_wait") and result is not None:
        token = b.src(operands[1], "u32" if call.parity else "u64")
        flag = b.dst(result, "pred")

        def wait() -> None:
            active = active_of()
            active.put(flag, state.mbarriers.done(active, where(), call, active.pick(token)))

        return wait
    raise Unsupported(f"{i.name}")
