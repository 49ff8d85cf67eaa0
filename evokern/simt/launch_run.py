"""Run of the blocks of one call in batches: repeats it if blocks wait for others, or to decide on findings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields, replace
from typing import Any

import numpy as np

from evokern.compile.launch_attributes import LaunchAttributes
from evokern.cuda_source.mangled import source_name
from evokern.declaration.kernel import Launch
from evokern.errors import UsageError
from evokern.ptx.program import PtxProgram
from evokern.simt.arguments import allocate_hidden, fill_constants, pack_arguments, place_data
from evokern.simt.arrays import Array
from evokern.simt.batch import LaunchStopped, WaitsOutside
from evokern.simt.chip_view import ChipView
from evokern.simt.clusters.layout import Cluster, cluster_numbers, cluster_of
from evokern.simt.clusters.whole_grid import whole_grid_blocks
from evokern.simt.control_flow.paths import NO_PATHS, Paths
from evokern.simt.counters import Counters
from evokern.simt.event_counter import Tally
from evokern.simt.machine import Inputs, Machine, Observers
from evokern.simt.memory.buffers import Buffer, Memory
from evokern.simt.module import Module
from evokern.simt.sanitizer.access_keys import NUMBER
from evokern.simt.sanitizer.findings import ENDLESS, UNFINISHED, Collector, Finding
from evokern.simt.sanitizer.global_shadow import GlobalShadow
from evokern.simt.sanitizer.used_values import SecondRun
from evokern.simt.settings import Geometry, LaunchOptions, LaunchSpec, Options

BATCH_LANES = 4096
"""Target number of lanes per batch: enough to amortise NumPy calls, but few enough for data to fit in the caches."""
REGISTER_BYTES = 192 << 20
"""Maximum bytes of register rows per batch."""
SHARED_BYTES = 64 << 20
"""Maximum bytes of shared memory per batch, without its shadow."""
SECOND_RUN_BYTES = 1 << 28
"""Maximum bytes of writable buffers for a second run; in larger launches, all values read count as used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """Result of one launch."""

    findings: tuple[Finding, ...]
    """Findings of the sanitizer."""
    counters: Counters | None
    """Instructions issued and data moved; None with ``count=False``. `launch_many` counts all its launches together."""
    completed: bool
    """True if every thread ran to its end and no finding would have ended the launch on a GPU."""
    printed: str
    """Output of device printf, ordered by block."""
    fatal: Finding | None
    """The finding that would have ended the launch on a GPU."""
    hung: bool
    """True if the launch never ends: threads wait forever, or the state of a loop repeats."""
    ended: bool = False
    """True if `enough` ended the launch; counters then cover only the part that ran."""
    finished: bool = True
    """True if every thread ran to its end, regardless of findings."""
    warp_instructions: int = 0
    """Warp instructions issued; 0 if `counters` contains them. `launch_many` counts all its launches together."""
    waits_outside: bool = False
    """True if the launch hung, and its threads may wait for blocks that did not run, or not at the same time."""
    paths: Paths | None = None
    """Paths that the blocks took, with ``record_paths=True``. `launch_many` merges those of all its launches."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that make the kernel incorrect; all others are warnings."""
        return tuple(finding for finding in self.findings if finding.matters)

    @property
    def over_limit(self) -> bool:
        """Whether the instruction limit ended the launch; the launch may be only long."""
        return self.fatal is not None and self.fatal.kind == UNFINISHED

    @property
    def fault(self) -> Finding | None:
        """The finding that decides the outcome: the fatal one; errors come before `unfinished`."""
        if self.over_limit or self.fatal is None:
            return next(iter(self.errors), self.fatal)
        return self.fatal


