"""What the live device is made of, without a GPU: profiles from the driver, clocks, imports."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from paths import DATA

from evokern.declaration.kernel import Baseline
from evokern.device._comparison import calibration_of, comparison_note
from evokern.device._gpus import HeldGpu, LocalGpus
from evokern.device.contract import BaselineResult, StartStep, Task
from evokern.device.gpu.jobs import FREE, HELD, PEAK, PLANNED, MeasureBaseline, TimeFirstLaunches
from evokern.device.gpu.live import LiveDevice, gpu_numbers
from evokern.device.gpu.nvml import Monitor, State
from evokern.device.gpu.profile import LiveGpu, profile_of
from evokern.device.opening import open_device
from evokern.device.sim.simulated import SimulatedDevice
from evokern.errors import DeviceError
from evokern.hardware.driver import Driver, Gpu, probe
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel
from evokern.study.settings import Study
from evokern.study.trial import Timing
from evokern.workers.members import LocalMember, LocalMembers
from evokern.workers.single_job import JobDeadlineError

VALUES = {
    "threads_per_block": 1024, "shared_bytes_static": 49152, "clock_khz": 2_610_000, "sms": 84,
    "memory_clock_khz": 11_501_000, "bus_bits": 256, "l2_bytes": 67_108_864, "threads_per_sm": 1536,
    "shared_bytes_per_sm": 102_400, "registers_per_sm": 65_536, "shared_bytes_per_block": 101_376,
    "blocks_per_sm": 24, "shared_bytes_reserved": 1024,
}  # fmt: skip


def test_each_step_of_the_start_is_told_before_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile, worker, proof of the gate, then one job for each baseline, by its name and in order."""
    kernel = load_kernel(DATA / "kernels" / "scale_rows")
    one, absent, two = (Baseline(name, lambda tensors, problem: None) for name in ("one", "absent", "two"))
    baselines = one, replace(absent, requires="absent_peer.part"), two
    kernel = replace(kernel, workload=replace(kernel.workload, baselines=baselines))
    happened: list[object] = []
    slow = False

    def run_single_job(pool: object, job: object, *_: object) -> object:
        happened.append(job)
        if isinstance(job, TimeFirstLaunches):
            return [12.0]
        if isinstance(job, MeasureBaseline) and slow:
            raise JobDeadlineError("too long")
        return BaselineResult(f"timed {job.index}") if isinstance(job, MeasureBaseline) else None

    memory = {PLANNED: 3 * 2**30, HELD: 3 * 2**30, PEAK: 5 * 2**30, FREE: 9 * 2**30}
    spares: list[int] = []
    pool = SimpleNamespace(
        wait_ready=lambda: happened.append("ready"), keep_spares=spares.append, ready_report=memory, processes=()
    )
    gpu = LiveGpu(0, "NVIDIA H200", "GPU-1", "0:0", "13.0", CHIPS["h200"])
    members = LocalMembers([LocalMember("cuda:0", cast(Any, pool), HeldGpu(gpu, "cuda:0"))], 3)
    gpus = SimpleNamespace(found=(gpu,), compile_workers=1, notes=list, open=lambda *_: (pool, members))
    replaced = {
        "run_single_job": run_single_job,
        "require_built": lambda task, built: SimpleNamespace(without_ptx=lambda: "code"),
        "Pipeline": lambda *_, **__: SimpleNamespace(begin=lambda: None),
        "load_rates": lambda *_: None,
        "driver_version": lambda: "580",
    }
    for name, value in replaced.items():
        monkeypatch.setattr(f"evokern.device.gpu.live.{name}", value)
    device = LiveDevice(cast(Any, gpus))
    problems = (kernel.problem("64,256"),)
    study = Study("s", "scale_rows", ("64,256",))
    report = device.start(Task(kernel, problems, study, on_step=happened.append))
    told = [(one.text, one.done, one.of) for one in happened if isinstance(one, StartStep)]
    assert told == [
        ("compiling the default candidate", 0, 6), ("starting the GPU worker", 1, 6),
        ("checking that the gate distinguishes correct from wrong results", 2, 6),
        ("timing the default candidate's first launches", 3, 6),
        ("baseline 1 of 2: one", 4, 6), ("baseline 2 of 2: two", 5, 6),
    ]  # fmt: skip
    assert ["Config", "str", "CheckGate", "TimeFirstLaunches", "MeasureBaseline", "MeasureBaseline"] == [
        type(one).__name__ for one in happened if not isinstance(one, StartStep)
    ]
    assert all(isinstance(one, StartStep) for one in happened[::2]), "each step is told before its job"
    assert [baseline.name for baseline in report.baselines] == ["timed 0", "timed 2"]
    assert report.environment["default_us"] == (12.0,)
    assert "uses 3 GiB of GPU memory" in report.notes[-1]
    assert spares == [1], "as many as 9 GiB hold, each with a context, beside the 2 of a reference"
    happened.clear()
    again = device.start(Task(kernel, problems, study, default_us=(3.0,)))
    assert not any(isinstance(one, TimeFirstLaunches) for one in happened), "the first session's holds"
    assert again.environment["default_us"] == (3.0,)
    slow = True
    late = device.start(Task(kernel, problems, study, default_us=(3.0,))).baselines
    assert [(one.name, one.error) for one in late] == [
        (name, "it did not finish within 600 s") for name in ("one", "two")
    ], "a baseline that compiles for too long does not end the search"


