"""Bounds derived from references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from paths import ROOT

from evokern.declaration.bounds.derived import derived_bound, with_derived_bounds
from evokern.declaration.bounds.propagation import ErrorPropagation
from evokern.declaration.bounds.strict import judged_in
from evokern.declaration.kernel import Kernel, Tensor, Tolerance, Workload
from evokern.errors import KernelError
from evokern.study.discovery import load_kernel

MATMUL = load_kernel(ROOT / "kernels" / "matmul")
CONFIG, PROBLEM = MATMUL.space.default(), MATMUL.problem("8,8,8")
F = torch.nn.functional
Inputs = dict[str, torch.Tensor]


def kernel_of(
    reference: Callable[[Inputs], torch.Tensor], small: tuple[str, ...] = ("8,8,8",), **shapes: int
) -> Kernel:
    """Return a kernel whose inputs a, b and x depend on the problem."""

    def tensors(p: object, c: object) -> dict[str, Tensor]:
        sizes = {"a": (p.M, p.K), "b": (p.K, p.N), "x": (p.M, p.N), "w": (4, 3, 3, 3), "i": (1, 3, 8, 8)}  # type: ignore[attr-defined]
        given = {name: Tensor("f32", size) for name, size in sizes.items() if name in shapes}
        out = reference({name: torch.zeros(t.shape, dtype=torch.float64) for name, t in given.items()}).shape
        return given | {"y": Tensor("f32", tuple(out), "output")}

    workload = Workload(tensors, lambda p, t: {"y": reference(t)}, flops=lambda p: 1, bytes=lambda p: 1,
                        small_problems=small)  # fmt: skip
    return replace(MATMUL, workload=workload)


@pytest.mark.parametrize(
    ("reference", "names", "bound", "factor"),
    [
        (lambda t: t["a"] @ t["b"], "ab", "SumOfProducts", 9),
        (lambda t: F.linear(t["a"], t["b"].T), "ab", "SumOfProducts", 10),
        (lambda t: F.conv2d(t["i"], t["w"], padding=1), "iw", "SumOfProducts", 29),
        (lambda t: t["x"].sum(-1), "x", "Sum", 9),
        (lambda t: t["x"].mean((0, 1)), "x", "Mean", 67),
        (lambda t: t["x"].cumsum(0), "x", "Sum", 9),
        (lambda t: torch.softmax(t["x"], -1), "x", "Softmax", 28),
        (lambda t: F.rms_norm(t["x"], (8, 8)), "x", "RmsNorm", 64 / 2 + 8 + 1 + 2),
        (lambda t: F.rms_norm(t["x"], normalized_shape=[8]), "x", "RmsNorm", 8 / 2 + 8 + 1 + 2),
    ],
)
def test_one_known_operation_has_a_bound(
    reference: Callable[[Inputs], torch.Tensor], names: str, bound: str, factor: int
) -> None:
    """The factor follows from the operation and the shapes of its operands."""
    found = derived_bound(kernel_of(reference, **dict.fromkeys(names, 1)), CONFIG, PROBLEM, "y")
    assert type(found).__name__ == bound
    assert found is not None
    assert found.factors(PROBLEM, None, dict.fromkeys(names, 32))[0] == pytest.approx(factor * 2.0**-24)


def test_the_number_of_terms_follows_the_problem() -> None:
    """The bound of another problem has its own number of terms."""
    found = derived_bound(kernel_of(lambda t: t["a"] @ t["b"], a=1, b=1), CONFIG, PROBLEM, "y")
    assert found is not None
    at = MATMUL.problem("8,8,4096")
    assert found.factors(at, None, {"a": 32, "b": 32}) == (4097 * 2.0**-24,)


def test_a_reference_with_another_operation_at_another_problem_is_refused() -> None:
    """The number of terms there is unknown, so the message asks for a declared bound."""
    found = derived_bound(
        kernel_of(lambda t: t["a"] @ t["b"] if t["a"].shape[1] == 8 else t["a"] @ t["b"] * 2, a=1, b=1),
        CONFIG,
        PROBLEM,
        "y",
    )
    assert found is not None
    with pytest.raises(KernelError, match="is not one matmul at M=8 N=8 K=16"):
        found.factors(MATMUL.problem("8,8,16"), None, {"a": 32, "b": 32})


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (lambda t: torch.fft.fft(t["x"]).real, "no bound on the error of torch's '_fft_r2c' is known"),
        (lambda t: (t["x"] * 3).topk(8).values, "no bound on the error of torch's 'topk' is known"),
        (lambda t: (t["x"] * 3).long().double(), "the reference converts rounded values to integers"),
        (lambda t: (t["x"].float() @ t["x"].float()).double(), "it must compute in float64"),
    ],
)
def test_other_references_must_declare_a_bound(reference: Callable[[Inputs], torch.Tensor], message: str) -> None:
    """An unknown operation is refused by its name and the name of the output."""
    with pytest.raises(KernelError, match=f"output 'y' has neither a bound nor a tolerance, and .*{message}"):
        with_derived_bounds(kernel_of(reference, x=1))


def test_a_reference_that_raises_is_left_to_the_gate() -> None:
    """The draft of a kernel loads before its reference is written."""

    def reference(t: Inputs) -> torch.Tensor:
        if not t["x"].any():
            return t["x"]  # for the shape in `tensors`
        raise ValueError("write the reference")

    assert type(with_derived_bounds(kernel_of(reference, x=1)).workload.error["y"]).__name__ == "PropagatedBound"


def test_a_kernel_folder_without_either_gets_the_bound_when_it_is_loaded(tmp_path: Path) -> None:
    """The bound of a matrix product is derived from `t["a"] @ t["b"]`."""
    text = (ROOT / "kernels" / "matmul" / "kernel.py").read_text()
    start, end = text.index("        error={\n"), text.index("        flops=lambda")
    folder = tmp_path / "matmul"
    folder.mkdir()
    for file in (ROOT / "kernels" / "matmul").iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    (folder / "kernel.py").write_text(text[:start] + text[end:])
    loaded = load_kernel(folder)
    assert type(loaded.workload.error["c"]).__name__ == "SumOfProducts"


def test_without_a_small_problem_nothing_is_derived() -> None:
    """The outputs are unknown then; the gate names those without a limit."""
    kernel = kernel_of(lambda t: t["a"] @ t["b"], small=(), a=1, b=1)
    assert with_derived_bounds(kernel) is kernel


def test_a_study_may_judge_all_candidates_in_float32() -> None:
    """Precisions that a gene selects become float32; a kernel without bounds cannot be judged so."""
    half = MATMUL.space.with_changes(CONFIG, {"ACCUMULATOR": "fp16"})
    strict = judged_in(MATMUL, "f32")
    assert MATMUL.workload.buffers(PROBLEM, half)["c"].factors > MATMUL.workload.buffers(PROBLEM, CONFIG)["c"].factors
    assert strict.workload.buffers(PROBLEM, half) == strict.workload.buffers(PROBLEM, CONFIG)
    assert judged_in(MATMUL, "declared") is MATMUL
    plain = replace(MATMUL, workload=replace(MATMUL.workload, error={}, tolerance={"c": Tolerance(1, 1)}))
    with pytest.raises(KernelError, match=r'precision = "f32" needs bounds, but kernel matmul declares tolerances'):
        judged_in(plain, "f32")
    attention = judged_in(load_kernel(ROOT / "kernels" / "attention_fp8"), "f32").workload.error["o"]
    assert not any(callable(getattr(attention, name)) for name in ("probabilities", "exponential", "scores", "merge"))
    assert attention.score_bits is None  # type: ignore[attr-defined]


def test_a_reference_may_reshape_a_transposed_tensor() -> None:
    """A copy in the order of the rows keeps that order, so that it has a view with other extents."""
    x = torch.rand(3, 4, dtype=torch.float64)
    with ErrorPropagation([x]) as mode:
        y = x.T.reshape(2, 6) * 3
        assert mode.of(y).size.shape == y.shape
    assert torch.equal(y, x.T.contiguous().view(2, 6) * 3)
