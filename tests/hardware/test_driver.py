"""What the driver tells: asked through a libcuda that answers as told."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from evokern.hardware import driver
from evokern.hardware.driver import driver_version, probe


class FakeCuda:
    """A libcuda with one GPU, or with an error."""

    def __init__(self, version: int = 13000, init: int = 0, count: int = 1) -> None:
        self.version, self.init, self.count = version, init, count

    def cuDriverGetVersion(self, out: Any) -> int:  # noqa: N802
        out._obj.value = self.version
        return 0

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self.init

    def cuDeviceGetCount(self, out: Any) -> int:  # noqa: N802
        out._obj.value = self.count
        return 0

    def cuDeviceGet(self, out: Any, index: int) -> int:  # noqa: N802
        out._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        name.value = b"NVIDIA H200"
        return 0

    def cuDeviceGetAttribute(self, out: Any, attribute: int, device: Any) -> int:  # noqa: N802
        out._obj.value = {75: 9, 76: 0}[attribute]
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, device: Any) -> int:  # noqa: N802
        out._obj.value = 2**37
        return 0

    def cuGetErrorName(self, error: int, out: Any) -> int:  # noqa: N802
        out._obj.value = b"CUDA_ERROR_NO_DEVICE"
        return 0


@pytest.mark.parametrize(
    ("cuda", "extra", "problem"),
    [
        (FakeCuda(), "cuda13", ""),
        (FakeCuda(version=12040), "cuda12", ""),
        (FakeCuda(version=11080), None, "the driver supports CUDA 11.8; CuPy needs 12 or 13"),
        (FakeCuda(init=100), None, "the driver finds no usable GPU (CUDA_ERROR_NO_DEVICE)"),
        (FakeCuda(count=0), None, "the driver lists no GPU (CUDA_VISIBLE_DEVICES may hide it)"),
    ],
)
def test_the_driver_is_asked(cuda: FakeCuda, extra: str | None, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version, GPUs and what is wrong decide which CuPy fits."""
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: cuda)
    found = probe()
    assert (found.cuda_extra, found.problem) == (extra, problem)
    if extra:
        (gpu,) = found.gpus
        assert (gpu.model, gpu.compute_capability, gpu.memory_bytes) == ("NVIDIA H200", (9, 0), 2**37)


def test_no_driver_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without libcuda there is no GPU, and a reason."""

    def missing(name: str) -> ctypes.CDLL:
        raise OSError(name)

    monkeypatch.setattr(driver.ctypes, "CDLL", missing)
    assert probe().problem == "no NVIDIA driver is installed (libcuda.so.1 was not found)"


def test_the_module_tells_its_version(tmp_path: Path) -> None:
    """The kernel module's version is read from its report; a system that has none gives an empty text."""
    report = tmp_path / "version"
    report.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root)\n")
    assert driver_version(report) == "580.65.06"
    assert driver_version(tmp_path / "absent") == ""
