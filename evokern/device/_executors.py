"""Several executors as one pool: who gets which candidate, and whether their times stay comparable.

Each executor is a pool of its own, of one GPU. A candidate goes to the one that holds the fewest. Where there are
several, each times the same reference when it joins and from time to time: one that drifts from its own first time is
set aside, and what it measured since its last good check is measured again by another. What was answered stays
answered; the second time is kept beside it.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from evokern.errors import EvokernError
from evokern.study.trial import Evaluation, Outcome
from evokern.workers.jobs import JobResult
from evokern.workers.pool import WorkerPool

GPU = "gpu"
"""Key of the evidence that names the executor that measured a trial, where a search has several."""
MOST_DRIFT = 0.02
"""Share by which the reference's time may leave its first one: twice what two GPUs of one model differ by."""
CHECK_PERIOD_S = 60.0
"""Seconds of work between two checks of an executor."""
_LOGGER = logging.getLogger("evokern")
_FIRST_OWN_KEY = -1000
"""Key of the first job of ours, and the others' below it: no trial's number, nor that of a job run alone."""


@dataclass(frozen=True)
class Reference:
    """What executors are compared by."""

    name: str
    """What it is, for messages: a baseline's name, or `the default candidate`."""
    job: Any
    """What an executor answers with something that `time_us` reads."""
    time_us: Callable[[Any], float | None]
    """The time in such an answer, µs; None where there is none."""
    deadline_s: float
    """Seconds that it may take."""


@dataclass
class Executor:
    """One of the executors."""

    name: str
    """`cuda:1`."""
    pool: WorkerPool
    """What works on it."""
    first_us: float | None = None
    """The reference's time when it joined, µs; None where it was not timed."""
    checked_at: float = 0.0
    checking: bool = False
    doubted: bool = False
    aside: bool = False
    held: dict[int, tuple[Any, float]] = field(default_factory=dict)
    """Trial → job and deadline, of those that it was given and has not answered."""
    since: dict[int, tuple[Any, float]] = field(default_factory=dict)
    """The same of those that it measured since its last good check."""


