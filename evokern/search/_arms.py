"""Arms of a search: its sampler, and beside it perhaps a control that draws at random, in turn.

Each arm searches as if it were alone: it has a history of its own, in which its trials are numbered anew, and never
sees what the other arm proposed or found. With windows in proportion, an arm therefore proposes what it would propose
without the other. One thing is shared: a program that both arms propose is compiled and timed once, by whoever came
first, and both learn that time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evokern.declaration.genes import Config
from evokern.errors import InternalError
from evokern.samplers import AskedAhead, Foresighted, History, Sampler, TrialResult, TrialSchedule, trial_seed
from evokern.study.trial import Outcome, Proposal, Trial


@dataclass(frozen=True)
class ArmSchedule(TrialSchedule):
    """How many trials of one arm its next proposal does not see: its share of those that the study has in flight."""

    arms: int = 2
    """How many take turns."""

    @classmethod
    def of(cls, study: TrialSchedule, arms: int) -> ArmSchedule:
        """Return each arm's part of a study's schedule."""
        return cls(study.most, study.least, study.ramp, arms)

    def __call__(self, number: int) -> int:
        """Return the trials of the arm in flight with its trial `number`, its own among them."""
        return -(-super().__call__(number * self.arms) // self.arms)


def control_seed(seed: int) -> int:
    """Return the seed of a study's control: another one than its sampler's."""
    return trial_seed(seed, -1)


class Arm:
    """A sampler and what it may see."""

    def __init__(self, history: History, sampler: Sampler, place: int = 0, arms: int = 1) -> None:
        """Make an arm.

        Args:
            history: what its sampler may see; empty.
            sampler: who proposes.
            place: number of its first trial in the study.
            arms: how many take turns.
        """
        self._history = history
        self._sampler = sampler
        self._place = place
        self._arms = arms
        self._programs: set[str | None] = set()
        self.trials = 0
        """Trials of the arm that are recorded, over all sessions."""
        self.best: Trial | None = None
        """The arm's fastest trial, one that shares the other arm's time included."""

    @property
    def control(self) -> bool:
        """Whether it is the control."""
        return self._place > 0

    @property
    def elite_us(self) -> float | None:
        """Time of the best trial that the arm may see, in µs: what its candidates race against."""
        return self._history.elite_us

    def propose(self, number: int) -> Proposal | None:
        """Return the proposal of the study's trial `number`; None when nothing is left."""
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
        """Let the sampler begin with the proposal of the study's trial `number`, all that it may see being shown."""
        if isinstance(self._sampler, AskedAhead):
            self._sampler.prepare(self._history, self._local(number))

    def likely(self) -> Sequence[Config]:
        """Return what its next proposals may be, as far as its sampler can tell."""
        return self._sampler.likely() if isinstance(self._sampler, Foresighted) else ()

    def restore(self, number: int, proposal: Proposal) -> None:
        """Put the proposal of an earlier session back."""
        if proposal.control != self.control:
            raise InternalError(f"trial {number} of the store belongs to the other arm of its study")
        self._history.commit(self._local(number), proposal)

    def show(self, results: Mapping[int, TrialResult], last: int) -> None:
        """Let the sampler see its own results up to the study's trial `last`.

        Args:
            results: trial number in the study → result; all of them up to `last`.
            last: the last one that may be seen.
        """
        local = self._history.told
        while (number := self._arms * local + self._place) <= last:
            seen = results[number]
            outcome = seen.outcome.within_arm(seen.fingerprint, self._programs)
            self._history.tell(replace(seen, number=local, outcome=outcome))
            local += 1

    def count(self, trial: Trial) -> None:
        """Take in a recorded trial, for whoever watches."""
        self.trials += 1
        time_us = trial.evaluation.time_us
        if trial.outcome not in (Outcome.MEASURED, Outcome.DUPLICATE) or time_us is None:
            return
        if self.best is None or (time_us, trial.number) < (self.best.evaluation.time_us or 0.0, self.best.number):
            self.best = trial

    def _local(self, number: int) -> int:
        return number // self._arms


class Arms:
    """The arms of a study, taking turns: trial n belongs to arm n modulo their number."""

    def __init__(self, *parts: tuple[History, Sampler]) -> None:
        """Make the arms: the study's sampler, and perhaps its control, each with its empty history."""
        self.all: Sequence[Arm] = [Arm(*part, place, len(parts)) for place, part in enumerate(parts)]
        """Sampler's arm first."""

    def seen_by(self, number: int, schedule: TrialSchedule) -> int:
        """Return the last trial whose result the proposal of a trial may see; each round of arms sees the same."""
        return number - schedule(number - number % len(self.all))

    def of(self, number: int) -> Arm:
        """Return the arm of a trial."""
        return self.all[number % len(self.all)]
