"""Several executors as one pool: any of them takes a job, unless the job is for one of them alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, Protocol

from evokern.errors import EvokernError
from evokern.events import told
from evokern.wording import first_line
from evokern.workers.backend import Holder, ReportingPool
from evokern.workers.jobs import JobResult
from evokern.workers.pool import WorkerPool


class MemberPool(ReportingPool, Protocol):
    """Executors that are told apart; a result's `member` is the place of the one that gave it."""

    @property
    def names(self) -> Sequence[str]:
        """What each is called, for messages and evidence."""

    @property
    def states(self) -> Sequence[str]:
        """What keeps each from working, or happened to it, in a word or two; empty where it works as from the first."""

    @property
    def held(self) -> Sequence[Any]:
        """What the host of each has of its own for it, as its `Holder` reports; None until that is known."""

    @property
    def working(self) -> Sequence[int]:
        """Places of those that work: neither set aside nor lost for good."""

    def submit(self, key: int, job: Any, deadline_s: float, only: int | None = None) -> None:
        """Queue a job.

        Args:
            key: the job's key.
            job: what to do.
            deadline_s: seconds, from the moment a worker takes it up.
            only: place of the executor that is to do it; it is `lost` where that one is lost for good.
        """

    def set_aside(self, member: int) -> None:
        """Hand an executor no more jobs but those for it alone."""

    def readmit(self, member: int) -> None:
        """Hand jobs again to an executor that was set aside."""

    def wait_ready(self, member: int) -> None:
        """Wait until an executor's worker has started.

        Raises:
            EvokernError: it cannot start.
        """

    def keep_spares(self) -> None:
        """Let each executor keep as many warm spares as its host has room for."""


class Forwarding:
    """A pool in front of one whose executors are told apart."""

    def __init__(self, pool: MemberPool) -> None:
        """Stand in front of a pool, which stays its owner's."""
        self._pool = pool

    @property
    def connections(self) -> list[Connection]:
        """What to listen to."""
        return self._pool.connections

    def advance(self, readable: Iterable[object]) -> list[JobResult]:
        """Take in what the workers sent."""
        return self._pool.advance(readable)

    def overdue(self) -> frozenset[int]:
        """Return the keys of jobs that take so long that nobody waits for them."""
        return self._pool.overdue()

    def next_deadline(self) -> float | None:
        """Return the earliest moment (monotonic clock) at which a worker must be ended."""
        return self._pool.next_deadline()

    def grant(self, pause_s: float) -> None:
        """Grant the workers time in which this process was stopped."""
        self._pool.grant(pause_s)


class OneMember(Forwarding):
    """One executor of several, as a pool of its own."""

    def __init__(self, pool: MemberPool, member: int) -> None:
        """Make it.

        Args:
            pool: all of them.
            member: its place.
        """
        super().__init__(pool)
        self._member = member

    def submit(self, key: int, job: Any, deadline_s: float) -> None:
        """Queue a job for it alone."""
        self._pool.submit(key, job, deadline_s, self._member)

    @property
    def held(self) -> Any:
        """What its host has of its own for it; None until that is known."""
        return self._pool.held[self._member]


@dataclass
class LocalMember:
    """A worker pool of this machine, and what it holds here."""

    name: str
    """What it is called."""
    pool: WorkerPool
    """What works."""
    holder: Holder | None = None
    """What this machine has of its own for it."""
    aside: bool = False
    lost: bool = False
    held: dict[int, tuple[Any, float, int | None]] = field(default_factory=dict)
    """Key → job, deadline and for whom alone, of what it has and has not answered."""


