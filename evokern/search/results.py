"""Progress and result of a search session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evokern.declaration.genes import Gene
from evokern.device.contract import ExecutorState, StartStep
from evokern.escaping import repr_of
from evokern.study.trial import Trial

if TYPE_CHECKING:
    from evokern.store import StudyRecord

EndReason = Literal["budget", "trials", "exhausted", "interrupted", "paused", "no_success"]
"""Reason why a session ended: budget used up, trial limit reached, search space exhausted, or interrupted by the user.

`paused` means the end of its part of the study (`SessionPart`), and `no_success` that no candidate was correct
(`FailureWatch`)."""


@dataclass(frozen=True)
class ArmProgress:
    """Progress of one group of a study with a control: the sampler's trials or the control's trials."""

    sampler: str
    """Name of the sampler."""
    control: bool
    """Whether this is the control."""
    trials: int
    """Number of recorded trials of this group."""
    best: Trial | None
    """Fastest trial of this group."""


@dataclass(frozen=True)
class Progress:
    """Progress of a search, passed to `on_progress` at every event."""

    event: Literal["opening", "start", "trial", "idle", "end"]
    """Event: the device opens, the loop starts, a trial was recorded, nothing happened for a while, or the end."""
    study: str
    """Name of the study."""
    device: str
    """Device model."""
    predicted: bool = False
    """Whether times are predicted instead of measured."""
    resumed: int = 0
    """Number of trials that earlier sessions recorded."""
    set_aside: str = ""
    """New name of the study that `fresh` replaced."""
    elapsed_s: float = 0.0
    """Study time over all sessions, in seconds."""
    budget_s: float | None = None
    """Total budget in seconds."""
    trials: int = 0
    """Number of recorded trials."""
    evaluated: int = 0
    """Number of trials that count towards `--trials`: all except infeasible, duplicate and lost trials."""
    trials_limit: int | None = None
    """Maximum number of evaluated trials."""
    in_flight: int = 0
    """Number of candidates on the device."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Outcome → number of trials."""
    rejections: Mapping[str, int] = field(default_factory=dict)
    """Constraint → number of proposals rejected before they became trials."""
    baseline: tuple[str, float] | None = None
    """Name and time in µs of the fastest baseline."""
    rejected_baselines: Mapping[str, str] = field(default_factory=dict)
    """Name and error of each baseline that failed."""
    best: Trial | None = None
    """Champion so far."""
    arms: tuple[ArmProgress, ...] = ()
    """Sampler and control, in a study with control."""
    trials_per_minute: float = 0.0
    """Trials per minute over the last minute of this session, without infeasible trials."""
    busy_share: float = 0.0
    """Fraction of this session's time in which the device was running, checking or timing a candidate."""
    last_failures: tuple[str, ...] = ()
    """Recent failures, one of each kind, newest first: trial number, outcome and reason. Failures whose reasons differ
    only in numbers are of the same kind; slow trials are not failures."""
    failure_counts: tuple[int, ...] = ()
    """Number of trials with each failure in `last_failures`."""
    genes: tuple[Gene, ...] = ()
    """Genes of the search, with the values that are searched."""
    improvements: tuple[tuple[float, float], ...] = ()
    """Study time in seconds and kernel time in µs of each new champion, over all sessions."""
    step: StartStep | None = None
    """Current start-up step of the device."""
    stages: tuple[int, int] | None = None
    """Number of candidates in flight being compiled, and number already compiled, if the device reports them."""
    executors: tuple[ExecutorState, ...] = ()
    """State of the device's GPUs or hosts, if there are several."""
    sweep: str = ""
    """Progress of the sweep that this study belongs to; empty outside a sweep."""
    last_trial: Trial | None = None
    """The trial to which this event refers."""
    proofs: Mapping[int, bool] = field(default_factory=dict)
    """Whether the verification passed, by trial number; trials that were not verified are missing."""
    notes: tuple[str, ...] = ()
    """Notes for the user."""
    end: EndReason | None = None
    """Reason why the session ended; set at its last event."""

    __repr__ = repr_of("event", "study", "trials", "best", "end")

    @property
    def speedup(self) -> float | None:
        """Time of the baseline divided by the time of the champion, if both are known."""
        if self.baseline is None or self.best is None or self.best.evaluation.time_us is None:
            return None
        return self.baseline[1] / self.best.evaluation.time_us


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class SessionResult:
    """Result of a search session, as of its end."""

    db: Path
    """Database with the study."""
    record: StudyRecord
    """Record of the study."""
    end: EndReason
    """Reason why the session ended."""
    best: Trial | None
    """Champion over all sessions."""
    summary: Mapping[str, Any]
    """Object that `show --json` prints."""

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped the session (exit code 130)."""
        return self.end == "interrupted"

    @property
    def study(self) -> str:
        """Name of the study."""
        return self.record.name
