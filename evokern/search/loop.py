"""The loop: ask, evaluate, record, tell in order.

The order is what makes a search repeatable. Trial n is proposed when trials up to n - W(n) are recorded; its sampler
sees exactly those of its arm; answers are recorded as they arrive, and shown in number order. The time that a candidate
races against follows the same rule. So neither the device's speed, nor its number of workers, nor an interruption
changes the sequence of candidates.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from evokern.declaration.feasibility import Violation
from evokern.declaration.genes import Config
from evokern.device.contract import Answer, CompilesAhead, Device, ExecutorState, Request, Several, Staged
from evokern.errors import InternalError
from evokern.samplers import History, Sampler, TrialResult, TrialSchedule
from evokern.search._arms import Arms
from evokern.search._failures import LastFailures
from evokern.search.request import SessionPart
from evokern.search.results import EndReason
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial

POLL_S = 0.1
"""Longest wait for an answer before the loop looks at the clock and at its user's wish to stop."""
HEARTBEAT_S = 2.0
"""How often elapsed time is written while nothing is recorded."""
DRAIN_S = 2.0
"""How long candidates in flight may finish when the budget is used up; the rest are adopted if it is extended."""


AfterEvent = Callable[[Literal["trial", "idle"]], None]


class TrialRecorder(Protocol):
    """Where trials go: a store's session, or nowhere in a replay."""

    def propose(self, number: int, proposal: Proposal, elapsed_s: float) -> None:
        """Keep a proposal, before it is evaluated."""

    def record(self, trial: Trial, elapsed_s: float) -> None:
        """Keep an outcome."""

    def write_result(self, result: TrialResult) -> None:
        """Keep a result where trials end in number order, as Optuna's tables do: all before it are kept already."""

    def record_duration(self, elapsed_s: float) -> None:
        """Keep how long the session has lasted."""

    def transaction(self) -> AbstractContextManager[None]:
        """Keep all that is done inside, or nothing of it."""


class NullRecorder:
    """A recorder that keeps nothing: for searches that are over when they end, such as a replay's repeats."""

    def propose(self, number: int, proposal: Proposal, elapsed_s: float) -> None:
        """Keep nothing."""

    def record(self, trial: Trial, elapsed_s: float) -> None:
        """Keep nothing."""

    def write_result(self, result: TrialResult) -> None:
        """Keep nothing."""

    def record_duration(self, elapsed_s: float) -> None:
        """Keep nothing."""

    def transaction(self) -> AbstractContextManager[None]:
        """Keep nothing."""
        return nullcontext()


@dataclass(frozen=True)
class Limits:
    """When a search ends."""

    in_flight: TrialSchedule
    """How many trials are in flight."""
    budget_s: float | None = None
    """Study time over all sessions, seconds."""
    trials: int | None = None
    """Evaluated trials over all sessions."""

    def within(self, part: SessionPart) -> Limits:
        """Return the limits of a session that may pause before the study's end."""
        budgets = [budget_s for budget_s in (self.budget_s, part.elapsed_s) if budget_s is not None]
        counts = [trials for trials in (self.trials, part.trials) if trials is not None]
        return replace(self, budget_s=min(budgets, default=None), trials=min(counts, default=None))

    def paused(self, loop: Loop, end: EndReason) -> EndReason:
        """Return why a session ended: `paused` where it reached limits of its own, and not these of the study."""
        if end == "trials" and (self.trials is None or loop.evaluated < self.trials):
            return "paused"
        if end == "budget" and (self.budget_s is None or loop.elapsed_s < self.budget_s):
            return "paused"
        return end


