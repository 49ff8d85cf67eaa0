"""Whether the times of several executors, one a GPU, stay comparable.

Each times the same references when it joins, and the first of them from time to time: one that drifts from its own
first times, by every reference, is set aside, and what it measured since its last good check is measured again by
another. What was answered stays answered; the second time is kept beside it.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evokern.events import told
from evokern.study.trial import Evaluation, Outcome
from evokern.workers.jobs import JobResult
from evokern.workers.members import Forwarding, MemberPool

GPU = "gpu"
"""Key of the evidence that names the executor that measured a trial, where a search has several."""
MOST_DRIFT = 0.02
"""Share by which a reference's time may leave its first one: twice what two GPUs of one model differ by."""
CHECK_PERIOD_S = 60.0
"""Seconds of work between two checks of an executor."""
_FIRST_OWN_KEY = -1000
"""Key of the first job of ours, and the others' below it: no trial's number, nor that of a job run alone."""


@dataclass(frozen=True)
class Reference:
    """Something that takes as long as before on an executor that works as before."""

    name: str
    """What it is, for messages: a baseline's name, or `the default candidate`."""
    job: Any
    """What an executor answers with something that `time_us` reads."""
    time_us: Callable[[Any], float | None]
    """The time in such an answer, µs; None where there is none."""


@dataclass(frozen=True)
class Calibration:
    """What executors are compared by."""

    references: Sequence[Reference]
    """The first is timed from time to time, each further one only while those before it are beyond the bound.

    A library's call alone would not do: cuDNN's attention took 9.38 µs on an H100 at a search's start and 9.95 a minute
    later, twice in a row, while the 192 candidates measured in between took within .5 % of that on another GPU.
    """
    deadline_s: float
    """Seconds that one of them may take."""
    proof: Any = None
    """What an executor that joins later has to do first, without an error."""


@dataclass
class Checks:
    """What is known of an executor's times."""

    first_us: list[float] = field(default_factory=list)
    """What each reference took when it joined, µs; those that it has timed so far."""
    checked_at: float = 0.0
    checking: bool = False
    proving: bool = False
    aside: bool = False
    beyond: list[str] = field(default_factory=list)
    """What of the references was beyond the bound in the check that is under way, in words."""
    since: dict[int, tuple[Any, float]] = field(default_factory=dict)
    """Trial → job and deadline, of those that it measured since its last good check."""


