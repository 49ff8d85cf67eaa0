"""Profiler for a simulated chip: counters per source line and components of the predicted time.

`profile_simulated` runs some blocks of the problem and scales their mean to the whole grid. The time model converts the
counters into predicted times, also for each source line.

A line's time is what its instructions alone would take on the busiest SM, on the resource that they use most. It is
predicted by the time model. L2 and DRAM time is divided by sectors. Lines overlap, so the times do not add up to the
launch's time. A line of an inline function occurs in the machine code once per call site; its cost is split between the
call sites.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from evokern.analysis.profile.bound import Bottleneck, bottleneck_from_times, with_suggestions
from evokern.analysis.profile.subject import ProfileSubject
from evokern.compile.build import compile_to_ptx
from evokern.compile.occupancy import blocks_per_sm, resources
from evokern.compile.records import Built, CompileFailure
from evokern.declaration.kernel import Launch
from evokern.declaration.render import Rendered, render
from evokern.errors import SourceError, UsageError
from evokern.gate import RunFailed
from evokern.hardware.profiles import Profile
from evokern.ptx.matrix_shapes import matrix_name
from evokern.simt import Counters
from evokern.simt import time_model as timemodel
from evokern.study.trial import SMALLER, TOO_LARGE, Resources

Chain = tuple[tuple[str, int], ...]
"""Calls through which a line was inlined, innermost first, as (header or empty, line)."""


@dataclass(frozen=True)
class CallShare:
    """Part of the cost of a line in an inline function that comes from one call site."""

    calls: Chain
    """The chain of calls, innermost first, as (header or empty, line)."""
    source: str
    """Source text of the innermost call."""
    time_us: float
    """Share of the line's time in µs."""
    warp_instructions: int
    """Share of the line's warp instructions."""


@dataclass(frozen=True)
class LineProfile:
    """Profile of one source line; counts for the whole grid are estimated from the sampled blocks."""

    file: str
    """Header name, or empty for the source file."""
    line: int
    """Line number, or 0 for instructions without a line."""
    source: str
    """Source text of the line."""
    time_us: float
    """Time in µs of the line's instructions alone on the busiest SM, on the resource that they use most."""
    resource: str
    """The resource that the line uses most."""
    warp_instructions: int
    """Number of issued instructions, counted per warp."""
    thread_instructions: int
    """Number of issued instructions, counted per active thread."""
    divergent: int
    """Number of warp instructions issued while other lanes of the warp were on another path."""
    shared_wavefronts: int
    """Number of shared-memory wavefronts."""
    ideal_wavefronts: int
    """Number of shared-memory wavefronts that would be needed without bank conflicts."""
    global_sectors: int
    """Number of 32-byte sectors of global memory that are loaded or stored."""
    ideal_sectors: int
    """Minimum number of sectors for the same number of bytes."""
    stall_clocks: float
    """SM clocks that an average warp waits at the line for operands, copies, products or barriers."""
    pipes: Mapping[str, int]
    """Pipe → number of its warp instructions."""
    calls: tuple[CallShare, ...] = ()
    """Call sites of an inline function's line, most expensive first."""


def line_profiles(
    counters: Counters,
    launch: Launch,
    chip: Profile,
    texts: Mapping[str, str],
    terms_us: Mapping[str, float],
    stalls: Mapping[int, float] | None = None,
) -> tuple[LineProfile, ...]:
    """Return the profiles of all executed lines, most expensive first.

    Args:
        counters: counters of the sampled blocks.
        launch: the launch.
        chip: the simulated chip.
        texts: source files by header name as included; the main source under the empty name.
        terms_us: components of the launch's predicted time, µs.
        stalls: instruction number → clocks that an average warp waits at it.
    """
    found = _Lines(counters, launch, chip, {name: text.splitlines() for name, text in texts.items()}, terms_us,
                   stalls or {})  # fmt: skip
    return tuple(sorted(found.profiles(), key=lambda line: -line.time_us))


