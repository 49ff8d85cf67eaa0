"""What a search tells whoever runs or watches it: how it stands, and what it ended with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from evokern.declaration.genes import Gene
from evokern.device.contract import ExecutorState, StartStep
from evokern.study.trial import Trial

EndReason = Literal["budget", "trials", "exhausted", "interrupted", "paused"]
"""Why a session ended: the budget is used up, the trials are done, nothing is left to try, its user stopped it, or it
did the part of the study that it was asked for (`SessionPart`)."""


@dataclass(frozen=True)
class ArmProgress:
    """How one arm of a search with a control stands."""

    sampler: str
    """Who proposes."""
    control: bool
    """Whether it is the control."""
    trials: int
    """Its trials recorded."""
    best: Trial | None
    """Its fastest trial."""


@dataclass(frozen=True)
class Progress:
    """How a search stands; the engine hands one to `on_progress` at every event."""

    event: Literal["opening", "start", "trial", "idle", "end"]
    """What happened: device being opened, loop begun, a trial recorded, nothing for a while, loop ended."""
    study: str
    """Name of the study."""
    device: str
    """Model of the device."""
    predicted: bool = False
    """Whether times are predicted, not measured."""
    resumed: int = 0
    """Trials that earlier sessions recorded."""
    set_aside: str = ""
    """New name of the earlier study that `fresh` renamed."""
    elapsed_s: float = 0.0
    """Study time over all sessions, seconds."""
    budget_s: float | None = None
    """Total budget, seconds."""
    trials: int = 0
    """Trials recorded."""
    evaluated: int = 0
    """Those that count towards `--trials`: all but infeasible, duplicate and lost ones."""
    trials_limit: int | None = None
    """Total number of evaluated trials."""
    in_flight: int = 0
    """Candidates on the device."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Outcome → trials."""
    rejections: Mapping[str, int] = field(default_factory=dict)
    """Constraint → proposals turned away before they became trials."""
    baseline: tuple[str, float] | None = None
    """Name and time in µs of what the user would run instead."""
    best: Trial | None = None
    """The champion."""
    arms: tuple[ArmProgress, ...] = ()
    """Sampler and control, where there is a control."""
    trials_per_minute: float = 0.0
    """Over the last minute of this session, infeasible trials apart."""
    busy_share: float = 0.0
    """Share of this session's time in which a candidate, its gate or its timing held the device."""
    last_failures: tuple[str, ...] = ()
    """The last trials that failed, one of each kind, newest first: number, outcome, reason. Of one kind are those whose
    outcomes and reasons differ in numbers only; a slow trial did not fail."""
    failure_counts: tuple[int, ...] = ()
    """How many trials failed as each of them did."""
    genes: tuple[Gene, ...] = ()
    """The genes, as searched."""
    improvements: tuple[tuple[float, float], ...] = ()
    """Study time in seconds and time in µs of each trial that was faster than all before it, over all sessions."""
    step: StartStep | None = None
    """What the device does while it starts."""
    stages: tuple[int, int] | None = None
    """Candidates in flight that are being compiled, and those that are compiled, where the device knows."""
    executors: tuple[ExecutorState, ...] = ()
    """Its GPUs or hosts, where there are several."""
    sweep: str = ""
    """How the studies of a sweep stand, where it is one of them."""
    last_trial: Trial | None = None
    """The trial that this event is about."""
    proofs: Mapping[int, bool] = field(default_factory=dict)
    """Trial → whether its verification passed; one that is missing is not verified yet."""
    notes: tuple[str, ...] = ()
    """What the device wants its user to know."""
    end: EndReason | None = None
    """Why the session ended, at its last event."""

    @property
    def speedup(self) -> float | None:
        """Baseline's time over the champion's, where both are known."""
        if self.baseline is None or self.best is None or self.best.evaluation.time_us is None:
            return None
        return self.baseline[1] / self.best.evaluation.time_us


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class SearchResult:
    """What a session of a search ended with."""

    study: str
    """Name of the study."""
    db: Path
    """The database that holds it."""
    end: EndReason
    """Why it ended."""
    best: Trial | None
    """The champion, over all sessions."""
    summary: Mapping[str, Any]
    """The object that `show --json` prints."""

    @property
    def interrupted(self) -> bool:
        """Whether its user stopped it (exit code 130)."""
        return self.end == "interrupted"

    @property
    def speedup(self) -> float | None:
        """Baseline's time over the champion's, where both are known."""
        best = self.summary["best"]
        return best["speedup"] if best else None
