"""The normalisation's declaration and its CUDA source say the same thing, and each way through it is right."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kernel_rules import asserted_rules, verdicts
from paths import KERNELS

from evokern.declaration.feasibility import check
from evokern.declaration.space import Value
from evokern.device.sim.jobs import SimSettings
from evokern.device.sim.worker import SimWorker
from evokern.doctor import host_compiler
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import GateSettings, SimulationSettings, TimingSettings

KERNEL = load_kernel(KERNELS / "rmsnorm")


@pytest.mark.skipif(host_compiler() is None, reason="needs a C++ compiler")
def test_rules_agree_between_python_and_cuda(tmp_path: Path) -> None:
    """For candidates drawn over the whole space, each static_assert says what the constraint of its name says."""
    problems = [KERNEL.problem(text) for text in ("5,264", "3,1022", "8192,8192", "1,36")]
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
    context = WorkerContext(KERNEL.folder, (p,), CHIPS["l4"])
    settings = SimSettings(context, GateSettings(), TimingSettings(), SimulationSettings(), default)
    config = KERNEL.space.canonical({**default, **choices})
    violation = check(KERNEL, config, [p], CHIPS["l4"])
    assert violation is None or violation.constraint == "threads_have_work"  # wasteful, and right all the same
    verdict = SimWorker(settings)._check(config, p)
    assert verdict.passed, verdict.evidence
    assert verdict.report["relative_error"] < 5e-4
