"""`init` declares what a call changes in the file's variables, and nothing else of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.study.discovery import load_kernel

SOURCE = """
__device__ int codes[4] = {1, 2, 3, 4};
__device__ unsigned total;
__device__ unsigned tickets[64];
__device__ const float factor[2] = {2.0f, 3.0f};
namespace kept { __device__ float last[300]; }
__global__ void scale(const float* x, float* y, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = x[i] * factor[0];
  if (i < 300) kept::last[i] = 1.0f;
  if (threadIdx.x == 0) { atomicAdd(&total, 1u); atomicAdd(&tickets[blockIdx.x % 64], 1u); }
  if (i == 0) codes[1]++;
  __syncthreads();
  if (threadIdx.x == 0) atomicSub(&tickets[blockIdx.x % 64], 1u);
}
void run(const float* x, float* y, int n) { scale<<<(n + 127) / 128, 128>>>(x, y, n); }
"""


def drafted(folder: Path, source: str) -> str:
    (folder / "scale.cu").write_text(source)
    done = CliRunner().invoke(app, ["init", "scale.cu"])
    assert done.exit_code == 0, done.output
    return (folder / "kernels" / "scale" / "kernel.py").read_text()


def test_what_runs_leave_changed_is_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros as one byte, others as the bytes of the file; tickets that go back and tables need no line."""
    monkeypatch.chdir(tmp_path)
    text = drafted(tmp_path, SOURCE)
    kernel = load_kernel(tmp_path / "kernels" / "scale")
    codes = b"".join(number.to_bytes(4, "little") for number in (1, 2, 3, 4))
    assert dict(kernel.state) == {"codes": codes, "total": 0, "kept::last": 0}
    assert "# Runs show that a call changes these variables." in text


def test_where_nothing_runs_the_file_s_variables_are_guesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writable ones by the text, each marked as a guess."""
    monkeypatch.chdir(tmp_path)
    text = drafted(tmp_path, SOURCE.replace("__syncthreads();", "__syncthreads(); free(malloc(n));"))
    assert '"total": 0,  # guess' in text
    assert "# A call may change these variables." in text
    assert '"factor": 0' not in text
