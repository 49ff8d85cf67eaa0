"""The search loop: propose, evaluate, record, and show results to the sampler in order.

The order makes a search repeatable. Trial n is proposed when the trials up to n - W(n) are recorded; W(n) is the number
of trials in flight. The sampler sees the results of exactly those trials that belong to its arm. Results are recorded
when they arrive, and shown to the sampler in number order. The time that candidates race against follows the same rule.
The device's speed, its number of workers and interruptions therefore do not change the sequence of candidates.
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
from evokern.device.contract import Answer, CompilesAhead, Device, ExecutorState, HasExecutors, ReportsStages, Request
from evokern.errors import DeviceError, InternalError
from evokern.samplers import History, Sampler, TrialResult, TrialSchedule
from evokern.search._arms import Arms
from evokern.search._failures import FailureWatch, LastFailures
from evokern.search.request import SessionPart
from evokern.search.results import EndReason
from evokern.study.trial import SMALLER, TOO_LARGE, Evaluation, Outcome, Proposal, Trial

POLL_S = 0.1
"""Maximum wait in seconds before the loop checks the clock and stop requests."""
HEARTBEAT_S = 2.0
"""Interval in seconds at which the elapsed time is stored if no trial ends."""
DRAIN_S = 2.0
"""Seconds that candidates in flight have to finish after the end of the budget; a later session repeats the others."""
MAX_TOO_LARGE = 8
"""Number of consecutive trials that a simulated device cannot run; one more ends the search."""

AfterEvent = Callable[[Literal["trial", "idle"]], None]


class TrialRecorder(Protocol):
    """Destination of trials: a session of the database, or nothing in a replay."""

    def propose(self, number: int, proposal: Proposal, elapsed_s: float) -> None:
        """Store a proposal before it is evaluated."""

    def record(self, trial: Trial, elapsed_s: float) -> None:
        """Store a trial."""

    def write_result(self, result: TrialResult) -> None:
        """Store a result for Optuna's tables, which need number order; all earlier results are already stored."""

    def record_duration(self, elapsed_s: float) -> None:
        """Store how long the session has lasted."""

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context that commits all changes made inside it, or none."""


class NullRecorder:
    """Recorder that stores nothing, for searches whose results are not saved."""

    def propose(self, number: int, proposal: Proposal, elapsed_s: float) -> None:
        """Do nothing."""

    def record(self, trial: Trial, elapsed_s: float) -> None:
        """Do nothing."""

    def write_result(self, result: TrialResult) -> None:
        """Do nothing."""

    def record_duration(self, elapsed_s: float) -> None:
        """Do nothing."""

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()


@dataclass(frozen=True)
class Limits:
    """Limits of a search."""

    in_flight: TrialSchedule
    """Number of trials in flight."""
    budget_s: float | None = None
    """Study time over all sessions, in seconds."""
    trials: int | None = None
    """Evaluated trials over all sessions."""

    def within(self, part: SessionPart) -> Limits:
        """Return the limits of a session that may pause before its study ends."""
        budgets = [budget_s for budget_s in (self.budget_s, part.elapsed_s) if budget_s is not None]
        counts = [trials for trials in (self.trials, part.trials) if trials is not None]
        return replace(self, budget_s=min(budgets, default=None), trials=min(counts, default=None))

    def end_reason(self, loop: Loop, end: EndReason) -> EndReason:
        """Return why a session ended: `end`, or `paused` if the session reached its own limits but not the study's."""
        if end == "trials" and (self.trials is None or loop.evaluated < self.trials):
            return "paused"
        if end == "budget" and (self.budget_s is None or loop.elapsed_s < self.budget_s):
            return "paused"
        return end


