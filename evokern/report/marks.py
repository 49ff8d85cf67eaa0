"""The marks of trials in plots: a shape and a colour for each way to end, told apart without the colour too."""

from __future__ import annotations

from dataclasses import dataclass

from evokern.study.trial import Outcome

TIMED = "timed"
"""What a candidate is called whose time is predicted, where others are `measured`."""


@dataclass(frozen=True)
class Mark:
    """One kind of mark; its colour stands in the style sheet, by the palette of Okabe and Ito (2008)."""

    kind: str
    """Class."""
    label: str
    """What it stands for."""
    lane: str
    """Lane in which such trials lie, which have no time; empty for those that do."""
    path: str
    """Its outline around a point, as an SVG path."""
    outcomes: tuple[Outcome, ...] = ()
    """Which trials have it."""

    def told(self, predicted: bool) -> str:
        """Return its label where times are predicted or not."""
        return self.label.replace("measured", TIMED) if predicted else self.label


SLOW = "slow (not timed to the end)"
"""What a candidate is called that was stopped once it was known to be slow, wherever the page names it."""

MARKS = (
    Mark("measured", "measured", "", "h0", (Outcome.MEASURED,)),
    Mark("control", "measured, drawn by the control", "", "m0-4l4 4-4 4-4-4z"),
    Mark("refuted", "refuted by its verification", "", "m0-5l5 5-5 5-5-5zm-2.5 2.5l5 5m0-5l-5 5"),
    Mark("duplicate", "same program as another", "", "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0", (Outcome.DUPLICATE,)),
    Mark("slow", SLOW, "slow", "m0-3.6l3.6 6.2h-7.2z", (Outcome.SLOW,)),
    Mark("wrong", "wrong", "wrong", "m-3-3l6 6m0-6l-6 6", (Outcome.WRONG,)),
    Mark("crashed", "crashed or hung", "crash/hang", "m-3.6 0h7.2m-3.6-3.6v7.2", (Outcome.CRASHED, Outcome.HUNG)),
    Mark("unbuilt", "over resources or not compiled", "not built", "m-3-3h6v6h-6z",
         (Outcome.OVER_RESOURCES, Outcome.COMPILE_ERROR)),
    Mark("unrun", "infeasible or lost", "not run", "m-3 0h6", (Outcome.INFEASIBLE, Outcome.LOST)),
)  # fmt: skip
"""Every mark, those of trials with a time first."""
CONTROL = 1
"""Place of the mark of trials that the control drew and that were measured."""
REFUTED = 2
"""Place of the mark of trials that were measured and that their verification refuted."""


def outcome_words(outcome: Outcome, predicted: bool = False) -> str:
    """Return an outcome as people read it, and as the page's filter has it: `over resources`.

    Args:
        outcome: how a trial ended.
        predicted: whether times are predicted: what nobody measured is `timed` there.
    """
    return TIMED if predicted and outcome is Outcome.MEASURED else outcome.value.replace("_", " ")


def mark_of(outcome: Outcome) -> int:
    """Return the place in `MARKS` of trials that ended so."""
    return next(place for place, mark in enumerate(MARKS) if outcome in mark.outcomes)