def test_a_simulated_device_tells_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and gate, the default candidate's compile, its prediction; each before its job."""
    happened: list[object] = []
    pool = SimpleNamespace(ready_report=None)
    replaced = {
        "run_single_job": lambda pool, job, *_: happened.append(job),
        "require_built": lambda task, built: built,
        "LocalBackend": lambda *_: SimpleNamespace(cores=2, open=lambda *_: {"compile": pool, "execute": pool}),
        "Pipeline": lambda *_, **__: SimpleNamespace(begin=lambda: None, stages=lambda: (3, 1)),
    }
    for name, value in replaced.items():
        monkeypatch.setattr(f"evokern.device.sim.simulated.{name}", value)
    device = SimulatedDevice("l4", cores=2)
    assert device.stages() == (0, 0)
    kernel = load_kernel(DATA / "kernels" / "scale_rows")
    study = Study("s", "scale_rows", ("64,256",))
    device.start(Task(kernel, (kernel.problem("64,256"),), study, on_step=happened.append))
    assert [type(one).__name__ for one in happened] == [
        "StartStep", "CheckGateSensitivity", "StartStep", "Config", "StartStep", "Simulate",
    ]  # fmt: skip
    assert [(one.done, one.of) for one in happened if isinstance(one, StartStep)] == [(0, 3), (1, 3), (2, 3)]
    assert device.stages() == (3, 1)


def test_a_known_chip_keeps_its_rates_and_takes_the_drivers_limits() -> None:
    """The driver says what is there (an SM fused off, a MIG slice); rates come from the vendor's papers."""
    profile = profile_of("NVIDIA H200", (9, 0), {**VALUES, "sms": 130, "threads_per_sm": 2048})
    assert (profile.name, profile.sms, profile.threads_per_sm) == ("h200", 130, 2048)
    assert profile.dram_bytes_per_s == CHIPS["h200"].dram_bytes_per_s
    assert profile_of("NVIDIA H200", (9, 0), dict.fromkeys(VALUES, 0)) == CHIPS["h200"]


def test_an_unknown_chip_is_described_by_its_driver_and_its_nearest_kin() -> None:
    """Limits, clock and bandwidth of a chip that evokern does not know are the driver's, and say so."""
    profile = profile_of("NVIDIA GeForce RTX 5080", (12, 0), VALUES)
    assert profile.architecture == "sm_120"
    assert profile.name == "geforce-rtx-5080"
    assert profile.clock_mhz == 2610
    assert profile.dram_bytes_per_s == pytest.approx(736e9, rel=0.01)
    assert "driver" in profile.sources["dram_bytes_per_s"]
    ada = profile_of("NVIDIA L40S", (8, 9), VALUES)
    assert ada.tensor_flops_per_clock == CHIPS["l4"].tensor_flops_per_clock


