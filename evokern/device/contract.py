"""Interface of every device: evaluate the candidates of a task, in any order, and survive their failures.

A device is live (a GPU), simulated (the kernel's PTX runs on the CPU) or recorded (a table of results). The search
engine uses only `Device`: it submits one request per trial and polls for results. A failing candidate never raises an
exception here; its failure becomes an `Evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.hardware.profiles import Profile
from evokern.measurement.playoff import Measure
from evokern.measurement.roofline import Rates
from evokern.study.settings import Study
from evokern.study.trial import Evaluation, Timing

DEFAULT_US = "default_us"
"""Key in a session's environment for the measured value of `Task.default_us`."""


@dataclass(frozen=True)
class StartStep:
    """One step of a device's start."""

    text: str
    """Description of the step that is about to begin."""
    done: int
    """Number of completed steps."""
    of: int
    """Total number of steps."""


def ignore_step(step: StartStep) -> None:
    """Ignore a step of a device's start; this is the default callback."""


@dataclass(frozen=True)
class Task:
    """Workload and settings that all candidates share."""

    kernel: Kernel
    """The loaded kernel; worker processes load it again from `kernel.folder`."""
    problems: tuple[Problem, ...]
    """The study's problems, in order."""
    study: Study
    """Settings of the gate, the timing and the simulation."""
    known: Mapping[str, tuple[int, Evaluation]] = field(default_factory=dict)
    """Fingerprint → (trial number, evaluation) of the study's earlier trials."""
    secret: int = 0
    """Seed of the study for values that candidates must not know in advance; the same in every session."""
    foreign: bool = False
    """Whether candidates are external sources. Their compile times are then bounded."""
    default_us: tuple[float, ...] = ()
    """Launch time of the default candidate on each problem in µs, or empty. The first session measures it and all
    sessions use it: a candidate whose first launches take far longer is stopped."""
    on_step: Callable[[StartStep], None] = field(default=ignore_step, compare=False)
    """Callback before each start step, in the thread that starts the device."""


@dataclass(frozen=True)
class BaselineResult:
    """Time of a baseline, measured exactly like a candidate."""

    name: str
    """The baseline's name."""
    timings: tuple[Timing, ...] = ()
    """Timings, one per problem; empty if the baseline could not run."""
    error: str = ""
    """Reason why the baseline could not run or was wrong; empty on success."""


@dataclass(frozen=True)
class StartReport:
    """Results of a device's start."""

    baselines: tuple[BaselineResult, ...] = ()
    """Every baseline that was tried."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Clocks, and versions of the driver, compiler and libraries; stored with the session."""
    notes: tuple[str, ...] = ()
    """Notes for the user, for example that other programs use the GPU or that a profiler is missing."""


@dataclass(frozen=True)
class Request:
    """One candidate to evaluate."""

    number: int
    """Trial number."""
    config: Config
    """A canonical, feasible configuration."""
    elite_us: float | None = None
    """Time to race against in µs; None measures until the stopping rule is met."""


@dataclass(frozen=True)
class Answer:
    """Result of one evaluation request."""

    number: int
    """Trial number."""
    evaluation: Evaluation
    """Outcome and evidence."""


class Device(Protocol):
    """Device that evaluates candidates for one search at a time."""

    @property
    def identity(self) -> str:
        """Name to which a study is bound, for example `NVIDIA H200`, `sim:l4` or `replay:convolution-a100`."""

    @property
    def predicted(self) -> bool:
        """Whether times are predicted instead of measured."""

    @property
    def profile(self) -> Profile:
        """Resource limits and peak rates of the chip."""

    @property
    def window(self) -> int:
        """Default maximum number of concurrent trials for a new study."""

    @property
    def at_once(self) -> int:
        """Number of GPUs that measure concurrently; 1 for other devices.

        New studies allow more concurrent trials for several GPUs (`ramp_for`).
        """

    @property
    def verifiable(self) -> bool:
        """Whether candidates are programs that can run again for verification."""

    @property
    def diagnoses(self) -> bool:
        """Whether crashes and hangs need a diagnosis on the simulated device."""

    def start(self, task: Task) -> StartReport:
        """Start the workers, check the sensitivity of the gate, measure the baselines.

        Raises:
            UsageError: the device, the compiler or the workload cannot be used.
        """

    def submit(self, request: Request) -> None:
        """Accept one candidate; returns immediately."""

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Return the results that are ready; wait at most `timeout_s` for the first."""

    def busy_s(self) -> float:
        """Return the seconds since `start` during which candidates occupied the device."""

    def close(self) -> None:
        """Stop every worker; can be called twice."""


@runtime_checkable
class ReportsStages(Protocol):
    """Device that reports the stage of its candidates."""

    def stages(self) -> tuple[int, int]:
        """Return the number of candidates being compiled, and the number waiting to run or running."""


@dataclass(frozen=True)
class ExecutorState:
    """State of one executor: a GPU, or a host of a cluster."""

    name: str
    """Name of the executor."""
    per_minute: float
    """Results during the last minute, extrapolated during the first minute."""
    state: str = ""
    """Reason why the executor is idle, or its last event; empty in normal operation."""


@runtime_checkable
class HasExecutors(Protocol):
    """Device that may have several executors."""

    def executors(self) -> Sequence[ExecutorState]:
        """Return the state of each executor; empty for a single executor."""


@runtime_checkable
class CompilesAhead(Protocol):
    """Device that can compile likely candidates ahead, while its compilers are idle."""

    def compile_ahead(self, configs: Sequence[Config]) -> None:
        """Compile likely next candidates, most likely first, as long as no other candidate is waiting.

        This changes no result; returns immediately.
        """


@runtime_checkable
class MeasuresRates(Protocol):
    """Started device that can report its copy and matrix rates."""

    def rates(self) -> Rates:
        """Return the copy and matrix rates; the device accepts no further request afterwards.

        Raises:
            EvokernError: the rates cannot be measured.
        """


@runtime_checkable
class MeasuresRounds(Protocol):
    """Device with a clock that measures candidates in interleaved rounds."""

    def rounds(self, task: Task, candidates: Sequence[Config | str]) -> Measure:
        """Return a function that measures one round; the device accepts no other work afterwards.

        Args:
            task: the workload and its settings.
            candidates: configurations, or names of baselines.
        """


@runtime_checkable
class Remeasures(Protocol):
    """Device that measures some trials a second time."""

    def remeasured(self) -> Mapping[int, Mapping[str, Any]]:
        """Return the new results since the last call, by trial: `gpu`, `outcome`, `time_us` in µs, and `because`."""
