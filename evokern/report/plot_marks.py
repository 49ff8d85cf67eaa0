"""Marks of trials in plots: a shape and a colour for each outcome, distinguishable without colour."""

from __future__ import annotations

from dataclasses import dataclass

from evokern.study.trial import Outcome

TIMED = "timed"
"""Name of the outcome `measured` when times are predicted."""


@dataclass(frozen=True)
class Mark:
    """One kind of mark; its colour is in the style sheet (palette of Okabe and Ito, 2008)."""

    kind: str
    """CSS class of the mark."""
    label: str
    """Text in the legend."""
    lane: str
    """Lane for trials without a time; empty for marks placed by time."""
    path: str
    """Outline around a point, as an SVG path."""
    outcomes: tuple[Outcome, ...] = ()
    """Outcomes shown with this mark."""

    def label_for(self, predicted: bool) -> str:
        """Return the legend text for measured or predicted times."""
        return self.label.replace("measured", TIMED) if predicted else self.label


SLOW = "slow (not timed completely)"
"""Name of a trial stopped early because it was slow."""

MARKS = (
    Mark("measured", "measured", "", "h0", (Outcome.MEASURED,)),
    Mark("control", "measured (control)", "", "m0-4l4 4-4 4-4-4z"),
    Mark("refuted", "refuted", "", "m0-5l5 5-5 5-5-5zm-2.5 2.5l5 5m0-5l-5 5"),
    Mark("duplicate", "duplicate program", "", "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0", (Outcome.DUPLICATE,)),
    Mark("slow", SLOW, "slow", "m0-3.6l3.6 6.2h-7.2z", (Outcome.SLOW,)),
    Mark("wrong", "wrong", "wrong", "m-3-3l6 6m0-6l-6 6", (Outcome.WRONG,)),
    Mark("crashed", "crashed or hung", "crash/hang", "m-3.6 0h7.2m-3.6-3.6v7.2", (Outcome.CRASHED, Outcome.HUNG)),
    Mark("unbuilt", "over resources or not compiled", "not built", "m-3-3h6v6h-6z",
         (Outcome.OVER_RESOURCES, Outcome.COMPILE_ERROR)),
    Mark("unrun", "infeasible or lost", "not run", "m-3 0h6", (Outcome.INFEASIBLE, Outcome.LOST)),
)  # fmt: skip
"""All marks; those of trials with a time come first."""
CONTROL = 1
"""Index of the mark for measured trials of the control."""
REFUTED = 2
"""Index of the mark for measured trials that were refuted."""


def outcome_words(outcome: Outcome, predicted: bool = False) -> str:
    """Return the display name of an outcome, as in the page's filter, for example `over resources`.

    Args:
        outcome: Outcome of a trial.
        predicted: Whether times are predicted, in which case `measured` becomes `timed`.
    """
    return TIMED if predicted and outcome is Outcome.MEASURED else outcome.value.replace("_", " ")


def mark_of(outcome: Outcome) -> int:
    """Return the index of an outcome's mark in `MARKS`."""
    return next(place for place, mark in enumerate(MARKS) if outcome in mark.outcomes)
