"""Packages of kernels that were tuned with a call: at other shapes than the tuned one, the reference runs."""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packed import run_python

import evokern
from evokern.declaration.kernel import Kernel
from evokern.errors import KernelError
from evokern.hardware.profiles import CHIPS
from evokern.pack import write_package
from evokern.pack.baseline_code import baselines_of
from evokern.pack.from_study import describe
from evokern.pack.variant import variant_of
from evokern.results import load_study
from evokern.tuning.call import tuned_kernel
from evokern.tuning.options import TuneOptions

SOURCE = """
__global__ void scale(const float* x, float* y, float factor, int n) {
  int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < n) y[i] = sqrtf(x[i]) * factor;
}
"""
POWER = 0.5


def reference(x: torch.Tensor, factor: float) -> torch.Tensor:
    """Return the result at any shape; the parameters name the arguments, and n is not needed."""
    return _power(x) * factor


def _power(x: torch.Tensor) -> torch.Tensor:
    return x**POWER


def tuned(own: Any = reference, **changes: Any) -> Kernel:
    """Return the kernel of a call."""
    x = torch.rand(4, 64) + 1
    arguments: dict[str, Any] = {
        "source": SOURCE, "entry": "scale", "args": [x, evokern.out_like(x), 0.5, 256], "params": {"BLOCK": [64, 128]},
        "grid": lambda p: 256 // p.BLOCK, "block": lambda p: p.BLOCK, "reference": own, "tolerance": 1e-5,
    }  # fmt: skip
    return tuned_kernel(TuneOptions(**{**arguments, **changes})).kernel


def imported(folder: Path, kernel: Kernel) -> Any:
    """Write a package with one variant, named as its folder, and import it."""
    problem = kernel.problem({})
    variant = variant_of(kernel, kernel.space.default(), problem, CHIPS["l4"], "default")
    write_package(folder, describe(kernel, folder.name, (variant,)), baselines_of(kernel), {})
    sys.path.insert(0, str(folder))
    try:
        return import_module(folder.name)
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A package with one variant, imported."""
    return imported(tmp_path_factory.mktemp("tuned") / "my_scale", tuned())


def test_another_shape_runs_the_reference(package: Any) -> None:
    """Also one with another rank, also in a compiled function; the reason names the tuned shape."""
    torch._dynamo.reset()
    function = torch.compile(package.scale, fullgraph=True, backend="aot_eager")
    for shape in ((4, 64), (5, 64), (2, 3, 7)):
        x = torch.rand(shape) + 1
        torch.testing.assert_close(package.scale(x), x.sqrt() * 0.5)
        torch.testing.assert_close(function(x), x.sqrt() * 0.5)
    on_gpu = package._operator
    shape = on_gpu.shape_of([torch.rand(5, 64)], [])
    assert shape.evokern_mode == -1
    assert on_gpu.rules.choose(shape) == -1
    assert on_gpu.rules.choose(on_gpu.rules.Shape(89, 0)) == 0


def test_an_input_that_is_no_tensor_is_named(package: Any) -> None:
    """Also without gradients, and in `explain`; types are looked at only after a failure."""
    for call in (package.scale, torch.no_grad()(package.scale), package.explain):
        for wrong in (np.ones((4, 64), np.float32), None, 1.0):
            with pytest.raises(TypeError, match=f"::scale: x is of type {type(wrong).__name__}; pass a tensor"):
                call(wrong)


def step(x: torch.Tensor, done: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both arguments of `step` after a call."""
    return torch.where(done, 2 * x, x), ~done


