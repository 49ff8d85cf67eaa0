"""The PTX machine: runs many blocks of one or several launches in lockstep on NumPy rows.

The lanes of a batch are ordered by block and warp, 32 lanes per warp. The schedule selects the next segment and its
lanes. A segment is bound to the rows of the batch when it first runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from evokern.ptx.program import PtxProgram
from evokern.ptx.segments import Routine, Segment
from evokern.ptx.unsupported import Unsupported
from evokern.simt.arrays import Action, Active, Array
from evokern.simt.batch import Batch
from evokern.simt.binder import Binder
from evokern.simt.clusters.barrier import ClusterBarrier
from evokern.simt.control_flow.paths import PathRecorder, Paths
from evokern.simt.event_counter import EventCounter, Tally
from evokern.simt.exact.plane import ShadowPlane
from evokern.simt.exact.rules import bind_rules, carriers
from evokern.simt.group_binding import GROUP_ELEMENTS, bind_group
from evokern.simt.memory.buffers import Memory
from evokern.simt.memory.bulk_copies import BulkCopies
from evokern.simt.memory.global_space import GlobalSpace
from evokern.simt.memory.shared_memory import LocalSpace, ParamSpace, SharedSpace
from evokern.simt.operations.control import bind_control
from evokern.simt.operations.table import binding_of
from evokern.simt.reconvergence import Reconvergence
from evokern.simt.sanitizer.async_copies import AsyncCopies
from evokern.simt.sanitizer.barriers import Barriers
from evokern.simt.sanitizer.findings import Collector
from evokern.simt.sanitizer.global_shadow import GlobalShadow
from evokern.simt.sanitizer.hang import HangDetector
from evokern.simt.sanitizer.mbarriers import Mbarriers
from evokern.simt.sanitizer.proxy_fences import ProxyFences
from evokern.simt.sanitizer.thread_order import ThreadOrder
from evokern.simt.sanitizer.used_values import UsedValues
from evokern.simt.schedule import MAX_DEPTH, POLL_WEIGHT, TRY_WAIT_WEIGHT, CallStack, Schedule
from evokern.simt.settings import LEAST_WARPS, Bound, Geometry, Options
from evokern.simt.specials import Specials
from evokern.simt.state import MachineState
from evokern.simt.warpgroup import RegisterCounts, WarpgroupProducts


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of the launches of a machine."""

    params: Array
    """Parameter block of each launch, bytes."""
    symbols: dict[str, Array]
    """Addresses of the module's variables and of the hidden allocations."""
    dynamic_shared: int = 0
    """Bytes of dynamic shared memory."""


@dataclass(frozen=True, slots=True)
class Observers:
    """Records of what happens in the launches of a machine."""

    collectors: Sequence[Collector]
    """Collector of each launch's findings."""
    global_shadow: GlobalShadow | None = None
    """The launch's shadow of global memory; None without checks."""
    tally: Tally | None = None
    """Sums to which the events are added; None without counting."""


