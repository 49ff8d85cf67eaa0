"""Which study goes on next, and how far: plain rules over what is recorded, in this order.

1. A study of a kernel and a device without a source goes on first: the first of them that is not searched to its end.
   A source is what others begin with: a study searched to its end, or one without an end of its own after two slices.
   Where no study would begin with another (a recording, a control, a sampler that cannot), there is no such rule.
2. Then the first study that has not had two slices.
3. Then the one with the greatest weight × improvement per second of its last slice (`SweepSlice.rate`); of equals the
   one with the fewest trials, then the first.

Slices end at 32, 64, 128 … evaluated trials: each is as long as all before it. A session starts anew for each (some 8 s
on a simulated device and two cores, five to ten trials' time), so short slices would cost more than they decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evokern.samplers import WARM
from evokern.sweep.journal import Journal
from evokern.sweep.plan import PlannedStudy
from evokern.sweep.standing import StudyStanding

FIRST_SLICE = 32
"""Evaluated trials of a study's first slice."""
SLICES_FIRST = 2
"""Slices that each study has before they are compared."""


def is_source(planned: PlannedStudy, standing: StudyStanding, journal: Journal) -> bool:
    """Tell whether other studies may begin with what a study knows."""
    return standing.searched or (not planned.limited and len(journal.done(planned.name)) >= SLICES_FIRST)


def begins_warm(planned: PlannedStudy) -> bool:
    """Tell whether a study begins with what others know."""
    study = planned.study
    return study.control == "none" and study.sampler.name in WARM and not study.device.startswith("replay:")


def next_study(
    studies: Sequence[PlannedStudy],
    standings: Mapping[str, StudyStanding],
    journal: Journal,
    *,
    warm: bool = True,
) -> tuple[PlannedStudy, str]:
    """Return the study that goes on, and why.

    Args:
        studies: those that may go on, at least one, and those that are searched to their end, in order.
        standings: name → how it stands.
        journal: the slices so far.
        warm: whether studies begin with what others know.
    """
    going = [one for one in studies if not standings[one.name].searched]
    if warm:
        for one in going:
            alike = [other for other in studies if _kind(other) == _kind(one)]
            known = any(is_source(other, standings[other.name], journal) for other in alike)
            if begins_warm(one) and len(alike) > 1 and not known:
                return one, "others of its kernel and device begin with what it finds"
    for one in going:
        if len(journal.done(one.name)) < SLICES_FIRST:
            return one, "it has not had two slices"

    def promise(one: PlannedStudy) -> float:
        return one.weight * journal.done(one.name)[-1].rate

    best = max(going, key=lambda one: (promise(one), -standings[one.name].trials))
    return best, f"it promises most: {promise(best):.3g} a second" if promise(best) else "none promises anything"


def slice_end(planned: PlannedStudy, evaluated: int) -> int | None:
    """Return the evaluated trials at which the next slice ends; None where the study's own number comes first."""
    end = FIRST_SLICE
    while end <= evaluated:
        end *= 2
    limit = planned.study.trials
    return None if limit is not None and limit <= end else end


def _kind(planned: PlannedStudy) -> tuple[str, str]:
    return planned.study.kernel, planned.study.device
