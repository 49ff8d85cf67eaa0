"""Groups of a search: its sampler and, for a study with control, a second sampler that makes every other proposal.

Each group searches as if it were alone. It has its own history with its own trial numbers, and never sees the
proposals or results of the other group. The trials in flight are divided between the groups, so each group makes the
same proposals as it would alone. Only compiled programs are shared: a program that both groups propose is compiled and
timed once, and both groups get its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evokern.declaration.genes import Config
from evokern.errors import InternalError
from evokern.samplers import (
    History,
    PredictsProposals,
    PreparesProposals,
    Sampler,
    TrialResult,
    TrialSchedule,
    trial_seed,
)
from evokern.study.trial import Outcome, Proposal, Trial


@dataclass(frozen=True)
class ArmSchedule(TrialSchedule):
    """Schedule of one group: its share of the study's trials in flight."""

    arms: int = 2
    """Number of groups."""

    @classmethod
    def of(cls, study: TrialSchedule, arms: int) -> ArmSchedule:
        """Return the schedule of each group of a study."""
        return cls(study.most, study.least, study.ramp, arms)

    def __call__(self, number: int) -> int:
        """Return the number of the group's trials in flight when its trial `number` is proposed."""
        return -(-super().__call__(number * self.arms) // self.arms)


def control_seed(seed: int) -> int:
    """Return the seed of a study's control, which differs from its sampler's seed."""
    return trial_seed(seed, -1)


class SearchGroup:
    """A sampler with the history that it may see."""

    def __init__(self, history: History, sampler: Sampler, place: int = 0, arms: int = 1) -> None:
        """Create the group.

        Args:
            history: empty history for the sampler.
            sampler: sampler of the group.
            place: study number of the group's first trial.
            arms: number of groups.
        """
        self._history = history
        self._sampler = sampler
        self._place = place
        self._arms = arms
        self._programs: set[str | None] = set()
        self.trials = 0
        """Recorded trials of the group over all sessions."""
        self.best: Trial | None = None
        """Fastest trial of the group, including duplicates of the other group's trials."""

    @property
    def control(self) -> bool:
        """Whether the group is the control."""
        return self._place > 0

    @property
    def elite_us(self) -> float | None:
        """Time in µs of the best trial visible to the group; the group's candidates race against this time."""
        return self._history.elite_us

    def propose(self, number: int) -> Proposal | None:
        """Return the proposal for the study's trial `number`, or None if no configuration is left."""
        local = self._local(number)
        proposal = self._sampler.propose(self._history, local)
        if proposal is None:
            return None
        self._history.commit(local, proposal)
        info = dict(proposal.info)
        if "parents" in info:
            info["parents"] = [self._arms * parent + self._place for parent in info["parents"]]
        return replace(proposal, info=info, control=self.control)

    def prepare(self, number: int) -> None:
        """Let the sampler start to compute the proposal for the study's trial `number`; call `show_results` first."""
        if isinstance(self._sampler, PreparesProposals):
            self._sampler.prepare(self._history, self._local(number))

    def likely(self) -> Sequence[Config]:
        """Return configurations that the sampler is likely to propose next; empty if it cannot predict them."""
        return self._sampler.likely() if isinstance(self._sampler, PredictsProposals) else ()

    def restore(self, number: int, proposal: Proposal) -> None:
        """Restore a proposal of an earlier session."""
        if proposal.control != self.control:
            raise InternalError(f"trial {number} in the database belongs to the other group of its study")
        self._history.commit(self._local(number), proposal)

    def show_results(self, results: Mapping[int, TrialResult], last: int) -> None:
        """Show the sampler its own results, up to the study's trial `last`.

        Args:
            results: trial number in the study → result; complete up to `last`.
            last: last trial to show.
        """
        local = self._history.results_seen
        while (number := self._arms * local + self._place) <= last:
            seen = results[number]
            outcome = seen.outcome.as_seen_by_arm(seen.fingerprint, self._programs)
            self._history.tell(replace(seen, number=local, outcome=outcome))
            local += 1

    def count(self, trial: Trial) -> None:
        """Count a recorded trial and update the group's best time."""
        self.trials += 1
        time_us = trial.evaluation.time_us
        if trial.outcome not in (Outcome.MEASURED, Outcome.DUPLICATE) or time_us is None:
            return
        if self.best is None or (time_us, trial.number) < (self.best.evaluation.time_us or 0.0, self.best.number):
            self.best = trial

    def _local(self, number: int) -> int:
        return number // self._arms


class Arms:
    """Groups of a study; trial n belongs to group n modulo the number of groups."""

    def __init__(self, *parts: tuple[History, Sampler]) -> None:
        """Create the groups: the study's sampler and optionally its control, each with an empty history."""
        self.all: Sequence[SearchGroup] = [SearchGroup(*part, place, len(parts)) for place, part in enumerate(parts)]
        """The groups, the sampler's first."""

    def last_visible_trial(self, number: int, schedule: TrialSchedule) -> int:
        """Return the last trial whose result a proposal may use; it is the same for all groups in a round."""
        return number - schedule(number - number % len(self.all))

    def of(self, number: int) -> SearchGroup:
        """Return the group to which a trial belongs."""
        return self.all[number % len(self.all)]
