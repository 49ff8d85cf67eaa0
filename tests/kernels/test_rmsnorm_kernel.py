"""The normalisation's declaration and its CUDA source say the same thing, and each way through it is right."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from edited_kernel import edited_kernel
from engine_helpers import share_of_allowed
from paths import KERNELS

from evokern.analysis.check.reference_check import compare_with_cpp, python_reference
from evokern.declaration.feasibility import check
from evokern.declaration.genes import Config, Value
from evokern.declaration.kernel import Kernel, Problem
from evokern.device.sim.jobs import SimSettings
from evokern.device.sim.worker import SimWorker
from evokern.doctor import host_compiler
from evokern.export.trace import trace
from evokern.gate import RunFailed
from evokern.gate.data import torch_dtype
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import GateSettings, SimulationSettings, TimingSettings
from evokern.study.trial import Outcome

KERNEL = load_kernel(KERNELS / "rmsnorm")
WASTEFUL = {constraint.name for constraint in KERNEL.constraints if constraint.wasteful}
ADD = "dtype=bf16,residual=add"
LOADED: dict[str, Value] = {"ROW_STEPS": 2, "PREFETCH": "registers"}
ROUNDED_DOWN = "= add_half2(a.word[i], b.word[i]) - 1"  # of the lower element, by a unit in the last place
COPIED: dict[str, Value] = {"ROW_STEPS": 4, "PREFETCH": "cp_async", "STAGES": 3}
EVERY: dict[str, Value] = {"ROW_SUM": "every_block", "BLOCKS_PER_ROW": 4}
PARTS: dict[str, Value] = {"ROW_SUM": "two_launches", "BLOCKS_PER_ROW": 4}
CLUSTER: dict[str, Value] = {"ROW_SUM": "cluster", "BLOCKS_PER_ROW": 4}


PROBLEMS = ("65536,1024", "8192,8192", "4096,4096", "16,16384", "1,65536", "100000,64", "7,33", "1,1", "33,65535")


@pytest.mark.parametrize("chip", ["l4", "a100", "h200"])
def test_the_default_is_feasible_at_any_number_of_columns(chip: str) -> None:
    """A search begins with the default candidate everywhere: long, short and odd rows, with and without a residual."""
    rng = random.Random(0)
    drawn = [f"{rng.randint(1, 99)},{rng.randint(1, 65536)}" for _ in range(200)]
    for problem in (*PROBLEMS, *drawn):
        for options in ("", ",residual=add"):
            at = KERNEL.problem(problem + options)
            assert check(KERNEL, KERNEL.space.default(), [at], CHIPS[chip]) is None, str(at)


def test_a_narrow_row_takes_fewer_threads_and_narrower_accesses() -> None:
    """The same default is a launch that fits the row: threads with work, whole warps, the widest access."""
    found = {}
    for problem in ("64,65536", "64,5120", "64,1024", "64,64", "64,36", "64,33", "64,1"):
        (launch,) = KERNEL.launches(KERNEL.space.default(), KERNEL.problem(problem))
        (access,) = KERNEL.vector_accesses(KERNEL.space.default(), KERNEL.problem(problem))
        found[problem] = (launch.threads, launch.blocks, access.width_bytes)
    assert found == {
        "64,65536": (256, 64, 16),
        "64,5120": (224, 64, 16),
        "64,1024": (128, 64, 16),
        "64,64": (32, 16, 16),
        "64,36": (32, 32, 8),
        "64,33": (32, 64, 2),
        "64,1": (32, 8, 2),
    }


@pytest.mark.parametrize("problem", ["65536,1024", "64,5120", "7,33", "100000,64", "64,36"])
def test_no_two_feasible_candidates_are_the_same_program_for_their_clamped_genes(problem: str) -> None:
    """Of the values that a narrow row makes equal, one alone is worth a trial."""
    p, default = KERNEL.problem(problem), KERNEL.space.default()
    genes = ("THREADS_PER_ROW", "ROWS_PER_BLOCK", "VECTOR")
    launched = []
    for values in product(*(KERNEL.space.gene(name).values for name in genes)):
        config = KERNEL.space.canonical({**default, **dict(zip(genes, values, strict=True))})
        if check(KERNEL, config, [p], CHIPS["h200"]) is None:
            (launch,), (access,) = KERNEL.launches(config, p), KERNEL.vector_accesses(config, p)
            launched.append((launch.grid, launch.block, access.width_bytes))
    assert len(launched) == len(set(launched)) > 1


WAYS: list[tuple[str, dict[str, Value]]] = [
    ("5,264", {}),
    ("5,264,dtype=bf16", {}),
    ("5,264,residual=add", {}),
    ("3,1022,dtype=bf16", {"ROW_STORAGE": "shared", "THREADS_PER_ROW": 64, "ROWS_PER_BLOCK": 2}),
    ("3,72,dtype=bf16", {"VECTOR": 4, "ROW_STORAGE": "reread", "THREADS_PER_ROW": 32, "WEIGHT_LOAD": "before_sum"}),
    ("3,1024", {"VECTOR": 4, "ROW_STORAGE": "reread", "THREADS_PER_ROW": 128, "LOAD_POLICY": "streaming"}),
    (
        "5,72,residual=add",
        {"THREADS_PER_ROW": 32, "ROWS_PER_BLOCK": 4, "WEIGHT_LOAD": "before_sum", "STORE_POLICY": "streaming"},
    ),
    (f"7,33,{ADD}", {"THREADS_PER_ROW": 16, "LOAD_POLICY": "streaming", "STORE_POLICY": "streaming"}),  # odd rows
    ("9,1", {}),
    ("37,24,residual=add", {"ROWS_PER_BLOCK": 16}),  # eight rows a warp
    ("37,72,dtype=bf16", {"THREADS_PER_ROW": 4, "ROWS_PER_BLOCK": 32, **LOADED}),
    ("3,5120", {"THREADS_PER_ROW": 512, "WEIGHT_LOAD": "before_sum"}),  # 320 threads: no power of two
    (f"9,264,{ADD}", LOADED | {"ROWS_PER_BLOCK": 2, "WEIGHT_LOAD": "before_sum"}),
    ("11,1032", LOADED | {"ROW_STEPS": 8, "THREADS_PER_ROW": 64}),
    (f"11,264,{ADD}", COPIED | {"ROW_STORAGE": "shared"}),
    ("11,264,residual=add", COPIED),
    ("11,1028,dtype=bf16", COPIED | {"ROW_STORAGE": "shared", "STAGES": 4, "ROWS_PER_BLOCK": 2}),
    ("7,1032", {"ROW_STEPS": 4, "ROW_STORAGE": "reread", "STORE_POLICY": "streaming"}),
    ("3,2056", EVERY | {"THREADS_PER_ROW": 64}),
    (f"3,2049,{ADD}", EVERY | {"WEIGHT_LOAD": "before_sum", "ROWS_PER_BLOCK": 2}),
    ("3,2056,dtype=bf16", PARTS | {"THREADS_PER_ROW": 64}),
    ("3,2049,residual=add", PARTS | {"WEIGHT_LOAD": "before_sum", "ROWS_PER_BLOCK": 2}),
    ("3,2056,dtype=bf16", CLUSTER | {"THREADS_PER_ROW": 64}),
    (f"3,2049,{ADD}", CLUSTER | {"WEIGHT_LOAD": "before_sum", "ROWS_PER_BLOCK": 2, "ROW_STORAGE": "shared"}),
    ("3,72,residual=add", CLUSTER | {"BLOCKS_PER_ROW": 8, "THREADS_PER_ROW": 4, "ROW_STORAGE": "reread"}),
    ("2,5120", CLUSTER | {"BLOCKS_PER_ROW": 2}),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("problem", "choices"), WAYS)
def test_right_and_without_a_race_on_the_ptx_machine(problem: str, choices: dict[str, Value]) -> None:
    """Each way through the kernel passes the gate at rows with tails, and the sanitizer finds nothing."""
    p = KERNEL.problem(problem)
    default = KERNEL.space.default()
    config = KERNEL.space.canonical({**default, **choices})
    violation = check(KERNEL, config, [p], CHIPS["h200" if config["ROW_SUM"] == "cluster" else "l4"])
    assert violation is None or violation.constraint in WASTEFUL  # and right all the same
    verdict = _worker(KERNEL, p, config)._check(config, p)
    assert verdict.passed, verdict.evidence
    assert verdict.report["relative_error"] < torch.finfo(torch_dtype(str(p["dtype"]))).eps / 2


def _worker(kernel: Kernel, problem: Problem, config: Config) -> SimWorker:
    chip = CHIPS["h200" if config["ROW_SUM"] == "cluster" else "l4"]
    context = WorkerContext(kernel.folder, (problem,), chip)
    return SimWorker(
        SimSettings(context, GateSettings(), TimingSettings(), SimulationSettings(), kernel.space.default())
    )


FAULTS: list[tuple[str, str, str, str, dict[str, Value]]] = [
    # some bits of the upper element, in bf16; the lower element in place of the upper one
    ("common/half.cuh", "a & 0xFFFF0000u", "a & 0xFF000000u", f"5,264,{ADD}", {}),
    (
        "common/half.cuh",
        "return __uint_as_float(a << 16);",
        "return __uint_as_float(a & 0xFFFF0000u);",
        f"5,264,{ADD}",
        {},
    ),
    # the last vector of a row, its one element where it is odd, the last row, one row for all
    ("rmsnorm/row.cuh", "vector(i) < end;", "vector(i) + 1 < end;", f"5,264,{ADD}", {}),
    ("rmsnorm/row.cuh", "begin + SHARE, VECTORS)", "begin + SHARE - 1, VECTORS)", "3,2056", PARTS),
    ("rmsnorm/vector.cuh", "if (2 * index + 1 < COLS) v.word", "v.word", f"5,33,{ADD}", {}),
    ("rmsnorm/vector.cuh", "if (2 * index + 1 < COLS) store", "if (2 * index + 3 < COLS) store", "5,33", {}),
    ("rmsnorm/row.cuh", "present = number < rows;", "present = number < rows - 1;", "5,264", {}),
    ("rmsnorm/row.cuh", "min(number, rows - 1)", "min(number, rows)", "5,24", {}),
    # the sum: not rounded to the nearest, not what was scaled, not all of its threads, all parts but one
    ("common/half.cuh", "add.rn.f16x2", "sub.rn.f16x2", "5,264,residual=add", {}),
    ("rmsnorm/vector.cuh", "= add_half2(a.word[i], b.word[i])", ROUNDED_DOWN, f"5,264,{ADD}", {}),
    ("rmsnorm/row.cuh", "read(1, first + j)", "read(1, first)", "5,2056,residual=add", {"THREADS_PER_ROW": 64}),
    ("rmsnorm/row.cuh", "THREADS < 32 ? THREADS : 32", "32", "37,24", {}),
    ("rmsnorm/row.cuh", "lane < WARPS_PER_ROW ?", "lane < WARPS_PER_ROW - 1 ?", "3,5120", {"THREADS_PER_ROW": 512}),
    ("rmsnorm/row.cuh", "warp < WARPS_PER_ROW; warp++", "warp < WARPS_PER_ROW - 1; warp++", "5,1032", {}),
    ("rmsnorm/kernel.cu", "part < BLOCKS; part++", "part < BLOCKS - 1; part++", "3,2056", PARTS),
    ("rmsnorm/kernel.cu", "whole{0, VECTORS}", "whole{0, VECTORS - SHARE}", "3,2056", EVERY),
    ("rmsnorm/row.cuh", "partial + row_in_block * WARPS_PER_ROW", "partial", "5,1032", {"ROWS_PER_BLOCK": 2}),
    # rows ahead: the same row again, a copy that is not awaited, a stage too early, one half of the partial sums
    ("rmsnorm/kernel.cu", "ahead.fetch(group + gridDim.x, span)", "ahead.fetch(group, span)", "9,264", LOADED),
    ("rmsnorm/kernel.cu", "COPIED_AHEAD ? STAGES - 1 : 0>", "COPIED_AHEAD ? STAGES : 0>", "11,264", COPIED),
    ("rmsnorm/ahead.cuh", "used = STAGES - 1;", "used = STAGES - 2;", "11,264", COPIED),
    ("rmsnorm/kernel.cu", "partial[half]", "partial[0]", "9,1032", LOADED),
    # clusters: a block that may not have started, parts that are not awaited, parts of one block for all
    ("rmsnorm/cluster.cuh", "  cluster_wait();  // all", "  //", "3,2056", CLUSTER),
    ("rmsnorm/cluster.cuh", "  cluster_wait();\n  float", "  float", "3,2056", CLUSTER),
    ("rmsnorm/cluster.cuh", "[row][blockIdx.y]", "[row][0]", "3,2056", CLUSTER),
]


def test_clusters_are_for_chips_that_have_them() -> None:
    """Older chips and clusters of more than 8 blocks are refused; other choices of older chips remain."""
    p = KERNEL.problem("2,65536")
    config = KERNEL.space.canonical({**KERNEL.space.default(), **CLUSTER})
    violation = check(KERNEL, config, [p], CHIPS["l4"])
    assert violation is not None and violation.constraint == "compute_capability"
    assert check(KERNEL, config, [p], CHIPS["h100"]) is None
    large = KERNEL.space.canonical({**config, "BLOCKS_PER_ROW": 16})
    violation = check(KERNEL, large, [p], CHIPS["h100"])
    assert violation is not None and violation.constraint == "cluster_blocks"
    (launch,) = KERNEL.launches(config, p)
    assert (launch.cluster, launch.grid[1]) == ((1, 4, 1), 4)


@pytest.mark.parametrize(
    ("name", "right", "broken", "problem", "choices"),
    # A third of them in each run of all tests; the others take another minute.
    [pytest.param(*one, marks=pytest.mark.slow if n % 3 else pytest.mark.thorough) for n, one in enumerate(FAULTS)],
)
def test_a_fault_is_caught(
    name: str, right: str, broken: str, problem: str, choices: dict[str, Value], tmp_path: Path
) -> None:
    """One change of the text, and the gate or the sanitizer turns the kernel away."""
    kernel = edited_kernel(tmp_path, "rmsnorm", name, right, broken)
    config = kernel.space.canonical({**kernel.space.default(), **choices})
    at = kernel.problem(problem)
    try:
        assert not _worker(kernel, at, config)._check(config, at).passed
    except RunFailed as failed:
        assert failed.outcome in (Outcome.WRONG, Outcome.CRASHED)


def test_a_row_rounded_ahead_of_its_weight_is_right_in_bf16() -> None:
    """Layers of transformers round twice, and use almost all of the bound; a third rounding exceeds it."""
    torch.manual_seed(0)
    x, weight = torch.randn(64, 1024).to(torch.bfloat16), torch.randn(1024).to(torch.bfloat16)
    normalised = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
    twice = normalised.to(torch.bfloat16) * weight
    problem, given = KERNEL.problem("64,1024,dtype=bf16"), {"x": x, "weight": weight}
    assert 0.8 < float(share_of_allowed(KERNEL, problem, given, "y", twice).max()) <= 1
    thrice = (normalised.to(torch.bfloat16) * (1 + 2.0**-7)).to(torch.bfloat16) * weight
    assert float(share_of_allowed(KERNEL, problem, given, "y", thrice).max()) > 1


def test_a_chip_without_bf16_is_a_named_constraint() -> None:
    """Compute capability 7.5 has no bf16: infeasible before any compile, with what runs there; fp16 is not touched."""
    turing = replace(CHIPS["l4"], compute_capability=(7, 5))
    half, brain = (KERNEL.problem(f"64,8192,dtype={dtype}") for dtype in ("f16", "bf16"))
    assert check(KERNEL, KERNEL.space.default(), [half], turing) is None
    violation = check(KERNEL, KERNEL.space.default(), [brain], turing)
    assert violation is not None and violation.constraint == "bf16_instructions"
    assert "needs 8, has 7.5" in str(violation) and "use dtype=f16" in str(violation)


OPTIONS = ("", ",dtype=bf16", ",residual=add", f",{ADD}")


@pytest.mark.skipif(host_compiler() is None, reason="needs a C++ compiler")
def test_both_references_round_the_sum_alike() -> None:
    """reference.h gives the Python reference's numbers, of both dtypes and with and without a residual."""
    problems = [KERNEL.problem(f"7,33{options}") for options in OPTIONS]
    tensors = {p: KERNEL.workload.buffers(p, KERNEL.space.default()) for p in problems}
    expected = {p: python_reference(KERNEL, p, tensors[p]) for p in problems}
    assert compare_with_cpp(KERNEL, expected, str(host_compiler())) < 1e-12


