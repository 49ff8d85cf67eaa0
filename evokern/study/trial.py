"""A candidate's journey: proposal, outcome, evidence, record.

An outcome is a value, never an exception. `REQUIRED_EVIDENCE` fixes which evidence an outcome must carry, so that no
record can say *that* a candidate failed without saying *why*.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from evokern.declaration.genes import Config
from evokern.errors import InternalError
from evokern.wording import in_gib


class Outcome(StrEnum):
    """How a trial ended: the whole list."""

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
        """Whether the trial counts towards `--trials`: infeasible, duplicate and lost ones do not."""
        return self not in (Outcome.INFEASIBLE, Outcome.DUPLICATE, Outcome.LOST)

    def within_arm(self, fingerprint: str | None, programs: set[str | None]) -> Outcome:
        """Return the outcome that a trial had where its arm of a study with a control were the whole study.

        A program that the other arm timed first is a duplicate in the study, and measured in an arm that meets it for
        the first time.

        Args:
            fingerprint: identity of the trial's program.
            programs: those that earlier trials of the arm had; this one is added.
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
"""Keys that `Evaluation.evidence` must have."""
PRINTS = "it calls printf, which takes seconds where every thread prints: leave it out, or let one thread print"
"""What is added to the reason of a hung candidate whose evidence says that it `prints`."""


@dataclass(frozen=True)
class Resources:
    """What the compiler gave one launch of a candidate."""

    registers: int
    """Registers of a thread."""
    spill_bytes: int
    """Bytes spilled by a thread (stores plus loads)."""
    stack_bytes: int
    """Stack frame of a thread, bytes."""
    static_shared_bytes: int
    """Static shared memory of a block, bytes."""
    dynamic_shared_bytes: int
    """Dynamic shared memory of a block, bytes."""
    occupancy: float
    """Resident warps over the SM's limit, 0 to 1."""


@dataclass(frozen=True)
class Timing:
    """Time of one call on one problem."""

    median_us: float
    """Median over the samples, µs a call."""
    ci95_us: tuple[float, float]
    """95 % interval of the median, µs."""
    samples_us: tuple[float, ...]
    """Every sample, µs a call, in the order taken."""
    predicted: bool = False
    """From the time model of a simulated device, not from a clock."""
    clock_mhz: float | None = None
    """SM clock while sampling."""
    throttle: str = ""
    """Throttle reasons the driver reported, empty for none."""
    temperature_c: float | None = None
    """GPU temperature while sampling."""


@dataclass(frozen=True)
class Span:
    """A phase of a trial, as a clock saw it."""

    phase: str
    """`compile`, `evaluate` (all that a device's worker did with it), within that `prediction`, `gate`, `timing`."""
    began_s: float
    """When it began: of a stored trial study time over all sessions, before that `time.monotonic`; seconds."""
    seconds: float
    """How long it took."""
    worker: str = ""
    """The process that did it, `compiler 3`, `executor 1`; empty within that process."""


