"""What the live device is made of, without a GPU: profiles from the driver, clocks, imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evokern.device.gpu.nvml import Monitor, State
from evokern.device.gpu.profile import profile_of
from evokern.device.opening import open_device
from evokern.errors import DeviceError
from evokern.hardware.driver import probe
from evokern.hardware.profiles import CHIPS

VALUES = {
    "threads_per_block": 1024, "shared_bytes_static": 49152, "clock_khz": 2_610_000, "sms": 84,
    "memory_clock_khz": 11_501_000, "bus_bits": 256, "l2_bytes": 67_108_864, "threads_per_sm": 1536,
    "shared_bytes_per_sm": 102_400, "registers_per_sm": 65_536, "shared_bytes_per_block": 101_376,
    "blocks_per_sm": 24, "shared_bytes_reserved": 1024,
}  # fmt: skip


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
    with pytest.raises(DeviceError, match=r"there is no GPU to search on: .*; .*--device sim:l4"):
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
    """A power cap is how a busy GPU runs; a thermal slowdown spoils samples."""
    assert not State(1500.0, "power cap").disturbed
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
