"""The search: ask a sampler, evaluate on a device, record, tell; within a budget, over any number of sessions.

`evokern.search(...)` is this package's `search`. Its stages: find study and kernel, open device and store, begin or
resume the study, run the loop (`_loop`), fold the store in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from evokern.device._base import Device
    from evokern.kernel import Kernel
    from evokern.study import Study
    from evokern.trial import Trial

EndReason = Literal["budget", "trials", "exhausted", "interrupted"]
"""Why a session ended: the budget is used up, the trials are done, nothing is left to try, or its user stopped it."""


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
    """Those that count towards `--trials`: all but infeasible and duplicate ones."""
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
    """The last trials that did not measure, newest first: number, outcome, reason."""
    last_trial: Trial | None = None
    """The trial that this event is about."""
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


def search(
    study: str | Path | Study,
    *,
    db: str | Path = "evokern.db",
    device: str | Device | None = None,
    kernel: Kernel | None = None,
    budget: str | float | None = None,
    extend: str | float | None = None,
    trials: int | None = None,
    sampler: str | None = None,
    seed: int | None = None,
    window: int | None = None,
    control: str | None = None,
    warm_start: str | None = None,
    cost_per_hour: float | None = None,
    fresh: bool = False,
    go_on: bool = False,
    trust: bool = False,
    on_progress: OnProgress | None = None,
) -> SearchResult:
    """Search a study, or resume it where it stands in the database.

    A keyword that is None leaves what the study began with, or on a new study what its file says.

    Args:
        study: a study's name, the path to its TOML file, or a study.
        db: database that keeps the results.
        device: what evaluates: `auto`, `cuda[:N]`, `sim:CHIP`, `replay:FILE`, or a device.
        kernel: the kernel, where it is not found by the name that the study gives.
        budget: total time over all sessions, for example `2h`; seconds as a number.
        extend: time to add to the budget that the study has.
        trials: total number of evaluated trials.
        sampler: evo, tpe, nsga2, gp, random or grid.
        seed: seed of the proposals.
        window: trials in flight; proposal n sees the results up to n - window.
        control: `random` gives every second trial of a new study to random search, beside the sampler, which sees
            none of it; `none` overrules a study file that says so.
        warm_start: what a new study begins with: another study (`runs.db:attention-s128`), a recording, or `sim`, the
            ranking of the time model for the GPU. It is kept with the study.
        cost_per_hour: price of an hour of the device, for what the search cost.
        fresh: rename an earlier study of this name and begin anew.
        go_on: continue although the study's file or the kernel's code changed.
        trust: remember that the kernel folder's code may run.
        on_progress: called with a `Progress` at every event, from the searching thread.

    Returns:
        Champion and summary. Ctrl-C and SIGTERM end a search like a budget does, with `interrupted` set.

    Raises:
        UsageError: study, kernel, device, store or an argument is not usable as asked; the message says what to do.
    """
    from evokern.duration import parse_duration
    from evokern.search._find import find
    from evokern.search._identity import Overrides
    from evokern.search._wanted import Wanted

    wanted = Wanted(
        budget_s=None if budget is None else parse_duration(budget),
        extend_s=None if extend is None else parse_duration(extend),
        trials=trials,
        overrides=Overrides(sampler, seed, window, control),
        warm_start=warm_start,
        cost_per_hour=cost_per_hour,
        fresh=fresh,
        go_on=go_on,
    )
    subject = find(study, device, kernel, trust=trust)
    try:
        from evokern.search._run import run  # only now: see `_find`

        return run(subject, Path(db), wanted, on_progress or (lambda progress: None))
    finally:
        subject.device.close()


def resume(
    study: str | None = None,
    *,
    db: str | Path = "evokern.db",
    device: str | Device | None = None,
    budget: str | float | None = None,
    extend: str | float | None = None,
    trials: int | None = None,
    cost_per_hour: float | None = None,
    go_on: bool = False,
    trust: bool = False,
    on_progress: OnProgress | None = None,
) -> SearchResult:
    """Resume a study from what the database keeps of it; its TOML file is not read.

    Args:
        study: its name; None takes the one searched last.
        db: database that keeps the results.
        device: as `search`; None takes the one the study was begun with.
        budget: as `search`.
        extend: as `search`.
        trials: as `search`.
        cost_per_hour: as `search`.
        go_on: as `search`.
        trust: as `search`.
        on_progress: as `search`.

    Raises:
        UsageError: as `search`.
    """
    from evokern.search._identity import study_of
    from evokern.store import open_readonly

    with open_readonly(db) as reader:
        record = reader.study(study)
    return search(
        study_of(record),
        db=db,
        device=device,
        budget=budget,
        extend=extend,
        trials=trials,
        cost_per_hour=cost_per_hour,
        go_on=go_on,
        trust=trust,
        on_progress=on_progress,
    )


__all__ = ["ArmProgress", "EndReason", "OnProgress", "Progress", "SearchResult", "resume", "search"]
