"""Drift checks of several executors, one per GPU.

Each executor times the same references when it joins, and the first reference again from time to time. An executor that
drifts from its own first times by every reference is excluded. The trials that it measured since its last good check
are measured again by another executor. Results that were already reported stay unchanged; the second time is stored in
addition.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evokern.events import log_event
from evokern.study.trial import Evaluation, Outcome
from evokern.workers.jobs import JobResult
from evokern.workers.members import ForwardingPool, MemberPool

GPU = "gpu"
"""Evidence key for the executor that measured a trial, if a search has several."""
MAX_DRIFT = 0.02
"""Largest allowed relative change of a reference's time: twice the difference between two GPUs of one model."""
CHECK_PERIOD_S = 60.0
"""Seconds between two checks of an executor."""
_FIRST_OWN_KEY = -1000
"""Key of the first internal job; later keys are lower. They never equal a trial number or the key of a single job."""


@dataclass(frozen=True)
class Reference:
    """Work with a constant time on an unchanged executor."""

    name: str
    """Name for messages: a baseline's name, or `the default candidate`."""
    job: Any
    """Job for an executor; `time_us` reads its result."""
    time_us: Callable[[Any], float | None]
    """Function that returns the time of a result in µs, or None."""


@dataclass(frozen=True)
class Calibration:
    """References for comparing executors."""

    references: Sequence[Reference]
    """References in order. The first is timed periodically; each further reference only if all before it drifted.

    A single reference is not enough, because a library call can change its time on an unchanged GPU
    (docs/lab/2026-11-27-timing.md#drift-of-a-reference)."""
    deadline_s: float
    """Timeout of one reference, in seconds."""
    proof: Any = None
    """Job that an executor must complete without an error before it joins later."""


@dataclass
class Checks:
    """State of the drift checks of one executor."""

    first_us: list[float] = field(default_factory=list)
    """Times of the references in µs when the executor joined, as far as they are known."""
    checked_at: float = 0.0
    checking: bool = False
    proving: bool = False
    excluded: bool = False
    beyond: list[str] = field(default_factory=list)
    """Descriptions of the references that drifted in the current check."""
    unconfirmed: dict[int, tuple[Any, float]] = field(default_factory=dict)
    """Trial → job and deadline, for trials measured since the last good check."""