class Machine:
    """Machine for one batch of blocks; `load` switches to further blocks of the same shape.

    Attributes:
        state: lanes, registers, memories and synchronisation objects.
        bound: the program's segments; those that have run are bound to rows.
    """

    def __init__(
        self,
        program: PtxProgram,
        memory: Memory,
        geometry: Geometry,
        inputs: Inputs,
        options: Options,
        observers: Observers,
    ) -> None:
        """Create the machine for batches of one shape.

        Args:
            program: the program.
            memory: memory that contains the buffers.
            geometry: grid, block, and blocks of a batch.
            inputs: parameters and addresses of the launches.
            options: options of the launch.
            observers: what records findings and events.
        """
        symbols, global_shadow, tally = inputs.symbols, observers.global_shadow, observers.tally
        self._program = program
        self.bound = [_prepared(segment) for segment in program.segments]
        batch = self._batch = Batch(program, geometry, options, observers.collectors)
        schedule = self._schedule = Schedule(batch)
        order = ThreadOrder(batch) if options.sanitize else None
        shared = SharedSpace(batch, inputs.dynamic_shared, order)
        globals_ = GlobalSpace(batch, memory, global_shadow, order)
        proxy_fences = ProxyFences(batch, shared.shadow)
        events = EventCounter(batch, tally, self.bound) if tally is not None else None
        bulk = BulkCopies(batch, shared, globals_, proxy_fences)
        self.state = MachineState(
            batch=batch,
            schedule=schedule,
            calls=CallStack(batch),
            memory=memory,
            symbols=symbols,
            specials=Specials(batch, schedule, shared, symbols, memory.time),
            order=order,
            shared=shared,
            local=LocalSpace(batch),
            params=ParamSpace(batch, inputs.params, symbols),
            globals=globals_,
            barriers=Barriers(batch, schedule, order),
            cluster_barrier=ClusterBarrier(batch, schedule, order, shared.lifetime, global_shadow),
            copies=AsyncCopies(batch, shared, globals_),
            bulk=bulk,
            products=WarpgroupProducts(batch, shared, proxy_fences),
            proxy_fences=proxy_fences,
            mbarriers=Mbarriers(batch, bulk, proxy_fences, order, events),
            register_counts=RegisterCounts(batch),
            events=events,
            paths=PathRecorder(batch) if options.record_paths else None,
        )
        self._reconvergence = Reconvergence(batch, schedule, self.state.barriers)
        self._hang_detector = HangDetector(self.state, self._reconvergence)
        self._effects: dict[int, Action] = {}
        exact = options.exact
        self._exact = None if exact is None else ShadowPlane(self.state, exact, bind_rules, carriers(program))
        self._used = UsedValues(batch, options.suspects) if options.suspects is not None else None

    # ---- binding

    def bind(self, bound: Bound, masked: bool) -> list[Action]:
        """Bind the steps of a segment, for a full or a partial mask."""
        segment = bound.segment
        binder = Binder(self.state)
        steps: list[Action] = []
        stop = segment.stop - (1 if segment.control else 0)
        base = segment.base
        hazards, early = self.state.products.hazards, self.state.proxy_fences.early_releases
        used = self._used
        for item in self._program.plan(segment, 1 if used else GROUP_ELEMENTS // self._batch.lanes):
            for position in (item,) if isinstance(item, int) else item:
                steps += hazards.checks_before(base + position) + early.checks_before(base + position)
            if self._exact is not None:
                steps += self._exact.before([base + at for at in ((item,) if isinstance(item, int) else item)])
            if isinstance(item, int):
                action = self._bind_one(binder, segment.routine, base + item, masked)
                steps += used.around(base + item, action) if used else [action]
            else:
                single = partial(self._bind_at, Binder(self.state), segment.routine, base, masked)
                steps.append(bind_group(self.state, segment, item, single))
        if segment.control:
            steps += early.checks_before(base + stop - segment.start)
        if segment.control and used:
            steps += used.around(base + stop - segment.start, None)
        if segment.control and bound.end is None:
            number = segment.base + stop - segment.start
            binder.start(segment.routine, number, False)
            binder.guard = None
            instruction = self._program.instructions[number]
            try:
                bound.end = bind_control(binder, segment, instruction)
            except Unsupported as error:
                raise self._program.refuse(instruction, str(error)) from None
        if masked:
            bound.masked = steps
        else:
            bound.full = steps
        return steps

    def _bind_at(self, binder: Binder, routine: Routine, base: int, masked: bool, position: int) -> Action:
        return self._bind_one(binder, routine, base + position, masked)

    def _bind_one(self, binder: Binder, routine: Routine, number: int, masked: bool) -> Action:
        instruction = self._program.instructions[number]
        operation = self._program.operations[number]
        if operation.kind == "effect" and number in self._effects:
            return self._effects[number]
        binder.start(routine, number, masked and operation.kind == "lanes")
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
        except Unsupported as error:
            raise self._program.refuse(instruction, str(error)) from None

    # ---- running

    def load(self, blocks: Sequence[tuple[int, int]]) -> None:
        """Load the blocks to run.

        Args:
            blocks: (launch, linear block id) for each block of the geometry.
        """
        self.state.load(blocks)
        self._reconvergence.load()
        self._hang_detector.load()
        if self._used is not None:
            self._used.load()
        if self._exact is not None:
            self._exact.load()

    def paths(self) -> Paths | None:
        """Return the paths of all blocks so far; None unless they are recorded."""
        ran = (one.segment.index for one in self.bound if one.full is not None or one.masked is not None)
        return self.state.paths.paths(ran) if self.state.paths is not None else None

    def run(self) -> None:
        """Run the loaded blocks until all of them have ended.

        Raises:
            Stopped: the launch ended early; a finding contains the reason.
        """
        batch, schedule, reconvergence = self._batch, self._schedule, self._reconvergence
        first = self._program.routine_of[self._program.entry.name].first_segment
        everyone = Active(batch.live.copy(), batch.live_count, batch.live_count)
        schedule.push(schedule.key(0, first), everyone)
        with np.errstate(all="ignore"):
            while True:
                if schedule.groups:
                    self._execute(*schedule.pop())
                elif not (reconvergence.retry() or self.state.barriers.release_partial() or reconvergence.force()):
                    break
        self.state.barriers.report_stuck()
        self.state.cluster_barrier.report_stuck()
        self.state.copies.finish()
        self.state.mbarriers.finish()
        self.state.register_counts.finish()
        self.state.products.finish()

    def _execute(self, key: int, active: Active, burst: int) -> None:
        batch, schedule, reconvergence, hang_detector = (
            self._batch,
            self._schedule,
            self._reconvergence,
            self._hang_detector,
        )
        barriers, events, groups = self.state.barriers, self.state.events, schedule.groups
        cluster_barrier = self.state.cluster_barrier
        level = key // schedule.segments
        base = level * schedule.segments
        schedule.depth, schedule.base = MAX_DEPTH - level, base
        index = key - base
        while True:
            bound = self.bound[index]
            if bound.segment.reconverges:
                passed = reconvergence.enter(bound.segment, base + index, active)
                if passed is None:
                    return
                active = passed
            batch.active = active
            warps = active.warps
            if events is not None:
                events.segment(index, active)
            bound.threads += active.count
            bound.warps += warps
            if not active.all and active.count != 32 * warps:
                bound.partial += self._partial(active)
            schedule.issued += bound.size * (warps if warps > LEAST_WARPS else LEAST_WARPS)
            if schedule.issued > hang_detector.check_at:
                hang_detector.check(bound.segment, base + index, active, burst)
            schedule.clock += bound.weight
            if (barriers.pending or reconvergence.parked) and not bound.leaves:
                barriers.note_work(active)
            if cluster_barrier.pending and not bound.leaves:
                cluster_barrier.note_work(active)
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
                elif schedule.comes_first(base + index):
                    continue
                schedule.push(base + index, active)
                return

    def _partial(self, active: Active) -> int:
        shaped = active.mask.reshape(-1, 32)
        live = self._batch.live.reshape(-1, 32)
        return int(np.count_nonzero(shaped.any(1) & (shaped != live).any(1)))


def _prepared(segment: Segment) -> Bound:
    """Return a segment, bound to rows on first use."""
    bound = Bound(segment=segment, fall=segment.index + 1, size=segment.stop - segment.start)
    instructions = segment.routine.function.instructions[segment.start : segment.stop]
    if segment.polls:
        bound.weight = TRY_WAIT_WEIGHT if any(item.has("try_wait") for item in instructions) else POLL_WEIGHT
    bound.leaves = bound.size == 1 and instructions[0].opcode in ("ret", "exit")
    return bound
