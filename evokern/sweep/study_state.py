"""State of a study in a sweep, read from the study's database; no kernel folder or device is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from evokern.errors import StudyError
from evokern.search.champion import reserve
from evokern.store import Reader, StudyRecord, has_studies, open_readonly
from evokern.study.trial import Outcome
from evokern.sweep.plan import PlannedStudy
from evokern.wording import count_noun, duration, microseconds

State = Literal["waiting", "begun", "unverified", "finished"]
"""States of a study: not started; started; search completed, with an unverified champion; or search completed, with a
verified champion or without a correct candidate."""


@dataclass(frozen=True)
class StudyState:
    """State of a study."""

    name: str
    """Name of the study."""
    db: Path
    """Database of the study."""
    state: State = "waiting"
    """State of the search."""
    trials: int = 0
    """Number of evaluated trials."""
    elapsed_s: float = 0.0
    """Study time over all sessions, in seconds."""
    best_us: float | None = None
    """The champion's time in µs; None if there is no champion."""
    predicted: bool = False
    """Whether the champion's time is predicted."""
    verified: bool | None = None
    """Whether the champion is verified; None if it was neither verified nor refuted."""
    verifiable: bool = False
    """Whether there is a champion that can be verified; recordings cannot be verified."""
    reason: str = ""
    """Result of the verification, or the reason why there is no result."""

    @property
    def searched(self) -> bool:
        """Whether the search is complete."""
        return self.state in ("unverified", "finished")

    @property
    def failed(self) -> bool:
        """Whether the search ended without a correct candidate."""
        return self.searched and self.best_us is None

    @property
    def best(self) -> str:
        """The champion's time in µs as a table entry; a dash if there is no champion."""
        return microseconds(self.best_us) + (" predicted" if self.predicted and self.best_us else "")

    def in_words(self) -> str:
        """Return the state, the number of trials and the best time as one phrase."""
        if self.state == "waiting":
            return "waiting"
        unit = "µs predicted" if self.predicted else "µs"
        best = f"best {microseconds(self.best_us)} {unit}"
        if self.best_us is None:
            best = "no correct candidate" if self.searched else "nothing measured yet"
        proof = ", verified" if self.verified else ", not verified" if self.state == "unverified" else ""
        return f"{self.state}: {count_noun(self.trials, 'trial')}, {best}{proof}"

    def as_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        table = asdict(self) | {"db": str(self.db)}
        return {key: value for key, value in table.items() if key != "verifiable"}


def state_of(planned: PlannedStudy, folder: Path, *, retry: bool = False) -> StudyState:
    """Return a study's state.

    Args:
        planned: study with the limits at which its search ends.
        folder: folder of the sweep.
        retry: whether a search that stopped because no candidate was correct counts as unfinished.

    Raises:
        StoreError: its database cannot be read.
    """
    db = planned.database(folder)
    if not has_studies(db):
        return StudyState(planned.name, db)
    with open_readonly(db) as reader:
        try:
            record = reader.study(planned.name)
        except StudyError:  # killed before the study was written
            return StudyState(planned.name, db)
        return _state(reader, record, planned, db, retry)


def _state(reader: Reader, record: StudyRecord, planned: PlannedStudy, db: Path, retry: bool) -> StudyState:
    summary, sessions = reader.summary(record), reader.sessions(record)
    evaluated = sum(count for outcome, count in summary["outcomes"].items() if Outcome(outcome).evaluated)
    best = summary["best"]
    played = record.device.startswith("replay:")
    limits, elapsed_s = planned.study, summary["elapsed_s"]
    ended = any(session.end_reason == "exhausted" for session in sessions)
    ended |= not retry and [session.end_reason for session in sessions][-1:] == ["no_success"]
    ended |= limits.trials is not None and evaluated >= limits.trials
    if limits.budget_s is not None:
        ended |= elapsed_s >= limits.budget_s - (0.0 if played else reserve(limits.budget_s, record.predicted))
    proved = best is None or played or summary["verified"]
    return StudyState(
        planned.name,
        db,
        "begun" if not ended else "finished" if proved else "unverified",
        evaluated,
        elapsed_s,
        best["time_us"] if best else None,
        record.predicted,
        summary["verified"],
        best is not None and not played,
        "no correct candidate was found"
        if best is None
        else "a recording has no kernel to verify"
        if played
        else summary["verified_reason"],
    )


def totals(states: Sequence[StudyState]) -> str:
    """Return one line with the number of studies in each state, the number of trials and the study time."""
    counts = dict.fromkeys(("finished", "unverified", "begun", "waiting"), 0)
    for one in states:
        counts[one.state] += 1
    parts = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    trials = count_noun(sum(one.trials for one in states), "trial")
    studies = "1 study" if len(states) == 1 else f"{len(states)} studies"
    return f"{studies}: {parts}; {trials} in {duration(sum(one.elapsed_s for one in states))}"
