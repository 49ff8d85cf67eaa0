"""A sleeping warp takes the time that it asks for, and the clocks that it reads agree."""

from __future__ import annotations

import numpy as np
import pytest
from simt_tools import module_of

from evokern import simt
from evokern.hardware.profiles import CHIPS
from evokern.simt.time_model.latencies import latencies_of
from evokern.simt.time_model.pipes import PipeUse
from evokern.simt.time_model.timeline import Timeline

L4 = CHIPS["l4"]


def _run(body: str) -> tuple[float, np.ndarray]:
    """Return the predicted microseconds of a block of two warps, and what its threads wrote."""
    source = f'extern "C" __global__ void nap(unsigned* out, unsigned ns) {{\n{body}\n}}'
    memory, module = simt.Memory(), module_of(source)
    out = memory.allocate("out", np.zeros(64, np.uint32))
    args = [out, np.uint32(1000)]
    counters = simt.launch(
        module, simt.LaunchSpec("nap", (1, 1, 1), (64, 1, 1)), args, memory, simt.LaunchOptions(chip=L4)
    ).counters
    assert counters is not None
    latencies = latencies_of(L4)
    timeline = Timeline(module.program("nap"), latencies, counters.sleeps(L4.clock_mhz), latencies.l2, PipeUse())
    (walk,) = (timeline.walk(record, counters.warps_per_block) for record in counters.record)
    return max(walk.blocks) / L4.clock_mhz, out.read().view(np.uint32)


@pytest.mark.parametrize(
    ("body", "expected_us"),
    [
        ("__nanosleep(ns); *out = 1;", 1.0),
        ("for (int i = 0; i < 40; i++) __nanosleep(ns); *out = 1;", 40.0),
        ("for (int i = 0; i < 40; i++) __nanosleep(4000000000u); *out = 1;", 40_000.0),
        ("__nanosleep(threadIdx.x % 32 == 7 ? ns : 0); *out = 1;", 1.0),
    ],
)
def test_a_sleep_takes_its_time(body: str, expected_us: float) -> None:
    """One call takes at most 1 ms, whatever it asks for, and a warp as long as the longest of its lanes."""
    assert _run(body)[0] == pytest.approx(expected_us, rel=0.1, abs=0.2)


def test_the_clocks_go_on_during_a_sleep() -> None:
    """A loop that waits for the timer with sleeps ends after as many of them as on a GPU."""
    timer = 'asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));'
    body = (
        f"unsigned long long now; {timer} const unsigned long long end = now + 1000000; unsigned naps = 0;"
        f" while (now < end) {{ __nanosleep(100000); naps++; {timer} }} out[threadIdx.x] = naps;"
    )
    predicted_us, naps = _run(body)
    assert set(naps.tolist()) <= {10, 11}
    assert predicted_us == pytest.approx(1000, rel=0.15)
