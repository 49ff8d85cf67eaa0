"""The GPUs of a search, and what runs beside each: those of this machine, or of a cluster's hosts."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from evokern.cluster.request import RayRequest
from evokern.compile import nvrtc
from evokern.compile.pool import PRELOAD, CompileSettings, compile_spec
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
"""Compiled candidates that a GPU's worker holds, the one it works on included: it never waits for this process."""
GPU_PRELOAD = ("torch", "cuda.bindings.driver", nvrtc.PRELOAD, "evokern.device.gpu.worker")
_COMPILE_PRELOAD = (*PRELOAD, "torch")
"""Compile workers need torch where `kernel.py` imports it."""
_FOREIGN_PERIOD_S = 5.0
_BUSY_PERCENT = 15
_SPARES = 2
"""Spare GPU workers: two, since the one that takes over must be replaced while the next candidate may crash too."""


@dataclass(frozen=True)
class GpuPlan:
    """What a search runs on its GPUs and beside them."""

    gpu: GpuSettings
    """Of a GPU's worker; who holds the GPU fills in its number and its lock."""
    compiling: CompileSettings
    """Of compile workers."""
    most_compilers: int
    """The most compile workers that are of use."""
    patience_s: float
    """As for `WorkerPool`, of compile workers."""


class Gpus(Protocol):
    """GPUs of one model; closing them ends their workers."""

    @property
    def found(self) -> Sequence[LiveGpu]:
        """What each is; their order is that of the executors."""

    @property
    def compile_workers(self) -> int:
        """Processors that can compile."""

    def open(self, plan: GpuPlan, folder: Path) -> tuple[ReportingPool, MemberPool]:
        """Take the GPUs, and open compile pool and executors.

        Args:
            plan: what they run.
            folder: the kernel's folder.

        Raises:
            DeviceError: a GPU is being searched on already, or cannot work.
        """

    def notes(self) -> list[str]:
        """Return what else uses the GPUs, and what cannot be seen of them."""

    def processes(self) -> list[int]:
        """Return the process numbers of workers of this machine."""

    def close(self) -> None:
        """End every worker, give the GPUs back; safe to call twice."""