class Executors(Forwarding):
    """Driven by one thread, as a `WorkerPool` is, and waited for by `evokern.workers.pool.wait`."""

    def __init__(self, pool: MemberPool) -> None:
        """Watch a pool of executors.

        Args:
            pool: who measures; it stays its owner's.
        """
        super().__init__(pool)
        self.checks = [Checks() for _ in pool.names]
        """What is known of each."""
        self._asked: dict[int, tuple[Any, float]] = {}
        self._calibration: Calibration | None = None
        self._own: dict[int, tuple[int, int | None]] = {}
        self._next_own = _FIRST_OWN_KEY
        self._why: dict[int, str] = {}
        self._remeasured: queue.SimpleQueue[tuple[int, Mapping[str, Any]]] = queue.SimpleQueue()

    def compare_by(self, calibration: Calibration, first_us: Mapping[int, Sequence[float]]) -> None:
        """Check the executors from now on.

        Args:
            calibration: what each of them times.
            first_us: what each reference took, µs, by place; those that are missing join when they have timed them.
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
        """What each is called."""
        return self._pool.names

    @property
    def states(self) -> Sequence[str]:
        """What keeps each from working."""
        return self._pool.states

    def remeasured(self) -> dict[int, Mapping[str, Any]]:
        """Return what was measured a second time since the last call, by trial; any thread may ask."""
        found: dict[int, Mapping[str, Any]] = {}
        while not self._remeasured.empty():
            number, one = self._remeasured.get()
            found[number] = one
        return found

    def advance(self, readable: Iterable[object]) -> list[JobResult]:
        """Take in what the workers sent, and check who is due (`wait` calls this).

        Raises:
            EvokernError: no executor is left; with the last one's error.
        """
        results = [kept for one in super().advance(readable) if (kept := self._taken(one)) is not None]
        self._check_those_due()
        return results

    def _taken(self, result: JobResult) -> JobResult | None:
        """Return a trial's result with the name of who gave it; None where it was a job of ours."""
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
            self.checks[member].since[result.key] = asked
            if self.checks[member].aside:
                self._measure_again(member, f"{self._pool.names[member]} was set aside")
        evidence = {**result.value.evidence, GPU: self._pool.names[member]}
        return replace(result, value=replace(result.value, evidence=evidence))

    def _key(self, member: int, number: int | None) -> int:
        self._next_own -= 1
        self._own[self._next_own] = member, number
        return self._next_own

    # ---- checks

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
        """Have an executor time the reference at a place."""
        assert self._calibration is not None
        self.checks[member].checking = True
        job = self._calibration.references[place].job
        self._pool.submit(self._key(member, None), job, self._calibration.deadline_s, member)

    def _checked(self, member: int, result: JobResult) -> None:
        """Take in a reference's time."""
        assert self._calibration is not None
        one, references, done = self.checks[member], self._calibration.references, result.status == "done"
        if one.proving and done:
            one.proving = False
            self._time(member, 0)
        elif len(one.first_us) < len(references):
            self._joins(member, result)
        else:
            reference, first_us = references[len(one.beyond)], one.first_us[len(one.beyond)]
            time_us = reference.time_us(result.value) if done else None
            if time_us is not None and abs(time_us / first_us - 1) <= MOST_DRIFT:
                one.since.clear()
            else:
                took = "could not be measured any more" if time_us is None else f"took {time_us:.4g} µs"
                one.beyond.append(f"{reference.name} {took}, and {first_us:.4g} when it joined")
                if len(one.beyond) < len(references):
                    self._time(member, len(one.beyond))
                    return
                self._set_aside(member, "; ".join(one.beyond))
            one.checking, one.checked_at, one.beyond = False, time.monotonic(), []

    def _joins(self, member: int, result: JobResult) -> None:
        """Take in a first time; with the last of them the executor works."""
        assert self._calibration is not None
        one, references, name = self.checks[member], self._calibration.references, self._pool.names[member]
        one.checking, one.checked_at = False, time.monotonic()
        time_us = references[len(one.first_us)].time_us(result.value) if result.status == "done" else None
        if time_us is None:
            why = result.value if result.status != "done" else "it cannot be compared"
            told("gpu_refused", f"{name} does not join: {why}", logging.WARNING, gpu=name)
            return
        one.first_us.append(time_us)
        if len(one.first_us) < len(references):
            self._time(member, len(one.first_us))
            return
        message = f"{name} joins: {references[0].name} takes {one.first_us[0]:.4g} µs there"
        told("gpu_joins", message, logging.WARNING, gpu=name, reference_us=one.first_us[0])
        self._pool.readmit(member)

    def _set_aside(self, member: int, why: str) -> None:
        if len(self._pool.working) == 1:
            return  # nobody to compare it with
        self._pool.set_aside(member)
        self.checks[member].aside = True
        name, count = self._pool.names[member], len(self.checks[member].since)
        message = f"{name} is set aside: {why}; {count} measured since its last good check are measured again"
        told("gpu_set_aside", message, logging.WARNING, gpu=name, trials=count)
        self._measure_again(member, f"{name} was set aside: {why}")

    def _measure_again(self, member: int, why: str) -> None:
        since = self.checks[member].since
        for number, (job, deadline_s) in since.items():
            self._why[number] = why
            self._pool.submit(self._key(member, number), job, deadline_s)
        since.clear()

    def _measured_again(self, number: int, result: JobResult) -> None:
        found: dict[str, Any] = {GPU: self._pool.names[result.member], "because": self._why.pop(number)}
        if isinstance(result.value, Evaluation):
            found |= {"outcome": result.value.outcome.value, "time_us": result.value.time_us}
        else:
            found["outcome"] = "lost"
        self._remeasured.put((number, found))
