"""Bounds on rounding errors: they hold for every order of additions, adapt to the shape, and find small faults."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from gate_tools import CPU, SETTINGS, Fake
from paths import ROOT

from evokern import Attention, Elementwise, LayerNorm, Mean, RmsNorm, Softmax, Sum, SumOfProducts
from evokern.analysis.check.rounding import bound_results
from evokern.declaration.bounds import ErrorBound, sum_factor
from evokern.declaration.bounds.derived import with_derived_bounds
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Baseline, Kernel, Problem, Slice, Tensor, Tolerance, Workload
from evokern.errors import KernelError
from evokern.gate import Gate, Verdict
from evokern.gate.comparison import tolerances
from evokern.gate.references import STORED_GROWTH, answers_of
from evokern.gate.slicing import SlicedTensors, upload
from evokern.study.discovery import load_kernel

MATMUL = load_kernel(ROOT / "kernels" / "matmul")
DEFAULT = MATMUL.space.default()

Faulty = Callable[[dict[str, torch.Tensor]], None]


def product(buffers: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return buffers["a"].to(dtype) @ buffers["b"].to(dtype)


def gate_of(problem: str, kernel: Kernel = MATMUL, config: Config = DEFAULT) -> tuple[Gate, dict[str, Tensor]]:
    at = kernel.problem(problem)
    return Gate(kernel, at, replace(SETTINGS, runs=1), CPU), kernel.workload.buffers(at, config)


def verdict_of(problem: str, fault: Faulty | None = None, config: Config = DEFAULT, kernel: Kernel = MATMUL) -> Verdict:
    gate, tensors = gate_of(problem, kernel, config)

    def run(buffers: dict[str, torch.Tensor], number: int) -> None:
        buffers["c"].copy_(product(buffers))
        if fault is not None:
            fault(buffers)

    return gate.check(Fake(run), [], tensors)


@pytest.mark.parametrize("problem", ["16,16,16", "5,136,1000", "8,24,13824", "3,8,65536", "16,16,4000,dtype=bf16"])
def test_a_correct_product_passes_at_every_depth(problem: str) -> None:
    """Rounding in float32 stays below the bound, however many products are added."""
    assert verdict_of(problem).passed


def dropped_term(buffers: dict[str, torch.Tensor]) -> None:
    c, a, b = buffers["c"], buffers["a"].double(), buffers["b"].double()
    terms = a[2] * b[:, 3]
    if bool(terms.any()):
        c[2, 3] = c[2, 3].double() - terms[terms.nonzero()[-1, 0]]


def half(buffers: dict[str, torch.Tensor]) -> None:
    buffers["c"].mul_(0.5)


def stale_row(buffers: dict[str, torch.Tensor]) -> None:
    buffers["c"][1] = buffers["c"][0]


def half_of_the_grid(buffers: dict[str, torch.Tensor]) -> None:
    buffers["c"][buffers["c"].shape[0] // 2 :] = 0


def one_ulp_twice(buffers: dict[str, torch.Tensor]) -> None:
    buffers["c"][0, 0] = buffers["c"][0, 0] * (1 + 2.0**-9) + 2.0**-24


def last_step_missing(buffers: dict[str, torch.Tensor]) -> None:
    buffers["c"].copy_(buffers["a"][:, :-16].float() @ buffers["b"][:-16].float())


@pytest.mark.parametrize(
    "fault",
    [dropped_term, half, stale_row, half_of_the_grid, one_ulp_twice, last_step_missing],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("problem", ["16,24,64", "8,24,13824"])
def test_a_wrong_product_fails(problem: str, fault: Faulty) -> None:
    """The bound is wide on normal inputs with many terms; exact inputs find what it leaves."""
    verdict = verdict_of(problem, fault)
    assert not verdict.passed
    assert verdict.evidence["check"] == "tolerance"


def test_every_order_of_additions_is_exact_on_exact_inputs() -> None:
    """Sums of exact inputs have the same bits in float16, one term after another, as in float64."""
    gate, tensors = gate_of("8,8,4096")
    bench = gate.bench(tensors, ("exact",), 1)
    bench.refresh()
    given = bench.given(0)
    a, b = given["a"].numpy().astype(np.float16), given["b"].numpy().astype(np.float16)
    total = np.zeros((8, 8), np.float16)
    for k in range(4096):
        total += np.outer(a[:, k], b[k])
    assert np.array_equal(total.astype(np.float64), bench.reference(0)["c"].numpy())
    assert bench.reference(0).errors == {}
    assert 0 < np.count_nonzero(total)


def test_a_less_precise_accumulator_is_judged_by_its_own_bound() -> None:
    """Sums in float16 fail the bound of float32 and pass the bound of a candidate that selects float16."""

    def in_fp16(buffers: dict[str, torch.Tensor]) -> None:
        a, b = buffers["a"].numpy(), buffers["b"].numpy()
        total = np.zeros(buffers["c"].shape, np.float16)
        with np.errstate(over="ignore", invalid="ignore"):
            for k in range(0, a.shape[1], 8):
                total = (total + (a[:, k : k + 8].astype(np.float32) @ b[k : k + 8].astype(np.float32))).astype(
                    np.float16
                )
        buffers["c"].copy_(torch.from_numpy(total))

    precise, own = DEFAULT, DEFAULT.replace(ACCUMULATOR="fp16")
    assert not verdict_of("16,16,96", in_fp16, precise).passed
    assert verdict_of("16,16,96", in_fp16, own).passed


def test_a_verdict_names_the_parts_of_the_bound() -> None:
    """The message has the element, its error, the bound, and what the bound is for."""
    message = verdict_of("16,24,64", half).evidence["message"]
    assert "for the arithmetic" in message and "for rounding to f16" in message


@pytest.mark.parametrize("count", [7, 256, 5000])
@pytest.mark.parametrize("order", ["forward", "sorted", "pairwise"])
def test_the_factor_covers_every_order(count: int, order: str) -> None:
    """Float32 sums in any order, of one sign and of both, stay below the factor times the absolute sum."""
    rng = np.random.default_rng(count)
    for values in (rng.standard_normal(count), abs(rng.standard_normal(count))):
        terms = values.astype(np.float32)
        if order == "sorted":
            terms = np.sort(terms)[::-1]
        total = np.sum(terms) if order == "pairwise" else np.add.accumulate(terms, dtype=np.float32)[-1]
        error = abs(float(total) - float(np.sum(terms.astype(np.float64))))
        assert error <= sum_factor(count, "f32", 32) * float(np.abs(terms.astype(np.float64)).sum())


def test_factors_grow_with_the_terms_and_the_roundoff() -> None:
    """Tensor cores add the truncation of each step; narrower accumulators and 8-bit products have larger bounds."""
    assert sum_factor(64, "f32", 32) == 64 * 2.0**-24
    assert sum_factor(64, "f32", 16) == 64 * 2.0**-24 + 8 * 2.0**-23
    assert sum_factor(64, "f64", 64) == 64 * 2.0**-53
    assert sum_factor(64, "f16", 16) - sum_factor(64, "f32", 16) == 8 * 2.0**-11
    assert sum_factor(64, "f32", 8) > 1000 * sum_factor(64, "f32", 16)


# ------------------------------------------------------------------------------------------------- other operations


def kernel_of(reference: Callable[..., torch.Tensor], bound: ErrorBound) -> Kernel:
    """Return a kernel with inputs x and w, and the output y of a function of them."""
    shape, cols, dtype = (4, 333), 333, "f32"

    def tensors(p: object, c: object) -> dict[str, Tensor]:
        return {"x": Tensor(dtype, shape), "w": Tensor(dtype, (cols,)), "y": Tensor(dtype, out, "output")}

    given = {"x": torch.ones(shape, dtype=torch.float64), "w": torch.ones(cols, dtype=torch.float64)}
    out = tuple(reference(given).shape)
    workload = Workload(
        tensors, lambda p, t: {"y": reference(t)}, error={"y": bound}, flops=lambda p: 1, bytes=lambda p: 1
    )
    return replace(MATMUL, workload=workload)


def normed(t: dict[str, torch.Tensor]) -> torch.Tensor:
    return t["x"] * torch.rsqrt(t["x"].square().mean(-1, keepdim=True) + 1e-5) * t["w"]


def layer_normed(t: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.layer_norm(t["x"], (333,), t["w"], t["w"] / 2)


def layer_normed_in_one_pass(t: dict[str, torch.Tensor]) -> torch.Tensor:
    mean = t["x"].mean(-1, keepdim=True)
    variance = (t["x"].square().mean(-1, keepdim=True) - mean.square()).clamp_min(0)
    return (t["x"] - mean) * torch.rsqrt(variance + 1e-5) * t["w"]


OPERATIONS = {
    "sum": (lambda t: t["x"].sum(-1), Sum(lambda p: 333)),
    "mean": (lambda t: t["x"].mean(-1), Mean(333)),
    "softmax": (lambda t: torch.softmax(t["x"], -1), Softmax(333)),
    "rmsnorm": (normed, RmsNorm(333)),
    "layernorm": (layer_normed, LayerNorm(333, weight="w", bias="w")),
    "layernorm in one pass": (layer_normed_in_one_pass, LayerNorm(333, weight="w", bias=None, one_pass=True)),
    "gelu": (lambda t: torch.nn.functional.gelu(t["x"]), Elementwise(16, inputs=("x",))),
    "saxpy": (lambda t: t["x"] * 3 + t["w"], Elementwise(1, inputs=("x", "w"))),
    "dot": (lambda t: t["x"] @ t["w"], SumOfProducts(333, ("x", "w"))),
    "function": (lambda t: t["x"] * t["w"], lambda p, t: (t["x"] * t["w"]).abs() * 2.0**-23),
}


@pytest.mark.parametrize("name", [*OPERATIONS])
def test_ready_made_bounds_hold_in_float32_and_find_an_off_by_one(name: str) -> None:
    """The operation in float32 passes on every kind of inputs; a shift by one element fails."""
    reference, bound = OPERATIONS[name]
    kernel = kernel_of(reference, bound)  # type: ignore[arg-type]
    tensors = kernel.workload.buffers(Problem({}), DEFAULT)

    def run(buffers: dict[str, torch.Tensor], shift: int = 0) -> None:
        given = {key: buffers[key].roll(shift, -1) if key == "x" else buffers[key] for key in ("x", "w")}
        found = reference(given)
        if shift and found.shape == buffers["x"].shape:
            found = found.clone()
        if shift and found.ndim == 1:  # a sum that misses its last element
            found = reference({"x": buffers["x"] * (torch.arange(333) < 332), "w": buffers["w"]})
        buffers["y"].copy_(found)

    gate = Gate(kernel, Problem({}), replace(SETTINGS, runs=1), CPU)
    assert gate.check(Fake(lambda buffers, n: run(buffers)), [], tensors).passed
    assert not gate.check(Fake(lambda buffers, n: run(buffers, 1)), [], tensors).passed


@pytest.mark.parametrize("centred", [False, True], ids=["rmsnorm", "layernorm"])
def test_a_missing_last_element_is_found_in_long_rows(centred: bool) -> None:
    """The bound of long rows covers one missing element of dense rows; a row with one element shows it."""
    terms = 65536
    bound = LayerNorm(terms, weight="w", bias="w") if centred else RmsNorm(terms)
    kernel = kernel_of(layer_normed if centred else normed, bound)
    tensors = kernel.workload.buffers(Problem({}), DEFAULT)

    def run(buffers: dict[str, torch.Tensor], used: int) -> None:
        x, w = buffers["x"], buffers["w"]
        mean = x[:, :used].sum(-1, keepdim=True) / 333 * centred
        variance = (x[:, :used] - mean).square().sum(-1, keepdim=True) / 333
        buffers["y"].copy_((x - mean) * torch.rsqrt(variance + 1e-5) * w + w / 2 * centred)

    for seed in range(5):
        gate = Gate(kernel, Problem({}), replace(SETTINGS, runs=1), CPU, seed)
        assert gate.check(Fake(lambda buffers, n: run(buffers, 333)), [], tensors).passed
        verdict = gate.check(Fake(lambda buffers, n: run(buffers, 332)), [], tensors)
        assert not verdict.passed and "edges" in verdict.evidence["failed_sets"]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("size", ["1,2,64,64", "1,1,328,128"])
def test_attention_with_rounded_weights_passes(size: str, dtype: str) -> None:
    """Weights rounded to the type of the values stay below the bound; one wrong key does not."""
    kernel = load_kernel(ROOT / "kernels" / "attention")
    at = kernel.problem(f"{size},dtype={dtype}")
    tensors = kernel.workload.buffers(at, kernel.space.default())
    narrow = torch.float16 if dtype == "f16" else torch.bfloat16

    def run(buffers: dict[str, torch.Tensor], wrong: bool = False) -> None:
        q, k, v = (buffers[name].float() for name in "qkv")
        weights = torch.softmax(q @ k.transpose(-1, -2) * at.D**-0.5, -1).to(narrow).float()
        if wrong:
            weights[..., -1] = 0
        buffers["o"].copy_(weights @ v)

    gate = Gate(kernel, at, replace(SETTINGS, runs=1), CPU)
    assert gate.check(Fake(lambda buffers, n: run(buffers)), [], tensors).passed
    assert not gate.check(Fake(lambda buffers, n: run(buffers, wrong=True)), [], tensors).passed


def test_a_baseline_may_have_a_wider_bound_than_candidates() -> None:
    """Errors of half a baseline's bound pass as a baseline and fail as a candidate."""
    kernel = load_kernel(ROOT / "kernels" / "attention_fp8")
    at, config, baseline = kernel.problem("1,2,72,64"), kernel.space.default(), kernel.workload.baselines[0]

    own, limits = kernel.workload.buffers(at, config, baseline), tolerances(kernel, None, None)

    def run(buffers: dict[str, torch.Tensor], number: int) -> None:
        answers = answers_of(kernel, at, own, limits, buffers, exact=False)
        buffers["o"].copy_((answers["o"] + answers.errors["o"] / 2).clamp(-65504, 65504))

    gate = Gate(kernel, at, replace(SETTINGS, runs=1), CPU)
    for judged_as, passes in ((None, False), (baseline, True), (None, False)):
        tensors = kernel.workload.buffers(at, config, judged_as)
        assert gate.check(Fake(run), [], tensors).passed is passes