class Executors:
    """Driven by one thread, as a `WorkerPool` is, and waited for by `evokern.workers.pool.wait`."""

    def __init__(self, members: Sequence[tuple[str, WorkerPool]], depth: int) -> None:
        """Make one pool of several.

        Args:
            members: names and pools, which stay their owner's.
            depth: jobs that each is given at a time.
        """
        self.members = [Executor(name, pool) for name, pool in members]
        self._depth = depth
        self._reference: Reference | None = None
        self._backlog: deque[tuple[int, Any, float]] = deque()
        self._own: dict[int, tuple[Executor, int | None]] = {}
        self._next_own = _FIRST_OWN_KEY
        self._why: dict[int, str] = {}
        self._remeasured: queue.SimpleQueue[tuple[int, Mapping[str, Any]]] = queue.SimpleQueue()

    def compare_by(self, reference: Reference, first_us: Sequence[float]) -> None:
        """Check the executors from now on.

        Args:
            reference: what each of them times.
            first_us: what it took when they joined, µs, in their order.
        """
        self._reference = reference
        for member, time_us in zip(self.members, first_us, strict=True):
            member.first_us, member.checked_at = time_us, time.monotonic()

    @property
    def working(self) -> list[Executor]:
        """Those that are not set aside."""
        return [member for member in self.members if not member.aside]

    @property
    def connections(self) -> list[Connection]:
        """What to listen to."""
        return [connection for member in self.members for connection in member.pool.connections]

    def overdue(self) -> frozenset[int]:
        """Return the keys of jobs that take so long that nobody waits for them."""
        return frozenset[int]().union(*(member.pool.overdue() for member in self.members))

    def next_deadline(self) -> float | None:
        """Return the earliest moment (monotonic clock) at which a worker must be ended."""
        deadlines = (member.pool.next_deadline() for member in self.members)
        return min((moment for moment in deadlines if moment is not None), default=None)

    def grant(self, pause_s: float) -> None:
        """Grant the workers time in which this process was stopped."""
        for member in self.members:
            member.pool.grant(pause_s)

    def submit(self, key: int, job: Any, deadline_s: float) -> None:
        """Queue a trial's job."""
        self._backlog.append((key, job, deadline_s))
        self._feed()

    def remeasured(self) -> dict[int, Mapping[str, Any]]:
        """Return what was measured a second time since the last call, by trial; any thread may ask."""
        found: dict[int, Mapping[str, Any]] = {}
        while not self._remeasured.empty():
            number, told = self._remeasured.get()
            found[number] = told
        return found

    def advance(self, readable: Iterable[object]) -> list[JobResult]:
        """Take in what the workers sent, check who is due, and hand out what waits (`wait` calls this).

        Raises:
            EvokernError: no executor is left; with the last one's error.
        """
        readable = list(readable)
        results = []
        for member in self.members:
            try:
                answered = member.pool.advance(readable)
            except EvokernError as error:
                self._lost(member, error)
                continue
            results += [result for one in answered if (result := self._taken(member, one)) is not None]
        self._check_those_due()
        self._feed()
        return results

    def _taken(self, member: Executor, result: JobResult) -> JobResult | None:
        """Return a trial's result with the name of who gave it; None where it was a job of ours."""
        asked = member.held.pop(result.key, None)
        if result.key in self._own:
            whose, number = self._own.pop(result.key)
            if number is None:
                self._checked(whose, result)
            else:
                self._measured_again(member, number, result)
            return None
        if len(self.members) == 1 or not isinstance(result.value, Evaluation):
            return result
        if asked is not None and result.value.outcome is Outcome.MEASURED:
            member.since[result.key] = asked
            if member.aside:
                self._measure_again(member, f"{member.name} was set aside")
        evidence = {**result.value.evidence, GPU: member.name}
        return replace(result, value=replace(result.value, evidence=evidence))

    def _feed(self) -> None:
        while self._backlog:
            member = min(self.working, key=lambda one: one.pool.pending, default=None)
            if member is None or member.pool.pending >= self._depth:
                return
            key, job, deadline_s = self._backlog.popleft()
            member.held[key] = job, deadline_s
            member.pool.submit(key, job, deadline_s)

    def _key(self, member: Executor, number: int | None) -> int:
        self._next_own -= 1
        self._own[self._next_own] = member, number
        return self._next_own

    # ---- checks

    def _check_those_due(self) -> None:
        if self._reference is None or len(self.working) < 2:
            return
        now = time.monotonic()
        for member in self.working:
            if not member.checking and (member.doubted or now - member.checked_at > CHECK_PERIOD_S):
                member.checking = True
                member.pool.submit(self._key(member, None), self._reference.job, self._reference.deadline_s)

    def _checked(self, member: Executor, result: JobResult) -> None:
        """Take in a check: one time beyond the bound may be a disturbance, a second one at once is the executor."""
        assert self._reference is not None
        assert member.first_us is not None
        member.checking, member.checked_at = False, time.monotonic()
        time_us = self._reference.time_us(result.value) if result.status == "done" else None
        drift = None if time_us is None else time_us / member.first_us - 1
        if drift is not None and abs(drift) <= MOST_DRIFT:
            member.doubted = False
            member.since.clear()
        elif not member.doubted:
            member.doubted = True
        else:
            took = "could not be measured any more" if time_us is None else f"took {time_us:.4g} µs"
            self._set_aside(member, f"{self._reference.name} {took}, and {member.first_us:.4g} when it joined")

    def _set_aside(self, member: Executor, why: str) -> None:
        if len(self.working) == 1:
            return  # nobody to compare it with
        member.aside = True
        count = len(member.since)
        _LOGGER.warning(
            "%s is set aside: %s; %s measured since its last good check are measured again", member.name, why, count
        )
        self._measure_again(member, f"{member.name} was set aside: {why}")

    def _measure_again(self, member: Executor, why: str) -> None:
        for number, (job, deadline_s) in member.since.items():
            self._why[number] = why
            self._backlog.append((self._key(member, number), job, deadline_s))
        member.since.clear()

    def _measured_again(self, member: Executor, number: int, result: JobResult) -> None:
        told: dict[str, Any] = {GPU: member.name, "because": self._why.pop(number)}
        if isinstance(result.value, Evaluation):
            told |= {"outcome": result.value.outcome.value, "time_us": result.value.time_us}
        else:
            told["outcome"] = "lost"
        self._remeasured.put((number, told))

    def _lost(self, member: Executor, error: EvokernError) -> None:
        """Go on without an executor whose workers cannot be started any more: others take what it held.

        Raises:
            EvokernError: it was the last one.
        """
        if member.aside and not member.held:
            return
        member.aside = True
        if not self.working:
            raise error
        member.pool.close()
        first = str(error).splitlines()[0]
        _LOGGER.warning("%s is lost: %s; the others go on with what it held", member.name, first)
        for number, (job, deadline_s) in sorted(member.held.items(), reverse=True):
            self._backlog.appendleft((number, job, deadline_s))
        member.held.clear()
