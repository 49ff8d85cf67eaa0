"""Profiler for a simulated chip: counters per source line and components of the predicted time.

`profile_simulated` runs some blocks of the problem and scales their mean to the whole grid. The time model converts the
counters into predicted times; `evokern.analysis.profile.lines` does so for each line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from evokern.analysis.profile.bound import Bottleneck, bottleneck_from_times, with_suggestions
from evokern.analysis.profile.lines import LineProfile, line_profiles
from evokern.analysis.profile.subject import ProfileSubject
from evokern.compile.build import compile_to_ptx
from evokern.compile.occupancy import blocks_per_sm, resources
from evokern.compile.records import Built, CompileFailure
from evokern.declaration.render import Rendered, render
from evokern.errors import SourceError, UsageError
from evokern.gate import RunFailed
from evokern.study.trial import SMALLER, TOO_LARGE, Resources


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
