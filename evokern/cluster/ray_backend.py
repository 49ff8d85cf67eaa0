"""Backend that runs workers on the hosts of a Ray cluster, with one actor for each host and each GPU.

Ray places the actors, restarts dead actors and reports lost hosts, but does not repeat jobs. If an actor dies, its jobs
run again on another actor. If that actor also dies while its host is alive, the job is lost, because it may be the
cause. A host receives only as many jobs as its workers can hold, so programs and proposals do not accumulate.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from evokern.cluster.host import Host, HostPlan, compress_files, plan_without_files, require_same_versions, versions
from evokern.cluster.ray_hosts import RayHost, RayHosts, cause_of, version_facts
from evokern.cluster.ray_pool import START_S, RayPool
from evokern.cluster.request import RayRequest
from evokern.declaration.kernel import Kernel
from evokern.errors import DeviceError
from evokern.wording import first_line
from evokern.workers.backend import HostCapacity, Plans, PoolPlan

_LOGGER = logging.getLogger("evokern")
_CONNECT_S = 5.0
_PROBE_S = 60.0
"""Seconds to wait for a free GPU on each host when probing the GPUs."""
_INLINE_BYTES = 64 * 1024
"""Maximum number of bytes of kernel files stored with an actor; Ray's limit for all arguments is 100 KB."""
_OTHERS_S = 20.0
"""Seconds to wait for the remaining hosts after the first hosts have replied. Ray may not have noticed yet that a host
is dead. Hosts that reply later join when they reply."""
_LEAVE_S = 2.0
"""Seconds for hosts to remove their files and release their GPUs."""
_CURRENT = Path("/tmp/ray/ray_current_cluster")
"""File in which Ray stores the address of this machine's cluster (`ray start`)."""
Node = Mapping[str, Any]
"""Ray's description of a host."""
Found = TypeVar("Found")


