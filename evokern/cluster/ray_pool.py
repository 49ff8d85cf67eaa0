"""One kind of workers on all hosts of a Ray cluster, as one pool."""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from evokern.cluster.ray_hosts import RayHost, RayHosts, cause_of
from evokern.errors import DeviceError, EvokernError
from evokern.wording import several
from evokern.workers.backend import PoolPlan
from evokern.workers.jobs import JobResult

START_S = 180.0
"""Seconds that actors may take to start at first: Ray starts a process for each, which imports torch."""
_LATE_S = 60.0
"""Seconds beyond its deadlines after which a host that does not answer is taken for hung, and its actor ended."""
_MOST_DEATHS = 2
"""Actors that die of a job, or beside it, after which its trial is lost."""
_TICKETS = 1 << 20
"""Workers of one host are numbered from a multiple of it, so that each has a name of its own in the cluster."""


@dataclass
class Asked:
    """A job, with what became of it so far."""

    key: int
    job: Any
    deadline_s: float
    deaths: int = 0
    began: float = 0.0
    life: int = 0
    """Of the host's actor that it was asked of."""
    elsewhere_than: int = -1
    """Place of the executor beside which it was last lost."""
    only: int | None = None
    """Place of the executor that is to do it, where that is not any."""


class RayPool:
    """Workers of one kind on all hosts; driven by one thread, as a `WorkerPool` is."""

    def __init__(self, name: str, cluster: RayHosts, members: Sequence[tuple[RayHost, PoolPlan]]) -> None:
        """Make a pool.

        Args:
            name: by which hosts know it.
            cluster: all hosts.
            members: those that have it, and what it is there.
        """
        self._name = name
        self._cluster = cluster
        self._hosts = [host for host, _ in members]
        self._places = [plan.size * plan.depth for _, plan in members]
        self._depths = [plan.depth for _, plan in members]
        self._size = sum(plan.size for _, plan in members)
        self._aside: set[int] = set()
        self._unheard: deque[JobResult] = deque()
        self._backlog: deque[Asked] = deque()
        self._held: list[dict[int, Asked]] = [{} for _ in members]
        self._answers: queue.SimpleQueue[tuple[int, int, Asked, Any]] = queue.SimpleQueue()
        read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._reader = Connection(read, writable=False)
        cluster.changed.append(self._wake)

    @property
    def size(self) -> int:
        """Workers on all hosts."""
        return self._size

    @property
    def names(self) -> list[str]:
        """What each host is called."""
        return [host.name for host in self._hosts]

    @property
    def working(self) -> list[int]:
        """Places of the hosts that work: up, neither set aside nor gone for good."""
        return [place for place, host in enumerate(self._hosts) if host.up and place not in self._aside]

    @property
    def states(self) -> list[str]:
        """What keeps each host from working, or how often it was lost."""
        return [self._state(place, host) for place, host in enumerate(self._hosts)]

    @property
    def held(self) -> list[Any]:
        """What each host has of its own for the pool; None where it has not answered."""
        return [host.reports.get("held", {}).get(self._name) for host in self._hosts]

    def set_aside(self, member: int) -> None:
        """Hand a host no more jobs but those for it alone."""
        self._aside.add(member)

    def readmit(self, member: int) -> None:
        """Hand jobs again to a host that was set aside."""
        self._aside.discard(member)

    def wait_ready(self, member: int) -> None:
        """Wait until a host has answered.

        Raises:
            DeviceError: it is gone for good, or does not answer.
        """
        host, end = self._hosts[member], time.monotonic() + START_S
        while not host.up:
            if host.gone or time.monotonic() > end:
                raise DeviceError(f"host {host.name} cannot work: {host.gone or 'it does not answer'}")
            time.sleep(0.05)

    def keep_spares(self) -> None:
        """Let each host keep as many warm spares as it has room for."""
        for host in self._hosts:
            host.warm_workers = True
            if host.up:
                host.actor.keep_spares.remote()

    @property
    def ready_report(self) -> Any:
        """What the first handler of the first host that answered found."""
        reports = (host.reports.get("reports", {}).get(self._name) for host in self._hosts)
        return next((report for report in reports if report is not None), None)

    @property
    def connections(self) -> list[Connection]:
        """What to listen to."""
        return [self._reader]

    def overdue(self) -> frozenset[int]:
        """Nothing holds others back here."""
        return frozenset()

    def next_deadline(self) -> float | None:
        """Return the earliest moment (monotonic clock) at which a host counts as hung."""
        return min((self._limit(index, asked) for index, asked in self._under_way()), default=None)

    def grant(self, pause_s: float) -> None:
        """Grant hosts time in which this process was stopped."""
        for _, asked in self._under_way():
            asked.began += pause_s

    def submit(self, key: int, job: Any, deadline_s: float, only: int | None = None) -> None:
        """Queue a job, for one of them alone or for any; its deadline runs from the moment a worker takes it up."""
        asked = Asked(key, job, deadline_s, only=only)
        if only is None:
            self._backlog.append(asked)
        else:
            self._backlog.appendleft(asked)
        self._feed()

    def advance(self, readable: Iterable[object]) -> list[JobResult]:
        """Take in answers, end hosts that are far beyond their deadlines, hand out what waits.

        Raises:
            EvokernError: no host can work any more.
        """
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader.fileno(), 4096):
                pass
        results = []
        with contextlib.suppress(queue.Empty):
            while True:
                index, life, asked, answer = self._answers.get_nowait()
                if self._held[index].pop(asked.key, None) is not asked:
                    continue  # asked of another one meanwhile
                if isinstance(answer, JobResult):
                    results.append(self._told(index, asked, answer))
                else:
                    results += self._died(index, life, asked, answer)
        now = time.monotonic()
        for index, asked in list(self._under_way()):
            if now > self._limit(index, asked):
                host = self._hosts[index]
                if host.life == asked.life:  # else another one has its place meanwhile
                    self._cluster.end(host)
                del self._held[index][asked.key]
                results += self._died(index, asked.life, asked, TimeoutError(f"no answer in {now - asked.began:.0f} s"))
        self._feed()
        while self._unheard:
            results.append(self._unheard.popleft())
        return results

    def close(self) -> None:
        """Forget what is under way; safe to call twice."""
        self._backlog.clear()
        for held in self._held:
            held.clear()

    def _state(self, place: int, host: RayHost) -> str:
        if host.gone:
            return "gone"
        if not host.up:
            return "lost" if host.life else "starts"
        if place in self._aside:
            return "set aside"
        return f"lost {several(host.life, 'time')}, back" if host.life else ""

    def _under_way(self) -> list[tuple[int, Asked]]:
        return [(index, asked) for index, held in enumerate(self._held) for asked in held.values()]

    def _limit(self, index: int, asked: Asked) -> float:
        return asked.began + (self._depths[index] + 1) * asked.deadline_s + _LATE_S

    def _told(self, index: int, asked: Asked, answer: JobResult) -> JobResult:
        """Return a host's answer by the names and the clock of this machine."""
        began_s = time.monotonic() - answer.seconds
        worker = self._hosts[index].index * _TICKETS + answer.worker
        return replace(answer, key=asked.key, began_s=began_s, worker=worker, member=index)

    def _died(self, index: int, life: int, asked: Asked, error: BaseException) -> list[JobResult]:
        """Take in that an actor died, or could not do a job: asked once more elsewhere, or lost.

        Raises:
            EvokernError: the host's workers cannot be started, and no other host is left.
        """
        host = self._hosts[index]
        why = self._cluster.why(error)
        if isinstance(error, EvokernError):
            self._cluster.give_up(host, why, "cannot work any more")
        elif host.life == life:
            self._cluster.down(host, why)
        if all(one.gone for one in self._hosts):
            raise DeviceError(f"no host of the Ray cluster can work any more: {why}")
        asked.deaths += self._cluster.alive(host.node) and not isinstance(error, EvokernError)
        if asked.deaths < _MOST_DEATHS:
            asked.elsewhere_than = index
            self._backlog.appendleft(asked)
            return []
        seconds = time.monotonic() - asked.began
        return [JobResult(asked.key, "lost", f"two actors died, the last one on {host.name}: {why}", seconds)]

    def _feed(self) -> None:
        waiting, self._backlog = self._backlog, deque()
        full = False
        for asked in waiting:
            # Once a job that anybody may do finds no place, those behind it find none either.
            index = None if full and asked.only is None else self._place_for(asked)
            if index is not None:
                asked.began, asked.life = time.monotonic(), self._hosts[index].life
                self._held[index][asked.key] = asked
                self._ask(index, asked.life, asked)
            elif asked.only is not None and self._hosts[asked.only].gone:
                host = self._hosts[asked.only]
                self._unheard.append(JobResult(asked.key, "lost", f"{host.name} is gone: {host.gone}", 0.0))
                self._wake()
            else:
                full = full or asked.only is None
                self._backlog.append(asked)

    def _place_for(self, asked: Asked) -> int | None:
        """Return who takes a job up now: the one with the smallest share of its places taken; None while nobody can.

        Where there is a choice it is another one than that beside which the job was lost.
        """
        if asked.only is not None:
            return asked.only if self._hosts[asked.only].up else None
        up = self.working
        others = [index for index in up if index != asked.elsewhere_than] or up
        shares = {index: len(self._held[index]) / self._places[index] for index in others}
        return min((index for index in others if shares[index] < 1), key=shares.__getitem__, default=None)

    def _ask(self, index: int, life: int, asked: Asked) -> None:
        def answered(future: Any) -> None:
            try:
                found = future.result()
            except Exception as error:
                found = cause_of(error)
            self._answers.put((index, life, asked, found))
            self._wake()

        try:
            host = self._hosts[index]
            reference = host.actor.do.remote(self._name, asked.job, asked.deadline_s)
            reference.future().add_done_callback(answered)
        except Exception as error:
            self._answers.put((index, life, asked, error))
            self._wake()

    def _wake(self) -> None:
        # A full pipe already wakes.
        with contextlib.suppress(OSError):
            os.write(self._write, b"x")