@dataclass(slots=True)
class LaunchRun:
    """State shared by the launches of one call."""

    module: Module
    spec: LaunchSpec
    memory: Memory
    asked: InitVar[LaunchOptions]
    together: bool = False
    """Whether all blocks run in one batch, because they may wait for each other."""
    program: PtxProgram = field(init=False)
    width: int = field(init=False)
    cluster: Cluster = field(init=False)
    chosen: tuple[int, ...] = field(init=False)
    """Blocks to run, ordered by cluster."""
    options: Options = field(init=False)
    """Options of the machines."""
    collectors: list[Collector] = field(init=False, default_factory=list)
    waits_outside: bool = field(init=False, default=False)
    left_out: bool = field(init=False, default=False)
    """Whether an error ended the run before its last batch."""

    def __post_init__(self, asked: LaunchOptions) -> None:
        self.program = self.module.program(self.spec.entry)
        threads = self.spec.block[0] * self.spec.block[1] * self.spec.block[2]
        if min(self.spec.block) < 1 or threads > 1024:
            raise UsageError(f"a block of {self.spec.block} has {threads} threads: use 1 to 1024")
        if min(self.spec.grid) < 1:
            raise UsageError(f"a grid of {self.spec.grid} has no blocks: use at least 1 along each axis")
        if self.spec.dynamic_shared < 0:
            raise UsageError(f"dynamic shared memory cannot have {self.spec.dynamic_shared} bytes: use 0 or more")
        self.width = -(-threads // 32) * 32
        given = {field.name: getattr(asked, field.name) for field in fields(asked)}
        self.options = Options(**given, view=ChipView.of(asked.chip, self.module.target, self.module.digest))
        self._check()
        every = self.spec.blocks is None or self.module.needs_whole_grid(self.spec.entry)
        self.chosen = self.everyone if every else self.cluster.whole(self.spec.grid, self.spec.blocks or ())
        self.options = replace(self.options, sample=asked.sample and len(self.chosen) < len(self.everyone))

    def _check(self) -> None:
        """Reject a launch that the chip or the machine cannot run."""
        target, architecture = self.module.target, self.options.architecture
        made_for, runs_on = (int(re.sub(r"\D", "", name) or 0) for name in (target, architecture or "sm_999"))
        if made_for > runs_on:
            raise UsageError(f"PTX for {target} does not run on {architecture}: compile it for {architecture}")
        if architecture and target.endswith("a") and made_for != runs_on:
            raise UsageError(
                f"PTX for {target} does not run on {architecture}: it may use features that only {target} has; "
                f"compile it for {architecture}"
            )
        excess = LaunchAttributes.of(self.program.entry.directives).block_excess(
            source_name(self.spec.entry), self.spec.block
        )
        if excess is not None:
            raise UsageError(f"{excess.reason}: change the block, or the attribute in the source")
        self.cluster = cluster_of(self.program.entry, self.spec.cluster, runs_on)
        self.cluster.require_whole(self.spec.grid, self.program.entry.name)
        self.module.check(self.spec.entry, self.cluster.extent)
        if self.options.sanitize and len(self.program.instructions) > NUMBER.most:
            raise UsageError(
                f"{self.spec.entry} has {len(self.program.instructions):,} instructions, but the sanitizer supports at "
                f"most {NUMBER.most:,}: reduce loop unrolling"
            )

    @property
    def everyone(self) -> tuple[int, ...]:
        """All blocks of the grid, ordered by cluster."""
        return self.cluster.whole(self.spec.grid, range(self.spec.grid[0] * self.spec.grid[1] * self.spec.grid[2]))

    def may_wait(self) -> bool:
        """Return whether blocks of one batch may wait for blocks of another one."""
        several = (self.options.batch_blocks or self.batch_size()) < len(self.chosen) == len(self.everyone)
        return several and not self.module.needs_whole_grid(self.spec.entry) and self.program.polls

    def contents(self) -> list[tuple[Buffer, Array]]:
        """Return the contents of the writable buffers."""
        return [(buffer, buffer.read()) for buffer in self.memory.buffers if buffer.writable]

    def restore(self, before: list[tuple[Buffer, Array]]) -> None:
        """Restore saved contents of buffers."""
        for buffer, data in before:
            buffer.write(data)

    def keep(self, before: list[tuple[Buffer, Array]], values: Sequence[Any]) -> list[tuple[Buffer, Array]]:
        """Return the saved contents, updated with the writes of a finished launch to its own buffers."""
        own = {id(value) for value in values}
        return [(buffer, buffer.read() if id(buffer) in own else data) for buffer, data in before]

    def allows_second_run(self) -> bool:
        """Return whether the sanitizer may repeat the run to decide whether a finding is an error."""
        restored = sum(buffer.size for buffer in self.memory.buffers if buffer.writable)
        return self.options.sanitize and restored <= SECOND_RUN_BYTES

    def checked(
        self,
        args: Sequence[Sequence[Any]],
        before: list[tuple[Buffer, Array]],
        constants: Sequence[Mapping[str, Buffer]],
        *,
        alone: bool = False,
    ) -> list[LaunchResult] | None:
        """Run all blocks of all launches; repeat the run if a second run can decide whether a finding is an error."""
        began = replace(self.memory.time)
        results = self.batches(args, constants, alone=alone)
        if results is not None and self.waits_outside and before and len(self.chosen) == len(self.everyone):
            self.restore(before)
            self.memory.time.rewind(began)
            self.together, options = True, self.options
            batches = -(-len(self.chosen) // (self.options.batch_blocks or self.batch_size()))
            self.options = replace(options, instruction_limit=options.instruction_limit * batches)
            results = self.batches(args, constants, alone=alone)
            self.options = options
            if results is not None and all(one.finished for one in results):
                self.module.resident.add(self.spec.entry)  # the barrier is the kernel's own
        if results is None or not self.allows_second_run():
            return results
        collectors, options = self.collectors, self.options
        open_ = [result.fatal is None and not result.ended for result in results]
        look = SecondRun(self.program, collectors, open_)
        if look.suspects is None:
            return results
        self.restore(before)
        self.memory.time.rewind(began)
        self.options = replace(options, suspects=look.suspects, count=False)
        again = self.batches(args, constants, alone=alone)
        self.options = options
        if again is not None:
            look.acquit()
        if self.left_out and not any(one.matters for collector in collectors for one in collector.findings):
            self.restore(before)
            self.memory.time.rewind(began)
            self.options = replace(options, until_error=False)
            return self.checked(args, before, constants, alone=alone)
        return [
            replace(result, findings=collector.findings) for result, collector in zip(results, collectors, strict=True)
        ]

    def batches(
        self, args: Sequence[Sequence[Any]], constants: Sequence[Mapping[str, Buffer]], *, alone: bool = False
    ) -> list[LaunchResult] | None:
        """Run all blocks of all launches; return None if one of several launches stopped the other launches."""
        program, memory = self.program, self.memory
        params = np.stack([pack_arguments(self.module, self.spec.entry, values) for values in args])
        symbols = place_data(program, self.module, memory, len(args)) | allocate_hidden(program, memory, params)
        for number, filled in enumerate(constants):
            fill_constants(self.module, memory, number, filled)
        total = self.spec.grid[0] * self.spec.grid[1] * self.spec.grid[2]
        of_cluster = cluster_numbers(self.spec.grid, self.cluster.extent) if self.cluster.blocks > 1 else None
        shadow = GlobalShadow(program, memory, len(args), total, of_cluster) if self.options.sanitize else None
        tally = Tally(program, self.cluster.blocks) if self.options.count else None
        at_fatal = self._end if self.options.until_fatal else None
        self.waits_outside = self.left_out = False
        whole = self.together or self.module.needs_whole_grid(self.spec.entry)
        collectors = self.collectors = [
            Collector(self.options.source, self.module.lines.headers, at_fatal) for _ in args
        ]
        pairs = [(launch, number) for launch in range(len(args)) for number in self.chosen]
        per_batch = self._whole_grid(len(args)) if whole else self.options.batch_blocks or self.batch_size()
        per_batch = max(per_batch // self.cluster.blocks, 1) * self.cluster.blocks
        inputs, observers = Inputs(params, symbols, self.spec.dynamic_shared), Observers(collectors, shadow, tally)
        machines: dict[int, Machine] = {}
        unfinished: set[int] = set()
        ended = False

        def enough() -> bool:
            nonlocal ended
            assert tally is not None and self.options.enough is not None
            for running in machines.values():
                if running.state.events is not None:
                    running.state.events.add_up()
            ended = self.options.enough(tally.counters(self.chosen, len(args), self.width // 32))
            return ended

        stop = enough if self.options.enough and tally is not None else None
        options = replace(self.options, stop=self.options.exact.is_late if self.options.exact is not None else stop)
        try:
            for start in range(0, len(pairs), per_batch):
                part = pairs[start : start + per_batch]
                machine = machines.get(len(part))
                if machine is None:
                    shape = self.spec.grid, self.spec.block, len(args), len(part)
                    geometry = Geometry(*shape, self.cluster.extent, self.cluster.explicit)
                    machine = Machine(program, memory, geometry, inputs, options, observers)
                    machines[len(part)] = machine
                machine.load(part)
                try:
                    machine.run()
                finally:
                    memory.time.ran(machine.state.specials.cycles, len(part), self.options.view.profile.sms)
                if machine.state.events is not None:
                    machine.state.events.finish()
                batch = machine.state.batch
                unfinished.update(int(number) for number in np.unique(batch.launch[batch.live]))
                if options.until_error and any(one.matters for made in collectors for one in made.findings):
                    self.left_out = start + per_batch < len(pairs)
                    break
        except LaunchStopped as stop:
            self.waits_outside = isinstance(stop, WaitsOutside)
            if len(args) > 1 and not alone:
                return None
            unfinished.update(range(len(args)))
        memory.time.finished(len(args))
        counters = tally.counters(self.chosen, len(args), self.width // 32) if tally is not None else None
        printed = dict.fromkeys(range(len(args)), "")
        for machine in machines.values():
            for number, lines in machine.state.batch.printed.items():
                printed[number] += "".join(text for _, text in lines)
        issued = sum(bound.size * bound.warps for machine in machines.values() for bound in machine.bound)
        found = [paths for machine in machines.values() if (paths := machine.paths()) is not None]
        paths = NO_PATHS.merged(*found) if found else None
        return [
            replace(
                _result(collector, counters, number in unfinished, printed[number], ended, issued),
                waits_outside=self.waits_outside,
                paths=paths,
            )
            for number, collector in enumerate(collectors)
        ]

    @staticmethod
    def _end() -> None:
        """End the launch at the current position."""
        raise LaunchStopped

    def batch_size(self) -> int:
        """Return the number of blocks to run concurrently."""
        by_lanes = BATCH_LANES // self.width
        by_registers = REGISTER_BYTES // max(self._block_bytes(), 1)
        by_shared = SHARED_BYTES // max(self.program.static_shared + self.spec.dynamic_shared, 1)
        return max(1, min(by_lanes, by_registers, by_shared))

    def _block_bytes(self) -> int:
        widths = {"pred": 1, "16": 2, "32": 4, "64": 8}
        row_bytes = sum(count * widths[kind] for kind, count in self.program.rows.items())
        return (row_bytes + self.program.local_bytes * 2) * self.width

    def _whole_grid(self, launches: int) -> int:
        """Return the size of batches that hold whole grids."""
        static = self.program.static_shared
        launch = Launch(
            source_name(self.spec.entry), self.spec.grid, self.spec.block, (), self.spec.dynamic_shared, static
        )
        need = self._block_bytes() + 7 * (static + self.spec.dynamic_shared)
        return whole_grid_blocks(launch, launches, need, self.module.target, self.options.view.profile)


def _result(
    collector: Collector, counters: Counters | None, unfinished: bool, printed: str, ended: bool, issued: int
) -> LaunchResult:
    fatal = collector.fatal
    waits = unfinished and not ended and (fatal is None or fatal.kind in ENDLESS)
    return LaunchResult(
        findings=collector.findings, counters=counters, completed=not unfinished and fatal is None, printed=printed,
        fatal=fatal, hung=waits, ended=ended, finished=not unfinished, warp_instructions=issued,
    )  # fmt: skip