class Loop:
    """The search loop of one session."""

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
        watch: FailureWatch | None = None,
        before_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        began: float | None = None,
    ) -> None:
        """Create a loop.

        Args:
            history: empty history for the sampler.
            sampler: sampler of the study.
            device: started device.
            recorder: destination of trials.
            limits: limits of the search.
            violation: returns the constraint that a configuration violates; None if it is feasible.
            control: the control's empty history and sampler, which proposes every second trial; None for no control.
            watch: ends a search without correct candidates; None for no such end.
            before_s: study time of earlier sessions, in seconds.
            clock: returns seconds, from any origin.
            began: the clock's time at the session's start; None means now.
        """
        self.arms = Arms((history, sampler), *([control] if control else []))
        """Sampler and control."""
        self._device = device
        self._recorder = recorder
        self._limits = limits
        self._violation = violation
        self._watch = watch
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
        self._too_large = 0
        self._recent: deque[float] = deque()
        self.stop_requested = False
        """Whether to end the session; signal handlers may set it. All recorded trials are kept."""
        self.outcomes: Counter[str] = Counter()
        """Outcome → number of recorded trials."""
        self.rejections: Counter[str] = Counter()
        """Constraint → number of rejected proposals."""
        self.evaluated = 0
        """Number of recorded trials that count towards the limit."""
        self.best: Trial | None = None
        """Champion so far."""
        self.last: Trial | None = None
        """Trial recorded last."""
        self.improvements: list[tuple[float, float]] = []
        """Study time in seconds and kernel time in µs of each champion so far."""
        self.failures = LastFailures()
        """Recent failures, one of each kind."""

    @property
    def session_s(self) -> float:
        """Duration of this session in seconds."""
        return self._clock() - self._began

    @property
    def elapsed_s(self) -> float:
        """Study time over all sessions, in seconds."""
        return self._before_s + self.session_s

    @property
    def recorded(self) -> int:
        """Number of trials recorded over all sessions."""
        return len(self._results)

    @property
    def in_flight(self) -> int:
        """Number of candidates on the device."""
        return len(self._in_flight)

    @property
    def stages(self) -> tuple[int, int] | None:
        """Number of candidates being compiled, and number already compiled, if the device reports them."""
        return self._device.stages() if isinstance(self._device, ReportsStages) else None

    @property
    def executors(self) -> tuple[ExecutorState, ...]:
        """State of each executor; empty if the device has only one executor."""
        return tuple(self._device.executors()) if isinstance(self._device, HasExecutors) else ()

    @property
    def trials_per_minute(self) -> float:
        """Number of trials that reached the device in the last minute, extrapolated in a session's first minute."""
        now = self._clock()
        while self._recent and self._recent[0] < now - 60:
            self._recent.popleft()
        running_s = now - (now if self._running_from is None else self._running_from)
        return 60 * len(self._recent) / max(1.0, min(60.0, running_s))

    @property
    def busy_share(self) -> float:
        """Fraction of the loop's running time during which the device was busy."""
        if self._running_from is None:
            return 0.0
        return min(1.0, self._device.busy_s() / max(self._clock() - self._running_from, 1e-9))

    @property
    def left_s(self) -> float:
        """Seconds until the budget or, at the current rate, the trials are used up; infinite without a limit."""
        left = math.inf if self._limits.budget_s is None else self._limits.budget_s - self.elapsed_s
        if self._limits.trials is not None and self.trials_per_minute:
            left = min(left, 60 * (self._limits.trials - self.evaluated) / self.trials_per_minute)
        return left

    def already_ended(self) -> EndReason | None:
        """Return why the search has ended before a device opens (a limit, or no correct candidate), or None."""
        if self._over_budget():
            return "budget"
        limit = self._limits.trials
        if limit is not None and self.evaluated >= limit:
            return "trials"
        return "no_success" if self.hopeless else None

    @property
    def hopeless(self) -> bool:
        """Whether the search ends because no candidate was correct so far."""
        return self._watch is not None and self._watch.hopeless

    def restore(self, proposals: Sequence[Proposal], trials: Sequence[Trial]) -> list[TrialResult]:
        """Restore earlier sessions; return the results to store, in number order.

        Args:
            proposals: proposals by trial number.
            trials: recorded trials in number order; trials that are missing were interrupted.
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
        """Add evidence to recorded trials, for progress displays; samplers do not see this evidence."""
        changed = {trial.number: trial for trial in trials}
        self.failures.annotate(changed)
        if self._watch is not None:
            for trial in trials:
                self._watch.add(trial)
        if self.last is not None:
            self.last = changed.get(self.last.number, self.last)

    def run(self, after_event: AfterEvent = lambda event: None) -> EndReason:
        """Search until the budget, the trials or the space are used up, or until a stop is requested.

        Args:
            after_event: called with `trial` after each recorded trial and with `idle` after a wait without a result.
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
                self._commit(proposal, answers, after_event)
            elif not self._may_ask():
                self._store_duration()
                after_event("idle")
        return "interrupted"

    def _commit(self, proposal: Proposal | None, answers: Sequence[Answer], after_event: AfterEvent) -> None:
        """Commit the proposal and the results together; only then submit the proposal and report the results."""
        number = len(self._proposals)
        request: Request | None = None
        with self._recorder.transaction():
            recorded = [self._record(answer) for answer in answers]
            if proposal is not None:
                self._recorder.propose(number, proposal, self.session_s)
                self._proposals.append(proposal)
                self.rejections.update(proposal.rejections)
                offer = self._offer(number, proposal.config)
                if isinstance(offer, Answer):
                    recorded.append(self._record(offer))
                else:
                    request = offer
        if self._may_ask():
            # The sampler prepares the next proposal while this one is submitted, if it can.
            following = len(self._proposals)
            self._show(following)
            self.arms.of(following).prepare(following)
        if request is not None:
            self._device.submit(request)
            if isinstance(self._device, CompilesAhead):
                self._device.compile_ahead(self.arms.of(number).likely())
        for self.last in recorded:
            after_event("trial")
            self._require_simulable(self.last)

    def _require_simulable(self, trial: Trial) -> None:
        """Check that the last trials were not all too large to simulate; such trials do not count towards a limit.

        Raises:
            DeviceError: too many trials in a row were too large.
        """
        evidence = trial.evaluation.evidence
        self._too_large = self._too_large + 1 if evidence.get("constraint") == TOO_LARGE else 0
        if self._too_large > MAX_TOO_LARGE:
            raise DeviceError(
                f"{self._too_large} trials in a row were too large to simulate, trial {trial.number} because "
                f"{evidence['reason']}; {SMALLER}"
            )

    def _over_budget(self) -> bool:
        return self._limits.budget_s is not None and self.elapsed_s >= self._limits.budget_s

    def _reason(self) -> EndReason:
        if self._exhausted:
            return "exhausted"
        if self.hopeless and not self._over_budget():
            return "no_success"
        return "budget" if self._over_budget() else "trials"

    def _may_ask(self) -> bool:
        # Counting the trials in flight makes the proposed trials the shortest sufficient prefix, whatever the order of
        # the results.
        enough = self._limits.trials is not None and self.evaluated + len(self._in_flight) >= self._limits.trials
        visible = self.arms.last_visible_trial(len(self._proposals), self._limits.in_flight) < self._prefix
        waits = self._watch is not None and self._watch.undecided(len(self._in_flight))
        return visible and not (enough or waits or self._exhausted or self._over_budget() or self.hopeless)

    def _show(self, number: int) -> None:
        """Show a group the results that the proposal of a trial may see."""
        self.arms.of(number).show_results(self._results, self.arms.last_visible_trial(number, self._limits.in_flight))

    def _adopt(self) -> None:
        for number, proposal in enumerate(self._proposals):
            if number not in self._results:
                self._show(number)
                request = self._offer(number, proposal.config)
                if isinstance(request, Answer):
                    with self._recorder.transaction():
                        self._record(request)
                else:
                    self._device.submit(request)

    def _ask(self) -> Proposal | None:
        number = len(self._proposals)
        self._show(number)
        proposal = self.arms.of(number).propose(number)
        self._exhausted = proposal is None
        return proposal

    def _offer(self, number: int, config: Config) -> Request | Answer:
        """Return the request for a candidate, or its result if it is infeasible."""
        self._in_flight.add(number)
        violation = self._violation(config)
        if violation is None:
            return Request(number, config, self.arms.of(number).elite_us)
        return Answer(number, Evaluation(Outcome.INFEASIBLE, evidence=violation.evidence))

    def _record(self, answer: Answer) -> Trial:
        if answer.number not in self._in_flight:
            raise InternalError(f"the device returned a result for trial {answer.number}, which is not in flight")
        self._in_flight.remove(answer.number)
        # Spans use the real clock; only searches of recordings use another one, and recordings have no spans.
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
        if self._watch is not None:
            self._watch.add(trial)
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

    def _store_duration(self) -> None:
        if self._clock() - self._written > HEARTBEAT_S:
            self._recorder.record_duration(self.session_s)
            self._written = self._clock()


def _rank(trial: Trial) -> tuple[float, int]:
    return trial.evaluation.time_us or 0.0, trial.number