@pytest.mark.parametrize("options", OPTIONS)
def test_the_layer_of_torch_computes_the_same(options: str) -> None:
    """The eager baseline is within the tolerance of the reference, and its sum has the reference's bits."""
    problem = KERNEL.problem(f"40,1000{options}")
    tensors = KERNEL.workload.buffers(problem, KERNEL.space.default())
    torch.manual_seed(0)
    dtype = torch_dtype(str(problem["dtype"]))
    inputs = {name: torch.randn(one.shape).to(dtype) for name, one in tensors.items() if one.given}
    found = KERNEL.workload.baselines[0].run(problem, inputs)
    exact = KERNEL.workload.reference(problem, {name: one.double() for name, one in inputs.items()})
    assert list(found) == list(exact) == [name for name, one in tensors.items() if one.role == "output"]
    assert all(_within(problem, name, one, inputs) for name, one in found.items())
    if "sum" in found:
        assert torch.equal(found["sum"].double(), exact["sum"])


def _within(problem: Problem, name: str, found: torch.Tensor, inputs: dict[str, torch.Tensor]) -> bool:
    return float(share_of_allowed(KERNEL, problem, inputs, name, found).max()) <= 1


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_the_neighbours_of_a_sum_are_wrong(dtype: str) -> None:
    """One unit in the last place, up or down, is beyond the tolerance; y may be of either sum."""
    problem = KERNEL.problem(f"64,1024,dtype={dtype},residual=add")
    torch.manual_seed(0)
    kind = torch_dtype(dtype)
    inputs = {name: torch.randn(64, 1024).to(kind) for name in ("x", "residual")}
    inputs["weight"] = torch.randn(1024).to(kind)
    total = (inputs["x"].double() + inputs["residual"].double()).to(kind)
    assert _within(problem, "sum", total, inputs)
    far = total[total.abs() > 2**-4]  # of smaller ones, those next to a power of two are as near as the absolute part
    for step in (1, -1):
        near = (far.view(torch.int16) + step).view(kind)
        error = (near.double() - far.double()).abs()
        allowed = KERNEL.workload.tolerance["sum"].of(dtype)
        assert bool((error > allowed.atol + allowed.rtol * far.double().abs()).all())
    unrounded = inputs["x"].double() + inputs["residual"].double()
    scale = torch.rsqrt(unrounded.square().mean(-1, keepdim=True) + 1e-5)
    assert _within(problem, "y", (unrounded * scale * inputs["weight"].double()).to(kind), inputs)


