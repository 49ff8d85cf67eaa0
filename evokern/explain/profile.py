"""Where a candidate's time goes: counters per source line, and which term of the time bounds it.

The records say nothing about where counters come from. `profile_simulated` fills them from the simulated device:
sampled blocks of the problem itself are executed, their mean stands for the grid, and the time model turns the sums
into predicted times. A line's own time is what the same model gives for its instructions alone on the busiest SM, on
the resource they load most (of L2 and DRAM its share by sectors); lines overlap, so that these times need not add up to
the launch's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from evokern.compile.nvrtc import compile_ptx
from evokern.compile.occupancy import blocks_per_sm, resources
from evokern.compile.records import Built, CompileFailure
from evokern.errors import SourceError, UsageError
from evokern.explain.bound import Verdict, by_terms, suggested
from evokern.explain.subject import Subject
from evokern.gate import RunFailed
from evokern.kernel import Launch
from evokern.profiles import Profile
from evokern.render import Rendered, render
from evokern.simt import Counters, timemodel
from evokern.trial import Resources

_NOT_A_TYPE = frozenset({"sync", "aligned", "row", "col", "mma", "satfinite"})


@dataclass(frozen=True)
class LineProfile:
    """One source line; counts are of the whole grid, estimated from the sampled blocks."""

    file: str
    """The kernel's header that holds it, empty for the source itself."""
    line: int
    """Line, 0 for what the compiler names no line for."""
    source: str
    """Its text."""
    time_us: float
    """Time that its instructions alone take on the busiest SM, on the resource they load most, µs."""
    resource: str
    """That resource."""
    warp_instructions: int
    """Instructions issued for a warp."""
    thread_instructions: int
    """The same, counted per active thread."""
    divergent: int
    """Warp instructions issued while live lanes of the warp were elsewhere."""
    shared_wavefronts: int
    """Wavefronts of shared memory."""
    ideal_wavefronts: int
    """The same without bank conflicts."""
    global_sectors: int
    """32-byte sectors of global memory, loads and stores."""
    ideal_sectors: int
    """The least for that many bytes."""
    pipes: Mapping[str, int]
    """Pipe → warp instructions."""


@dataclass(frozen=True)
class LaunchProfile:
    """One launch of a candidate."""

    entry: str
    """The kernel."""
    grid: tuple[int, int, int]
    """Blocks along x, y, z."""
    block: tuple[int, int, int]
    """Threads along x, y, z."""
    sampled_blocks: tuple[int, ...]
    """Linear ids of the blocks that were executed."""
    resources: Resources
    """Registers, spills, shared memory, occupancy."""
    blocks_per_sm: int
    """Blocks resident on an SM at once."""
    time_us: float
    """Predicted time, µs."""
    terms_us: Mapping[str, float]
    """Resource → the time it alone would take, µs."""
    bound: str
    """The largest term."""
    waits_clocks: Mapping[str, float]
    """Mean SM clocks that a warp waited, by cause, when its block is alone on an SM."""
    lines: tuple[LineProfile, ...]
    """Lines, the most expensive first."""


@dataclass(frozen=True)
class CandidateProfile:
    """A candidate at a problem."""

    title: str
    """Which candidate it is."""
    kernel: str
    """The kernel's name."""
    file: str
    """Its source file."""
    config: Mapping[str, Any]
    """Gene → value."""
    problem: str
    """The problem."""
    device: str
    """Where the counters come from, for example `sim:l4`."""
    predicted: bool
    """Whether times are predicted, not measured."""
    time_us: float
    """Time of the whole call, µs."""
    terms_us: Mapping[str, float]
    """Resource → the time it alone would take, all launches together, µs."""
    bound: str
    """The largest term."""
    cause: str
    """What a kernel with this bound is called, for example `shared-memory-bound`."""
    launches: tuple[LaunchProfile, ...]
    """The launches, in order."""
    verdict: Verdict
    """What bounds it, and what could ease that."""
    fault: str | None = None
    """What is wrong with the results, None where nothing is or it was not checked."""

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {**asdict(self), "source": "simulated", "verdict": self.verdict.as_dict()}


def profile_simulated(subject: Subject) -> CandidateProfile:
    """Profile a candidate on a simulated chip.

    Raises:
        UsageError: it is not feasible there, does not compile, fails, or uses what the simulator does not execute.
    """
    # The predictor needs torch, which the records do not.
    from evokern.device._sim_predict import Predictor
    from evokern.gate.bench import tolerances

    kernel, config, problem, chip = subject.kernel, subject.config, subject.problem, subject.chip
    built, rendered = _built(subject)
    study = subject.study
    allowed = tolerances(kernel, study.gate.atol, study.gate.rtol)
    predictor = Predictor(kernel, chip, study.timing, study.simulation, allowed)
    try:
        predicted = predictor.predict(config, built, problem)
    except RunFailed as failed:
        reason = failed.evidence.get("diagnosis") or failed.evidence.get("message") or failed.outcome
        raise UsageError(
            f"{subject.title} does not run at {problem}: {reason}; `evokern sanitize` tells more"
        ) from None
    launches = built.build(problem).launches
    uses = built.programs[0].uses
    texts = {"": rendered.source, **rendered.headers}
    parts = []
    for number, launch in enumerate(launches):
        counters, prediction = predicted.counters[number], predicted.launches[number]
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
                waits_clocks=predicted.waits[number],
                lines=tuple(
                    sorted(_lines(counters, launch, chip, texts, prediction.terms_us), key=lambda line: -line.time_us)
                ),
            )
        )
    total = predicted.total
    verdict = suggested(by_terms(total.terms_us, total.time_us), subject)
    return CandidateProfile(
        subject.title, kernel.name, kernel.source, dict(config), str(problem), f"sim:{chip.name}", True, total.time_us,
        total.terms_us, total.bound, total.cause, tuple(parts), verdict, predicted.sampled,
    )  # fmt: skip


