"""Contract of all samplers, and warm starts: the proposal of trial n is a pure function of the visible history.

The `History` contains the results of trials up to n - W(n) in number order (W is a `TrialSchedule`) and all *proposals*
before n, including the configurations of trials in flight. A lost trial has no result, so its configuration may be
proposed again. No sampler reads the study in the database. Therefore the sequence of proposals does not depend on
timing, interruptions, or the number of workers.

A sampler keeps no state that changes its proposals. Its random numbers come from `trial_seed(seed, number)`. State that
Optuna's samplers keep on their study is stored with the proposal and restored when a study is resumed (`OptunaView`).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from evokern.declaration.genes import Config, Value
from evokern.declaration.space import Space
from evokern.errors import InternalError, StudyError
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial

Explain = Callable[[Config], str]
"""Function that names the constraint violated by an infeasible configuration."""


@dataclass(frozen=True)
class TrialResult:
    """The part of a finished trial that samplers may see."""

    number: int
    """Number of the trial."""
    config: Config
    """Configuration of the trial."""
    outcome: Outcome
    """Outcome of the trial."""
    value: float | None = None
    """log(time in µs): complete for `measured` and `duplicate`, partial for `slow`, otherwise None."""
    fingerprint: str | None = None
    """Identity of the machine code and launch."""
    constraints: Mapping[str, float] = field(default_factory=dict)
    """Violated constraints with their amount (above 0), the exact amount if it is known."""

    @classmethod
    def of(cls, trial: Trial) -> TrialResult:
        """Return the visible part of a recorded trial."""
        seen = trial.evaluation
        return cls(trial.number, trial.config, seen.outcome, objective(seen), seen.fingerprint, constraints(seen))


def objective(evaluation: Evaluation) -> float | None:
    """Return log(time in µs), or None if no time was measured."""
    if evaluation.time_us is not None and evaluation.time_us > 0:
        return math.log(evaluation.time_us)
    if evaluation.outcome is Outcome.SLOW and evaluation.timings:
        return sum(math.log(timing.median_us) for timing in evaluation.timings) / len(evaluation.timings)
    return None


def constraints(evaluation: Evaluation) -> dict[str, float]:
    """Return the constraint amounts of a failed candidate, as expected by Optuna's `set_constraint`.

    The amount is (needed - available) / max(|available|, 1) for exceeded resources and violated constraints, and 1 for
    other failures.
    """
    outcome = evaluation.outcome
    if outcome in (Outcome.MEASURED, Outcome.DUPLICATE, Outcome.SLOW, Outcome.LOST):
        return {}
    if outcome in (Outcome.INFEASIBLE, Outcome.OVER_RESOURCES):
        needed, available = float(evaluation.evidence["needed"]), float(evaluation.evidence["available"])
        excess = (needed - available) / max(abs(available), 1.0)
        # Optuna treats 0 as satisfied, but this constraint is violated.
        return {str(evaluation.evidence["constraint"]): max(excess, 1e-9)}
    return {outcome.value: 1.0}


INITIAL_IN_FLIGHT = 4
"""Number of trials in flight at the start, if allowed; early results are the most informative."""
RAMP = 5
"""Divisor for later trials in flight (a fifth of the trials so far); with 8, the GPU waits for compilers
(docs/lab/2026-11-26-sampler.md)."""
STEEPEST_RAMP = 4
"""Smallest divisor for several devices; 2 cost 8 % after 400 trials, 4 cost 2 % (docs/lab/2026-11-26-sampler.md)."""
MOST_AT_FIRST = 4 * INITIAL_IN_FLIGHT
"""Maximum number of trials in flight at the start, for any number of devices; 32 was not tested."""


def ramp_for(devices: int) -> tuple[int, int]:
    """Return the `least` and `ramp` of a `TrialSchedule` for the number of devices that measure one study in parallel.

    The initial number is proportional to the number of devices. Later, several devices keep more trials in flight than
    one, because additional devices would otherwise be idle. With one device's schedule, two H100s completed no more
    trials in 30 s than one.
    """
    return min(INITIAL_IN_FLIGHT * devices, MOST_AT_FIRST), max(RAMP // devices, STEEPEST_RAMP)


@dataclass(frozen=True)
class TrialSchedule:
    """Number of trials in flight: the proposal of trial n sees the results of trials up to n - schedule(n).

    It is small at first, when each result is informative, and grows later. It depends only on the trial number.
    """

    most: int
    """Maximum number of trials in flight."""
    least: int = INITIAL_IN_FLIGHT
    """Number of trials in flight at the start, if below `most`."""
    ramp: int = RAMP
    """Divisor of the trial number for later trials in flight."""

    @classmethod
    def constant(cls, size: int) -> TrialSchedule:
        """Return a schedule with a constant number of trials in flight."""
        return cls(size, size)

    def __call__(self, number: int) -> int:
        """Return the number of trials in flight when trial `number` is proposed, including that trial."""
        return max(1, min(self.most, max(self.least, number // self.ramp)))

    def __str__(self) -> str:
        if self.least >= self.most:
            return str(self.most)
        return f"{self.least} at first, then 1/{self.ramp} of the trials so far, at most {self.most}"


MOST_LOSSES = 2
"""Number of lost trials after which a configuration is not proposed again."""


def trial_seed(seed: int, number: int) -> int:
    """Return the seed of one trial's proposal, below 2**32."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4], "little")


