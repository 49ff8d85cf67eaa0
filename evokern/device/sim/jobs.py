"""What a simulated device asks its workers: records that travel between processes, free of torch."""

from __future__ import annotations

from dataclasses import dataclass

from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.study.discovery import WorkerContext
from evokern.study.settings import GateSettings, SimulationSettings, TimingSettings


@dataclass(frozen=True)
class SimSettings:
    """What every job of a study shares."""

    context: WorkerContext
    """The kernel, the study's problems, the chip under the study's limits."""
    gate: GateSettings
    """How candidates are checked."""
    timing: TimingSettings
    """For the size of the working set: how many input sets rotate."""
    simulation: SimulationSettings
    """Limits and samples."""
    default: Config
    """Candidate on which the gate's power is proved."""
    secret: int = 0
    """Of the study: draws inputs and the blocks that are judged at its own problems."""
    foreign: bool = False
    """Whether the candidates bring sources that nobody has read: memory is bounded."""


@dataclass(frozen=True)
class ProvePower:
    """Prove that the gate tells right from wrong on this workload."""


@dataclass(frozen=True)
class Simulate:
    """Check one candidate and predict its time, in full or as far as an order needs it: the worker decides."""

    config: Config
    """Its configuration."""
    built: Built
    """Its programs and launches at the study's problems."""
    elite_us: float | None
    """Predicted time to race against, µs: of the best so far, or of the default candidate."""
    best_us: float | None = None
    """Predicted time of the best so far, µs: what is faster runs whole before it is told; None runs every one."""
