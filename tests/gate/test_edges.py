"""The input set `edges`: zeros, one-hot rows, infinities and NaN, and what a kernel must do with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from gate_tools import CONFIG, CPU, SETTINGS, Fake, workload_of

from evokern.declaration.kernel import Kernel, Launch, Problem, Tensor, Tolerance
from evokern.declaration.render import render
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.device.sim.runner import SimRunner
from evokern.errors import KernelError
from evokern.gate import Gate, Verdict
from evokern.gate.data import draw, torch_dtype
from evokern.hardware.profiles import chip
from evokern.study.discovery import load_kernel

Buffers = dict[str, torch.Tensor]
LAUNCH = (Launch("k", (1,), (1,), ("x", "y")),)


def edges(tensor: Tensor, seed: int, *, nonfinite: bool = False) -> torch.Tensor:
    out = torch.empty(tensor.shape, dtype=torch_dtype(tensor.dtype))
    draw(tensor, "edges", out, torch.Generator().manual_seed(seed), nonfinite=nonfinite)
    return out.to(torch.float64)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "e4m3", "i32"])
@pytest.mark.parametrize("rows", [4, 5, 64])
def test_edges_hold_each_kind_of_zero(dtype: str, rows: int) -> None:
    """Whatever is drawn, a row is zero, one is one-hot past its beginning, and one that is neither begins with 0."""
    for seed in range(10):
        values = edges(Tensor(dtype, (rows, 40), low=-50, high=50), seed)
        assert bool(values.isfinite().all())
        count = (values != 0).sum(1)
        assert int((count == 0).sum()) >= 1
        assert bool(((count == 1) & (values[:, 0] == 0)).any())
        assert bool(((count > 1) & (values[:, 0] == 0)).any())


def test_infinities_and_nan_are_drawn_where_they_are_asked_for() -> None:
    """A few rows hold one each, of every kind in time; a type without infinities holds NaN."""
    seen = torch.cat([edges(Tensor("f16", (40, 30)), seed, nonfinite=True).flatten() for seed in range(4)])
    odd = seen[~seen.isfinite()]
    assert {str(float(one)) for one in odd} == {"nan", "inf", "-inf"}
    assert len(odd) <= 16
    assert bool(edges(Tensor("e4m3", (40, 30)), 1, nonfinite=True).isnan().any())
    assert not bool(edges(Tensor("e4m3", (40, 30)), 1, nonfinite=True).isinf().any())
    assert bool((~edges(Tensor("f32", (1, 9)), 1, nonfinite=True).isfinite()).any())  # one row is enough


def test_integers_that_cannot_be_zero_are_not() -> None:
    """A declared range holds on edges too."""
    assert bool((edges(Tensor("i32", (9, 9), low=3, high=5), 0) >= 3).all())


def kernel_of(reference: Callable[..., object], *nonfinite: str, kind: str = "f32") -> Kernel:
    kernel = workload_of(kind, reference, Tolerance(1e-4, 1e-3))
    return replace(kernel, workload=replace(kernel.workload, nonfinite=nonfinite))


def checked(kernel: Kernel, run: Callable[[Buffers, int], None], seed: int = 0) -> Verdict:
    tensors = dict(kernel.workload.buffers(Problem({}), CONFIG))
    verdict = Gate(kernel, Problem({}), SETTINGS, CPU, seed).check(Fake(run), LAUNCH, tensors)
    json.dumps([dict(verdict.evidence), dict(verdict.report)], allow_nan=False)
    return verdict


def normalised(p: object, t: Buffers) -> Buffers:
    return {"y": t["x"] / t["x"].abs().amax(-1, keepdim=True)}


def right(buffers: Buffers, number: int = 0) -> None:
    buffers["y"].copy_(normalised(None, {"x": buffers["x"].to(torch.float64)})["y"])


def drops_nonfinite(buffers: Buffers, number: int) -> None:
    x = torch.nan_to_num(buffers["x"].to(torch.float64), 0.0, 0.0, 0.0)
    buffers["y"].copy_(normalised(None, {"x": x})["y"])


def nan_everywhere(buffers: Buffers, number: int) -> None:
    right(buffers)
    if bool(buffers["y"].isnan().any()):
        buffers["y"].fill_(float("nan"))


def zero_rows_are_zero(buffers: Buffers, number: int) -> None:
    right(buffers)
    buffers["y"][(buffers["x"] == 0).all(1)] = 0


def nothing_where_nan(buffers: Buffers, number: int) -> None:
    keep = buffers["y"].clone()
    right(buffers)
    buffers["y"].copy_(torch.where(buffers["y"].isnan(), keep, buffers["y"]))


@pytest.mark.parametrize("seed", range(4))
def test_equal_patterns_of_nan_are_right_and_others_wrong(seed: int) -> None:
    """Where nonfinite is declared NaN is asked for where the reference has it, and only there; unwritten is wrong."""
    kernel = kernel_of(normalised, "x")
    assert checked(kernel, right, seed).passed
    for wrong in (drops_nonfinite, nan_everywhere, zero_rows_are_zero, nothing_where_nan):
        verdict = checked(kernel, wrong, seed)
        assert verdict.evidence["input_set"] == "edges", wrong.__name__


def test_what_the_reference_does_not_know_is_not_judged() -> None:
    """0/0 on edges says nothing of a kernel that declares nothing, and everything else is judged there."""
    kernel = kernel_of(normalised)
    assert checked(kernel, right).passed
    assert checked(kernel, zero_rows_are_zero).passed

    def first_zero(buffers: Buffers, number: int) -> None:
        right(buffers)
        buffers["y"][buffers["x"][:, 0] == 0] = 0

    assert checked(kernel, first_zero).evidence["input_set"] == "edges"


def test_an_infinity_is_asked_for_with_its_sign() -> None:
    """The largest value stands for an overflow of the reference, not for an infinity of it."""
    kernel = kernel_of(lambda p, t: {"y": 2 * t["x"]}, "x", kind="f16")

    def saturates(buffers: Buffers, number: int) -> None:
        buffers["y"].copy_((2 * buffers["x"].to(torch.float64)).clamp(-65504, 65504))

    def doubles(buffers: Buffers, number: int) -> None:
        buffers["y"].copy_(2 * buffers["x"].to(torch.float64))

    assert all(checked(kernel, doubles, seed).passed for seed in range(4))
    assert not all(checked(kernel, saturates, seed).passed for seed in range(4))


def test_an_infinite_reference_elsewhere_is_the_kernel_s_mistake() -> None:
    """On every other input set a reference must be finite, as before."""
    with pytest.raises(KernelError, match="NaN or infinity"):
        checked(kernel_of(lambda p, t: {"y": t["x"] / 0}, "x"), right)


def test_nonfinite_names_inputs() -> None:
    """A name that is no input is refused with those that are."""
    with pytest.raises(KernelError, match=r"nonfinite names 'z'.* use x"):
        checked(kernel_of(normalised, "z"), right)


def test_a_whole_input_is_zero_in_one_call() -> None:
    """Of two inputs each is zero in one of the later sets of edges, and in no other set."""
    kernel = workload_of("f32", lambda p, t: {"y": t["x"] + t["z"]}, Tolerance(1e-4, 1e-3))
    both = {"x": Tensor("f32", (4, 8)), "z": Tensor("f32", (4, 8)), "y": Tensor("f32", (4, 8), role="output")}
    kernel = replace(kernel, workload=replace(kernel.workload, tensors=lambda p, c: both))
    gate, zeros = Gate(kernel, Problem({}), SETTINGS, CPU, 5), []

    def look(buffers: Buffers, number: int) -> None:
        buffers["y"].copy_(buffers["x"] + buffers["z"])
        zeros.append([name for name in "xz" if not bool(buffers[name].any())])

    for _ in range(8):
        assert gate.check(Fake(look), LAUNCH, both).passed
    assert [place % 9 for place, found in enumerate(zeros) if found] == [5, 6] * 8
    assert [{zeros[9 * check + 5][0], zeros[9 * check + 6][0]} for check in range(8)] == [{"x", "z"}] * 8


# --------------------------------------------------------------------------------------------- on the simulated chip

DECLARATION = '''
"""Sums of rows."""

from evokern import Kernel, Launch, Mutation, ProblemField, Tensor, Tolerance, Workload, i32

kernel = Kernel(
    name="row_sums",
    genes=(Mutation("CASE", ("honest", "skips", "zeroes", "drops", "scales", "tensor"), doc="what it does"),),
    fields=(ProblemField("ROWS"), ProblemField("COLS")),
    launches=lambda c, p: [Launch("row_sums", p.ROWS, 32, ("x", "y", i32(p.COLS)))],
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.ROWS, p.COLS), large=4.0), "y": Tensor("f32", (p.ROWS,), "output")},
        reference=lambda p, t: {"y": t["x"].sum(-1)},
        tolerance={"y": Tolerance(2e-3, 1e-3)},
        flops=lambda p: p.ROWS * p.COLS,
        bytes=lambda p: 4 * p.ROWS * p.COLS,
        small_problems=("9,40",),
        nonfinite=("x",),
    ),
)
'''
SOURCE = """
extern "C" __global__ void row_sums(const float* x, float* y, int cols) {
  const float* row = x + (long long)blockIdx.x * cols;
  if (CASE == CASE_SKIPS && row[0] == 0.f) return;
  float sum = 0.f, most = 0.f;
  for (int i = threadIdx.x; i < cols; i += 32) {
    const float value = row[i];
    if (CASE == CASE_DROPS && !(fabsf(value) < 1e38f)) continue;
    sum += value;
    most = fmaxf(most, fabsf(value));
  }
  for (int step = 16; step; step /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, step);
    most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, step));
  }
  if (CASE == CASE_ZEROES && row[0] == 0.f) sum = 0.f;
  if (CASE == CASE_SCALES) sum = sum / most * most;
  if (CASE == CASE_TENSOR && x[0] == 0.f && x[cols + 1] == 0.f && x[2 * cols + 2] == 0.f) sum = 1.f;
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
"""


@pytest.fixture(scope="module")
def row_sums(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    folder = tmp_path_factory.mktemp("edges") / "row_sums"
    folder.mkdir()
    (folder / "kernel.py").write_text(DECLARATION, encoding="utf-8")
    (folder / "kernel.cu").write_text(SOURCE, encoding="utf-8")
    return load_kernel(folder)


@pytest.mark.parametrize(
    ("case", "right"),
    [("honest", True), ("skips", False), ("zeroes", False), ("drops", False), ("scales", False), ("tensor", False)],
)
def test_cheats_of_zeros_and_infinities_fall_on_the_simulated_chip(case: str, right: bool, row_sums: Kernel) -> None:
    """Rows skipped by their first element, non-finite terms dropped, zero rows and a zero tensor done wrong."""
    problem, config = row_sums.problem("9,40"), row_sums.space.default().replace(CASE=case)
    program = compile_simulated(render(row_sums, config, problem), chip("l4"))
    assert isinstance(program, SimulatedProgram)
    tensors = row_sums.workload.buffers(problem, config)
    for seed in range(3):
        gate = Gate(row_sums, problem, replace(SETTINGS, runs=1), CPU, seed)
        runner = SimRunner(program, problem, 1_000_000)
        verdict = gate.check(runner, row_sums.launches(config, problem), tensors)
        assert verdict.passed == right, verdict.evidence
        assert right or verdict.evidence["input_set"] == "edges"