@dataclass(frozen=True)
class Evaluation:
    """What a device says of one candidate."""

    outcome: Outcome
    """How it ended."""
    time_us: float | None = None
    """The objective in µs: the time, or over several problems the geometric mean scaled to the first (see `search`)."""
    timings: tuple[Timing, ...] = ()
    """One per problem of the study, in order."""
    resources: tuple[Resources, ...] = ()
    """One per distinct launch, in order."""
    fingerprint: str | None = None
    """Identity of machine code and launch; equal fingerprints are the same program."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Why, as JSON values; `REQUIRED_EVIDENCE` names the keys an outcome must have."""
    gate: Mapping[str, Any] = field(default_factory=dict)
    """What the correctness gate measured: relative Frobenius error, worst element, checks done."""
    compile_s: float = 0.0
    """Seconds of compilation (0 when cached)."""
    device_s: float = 0.0
    """Seconds in which the candidate, its gate or its timing held the device."""
    spans: tuple[Span, ...] = field(default=(), compare=False)
    """When all that was; empty where nobody took the time, as in a recording. Two evaluations are the same without."""

    def __post_init__(self) -> None:
        for key in REQUIRED_EVIDENCE[self.outcome]:
            if key not in self.evidence:
                raise InternalError(f"outcome {self.outcome} lacks its evidence {key!r}: {dict(self.evidence)}")
        if self.outcome is Outcome.MEASURED and not (
            self.time_us is not None and math.isfinite(self.time_us) and self.time_us > 0
        ):
            raise InternalError(f"a measured trial needs a positive finite time, not {self.time_us}")

    @property
    def passed_gate(self) -> bool:
        """Whether the gate found its answers right.

        A slow candidate that was timed had passed; one that was predicted to be slow has no timings, and was not asked.
        """
        timed = self.outcome is Outcome.SLOW and bool(self.timings)
        return timed or self.outcome in (Outcome.MEASURED, Outcome.DUPLICATE)

    @property
    def own_problem_share(self) -> float | None:
        """Blocks that a simulated device ran at the study's own problems ÷ all; None where the evidence has none."""
        own = self.evidence.get("own_problem")
        if not isinstance(own, dict) or not own:
            return None
        total = sum(one["of"] for one in own.values())
        return sum(one["blocks"] for one in own.values()) / total if total else None

    @property
    def scaled_problems(self) -> tuple[str, ...]:
        """Keys of the scaled-down problems at which a simulated device ran all of its blocks."""
        own = self.evidence.get("own_problem")
        ran = own.values() if isinstance(own, dict) else ()
        return tuple(str(one["scaled"]) for one in ran if one.get("scaled"))

    @property
    def reason(self) -> str:
        """Why it ended so, in one line."""
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
                    unproved = "" if self.passed_gate else f", by its {by}: its answer was not judged"
                    return f"slower than {limit:.3f} µs, {limit / elite:.4g} × the {elite:.3f} µs to beat{unproved}"
                return f"slower than the elite's {elite:.3f} µs"
            case Outcome.WRONG:
                return str(e.get("message") or e["check"])
            case Outcome.CRASHED:
                return str(e.get("diagnosis") or e["error"])
            case Outcome.HUNG:
                told = str(e.get("diagnosis") or e.get("message") or f"still running after {e['limit_s']:g} s")
                return f"{told}; {PRINTS}" if e.get("prints") else told
            case Outcome.COMPILE_ERROR:
                return str(e.get("message") or next(iter(str(e["log"]).strip().splitlines()), "no message"))
            case Outcome.LOST:
                return str(e["reason"])
            case Outcome.INFEASIBLE if e.get("reason") and (e["needed"], e["available"]) == (1, 0):  # a condition
                return f"{e['constraint']}: {e['reason']}"
            case _ if e.get("unit") == "bytes" and e["needed"] >= 2**30:
                return f"{e['constraint']}: needs {in_gib(e['needed'])}, has {in_gib(e['available'])}"
            case _:
                return f"{e['constraint']}: needs {e['needed']:g}, has {e['available']:g}"


@dataclass(frozen=True)
class Proposal:
    """What a sampler proposes for one trial."""

    config: Config
    """A canonical configuration; feasible and unseen, unless the sampler is `grid` or runs without its guard."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What the sampler says of it, as JSON values: operator, parents, prediction."""
    rejections: Mapping[str, int] = field(default_factory=dict)
    """Constraint → how many proposals for this trial it turned away."""
    sampler_state: Mapping[str, Any] = field(default_factory=dict)
    """What a sampler of Optuna's left on its view, as JSON values: `trial` and `study` system attributes."""
    control: bool = False
    """Whether the study's control drew it, not its sampler."""


@dataclass(frozen=True)
class Trial:
    """One trial as the store keeps it: a proposal and what became of it."""

    number: int
    """Position in the study, from 0."""
    proposal: Proposal
    """What was proposed."""
    evaluation: Evaluation
    """What became of it."""
    seconds: float = 0.0
    """Study time at which it was recorded, in seconds over all sessions."""

    @property
    def config(self) -> Config:
        """The candidate's choices."""
        return self.proposal.config

    @property
    def control(self) -> bool:
        """Whether the study's control drew it, not its sampler."""
        return self.proposal.control

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        return self.evaluation.outcome

    @property
    def value(self) -> float | None:
        """The objective, log(time in µs), where there is one."""
        return None if self.evaluation.time_us is None else math.log(self.evaluation.time_us)
