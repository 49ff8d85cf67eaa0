"""Query of the NVIDIA driver through `libcuda`, with the standard library only and without creating a CUDA context.

The set-up script (before anything is installed), the `gpu` marker of the tests and `evokern doctor` share this module,
so that their results agree.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
"""CUdevice_attribute values of the compute capability (CUDA Driver API, "Data types used by CUDA driver")."""


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    index: int
    """Index N in `cuda:N`, in the driver's order."""
    model: str
    """Model name reported by the driver."""
    compute_capability: tuple[int, int]
    """Compute capability as (major, minor)."""
    memory_bytes: int
    """Device memory in bytes."""


@dataclass(frozen=True)
class Driver:
    """The driver and its GPUs."""

    cuda_version: tuple[int, int] | None
    """Newest CUDA version that the driver supports; None without a driver."""
    gpus: tuple[Gpu, ...] = ()
    """Usable GPUs, in the driver's order."""
    problem: str = ""
    """Reason why no GPU is usable; empty if one is."""

    @property
    def cuda_extra(self) -> str | None:
        """Package extra that matches the driver: `cuda12`, `cuda13`, or None without a usable GPU."""
        if self.cuda_version is None or not self.gpus:
            return None
        return "cuda13" if self.cuda_version >= (13, 0) else "cuda12" if self.cuda_version >= (12, 0) else None


def probe() -> Driver:
    """Return the driver's version and its GPUs."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Driver(None, (), "no NVIDIA driver is installed (libcuda.so.1 was not found)")
    number = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(number)):
        return Driver(None, (), "libcuda.so.1 does not report its version; reinstall the NVIDIA driver")
    version = (number.value // 1000, number.value % 1000 // 10)
    error = cuda.cuInit(0)
    if error:
        return Driver(version, (), f"the driver finds no usable GPU ({_error_name(cuda, error)})")
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    if not count.value:
        return Driver(version, (), "the driver lists no GPU (CUDA_VISIBLE_DEVICES may hide it)")
    problem = "" if version >= (12, 0) else f"the driver supports CUDA {version[0]}.{version[1]}; CuPy needs 12 or 13"
    return Driver(version, tuple(_gpu(cuda, index) for index in range(count.value)), problem)


def driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Return the version of the kernel module, for example `580.65.06`; empty if the system does not report it.

    Args:
        path: file with the version ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...").
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else ""


def _gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    memory, name = ctypes.c_size_t(), ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    return Gpu(index, name.value.decode(), (major.value, minor.value), memory.value)


def _error_name(cuda: ctypes.CDLL, error: int) -> str:
    text = ctypes.c_char_p()
    cuda.cuGetErrorName(error, ctypes.byref(text))
    return text.value.decode() if text.value else f"error {error}"
