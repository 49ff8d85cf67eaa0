"""Instructions of warpgroups (four warps) on sm_90a: wgmma (PTX ISA 9.7.15) and setmaxnreg (9.7.19).

Each warp computes its own 16 of the 64 rows. If all warps of a warpgroup arrive together, the machine loads B only once
for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evokern.errors import InternalError
from evokern.ptx.matrix_shapes import shape_of
from evokern.ptx.syntax import Immediate, Instruction, Operand, Register, Vector
from evokern.ptx.unsupported import Unsupported
from evokern.simt.arrays import Action, Active, Array
from evokern.simt.batch import Batch
from evokern.simt.binder import Binder
from evokern.simt.matrix.descriptors import BASE_OFFSET, PIECE, STEP, pieces_of
from evokern.simt.matrix.wgmma import ROWS, WARP_ROWS, WARPS, WarpgroupProduct, bind_wgmma
from evokern.simt.memory.shared_memory import SharedSpace
from evokern.simt.operations.matrix_ops import items_of, slot_of
from evokern.simt.operations.table import operation

TARGET = "sm_90a"
"""The only supported architecture with these instructions."""
MAX_WAIT_GROUPS = 7
"""Maximum number of groups that ``wgmma.wait_group`` may leave in flight."""


def _check_target(i: Instruction, b: Binder) -> None:
    target = b.state.batch.program.target
    if target != TARGET:
        raise Unsupported(f"{i.name} requires target {TARGET}, but this code is compiled for {target}")


@operation("wgmma", "9.7.15", pipe="tensor", kind="warp")
def wgmma(i: Instruction, b: Binder) -> Action:
    """Bind ``wgmma.mma_async`` and its ordering instructions ``fence``, ``commit_group`` and ``wait_group``."""
    _check_target(i, b)
    state, active_of = b.state, b.active
    if i.has("mma_async"):
        return _bind_product(i, b)
    if i.has("fence"):
        return lambda: state.shared.met(active_of())
    if i.has("commit_group"):
        return lambda: state.products.commit(active_of())
    if i.has("wait_group"):
        most = _literal(i.operands[0], range(MAX_WAIT_GROUPS + 1), i)
        return lambda: state.products.wait(active_of(), most)
    raise Unsupported(f"{i.name}")


@operation("setmaxnreg", "9.7.19.5", pipe="control", kind="warp", results=0)
def setmaxnreg(i: Instruction, b: Binder) -> Action:
    """Bind ``setmaxnreg``, with which warps release or request registers; it has no effect on results."""
    _check_target(i, b)
    wanted = _literal(i.operands[0], range(24, 257, 8), i)
    state, active_of, number, more = b.state, b.active, b.pc, i.has("inc")
    return lambda: state.register_counts.change(active_of(), wanted, number, more=more)


def _literal(operand: Operand, legal: range | tuple[int, ...], i: Instruction) -> int:
    if not isinstance(operand, Immediate) or int(operand.value) not in legal:
        found = operand.value if isinstance(operand, Immediate) else "a register"
        raise Unsupported(f"{i.name} requires one of the literals {', '.join(map(str, legal))} here, not {found}")
    return int(operand.value)


@dataclass(frozen=True)
class Warps:
    """Warps that issue a product, in units of one warp or a whole warpgroup; the warps of a unit share descriptors."""

    columns: slice | Array
    """Lanes of the warps in the register file."""
    first: Array
    """First lane of each warp."""
    each: int
    """Warps per unit, four or one."""
    quarter: Array
    """Index of the quarter of the 64 rows that each warp computes."""

    @property
    def leaders(self) -> Array:
        """First lane of each unit."""
        return self.first[:: self.each]


@dataclass(frozen=True)
class Shared:
    """Operand of a product in shared memory."""

    row: Array
    """Descriptors: a row of registers or a single value."""
    extent: int
    """Rows along M or N."""
    transposed: bool
    """Whether the operand is MN-major."""

    def bits(self, first: Array) -> Array:
        """Return the descriptor of each of the given lanes."""
        return self.row[first] if self.row.shape[0] > 1 else np.broadcast_to(self.row, first.shape)

    def unusual(self, leaders: Array) -> bool:
        """Return whether a descriptor has a base offset, which is not supported."""
        return bool((self.bits(leaders) & BASE_OFFSET).any())

    def addresses(self, leaders: Array) -> Array:
        """Return the addresses of the operand's pieces in the block's shared memory; the first axis is the unit."""
        found, unit = np.unique(self.bits(leaders), return_inverse=True)
        pieces = np.stack([pieces_of(int(bits), self.extent, self.transposed) for bits in found])
        return np.broadcast_to(pieces, (leaders.size, *pieces.shape[1:])) if found.size == 1 else pieces[unit]


def _bind_product(i: Instruction, b: Binder) -> Action:
    product, left, right = operands(i, b)
    state, batch, number, active_of = b.state, b.state.batch, b.pc, b.active
    file = batch.registers.bits["32"]
    d_rows = np.array([slot_of(item, b, "32") for item in items_of(i.operands[0])])
    keep = added(i, b)
    factors = [factor for factor in (left, right) if isinstance(factor, Shared)]

    def gather(rows: Array, warps: Warps) -> Array:
        taken = file.take(rows, 0) if isinstance(warps.columns, slice) else file[rows[:, None], warps.columns]
        return taken.reshape(rows.size, -1, 32)

    def run() -> None:
        active = active_of()
        if not active.count:
            return
        state.shared.met(active)
        warps = warps_of(batch, active, factors)
        if any(factor.unusual(warps.leaders) for factor in factors):
            raise batch.program.refuse(i, "a matrix descriptor with a base offset is not supported")
        b_at = right.addresses(warps.leaders)
        if isinstance(left, Shared):
            a_at = own_rows(left.addresses(warps.leaders), warps, left.transposed)
            own = _by_lane(_in_order_of_warps(a_at, left.transposed), warps)
            a_values = product.left(_load(state.shared, a_at, warps), transposed=left.transposed)
        else:
            own = []
            a_values = product.left_of_registers(gather(left, warps)).reshape(warps.leaders.size, -1, STEP)
        common = _by_lane(b_at.reshape(b_at.shape[0], -1), warps)
        b_values = product.right(_load(state.shared, b_at, warps), transposed=right.transposed)
        here = None if isinstance(warps.columns, slice) else active.mask[warps.columns]
        whole = here is None or bool(here.all())
        if whole:
            state.products.issue(active, own, common, number, 32 * warps.each)
        else:
            state.products.issue(active, [row[here] for row in own], [row[here] for row in common], number, 0)
        result = product(a_values, b_values, gather(d_rows, warps), keep(warps)).reshape(d_rows.size, -1)
        if isinstance(warps.columns, slice):
            file[d_rows] = result
        elif whole:
            file[d_rows[:, None], warps.columns] = result
        else:
            file[d_rows[:, None], active.lanes] = result[:, here]

    return run


def added(i: Instruction, b: Binder) -> Callable[[Warps], Array]:
    """Return a function that returns whether each warp adds its product to D."""
    scale = i.operands[3]
    row = b.src(Register(scale.name) if isinstance(scale, Register) else scale, "pred")
    drop = isinstance(scale, Register) and scale.negated
    return lambda warps: (row[warps.first] if row.shape[0] > 1 else np.broadcast_to(row, warps.first.shape)) ^ drop


def operands(i: Instruction, b: Binder) -> tuple[WarpgroupProduct, Array | Shared, Shared]:
    """Return the product, A (rows of registers, or an operand in shared memory) and B."""
    in_registers = isinstance(i.operands[1], Vector)
    kinds = [word for word in i.modifiers if word in ("f16", "bf16", "f32", "tf32", "e4m3", "e5m2", "s32", "s8", "u8")]
    if i.has("sp") or len(kinds) != 3 or kinds[1] != kinds[2] or len(i.operands) != (7 if in_registers else 8):
        raise Unsupported(f"{i.name}")
    signs = [_literal(operand, (1, -1), i) for operand in i.operands[4:6]]
    turns = [bool(_literal(operand, (0, 1), i)) for operand in i.operands[6:]]
    try:
        product = bind_wgmma(shape_of(i), kinds[0], kinds[1], signs[0] * signs[1] < 0)
    except InternalError as error:
        raise Unsupported(str(error)) from None
    if len(items_of(i.operands[0])) != product.registers or (in_registers and len(items_of(i.operands[1])) != 4):
        raise Unsupported(f"{i.name} needs {product.registers} registers for D and 4 for A")
    right = Shared(b.src(i.operands[2], "u64"), product.columns, turns[-1])
    if in_registers:
        return product, np.array([slot_of(item, b, "32") for item in items_of(i.operands[1])]), right
    return product, Shared(b.src(i.operands[1], "u64"), ROWS, turns[0]), right


def warps_of(batch: Batch, active: Active, factors: list[Shared]) -> Warps:
    """Return the warps that issue a product, as whole warpgroups if they arrived together with equal descriptors."""
    a_block = batch.geometry.width // 32
    warp = np.arange(batch.lanes // 32) if active.all else np.unique(active.lanes >> 5)
    columns = slice(None) if active.all else (warp[:, None] * 32 + np.arange(32)).reshape(-1)
    within, first = warp % a_block, warp * 32
    together = warp.size % WARPS == 0
    if together:
        each = np.arange(WARPS)
        groups, places = warp.reshape(-1, WARPS), within.reshape(-1, WARPS)
        together = bool((groups - groups[:, :1] == each).all() and (places % WARPS == each).all())
    for factor in factors:
        bits = factor.bits(first)
        together = together and bool((bits.reshape(-1, WARPS) == bits[::WARPS, None]).all())
    return Warps(columns, first, WARPS if together else 1, within % WARPS)


def own_rows(addresses: Array, warps: Warps, transposed: bool) -> Array:
    """Return the pieces of A that the warps of each unit need: all pieces, or the 16 rows of one warp."""
    if warps.each == WARPS:
        return addresses
    unit = np.arange(addresses.shape[0])[:, None]
    if not transposed:
        return addresses[unit, warps.quarter[:, None] * WARP_ROWS + np.arange(WARP_ROWS)]
    return addresses.swapaxes(1, 2)[unit, warps.quarter[:, None] * 2 + np.arange(2)].swapaxes(1, 2)


def _in_order_of_warps(addresses: Array, transposed: bool) -> Array:
    """Return the pieces of A, starting with those of each unit's first warp."""
    units = addresses.shape[0]
    if transposed:
        addresses = addresses.reshape(units, addresses.shape[1], -1, 2).swapaxes(1, 2)
    return addresses.reshape(units, -1)


def _by_lane(addresses: Array, warps: Warps) -> list[Array]:
    """Distribute each unit's pieces over its lanes, as rows with one address per lane."""
    lanes = 32 * warps.each
    rounds = -(-addresses.shape[1] // lanes)
    spread = addresses[:, np.arange(rounds * lanes) % addresses.shape[1]].reshape(-1, rounds, lanes)
    return [spread[:, number].reshape(-1) for number in range(rounds)]


def _load(shared: SharedSpace, addresses: Array, warps: Warps) -> Array:
    """Return the pieces at these addresses, from the memory of each unit's block."""
    index = addresses + shared.base[warps.leaders].reshape(-1, *(1 for _ in addresses.shape[1:]))
    return shared.view(PIECE).take(index // PIECE, mode="clip")
