"""GPUs of a search and their workers, on this machine or in a cluster."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from evokern.cluster.request import RayRequest
from evokern.compile import nvrtc
from evokern.compile.pool import PRELOAD, CompileSettings, compile_spec
from evokern.declaration.kernel import Kernel
from evokern.device._comparison import require_one_model
from evokern.device.gpu.jobs import CONTEXT_BYTES, FREE, HELD, PEAK, GpuSettings
from evokern.device.gpu.lock import GpuLock
from evokern.device.gpu.nvml import Monitor
from evokern.device.gpu.profile import LiveGpu, live_gpu
from evokern.study.trial import Evaluation
from evokern.workers.backend import PoolPlan, ReportingPool
from evokern.workers.jobs import JobResult
from evokern.workers.members import LocalMember, LocalMembers, MemberPool
from evokern.workers.pool import ForkServer, WorkerPool, WorkerSpec

DEPTH = 3
"""Number of compiled candidates per GPU worker, including the current one; it then never waits for this process."""
GPU_PRELOAD = ("torch", "cuda.bindings.driver", nvrtc.PRELOAD, "evokern.device.gpu.worker")
_COMPILE_PRELOAD = (*PRELOAD, "torch")
"""Modules for compile workers; torch is included because `kernel.py` may import it."""
_FOREIGN_PERIOD_S = 5.0
_BUSY_PERCENT = 15
_SPARES = 2
"""Spare workers per GPU: two, because a second candidate may crash while the first spare is being replaced."""


@dataclass(frozen=True)
class GpuPlan:
    """Settings of the workers that a search starts."""

    gpu: GpuSettings
    """Settings of GPU workers; the holder of a GPU adds its index and its lock."""
    compiling: CompileSettings
    """Settings of compile workers."""
    most_compilers: int
    """Maximum useful number of compile workers."""
    patience_s: float
    """`patience_s` of the compile workers' `WorkerPool`."""


class Gpus(Protocol):
    """GPUs of one model; closing them stops their workers."""

    @property
    def found(self) -> Sequence[LiveGpu]:
        """Each GPU, in the order of the executors."""

    @property
    def compile_workers(self) -> int:
        """Number of CPU cores that can compile."""

    def open(self, plan: GpuPlan, kernel: Kernel) -> tuple[ReportingPool, MemberPool]:
        """Take the GPUs; open the compile pool and the executors.

        Args:
            plan: the workers.
            kernel: the loaded kernel.

        Raises:
            DeviceError: a GPU is in use by another search, or fails.
        """

    def notes(self) -> list[str]:
        """Return notes on other users of the GPUs and on missing clock readings."""

    def processes(self) -> list[int]:
        """Return the process IDs of workers on this machine."""

    def close(self) -> None:
        """Stop every worker and release the GPUs; can be called twice."""