class History:
    """State that a proposal may use. The engine fills it; samplers only read it."""

    def __init__(self, space: Space) -> None:
        self.space = space
        """Genes and feasibility rules."""
        self.proposals: list[Proposal] = []
        """Proposals so far, by trial number."""
        self.results: list[TrialResult] = []
        """Visible results in number order; lost trials have none."""
        self.results_seen = 0
        """Number of ended trials that are visible, including lost ones."""
        self.lost: dict[int, bool] = {}
        """Whether the configuration of each lost trial may be proposed again, by trial number."""
        self.pending: dict[int, Config] = {}
        """Configurations of proposals without a visible result, by trial number."""
        self.seen: set[Config] = set()
        """Configurations proposed so far, except those of lost trials that may be proposed again."""
        self._losses: Counter[Config] = Counter()
        self._best: float | None = None

    def commit(self, number: int, proposal: Proposal) -> None:
        """Add a new or restored proposal, which is pending from now on."""
        if number != len(self.proposals):
            raise InternalError(f"trial {number} was proposed after {len(self.proposals)} trials")
        self.proposals.append(proposal)
        self.pending[number] = proposal.config
        self.seen.add(proposal.config)

    def tell(self, result: TrialResult) -> None:
        """Make the result of a pending trial visible; called in number order by the engine.

        A lost trial has no result and frees its configuration. After `MOST_LOSSES` losses the configuration is blocked,
        so that the search can end.
        """
        if result.number != self.results_seen:
            raise InternalError(f"result of trial {result.number} arrived after {self.results_seen} results")
        self.results_seen += 1
        if result.outcome is Outcome.LOST:
            self._losses[result.config] += 1
            freed = self.lost[result.number] = self._losses[result.config] < MOST_LOSSES
            del self.pending[result.number]
            # In a resumed study, a later proposal of this configuration may already exist.
            if freed and result.config not in self.pending.values():
                self.seen.discard(result.config)
            return
        self.results.append(result)
        if result.outcome is Outcome.MEASURED and result.value is not None:
            self._best = result.value if self._best is None else min(self._best, result.value)
        del self.pending[result.number]

    @property
    def elite_us(self) -> float | None:
        """Time of the best visible measured trial in µs, which later candidates race against."""
        return None if self._best is None else math.exp(self._best)


@runtime_checkable
class PredictsProposals(Protocol):
    """A sampler that can name likely next proposals."""

    def likely(self) -> Sequence[Config]:
        """Return likely next proposals, likeliest first, without changing any state."""


@runtime_checkable
class PreparesProposals(Protocol):
    """A sampler that can start computing a proposal in advance."""

    def prepare(self, history: History, number: int) -> None:
        """Start computing the proposal of trial `number`; the history does not change until the trial is proposed.

        The history contains everything that the proposal may see.
        """


class Sampler(Protocol):
    """A sampler, which proposes one candidate at a time."""

    def propose(self, history: History, number: int) -> Proposal | None:
        """Return the next proposal, which is trial `number`, or None if no configuration is left."""


