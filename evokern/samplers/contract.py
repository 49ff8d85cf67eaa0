"""The contract of every sampler: the proposal of trial n is a pure function of what it may see.

What it may see is a `History`: the results of trials up to n - W(n) in number order (W is a `TrialSchedule`), and the
*proposals* before n, the configurations of the trials in flight among them. A trial that was lost has no result:
its configuration may be proposed again. The study in the database is a record that no sampler reads; so the sequence of
proposals depends neither on timing, nor on interruptions, nor on how many workers there are.

A sampler keeps nothing between proposals that changes what it proposes: its random numbers come from
`trial_seed(seed, number)`, and what Optuna's samplers keep on a study of theirs is stored with the proposal and put
back when a study is resumed (see `OptunaView`).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from evokern.declaration.genes import Config
from evokern.declaration.space import Space
from evokern.errors import InternalError
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial

Explain = Callable[[Config], str]
"""Configuration that is not feasible → name of the constraint that turns it away."""


@dataclass(frozen=True)
class TrialResult:
    """What a sampler may know of one finished trial."""

    number: int
    """Trial number."""
    config: Config
    """What was evaluated."""
    outcome: Outcome
    """How it ended."""
    value: float | None = None
    """log(time in µs): of `measured` and `duplicate` in full, of `slow` what was seen, else None."""
    fingerprint: str | None = None
    """Identity of machine code and launch."""
    constraints: Mapping[str, float] = field(default_factory=dict)
    """Constraint → amount; above 0 is violated, graded where the amount is known."""

    @classmethod
    def of(cls, trial: Trial) -> TrialResult:
        """Return what a sampler may know of a recorded trial."""
        seen = trial.evaluation
        return cls(trial.number, trial.config, seen.outcome, objective(seen), seen.fingerprint, constraints(seen))


def objective(evaluation: Evaluation) -> float | None:
    """Return log(time in µs) where any time was seen, else None."""
    if evaluation.time_us is not None and evaluation.time_us > 0:
        return math.log(evaluation.time_us)
    if evaluation.outcome is Outcome.SLOW and evaluation.timings:
        return sum(math.log(timing.median_us) for timing in evaluation.timings) / len(evaluation.timings)
    return None


def constraints(evaluation: Evaluation) -> dict[str, float]:
    """Return a failed candidate's constraint amounts, as Optuna's `set_constraint` takes them.

    Graded, (needed - available) / max(|available|, 1), where resources ran out or a constraint was violated; 1 where
    there is only right and wrong.
    """
    outcome = evaluation.outcome
    if outcome in (Outcome.MEASURED, Outcome.DUPLICATE, Outcome.SLOW, Outcome.LOST):
        return {}
    if outcome in (Outcome.INFEASIBLE, Outcome.OVER_RESOURCES):
        needed, available = float(evaluation.evidence["needed"]), float(evaluation.evidence["available"])
        excess = (needed - available) / max(abs(available), 1.0)
        # Optuna reads 0 as kept, and this one was not.
        return {str(evaluation.evidence["constraint"]): max(excess, 1e-9)}
    return {outcome.value: 1.0}


LEAST_IN_FLIGHT = 4
"""Trials in flight from the start, where as many are allowed: of few results each tells much."""
RAMP = 5
"""Later one in so many of the trials before is in flight: with 8 a GPU waits for compilers half of the first 25 s
(docs/sampler.md)."""
STEEPEST_RAMP = 4
"""For several devices: on landscapes 2 % behind one in 8 after 400 trials; with 2 in its place it was 8 %."""
MOST_AT_FIRST = 4 * LEAST_IN_FLIGHT
"""Most trials in flight from the start, however many devices measure; 32 were not tried."""


def ramp_for(devices: int) -> tuple[int, int]:
    """Return `TrialSchedule`'s `least` and `ramp` for devices that measure one study's candidates side by side.

    In proportion at first, and later more than for one as far as that is worth it: with as many in flight as for one,
    the others would wait for trials to grow numerous (two H100: no more trials in the first 30 s than one).
    """
    return min(LEAST_IN_FLIGHT * devices, MOST_AT_FIRST), max(RAMP // devices, STEEPEST_RAMP)


@dataclass(frozen=True)
class TrialSchedule:
    """How many trials are in flight: the proposal of trial n sees the results of trials up to n - schedule(n).

    Few while few results are known, for each then tells much; more as the model has less to gain from each. It depends
    on the trial's number alone.
    """

    most: int
    """Most trials in flight."""
    least: int = LEAST_IN_FLIGHT
    """Trials in flight at the beginning, where that is less."""
    ramp: int = RAMP
    """Later one in so many of the trials before is in flight."""

    @classmethod
    def constant(cls, size: int) -> TrialSchedule:
        """Return the schedule with as many trials in flight from beginning to end."""
        return cls(size, size)

    def __call__(self, number: int) -> int:
        """Return the trials in flight with trial `number`, its own among them."""
        return max(1, min(self.most, max(self.least, number // self.ramp)))

    def __str__(self) -> str:
        if self.least >= self.most:
            return str(self.most)
        return f"{self.least}, one in {self.ramp} of the trials before, at most {self.most}"


MOST_LOSSES = 2
"""Trials of one configuration that may be lost before it is not proposed any more."""


def trial_seed(seed: int, number: int) -> int:
    """Return the seed of one trial's proposal, below 2**32."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4], "little")