class RayBackend:
    """Backend that runs pools on the hosts of a Ray cluster."""

    def __init__(self, request: RayRequest, preload: Sequence[str]) -> None:
        """Connect to the cluster, and list its CPU cores and GPUs.

        Args:
            request: address of the cluster, and the number of CPU cores and GPUs to use.
            preload: modules that each host imports once for all workers.

        Raises:
            DeviceError: if Ray is not installed, no cluster replies at the address, or the cluster has no CPU cores.
        """
        self._preload = tuple(preload)
        self._ray = _ray()
        self._began_here = not self._ray.is_initialized()
        if self._began_here:
            _require_answer(request.address)
            _connect(self._ray, request.address)
        self._request = request
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        self._gpus = _shares([(node, int(node["Resources"].get("GPU", 0))) for node in nodes], request.num_gpus)
        self._shares = _shares([(node, int(node["Resources"].get("CPU", 0))) for node in nodes], request.num_cpus)
        self._hosts: list[RayHost] = []
        self._pools: dict[str, RayPool] = {}
        self._kept: list[Any] = []
        self._cluster: RayHosts | None = None
        if not self._shares:
            self.close()
            raise DeviceError(
                f"the Ray cluster at {request.address} has no CPU cores; start a host with `ray start --num-cpus N`"
            )

    @property
    def cores(self) -> int:
        """Number of CPU cores of all hosts together, minus one for each GPU in use."""
        return sum(cores for _, cores in self._shares)

    @property
    def gpus(self) -> int:
        """Number of GPUs of all hosts together, at most `num_gpus`."""
        return sum(gpus for _, gpus in self._gpus)

    def probe_gpus(self, probe: Callable[[], Found]) -> list[tuple[str, Found]]:
        """Return the name of each GPU in use and the probe's result for its host.

        Args:
            probe: function that runs once on each host with GPUs and sees one GPU.

        Raises:
            DeviceError: if the cluster has too few GPUs, no GPU is free, or the function raises an exception.
        """
        wanted = self._request.num_gpus
        if self.gpus < (wanted or 1):
            several = "no GPU" if not self.gpus else f"only {self.gpus} of the {wanted} requested GPUs"
            raise DeviceError(
                f"the Ray cluster at {self._request.address} has {several}; start hosts with `ray start --num-gpus N`, "
                "or use --device sim:l4 to simulate a chip on the CPU cores"
            )
        asked = [
            self._ray.remote(probe)
            .options(num_cpus=0, num_gpus=1, max_retries=0, scheduling_strategy=self._on(node, soft=False))
            .remote()
            for node, _ in self._gpus
        ]
        try:
            found = self._ray.get(asked, timeout=_PROBE_S)
        except self._ray.exceptions.GetTimeoutError as error:
            raise DeviceError(
                f"no GPU became free on a host within {_PROBE_S:g} s; another search or program is probably using it. "
                "Check `ray status`, then wait, or stop that program"
            ) from error
        except Exception as error:
            cause = cause_of(error)
            raise DeviceError(f"probing the GPU of a host failed: {first_line(cause)}") from error
        self._shares = [(node, left) for node, cores in self._shares if (left := cores - self._gpus_of(node)) > 0]
        if not self._shares:
            raise DeviceError(
                "the Ray cluster has no CPU core left to compile, because each GPU worker uses one; add CPU cores, or "
                "reduce --num-gpus"
            )
        return [
            (_gpu_name(node, number), one)
            for (node, count), one in zip(self._gpus, found, strict=True)
            for number in range(count)
        ]

    def open(
        self, plans: Plans, kernel: Kernel, gpu: tuple[str, PoolPlan, Sequence[str]] | None = None
    ) -> Mapping[str, RayPool]:
        """Start an actor for each host and each GPU, and wait for their replies; late hosts join afterwards.

        Args:
            plans: plans the pools of each host.
            kernel: the loaded kernel, whose files are sent to the hosts.
            gpu: name, plan and preloaded modules of the GPU pool; None for no GPUs.

        Raises:
            DeviceError: if no host starts or its versions differ from those of this machine.
        """
        files = compress_files(kernel.files())
        members: dict[str, list[tuple[RayHost, PoolPlan]]] = {}

        def start(node: Node, name: str, preload: Sequence[str], found: Mapping[str, PoolPlan], **room: int) -> None:
            made = HostPlan(
                preload=tuple(preload),
                pools={kind: plan_without_files(plan) for kind, plan in found.items()},
                kernel=kernel.folder.name,
                files=files,
            )
            if sum(map(len, files.values())) > _INLINE_BYTES:
                # Keep the reference, because Ray cannot restart an actor whose arguments left the object store.
                made = self._ray.put(made)
                self._kept.append(made)

            def actor(soft: bool, **taken: int) -> Any:
                options = self._ray.remote(Host).options(
                    **taken,
                    max_restarts=-1,
                    max_task_retries=0,  # `RayPool` repeats jobs itself and counts the deaths
                    max_concurrency=3 + sum(plan.size * plan.depth for plan in found.values()),
                    scheduling_strategy=self._on(node, soft=soft),
                )
                return options.remote(made)

            # A GPU's actor has no spare, because an actor reserves its GPU exclusively.
            spare = None if "num_gpus" in room else lambda: actor(soft=False, num_cpus=0)
            self._hosts.append(RayHost(len(self._hosts), actor(soft=True, **room), node["NodeID"], name, spare))
            for kind, plan in found.items():
                members.setdefault(kind, []).append((self._hosts[-1], plan))

        if gpu is not None:
            kind, plan, preload = gpu
            for node, count in self._gpus:
                for number in range(count):
                    start(node, _gpu_name(node, number), preload, {kind: plan}, num_cpus=1, num_gpus=1)
        for index, (node, cores) in enumerate(self._shares):
            memory = node["Resources"].get("memory")
            found = plans(HostCapacity(cores, None if memory is None else int(memory)))
            start(node, f"{node['NodeManagerHostname']}/{index}", self._preload, found, num_cpus=cores)
        cluster = self._cluster = RayHosts(self._ray, self._hosts)
        self._pools = {name: RayPool(name, cluster, of) for name, of in members.items()}
        for host in self._hosts:
            cluster.expect(host)
        self._await_first(cluster, members)
        return self._pools

    def _await_first(self, cluster: RayHosts, members: Mapping[str, Sequence[tuple[RayHost, PoolPlan]]]) -> None:
        end, enough = time.monotonic() + START_S, False
        while time.monotonic() < end and not all(host.up or host.failure for host in self._hosts):
            if any(all(host.failure for host, _ in of) for of in members.values()):
                break
            if not enough and all(any(host.up for host, _ in of) for of in members.values()):
                enough, end = True, min(end, time.monotonic() + _OTHERS_S)
            time.sleep(0.05)
        for of in members.values():
            if not any(host.up for host, _ in of):
                why = next((host.failure for host, _ in of if host.failure), f"none replied within {START_S:g} s")
                raise DeviceError(f"no host of the Ray cluster is usable: {why}")
        up = [host for host in self._hosts if host.up]
        alike = {host.name: version_facts(host.reports) for host in up}
        require_same_versions({"this machine": versions()} | alike)
        cluster.required_versions = {name: value for found in alike.values() for name, value in found.items()}
        _LOGGER.info("%s of %s hosts are ready", len(up), len(self._hosts))

    def _on(self, node: Node, *, soft: bool) -> Any:
        return self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=soft)

    def _gpus_of(self, node: Node) -> int:
        return sum(count for one, count in self._gpus if one is node)

    def close(self) -> None:
        """End the actors, and the connection if this object opened it; repeated calls have no effect."""
        hosts, spares = self._hosts, self._cluster.close() if self._cluster is not None else []
        with contextlib.suppress(Exception):
            leaving = [actor.leave.remote() for actor in (*(host.actor for host in hosts if host.up), *spares)]
            if leaving:
                self._ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_S)
        for actor in (*(host.actor for host in hosts), *spares):
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        for pool in self._pools.values():
            pool.close()
        self._hosts, self._pools, self._cluster = [], {}, None
        if self._began_here:
            with contextlib.suppress(Exception):
                self._ray.shutdown()