SIMULATED = "sim"
"""Source name of a prior predicted by a time model for the study's problem and chip."""


Entries = tuple[tuple[Config, float], ...]
"""Canonical configurations with log(time) on any scale, distinct, best first."""
DISTANT = 2.0
"""Assumed distance of an unknown problem: a factor of four in one dimension."""
FURTHER = 12
"""Maximum number of further studies in addition to the nearest one."""
EACH = 64
"""Maximum number of candidates per further study: the fastest half, and an even selection of the rest."""
LEADERS = 3
"""Maximum number of distinct best candidates of further studies to try, nearest study first."""


@dataclass(frozen=True)
class FurtherStudy:
    """Results of a further study."""

    entries: Entries
    """Candidates of the further study."""
    distance: float
    """Distance of the further study's problem from this study's, in powers of two."""


@dataclass(frozen=True)
class Prior:
    """Configurations with log times from another source."""

    entries: Entries
    """Candidates and their times."""
    source: str
    """Source for messages, such as `runs.db:attention-s128` or `sim:h200`."""
    used: tuple[str, ...] = ()
    """Genes shared by the source and this space."""
    ignored: tuple[str, ...] = ()
    """Genes that exist only in the source or only in this space, with the reason."""
    distance: float = DISTANT
    """Distance of the source's problem from this study's, in powers of two."""
    further: tuple[FurtherStudy, ...] = ()
    """Results of further studies, nearest first."""

    @property
    def leaders(self) -> tuple[Config, ...]:
        """Best candidates of further studies, nearest study first, without the overall best; at most `LEADERS`."""
        found = dict.fromkeys(one.entries[0][0] for one in self.further)
        found.pop(self.entries[0][0], None)
        return tuple(found)[:LEADERS]

    def with_further(self, others: Sequence[Prior]) -> Prior:
        """Return this prior with the results of further studies.

        Args:
            others: Priors of the further studies, nearest first; at most `FURTHER` are used, with `EACH` candidates.
        """
        return replace(
            self, further=tuple(FurtherStudy(_thinned(one.entries), one.distance) for one in others[:FURTHER])
        )

    @property
    def from_time_model(self) -> bool:
        """Whether a time model predicted the times for this study, and not for another problem or version."""
        return self.source == SIMULATED

    def __post_init__(self) -> None:
        if not self.entries:
            raise StudyError(f"warm start from {self.source} has no usable trial; omit --warm-start")

    @classmethod
    def from_trials(cls, space: Space, trials: Iterable[tuple[Mapping[str, Value], float]], source: str) -> Prior:
        """Convert the trials of another study to this space, gene by gene.

        Args:
            space: Space of this study.
            trials: Configuration and log(time) of each measured trial.
            source: Name of the source.

        Raises:
            StudyError: No gene is shared, or no trial has values that this space contains.
        """
        known = [(dict(values), float(value)) for values, value in trials]
        there = {name for values, _ in known for name in values}
        here = [gene.name for gene in space.genes]
        used = tuple(name for name in here if name in there)
        if not used:
            raise StudyError(f"warm start from {source} shares no gene with this kernel ({', '.join(here)})")
        ignored = tuple(f"{name} (unknown here)" for name in sorted(there - set(here))) + tuple(
            f"{name} (not there: {space.gene(name).default})" for name in here if name not in there
        )
        best: dict[Config, float] = {}
        for values, value in known:
            if all(values[name] in space.gene(name).values for name in used if name in values):
                config = space.canonical({name: values.get(name, space.gene(name).default) for name in here})
                best[config] = min(value, best.get(config, value))
        ordered = sorted(best.items(), key=lambda entry: (entry[1], entry[0].key))
        return cls(tuple(ordered), source, used, ignored)


def _thinned(entries: Entries) -> Entries:
    """Return at most `EACH` entries, best first."""
    best, rest = entries[: EACH // 2], entries[EACH // 2 :]
    room = EACH - len(best)
    step = max(1.0, len(rest) / room)
    return (*best, *(rest[int(at * step)] for at in range(min(len(rest), room))))
