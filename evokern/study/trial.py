"""Trials: their proposals, outcomes, evidence and records.

Outcomes are values, not exceptions. `REQUIRED_EVIDENCE` lists the evidence of each outcome, so that every record of a
failed candidate states the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn

from evokern.declaration.genes import Config, Value
from evokern.declaration.space import LEFT_OVER
from evokern.errors import InternalError, suggestion
from evokern.escaping import repr_of
from evokern.wording import in_gib


class Outcome(StrEnum):
    """Outcome of a trial."""

    MEASURED = "measured"
    DUPLICATE = "duplicate"
    SLOW = "slow"
    WRONG = "wrong"
    CRASHED = "crashed"
    HUNG = "hung"
    OVER_RESOURCES = "over_resources"
    COMPILE_ERROR = "compile_error"
    INFEASIBLE = "infeasible"
    LOST = "lost"

    @property
    def evaluated(self) -> bool:
        """Whether the trial counts towards `--trials`; infeasible, duplicate and lost trials do not."""
        return self not in (Outcome.INFEASIBLE, Outcome.DUPLICATE, Outcome.LOST)

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"there is no outcome {value!r}: {suggestion(value, [one.value for one in cls])}")

    def as_seen_by_arm(self, fingerprint: str | None, programs: set[str | None]) -> Outcome:
        """Return the outcome of the trial within its own group, in a study with a control.

        A program that the other arm timed first is a duplicate in the study, but `measured` within an arm that has not
        seen that program.

        Args:
            fingerprint: identity of the trial's program.
            programs: programs of the arm's earlier trials; this trial's program is added.
        """
        first = fingerprint not in programs
        programs.add(fingerprint)
        return Outcome.MEASURED if self is Outcome.DUPLICATE and first else self


REQUIRED_EVIDENCE: Mapping[Outcome, tuple[str, ...]] = {
    Outcome.MEASURED: (),
    Outcome.DUPLICATE: ("duplicate_of",),
    Outcome.SLOW: ("elite_us",),
    Outcome.WRONG: ("check",),
    Outcome.CRASHED: ("error",),
    Outcome.HUNG: ("limit_s",),
    Outcome.OVER_RESOURCES: ("constraint", "needed", "available"),
    Outcome.COMPILE_ERROR: ("log",),
    Outcome.INFEASIBLE: ("constraint", "needed", "available", "reason"),
    Outcome.LOST: ("reason", "memory"),
}
"""Keys that `Evaluation.evidence` must contain for each outcome."""
TOO_LARGE = "too_large_to_simulate"
"""Constraint of an infeasible candidate that needs more instructions or time than a simulated device allows."""
SMALLER = "use a smaller problem, raise simulation.instruction_limit in the study, or use a GPU"
"""Remedy for candidates that are too large to simulate."""
PRINTF_HINT = "it calls printf, which takes seconds if every thread prints; remove it, or let one thread print"
"""Text that is added to the reason of a hung candidate whose evidence has `prints`."""


@dataclass(frozen=True)
class Resources:
    """Resources of one compiled launch."""

    registers: int
    """Registers per thread."""
    spill_bytes: int
    """Bytes spilled per thread (stores plus loads)."""
    stack_bytes: int
    """Stack frame per thread in bytes."""
    static_shared_bytes: int
    """Static shared memory per block in bytes."""
    dynamic_shared_bytes: int
    """Dynamic shared memory per block in bytes."""
    occupancy: float
    """Resident warps as a fraction (0 to 1) of the SM's maximum."""
    blocks: int = 0
    """Blocks of the grid; 0 for trials of earlier versions."""
    resident: int = 0
    """Blocks that run on the chip at once."""
    sms: int = 0
    """SMs of the chip; 0 for trials of earlier versions."""