@dataclass(frozen=True)
class _Lines:
    """Counters of one launch, with the conversion of instructions into times."""

    counters: Counters
    launch: Launch
    chip: Profile
    texts: Mapping[str, Sequence[str]]
    terms_us: Mapping[str, float]
    stalls: Mapping[int, float]

    @property
    def scale(self) -> float:
        """Number of grid blocks per sampled block."""
        return self.launch.blocks / max(len(self.counters.blocks) * self.counters.launches, 1)

    @cached_property
    def _whole(self) -> Mapping[str, float]:
        """Pipe → number of clocks for which an average block uses it."""
        return timemodel.block_clocks(self.counters, self.chip)

    def profiles(self) -> Iterator[LineProfile]:
        """Yield the profiles in instruction order."""
        scale, moved = self.scale, max(_sectors(self.counters), 1)
        for (file, line), numbers in _places(self.counters).items():
            selected = _only(self.counters, numbers)
            if not selected.total_warp_instructions:
                continue
            times = self._times(selected, moved)
            resource = max(times, key=times.__getitem__)
            ideal = selected.ideal_load_sectors.sum() + selected.ideal_store_sectors.sum()
            yield LineProfile(
                file=file,
                line=line,
                source=self._text(file, line),
                time_us=times[resource],
                resource=resource,
                warp_instructions=round(selected.total_warp_instructions * scale),
                thread_instructions=round(int(selected.thread_instructions.sum()) * scale),
                divergent=round(int(selected.divergent.sum()) * scale),
                shared_wavefronts=round(int(selected.shared_wavefronts.sum()) * scale),
                ideal_wavefronts=round(int(selected.ideal_wavefronts.sum()) * scale),
                global_sectors=round(_sectors(selected) * scale),
                ideal_sectors=round(int(ideal) * scale),
                stall_clocks=sum(self.stalls.get(number, 0.0) for number in numbers),
                pipes={name: round(count * scale) for name, count in selected.by_pipe().items() if count},
                calls=tuple(sorted(self._calls(numbers, resource, moved), key=lambda share: -share.time_us)),
            )

    def _calls(self, numbers: Sequence[int], resource: str, moved: int) -> Iterator[CallShare]:
        chains: dict[Chain, list[int]] = {}
        for number in numbers:
            chains.setdefault(self.counters.called_from[number], []).append(number)
        for chain, part in chains.items():
            selected = _only(self.counters, part)
            if chain and selected.total_warp_instructions:
                # A call without instructions for the line's resource has no share of its time.
                time_us = self._times(selected, moved).get(resource, 0.0)
                issued = round(selected.total_warp_instructions * self.scale)
                yield CallShare(chain, self._text(*chain[0]), time_us, issued)

    def _times(self, selected: Counters, moved: int) -> dict[str, float]:
        """Return the selected instructions' share of each component of the launch's time, in µs."""
        clocks = timemodel.block_clocks(selected, self.chip)
        times = {name: self.terms_us[name] * value / self._whole[name] for name, value in clocks.items() if value}
        return times | {name: self.terms_us.get(name, 0.0) * _sectors(selected) / moved for name in ("l2", "dram")}

    def _text(self, file: str, line: int) -> str:
        own = self.texts.get(file, ())
        return own[line - 1].strip() if 0 < line <= len(own) else ""


def _sectors(counters: Counters) -> int:
    return int(counters.load_sectors.sum() + counters.store_sectors.sum())


def _places(counters: Counters) -> dict[tuple[str, int], list[int]]:
    """Return the instruction numbers of each (file, line)."""
    places: dict[tuple[str, int], list[int]] = {}
    for number, place in enumerate(zip(counters.files, counters.lines.tolist(), strict=True)):
        places.setdefault(place, []).append(number)
    return places


def _only(counters: Counters, numbers: Sequence[int]) -> Counters:
    """Return the counters of some instructions, without counters that exist only for the whole launch."""
    changes: dict[str, Any] = {"record": (), "unique_load_sectors": {}, "unique_store_sectors": {}}
    size = len(counters.instructions)
    for item in fields(counters):
        value = getattr(counters, item.name)
        if isinstance(value, np.ndarray) and value.shape == (size,):
            changes[item.name] = value[list(numbers)]
    for name in ("instructions", "pipes", "files", "called_from"):
        changes[name] = tuple(getattr(counters, name)[number] for number in numbers)
    changes["mma"] = _matrix_work(counters, numbers)
    return replace(counters, **changes)


def _matrix_work(counters: Counters, numbers: Sequence[int]) -> dict[str, tuple[int, float]]:
    """Return the share of the matrix work that these instructions do, by the names in the counters."""
    work: dict[str, tuple[int, float]] = {}
    for number in numbers:
        opcode = re.sub(r"^@\S+\s+", "", counters.instructions[number]).split(None, 1)[0]
        name = matrix_name(opcode.split(".")[1:])
        if counters.pipes[number] != "tensor" or name not in counters.mma:
            continue
        issued, operations = counters.mma[name]
        selected = int(counters.warp_instructions[number])
        known = work.get(name, (0, 0.0))
        work[name] = known[0] + selected, known[1] + operations / issued * selected
    return work


@dataclass(frozen=True)
class LaunchProfile:
    """Profile of one launch of a candidate."""

    entry: str
    """Name of the launched kernel function."""
    grid: tuple[int, int, int]
    """Number of blocks along x, y and z."""
    block: tuple[int, int, int]
    """Number of threads per block along x, y and z."""
    sampled_blocks: tuple[int, ...]
    """Linear IDs of the executed blocks."""
    resources: Resources
    """Registers, spills, shared memory and occupancy of the launch."""
    blocks_per_sm: int
    """Number of blocks resident on an SM."""
    time_us: float
    """Predicted time in µs."""
    terms_us: Mapping[str, float]
    """Resource → time in µs if only this resource limited the launch."""
    bound: str
    """Resource with the largest time."""
    waits_clocks: Mapping[str, float]
    """Mean SM clocks that a warp waited, by cause: `barrier`, `async_copy`, `memory` (operands, including warpgroup
    products) and `pipes` (in use by other warps)."""
    lines: tuple[LineProfile, ...]
    """Profiles of the source lines, most expensive first."""


