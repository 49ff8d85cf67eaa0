"""Pools that span the hosts of a Ray cluster: one actor a host, which runs that host's workers.

Ray places the actors, restarts one that died, and tells of a host that is gone; it repeats no job. What was asked of an
actor that died is asked once more of another. Where that one dies too, and its host is still there, the job's trial is
lost: the actor may have died of it. No more is asked of a host than its workers can hold, so that neither programs nor
proposals pile up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from evokern.cluster.host import Host, HostPlan, files_of, require_alike, versions
from evokern.cluster.request import RayRequest
from evokern.errors import DeviceError, EvokernError
from evokern.study.discovery import load_kernel
from evokern.wording import first_line
from evokern.workers.backend import HostRoom, Plans
from evokern.workers.jobs import JobResult

_LOGGER = logging.getLogger("evokern")
_START_S = 180.0
"""Seconds that actors may take to start at first: Ray starts a process for each, which imports torch."""
_CONNECT_S = 5.0
_CURRENT = Path("/tmp/ray/ray_current_cluster")
"""Where Ray keeps the address of the cluster that this machine belongs to (`ray start`)."""
_LATE_S = 60.0
"""Seconds beyond its deadlines after which a host that does not answer is taken for hung, and its actor ended."""
_MOST_DEATHS = 2
"""Actors that die of a job, or beside it, after which its trial is lost."""
_TICKETS = 1 << 20
"""Workers of one host are numbered from a multiple of it, so that each has a name of its own in the cluster."""


@dataclass
class _Asked:
    """A job, with what became of it so far."""

    key: int
    job: Any
    deadline_s: float
    deaths: int = 0
    began: float = 0.0
    elsewhere_than: int = -1


@dataclass(eq=False)
class _Host:
    """An actor, seen from the driver."""

    index: int
    actor: Any
    node: str
    name: str
    up: bool = False
    gone: str = ""
    lost_at: float = 0.0
    reports: Mapping[str, Any] = field(default_factory=dict)
    life: int = 0
    """How often its actor was replaced: answers of an earlier one are of no more use."""


class RayBackend:
    """The hosts of a Ray cluster."""

    def __init__(self, request: RayRequest, preload: Sequence[str]) -> None:
        """Connect, and see what there is.

        Args:
            request: which cluster, and how much of it.
            preload: modules that hosts import once for all workers.

        Raises:
            DeviceError: Ray is not installed, the address does not answer, or there is no processor.
        """
        self._preload = tuple(preload)
        self._ray = _ray()
        self._began_here = not self._ray.is_initialized()
        if self._began_here:
            _require_answer(request.address)
            _connect(self._ray, request.address)
        nodes = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
        self._shares = _shares([(node, int(node["Resources"]["CPU"])) for node in nodes], request.num_cpus)
        if not self._shares:
            self.close()
            raise DeviceError(f"the Ray cluster at {request.address} has no processor for a search")
        self._hosts: list[_Host] = []
        self._wakers: list[int] = []
        self._pools: dict[str, RayPool] = {}

    @property
    def cores(self) -> int:
        """Processors of all hosts together."""
        return sum(cores for _, cores in self._shares)

    def open(self, plans: Plans, folder: Path) -> Mapping[str, RayPool]:
        """Start an actor on each host and wait until one of them answers; the others join when they do.

        Raises:
            DeviceError: none starts, or their versions differ from this machine's.
        """
        files = files_of(load_kernel(folder).files())
        made = self._ray.remote(Host)
        sizes: dict[str, list[tuple[int, int]]] = {}
        for index, (node, cores) in enumerate(self._shares):
            memory = node["Resources"].get("memory")
            found = plans(HostRoom(cores, None if memory is None else int(memory)))
            for name, plan in found.items():
                sizes.setdefault(name, []).append((plan.size, plan.depth))
            affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
            actor = made.options(
                num_cpus=cores,
                max_restarts=-1,
                max_task_retries=0,  # a job that died with its actor is asked again by us, and never unseen
                max_concurrency=2 + sum(plan.size * plan.depth for plan in found.values()),
                scheduling_strategy=affinity,
            ).remote(HostPlan(self._preload, found, folder.name, files))
            name = f"{node['NodeManagerHostname']}/{index}"
            self._hosts.append(_Host(index, actor, node["NodeID"], name))
        cluster = _Cluster(self._ray, self._hosts)
        self._pools = {name: RayPool(name, cluster, of) for name, of in sizes.items()}
        for host in self._hosts:
            cluster.expect(host)
        self._await_first()
        return self._pools

    def _await_first(self) -> None:
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            up = [host for host in self._hosts if host.up]
            if len(up) == len(self._hosts) - sum(bool(host.gone) for host in self._hosts) and up:
                break
            if all(host.gone for host in self._hosts):
                break
            time.sleep(0.05)
        up = [host for host in self._hosts if host.up]
        if not up:
            why = next((host.gone for host in self._hosts if host.gone), f"none answered within {_START_S:g} s")
            raise DeviceError(f"no host of the Ray cluster can work: {why}")
        own = {"this machine": versions()}
        require_alike(own | {host.name: host.reports["versions"] for host in up})
        compilers = {host.name: (host.reports["reports"].get("compile") or {}) for host in up}
        require_alike(compilers)
        _LOGGER.info("%s of %s hosts are ready", len(up), len(self._hosts))

    def close(self) -> None:
        """End the actors, and the connection where it was begun here; safe to call twice."""
        for host in getattr(self, "_hosts", []):
            with contextlib.suppress(Exception):
                self._ray.kill(host.actor)
        for pool in getattr(self, "_pools", {}).values():
            pool.close()
        self._hosts, self._pools = [], {}
        if self._began_here:
            with contextlib.suppress(Exception):
                self._ray.shutdown()


class _Cluster:
    """Who is up, for all pools."""

    def __init__(self, ray: Any, hosts: Sequence[_Host]) -> None:
        self.ray, self.hosts = ray, hosts
        self.changed: list[Any] = []
        self._mutex = threading.Lock()

    def expect(self, host: _Host) -> None:
        """Wait, unseen, until a host's actor answers, at first or after Ray replaced it."""
        life = host.life

        def answered(future: Any) -> None:
            if host.life != life:
                return
            try:
                host.reports = future.result()
            except Exception as error:
                if self._comes_again(error):
                    timer = threading.Timer(0.2, lambda: self.expect(host))
                    timer.daemon = True
                    timer.start()
                    return
                host.gone = first_line(error)
                _LOGGER.warning("host %s cannot work: %s", host.name, host.gone)
            else:
                if life:
                    took = time.monotonic() - host.lost_at
                    _LOGGER.warning("host %s is back after %.1f s", host.name, took)
                host.up = True
            for wake in self.changed:
                wake()

        try:
            host.actor.report.remote().future().add_done_callback(answered)
        except Exception as error:
            host.gone = first_line(error)

    def _comes_again(self, error: BaseException) -> bool:
        """Tell whether Ray starts an actor again: one that raised while it was made is dead for good."""
        kinds = self.ray.exceptions
        ended = isinstance(error, kinds.ActorUnavailableError | kinds.ActorDiedError)
        return ended and "creation task" not in str(error)

    def down(self, host: _Host, why: str) -> None:
        """Note that a host's actor died; it is expected again."""
        with self._mutex:
            if not host.up:
                return
            host.up = False
            host.life += 1
            host.lost_at = time.monotonic()
        _LOGGER.warning("host %s is lost (%s); others go on with what it held", host.name, why)
        self.expect(host)

    def told(self, error: BaseException) -> str:
        """Return in a clause what became of an actor."""
        if isinstance(error, self.ray.exceptions.ActorUnavailableError):
            return "its actor ended, or cannot be reached"
        if isinstance(error, self.ray.exceptions.ActorDiedError):
            return "its actor died"
        return first_line(error)

    def alive(self, node: str) -> bool:
        """Tell whether a host is there, as far as Ray knows."""
        with contextlib.suppress(Exception):
            return any(one["NodeID"] == node and one["Alive"] for one in self.ray.nodes())
        return False

    def end(self, host: _Host) -> None:
        """End an actor that does not answer; Ray starts another."""
        with contextlib.suppress(Exception):
            self.ray.kill(host.actor, no_restart=False)


