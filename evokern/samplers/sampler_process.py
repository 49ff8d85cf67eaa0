"""A sampler in a process of its own, which finds the next candidate while the search records and submits.

Where several GPUs measure, proposals and everything else together take more than one processor gives. The process is
told what became visible since the proposal before, and keeps a history of its own; one that died is replaced by one
that is told everything, so that the sequence of proposals is what a sampler in this process would make of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.declaration.feasibility import check, feasible_space
from evokern.declaration.genes import Config, Value
from evokern.errors import InternalError, KernelError
from evokern.samplers import make_sampler
from evokern.samplers._prior import Prior
from evokern.samplers.contract import Foresighted, History, TrialResult, TrialSchedule
from evokern.study.discovery import WorkerContext
from evokern.study.trial import Outcome, Proposal
from evokern.workers.pool import OwnServerPool, WorkerSpec, wait

PRELOAD = ("evokern.samplers.sampler_process", "evokern.samplers.evo")
"""What its fork server imports while the device starts."""
DEADLINE_S = 120.0
"""Seconds after which another process is asked; the first proposal of a resumed study of 10,000 trials takes a few."""
ATTEMPTS = 3
"""How often a proposal is asked for."""


@dataclass(frozen=True)
class SamplerPlan:
    """What the process builds its sampler from."""

    context: WorkerContext
    """The kernel, the study's problems, the chip under the study's limits."""
    digest: str
    """Identity of the kernel's code: a process that takes a dead one's place reads the folder anew."""
    genes: Mapping[str, Sequence[Value]]
    """Gene → the values it may have, of those that the study narrows."""
    name: str
    """Of the sampler, and the rest as for `make_sampler`."""
    options: Mapping[str, Any]
    seed: int
    schedule: TrialSchedule
    prior: Prior | None


@dataclass(frozen=True)
class _Told:
    """A result without its configuration, which the process has."""

    outcome: Outcome
    value: float | None = None
    fingerprint: str | None = None
    constraints: Mapping[str, float] | None = None


@dataclass(frozen=True)
class _Ask:
    """One proposal, and what the process does not know yet."""

    proposed: int
    """Proposals that it knows."""
    told: int
    """Trials of which it knows the end."""
    proposals: Sequence[Proposal]
    """Those after them."""
    results: Sequence[_Told]
    """What became of the trials after those."""


@dataclass(frozen=True)
class _Found:
    """What it found."""

    proposal: Proposal | None
    likely: Sequence[Config]


class SamplerWorker:
    """The process's side."""

    def __init__(self, plan: SamplerPlan) -> None:
        kernel, context = plan.context.kernel(), plan.context
        if kernel.digest() != plan.digest:
            raise KernelError(f"kernel {kernel.name} was changed in {context.folder} while it was searched")
        space = feasible_space(kernel, context.problems, context.profile, plan.genes)

        def explain(config: Config) -> str:
            violation = check(kernel, config, context.problems, context.profile)
            return violation.constraint if violation else "infeasible"

        self._sampler = make_sampler(plan.name, space, plan.options, plan.seed, plan.schedule, explain, plan.prior)
        self._history = History(space)

    def handle(self, ask: _Ask) -> _Found | None:
        """Return the next proposal; None where this process knows less than whoever asks believes."""
        history = self._history
        if (ask.proposed, ask.told) != (len(history.proposals), history.told):
            return None
        for known in ask.proposals:
            history.commit(len(history.proposals), known)
        for told in ask.results:
            number = history.told
            config, constraints = history.proposals[number].config, told.constraints or {}
            history.tell(TrialResult(number, config, told.outcome, told.value, told.fingerprint, constraints))
        number = len(history.proposals)
        proposal = self._sampler.propose(history, number)
        if proposal is None:
            return _Found(None, ())
        history.commit(number, proposal)
        return _Found(proposal, self._sampler.likely() if isinstance(self._sampler, Foresighted) else ())


class SamplerProcess:
    """The search's side: a sampler of one history, which may be asked ahead."""

    def __init__(self, plan: SamplerPlan) -> None:
        """Prepare; the process starts with `start`, or when it is first asked."""
        self._plan = plan
        self._pool: OwnServerPool | None = None
        self._known = (0, 0)
        self._asked: int | None = None
        self.stopped: Callable[[], bool] = lambda: False
        """Whether the user wants the search to stop: asked while an answer takes long."""
        self._likely: Sequence[Config] = ()

    @property
    def processes(self) -> list[int]:
        """Process numbers, for tests."""
        return self._pool.processes if self._pool is not None else []

    def start(self) -> None:
        """Start the process, which imports while the caller goes on."""
        if self._pool is None:
            spec = WorkerSpec(f"{__name__}:{SamplerWorker.__name__}", self._plan, may_fault=False)
            self._pool = OwnServerPool(spec, PRELOAD)

    def close(self) -> None:
        """End the process; safe to call twice."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def prepare(self, history: History, number: int) -> None:
        """Ask for the proposal that `propose` will return; all that it may see is in the history."""
        if self._asked is None:
            self._ask(history, number)

    def propose(self, history: History, number: int) -> Proposal | None:
        """Return the proposal of a trial; None when nothing is left.

        Raises:
            EvokernError: what the sampler raised, or that the process cannot be kept alive.
        """
        self.prepare(history, number)
        for _ in range(ATTEMPTS):
            found = self._answer(number)
            if found is not None:
                break
            # Another process has its place, or will have: it is told everything.
            self._known = (0, 0)
            self._ask(history, number)
        else:
            raise InternalError(f"the sampler's process proposed nothing for trial {number}, asked {ATTEMPTS} times")
        self._likely = found.likely
        if found.proposal is not None:
            self._known = number + 1, self._known[1]
        return found.proposal

    def likely(self) -> Sequence[Config]:
        """Return what the next proposals may be, the likeliest first."""
        return self._likely

    def _ask(self, history: History, number: int) -> None:
        self.start()
        assert self._pool is not None
        proposed, told = self._known
        first = told - sum(lost < told for lost in history.lost)
        visible = iter(history.results[first:])
        results = [
            _Told(Outcome.LOST) if at in history.lost else _told(next(visible)) for at in range(told, history.told)
        ]
        ask = _Ask(proposed, told, history.proposals[proposed:], results)
        self._pool.submit(number, ask, DEADLINE_S)
        self._asked, self._known = number, (len(history.proposals), history.told)

    def _answer(self, number: int) -> _Found | None:
        """Return the answer; None where the process knew too little, or took too long and may be asked again.

        Raises:
            KeyboardInterrupt: the user wants to stop, and the process does not answer.
        """
        assert self._pool is not None
        if self._asked != number:
            raise InternalError(f"trial {self._asked} was asked for ahead, and then {number}")
        while True:
            for result in wait([self._pool], 0.2):
                self._asked = None
                if result.status == "done":
                    found: _Found | None = result.value
                    return found
                if result.status == "raised":
                    raise result.value
                if result.status == "overran":  # time in which all of this machine stood still counts, too
                    return None
                raise result.lost_error(f"the proposal of trial {number}")
            if self.stopped():
                raise KeyboardInterrupt


def _told(result: TrialResult) -> _Told:
    return _Told(result.outcome, result.value, result.fingerprint, result.constraints)