class History:
    """What may be seen when a trial is proposed. The engine fills it; samplers only read it."""

    def __init__(self, space: Space) -> None:
        self.space = space
        """The genes, and which configurations are feasible."""
        self.proposals: list[Proposal] = []
        """What was proposed so far, by trial number."""
        self.results: list[TrialResult] = []
        """Visible results, in number order; a trial that was lost has none."""
        self.told = 0
        """Trials whose end is visible, lost ones too: the number of the first one whose end is not."""
        self.lost: dict[int, bool] = {}
        """Number of each visible trial that was lost → whether its configuration may be proposed again."""
        self.pending: dict[int, Config] = {}
        """Trial number → configuration of proposals whose result is not visible."""
        self.seen: set[Config] = set()
        """Every configuration proposed so far, but those that were lost and may be proposed again."""
        self._losses: Counter[Config] = Counter()
        self._best: float | None = None

    def commit(self, number: int, proposal: Proposal) -> None:
        """Take in the proposal of a trial, of an earlier session or just made: from now on it is pending."""
        if number != len(self.proposals):
            raise InternalError(f"trial {number} was proposed after {len(self.proposals)} trials")
        self.proposals.append(proposal)
        self.pending[number] = proposal.config
        self.seen.add(proposal.config)

    def tell(self, result: TrialResult) -> None:
        """Make a pending trial's result visible; the engine calls this in number order.

        A lost trial leaves nothing to see, and frees its configuration. One that is lost `MOST_LOSSES` times is kept:
        proposed for ever, it could keep a search from ending.
        """
        if result.number != self.told:
            raise InternalError(f"result of trial {result.number} told after {self.told} results")
        self.told += 1
        if result.outcome is Outcome.LOST:
            self._losses[result.config] += 1
            freed = self.lost[result.number] = self._losses[result.config] < MOST_LOSSES
            del self.pending[result.number]
            # Where a study is resumed, a later proposal of it may be there already.
            if freed and result.config not in self.pending.values():
                self.seen.discard(result.config)
            return
        self.results.append(result)
        if result.outcome is Outcome.MEASURED and result.value is not None:
            self._best = result.value if self._best is None else min(self._best, result.value)
        del self.pending[result.number]

    @property
    def elite_us(self) -> float | None:
        """Time of the best visible measured trial, in µs: what later candidates race against."""
        return None if self._best is None else math.exp(self._best)


@runtime_checkable
class Foresighted(Protocol):
    """A sampler that can tell what it may propose next."""

    def likely(self) -> Sequence[Config]:
        """Return what the next proposals may be, the likeliest first; nothing depends on whether it is asked."""


@runtime_checkable
class AskedAhead(Protocol):
    """A sampler that can begin with a proposal before it is asked for it."""

    def prepare(self, history: History, number: int) -> None:
        """Begin with the proposal of trial `number`, the one after those of the history; nothing is told before it is.

        Everything that it may see is in the history.
        """


class Sampler(Protocol):
    """Proposes one candidate at a time."""

    def propose(self, history: History, number: int) -> Proposal | None:
        """Return the proposal of trial `number`, the one after those of the history; None when nothing is left."""