@dataclass(frozen=True)
class Timing:
    """Time of one call on one problem."""

    median_us: float
    """Median of the samples, µs per call."""
    ci95_us: tuple[float, float]
    """95 % confidence interval of the median in µs."""
    samples_us: tuple[float, ...]
    """All samples in the order in which they were taken, µs per call."""
    predicted: bool = False
    """Whether a simulated device predicted the time."""
    clock_mhz: float | None = None
    """SM clock during sampling, in MHz."""
    throttle: str = ""
    """Throttle reasons that the driver reported; empty if there were none."""
    temperature_c: float | None = None
    """GPU temperature during sampling, in °C."""


@dataclass(frozen=True)
class Span:
    """Time span of one phase of a trial."""

    phase: str
    """Phase: `compile`, `evaluate` (all work of a device worker), or its part `prediction`, `gate` or `timing`."""
    began_s: float
    """Start in seconds: study time over all sessions for a stored trial, `time.monotonic` before that."""
    seconds: float
    """Duration in seconds."""
    worker: str = ""
    """Process that did the work, such as `compiler 3` or `executor 1`; empty within that process."""


@dataclass(frozen=True)
class Evaluation:
    """Result of evaluating one candidate on a device."""

    outcome: Outcome
    """Outcome of the evaluation."""
    time_us: float | None = None
    """Objective in µs: the time or, for several problems, the geometric mean of their times."""
    timings: tuple[Timing, ...] = ()
    """Timing of each problem of the study, in order."""
    resources: tuple[Resources, ...] = ()
    """Resources of each distinct launch, in order."""
    fingerprint: str | None = None
    """Identity of the machine code and the launch; programs with equal fingerprints are the same."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Evidence for the outcome as JSON values, with at least the keys in `REQUIRED_EVIDENCE`."""
    gate: Mapping[str, Any] = field(default_factory=dict)
    """Measurements of the correctness check: relative Frobenius error, worst element, checks performed."""
    compile_s: float = 0.0
    """Compilation time in seconds (0 if cached)."""
    device_s: float = 0.0
    """Seconds in which the candidate occupied the device, for running, checking or timing."""
    spans: tuple[Span, ...] = field(default=(), compare=False)
    """Time spans of the phases; empty if not recorded. Ignored when comparing evaluations."""

    def __post_init__(self) -> None:
        for key in REQUIRED_EVIDENCE[self.outcome]:
            if key not in self.evidence:
                raise InternalError(f"outcome {self.outcome} lacks its evidence {key!r}: {dict(self.evidence)}")
        if self.outcome is Outcome.MEASURED and not (
            self.time_us is not None and math.isfinite(self.time_us) and self.time_us > 0
        ):
            raise InternalError(f"a measured trial needs a positive finite time, not {self.time_us}")

    __repr__ = repr_of("outcome", "time_us", "evidence")

    @property
    def passed_gate(self) -> bool:
        """Whether the candidate passed the gate.

        A slow candidate with timings passed; a slow candidate that has only a predicted time was not checked.
        """
        timed = self.outcome is Outcome.SLOW and bool(self.timings)
        return timed or self.outcome in (Outcome.MEASURED, Outcome.DUPLICATE)

    @property
    def own_problem_share(self) -> float | None:
        """Fraction of the full-size problems' blocks that a simulated device ran; None if this was not recorded."""
        own = self.evidence.get("own_problem")
        if not isinstance(own, dict) or not own:
            return None
        total = sum(one["of"] for one in own.values())
        return sum(one["blocks"] for one in own.values()) / total if total else None

    @property
    def scaled_problems(self) -> tuple[str, ...]:
        """Keys of the scaled-down problems that a simulated device ran with all blocks."""
        own = self.evidence.get("own_problem")
        ran = own.values() if isinstance(own, dict) else ()
        return tuple(str(one["scaled"]) for one in ran if one.get("scaled"))

    @property
    def reason(self) -> str:
        """Reason for the outcome in one line."""
        e = self.evidence
        match self.outcome:
            case Outcome.MEASURED:
                return f"{self.time_us:.3f} µs"
            case Outcome.DUPLICATE:
                return f"same machine code and launch as trial {e['duplicate_of']}"
            case Outcome.SLOW:
                elite, limit = e["elite_us"], e.get("limit_us")
                if limit and limit > elite:
                    by = "first launches" if e.get("unproved") else "predicted time"
                    unproved = "" if self.passed_gate else f", by its {by}: its output was not checked"
                    return f"slower than {limit:.3f} µs, {limit / elite:.4g} × the {elite:.3f} µs to beat{unproved}"
                return f"slower than the elite's {elite:.3f} µs"
            case Outcome.WRONG:
                return str(e.get("message") or e["check"])
            case Outcome.CRASHED:
                return str(e.get("diagnosis") or e["error"])
            case Outcome.HUNG:
                text = str(e.get("diagnosis") or e.get("message") or f"still running after {e['limit_s']:g} s")
                return f"{text}; {PRINTF_HINT}" if e.get("prints") else text
            case Outcome.COMPILE_ERROR:
                return str(e.get("message") or next(iter(str(e["log"]).strip().splitlines()), "no message"))
            case Outcome.LOST:
                return str(e["reason"])
            case _ if e.get("reason") and (e["needed"], e["available"]) == (1, 0):  # a condition
                return f"{e['constraint']}: {e['reason']}"
            case Outcome.INFEASIBLE if e["constraint"] == TOO_LARGE:
                return f"{e['constraint']}: {e['reason']}"
            case _ if str(e.get("unit", "")).endswith(LEFT_OVER):
                return f"{e['constraint']}: {e['needed']:g} {e['unit']}, must be 0"
            case _ if e.get("unit") == "bytes" and e["needed"] >= 2**30:
                return f"{e['constraint']}: needs {in_gib(e['needed'])}, has {in_gib(e['available'])}"
            case _:
                return f"{e['constraint']}: needs {e['needed']:g}, has {e['available']:g}"


