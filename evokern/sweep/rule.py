"""Choose the next study of a sweep and the length of its slice from recorded results, by the rules below in order.

1. If a kernel and device have no source yet, choose their first unfinished study. A source is a study from which others
   can start: its search is complete, or it has no limit of its own and has had two slices. The rule is skipped if no
   study would use a source (recordings, controls, samplers that cannot use a warm start).
2. Choose the first study with fewer than two slices.
3. Choose the study with the largest weight × improvement per second of its last slice (`SweepSlice.rate`). On a tie,
   choose the one with the fewest trials, then the first.

Slices end at 32, 64, 128 … evaluated trials, so each doubles the study. A slice also ends at the study's limit if it
would leave fewer trials than it has. Shorter slices would cost more than they gain. Starting a session takes as long as
5 to 10 trials on a simulated device (about 8 s with two cores). On a GPU, it takes as long as 50 trials (about 6 s).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evokern.samplers import WARM
from evokern.sweep.journal import Journal
from evokern.sweep.plan import PlannedStudy
from evokern.sweep.study_state import StudyState

FIRST_SLICE = 32
"""Number of evaluated trials at which a study's first slice ends."""
SLICES_FIRST = 2
"""Number of slices that each study gets before studies are compared."""


def is_source(planned: PlannedStudy, state: StudyState, journal: Journal) -> bool:
    """Return whether other studies can start from a study's results."""
    return state.searched or (not planned.limited and len(journal.done(planned.name)) >= SLICES_FIRST)


def uses_warm_start(planned: PlannedStudy) -> bool:
    """Return whether a study starts from other studies' results."""
    study = planned.study
    return study.control == "none" and study.sampler.name in WARM and not study.device.startswith("replay:")


def next_study(
    studies: Sequence[PlannedStudy],
    states: Mapping[str, StudyState],
    journal: Journal,
    *,
    warm: bool = True,
) -> tuple[PlannedStudy, str]:
    """Return the study to search next, and the reason for the choice.

    Args:
        studies: searchable studies (at least one) and completed ones, in order.
        states: states of the studies by name.
        journal: slices so far.
        warm: whether studies start from other studies' results.
    """
    going = [one for one in studies if not states[one.name].searched]
    if warm:
        for one in going:
            alike = [other for other in studies if _kind(other) == _kind(one)]
            known = any(is_source(other, states[other.name], journal) for other in alike)
            if uses_warm_start(one) and len(alike) > 1 and not known:
                return one, "its results will warm-start the other studies of this kernel and device"
    for one in going:
        if len(journal.done(one.name)) < SLICES_FIRST:
            return one, "the study has had fewer than two slices"

    def promise(one: PlannedStudy) -> float:
        return one.weight * journal.done(one.name)[-1].rate

    best = max(going, key=lambda one: (promise(one), -states[one.name].trials))
    return best, f"highest expected gain, {promise(best):.3g} per second" if promise(best) else "no study is improving"


def next_slice_end(planned: PlannedStudy, evaluated: int) -> int | None:
    """Return the number of evaluated trials at which the next slice ends; None if the study's limit comes first."""
    end = FIRST_SLICE
    while end <= evaluated:
        end *= 2
    limit = planned.study.trials
    return None if limit is not None and limit <= 2 * end else end


def _kind(planned: PlannedStudy) -> tuple[str, str]:
    return planned.study.kernel, planned.study.device