class RayPool:
    """Workers of one kind on all hosts; driven by one thread, as a `WorkerPool` is."""

    def __init__(self, name: str, cluster: _Cluster, sizes: Sequence[tuple[int, int]]) -> None:
        """Make a pool.

        Args:
            name: by which hosts know it.
            cluster: its hosts.
            sizes: of each host, workers and jobs that each is given at a time.
        """
        self._name = name
        self._cluster = cluster
        self._sizes = sizes
        self._backlog: deque[_Asked] = deque()
        self._held: list[dict[int, _Asked]] = [{} for _ in sizes]
        self._answers: queue.SimpleQueue[tuple[int, int, _Asked, Any]] = queue.SimpleQueue()
        read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._reader = Connection(read, writable=False)
        cluster.changed.append(self._wake)

    @property
    def size(self) -> int:
        """Workers on all hosts."""
        return sum(size for size, _ in self._sizes)

    @property
    def ready_report(self) -> Any:
        """What the first handler of the first host that answered found."""
        reports = (host.reports.get("reports", {}).get(self._name) for host in self._cluster.hosts)
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

    def submit(self, key: int, job: Any, deadline_s: float) -> None:
        """Queue a job; its deadline runs from the moment a worker takes it up."""
        self._backlog.append(_Asked(key, job, deadline_s))
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
                host = self._cluster.hosts[index]
                self._cluster.end(host)
                del self._held[index][asked.key]
                results += self._died(index, host.life, asked, TimeoutError(f"no answer in {now - asked.began:.0f} s"))
        self._feed()
        return results

    def close(self) -> None:
        """Forget what is under way; safe to call twice."""
        self._backlog.clear()
        for held in self._held:
            held.clear()

    def _under_way(self) -> list[tuple[int, _Asked]]:
        return [(index, asked) for index, held in enumerate(self._held) for asked in held.values()]

    def _limit(self, index: int, asked: _Asked) -> float:
        _, depth = self._sizes[index]
        return asked.began + (depth + 1) * asked.deadline_s + _LATE_S

    def _told(self, index: int, asked: _Asked, answer: JobResult) -> JobResult:
        """Return a host's answer by the names and the clock of this machine."""
        began_s = time.monotonic() - answer.seconds
        return replace(answer, key=asked.key, began_s=began_s, worker=index * _TICKETS + answer.worker)

    def _died(self, index: int, life: int, asked: _Asked, error: BaseException) -> list[JobResult]:
        """Take in that an actor died, or could not do a job: asked once more elsewhere, or lost.

        Raises:
            EvokernError: the host's workers cannot be started, and no other host is left.
        """
        host = self._cluster.hosts[index]
        why = self._cluster.told(error)
        if isinstance(error, EvokernError):
            host.up, host.gone = False, why
            _LOGGER.warning("host %s cannot work any more: %s", host.name, why)
        elif host.life == life:
            self._cluster.down(host, why)
        if all(one.gone for one in self._cluster.hosts):
            raise DeviceError(f"no host of the Ray cluster can work any more: {why}")
        asked.deaths += self._cluster.alive(host.node) and not isinstance(error, EvokernError)
        if asked.deaths < _MOST_DEATHS:
            asked.elsewhere_than = index
            self._backlog.appendleft(asked)
            return []
        seconds = time.monotonic() - asked.began
        return [JobResult(asked.key, "lost", f"two actors died, the last one on {host.name}: {why}", seconds)]

    def _feed(self) -> None:
        while self._backlog:
            index = self._roomiest(self._backlog[0].elsewhere_than)
            if index is None:
                return
            asked, host = self._backlog.popleft(), self._cluster.hosts[index]
            asked.began = time.monotonic()
            self._held[index][asked.key] = asked
            self._ask(index, host.life, asked)

    def _roomiest(self, elsewhere_than: int) -> int | None:
        """Return the host with the smallest share of its places taken; another one than that, where there is one."""
        load = {
            index: len(self._held[index]) / (size * depth)
            for index, (size, depth) in enumerate(self._sizes)
            if self._cluster.hosts[index].up and len(self._held[index]) < size * depth
        }
        others = {index: share for index, share in load.items() if index != elsewhere_than}
        more_are_up = any(host.up for host in self._cluster.hosts if host.index != elsewhere_than)
        chosen = others if more_are_up else load
        return min(chosen, key=chosen.__getitem__, default=None)

    def _ask(self, index: int, life: int, asked: _Asked) -> None:
        def answered(future: Any) -> None:
            try:
                found = future.result()
            except Exception as error:
                found = (
                    getattr(error, "cause", None) if isinstance(getattr(error, "cause", None), EvokernError) else error
                )
            self._answers.put((index, life, asked, found))
            self._wake()

        try:
            host = self._cluster.hosts[index]
            reference = host.actor.do.remote(self._name, asked.job, asked.deadline_s)
            reference.future().add_done_callback(answered)
        except Exception as error:
            self._answers.put((index, life, asked, error))
            self._wake()

    def _wake(self) -> None:
        # A full pipe already wakes.
        with contextlib.suppress(OSError):
            os.write(self._write, b"x")


