"""The contract of every device: evaluate these candidates of this task, in any order, and survive whatever they do.

A device is live (a GPU), simulated (the kernel's PTX on the CPU) or recorded (a table of answers). The search engine
talks to all of them through `Device` alone: it submits a request per trial and polls for answers. What a candidate does
never raises here; it becomes an `Evaluation`.
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
"""Key of a session's environment: `Task.default_us` as the device measured it."""


@dataclass(frozen=True)
class StartStep:
    """What a device does while it starts."""

    text: str
    """What it is about to do."""
    done: int
    """Steps behind it."""
    of: int
    """Steps of the whole start."""


def unheard(step: StartStep) -> None:
    """Take a step that nobody watches."""


@dataclass(frozen=True)
class Task:
    """What the candidates are candidates of."""

    kernel: Kernel
    """The loaded kernel; worker processes load it again from `kernel.folder`."""
    problems: tuple[Problem, ...]
    """The study's problems, in order."""
    study: Study
    """Gate, timing and simulation settings."""
    known: Mapping[str, tuple[int, Evaluation]] = field(default_factory=dict)
    """Fingerprint → (trial number, evaluation) of what this study has evaluated before."""
    secret: int = 0
    """Of the study: draws what candidates must not know beforehand, the same in every session."""
    foreign: bool = False
    """Whether the candidates bring sources of their own, which nobody has read: their compiles are bounded."""
    default_us: tuple[float, ...] = ()
    """Time of a launch of the default candidate at each problem, µs, from the session that measured it; else empty. A
    candidate whose first launches are far beyond it is given up, by the same time in every session."""
    on_step: Callable[[StartStep], None] = field(default=unheard, compare=False)
    """Called before each step of the start, from the thread that starts the device."""


@dataclass(frozen=True)
class BaselineResult:
    """What a baseline took, measured exactly as candidates are."""

    name: str
    """The baseline's name."""
    timings: tuple[Timing, ...] = ()
    """One per problem; empty when it could not run."""
    error: str = ""
    """Why it could not run or was wrong, empty when it was fine."""


@dataclass(frozen=True)
class StartReport:
    """What a device found when it opened."""

    baselines: tuple[BaselineResult, ...] = ()
    """Every baseline that was tried."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Driver, compiler, clocks, library versions: kept with the study's session."""
    notes: tuple[str, ...] = ()
    """What the user should know: a foreign load on the GPU, a missing profiler."""


@dataclass(frozen=True)
class Request:
    """One candidate to evaluate."""

    number: int
    """Trial number."""
    config: Config
    """A canonical, feasible configuration."""
    elite_us: float | None = None
    """Time to race against, in µs; None runs to the stopping rule."""


@dataclass(frozen=True)
class Answer:
    """What became of a request."""

    number: int
    """Trial number."""
    evaluation: Evaluation
    """Outcome and evidence."""


class Device(Protocol):
    """Evaluates candidates; one search at a time."""

    @property
    def identity(self) -> str:
        """Model that a study is bound to: `NVIDIA H200`, `sim:l4`, `replay:convolution-a100`."""

    @property
    def predicted(self) -> bool:
        """Whether times are predicted, not measured."""

    @property
    def profile(self) -> Profile:
        """The chip's limits and peak rates."""

    @property
    def window(self) -> int:
        """Default number of trials in flight for a new study."""

    @property
    def at_once(self) -> int:
        """GPUs that measure side by side, or 1: for several a new study has more trials in flight (`ramp_for`)."""

    @property
    def verifiable(self) -> bool:
        """Whether its candidates are programs, which can be run again to verify them."""

    @property
    def diagnoses(self) -> bool:
        """Whether a crash or a hang says so little here that the simulated device is asked for its cause."""

    def start(self, task: Task) -> StartReport:
        """Open workers, prove the gate's power, measure the baselines.

        Raises:
            UsageError: the device, the compiler or the workload cannot work as asked.
        """

    def submit(self, request: Request) -> None:
        """Accept one candidate; returns at once."""

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Return the answers that are ready, waiting at most `timeout_s` for the first."""

    def busy_s(self) -> float:
        """Return the seconds since `start` in which a candidate, its gate or its timing held the device."""

    def close(self) -> None:
        """Stop every worker; safe to call twice."""


@runtime_checkable
class Staged(Protocol):
    """A device that knows how far the candidates are that it holds."""

    def stages(self) -> tuple[int, int]:
        """Return how many of them are being compiled, and how many wait to be executed or are being executed."""


@dataclass(frozen=True)
class ExecutorState:
    """One of several executors of a device: a GPU, or a host of a cluster."""

    name: str
    """What it is called."""
    per_minute: float
    """Answers in the last minute, extrapolated while it is shorter."""
    state: str = ""
    """Why it does not work, or what happened to it; empty where it works as from the first."""


@runtime_checkable
class Several(Protocol):
    """A device that has several executors."""

    def executors(self) -> Sequence[ExecutorState]:
        """Return how each of them stands; none where there is one."""


@runtime_checkable
class CompilesAhead(Protocol):
    """A device whose compilers idle while few candidates are in flight."""

    def compile_ahead(self, configs: Sequence[Config]) -> None:
        """Compile candidates that may be submitted next, the likeliest first, where that keeps no other waiting.

        It changes no answer; returns at once.
        """


@runtime_checkable
class Rated(Protocol):
    """A started device that knows, or measures, how fast it copies and multiplies."""

    def rates(self) -> Rates:
        """Return its rates; nothing can be submitted after.

        Raises:
            EvokernError: they cannot be measured.
        """


@runtime_checkable
class Interleaving(Protocol):
    """A device with a clock: measures candidates in turn."""

    def rounds(self, task: Task, candidates: Sequence[Config | str]) -> Measure:
        """Return what plays a round of these candidates (a text names a baseline); nothing else may be asked after."""


@runtime_checkable
class Remeasures(Protocol):
    """A device that measures some of its trials a second time."""

    def remeasured(self) -> Mapping[int, Mapping[str, Any]]:
        """Return what has come since the last call: trial → `gpu`, `outcome`, `time_us` in µs, and `because`."""
