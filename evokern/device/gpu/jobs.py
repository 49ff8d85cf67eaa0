"""Jobs of a GPU worker and of the Nsight Compute program, sent between processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Problem
from evokern.declaration.kernel_files import KernelContent
from evokern.study.discovery import WorkerContext
from evokern.study.settings import GateSettings, TimingSettings

PLANNED, HELD, PEAK, FREE = "planned_bytes", "held_bytes", "peak_bytes", "free_bytes"
"""Keys of a worker's report at its start, each a number of bytes in GPU memory: planned for its buffers, held, the peak
during the start (references need temporary memory), and free."""
CONTEXT_BYTES = 2**30
"""Bytes of GPU memory that a process needs in addition to its buffers."""


@dataclass(frozen=True)
class GpuSettings:
    """Settings shared by all jobs of a study."""

    context: WorkerContext
    """Kernel, problems, and the GPU with its peak rates, which give the lower bound on time."""
    gate: GateSettings
    """Settings of the gate."""
    timing: TimingSettings
    """Settings of the timing."""
    device_index: int
    """The driver's index of the GPU."""
    turn_lock: Path
    """File whose lock grants the use of the GPU: a spare worker warms up only while no candidate is timed."""
    warm_config: Config
    """Candidate whose buffers a worker prepares at its start."""
    secret: int = 0
    """Seed of the study for the inputs of each candidate; 0 lets the worker choose one."""


@dataclass(frozen=True)
class CheckGate:
    """Job that checks the sensitivity of the gate."""


@dataclass(frozen=True)
class MeasureBaseline:
    """Job that checks and times one baseline."""

    index: int
    """Index of the baseline."""


@dataclass(frozen=True)
class MeasureRates:
    """Job that measures the GPU's copy and matrix rates."""


@dataclass(frozen=True)
class TimeFirstLaunches:
    """Job that times a candidate's first launches on every problem without checking results."""

    config: Config
    """Configuration of the candidate."""
    built: Built
    """Programs and launches of the candidate."""


@dataclass(frozen=True)
class Evaluate:
    """Job that checks and times one candidate."""

    config: Config
    """Configuration of the candidate."""
    built: Built
    """Programs and launches of the candidate."""
    elite_us: float | None
    """Time to race against, µs."""
    default_us: tuple[float, ...] = ()
    """Launch time of the default candidate on each problem in µs; empty if unknown."""


@dataclass(frozen=True)
class ProfiledCall:
    """One call of a candidate for profiling with Nsight Compute."""

    folder: Path
    """Folder of the kernel."""
    problem: Problem
    """Problem of the call."""
    config: Config
    """Configuration of the candidate."""
    built: Built
    """Programs and launches of the candidate."""
    device_index: int
    """The driver's index of the GPU."""
    limit_s: float = 120.0
    """Seconds after which a call counts as hung; the profiler replays every launch about a dozen times."""
    content: KernelContent | None = None
    """Content of a kernel that is declared as data; None to read the folder."""


@dataclass(frozen=True)
class Contestant:
    """Candidate of a playoff."""

    config: Config
    """Configuration; for a baseline, the configuration whose buffers it uses."""
    built: Built | None
    """Programs of the candidate; None for a baseline."""
    baseline: str = ""
    """Name of a baseline."""


@dataclass(frozen=True)
class Round:
    """Job that measures candidates in one interleaved round."""

    contestants: tuple[Contestant, ...]
    """Candidates of the round."""
    samples: int
    """Samples per candidate."""
