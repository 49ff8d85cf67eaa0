"""Torch computes float32 as float32 in a worker: what cuDNN and cuBLAS round to TF32 would be wrong as a baseline."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from evokern.device.gpu.worker import GpuWorker


class FirstUseError(Exception):
    """Ends the worker's start where it would use the GPU."""


@pytest.fixture
def switched_on() -> Iterator[None]:
    """Both switches on, and as they were afterwards."""
    places = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    for place in places:
        place.allow_tf32 = True
    yield
    for place, value in zip(places, before, strict=True):
        place.allow_tf32 = value


@pytest.mark.usefixtures("switched_on")
def test_a_worker_s_torch_keeps_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both switches are off before anything runs: cuDNN's is on by default, and convolutions use it."""

    def first_use(*_: object) -> None:
        raise FirstUseError

    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(torch.cuda, "Stream", first_use)
    worker = cast(GpuWorker, SimpleNamespace(_settings=SimpleNamespace(device_index=0)))
    with pytest.raises(FirstUseError):
        GpuWorker._context(worker)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (False, False)


@pytest.mark.gpu
def test_a_convolution_of_float32_is_right_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the worker's switch cuDNN's convolution has float32's error; TF32's is 2⁻¹¹ relative."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    draw = torch.Generator(device="cuda").manual_seed(1)
    x = torch.randn(2, 64, 32, 32, device="cuda", generator=draw)
    w = torch.randn(64, 64, 3, 3, device="cuda", generator=draw)
    exact = torch.nn.functional.conv2d(x.double(), w.double())
    found = torch.nn.functional.conv2d(x, w).double()
    assert float((found - exact).abs().max() / exact.abs().max()) < 1e-5
