"""Example arrays of CuPy: a double with its interface on the CPU, and CuPy itself on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import evokern
from evokern.tuning.call import tuned_kernel
from evokern.tuning.options import TuneOptions

SOURCE = """
__global__ void pick(const float* x, const int* index, float* y, int n) {
  int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[index[i]];
}
"""


class Array:
    """A CuPy array in host memory: what evokern may use of it, without a GPU."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)
        self.dtype, self.shape, self.strides = self._values.dtype, self._values.shape, self._values.strides
        self.flags, self.device = self._values.flags, SimpleNamespace(id=1)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self._values.__array_interface__, "version": 3}

    def __dlpack__(self, **options: Any) -> Any:
        return self._values.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._values.__dlpack_device__()

    def __getitem__(self, key: Any) -> Array:
        return Array(self._values[key._values if isinstance(key, Array) else key])

    def __rmul__(self, factor: float) -> Array:
        return Array(factor * self._values)

    def get(self) -> Any:
        return self._values


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module in place of CuPy."""
    module: Any = ModuleType("cupy")
    monkeypatch.setattr(Array, "__module__", "cupy")
    module.ndarray, module.asarray, module.from_dlpack = Array, Array, lambda one: Array(np.from_dlpack(one))
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module  # type: ignore[no-any-return]


def options(x: Any, index: Any, **changes: Any) -> dict[str, Any]:
    found = {
        "source": SOURCE, "entry": "pick", "args": [x, index, evokern.out_like(x), 64], "params": {"BLOCK": [32, 64]},
        "grid": lambda p: 64 // p.BLOCK, "block": lambda p: p.BLOCK, "reference": lambda x, index: 2 * x[index],
        "tolerance": 1e-6,
    }  # fmt: skip
    return {**found, **changes}


def examples() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.random(64, np.float32), rng.integers(0, 64, 64, np.int32)


def test_cupy_arrays_are_examples(cupy: Any) -> None:
    """Shape, dtype, range, values and device come from the array, and the reference gets arrays of CuPy."""
    x, index = examples()
    tuned = tuned_kernel(TuneOptions(**options(Array(x), Array(index))))
    kernel = tuned.kernel
    tensors = kernel.workload.tensors(kernel.problem({}), kernel.space.default())
    assert tuned.device == "cuda:1" and tensors["x"].span == (float(x.min()), float(x.max()))
    values = torch.rand(64, dtype=torch.float64)
    found = kernel.workload.reference(kernel.problem({}), {"x": values, "index": torch.from_numpy(index).double()})
    assert torch.equal(found["y"], 2 * values[index])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((64, 2), np.float32)[:, 0], r"pass cp\.ascontiguousarray\(x\)"),
        (np.zeros(64), r"pass x\.astype\('float32'\)"),
        (np.full(64, np.nan, np.float32), "infinity or NaN"),
    ],
)
def test_mistakes_with_cupy_arrays_name_its_functions(cupy: Any, x: Any, message: str) -> None:
    """The remedy is a call of CuPy."""
    with pytest.raises(evokern.UsageError, match=message):
        tuned_kernel(TuneOptions(**options(Array(x), Array(examples()[1]))))


def test_libraries_are_not_mixed(cupy: Any) -> None:
    """Arrays of CuPy and of NumPy in one call are named."""
    x, index = examples()
    with pytest.raises(evokern.UsageError, match="args mixes arrays of cupy and numpy"):
        tuned_kernel(TuneOptions(**options(Array(x), index)))


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("library", ["cupy", "numpy", "torch", "torch.cuda"])
def test_arrays_of_each_library_are_tuned_on_a_gpu(library: str, tmp_path: Path) -> None:
    """The search ends with a champion, whatever library the examples are of."""
    x, index = examples()
    given: tuple[Any, Any] = (x, index)
    if library == "cupy":
        module = pytest.importorskip("cupy")
        given = module.asarray(x), module.asarray(index)
    elif library.startswith("torch"):
        place = "cuda" if library == "torch.cuda" else "cpu"
        given = torch.from_numpy(x).to(place), torch.from_numpy(index).to(place)
    result = evokern.tune(
        **options(*given, device="cuda:0", trials=2), verify=False, db=tmp_path / "runs.db"
    )  # fmt: skip
    assert result.best is not None and len(result) == 2