class Loop:
    """One session's ask, evaluate, record and tell."""

    def __init__(
        self,
        history: History,
        sampler: Sampler,
        device: Device,
        recorder: TrialRecorder,
        limits: Limits,
        violation: Callable[[Config], Violation | None],
        *,
        control: tuple[History, Sampler] | None = None,
        before_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        began: float | None = None,
    ) -> None:
        """Make a loop.

        Args:
            history: what the sampler may see; empty.
            sampler: who proposes.
            device: who evaluates; started.
            recorder: where trials go.
            limits: when to end.
            violation: names the constraint that an infeasible configuration violates.
            control: who proposes every second trial, with an empty history of its own; None for no control.
            before_s: study time of earlier sessions, seconds.
            clock: seconds, from any origin.
            began: the clock's time at which the session began; None is now.
        """
        self.arms = Arms((history, sampler), *([control] if control else []))
        """Who proposes."""
        self._device = device
        self._recorder = recorder
        self._limits = limits
        self._violation = violation
        self._before_s = before_s
        self._clock = clock
        self._began = clock() if began is None else began
        self._running_from: float | None = None
        self._written = self._began
        self._proposals: list[Proposal] = []
        self._results: dict[int, TrialResult] = {}
        self._prefix = 0
        self._in_flight: set[int] = set()
        self._exhausted = False
        self._recent: deque[float] = deque()
        self.stop_requested = False
        """Set it, from a signal handler too, to end the session at once with everything recorded kept."""
        self.outcomes: Counter[str] = Counter()
        """Outcome → trials recorded."""
        self.rejections: Counter[str] = Counter()
        """Constraint → proposals turned away."""
        self.evaluated = 0
        """Trials recorded that count towards the limit."""
        self.best: Trial | None = None
        """The champion."""
        self.last: Trial | None = None
        """The trial recorded last."""
        self.improvements: list[tuple[float, float]] = []
        """Study time in seconds and time in µs of each champion so far."""
        self.failures = LastFailures()
        """The last trials that failed, one of each kind."""

    @property
    def session_s(self) -> float:
        """Seconds of this session."""
        return self._clock() - self._began

    @property
    def elapsed_s(self) -> float:
        """Study time over all sessions, seconds."""
        return self._before_s + self.session_s

    @property
    def recorded(self) -> int:
        """Trials recorded over all sessions."""
        return len(self._results)

    @property
    def in_flight(self) -> int:
        """Candidates on the device."""
        return len(self._in_flight)

    @property
    def stages(self) -> tuple[int, int] | None:
        """Candidates that are being compiled, and those that are compiled, where the device knows."""
        return self._device.stages() if isinstance(self._device, Staged) else None

    @property
    def executors(self) -> tuple[ExecutorState, ...]:
        """How each of several executors stands; none where the device has one."""
        return tuple(self._device.executors()) if isinstance(self._device, Several) else ()

    @property
    def trials_per_minute(self) -> float:
        """Trials that reached the device in the last minute of this session, extrapolated while it is shorter."""
        now = self._clock()
        while self._recent and self._recent[0] < now - 60:
            self._recent.popleft()
        running_s = now - (now if self._running_from is None else self._running_from)
        return 60 * len(self._recent) / max(1.0, min(60.0, running_s))

    @property
    def busy_share(self) -> float:
        """Share of the time since the loop began to run in which the device was busy."""
        if self._running_from is None:
            return 0.0
        return min(1.0, self._device.busy_s() / max(self._clock() - self._running_from, 1e-9))

    @property
    def left_s(self) -> float:
        """Seconds until the budget or, at the last minute's rate, the trials are used up; infinite without both."""
        left = math.inf if self._limits.budget_s is None else self._limits.budget_s - self.elapsed_s
        if self._limits.trials is not None and self.trials_per_minute:
            left = min(left, 60 * (self._limits.trials - self.evaluated) / self.trials_per_minute)
        return left

    def spent(self) -> EndReason | None:
        """Return why there is nothing to do, before a device is opened for it: budget or trials are used up."""
        if self._over_budget():
            return "budget"
        limit = self._limits.trials
        return "trials" if limit is not None and self.evaluated >= limit else None

    def restore(self, proposals: Sequence[Proposal], trials: Sequence[Trial]) -> list[TrialResult]:
        """Take up earlier sessions; returns the results that a store may learn of, in number order.

        Args:
            proposals: what they proposed, by trial number.
            trials: what became of it, in number order; what is missing was interrupted.
        """
        for number, proposal in enumerate(proposals):
            self.arms.of(number).restore(number, proposal)
            self._proposals.append(proposal)
            self.rejections.update(proposal.rejections)
        for trial in trials:
            self._count(trial)
        self._recent.clear()
        while self._prefix in self._results:
            self._prefix += 1
        return [self._results[number] for number in range(self._prefix)]

    def annotate(self, trials: Sequence[Trial]) -> None:
        """Take in evidence that came after trials were recorded, for whoever watches; samplers see none of it."""
        changed = {trial.number: trial for trial in trials}
        self.failures.annotate(changed)
        if self.last is not None:
            self.last = changed.get(self.last.number, self.last)

    def run(self, after_event: AfterEvent = lambda event: None) -> EndReason:
        """Search until the budget, the trials or the space are used up, or until a stop is requested.

        Args:
            after_event: called with `trial` after each recorded trial and with `idle` after a wait without any.
        """
        self._running_from = self._clock()
        self._adopt()
        deadline: float | None = None
        while not self.stop_requested:
            if deadline is None and self._over_budget():
                deadline = self._clock() + min(DRAIN_S, 0.05 * (self._limits.budget_s or 0.0))
            proposal = self._ask() if self._may_ask() else None
            if proposal is None and not self._in_flight:
                return self._reason()
            if proposal is None and deadline is not None and self._clock() >= deadline:
                return "budget"
            answers = self._device.poll(0.0 if proposal or self._may_ask() else POLL_S)
            if proposal or answers:
                self._keep(proposal, answers, after_event)
            elif not self._may_ask():
                self._beat()
                after_event("idle")
        return "interrupted"

    def _keep(self, proposal: Proposal | None, answers: Sequence[Answer], after_event: AfterEvent) -> None:
        """Commit together what arrived together, then act on it: nothing is evaluated or shown that is not on disk."""
        number = len(self._proposals)
        request: Request | None = None
        with self._recorder.transaction():
            recorded = [self._record(answer) for answer in answers]
            if proposal is not None:
                self._recorder.propose(number, proposal, self.session_s)
                self._proposals.append(proposal)
                self.rejections.update(proposal.rejections)
                offered = self._offer(number, proposal.config)
                if isinstance(offered, Answer):
                    recorded.append(self._record(offered))
                else:
                    request = offered
        if self._may_ask():
            # The next one is worked out while this one is submitted and answers are read, where its sampler can do so.
            following = len(self._proposals)
            self._show(following)
            self.arms.of(following).prepare(following)
        if request is not None:
            self._device.submit(request)
            if isinstance(self._device, CompilesAhead):
                self._device.compile_ahead(self.arms.of(number).likely())
        for self.last in recorded:
            after_event("trial")

    def _over_budget(self) -> bool:
        return self._limits.budget_s is not None and self.elapsed_s >= self._limits.budget_s

    def _reason(self) -> EndReason:
        if self._exhausted:
            return "exhausted"
        return "budget" if self._over_budget() else "trials"

    def _may_ask(self) -> bool:
        # Counting what is in flight makes the trials proposed the shortest prefix with enough evaluated ones, whatever
        # the order of the answers.
        enough = self._limits.trials is not None and self.evaluated + len(self._in_flight) >= self._limits.trials
        visible = self.arms.seen_by(len(self._proposals), self._limits.in_flight) < self._prefix
        return visible and not (enough or self._exhausted or self._over_budget())

    def _show(self, number: int) -> None:
        """Make visible what the proposal of a trial may see: its arm's results, as far as the schedule allows."""
        self.arms.of(number).show(self._results, self.arms.seen_by(number, self._limits.in_flight))

    def _adopt(self) -> None:
        for number, proposal in enumerate(self._proposals):
            if number not in self._results:
                self._show(number)
                offered = self._offer(number, proposal.config)
                if isinstance(offered, Answer):
                    with self._recorder.transaction():
                        self._record(offered)
                else:
                    self._device.submit(offered)

    def _ask(self) -> Proposal | None:
        number = len(self._proposals)
        self._show(number)
        proposal = self.arms.of(number).propose(number)
        self._exhausted = proposal is None
        return proposal

    def _offer(self, number: int, config: Config) -> Request | Answer:
        """Return what to ask the device of a candidate, or where it is infeasible the answer."""
        self._in_flight.add(number)
        violation = self._violation(config)
        if violation is None:
            return Request(number, config, self.arms.of(number).elite_us)
        return Answer(number, Evaluation(Outcome.INFEASIBLE, evidence=violation.evidence))

    def _record(self, answer: Answer) -> Trial:
        if answer.number not in self._in_flight:
            raise InternalError(f"the device answered trial {answer.number}, which is not in flight")
        self._in_flight.remove(answer.number)
        # Whoever takes the time of phases takes it by the clock of a search that is not played from a recording.
        shift_s = self._before_s - self._began
        spans = tuple(replace(span, began_s=span.began_s + shift_s) for span in answer.evaluation.spans)
        evaluation = replace(answer.evaluation, spans=spans) if spans else answer.evaluation
        trial = Trial(answer.number, self._proposals[answer.number], evaluation, self.elapsed_s)
        self._recorder.record(trial, self.session_s)
        self._written = self._clock()
        self._count(trial)
        while self._prefix in self._results:
            self._recorder.write_result(self._results[self._prefix])
            self._prefix += 1
        return trial

    def _count(self, trial: Trial) -> None:
        self._results[trial.number] = TrialResult.of(trial)
        self.arms.of(trial.number).count(trial)
        self.outcomes[trial.outcome.value] += 1
        self.evaluated += trial.outcome.evaluated
        self.last = trial
        if trial.outcome not in (Outcome.INFEASIBLE, Outcome.LOST):
            self._recent.append(self._clock())
        if trial.outcome is Outcome.MEASURED:
            if self.best is None or _rank(trial) < _rank(self.best):
                self.best = trial
                self.improvements.append((trial.seconds, trial.evaluation.time_us or 0.0))
        elif trial.outcome not in (Outcome.DUPLICATE, Outcome.SLOW):
            self.failures.add(trial)

    def _beat(self) -> None:
        if self._clock() - self._written > HEARTBEAT_S:
            self._recorder.record_duration(self.session_s)
            self._written = self._clock()


def _rank(trial: Trial) -> tuple[float, int]:
    return trial.evaluation.time_us or 0.0, trial.number
