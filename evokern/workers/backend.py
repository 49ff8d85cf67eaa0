"""Where pools of workers run: on this machine, or on the hosts of a cluster (`evokern.cluster`)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from evokern.workers.fork_server import ForkServer
from evokern.workers.jobs import JobPool, JobResult, WorkerSpec
from evokern.workers.pool import WorkerPool


class Holder(Protocol):
    """What a host has of its own for a pool while that is open: a GPU, say."""

    def spec(self, spec: WorkerSpec) -> WorkerSpec:
        """Return what workers run here."""

    def report(self) -> Any:
        """Return what it is; pickles."""

    def spares(self, report: Any) -> int:
        """Return how many warm spares there is room for.

        Args:
            report: the first handler's `ready_report`.
        """

    def told(self, result: JobResult, processes: Sequence[int]) -> JobResult:
        """Return a result with what was seen here meanwhile.

        Args:
            result: of a worker of the pool.
            processes: the pool's workers.
        """

    def release(self) -> None:
        """Give it back; safe to call twice."""


@dataclass(frozen=True)
class PoolPlan:
    """A pool of workers on one host."""

    spec: WorkerSpec
    """What they run."""
    size: int
    """Workers that work."""
    depth: int = 1
    """Jobs that a worker is given at a time."""
    patience_s: float = math.inf
    """As for `WorkerPool`."""
    hold: Callable[[], Holder] | None = None
    """Takes what the host has of its own for the pool; raises `DeviceError` where it cannot."""


@dataclass(frozen=True)
class HostRoom:
    """What a host has for a study."""

    cores: int
    """Processors."""
    memory_bytes: int | None
    """Memory, bytes; None where that is not known."""


Plans = Callable[[HostRoom], Mapping[str, PoolPlan]]
"""Makes a host's pools by name, the same names on every host."""


class ReportingPool(JobPool, Protocol):
    """A pool that tells what its first handler found."""

    @property
    def ready_report(self) -> Any:
        """What the first handler offered as its `ready_report`; None before one has started."""


class Backend(Protocol):
    """Opens pools; closing it ends their workers."""

    @property
    def cores(self) -> int:
        """Processors of all hosts together."""

    def open(self, plans: Plans, folder: Path) -> Mapping[str, ReportingPool]:
        """Open pools that span all hosts.

        Args:
            plans: what each host gets.
            folder: the kernel's folder, which hosts that do not share this machine's files are sent.

        Raises:
            DeviceError: a host cannot work as asked.
        """

    def close(self) -> None:
        """End every worker; safe to call twice."""


class LocalBackend:
    """This machine."""

    def __init__(self, preload: Sequence[str], cores: int | None = None) -> None:
        """Start the process that forks workers, which imports while the caller goes on.

        Args:
            preload: as for `ForkServer`.
            cores: processors; None takes those that this process may use.
        """
        self.cores = cores or len(os.sched_getaffinity(0))
        """Processors."""
        self._server: ForkServer | None = ForkServer(preload)
        self._pools: list[WorkerPool] = []

    def open(self, plans: Plans, folder: Path) -> Mapping[str, WorkerPool]:
        """Open pools; the folder stays where it is."""
        assert self._server is not None
        found = {}
        for name, plan in plans(HostRoom(self.cores, None)).items():
            found[name] = WorkerPool(
                self._server, plan.spec, size=plan.size, depth=plan.depth, patience_s=plan.patience_s
            )
            self._pools.append(found[name])
        return found

    def close(self) -> None:
        """End every worker; safe to call twice."""
        for pool in self._pools:
            pool.close()
        self._pools.clear()
        if self._server is not None:
            self._server.close()
            self._server = None