@pytest.mark.parametrize(
    "function",
    [
        lambda x, b: torch.nn.functional.gelu(x + b),
        lambda x, b: torch.nn.functional.silu(x) * b,
        lambda x, b: ((x + b) * 0.5 + x).exp() - b,
    ],
)
def test_eager_torch_in_16_bits_is_a_baseline_of_a_derived_bound(function: Callable[..., torch.Tensor]) -> None:
    """PyTorch rounds the result of each operation; a candidate that does so is wrong, and so is a wrong baseline."""

    def tensors(p: object, c: object) -> dict[str, Tensor]:
        return {"a": Tensor("f16", (32, 64)), "b": Tensor("f16", (64,)), "y": Tensor("f16", (32, 64), "output")}

    def eager(p: Problem, t: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"y": function(t["a"], t["b"])}

    workload = Workload(tensors, eager, flops=lambda p: 1, bytes=lambda p: 1, baselines=(Baseline("eager", eager),),
                        small_problems=("8,8,8",))  # fmt: skip
    kernel = with_derived_bounds(replace(MATMUL, workload=workload))
    at, config, (baseline,) = kernel.problem("8,8,8"), kernel.space.default(), kernel.workload.baselines
    gate = Gate(kernel, at, replace(SETTINGS, runs=1), CPU)

    def passes(judged_as: Baseline | None, fault: float = 0.0) -> bool:
        run = Fake(lambda t, n: t["y"].copy_(eager(at, t)["y"] * (1 + fault)))
        return gate.check(run, [], kernel.workload.buffers(at, config, judged_as)).passed

    assert passes(baseline) and not passes(None) and not passes(baseline, 0.05)