def _shares(nodes: Sequence[tuple[Mapping[str, Any], int]], wanted: int | None) -> list[tuple[Mapping[str, Any], int]]:
    """Return how many processors of each host to take: all, or the wanted number spread over as many as there are."""
    if wanted is None or wanted >= sum(cores for _, cores in nodes):
        return list(nodes)
    taken = [0] * len(nodes)
    while sum(taken) < wanted:
        open_ = [index for index, (_, cores) in enumerate(nodes) if taken[index] < cores]
        taken[min(open_, key=lambda index: taken[index])] += 1
    return [(node, cores) for (node, _), cores in zip(nodes, taken, strict=True) if cores]


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise DeviceError(
            f"a Ray cluster is asked for, and Ray cannot be imported ({error}): pip install 'evokern[ray]'"
        ) from error
    return ray


def _require_answer(address: str) -> None:
    """Require that somebody listens at an address: Ray itself tries for minutes, and cannot be interrupted meanwhile.

    Raises:
        DeviceError: nobody does, or no cluster was begun on this machine.
    """
    place = address
    if address == "auto":
        try:
            place = _CURRENT.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DeviceError(
                "no Ray cluster runs on this machine: `ray start --head` begins one, `ray start --address HOST:PORT` "
                "joins one; or name one with --ray-address HOST:PORT"
            ) from error
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise DeviceError(
            f"the Ray cluster at {place} does not answer: {error}; `ray start --head` begins one, and prints its "
            "address"
        ) from error


def _connect(ray: Any, address: str) -> None:
    """Connect to a cluster that runs; Ray's own handlers of signals do not stay.

    Raises:
        DeviceError: it does not take us.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)} if main else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, configure_logging=False)
    except Exception as error:
        raise DeviceError(
            f"the Ray cluster at {address} does not take this process: {first_line(error)}; `ray status` tells more"
        ) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.stdout.flush()
