"""Look-up of a device by its name: `auto`, `cuda:0`, `sim:l4`, `replay:FILE`."""

from __future__ import annotations

from evokern.cluster import RayRequest
from evokern.device.contract import Device
from evokern.errors import DeviceError, suggestion
from evokern.hardware.profiles import CHIPS

KINDS = ("auto", "cuda", "cuda:N", "cuda:N,M", "cuda:all", "sim:CHIP", "replay:FILE")
"""Forms of a device name."""
TARGET = "l4"
"""Chip that `auto` simulates on a machine without a GPU."""


def open_device(name: str, cluster: RayRequest | None = None) -> Device:
    """Return the device with a given name, without starting the device.

    `auto` is the first GPU. On a machine without a GPU it is the simulated `TARGET`, and a note at the start says so.

    Args:
        name: one of `KINDS`.
        cluster: Ray cluster that compiles and executes candidates; None for this machine. On a cluster `auto` and
            `cuda` use as many of its GPUs as it requests. `auto` on a cluster without a GPU is the simulated `TARGET`.

    Raises:
        DeviceError: the name is unknown, the device is missing, or the cluster is unreachable or does not support it.
    """
    kind, _, rest = name.strip().partition(":")
    if cluster is not None:
        return _on_cluster(kind.lower(), rest, cluster)
    match kind.lower():
        case "replay":
            from evokern.device.recorded.recording import read_recording
            from evokern.device.recorded.table import TableDevice

            if not rest:
                raise DeviceError("device 'replay' needs a file; use replay:FILE")
            return TableDevice(read_recording(rest))
        case "sim":
            from evokern.device.sim.simulated import SimulatedDevice

            return SimulatedDevice(rest or "l4")
        case "auto":
            from evokern.hardware.driver import probe

            if probe().gpus:
                return open_device("cuda:0")
            return open_device(f"sim:{TARGET}")
        case "cuda":
            from evokern.device.gpu.live import open_live

            return open_live(name.strip().lower())
        case _:
            chip = name.strip().lower()
            guess = (
                f"did you mean 'sim:{chip}'? known: {', '.join(KINDS)}" if chip in CHIPS else suggestion(name, KINDS)
            )
            raise DeviceError(f"there is no device {name!r}: {guess}")


def _on_cluster(kind: str, rest: str, cluster: RayRequest) -> Device:
    """Return the GPUs of a Ray cluster, or a simulated chip that compiles and runs there."""
    name = ":".join(filter(None, (kind, rest)))
    if kind not in ("auto", "cuda", "sim"):
        raise DeviceError(f"device {name!r} does not use a cluster; omit --ray-address")
    if kind == "cuda" and rest not in ("", "all"):
        raise DeviceError(
            f"device {name!r} does not work with --ray-address, because Ray chooses the GPUs; use --device cuda, "
            "and --num-gpus N for their number"
        )
    if kind == "sim" and cluster.num_gpus is not None:
        raise DeviceError(f"device {name!r} uses no GPU; omit --num-gpus {cluster.num_gpus}, or use --device cuda")
    if kind == "cuda" or (kind == "auto" and (cluster.num_gpus is not None or _has_gpus(cluster))):
        from evokern.device._gpus import ClusterGpus
        from evokern.device.gpu.live import LiveDevice

        return LiveDevice(ClusterGpus(cluster))
    from evokern.cluster.ray_backend import RayBackend
    from evokern.device.sim.simulated import PRELOADED, SimulatedDevice
    from evokern.hardware.profiles import chip

    named = chip(rest or TARGET)  # fail before connecting
    return SimulatedDevice(named, backend=RayBackend(cluster, PRELOADED))


def _has_gpus(cluster: RayRequest) -> bool:
    from evokern.cluster.ray_backend import RayBackend

    backend = RayBackend(cluster, ())
    try:
        return backend.gpus > 0
    finally:
        backend.close()