@pytest.mark.parametrize(("bound", "other"), [(RmsNorm(8), "declares SumOfProducts"), (None, "error['c'] is None")])
def test_a_bound_of_a_baseline_is_of_the_workloads_kind(bound: object, other: str) -> None:
    """The message names the baseline and both bounds."""
    with pytest.raises(KernelError, match=re.escape(other)):
        declared(baselines=(Baseline("eager", lambda p, t: {}, error={"c": bound}),))  # type: ignore[dict-item]


# ------------------------------------------------------------------------------------------------- stored references


@pytest.mark.parametrize("folder", ["matmul", "rmsnorm", "attention", "attention_fp8"])
def test_bounds_of_renewed_slices_are_those_of_the_whole(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large problem renews slices; its stored bounds then equal new ones for the same inputs."""
    monkeypatch.setattr("evokern.gate.renewal.LARGE_ELEMENTS", 0)
    kernel = load_kernel(ROOT / "kernels" / folder)
    text = {"matmul": "40,24,64", "rmsnorm": "70,128"}.get(folder, "2,3,40,64")
    at = kernel.problem(text)
    tensors = kernel.workload.buffers(at, kernel.space.default())
    gate = Gate(kernel, at, replace(SETTINGS, runs=1), CPU, 3)
    bench = gate.bench(tensors, gate.kinds(tensors), 1)
    assert bench.large
    bench.refresh()
    for _ in range(3):
        bench.verify()
        bench.refresh()
    limits = tolerances(kernel, None, None)
    for index, kind in enumerate(bench.kinds):
        answers = bench.reference(index)
        fresh = answers_of(kernel, at, tensors, limits, bench.given(index), exact=kind == "exact")
        assert set(answers.errors) == set(fresh.errors)
        for name, error in answers.errors.items():
            assert torch.allclose(error.double(), fresh.errors[name].double(), rtol=0.03, atol=1e-30, equal_nan=True)


# ------------------------------------------------------------------------------------------------- declarations


def declared(**changes: object) -> Workload:
    return replace(MATMUL.workload, **changes)  # type: ignore[arg-type]


def test_a_bound_and_a_tolerance_exclude_each_other() -> None:
    """The message names the output."""
    with pytest.raises(KernelError, match="'c' has a bound and a tolerance"):
        declared(tolerance={"c": Tolerance(1, 1)})


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (SumOfProducts(0), "has 0 terms"),
        (SumOfProducts(lambda p: p.Z), "raised"),
        (SumOfProducts(8, ("a", "x")), "names 'x', which is not an input"),
        (LayerNorm(8, "a", bias="b"), "names 'weight', which is not an input"),
        (SumOfProducts(8, accumulate="f8"), "unknown precision 'f8'"),  # type: ignore[arg-type]
        (SumOfProducts(8, accumulate=lambda c, p: c["NONE"]), "raised KeyError"),
    ],
)
def test_a_wrong_bound_is_refused_before_a_compile(bound: ErrorBound, message: str) -> None:
    """The number of terms, the names of inputs and the precision are checked with the buffers."""
    workload = declared(error={"c": bound}, tolerance={})
    with pytest.raises(KernelError, match=message):
        workload.buffers(MATMUL.problem("8,8,8"), DEFAULT)


def test_other_values_are_no_bounds() -> None:
    """A number is neither a bound nor a function."""
    with pytest.raises(KernelError, match="use a bound such as"):
        declared(error={"c": 1e-3}, tolerance={})


def test_a_study_may_still_replace_a_bound_by_a_tolerance() -> None:
    """gate.atol and gate.rtol mean what torch.allclose means, and switch the bound off."""
    replaced = tolerances(MATMUL, 0.5, 1e-3)["c"].of("f16")
    assert (replaced.atol, replaced.rtol, replaced.bound) == (0.5, 1e-3, None)
    absolute = tolerances(MATMUL, 0.5, None)["c"]
    assert [absolute.of(dtype).rtol for dtype in ("f16", "bf16")] == [2.0**-10, 2.0**-7]


def test_check_refuses_a_bound_without_power() -> None:
    """A bound that even half of the result satisfies on every input is refused with its figures."""
    reference, _ = OPERATIONS["rmsnorm"]
    kernel = kernel_of(reference, RmsNorm(10**8))
    (found,) = bound_results(kernel, "y", "f32", [Problem({})])
    assert found[0] is False and "no power" in found[1]
    (fine,) = bound_results(kernel_of(reference, RmsNorm(333)), "y", "f32", [Problem({})])
    assert fine[0] is True and "of the bound" in fine[1]


def test_check_refuses_a_bound_below_rounding() -> None:
    """A bound that the reference in float32 exceeds is refused, because correct candidates would fail."""
    kernel = kernel_of(lambda t: t["x"].sum(-1), lambda p, t: torch.zeros(4, dtype=torch.float64))  # type: ignore[arg-type]
    (found,) = bound_results(kernel, "y", "f32", [Problem({})])
    assert found[0] is False and "exceeds the bound" in found[1]


def test_kept_zero_points_widen_the_bound_of_attention() -> None:
    """If all values equal the zero point, the result is 0, and only a kernel that keeps zero points has an error."""
    kernel = load_kernel(ROOT / "kernels" / "attention_fp8")
    problem, bound = kernel.problem("1,1,16,64,dtype=u8"), kernel.workload.error["o"]
    given = {name: torch.full((1, 1, 16, 64), 128, dtype=torch.float64) for name in "qkv"}
    given |= {f"{name}_scale": torch.full((1, 1), 0.01, dtype=torch.float64) for name in "qkv"}
    result = kernel.workload.reference(problem, given)["o"]
    magnitudes = bound.magnitudes(problem, given, result, lambda t: kernel.workload.reference(problem, t)["o"])
    config = kernel.space.default()
    allowed = {
        kept: bound.combined(
            bound.factors(problem, Config({**config, "ZERO_POINT": kept}), dict.fromkeys("qkv", 8)), magnitudes
        )
        for kept in ("folded", "subtracted")
    }
    assert float(allowed["folded"].min()) > 1e-7
    assert float(allowed["subtracted"].max()) < 1e-9


@pytest.mark.parametrize(
    ("bound", "count"),
    [(SumOfProducts(64), 1), (Softmax(64), 2), (LayerNorm(64), 6), (Attention(64, 64), 4)],
    ids=lambda one: type(one).__name__,
)
def test_bounds_of_narrow_outputs_are_never_rounded_down(bound: ErrorBound, count: int) -> None:
    """A bound of bfloat16 magnitudes, computed in float32, is at least the float64 bound and at most 3 % above it."""
    torch.manual_seed(0)
    exact = [torch.rand(4, 64, dtype=torch.float64) * 0.1 + 0.1 for _ in range(count)]
    factors = bound.factors(Problem({}), None, dict.fromkeys([*"abxqkv", "weight", "bias"], 16))
    stored = [(one * STORED_GROWTH).to(torch.bfloat16) for one in exact]
    found = (bound.combined(factors, stored, torch.float32) * STORED_GROWTH).to(torch.bfloat16).to(torch.float64)
    ratio = found / bound.combined(factors, exact)
    assert float(ratio.min()) >= 1
    assert float(ratio.max()) <= 1.03


def test_indices_of_slices_stay_on_the_device_only_while_no_candidate_runs() -> None:
    """Indices are uploaded together, kept for later uses, and released before a candidate runs."""
    tensors = {"x": Tensor("f32", (8, 4), role="input"), "y": Tensor("f32", (8, 4), role="output")}
    one = SlicedTensors(Slice({"x": 0, "y": 0}), Problem({}), tensors, random.Random(1))
    first, second = one.next(0), one.next(1)
    upload([(one, first), (one, second)], torch.device("cpu"))
    assert [part.tolist() for part in one.indices(first, torch.device("cpu"))] == list(first)
    assert one.indices(second, torch.device("cpu"))[0] is one.indices(second, torch.device("cpu"))[0]
    one.forget_indices()
    assert not one._uploaded