def test_a_problem_without_a_residual_is_known_by_the_same_text() -> None:
    """Studies and draws know problems by their key: that of before stays what it was."""
    plain, added = KERNEL.problem("64,8192"), KERNEL.problem("64,8192,residual=add")
    assert (plain.key, added.key) == ("64,8192,dtype=f16", "64,8192,dtype=f16,residual=add")
    assert KERNEL.problem(added.key) == added and KERNEL.problem({**plain}) == plain
    assert "partial" not in KERNEL.workload.tensors(plain, KERNEL.space.default())


def test_work_counts_the_residual() -> None:
    """Two more tensors are moved, and an addition is made for each element."""
    plain, added = KERNEL.problem("64,8192"), KERNEL.problem("64,8192,residual=add")
    size = 64 * 8192
    assert KERNEL.workload.bytes(added) - KERNEL.workload.bytes(plain) == 2 * 2 * size
    assert KERNEL.workload.flops(added) - KERNEL.workload.flops(plain) == size


def test_an_exported_program_takes_shapes_at_which_a_candidate_is_wasteful() -> None:
    """A search never tries 8 rows a block where SMs would go without; a program that was found elsewhere takes it."""
    config = KERNEL.space.canonical({**KERNEL.space.default(), "ROWS_PER_BLOCK": 8, "THREADS_PER_ROW": 32})
    small, large = KERNEL.problem("3,1024"), KERNEL.problem("65536,1024")
    violation = check(KERNEL, config, [small], CHIPS["h200"])
    assert violation is not None and violation.constraint == "sms_have_blocks"
    guards = trace(KERNEL, config, large, CHIPS["h200"]).guards
    assert all(guard.holds({"ROWS": 3, "COLS": 1024}) for guard in guards)
    assert not all(guard.holds({"ROWS": 3, "COLS": 1025}) for guard in guards)
