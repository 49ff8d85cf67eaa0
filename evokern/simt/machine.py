"""The machine: many blocks of one launch (or several) run in lockstep over NumPy rows.

All lanes of a batch stand side by side: block after block, warp after warp, 32 lanes a warp. The scheduler keeps groups
of lanes, one group per segment where lanes wait to run, and always runs the group that is lowest in the code (deepest
call first). Lanes that diverged meet again where their paths join, since whoever is behind runs first. A group that
only polls (spins on a lock or a flag) is interrupted from time to time so that those it waits for make progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from evokern.errors import SourceError
from evokern.simt.arrays import Action, Active, Array
from evokern.simt.asynccopy import AsyncCopies
from evokern.simt.barriers import Barriers
from evokern.simt.counters import EventCounter, Tally
from evokern.simt.endless import Endless
from evokern.simt.gates import Gates
from evokern.simt.global_shadow import GlobalShadow
from evokern.simt.globals import GlobalSpace
from evokern.simt.group_binding import GROUP_ELEMENTS, bind_group
from evokern.simt.objects import BarrierObjects
from evokern.simt.operations.control import bind_control
from evokern.simt.operations.table import binding_of
from evokern.simt.program import Program
from evokern.simt.proxies import ProxyFences
from evokern.simt.registers import Binder, RegisterFile, immediate_bits
from evokern.simt.reporter import Reporter
from evokern.simt.scratchpad import LocalSpace, ParamSpace, SharedSpace
from evokern.simt.segments import Segment, Unit
from evokern.simt.settings import Bound, Geometry, Options
from evokern.simt.specials import Specials
from evokern.simt.syntax import Immediate, Symbol
from evokern.simt.unsupported import Unsupported
from evokern.simt.warpgroup import WarpgroupProducts

if TYPE_CHECKING:
    from evokern.simt.findings import Collector
    from evokern.simt.memory import Memory

MAX_DEPTH = 64
"""Most nested device function calls."""
PATIENCE = 4000
"""Segments that other lanes run, polls counting fifty-fold, before a waiting group gets its turn out of order."""
BURST = 256
"""Segments that such a group may then run."""
LEAST_WARPS = 32
"""An instruction counts at least so many warps against the limit: about what the engine's cost an instruction is
worth."""


class Stopped(Exception):  # noqa: N818 - not an error of evokern: the launch ended early with a finding
    """The launch cannot go on: trap, misaligned access, instruction limit."""


class Machine(Reporter):
    """One batch of blocks; `load` gives it the next blocks of the same shape."""

    def __init__(
        self,
        program: Program,
        memory: Memory,
        geometry: Geometry,
        params: Array,
        symbols: dict[str, Array],
        dynamic_shared: int,
        options: Options,
        collectors: Sequence[Collector],
        global_shadow: GlobalShadow | None = None,
        tally: Tally | None = None,
    ) -> None:
        self.global_shadow = global_shadow
        self.program = program
        self.memory = memory
        self.geometry = geometry
        self.options = options
        self.collectors = collectors
        self.lanes = geometry.blocks * geometry.width
        self.registers = RegisterFile(program.rows, self.lanes)
        self.block_slot = np.repeat(np.arange(geometry.blocks), geometry.width)
        self.thread = np.tile(np.arange(geometry.width), geometry.blocks)
        self.launch = np.zeros(self.lanes, np.int64)
        self.block_id = np.zeros(self.lanes, np.int64)
        self.exists = np.tile(np.arange(geometry.width) < geometry.threads, geometry.blocks)
        self.live = self.exists.copy()
        self.live_count = int(np.count_nonzero(self.live))
        self.active = Active(self.live, self.live_count, self.live_count)
        self.everyone = self.live_count
        self.groups: dict[int, Active] = {}
        self.waiting_since: dict[int, int] = {}
        self.issued = 0
        self.reads = 0
        self.clock = 0
        self.printed: dict[int, list[tuple[int, str]]] = {}
        self.pc = -1
        self.symbols = symbols
        self.events = EventCounter(self, tally) if tally is not None else None
        self.specials = Specials(self)
        self.shared = SharedSpace(self, program.static_shared, dynamic_shared)
        self.local = LocalSpace(self)
        self.params = ParamSpace(self, params)
        self.globals = GlobalSpace(self)
        self.barriers = Barriers(self)
        self.gates = Gates(self)
        self.copies = AsyncCopies(self)
        self.products = WarpgroupProducts(self)
        self.proxies = ProxyFences(self)
        self.objects = BarrierObjects(self)
        self.look_at = 0
        self.endless = Endless(self)
        self._carry: Array | None = None
        self.depth = 0
        self.inside: dict[int, Array] = {}
        self.return_copies: dict[int, dict[int, tuple[int, int, int]]] = {}
        self.returns: list[Array] = []
        self.count = len(program.segments)
        self._effects: dict[int, Action] = {}
        self.bound = [self._prepare(segment) for segment in program.segments]

    # ---- what operations ask for

    def special(self, name: str) -> Array | None:
        """Return the row of a special register, None when it is not known."""
        return self.specials.row(name)

    def special_type(self, name: str) -> str | None:
        """Return the type of a special register, None when the name is an ordinary one."""
        return self.specials.type(name)

    def address_row(self, unit: Unit, symbol: Symbol) -> Array:
        """Return the address of a variable in its own state space, as 64-bit row."""
        name = symbol.name
        shared = self.program.shared.get(name)
        if shared is not None:
            return np.array([shared[0] + symbol.offset], np.uint64)
        if name in unit.depot:
            return np.array([unit.depot[name] + symbol.offset], np.uint64)
        if name in unit.params:
            raise Unsupported(f"address of the call parameter {name}")
        if unit.function.is_entry and any(item.name == name for item in unit.function.params):
            return self.params.address(name, symbol.offset)
        row = self.symbols.get(name)
        if row is not None:
            return self.params.per_lane(row + np.uint64(symbol.offset))
        if name in self.program.unit_of:
            return np.array([self.program.unit_of[name].number], np.uint64)
        raise Unsupported(f"address of {name}, which is not a variable of this module")

    def check_symbol(self, name: str) -> None:
        """Raise for symbols that cannot be had; for the check before a launch."""
        if name not in self.symbols and name not in self.program.shared:
            raise Unsupported(f"unknown symbol {name}")

    # ---- binding

    def _prepare(self, segment: Segment) -> Bound:
        bound = Bound(segment, fall=segment.index + 1, size=segment.stop - segment.start)
        instructions = segment.unit.function.instructions[segment.start : segment.stop]
        bound.polls = any(
            item.opcode in ("atom", "nanosleep", "mbarrier") or item.has("volatile", "acquire", "relaxed")
            for item in instructions
        )
        bound.leaves = bound.size == 1 and instructions[0].opcode in ("ret", "exit")
        return bound

    def bind(self, bound: Bound, masked: bool) -> list[Action]:
        """Bind the steps of a segment for a full or a partial mask."""
        segment = bound.segment
        binder = Binder(self)
        steps: list[Action] = []
        stop = segment.stop - (1 if segment.control else 0)
        base = segment.base
        look = self.products.registers.look
        for item in self.program.plan(segment, GROUP_ELEMENTS // self.lanes):
            if self.products.registers.watched:
                for position in (item,) if isinstance(item, int) else item:
                    steps += look(base + position)
            if isinstance(item, int):
                steps.append(self._bind_one(binder, segment.unit, base + item, masked))
            else:
                single = partial(self._bind_at, Binder(self), segment.unit, base, masked)
                steps.append(bind_group(self, segment, item, single))
        if segment.control and bound.end is None:
            number = segment.base + stop - segment.start
            binder.start(segment.unit, number, False)
            binder.guard = None
            instruction = self.program.instructions[number]
            try:
                bound.end = bind_control(self, binder, segment, instruction)
            except Unsupported as verdict:
                raise self.program.refuse(instruction, str(verdict)) from None
        if masked:
            bound.masked = steps
        else:
            bound.full = steps
        return steps

    def _bind_at(self, binder: Binder, unit: Unit, base: int, masked: bool, position: int) -> Action:
        return self._bind_one(binder, unit, base + position, masked)

    def _bind_one(self, binder: Binder, unit: Unit, number: int, masked: bool) -> Action:
        instruction = self.program.instructions[number]
        operation = self.program.operations[number]
        if operation.kind == "effect" and number in self._effects:
            return self._effects[number]
        binder.start(unit, number, masked and operation.kind == "lanes")
        binder.guard = None
        try:
            if instruction.guard is not None:
                binder.guard = binder.src(instruction.guard, "pred")
                binder.guard_negated = instruction.guard.negated
            if operation.kind == "effect":
                binder.begin_effect()
                action = self._effects[number] = binding_of(operation)(instruction, binder)
                return action
            return binder.finish(binding_of(operation)(instruction, binder))
        except Unsupported as verdict:
            raise self.program.refuse(instruction, str(verdict)) from None

    # ---- running

    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Set up the blocks to run.

        Args:
            pairs: (launch, linear block id), as many as the geometry has blocks.
        """
        width = self.geometry.width
        self.launch[:] = np.repeat([launch for launch, _ in pairs], width)
        self.block_id[:] = np.repeat([block for _, block in pairs], width)
        self.live[:] = self.exists
        self.live_count = int(np.count_nonzero(self.live))
        self.groups.clear()
        self.waiting_since.clear()
        self.issued = 0
        for kind in self.registers.bits.values():
            kind.fill(0)
        for (kind_name, literal), row in self.program.constant_rows.items():
            self.registers.bits[kind_name][row] = immediate_bits(literal, "u64" if kind_name == "64" else "u32")
        self.specials.load()
        self.params.load()
        self.shared.load()
        self.local.load()
        self.globals.load()
        self.barriers.load()
        self.gates.load()
        self.copies.load()
        self.products.load()
        self.proxies.load()
        self.objects.load()
        self.endless.load()
        for inside in self.inside.values():
            inside.fill(False)
        if self.events is not None:
            self.events.load()

    def run(self) -> None:
        """Run the loaded blocks to their end.

        Raises:
            Stopped: the launch ended early; the finding says why.
        """
        first = self.program.unit_of[self.program.entry.name].first_segment
        self.push(self.key(0, first), Active(self.live.copy(), self.live_count, self.live_count))
        groups, since = self.groups, self.waiting_since
        with np.errstate(all="ignore"):
            while True:
                if not groups:
                    if not self.gates.retry() and not self.gates.force():
                        break
                    continue
                key = min(groups)
                burst = -1
                if len(groups) > 1:
                    oldest = min(since, key=since.__getitem__)
                    if self.clock - since[oldest] > PATIENCE and oldest != key:
                        key, burst = oldest, BURST
                active = groups.pop(key)
                del since[key]
                self._execute(key, active, burst)
        self.barriers.report_stuck()
        self.copies.finish()
        self.products.finish()

    def key(self, depth: int, segment: int) -> int:
        """Return the rank of a segment at a call depth: deeper first, then by layout."""
        return (MAX_DEPTH - depth) * self.count + segment

    def push(self, key: int, active: Active) -> None:
        """Let lanes wait to run a segment; those already there are joined."""
        known = self.groups.get(key)
        if known is None:
            self.groups[key] = active
            self.waiting_since[key] = self.clock
        else:
            self.groups[key] = Active(known.mask | active.mask, known.count + active.count, self.live_count)

    def _execute(self, key: int, active: Active, burst: int) -> None:
        groups = self.groups
        level = key // self.count
        base = level * self.count
        self.depth = MAX_DEPTH - level
        index = key - base
        while True:
            bound = self.bound[index]
            self.at = bound
            if bound.segment.gate:
                passed = self.gates.enter(bound, base + index, active)
                if passed is None:
                    return
                active = passed
            self.active = active
            warps = active.warps
            if self.events is not None:
                self.events.segment(index, active)
            bound.threads += active.count
            bound.warps += warps
            if not active.all and active.count != 32 * warps:
                bound.partial += self._partial(active)
            self.issued += bound.size * (warps if warps > LEAST_WARPS else LEAST_WARPS)
            if self.issued > self.look_at:
                self.endless.look(bound, base + index, active, burst)
            self.clock += 50 if bound.polls else 1
            if (self.barriers.pending or self.gates.parked) and not bound.leaves:
                self.barriers.note_work(active)
            if active.full:
                steps = bound.full
                if steps is None:
                    steps = self.bind(bound, False)
            else:
                steps = bound.masked
                if steps is None:
                    steps = self.bind(bound, True)
            for step in steps:
                step()
            following = bound.fall if bound.end is None else bound.end(active)
            if following < 0:
                return
            index = following
            if groups:
                if burst > 0:
                    burst -= 1
                    if base + index not in groups and burst:
                        continue
                elif (
                    base + index < min(groups)
                    and len(groups) < 2
                    and self.clock - min(self.waiting_since.values()) <= PATIENCE
                ):
                    continue
                self.push(base + index, active)
                return

    def _partial(self, active: Active) -> int:
        shaped = active.mask.reshape(-1, 32)
        live = self.live.reshape(-1, 32)
        return int(np.count_nonzero(shaped.any(1) & (shaped != live).any(1)))

    def restrict(self, active: Active, good: Array) -> Active:
        """Return the active lanes for which a condition, one value per active lane, holds."""
        mask = np.zeros(self.lanes, np.bool_)
        mask[active.lanes[good]] = True
        return Active(mask, int(np.count_nonzero(good)), self.live_count)

    def carry(self) -> Array:
        """Return the carry flag (PTX ISA 9.7.2), a hidden predicate."""
        if self._carry is None:
            self._carry = np.zeros(self.lanes, np.bool_)
        return self._carry

    def stop(self) -> None:
        """End the launch early, after a finding that says why."""
        raise Stopped

    def constant_row(self, operand: Immediate, kind: str) -> int:
        """Return the number of a row of the register file that holds a literal."""
        row = self.program.constant_rows.get((kind, operand))
        if row is None:
            raise Unsupported(f"literal {operand.value!r} in this place")
        return row

    def leave(self, mask: Array, count: int) -> None:
        """Take lanes out of the launch: they have returned from the kernel."""
        self.live[mask] = False
        self.live_count -= count
        self.barriers.recheck()

    def stop_hung(self, bound: Bound, detail: str) -> None:
        """End a launch that does not end by itself."""
        self.report("instruction_limit", bound.segment.base, int(self.active.lanes[0]), detail=detail)
        raise Stopped


def check(machine: Machine) -> None:
    """Bind everything once, so that what cannot be executed is refused before any run.

    Raises:
        SourceError: an instruction that the machine does not execute, with its line.
    """
    for bound in machine.bound:
        try:
            machine.bind(bound, False)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            segment = bound.segment
            raise SourceError(
                f"function {segment.unit.function.name}: malformed instruction near PTX line "
                f"{segment.unit.function.instructions[segment.start].ptx_line}: {error}"
            ) from error
