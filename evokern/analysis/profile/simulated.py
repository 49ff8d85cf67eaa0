"""Where a candidate's time goes: counters per source line, and which term of the time bounds it.

The records say nothing about where counters come from. `profile_simulated` fills them from the simulated device:
sampled blocks of the problem itself are executed, their mean stands for the grid, and the time model turns the sums
into predicted times (`evokern.analysis.profile.lines` those of each line).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from evokern.analysis.profile.bound import Bottleneck, by_terms, suggested
from evokern.analysis.profile.lines import LineProfile, line_profiles
from evokern.analysis.profile.subject import ProfileSubject
from evokern.compile.build import compile_to_ptx
from evokern.compile.occupancy import blocks_per_sm, resources
from evokern.compile.records import Built, CompileFailure
from evokern.declaration.render import Rendered, render
from evokern.errors import SourceError, UsageError
from evokern.gate import RunFailed
from evokern.study.trial import Resources


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
    """Mean SM clocks that a warp of a block waited, by cause: `barrier`, `async_copy`, `memory` (operands, among them
    products of a warpgroup), `pipes` (those that other warps of its SM use)."""
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
    """The problem's key."""
    in_words: str
    """What people read of the problem."""
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
    verdict: Bottleneck
    """What bounds it, and what could ease that."""
    fault: str | None = None
    """What is wrong with the results, None where nothing is or it was not checked."""

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        values = asdict(self)
        del values["in_words"]
        return {**values, "source": "simulated", "verdict": self.verdict.as_dict()}


def profile_simulated(subject: ProfileSubject) -> CandidateProfile:
    """Profile a candidate on a simulated chip.

    Raises:
        UsageError: it is not feasible there, does not compile, fails, or uses what the PTX machine does not execute.
        DeviceError: its buffers are larger than the machine's memory, or what is left of it.
    """
    # The predictor needs torch, which the records do not.
    from evokern.device.sim.host_memory import workers_that_fit
    from evokern.device.sim.predict import Predictor
    from evokern.gate.comparison import tolerances

    kernel, config, problem, chip = subject.kernel, subject.config, subject.problem, subject.chip
    built, rendered = _built(subject)
    remedy = "give a smaller one (--problem), or profile it on a GPU (--device cuda)"
    workers_that_fit(kernel, config, [problem], remedy=remedy)
    study = subject.study
    allowed = tolerances(kernel, study.gate.atol, study.gate.rtol)
    predictor = Predictor(kernel, chip, study.timing, study.simulation, allowed, stalls=True)
    try:
        predicted = predictor.predict(config, built, problem)
    except RunFailed as failed:
        reason = failed.message or failed.outcome
        raise UsageError(
            f"{subject.title} does not run at {problem}: {reason}; `evokern sanitize` tells more"
        ) from None
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
    bottleneck = suggested(by_terms(total.terms_us, total.time_us), subject)
    return CandidateProfile(
        subject.title, kernel.name, kernel.source, dict(config), problem.key, str(problem), f"sim:{chip.name}", True,
        total.time_us, total.terms_us, total.bound, total.cause, tuple(parts), bottleneck, predicted.sampled,
    )  # fmt: skip


def _built(subject: ProfileSubject) -> tuple[Built, Rendered]:
    """Compile for the chip, and once more to PTX with line information: the same PTX, with its lines named."""
    kernel, config, problem, chip = subject.kernel, subject.config, subject.problem, subject.chip
    built = subject.built()
    rendered = render(kernel, config, problem)
    program = compile_to_ptx(rendered, chip)
    if isinstance(program, CompileFailure):
        raise SourceError(f"{kernel.name}: {program.message}")
    return built.with_ptx(problem, program), rendered
