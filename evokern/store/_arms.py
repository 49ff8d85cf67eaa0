"""Comparison of a study's sampler with its control, which proposes every second trial."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from evokern.store.records import StudyRecord
from evokern.study.trial import Outcome, Trial


@dataclass(frozen=True)
class Milestone:
    """Point in a study at which one group reached a result."""

    trial: int
    """Number of the trial."""
    evaluated: int
    """Evaluated trials of the group so far, including this one."""
    elapsed_s: float
    """Study time in seconds; the two groups share it."""


@dataclass(frozen=True)
class ArmSummary:
    """Results of one group (the sampler's trials or the control's trials) in a study with a control."""

    sampler: str
    """Name of the sampler."""
    control: bool
    """Whether this group is the control."""
    trials: int
    """Number of trials."""
    evaluated: int
    """Number of evaluated trials, counted as if the group had been the only one."""
    best_us: float | None
    """Best time measured during the search, in µs."""
    best_after: Milestone | None
    """The point at which the group reached its best time."""
    matched_after: Milestone | None
    """The point at which the group matched or beat the other group's best time, or None."""


def arms(record: StudyRecord, trials: Iterable[Trial]) -> tuple[tuple[Trial, ...], tuple[Trial, ...]]:
    """Return the trials of a study's sampler and of its control, with outcomes as if each group had been the only one.

    Args:
        record: the study; without a control, the second tuple is empty.
        trials: recorded trials of the study in number order.
    """
    found: tuple[list[Trial], list[Trial]] = [], []
    if record.control == "none":
        return tuple(trials), ()
    programs: tuple[set[str | None], set[str | None]] = set(), set()
    for trial in trials:
        seen = trial.evaluation
        outcome = seen.outcome.as_seen_by_arm(seen.fingerprint, programs[trial.control])
        if outcome is not seen.outcome:
            trial = replace(trial, evaluation=replace(seen, outcome=outcome))
        found[trial.control].append(trial)
    return tuple(found[0]), tuple(found[1])


def bests(trials: Sequence[Trial], without: Container[int] = ()) -> list[tuple[Milestone, float]]:
    """Return each new best of a group, with its time in µs.

    Args:
        trials: trials of the group in number order.
        without: numbers of trials that count as evaluated but cannot be a best, such as refuted ones.
    """
    found: list[tuple[Milestone, float]] = []
    evaluated = 0
    for trial in trials:
        evaluated += trial.outcome.evaluated
        time_us = None if trial.number in without else trial.evaluation.time_us
        if trial.outcome is Outcome.MEASURED and time_us and (not found or time_us < found[-1][1]):
            found.append((Milestone(trial.number, evaluated, trial.seconds), time_us))
    return found


def control_table(record: StudyRecord, trials: Iterable[Trial]) -> dict[str, Any] | None:
    """Return the `control` object of `show --json`, or None for a study without a control.

    Args:
        record: the study.
        trials: recorded trials of the study in number order.
    """
    if record.control == "none":
        return None
    both = arms(record, trials)
    curves = [bests(one) for one in both]
    summaries = []
    for place, (mine, curve) in enumerate(zip(both, curves, strict=True)):
        other = curves[1 - place]
        target = other[-1][1] if other else None
        matched = next((when for when, time_us in curve if target is not None and time_us <= target), None)
        summaries.append(
            ArmSummary(
                sampler=record.control if place else record.sampler,
                control=bool(place),
                trials=len(mine),
                evaluated=sum(trial.outcome.evaluated for trial in mine),
                best_us=curve[-1][1] if curve else None,
                best_after=curve[-1][0] if curve else None,
                matched_after=matched,
            )
        )
    searched, control = summaries
    ratio = control.best_us / searched.best_us if control.best_us and searched.best_us else None
    return {"sampler": record.control, "arms": [asdict(arm) for arm in summaries], "advantage": ratio}