class HeldGpu:
    """GPU that this process can lock, with a monitor for other processes on it."""

    def __init__(self, gpu: LiveGpu, name: str) -> None:
        """Create the object without taking the lock; `hold` takes it.

        Args:
            gpu: the GPU.
            name: name that the user gave it.
        """
        self.gpu, self.name = gpu, name
        self.monitor = Monitor(gpu.pci_bus_id)
        self._lock: GpuLock | None = None
        self._foreign: list[int] = []
        self._suspects: list[int] = []
        self._asked = 0.0

    def hold(self) -> HeldGpu:
        """Take the lock.

        Raises:
            DeviceError: another search holds it.
        """
        self._lock = GpuLock(self.gpu.uuid, f"{self.name} ({self.gpu.model})")
        return self

    def spec(self, spec: WorkerSpec) -> WorkerSpec:
        """Return the specification of the GPU's workers, with its index and lock."""
        assert self._lock is not None
        init = replace(spec.init, device_index=self.gpu.index, turn_lock=self._lock.turn_lock)
        return replace(spec, init=init)

    def report(self) -> LiveGpu:
        """Return the description of the GPU."""
        return self.gpu

    def spares(self, report: Any) -> int:
        """Return how many warm spare workers fit into the GPU's memory next to the peak use of one worker."""
        if not report:
            return 0
        held, peak, free = (int(report[key]) for key in (HELD, PEAK, FREE))
        return max(0, min(_SPARES, (free - (peak - held)) // (held + CONTEXT_BYTES)))

    def with_observations(self, result: JobResult, processes: Sequence[int]) -> JobResult:
        """Return a result whose evidence also lists the other processes on the GPU."""
        now = time.monotonic()
        if now - self._asked > _FOREIGN_PERIOD_S:
            self._asked = now
            seen = self.monitor.foreign(processes)
            # A starting or ending worker of this search can look foreign once.
            self._foreign = [pid for pid in seen if pid in self._suspects]
            self._suspects = seen
        if not self._foreign or not isinstance(result.value, Evaluation):
            return result
        evidence = {**result.value.evidence, "foreign_load": list(self._foreign)}
        return replace(result, value=replace(result.value, evidence=evidence))

    def notes(self, own: Sequence[int], *, alone: bool) -> list[str]:
        """Return notes on other users of the GPU.

        Args:
            own: process ids of workers that an earlier device of this process left idle.
            alone: whether the search has a single GPU.
        """
        name, notes = self.gpu.model if alone else f"{self.name} ({self.gpu.model})", []
        others = self.monitor.foreign(own)
        if others:
            listed = ", ".join(map(str, others))
            notes.append(f"other processes use {name} ({listed}); they may disturb the times")
        busy = None if own else self.monitor.utilisation()  # which includes the earlier device's work
        if not others and busy is not None and busy >= _BUSY_PERCENT:
            notes.append(f"{name} is {busy} % busy with other work, which may disturb the times")
        return notes

    def release(self) -> None:
        """Release the lock; can be called twice."""
        if self._lock is not None:
            self._lock.release()


def hold_first_gpu() -> HeldGpu:
    """Take the first visible GPU; a cluster shows each process only the GPU that it may use.

    Raises:
        DeviceError: the GPU is missing, or another search holds it.
    """
    return HeldGpu(live_gpu(0), "cuda:0").hold()


class LocalGpus:
    """GPUs of this machine."""

    def __init__(self, gpus: Sequence[LiveGpu]) -> None:
        """Start the fork servers, which import modules in the background.

        Args:
            gpus: one or more GPUs.

        Raises:
            DeviceError: the models differ.
        """
        require_one_model([(f"cuda:{gpu.index}", gpu.model) for gpu in gpus])
        self.found = tuple(gpus)
        """Each GPU."""
        self._held = [HeldGpu(gpu, f"cuda:{gpu.index}") for gpu in gpus]
        # Importing torch takes seconds, so it starts before the kernel folder is read.
        self._servers = [ForkServer.kept(GPU_PRELOAD), ForkServer.kept(_COMPILE_PRELOAD)]
        self._pools: list[WorkerPool] = []

    @property
    def compile_workers(self) -> int:
        """Number of available CPU cores minus one per GPU."""
        # A GPU worker and this process together need about one core, with priority over compiles.
        return max(1, len(os.sched_getaffinity(0)) - len(self.found))

    def open(self, plan: GpuPlan, kernel: Kernel) -> tuple[WorkerPool, LocalMembers]:
        """Take the GPUs; open the compile pool and the executors."""
        members = []
        for held in self._held:
            # Modules of the kernel folder stay imported, so a worker may only continue with the same code.
            reuse = f"{held.gpu.uuid} {kernel.digest()}"
            spec = held.hold().spec(WorkerSpec("evokern.device.gpu.worker:GpuWorker", plan.gpu, reuse=reuse))
            self._pools.append(WorkerPool(self._servers[0], spec, size=1, depth=DEPTH))
            members.append(LocalMember(held.name, self._pools[-1], held))
        size = min(self.compile_workers, plan.most_compilers)
        compiling = replace(compile_spec(plan.compiling), reuse=f"{plan.compiling.foreign} {kernel.digest()}")
        compilers = WorkerPool(self._servers[1], compiling, size=size, patience_s=plan.patience_s)
        self._pools.append(compilers)
        return compilers, LocalMembers(members, DEPTH)

    def notes(self) -> list[str]:
        """Return notes on other users of the GPUs and on missing clock readings."""
        own = self._servers[0].idle_processes()
        notes = [note for held in self._held for note in held.notes(own, alone=len(self._held) == 1)]
        return [*notes, *dict.fromkeys(held.monitor.problem for held in self._held if held.monitor.problem)]

    def processes(self) -> list[int]:
        """Return the process IDs of the workers."""
        return [pid for pool in self._pools for pid in pool.processes]

    def close(self) -> None:
        """Stop every worker and release the GPUs; can be called twice."""
        for pool in self._pools:
            pool.close()
        for server in self._servers:
            server.release()
        for held in self._held:
            held.release()
        self._pools.clear()
        self._servers.clear()


class ClusterGpus:
    """GPUs of a Ray cluster."""

    def __init__(self, request: RayRequest) -> None:
        """Connect to the cluster and find its GPUs.

        Args:
            request: the cluster and the resources to use.

        Raises:
            DeviceError: the cluster is unreachable, has no free GPU, or has several models.
        """
        from evokern.cluster.ray_backend import RayBackend

        self._backend = RayBackend(request, _COMPILE_PRELOAD)
        try:
            found = self._backend.probe_gpus(_first_gpu)
            require_one_model([(name, gpu.model) for name, gpu in found])
        except BaseException:
            self._backend.close()
            raise
        self.found = tuple(gpu for _, gpu in found)
        """Each GPU."""

    @property
    def compile_workers(self) -> int:
        """Number of CPU cores on all hosts minus one per GPU."""
        return max(1, self._backend.cores)

    def open(self, plan: GpuPlan, kernel: Kernel) -> tuple[ReportingPool, MemberPool]:
        """Create a Ray actor for each GPU, and one on each host that compiles."""
        worker = WorkerSpec("evokern.device.gpu.worker:GpuWorker", plan.gpu)
        pools = self._backend.open(
            lambda room: {"compile": PoolPlan(compile_spec(plan.compiling), room.cores, 1, plan.patience_s)},
            kernel,
            gpu=("gpu", PoolPlan(worker, 1, DEPTH, math.inf, hold_first_gpu), GPU_PRELOAD),
        )
        return pools["compile"], pools["gpu"]

    def notes(self) -> list[str]:
        """Return nothing; other load on a remote GPU is recorded in the evidence of its trials."""
        return []

    def processes(self) -> list[int]:
        """Return nothing, because no worker runs on this machine."""
        return []

    def close(self) -> None:
        """Stop the actors; can be called twice."""
        self._backend.close()


def _first_gpu() -> LiveGpu:
    return live_gpu(0)