class HeldGpu:
    """A GPU that this process may take for itself, and who else computes on it."""

    def __init__(self, gpu: LiveGpu, name: str) -> None:
        """Find it; `hold` takes it.

        Args:
            gpu: the GPU.
            name: what the user calls it.
        """
        self.gpu, self.name = gpu, name
        self.monitor = Monitor(gpu.pci_bus_id)
        self._lock: GpuLock | None = None
        self._foreign: list[int] = []
        self._suspects: list[int] = []
        self._asked = 0.0

    def hold(self) -> HeldGpu:
        """Take it.

        Raises:
            DeviceError: another search has it.
        """
        self._lock = GpuLock(self.gpu.uuid, f"{self.name} ({self.gpu.model})")
        return self

    def spec(self, spec: WorkerSpec) -> WorkerSpec:
        """Return what its workers run: with its number, taking turns by its lock."""
        assert self._lock is not None
        init = replace(spec.init, device_index=self.gpu.index, turn_lock=self._lock.turn_lock)
        return replace(spec, init=init)

    def report(self) -> LiveGpu:
        """Return what it is."""
        return self.gpu

    def spares(self, report: Any) -> int:
        """Return how many warm spares its memory has room for, beside what one worker at a time needs for a while."""
        if not report:
            return 0
        held, peak, free = (int(report[key]) for key in (HELD, PEAK, FREE))
        return max(0, min(_SPARES, (free - (peak - held)) // (held + CONTEXT_BYTES)))

    def told(self, result: JobResult, processes: Sequence[int]) -> JobResult:
        """Return a result whose evidence names the processes that compute beside it."""
        now = time.monotonic()
        if now - self._asked > _FOREIGN_PERIOD_S:
            self._asked = now
            seen = self.monitor.foreign(processes)
            # A worker of ours that is starting or ending can look foreign once.
            self._foreign = [pid for pid in seen if pid in self._suspects]
            self._suspects = seen
        if not self._foreign or not isinstance(result.value, Evaluation):
            return result
        evidence = {**result.value.evidence, "foreign_load": list(self._foreign)}
        return replace(result, value=replace(result.value, evidence=evidence))

    def notes(self, *, alone: bool) -> list[str]:
        """Return what else uses it now.

        Args:
            alone: whether the search has no other GPU.
        """
        name, notes = self.gpu.model if alone else f"{self.name} ({self.gpu.model})", []
        others = self.monitor.foreign(())
        if others:
            listed = ", ".join(map(str, others))
            notes.append(f"other processes compute on {name} ({listed}): times may be disturbed")
        busy = self.monitor.utilisation()
        if not others and busy is not None and busy >= _BUSY_PERCENT:
            notes.append(f"{name} is {busy} % busy with something else: times may be disturbed")
        return notes

    def release(self) -> None:
        """Give it back; safe to call twice."""
        if self._lock is not None:
            self._lock.release()


def hold_first_gpu() -> HeldGpu:
    """Take the first GPU that this process sees: a cluster shows each of its processes the one that it may use.

    Raises:
        DeviceError: there is none, or another search has it.
    """
    return HeldGpu(live_gpu(0), "cuda:0").hold()


class LocalGpus:
    """GPUs of this machine."""

    def __init__(self, gpus: Sequence[LiveGpu]) -> None:
        """Start the processes that fork workers, which import while the caller goes on.

        Args:
            gpus: one or more.

        Raises:
            DeviceError: they are of several models.
        """
        require_one_model([(f"cuda:{gpu.index}", gpu.model) for gpu in gpus])
        self.found = tuple(gpus)
        """What each is."""
        self._held = [HeldGpu(gpu, f"cuda:{gpu.index}") for gpu in gpus]
        # Importing torch takes seconds; it begins while the kernel folder is still being read.
        self._servers = [ForkServer(GPU_PRELOAD), ForkServer(_COMPILE_PRELOAD)]
        self._pools: list[WorkerPool] = []

    @property
    def compile_workers(self) -> int:
        """This process's processors but one for each GPU."""
        # A GPU's worker and this process keep about one core at work, and go before compiles where they need two.
        return max(1, len(os.sched_getaffinity(0)) - len(self.found))

    def open(self, plan: GpuPlan, folder: Path) -> tuple[WorkerPool, LocalMembers]:
        """Take the GPUs, and open compile pool and executors; the folder stays where it is."""
        members = []
        for held in self._held:
            spec = held.hold().spec(WorkerSpec("evokern.device.gpu.worker:GpuWorker", plan.gpu))
            self._pools.append(WorkerPool(self._servers[0], spec, size=1, depth=DEPTH))
            members.append(LocalMember(held.name, self._pools[-1], held))
        size = min(self.compile_workers, plan.most_compilers)
        compilers = WorkerPool(self._servers[1], compile_spec(plan.compiling), size=size, patience_s=plan.patience_s)
        self._pools.append(compilers)
        return compilers, LocalMembers(members, DEPTH)

    def notes(self) -> list[str]:
        """Return what else uses the GPUs, and what cannot be seen of them."""
        notes = [note for held in self._held for note in held.notes(alone=len(self._held) == 1)]
        return [*notes, *dict.fromkeys(held.monitor.problem for held in self._held if held.monitor.problem)]

    def processes(self) -> list[int]:
        """Return the workers' process numbers."""
        return [pid for pool in self._pools for pid in pool.processes]

    def close(self) -> None:
        """End every worker, give the GPUs back; safe to call twice."""
        for pool in self._pools:
            pool.close()
        for server in self._servers:
            server.close()
        for held in self._held:
            held.release()
        self._pools.clear()
        self._servers.clear()


class ClusterGpus:
    """GPUs of a Ray cluster."""

    def __init__(self, request: RayRequest) -> None:
        """Connect, and see what GPUs there are.

        Args:
            request: which cluster, and how much of it.

        Raises:
            DeviceError: the cluster does not answer, it has no free GPU, or they are of several models.
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
        """What each is."""

    @property
    def compile_workers(self) -> int:
        """Processors of all hosts but one for each GPU."""
        return max(1, self._backend.cores)

    def open(self, plan: GpuPlan, folder: Path) -> tuple[ReportingPool, MemberPool]:
        """Let Ray place an actor for each GPU, and one on each host that compiles."""
        worker = WorkerSpec("evokern.device.gpu.worker:GpuWorker", plan.gpu)
        pools = self._backend.open(
            lambda room: {"compile": PoolPlan(compile_spec(plan.compiling), room.cores, 1, plan.patience_s)},
            folder,
            gpu=("gpu", PoolPlan(worker, 1, DEPTH, math.inf, hold_first_gpu), GPU_PRELOAD),
        )
        return pools["compile"], pools["gpu"]

    def notes(self) -> list[str]:
        """Return nothing: what disturbs a GPU of another host stands in its trials' evidence."""
        return []

    def processes(self) -> list[int]:
        """None is of this machine."""
        return []

    def close(self) -> None:
        """End the actors; safe to call twice."""
        self._backend.close()


def _first_gpu() -> LiveGpu:
    return live_gpu(0)