def _built(subject: Subject) -> tuple[Built, Rendered]:
    """Compile for the chip, and once more to PTX with line information: the same PTX, with its lines named."""
    kernel, config, problem, chip = subject.kernel, subject.config, subject.problem, subject.chip
    built = subject.built()
    rendered = render(kernel, config, problem)
    program = compile_ptx(
        rendered.source, rendered.name, rendered.headers, rendered.options, rendered.entries, chip.compute_capability
    )
    if isinstance(program, CompileFailure):
        raise SourceError(f"{kernel.name}: {program.message}")
    lined = replace(built.programs[0], ptx=program.ptx, lowered=program.lowered)
    return replace(built, programs=(lined,)), rendered


def _lines(
    counters: Counters, launch: Launch, chip: Profile, texts: Mapping[str, str], terms_us: Mapping[str, float]
) -> Iterator[LineProfile]:
    """Yield every line that issued something, scaled from the sampled blocks to the grid."""
    split = {name: text.splitlines() for name, text in texts.items()}
    share = math.ceil(launch.blocks / chip.sms)
    scale = launch.blocks / max(len(counters.blocks) * counters.launches, 1)
    moved = _sectors(counters)
    for (file, line), numbers in _places(counters).items():
        mine = _only(counters, numbers)
        if not mine.total_warp_instructions:
            continue
        times = {name: value * share / chip.clock_mhz for name, value in timemodel.block_clocks(mine, chip).items()}
        sectors = _sectors(mine)
        # What lies behind L1 is shared by all SMs: a line has its part of the launch's term.
        times |= {name: terms_us.get(name, 0.0) * sectors / max(moved, 1) for name in ("l2", "dram")}
        resource = max(times, key=times.__getitem__)
        own = split.get(file, [])
        ideal = mine.ideal_load_sectors.sum() + mine.ideal_store_sectors.sum()
        yield LineProfile(
            file=file,
            line=line,
            source=own[line - 1].strip() if 0 < line <= len(own) else "",
            time_us=times[resource],
            resource=resource,
            warp_instructions=round(mine.total_warp_instructions * scale),
            thread_instructions=round(int(mine.thread_instructions.sum()) * scale),
            divergent=round(int(mine.divergent.sum()) * scale),
            shared_wavefronts=round(int(mine.shared_wavefronts.sum()) * scale),
            ideal_wavefronts=round(int(mine.ideal_wavefronts.sum()) * scale),
            global_sectors=round(sectors * scale),
            ideal_sectors=round(int(ideal) * scale),
            pipes={name: round(count * scale) for name, count in mine.by_pipe().items() if count},
        )


def _sectors(counters: Counters) -> int:
    return int(counters.load_sectors.sum() + counters.store_sectors.sum())


def _places(counters: Counters) -> dict[tuple[str, int], list[int]]:
    """Return (file, line) → the numbers of its instructions."""
    places: dict[tuple[str, int], list[int]] = {}
    for number, place in enumerate(zip(counters.files, counters.lines.tolist(), strict=True)):
        places.setdefault(place, []).append(number)
    return places


def _only(counters: Counters, numbers: Sequence[int]) -> Counters:
    """Return the counters of some instructions, without what is known of the launch as a whole only."""
    changes: dict[str, Any] = {"record": (), "unique_load_sectors": {}, "unique_store_sectors": {}}
    size = len(counters.instructions)
    for item in fields(counters):
        value = getattr(counters, item.name)
        if isinstance(value, np.ndarray) and value.shape == (size,):
            changes[item.name] = value[list(numbers)]
    for name in ("instructions", "pipes", "files"):
        changes[name] = tuple(getattr(counters, name)[number] for number in numbers)
    changes["mma"] = _matrix_work(counters, numbers)
    copies = [n for n in numbers if re.match(r"(@\S+\s+)?cp\.async\.c[ag]", counters.instructions[n])]
    changes["async_bytes"] = int(counters.load_bytes[copies].sum())
    return replace(counters, **changes)


def _matrix_work(counters: Counters, numbers: Sequence[int]) -> dict[str, tuple[int, float]]:
    """Return what these instructions have of the matrix work, by the names that the counters use."""
    work: dict[str, tuple[int, float]] = {}
    for number in numbers:
        opcode = re.sub(r"^@\S+\s+", "", counters.instructions[number]).split(None, 1)[0]
        name = ".".join(word for word in opcode.split(".")[1:] if word not in _NOT_A_TYPE)
        if counters.pipes[number] != "tensor" or name not in counters.mma:
            continue
        issued, operations = counters.mma[name]
        mine = int(counters.warp_instructions[number])
        known = work.get(name, (0, 0.0))
        work[name] = known[0] + mine, known[1] + operations / issued * mine
    return work
