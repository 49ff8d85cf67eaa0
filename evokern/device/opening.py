"""From what a user names, `auto`, `cuda:0`, `sim:l4`, `replay:FILE`, to the device."""

from __future__ import annotations

from evokern.cluster import RayRequest
from evokern.device.contract import Device
from evokern.errors import DeviceError, nearest
from evokern.hardware.profiles import CHIPS

KINDS = ("auto", "cuda", "cuda:N", "cuda:N,M", "cuda:all", "sim:CHIP", "replay:FILE")
"""What a device may be called."""
TARGET = "l4"
"""The chip that `auto` simulates where there is no GPU."""


def open_device(name: str, cluster: RayRequest | None = None) -> Device:
    """Return the device that a name means; it is not started.

    `auto` is the first GPU, and on a machine without one the simulated `TARGET`, whose start says so.

    Args:
        name: one of `KINDS`.
        cluster: where candidates are compiled and executed; None is this machine. `auto` and `cuda` are its GPUs, all
            or as many as it names; where it has none `auto` is the simulated `TARGET` there.

    Raises:
        DeviceError: there is no such device, or it is not there; or the cluster does not answer, or cannot be it.
    """
    kind, _, rest = name.strip().partition(":")
    if cluster is not None:
        return _on_cluster(kind.lower(), rest, cluster)
    match kind.lower():
        case "replay":
            from evokern.device.recorded.recording import read_recording
            from evokern.device.recorded.table import TableDevice

            if not rest:
                raise DeviceError("device 'replay' lacks its file; write replay:FILE")
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
            guess = f"did you mean 'sim:{chip}'? known: {', '.join(KINDS)}" if chip in CHIPS else nearest(name, KINDS)
            raise DeviceError(f"there is no device {name!r}: {guess}")


def _on_cluster(kind: str, rest: str, cluster: RayRequest) -> Device:
    """Return GPUs of a Ray cluster, or a simulated chip whose candidates are compiled and executed there."""
    name = ":".join(filter(None, (kind, rest)))
    if kind not in ("auto", "cuda", "sim"):
        raise DeviceError(
            f"device {name!r} with --ray-address: a recording needs no cluster; without --ray-address the device is "
            "this machine's"
        )
    if kind == "cuda" and rest not in ("", "all"):
        raise DeviceError(
            f"device {name!r} with --ray-address: Ray chooses the GPUs; write cuda, and how many with --num-gpus N"
        )
    if kind == "sim" and cluster.num_gpus is not None:
        raise DeviceError(f"device {name!r} needs no GPU: leave --num-gpus {cluster.num_gpus} away, or write cuda")
    if kind == "cuda" or (kind == "auto" and (cluster.num_gpus is not None or _has_gpus(cluster))):
        from evokern.device._gpus import ClusterGpus
        from evokern.device.gpu.live import LiveDevice

        return LiveDevice(ClusterGpus(cluster))
    from evokern.cluster.ray_backend import RayBackend
    from evokern.device.sim.simulated import PRELOADED, SimulatedDevice
    from evokern.hardware.profiles import chip

    named = chip(rest or TARGET)  # before anything is connected
    return SimulatedDevice(named, backend=RayBackend(cluster, PRELOADED))


def _has_gpus(cluster: RayRequest) -> bool:
    from evokern.cluster.ray_backend import RayBackend

    backend = RayBackend(cluster, ())
    try:
        return backend.gpus > 0
    finally:
        backend.close()
