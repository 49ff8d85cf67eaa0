"""From what a user names, `auto`, `cuda:0`, `sim:l4`, `replay:FILE`, to the device."""

from __future__ import annotations

from evokern.device.contract import Device
from evokern.errors import DeviceError, nearest
from evokern.hardware.profiles import CHIPS

KINDS = ("auto", "cuda", "cuda:N", "cuda:N,M", "cuda:all", "sim:CHIP", "replay:FILE")
"""What a device may be called."""
TARGET = "l4"
"""The chip that `auto` simulates where there is no GPU."""


def open_device(name: str) -> Device:
    """Return the device that a name means; it is not started.

    `auto` is the first GPU, and on a machine without one the simulated `TARGET`, whose start says so.

    Args:
        name: one of `KINDS`.

    Raises:
        DeviceError: there is no such device, or it is not there.
    """
    kind, _, rest = name.strip().partition(":")
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
