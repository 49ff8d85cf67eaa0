"""Identity and limits of a GPU, read from the driver with ctypes and without a CUDA context."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from evokern.errors import DeviceError
from evokern.hardware.driver import probe
from evokern.hardware.profiles import CHIPS, Profile

_SOURCE = "the driver's device attributes"
_ATTRIBUTES: Mapping[str, int] = {
    "threads_per_block": 1, "shared_bytes_static": 8, "clock_khz": 13, "sms": 16, "memory_clock_khz": 36,
    "bus_bits": 37, "l2_bytes": 38, "threads_per_sm": 39, "shared_bytes_per_sm": 81, "registers_per_sm": 82,
    "shared_bytes_per_block": 97, "blocks_per_sm": 106, "shared_bytes_reserved": 111,
}  # fmt: skip
"""Values of CUdevice_attribute (CUDA Driver API, "Data types used by CUDA driver")."""
_LIMITS = (
    "threads_per_block", "shared_bytes_static", "sms", "l2_bytes", "threads_per_sm", "shared_bytes_per_sm",
    "registers_per_sm", "shared_bytes_per_block", "blocks_per_sm", "shared_bytes_reserved",
)  # fmt: skip


@dataclass(frozen=True)
class LiveGpu:
    """Identity and limits of one GPU."""

    index: int
    """Index for the driver."""
    model: str
    """Name reported by the driver."""
    uuid: str
    """UUID of the GPU, `GPU-…`."""
    pci_bus_id: str
    """PCI address, for example `0000:3B:00.0`."""
    driver: str
    """Newest CUDA version that the driver supports."""
    profile: Profile
    """Limits from the driver; rates of the chip with that name, or of the most similar known chip."""


def live_gpu(index: int) -> LiveGpu:
    """Return the identity and limits of a GPU.

    Raises:
        DeviceError: the GPU or the driver is missing.
    """
    found = probe()
    if not found.gpus or found.problem:
        raise DeviceError(f"no GPU found: {found.problem}; use a simulated GPU instead, for example --device sim:l4")
    if index >= len(found.gpus):
        names = ", ".join(f"cuda:{gpu.index} ({gpu.model})" for gpu in found.gpus)
        raise DeviceError(f"there is no GPU cuda:{index}; this machine has {names}")
    gpu = found.gpus[index]
    cuda = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(handle), index)
    values = {name: _attribute(cuda, number, handle) for name, number in _ATTRIBUTES.items()}
    place, identity = ctypes.create_string_buffer(64), (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGetPCIBusId(place, len(place), handle)
    cuda.cuDeviceGetUuid_v2(identity, handle)
    version = ".".join(map(str, found.cuda_version or ()))
    profile = profile_of(gpu.model, gpu.compute_capability, values)
    return LiveGpu(index, gpu.model, f"GPU-{uuid.UUID(bytes=bytes(identity))}", place.value.decode(), version, profile)


def profile_of(model: str, capability: tuple[int, int], values: Mapping[str, int]) -> Profile:
    """Return a chip's profile: limits from the driver, rates from the same or the most similar known chip.

    Args:
        model: name reported by the driver.
        capability: compute capability.
        values: driver attributes by name; 0 if unknown.
    """
    known = {chip.model: chip for chip in CHIPS.values()}
    limits: dict[str, Any] = {name: values[name] for name in _LIMITS if values[name] > 0}
    if model in known:
        return replace(known[model], **limits)
    alike = min(CHIPS.values(), key=lambda chip: _distance(chip.compute_capability, capability))
    name = model.lower().removeprefix("nvidia ").replace(" ", "-")
    measured: dict[str, Any] = {"clock_mhz": values["clock_khz"] / 1000} if values["clock_khz"] else {}
    if values["memory_clock_khz"] and values["bus_bits"]:
        # Two transfers per clock, because GDDR and HBM are double data rate.
        measured["dram_bytes_per_s"] = 2 * values["memory_clock_khz"] * 1000 * values["bus_bits"] / 8
    sources = {**alike.sources, **dict.fromkeys((*limits, *measured), _SOURCE)}
    return replace(alike, name=name, model=model, compute_capability=capability, sources=sources, **limits, **measured)


def _distance(one: tuple[int, int], other: tuple[int, int]) -> int:
    return abs(10 * (one[0] - other[0]) + one[1] - other[1])


def _attribute(cuda: ctypes.CDLL, number: int, handle: ctypes.c_int) -> int:
    value = ctypes.c_int()
    return value.value if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, handle) == 0 else 0
