"""`evaluate` on a GPU: interval, speedup over torch, a crash and a hang beside right sources, sources a minute."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from paths import DATA

import evokern
from evokern.analysis.evaluate import SourceResult

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

FOLDER = DATA / "kernels" / "scale_rows"
HEAD = 'extern "C" __global__ void scale_rows(const float* x, float* y, int rows, int cols, float factor)'
ROW = """ {
  for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += gridDim.x * blockDim.x) {
    float largest = 1e-30f;
    for (int i = 0; i < cols; ++i) largest = fmaxf(largest, fabsf(x[row * cols + i]));
    for (int i = 0; i < cols; ++i) y[row * cols + i] = factor * (x[row * cols + i] / largest);
    if (rows < 0) y[0] = %d.0f;
  }
}
"""
PER_MINUTE, CORES = 300, 16
"""Sources a minute, compile included, and the cores that it takes."""


def test_honest_and_faulty_sources_side_by_side() -> None:
    """Right sources have interval and speedup; crash, hang and a wrong answer are each one's own."""
    sources = {
        "own.cu": (FOLDER / "kernel.cu").read_text(encoding="utf-8"),
        "crash.cu": HEAD + " {\n  y[1ll << 40] = x[0];\n}\n",
        "hang.cu": HEAD + " {\n  while (true) { ((volatile float*)y)[0] = x[0]; }\n}\n",
        "wrong.cu": HEAD + " {\n  y[threadIdx.x] = x[threadIdx.x];\n}\n",
        "prints.cu": HEAD + ' {\n  if (blockIdx.x + threadIdx.x == 0) printf("HEARD OUTSIDE\\n");\n}\n',
        "prints_all.cu": HEAD + ' {\n  for (int i = 0; i < 64; ++i) printf("%d %d\\n", i, threadIdx.x);\n}\n',
        "huge.cu": "__device__ float all[1ull << 37];\n" + HEAD + " {\n  y[0] = all[rows];\n}\n",
        "again.cu": HEAD + ROW % 1,
    }
    given = [evokern.ForeignSource(name, text) for name, text in sources.items()]
    results = {one.source: one for one in evokern.evaluate(FOLDER, given, problem="4096,1024", device="cuda:0")}
    own = results["own.cu"]
    assert own.right, own.reason
    assert own.time_us is not None
    assert own.ci95_us is not None
    assert own.ci95_us[0] <= own.time_us <= own.ci95_us[1]
    assert own.baseline is not None
    assert own.baseline[0] == "torch"
    assert own.speedup == own.baseline[1] / own.time_us
    assert own.speedup > 1
    outcomes = {name: one.outcome for name, one in results.items()}
    assert outcomes["crash.cu"] == "crashed"
    assert outcomes["hang.cu"] == "hung"
    assert results["wrong.cu"].check == results["prints.cu"].check == "tolerance"
    # 64 lines of 4096 blocks' threads: minutes on an H200, where one line of each takes 3 s.
    assert outcomes["prints_all.cu"] == "hung"
    assert "let one thread print" in results["prints_all.cu"].reason
    assert not results["huge.cu"].right
    assert results["again.cu"].right, "a crash and a hang before it do it no harm"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < CORES, reason=f"fewer than {CORES} cores")
def test_sources_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Different sources at a small problem, compiled anew, go through one warm worker at 300 a minute or more."""
    monkeypatch.setenv("EVOKERN_CACHE", str(tmp_path / "cache"))
    done: list[SourceResult] = []
    with evokern.Evaluator(FOLDER, problem="64,256", device="cuda:0") as judge:
        began = time.monotonic()
        results = judge.evaluate_all((HEAD + ROW % number for number in range(200)), done.append)
        seconds = time.monotonic() - began
    assert {one.outcome for one in results} == {"measured"}, "no two are the same program"
    assert len(done) == 200
    rate = 60 * len(results) / seconds
    print(f"{rate:.0f} sources a minute")
    assert rate >= PER_MINUTE