class Executors(ForwardingPool):
    """Executors that are monitored by drift checks.

    One thread drives them, like a `WorkerPool`; `evokern.workers.pool.wait` waits for them.
    """

    def __init__(self, pool: MemberPool) -> None:
        """Monitor a pool of executors.

        Args:
            pool: the executors; the caller closes it.
        """
        super().__init__(pool)
        self.checks = [Checks() for _ in pool.names]
        """State of the drift checks of each executor."""
        self._asked: dict[int, tuple[Any, float]] = {}
        self._calibration: Calibration | None = None
        self._own: dict[int, tuple[int, int | None]] = {}
        self._next_own = _FIRST_OWN_KEY
        self._why: dict[int, str] = {}
        self._remeasured: queue.SimpleQueue[tuple[int, Mapping[str, Any]]] = queue.SimpleQueue()

    def compare_by(self, calibration: Calibration, first_us: Mapping[int, Sequence[float]]) -> None:
        """Start the drift checks of the executors.

        Args:
            calibration: references that each executor times.
            first_us: time of each reference in µs by executor index. Missing executors join after timing them.
        """
        self._calibration = calibration
        for member, one in enumerate(self.checks):
            one.first_us, one.checked_at = [*first_us.get(member, ())], time.monotonic()
            if member not in first_us:
                one.proving = True
                self._pool.set_aside(member)
                self._pool.submit(self._key(member, None), calibration.proof, calibration.deadline_s, member)

    def submit(self, key: int, job: Any, deadline_s: float) -> None:
        """Queue a trial's job."""
        if len(self.checks) > 1:
            self._asked[key] = job, deadline_s
        self._pool.submit(key, job, deadline_s)

    @property
    def names(self) -> Sequence[str]:
        """Name of each executor."""
        return self._pool.names

    @property
    def states(self) -> Sequence[str]:
        """State of each executor in a few words; empty if the executor works normally."""
        return self._pool.states

    def remeasured(self) -> dict[int, Mapping[str, Any]]:
        """Return the trials measured again since the last call; any thread may call this."""
        found: dict[int, Mapping[str, Any]] = {}
        while not self._remeasured.empty():
            number, one = self._remeasured.get()
            found[number] = one
        return found

    def advance(self, readable: Iterable[object]) -> list[JobResult]:
        """Process messages from the workers and start due checks (called by `wait`).

        Raises:
            EvokernError: no executor is left; it is the error of the last one.
        """
        results = [kept for one in super().advance(readable) if (kept := self._with_executor_name(one)) is not None]
        self._check_those_due()
        return results

    def _with_executor_name(self, result: JobResult) -> JobResult | None:
        """Return a trial's result with the name of its executor; None for an internal job."""
        asked, member = self._asked.pop(result.key, None), result.member
        if result.key in self._own:
            whose, number = self._own.pop(result.key)
            if number is None:
                self._checked(whose, result)
            else:
                self._measured_again(number, result)
            return None
        if len(self.checks) == 1 or not isinstance(result.value, Evaluation):
            return result
        if asked is not None and result.value.outcome is Outcome.MEASURED:
            self.checks[member].unconfirmed[result.key] = asked
            if self.checks[member].excluded:
                self._measure_again(member, f"{self._pool.names[member]} was excluded")
        evidence = {**result.value.evidence, GPU: self._pool.names[member]}
        return replace(result, value=replace(result.value, evidence=evidence))

    def _key(self, member: int, number: int | None) -> int:
        self._next_own -= 1
        self._own[self._next_own] = member, number
        return self._next_own

    def _check_those_due(self) -> None:
        working = self._pool.working
        if self._calibration is None or len(working) < 2:
            return
        now = time.monotonic()
        for member in working:
            one = self.checks[member]
            if not one.checking and now - one.checked_at > CHECK_PERIOD_S:
                self._time(member, 0)

    def _time(self, member: int, place: int) -> None:
        assert self._calibration is not None
        self.checks[member].checking = True
        job = self._calibration.references[place].job
        self._pool.submit(self._key(member, None), job, self._calibration.deadline_s, member)

    def _checked(self, member: int, result: JobResult) -> None:
        """Handle a reference's new time: compare it with the first time, and exclude the executor if it drifted."""
        assert self._calibration is not None
        one, references, done = self.checks[member], self._calibration.references, result.status == "done"
        if one.proving and done:
            one.proving = False
            self._time(member, 0)
        elif len(one.first_us) < len(references):
            self._record_first_time(member, result)
        else:
            reference, first_us = references[len(one.beyond)], one.first_us[len(one.beyond)]
            time_us = reference.time_us(result.value) if done else None
            if time_us is not None and abs(time_us / first_us - 1) <= MAX_DRIFT:
                one.unconfirmed.clear()
            else:
                took = "could not be measured" if time_us is None else f"took {time_us:.4g} µs"
                one.beyond.append(f"{reference.name} {took} (initially {first_us:.4g} µs)")
                if len(one.beyond) < len(references):
                    self._time(member, len(one.beyond))
                    return
                self._set_aside(member, "; ".join(one.beyond))
            one.checking, one.checked_at, one.beyond = False, time.monotonic(), []

    def _record_first_time(self, member: int, result: JobResult) -> None:
        """Record the first time of a reference; after the last reference, the executor joins."""
        assert self._calibration is not None
        one, references, name = self.checks[member], self._calibration.references, self._pool.names[member]
        one.checking, one.checked_at = False, time.monotonic()
        time_us = references[len(one.first_us)].time_us(result.value) if result.status == "done" else None
        if time_us is None:
            why = result.value if result.status != "done" else "its time could not be measured"
            log_event("gpu_refused", f"{name} does not join: {why}", logging.WARNING, gpu=name)
            return
        one.first_us.append(time_us)
        if len(one.first_us) < len(references):
            self._time(member, len(one.first_us))
            return
        message = f"{name} joins: {references[0].name} takes {one.first_us[0]:.4g} µs"
        log_event("gpu_joins", message, logging.WARNING, gpu=name, reference_us=one.first_us[0])
        self._pool.readmit(member)

    def _set_aside(self, member: int, why: str) -> None:
        if len(self._pool.working) == 1:
            return  # no other executor to compare it with
        self._pool.set_aside(member)
        self.checks[member].excluded = True
        name, count = self._pool.names[member], len(self.checks[member].unconfirmed)
        message = f"{name} is excluded: {why}; its {count} trials since the last good check are measured again"
        log_event("gpu_set_aside", message, logging.WARNING, gpu=name, trials=count)
        self._measure_again(member, f"{name} was excluded: {why}")

    def _measure_again(self, member: int, why: str) -> None:
        unconfirmed = self.checks[member].unconfirmed
        for number, (job, deadline_s) in unconfirmed.items():
            self._why[number] = why
            self._pool.submit(self._key(member, number), job, deadline_s)
        unconfirmed.clear()

    def _measured_again(self, number: int, result: JobResult) -> None:
        found: dict[str, Any] = {GPU: self._pool.names[result.member], "because": self._why.pop(number)}
        if isinstance(result.value, Evaluation):
            found |= {"outcome": result.value.outcome.value, "time_us": result.value.time_us}
        else:
            found["outcome"] = "lost"
        self._remeasured.put((number, found))
