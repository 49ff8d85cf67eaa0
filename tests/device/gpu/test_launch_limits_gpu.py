"""Launch attributes and cooperative launches on a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from paths import DATA

import evokern
from evokern.compile.build import Target, build
from evokern.compile.launch_attributes import synchronises_grid
from evokern.compile.records import Built
from evokern.declaration.foreign import LaunchGeometry
from evokern.declaration.genes import Config
from evokern.device.gpu.live import live_gpu
from evokern.export.banner import Provenance
from evokern.export.standalone import standalone
from evokern.study.discovery import load_kernel

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

BOUNDED, GRID_MEAN = DATA / "kernels" / "bounded", DATA / "kernels" / "grid_mean"
HEAD = 'extern "C" __global__ void %s bounded(const float* x, float* y, int n)'
BODY = " { const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = 2.f * x[i]; }"


def test_a_block_beyond_the_attributes_is_rejected_by_the_driver_too() -> None:
    """The driver rejects the launches that `evaluate` rejects."""
    import torch
    from cuda.bindings import driver

    torch.empty(1, device="cuda")
    gpu = live_gpu(0)
    kernel = load_kernel(BOUNDED)
    for bound, threads in ((1, 512), (2, 256)):
        free = build(
            kernel, Config({"THREADS": 128, "BOUND": bound}), (kernel.problem("4096"),), Target(gpu.profile, None)
        )
        assert isinstance(free, Built), free.reason
        (error, module) = driver.cuModuleLoadData(free.programs[0].cubin)
        assert int(error) == 0
        (error, function) = driver.cuModuleGetFunction(module, b"bounded")
        assert int(error) == 0
        values = ctypes.c_void_p(0), ctypes.c_void_p(0), ctypes.c_int(0)  # no elements, so nothing is accessed
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
        errors = {
            block: int(driver.cuLaunchKernel(function, 1, 1, 1, block, 1, 1, 0, 0, ctypes.addressof(pointers), 0)[0])
            for block in (128, threads)
        }
        assert errors[128] == 0
        assert errors[threads] != 0, f"the driver accepts blocks of {threads} threads with BOUND={bound}"


def test_a_block_beyond_the_launch_bounds_is_over_resources() -> None:
    """A bound that only the compiler knows ends the candidate before a launch; one of the text, before the compile."""
    hidden = "#if THREADS > 0\n#define PROMISE __launch_bounds__(64)\n#endif\n" + HEAD % "PROMISE" + BODY
    stated = HEAD % "__launch_bounds__(64)" + BODY
    fitting = HEAD % "__launch_bounds__(128)" + BODY
    sources = {"hidden.cu": hidden, "stated.cu": stated, "fitting.cu": fitting}
    given = [evokern.ForeignSource(name, text) for name, text in sources.items()]
    results = {one.source: one for one in evokern.evaluate(BOUNDED, given, problem="4096", device="cuda:0")}
    assert {name: one.outcome for name, one in results.items()} == {
        "hidden.cu": "over_resources", "stated.cu": "infeasible", "fitting.cu": "measured",
    }  # fmt: skip
    assert "64" in results["hidden.cu"].reason


@pytest.mark.parametrize("barrier", ["grid_sync", "counter"])
def test_a_kernel_whose_blocks_meet_is_measured_and_right(barrier: str) -> None:
    """`grid.sync()` gets a cooperative launch, also in the timed graph; a counter needs none."""
    text = (GRID_MEAN / "kernel.cu").read_text(encoding="utf-8")
    given = [evokern.ForeignSource(f"{blocks}.cu", text, genes={"BLOCKS": blocks, "BARRIER": barrier})
             for blocks in (40, 58)]  # fmt: skip
    for one in evokern.evaluate(GRID_MEAN, given, problem="1000000", device="cuda:0"):
        assert one.right, one.reason
        assert one.outcome == "measured"


def test_a_cooperative_grid_that_does_not_fit_is_infeasible() -> None:
    """The predicted limit is at most the driver's own, and the reason names both numbers."""
    text = (GRID_MEAN / "kernel.cu").read_text(encoding="utf-8").replace("BLOCKS * THREADS", "gridDim.x * THREADS")
    given = [evokern.ForeignSource("large.cu", text, geometry=LaunchGeometry(grid=(100_000, 1, 1)))]
    (found,) = evokern.evaluate(GRID_MEAN, given, problem="1000000", device="cuda:0")
    assert found.outcome == "infeasible"
    assert "100000" in found.reason or "1e+05" in found.reason


def test_the_largest_cooperative_grid_is_accepted() -> None:
    """The number of blocks that fit at once is the driver's: that many launch, and one more does not."""
    import torch
    from cuda.bindings import driver

    torch.empty(1, device="cuda")
    gpu = live_gpu(0)
    kernel = load_kernel(GRID_MEAN)
    config = Config({"THREADS": 256, "BLOCKS": 40, "BARRIER": "grid_sync"})
    built = build(kernel, config, (kernel.problem("20000"),), Target(gpu.profile, None))
    assert isinstance(built, Built)
    assert synchronises_grid(built.programs[0].ptx, "grid_mean")
    (error, module) = driver.cuModuleLoadData(built.programs[0].cubin)
    assert int(error) == 0
    (error, function) = driver.cuModuleGetFunction(module, b"grid_mean")
    assert int(error) == 0
    (error, blocks) = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 256, 0)
    assert int(error) == 0

    from evokern.compile.occupancy import blocks_per_sm

    launch = built.builds[0].launches[0]
    assert blocks_per_sm(built.programs[0].uses["grid_mean"], launch, gpu.profile) == blocks


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
def test_an_exported_cooperative_kernel_builds_and_runs(tmp_path: Path) -> None:
    """The program launches cooperatively, compares its results, and times replays of a graph."""
    gpu = live_gpu(0)
    kernel = load_kernel(GRID_MEAN)
    config = Config({"THREADS": 256, "BLOCKS": 58, "BARRIER": "grid_sync"})
    file = tmp_path / "best.cu"
    file.write_text(standalone(kernel, config, kernel.problem("1000000"), gpu.profile, Provenance()), encoding="utf-8")
    subprocess.run(["nvcc", f"-arch={gpu.profile.architecture}", file.name, "-o", "best"], check=True, cwd=tmp_path)
    ran = subprocess.run([tmp_path / "best"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "PASS"), ran.stdout + ran.stderr