@dataclass(frozen=True)
class CandidateProfile:
    """Simulated profile of a candidate on a problem."""

    title: str
    """Description of the candidate."""
    kernel: str
    """The kernel's name."""
    file: str
    """Name of the kernel's source file."""
    config: Mapping[str, Any]
    """Gene → value."""
    problem: str
    """The problem's key."""
    in_words: str
    """The problem in readable form."""
    device: str
    """Source of the counters, for example `sim:l4`."""
    predicted: bool
    """Whether times are predicted, not measured."""
    time_us: float
    """Time of the whole call in µs."""
    terms_us: Mapping[str, float]
    """Resource → time in µs if only this resource limited the launches, the total of all launches."""
    bound: str
    """Resource with the largest time."""
    cause: str
    """Name of this bound, for example `shared-memory-bound`."""
    launches: tuple[LaunchProfile, ...]
    """Profiles of the launches, in order."""
    verdict: Bottleneck
    """The bottleneck with suggestions."""
    fault: str | None = None
    """Error in the results, or None if they are correct or were not checked."""

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        values = asdict(self)
        del values["in_words"]
        return {**values, "source": "simulated", "verdict": self.verdict.as_dict()}


def profile_simulated(subject: ProfileSubject) -> CandidateProfile:
    """Profile a candidate on a simulated chip.

    Raises:
        UsageError: the candidate is infeasible, does not compile, fails, or uses instructions that are not simulated.
        DeviceError: the buffers do not fit into the machine's free memory.
    """
    # These imports need torch; the dataclasses above do not.
    from evokern.device.sim.failure import is_too_large
    from evokern.device.sim.host_memory import workers_that_fit
    from evokern.device.sim.predict import Predictor
    from evokern.gate.comparison import tolerances

    kernel, config, problem, chip = subject.kernel, subject.config, subject.problem, subject.chip
    built, rendered = _built(subject)
    remedy = "use a smaller problem (--problem), or profile on a GPU (--device cuda)"
    workers_that_fit(kernel, config, [problem], remedy=remedy)
    study = subject.study
    allowed = tolerances(kernel, study.gate.atol, study.gate.rtol)
    predictor = Predictor(kernel, chip, study.timing, study.simulation, allowed, stalls=True)
    try:
        predicted = predictor.predict_long(config, built, problem)
    except RunFailed as failed:
        reason = failed.message or failed.outcome
        if is_too_large(failed):
            raise UsageError(f"{subject.title} is {TOO_LARGE}: {reason}; {SMALLER}") from None
        raise UsageError(f"{subject.title} failed at {problem}: {reason}; run `evokern sanitize` for details") from None
    launches = built.build(problem).launches
    uses = built.programs[0].uses
    texts = {"": rendered.source, **rendered.headers}
    parts = []
    for launch, found in zip(launches, predicted.launches, strict=True):
        counters, prediction = found.counters, found.prediction
        parts.append(
            LaunchProfile(
                entry=launch.entry,
                grid=launch.grid,
                block=launch.block,
                sampled_blocks=counters.blocks,
                resources=resources(uses[launch.entry], launch, chip),
                blocks_per_sm=blocks_per_sm(uses[launch.entry], launch, chip),
                time_us=prediction.time_us,
                terms_us=prediction.terms_us,
                bound=prediction.bound,
                waits_clocks=found.waits,
                lines=line_profiles(counters, launch, chip, texts, prediction.terms_us, found.stalls),
            )
        )
    total = predicted.total
    bottleneck = with_suggestions(bottleneck_from_times(total.terms_us, total.time_us), subject)
    return CandidateProfile(
        subject.title, kernel.name, kernel.source, dict(config), problem.key, str(problem), f"sim:{chip.name}", True,
        total.time_us, total.terms_us, total.bound, total.cause, tuple(parts), bottleneck, predicted.sampled,
    )  # fmt: skip


def _built(subject: ProfileSubject) -> tuple[Built, Rendered]:
    """Compile for the chip, then compile again to the same PTX with line information."""
    kernel, config, problem, chip = subject.kernel, subject.config, subject.problem, subject.chip
    built = subject.built()
    rendered = render(kernel, config, problem)
    program = compile_to_ptx(rendered, chip)
    if isinstance(program, CompileFailure):
        raise SourceError(f"{kernel.name}: {program.message}")
    return built.with_ptx(problem, program), rendered
