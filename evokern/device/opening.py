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
        cluster: where a simulated chip's candidates are compiled and executed; None is this machine.

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
    """Return a simulated chip whose candidates are compiled and executed on a Ray cluster."""
    if kind not in ("auto", "sim"):
        what = "a recording needs no cluster" if kind == "replay" else "GPUs of a cluster are not searched on yet"
        remedy = f"--device sim:{TARGET} simulates a chip there; without --ray-address the device is this machine's"
        raise DeviceError(f"device {':'.join(filter(None, (kind, rest)))!r} with --ray-address: {what}; {remedy}")
    from evokern.cluster.ray_backend import RayBackend
    from evokern.device.sim.simulated import PRELOADED, SimulatedDevice
    from evokern.hardware.profiles import chip

    named = chip(rest or TARGET)  # before anything is connected
    return SimulatedDevice(named, backend=RayBackend(cluster, PRELOADED))
