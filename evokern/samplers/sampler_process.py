"""A sampler in a separate process, which computes the next proposal while the search records and submits.

With several GPUs, one processor core is not enough for proposals and all other work. The process keeps its own history
and receives the trials that became visible since the last proposal. If it dies, its replacement receives all of them.
The sequence of proposals is the same as that of a sampler in the search's own process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.declaration.feasibility import check, feasible_space
from evokern.declaration.genes import Config, Value
from evokern.errors import InternalError
from evokern.samplers import make_sampler
from evokern.samplers.contract import History, PredictsProposals, Prior, TrialResult, TrialSchedule
from evokern.study.discovery import WorkerContext
from evokern.study.trial import Outcome, Proposal
from evokern.workers.pool import OwnServerPool, WorkerSpec, wait

PRELOAD = ("evokern.samplers.sampler_process", "evokern.samplers.evo")
"""Modules that the fork server imports while the device starts."""
DEADLINE_S = 120.0
"""Timeout of a proposal in seconds; the first proposal of a resumed study with 10,000 trials takes a few."""
ATTEMPTS = 3
"""Maximum number of attempts for a proposal."""


@dataclass(frozen=True)
class SamplerPlan:
    """Everything that the process needs in order to build its sampler."""

    context: WorkerContext
    """Kernel, problems, and chip with the study's limits."""
    genes: Mapping[str, Sequence[Value]]
    """Allowed values of the genes that the study restricts, by gene name."""
    name: str
    """Name of the sampler; the remaining fields are as for `make_sampler`."""
    options: Mapping[str, Any]
    seed: int
    schedule: TrialSchedule
    prior: Prior | None


@dataclass(frozen=True)
class _ResultUpdate:
    """A result without its configuration, which the process already has."""

    outcome: Outcome
    value: float | None = None
    fingerprint: str | None = None
    constraints: Mapping[str, float] | None = None


@dataclass(frozen=True)
class _ProposalRequest:
    """Request for one proposal, with the updates that the process does not have yet."""

    proposed: int
    """Number of proposals that the process already has."""
    known_results: int
    """Number of ended trials that the process already knows."""
    proposals: Sequence[Proposal]
    """Proposals that the process does not have."""
    results: Sequence[_ResultUpdate]
    """Results of the trials that the process does not know."""


@dataclass(frozen=True)
class _ProposalAnswer:
    """Answer of the sampler process to a request."""

    proposal: Proposal | None
    likely: Sequence[Config]


class SamplerWorker:
    """The sampler that runs inside the process."""

    def __init__(self, plan: SamplerPlan) -> None:
        kernel, context = plan.context.kernel(), plan.context
        space = feasible_space(kernel, context.problems, context.profile, plan.genes)

        def explain(config: Config) -> str:
            violation = check(kernel, config, context.problems, context.profile)
            return violation.constraint if violation else "infeasible"

        self._sampler = make_sampler(plan.name, space, plan.options, plan.seed, plan.schedule, explain, plan.prior)
        self._history = History(space)

    def handle(self, ask: _ProposalRequest) -> _ProposalAnswer | None:
        """Return the next proposal, or None if this process lacks the expected history."""
        history = self._history
        if (ask.proposed, ask.known_results) != (len(history.proposals), history.results_seen):
            return None
        for known in ask.proposals:
            history.commit(len(history.proposals), known)
        for result in ask.results:
            number = history.results_seen
            config, constraints = history.proposals[number].config, result.constraints or {}
            history.tell(TrialResult(number, config, result.outcome, result.value, result.fingerprint, constraints))
        number = len(history.proposals)
        proposal = self._sampler.propose(history, number)
        if proposal is None:
            return _ProposalAnswer(None, ())
        history.commit(number, proposal)
        return _ProposalAnswer(proposal, self._sampler.likely() if isinstance(self._sampler, PredictsProposals) else ())


class SamplerProcess:
    """Client of the sampler process for one history."""

    def __init__(self, plan: SamplerPlan) -> None:
        """Prepare the client; the process starts with `start` or the first request."""
        self._plan = plan
        self._pool: OwnServerPool | None = None
        self._known = (0, 0)
        self._asked: int | None = None
        self.stopped: Callable[[], bool] = lambda: False
        """Function that returns whether the user wants to stop; it is called while waiting for a proposal."""
        self._likely: Sequence[Config] = ()

    @property
    def processes(self) -> list[int]:
        """Process IDs, for tests."""
        return self._pool.processes if self._pool is not None else []

    def start(self) -> None:
        """Start the process, which imports its modules in the background."""
        if self._pool is None:
            spec = WorkerSpec(f"{__name__}:{SamplerWorker.__name__}", self._plan, may_fault=False)
            self._pool = OwnServerPool(spec, PRELOAD)

    def close(self) -> None:
        """Stop the process; safe to call twice."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def prepare(self, history: History, number: int) -> None:
        """Request the proposal that `propose` will return; the history must be complete for this proposal."""
        if self._asked is None:
            self._ask(history, number)

    def propose(self, history: History, number: int) -> Proposal | None:
        """Return the proposal of a trial, or None if no configuration is left.

        Raises:
            EvokernError: The sampler raised an error, or the process keeps dying.
        """
        self.prepare(history, number)
        for _ in range(ATTEMPTS):
            found = self._answer(number)
            if found is not None:
                break
            # A replacement process needs the complete history.
            self._known = (0, 0)
            self._ask(history, number)
        else:
            raise InternalError(f"the sampler process failed to propose trial {number} in {ATTEMPTS} attempts")
        self._likely = found.likely
        if found.proposal is not None:
            self._known = number + 1, self._known[1]
        return found.proposal

    def likely(self) -> Sequence[Config]:
        """Return likely next proposals, likeliest first."""
        return self._likely

    def _ask(self, history: History, number: int) -> None:
        self.start()
        assert self._pool is not None
        proposed, known = self._known
        first = known - sum(lost < known for lost in history.lost)
        visible = iter(history.results[first:])
        results = [
            _ResultUpdate(Outcome.LOST) if at in history.lost else _update_of(next(visible))
            for at in range(known, history.results_seen)
        ]
        ask = _ProposalRequest(proposed, known, history.proposals[proposed:], results)
        self._pool.submit(number, ask, DEADLINE_S)
        self._asked, self._known = number, (len(history.proposals), history.results_seen)

    def _answer(self, number: int) -> _ProposalAnswer | None:
        """Return the answer, or None if the process lacks history or exceeded the timeout, so that a retry makes sense.

        Raises:
            KeyboardInterrupt: The user wants to stop while the process does not answer.
        """
        assert self._pool is not None
        if self._asked != number:
            raise InternalError(f"trial {self._asked} was requested in advance, but then trial {number} was needed")
        while True:
            for result in wait([self._pool], 0.2):
                self._asked = None
                if result.status == "done":
                    found: _ProposalAnswer | None = result.value
                    return found
                if result.status == "raised":
                    raise result.value
                if result.status == "overran":  # also if the whole machine was suspended
                    return None
                raise result.lost_error(f"the proposal of trial {number}")
            if self.stopped():
                raise KeyboardInterrupt


def _update_of(result: TrialResult) -> _ResultUpdate:
    return _ResultUpdate(result.outcome, result.value, result.fingerprint, result.constraints)
