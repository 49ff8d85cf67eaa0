"""`init` drafts no block that the kernel's launch bounds forbid."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.study.discovery import load_kernel

SOURCE = """
#define MOST 128
__global__ void %s twice(const float* x, float* y, int n) {
  int i = (blockIdx.x * blockDim.x + threadIdx.x) * blockDim.y + threadIdx.y;
  if (i < n) y[i] = 2 * x[i];
}
void run(const float* x, float* y, int n) { twice<<<(n + 31) / 32, %s>>>(x, y, n); }
"""


@pytest.mark.parametrize(
    ("bounds", "block", "values"),
    [
        ("__launch_bounds__(128)", "128", {"BLOCK_X": (32, 64, 128)}),
        ("__launch_bounds__(MOST * 2, 2)", "128", {"BLOCK_X": (32, 64, 128, 256)}),
        ("__launch_bounds__(128)", "dim3(32, 4)", {"BLOCK_X": (16, 32), "BLOCK_Y": (2, 4)}),
    ],
)
def test_values_above_the_bound_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: str, block: str, values: dict[str, tuple[int, ...]]
) -> None:
    """Each value fits the bound with the other extents of the file's launch."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twice.cu").write_text(SOURCE % (bounds, block))
    done = CliRunner().invoke(app, ["init", "twice.cu"])
    assert done.exit_code == 0, done.output
    drafted = {gene.name: gene.values for gene in load_kernel(tmp_path / "kernels" / "twice").genes}
    found = {name: drafted.get(name) for name in values}
    assert found == values