@pytest.mark.skipif(bool(probe().gpus), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:3"])
def test_without_a_gpu_one_sentence_says_what_to_do(name: str) -> None:
    """Asking for a GPU that is not there names the reason and the simulated device."""
    with pytest.raises(DeviceError, match=r"no GPU found: .*; .*--device sim:l4"):
        open_device(name)


def test_a_malformed_gpu_number_is_refused() -> None:
    """`cuda:x` is no device."""
    with pytest.raises(DeviceError, match="cuda:0"):
        open_device("cuda:x")


def test_readings_are_empty_where_there_is_no_nvml() -> None:
    """Without NVML nothing is read, nothing is foreign, and the reason is kept for a note."""
    monitor = Monitor("0000:FF:00.0")
    if not monitor.problem:
        pytest.skip("NVML answers here")
    assert monitor.read() == State()
    assert monitor.foreign([1]) == []
    assert monitor.utilisation() is None
    assert monitor.problem.startswith("clocks are not recorded")


def test_only_throttling_that_is_not_normal_disturbs() -> None:
    """Under a power cap the samples before it stand; a thermal slowdown spoils all."""
    assert (State(1500.0, "power cap").disturbed, State(1500.0, "power cap").capped) == (False, True)
    assert State(1500.0, "power cap, hardware thermal slowdown").disturbed


@pytest.mark.thorough
def test_the_searching_process_leaves_torch_to_its_workers() -> None:
    """What opens a GPU imports neither torch nor CuPy, whose seconds would pass before any worker begins its own."""
    code = (
        "import sys, evokern.device.gpu.live, evokern.search._run, evokern.samplers.evo\n"
        "print([name for name in ('torch', 'cupy', 'sqlalchemy', 'alembic', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "numbers"), [("auto", [0]), ("cuda", [0]), ("cuda:3", [3]), ("cuda:0,1", [0, 1]), ("cuda:2, 0", [2, 0])]
)
def test_a_device_names_gpus(name: str, numbers: list[int]) -> None:
    """One, or several in their order."""
    assert gpu_numbers(name) == numbers


def test_all_are_those_that_the_driver_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES has been heeded by the driver; without a GPU the first one is asked for, and refused."""
    shown = tuple(Gpu(index, "NVIDIA H200", (9, 0), 2**37) for index in range(3))
    monkeypatch.setattr("evokern.device.gpu.live.probe", lambda: Driver((13, 0), shown))
    assert gpu_numbers("cuda:all") == [0, 1, 2]
    monkeypatch.setattr("evokern.device.gpu.live.probe", lambda: Driver(None))
    assert gpu_numbers("cuda:all") == [0]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cuda:x", "'x' is not a GPU index; use cuda:N"),
        ("cuda:0,", "'' is not a GPU index"),
        ("cuda:0,-1", "'-1' is not a GPU index"),
        ("cuda:1,0,1", "names GPU 1 more than once"),
    ],
)
def test_a_name_that_means_no_gpus_is_refused(name: str, told: str) -> None:
    """The message quotes the part that is wrong."""
    with pytest.raises(DeviceError, match=re.escape(told)):
        gpu_numbers(name)


def test_gpus_of_several_models_are_refused_with_the_list() -> None:
    """Their times cannot be compared."""
    gpus = [LiveGpu(n, model, f"GPU-{n}", "0:0", "13.0", CHIPS["h200"]) for n, model in enumerate(("H200", "L4"))]
    with pytest.raises(DeviceError, match=r"these are cuda:0 \(H200\), cuda:1 \(L4\)"):
        LocalGpus(gpus)


def test_gpus_are_compared_by_the_fastest_baseline_and_the_default() -> None:
    """One that was wrong has no time."""
    default = cast(Any, "the default's job")
    slow, fast = (BaselineResult(f"takes {us}", (Timing(us, (us, us), ()),)) for us in (20.0, 10.0))
    wrong = BaselineResult("wrong", error="off by one")
    found, second = calibration_of([slow, wrong, fast], MeasureBaseline, default, 5.0).references
    assert (found.name, found.job) == ("the baseline takes 10.0", MeasureBaseline(2))
    assert found.time_us(fast) == pytest.approx(10.0)
    assert (second.name, second.job) == ("the default candidate", default)
    assert [one.job for one in calibration_of([wrong], MeasureBaseline, default, 5.0).references] == [default, default]
    note = comparison_note(["cuda:0", "cuda:1"], [10.0, 10.1], found.name)
    for part in ("2 GPUs", "the baseline takes 10.0", "cuda:0 10 µs", "cuda:1 10.1 µs", "1.0%"):
        assert part in note
