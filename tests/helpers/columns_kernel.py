"""A kernel whose counters can be worked out by hand, a study of it, and a device that times it."""

from __future__ import annotations

from pathlib import Path

import pytest
from instant_devices import InstantH200

from evokern.device import Request
from evokern.device.recorded.table import measured
from evokern.hardware.driver import Driver
from evokern.study.trial import Evaluation

TILE = """#pragma once
__device__ inline void put(float* tile, float value) {
  tile[threadIdx.x * STRIDE] = value;
}
"""
SOURCE = """#include "tile.cuh"
extern "C" __global__ void columns(const float* x, float* y) {
  __shared__ float tile[32 * 32];
  const int i = blockIdx.x * 32 + threadIdx.x;
  put(tile, x[i]);
  __syncthreads();
  if (threadIdx.x < SHARE) y[i] = tile[threadIdx.x * STRIDE];
}
"""


def copying(
    name: str,
    genes: str = "",
    *,
    entry: str = "copy",
    grid: str = "p.N // 32",
    block: str = "32",
    small: str = "64",
) -> str:
    """Return the `kernel.py` of a kernel that copies N numbers, exactly.

    Args:
        name: of the kernel.
        genes: expressions of its genes, each with a comma behind it.
        entry: its entry point.
        grid: expression of its blocks.
        block: expression of a block's threads.
        small: its small problem.
    """
    return f"""
from evokern import Kernel, Launch, Parameter, ProblemField, Tensor, Tolerance, Workload

kernel = Kernel(
    name="{name}",
    genes=({genes}),
    fields=(ProblemField("N"),),
    launches=lambda c, p: [Launch("{entry}", grid={grid}, block={block}, args=("x", "y"))],
    workload=Workload(
        tensors=lambda p, c: {{"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), "output")}},
        reference=lambda p, t: {{"y": t["x"]}},
        tolerance={{"y": Tolerance(0, 0)}},
        flops=lambda p: p.N,
        bytes=lambda p: 8 * p.N,
        small_problems=("{small}",),
    ),
)
"""


DECLARATION = copying(
    "columns", 'Parameter("STRIDE", (1, 2, 32), default=1), Parameter("SHARE", (16, 32), default=32),', entry="columns"
)


class ColumnsGpu(InstantH200):
    """A stride of 2 is the fastest."""

    window = 2

    def evaluation(self, request: Request) -> Evaluation:
        """Return one µs and what its stride is away from 2."""
        return measured(1.0 + abs(request.config.STRIDE - 2), f"{request.number}")


def write_columns(folder: Path, declaration: str = DECLARATION) -> None:
    """Write `kernels/columns` and the study `mine` of two problems."""
    kernel = folder / "kernels" / "columns"
    kernel.mkdir(parents=True)
    (kernel / "kernel.py").write_text(declaration)
    (kernel / "kernel.cu").write_text(SOURCE)
    (kernel / "tile.cuh").write_text(TILE)
    (folder / "studies").mkdir()
    (folder / "studies" / "mine.toml").write_text('kernel = "columns"\nproblems = ["4096", "64"]\n')


def work_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make a folder the working directory, with a compile cache of its own and no other database."""
    patch.chdir(folder)
    patch.delenv("EVOKERN_DB", raising=False)
    patch.setenv("EVOKERN_CACHE", str(folder / "cache"))


def work_without_gpu(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Write the kernel into a folder and make that the working directory of a machine without a GPU."""
    write_columns(folder)
    work_in(folder, patch)
    hide_gpus(patch)
    return folder


def hide_gpus(patch: pytest.MonkeyPatch) -> None:
    """Let `profile` see a machine without a GPU."""
    for name in ("evokern.analysis.profile.subject.probe", "evokern.device.gpu.profile.probe"):
        patch.setattr(name, lambda: Driver(None, (), "no NVIDIA driver is installed"))