def _gpu_name(node: Node, number: int) -> str:
    return f"{node['NodeManagerHostname']}/gpu{number}"


def _shares(nodes: Sequence[tuple[Node, int]], wanted: int | None) -> list[tuple[Node, int]]:
    """Return how many to use on each host: all, or the requested total, divided evenly among the hosts."""
    nodes = [(node, has) for node, has in nodes if has > 0]
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
            f"a Ray cluster was requested, but Ray cannot be imported ({error}); run pip install 'evokern[ray]'"
        ) from error
    return ray


def _require_answer(address: str) -> None:
    """Check that a cluster replies at an address; Ray itself would retry for minutes and cannot be interrupted.

    Raises:
        DeviceError: if nothing replies, or no cluster was started on this machine.
    """
    place = address
    if address == "auto":
        try:
            place = _CURRENT.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DeviceError(
                "no Ray cluster runs on this machine; start one with `ray start --head`, join one with `ray start "
                "--address HOST:PORT`, or choose one with --ray-address HOST:PORT"
            ) from error
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise DeviceError(
            f"the Ray cluster at {place} does not respond: {error}; start a cluster with `ray start --head`, which "
            "prints "
            "its address"
        ) from error


def _connect(ray: Any, address: str) -> None:
    """Connect to a running cluster and restore the signal handlers that Ray replaces.

    Raises:
        DeviceError: if the cluster rejects the connection.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)} if main else {}
    try:
        # Ray prints messages about dead workers to standard output, which would break `--json`; no option prevents it.
        with contextlib.suppress(AttributeError):
            ray._private.worker.print_to_stdstream = lambda *_, **__: None
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, configure_logging=False)
    except Exception as error:
        raise DeviceError(
            f"the Ray cluster at {address} rejected the connection: {first_line(error)}; see `ray status` for details"
        ) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.stdout.flush()