@dataclass(frozen=True)
class Proposal:
    """A sampler's proposal for one trial."""

    config: Config
    """Canonical configuration; feasible and new, unless it is from `grid` or an unguarded sampler."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """The sampler's notes on the proposal as JSON values: operator, parents and prediction."""
    rejections: Mapping[str, int] = field(default_factory=dict)
    """Number of earlier proposals for this trial that were rejected, by constraint."""
    sampler_state: Mapping[str, Any] = field(default_factory=dict)
    """State that an Optuna sampler stored, as JSON values: the system attributes of `trial` and `study`."""
    control: bool = False
    """Whether the study's control made the proposal, not its sampler."""


@dataclass(frozen=True)
class Trial:
    """A stored trial: its proposal and evaluation."""

    number: int
    """Position in the study, from 0."""
    proposal: Proposal
    """Proposal of the trial."""
    evaluation: Evaluation
    """Evaluation of the trial."""
    seconds: float = 0.0
    """Study time at which the trial was recorded, in seconds over all sessions."""

    @property
    def config(self) -> Config:
        """Configuration of the candidate."""
        return self.proposal.config

    @property
    def control(self) -> bool:
        """Whether the proposal was made by the study's control and not by its sampler."""
        return self.proposal.control

    @property
    def outcome(self) -> Outcome:
        """Outcome of the trial."""
        return self.evaluation.outcome

    @property
    def params(self) -> dict[str, Value]:
        """Value of each gene, by name."""
        return dict(self.config)

    @property
    def time_us(self) -> float | None:
        """Time in µs or, for several problems, the geometric mean of their times; None if the trial has no time."""
        return self.evaluation.time_us

    @property
    def log_time(self) -> float | None:
        """Objective of the samplers: log(time in µs), or None if the trial has no time."""
        return None if self.time_us is None else math.log(self.time_us)

    @property
    def reason(self) -> str:
        """Reason for the outcome in one line."""
        return self.evaluation.reason

    __repr__ = repr_of("number", "outcome", "time_us")