class LocalMembers:
    """Pools of this machine as one; a job goes to the one that has the fewest."""

    def __init__(self, members: Sequence[LocalMember], depth: int) -> None:
        """Make one pool of several.

        Args:
            members: the pools, which stay their owner's.
            depth: jobs that each is given at a time.
        """
        self._members = tuple(members)
        self._depth = depth
        self._backlog: list[tuple[int, Any, float]] = []
        self._results: list[JobResult] = []

    @property
    def names(self) -> list[str]:
        """What each is called."""
        return [member.name for member in self._members]

    @property
    def states(self) -> list[str]:
        """What keeps each from working."""
        return ["lost" if member.lost else "set aside" if member.aside else "" for member in self._members]

    @property
    def held(self) -> list[Any]:
        """What this machine has of its own for each."""
        return [member.holder and member.holder.report() for member in self._members]

    @property
    def working(self) -> list[int]:
        """Places of those that work."""
        return [place for place, member in enumerate(self._members) if not member.aside]

    @property
    def connections(self) -> list[Connection]:
        """What to listen to."""
        return [connection for member in self._members for connection in member.pool.connections]

    @property
    def ready_report(self) -> Any:
        """What the first worker found."""
        return self._members[0].pool.ready_report

    def overdue(self) -> frozenset[int]:
        """Return the keys of jobs that take so long that nobody waits for them."""
        return frozenset[int]().union(*(member.pool.overdue() for member in self._members))

    def next_deadline(self) -> float | None:
        """Return the earliest moment (monotonic clock) at which a worker must be ended."""
        if self._results:
            return 0.0
        deadlines = (member.pool.next_deadline() for member in self._members)
        return min((moment for moment in deadlines if moment is not None), default=None)

    def grant(self, pause_s: float) -> None:
        """Grant the workers time in which this process was stopped."""
        for member in self._members:
            member.pool.grant(pause_s)

    def submit(self, key: int, job: Any, deadline_s: float, only: int | None = None) -> None:
        """Queue a job, for one of them alone or for any."""
        if only is None:
            self._backlog.append((key, job, deadline_s))
            self._feed()
        else:
            self._hand(self._members[only], key, job, deadline_s, only)

    def set_aside(self, member: int) -> None:
        """Hand one no more jobs but those for it alone."""
        self._members[member].aside = True

    def readmit(self, member: int) -> None:
        """Hand jobs again to one that was set aside."""
        self._members[member].aside = False

    def wait_ready(self, member: int) -> None:
        """Wait until a worker of one has started.

        Raises:
            EvokernError: it cannot start.
        """
        self._members[member].pool.wait_ready()

    def keep_spares(self) -> None:
        """Let each keep as many warm spares as there is room for."""
        for member in self._members:
            if member.holder is not None:
                member.pool.keep_spares(member.holder.spares(member.pool.ready_report))

    def advance(self, readable: Iterable[object]) -> list[JobResult]:
        """Take in what the workers sent, and hand out what waits.

        Raises:
            EvokernError: no executor is left; with the last one's error.
        """
        readable = list(readable)
        results, self._results = self._results, []
        for place, member in enumerate(self._members):
            try:
                answered = member.pool.advance(readable)
            except EvokernError as error:
                self._lost(member, error)
                continue
            for one in answered:
                member.held.pop(one.key, None)
                seen = one if member.holder is None else member.holder.told(one, member.pool.processes)
                results.append(replace(seen, member=place))
        self._feed()
        return results

    def _hand(self, member: LocalMember, key: int, job: Any, deadline_s: float, only: int | None) -> None:
        member.held[key] = job, deadline_s, only
        member.pool.submit(key, job, deadline_s)

    def _feed(self) -> None:
        while self._backlog:
            working = [self._members[place] for place in self.working]
            member = min(working, key=lambda one: one.pool.pending, default=None)
            if member is None or member.pool.pending >= self._depth:
                return
            self._hand(member, *self._backlog.pop(0), None)

    def _lost(self, member: LocalMember, error: EvokernError) -> None:
        """Go on without one whose workers cannot be started any more: others take what it held.

        Raises:
            EvokernError: it was the last one.
        """
        if member.aside and not member.held:
            return
        member.aside = member.lost = True
        if not self.working:
            raise error
        member.pool.close()
        why = first_line(error)
        message = f"{member.name} is lost: {why}; the others go on with what it held"
        told("gpu_lost", message, logging.WARNING, gpu=member.name)
        again = []
        for key, (job, deadline_s, only) in sorted(member.held.items()):
            if only is None:
                again.append((key, job, deadline_s))
            else:
                self._results.append(JobResult(key, "lost", f"{member.name} is lost: {why}", 0.0))
        self._backlog[:0] = again
        member.held.clear()
