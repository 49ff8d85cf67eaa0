"""Jobs of a simulated device's workers, sent between processes and independent of torch."""

from __future__ import annotations

from dataclasses import dataclass

from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.study.discovery import WorkerContext
from evokern.study.settings import GateSettings, SimulationSettings, TimingSettings


@dataclass(frozen=True)
class SimSettings:
    """Settings shared by all jobs of a study."""

    context: WorkerContext
    """Kernel, problems, and the chip under the study's resource limits."""
    gate: GateSettings
    """Settings of the gate."""
    timing: TimingSettings
    """Timing settings; the number of rotating input sets determines the working set."""
    simulation: SimulationSettings
    """Instruction limit and sample sizes."""
    default: Config
    """Candidate for checking the sensitivity of the gate."""
    secret: int = 0
    """Seed of the study for inputs and for the choice of blocks that are checked on its problems."""
    foreign: bool = False
    """Whether candidates are external sources. Their memory is then bounded."""


@dataclass(frozen=True)
class CheckGateSensitivity:
    """Job that checks whether the gate distinguishes correct from wrong results of this workload."""


@dataclass(frozen=True)
class Simulate:
    """Job that checks one candidate and predicts its time; the worker decides how much is necessary."""

    config: Config
    """Configuration of the candidate."""
    built: Built
    """Programs and launches of the candidate for the study's problems."""
    elite_us: float | None
    """Predicted time to race against in µs: of the best trial so far, or of the default candidate."""
    best_us: float | None = None
    """Predicted time of the best trial so far in µs. Faster candidates run all blocks; None runs all candidates that
    way."""
