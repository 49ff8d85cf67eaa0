"""What a live device asks its worker, and Nsight Compute's program: records that travel between processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Problem
from evokern.study.discovery import WorkerContext
from evokern.study.settings import GateSettings, TimingSettings

PLANNED, HELD, PEAK, FREE = "planned_bytes", "held_bytes", "peak_bytes", "free_bytes"
"""Keys of the worker's report when it is ready: bytes of the GPU's memory that its buffers take by the plan, that it
holds, that it held at most while it began (references are computed then), and that are left."""
CONTEXT_BYTES = 2**30
"""Bytes of the GPU's memory that a process takes beside its buffers."""


@dataclass(frozen=True)
class GpuSettings:
    """What every job of a study shares."""

    context: WorkerContext
    """The kernel, the study's problems, and the GPU with the peak rates below which no time can be true."""
    gate: GateSettings
    """How candidates are checked."""
    timing: TimingSettings
    """How they are timed."""
    device_index: int
    """The GPU's number for the driver."""
    turn_lock: Path
    """File whose lock says which worker uses the GPU: a spare warms up while no candidate is being timed."""
    warm_config: Config
    """Candidate whose buffers a worker prepares while it starts."""


@dataclass(frozen=True)
class Prove:
    """Prove the gate's power."""


@dataclass(frozen=True)
class MeasureBaseline:
    """Check and time one of the workload's baselines."""

    index: int
    """Which one."""


@dataclass(frozen=True)
class MeasureRates:
    """Measure how fast the GPU copies and multiplies."""


@dataclass(frozen=True)
class TimeFirstLaunches:
    """Time a candidate's first launches at every problem, and judge nothing of it."""

    config: Config
    """Its configuration."""
    built: Built
    """Its programs and launches."""


@dataclass(frozen=True)
class Evaluate:
    """Check and time one candidate."""

    config: Config
    """Its configuration."""
    built: Built
    """Its programs and launches."""
    elite_us: float | None
    """Time to race against, µs."""
    default_us: tuple[float, ...] = ()
    """Time of a launch of the default candidate at each problem, µs; empty where it is not known."""


@dataclass(frozen=True)
class ProfiledCall:
    """One call of a candidate for Nsight Compute to profile."""

    folder: Path
    """The kernel's folder."""
    problem: Problem
    """The problem."""
    config: Config
    """The candidate."""
    built: Built
    """Its programs and launches."""
    device_index: int
    """The GPU's number for the driver."""
    limit_s: float = 120.0
    """Seconds after which a call counts as hung; every launch is replayed some dozen times."""


@dataclass(frozen=True)
class Contestant:
    """A candidate of a playoff."""

    config: Config
    """Its configuration; for a baseline the one whose buffers it uses."""
    built: Built | None
    """Its programs; None for a baseline."""
    baseline: str = ""
    """Name of a baseline."""


@dataclass(frozen=True)
class Round:
    """Measure these candidates in turn."""

    contestants: tuple[Contestant, ...]
    """Who takes part."""
    samples: int
    """Samples of each."""