def test_inputs_that_a_call_changes(tmp_path: Path) -> None:
    """A bool tensor is changed in place; a gradient and an input with gaps are refused, also with copy=True."""
    x, done = torch.rand(4, 64) + 1, torch.rand(4, 64) > 0.5
    kernel = tuned(
        step, source=SOURCE.replace("const float* x, float* y, float factor, int n", "float* x, bool* done").replace(
            "if (i < n) y[i] = sqrtf(x[i]) * factor;", "if (done[i]) x[i] *= 2; done[i] = !done[i];"
        ), args=[evokern.inout(x), evokern.inout(done)],
    )  # fmt: skip
    package = imported(tmp_path / "my_step", kernel)
    wanted = step(x, done)
    assert package.scale(x, done) is None
    assert torch.equal(x, wanted[0])
    assert torch.equal(done, wanted[1])
    with pytest.raises(RuntimeError, match=r"x is not contiguous: .*the call changes it, so pass a contiguous tensor"):
        package.scale(torch.rand(64, 4).t(), done, copy=True)
    with pytest.raises(RuntimeError, match="has no gradient; call it under"):
        package.scale(torch.rand(4, 64, requires_grad=True) * 1, done)
    with pytest.raises(RuntimeError, match=r"done has the data type torch\.int32; the operator takes torch\.uint8$"):
        package.scale(x, done.int())
    assert "all checks passed" in run_python(tmp_path / "my_step", "-m", "my_step.selftest")


def test_the_package_passes_its_self_test(package: Any) -> None:
    """The reference was copied with what it uses, so the package needs neither evokern nor this file."""
    folder = Path(package.__file__).parents[1]
    assert "all checks passed" in run_python(folder, "-m", "my_scale.selftest")
    text = (folder / "my_scale/_baselines.py").read_text()
    assert "POWER = 0.5" in text
    assert "evokern" not in text.replace("by evokern", "")


def test_a_lambda_and_a_function_of_torch_are_copied() -> None:
    """Their expression is enough."""
    for own, text in ((lambda x: x.sqrt() * 0.5, "lambda x: x.sqrt() * 0.5"), (torch.sqrt, "torch.sqrt")):
        module = baselines_of(tuned(own))
        assert text in module.text
        namespace: dict[str, Any] = {}
        exec(module.text, namespace)
        assert namespace["REFERENCE"]({}, {"x": torch.ones(1)})["y"].dtype is torch.float32


def test_a_reference_that_cannot_be_copied_is_refused_with_its_reason() -> None:
    """A nested function, a partial, a local value, and arrays of another library."""
    factor = 0.5

    def nested(x: torch.Tensor) -> torch.Tensor:
        return x.sqrt() * 0.5

    def given(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x.sqrt() * factor

    for own, message in (
        (nested, "defined inside another function"),
        (lambda x: x.sqrt() * factor, r"it uses factor, which test_tuned_package.py does not define"),
        (functools.partial(given, factor=0.5), r"it is a functools.partial"),
    ):
        with pytest.raises(KernelError, match=f"cannot be copied into a package: .*{message}"):
            baselines_of(tuned(own))
    x = np.linspace(1, 2, 256, dtype=np.float32)
    with pytest.raises(KernelError, match="takes arrays of numpy, but an operator of torch needs"):
        baselines_of(tuned(lambda x: np.sqrt(x) * 0.5, args=[x, evokern.out_like(x), 0.5, 256]))


@pytest.mark.slow
def test_a_result_of_tune_is_exported(tmp_path: Path) -> None:
    """`result.export(format="torch")` writes the package; a later process needs the reference."""
    x = torch.rand(256) + 1
    result = evokern.tune(
        SOURCE, "scale", [x, evokern.out_like(x), 0.5, 256], {"BLOCK": [64]}, grid=4, block=64,
        reference=reference, tolerance=1e-5, device="sim:l4", trials=1, db=tmp_path / "evokern.db",
    )  # fmt: skip
    folder = result.export(tmp_path / "packed", format="torch")
    assert "all checks passed" in run_python(folder, "-m", "packed.selftest")
    script = f"import evokern; evokern.load_study(db={str(tmp_path / 'evokern.db')!r}).export('other', format='torch')"
    with pytest.raises(AssertionError, match=r"reference of study scale is not known here.*pass --reference"):
        run_python(tmp_path, "-c", script)
    assert load_study(db=tmp_path / "evokern.db").name == "scale"
