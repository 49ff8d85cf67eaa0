"""Backends of worker pools: this machine, or the hosts of a cluster (`evokern.cluster`)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from evokern.declaration.kernel import Kernel
from evokern.workers.fork_server import ForkServer
from evokern.workers.jobs import JobPool, JobResult, WorkerSpec
from evokern.workers.pool import WorkerPool


class HostResource(Protocol):
    """Resource that a host reserves for a pool while the pool is open, such as a GPU."""

    def spec(self, spec: WorkerSpec) -> WorkerSpec:
        """Return a worker specification that is adapted to this resource."""

    def report(self) -> Any:
        """Return a description of the resource, which can be pickled."""

    def spares(self, report: Any) -> int:
        """Return the number of spare workers that the resource can hold.

        Args:
            report: the first handler's `ready_report`.
        """

    def with_observations(self, result: JobResult, processes: Sequence[int]) -> JobResult:
        """Return a result with observations of the resource added.

        Args:
            result: result from a worker of the pool.
            processes: process ids of the pool's workers.
        """

    def release(self) -> None:
        """Release the resource; repeated calls have no effect."""


@dataclass(frozen=True)
class PoolPlan:
    """Plan of a worker pool on one host."""

    spec: WorkerSpec
    """Specification of the workers."""
    size: int
    """Number of active workers."""
    depth: int = 1
    """Jobs assigned to a worker at a time."""
    patience_s: float = math.inf
    """Same as for `WorkerPool`."""
    hold: Callable[[], HostResource] | None = None
    """Function that reserves the host's resource for the pool; raises `DeviceError` on failure."""


@dataclass(frozen=True)
class HostCapacity:
    """Capacity of a host for a study."""

    cores: int
    """Number of CPU cores."""
    memory_bytes: int | None
    """Memory in bytes, or None if unknown."""


Plans = Callable[[HostCapacity], Mapping[str, PoolPlan]]
"""Function that plans the pools of a host by name; the names are the same on every host."""


class ReportingPool(JobPool, Protocol):
    """Pool that provides the report of its first handler."""

    @property
    def ready_report(self) -> Any:
        """The first handler's `ready_report`; None before a handler has started."""


class Backend(Protocol):
    """Opener of worker pools; closing the backend ends the workers."""

    @property
    def cores(self) -> int:
        """Number of CPU cores of all hosts together."""

    def open(self, plans: Plans, kernel: Kernel) -> Mapping[str, ReportingPool]:
        """Open pools that span all hosts.

        Args:
            plans: function that plans the pools of each host.
            kernel: the loaded kernel, whose files are sent to hosts that do not share this machine's files.

        Raises:
            DeviceError: if a host cannot run the pools.
        """

    def close(self) -> None:
        """End every worker; repeated calls have no effect."""


class LocalBackend:
    """Backend that runs the pools on this machine."""

    def __init__(self, preload: Sequence[str], cores: int | None = None) -> None:
        """Start the fork server; its imports run in the background.

        Args:
            preload: same as for `ForkServer`.
            cores: number of CPU cores; None uses all cores that this process may use.
        """
        self.cores = cores or len(os.sched_getaffinity(0))
        """Number of CPU cores."""
        self._server: ForkServer | None = ForkServer.kept(preload)
        self._pools: list[WorkerPool] = []

    def open(self, plans: Plans, kernel: Kernel) -> Mapping[str, WorkerPool]:
        """Open pools; the workers use the kernel's content from the plans."""
        assert self._server is not None
        found = {}
        for name, plan in plans(HostCapacity(self.cores, None)).items():
            found[name] = WorkerPool(
                self._server, plan.spec, size=plan.size, depth=plan.depth, patience_s=plan.patience_s
            )
            self._pools.append(found[name])
        return found

    def close(self) -> None:
        """End every worker; repeated calls have no effect."""
        for pool in self._pools:
            pool.close()
        self._pools.clear()
        if self._server is not None:
            self._server.release()
            self._server = None
