"""The normalisation's declaration and its CUDA source say the same thing, and each way through it is right."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kernel_rules import asserted_rules, verdicts
from paths import KERNELS

from evokern.declaration.feasibility import check
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.space import Value
from evokern.device.sim.jobs import SimSettings
from evokern.device.sim.worker import SimWorker
from evokern.doctor import host_compiler
from evokern.gate.data import torch_dtype
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import GateSettings, SimulationSettings, TimingSettings

KERNEL = load_kernel(KERNELS / "rmsnorm")


@pytest.mark.skipif(host_compiler() is None, reason="needs a C++ compiler")
def test_rules_agree_between_python_and_cuda(tmp_path: Path) -> None:
    """For candidates drawn over the whole space, each static_assert says what the constraint of its name says."""
    problems = [KERNEL.problem(text) for text in ("5,264", "3,1022,dtype=bf16", "8192,8192", "1,36")]
    rng = random.Random(0)
    pairs = [(KERNEL.space.draw(rng), problems[index % 4]) for index in range(1000)]
    constraints = {constraint.name: constraint for constraint in KERNEL.constraints}
    rules = asserted_rules(KERNEL)
    expected = [{rule: constraints[rule].evaluate(c, p, None).holds for rule in rules} for c, p in pairs]
    assert expected == verdicts(KERNEL, pairs, tmp_path)
    assert {row["whole_vectors"] for row in expected} == {False, True}


@pytest.mark.parametrize(
    ("problem", "choices"),
    [
        ("5,264", {}),
        ("5,264,dtype=bf16", {}),
        ("3,1022,dtype=bf16", {"VECTOR": 2, "ROW_STORAGE": "shared", "THREADS_PER_ROW": 64, "ROWS_PER_BLOCK": 2}),
        ("3,72,dtype=bf16", {"VECTOR": 4, "ROW_STORAGE": "reread", "THREADS_PER_ROW": 32, "WEIGHT_LOAD": "before_sum"}),
        ("3,1022", {"VECTOR": 2, "ROW_STORAGE": "shared", "THREADS_PER_ROW": 64, "ROWS_PER_BLOCK": 2}),
        ("3,1024", {"VECTOR": 4, "ROW_STORAGE": "reread", "THREADS_PER_ROW": 128, "LOAD_POLICY": "streaming"}),
        (
            "5,72",
            {"THREADS_PER_ROW": 32, "ROWS_PER_BLOCK": 4, "WEIGHT_LOAD": "before_sum", "STORE_POLICY": "streaming"},
        ),
    ],
)
def test_right_and_without_a_race_on_the_ptx_machine(problem: str, choices: dict[str, Value]) -> None:
    """Each way through the kernel passes the gate at rows with tails, and the sanitizer finds nothing."""
    p = KERNEL.problem(problem)
    default = KERNEL.space.default()
    config = KERNEL.space.canonical({**default, **choices})
    violation = check(KERNEL, config, [p], CHIPS["l4"])
    assert violation is None or violation.constraint == "threads_have_work"  # wasteful, and right all the same
    verdict = _worker(KERNEL, p)._check(config, p)
    assert verdict.passed, verdict.evidence
    assert verdict.report["relative_error"] < torch.finfo(torch_dtype(str(p["dtype"]))).eps / 2


def _worker(kernel: Kernel, problem: Problem) -> SimWorker:
    context = WorkerContext(kernel.folder, (problem,), CHIPS["l4"])
    return SimWorker(
        SimSettings(context, GateSettings(), TimingSettings(), SimulationSettings(), kernel.space.default())
    )


@pytest.mark.parametrize(
    ("right", "broken"),
    [
        ("if (v < VECTORS) kept[i] =", "if (v + 1 < VECTORS) kept[i] ="),  # the last vector of a row is left out
        ("word & 0xFFFF0000u", "word & 0xFF000000u"),  # some bits of the upper element
        ("low = __uint_as_float(word << 16);", "low = __uint_as_float(word & 0xFFFF0000u);"),
    ],
)
def test_a_fault_of_bf16_is_caught(right: str, broken: str, tmp_path: Path) -> None:
    """One change of the text, and the gate turns the kernel away: the tolerance of bf16 is no free pass."""
    folder = tmp_path / "rmsnorm"
    shutil.copytree(KERNEL.folder, folder)
    text = (folder / "kernel.cu").read_text(encoding="utf-8")
    assert text.count(right) == 1
    (folder / "kernel.cu").write_text(text.replace(right, broken), encoding="utf-8")
    kernel = load_kernel(folder)
    problem = kernel.problem("5,264,dtype=bf16")
    assert not _worker(kernel, problem)._check(kernel.space.default(), problem).passed


def test_a_row_rounded_ahead_of_its_weight_is_right_in_bf16() -> None:
    """What layers of transformers compute, two roundings, stays below half of the tolerance; a third would not."""
    torch.manual_seed(0)
    x, weight = torch.randn(64, 1024).to(torch.bfloat16), torch.randn(1024).to(torch.bfloat16)
    exact = KERNEL.workload.reference(
        KERNEL.problem("64,1024,dtype=bf16"), {"x": x.double(), "weight": weight.double()}
    )
    normalised = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
    twice = normalised.to(torch.bfloat16) * weight
    allowed = KERNEL.workload.tolerance["y"].of("bf16")
    share = (twice.double() - exact["y"]).abs() / (allowed.atol + allowed.rtol * exact["y"].abs())
    assert 0.4 < float(share.max()) <= 0.501


def test_a_chip_without_bf16_is_a_named_constraint() -> None:
    """Compute capability 7.5 has no bf16: infeasible before any compile, with what runs there; fp16 is not touched."""
    turing = replace(CHIPS["l4"], compute_capability=(7, 5))
    half, brain = (KERNEL.problem(f"64,8192,dtype={dtype}") for dtype in ("f16", "bf16"))
    assert check(KERNEL, KERNEL.space.default(), [half], turing) is None
    violation = check(KERNEL, KERNEL.space.default(), [brain], turing)
    assert violation is not None and violation.constraint == "bf16_instructions"
    assert "needs 8, has 7.5" in str(violation) and "dtype=f16 runs here" in str(violation)
