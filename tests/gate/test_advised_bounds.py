"""Derived bounds of ten kinds of float32 kernels: no correct candidate is rejected, and an off-by-one is found."""

from __future__ import annotations

import pytest
import torch
from fp32_kernels import KERNELS, LARGE, candidates, gpu_verdict, verdict

from evokern.analysis.check.rounding import bound_results
from evokern.declaration.genes import Config
from evokern.gate import Gate
from evokern.study.settings import GateSettings


@pytest.mark.parametrize("name", KERNELS)
def test_a_sample_of_correct_candidates_passes_and_an_off_by_one_fails(name: str) -> None:
    """One right candidate passes; with one term or column less, it fails."""
    (config,) = candidates(KERNELS[name], 1)
    assert verdict(KERNELS[name], config).passed
    faulty = verdict(KERNELS[name], Config({**config, "BUG": 1}))
    assert (faulty.passed, faulty.evidence["check"]) == (False, "tolerance")


@pytest.mark.parametrize("name", KERNELS)
def test_check_accepts_the_bound(name: str) -> None:
    """Rounding stays below the bound, and the bound has power."""
    kernel = KERNELS[name]
    output = next(iter(kernel.workload.error))
    problems = [kernel.problem(kernel.workload.small_problems[0])]
    assert [state for state, _ in bound_results(kernel, output, "f32", problems)] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_hundred_correct_candidates_pass(name: str) -> None:
    """No order of summation, formula or fast intrinsic of the ten kernels is rejected."""
    kernel = KERNELS[name]
    shares = {}
    for config in candidates(kernel, 100, seed=1):
        found = verdict(kernel, config)
        assert found.passed, (dict(config), found.evidence)
        shares[config] = max(found.report["checks"]["of_tolerance"].values())
    print(f"{name}: {len(shares)} candidates, largest error {max(shares.values()):.2g} of its bound")
    rejected = 0
    for config in candidates(kernel, 10, seed=2):
        rejected += not verdict(kernel, Config({**config, "BUG": 1})).passed
    assert rejected == 10


@pytest.mark.gpu
@pytest.mark.parametrize("name", KERNELS)
def test_a_hundred_correct_candidates_pass_on_a_gpu(name: str) -> None:
    """The approximate instructions of the hardware stay within the bounds, at a small and at a large problem."""
    kernel = KERNELS[name]
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")  # makes the context current
    for text in (kernel.workload.small_problems[0], LARGE[name]):
        problem = kernel.problem(text)
        gate = Gate(kernel, problem, GateSettings(runs=1), torch.device("cuda", 0), seed=1)
        shares = {}
        for config in candidates(kernel, 100, seed=3):
            found = gpu_verdict(kernel, config, gate)
            assert found.passed, (dict(config), found.evidence)
            shares[config] = max(found.report["checks"]["of_tolerance"].values())
        faulty = [gpu_verdict(kernel, Config({**one, "BUG": 1}), gate) for one in candidates(kernel, 3, seed=4)]
        assert not any(one.passed for one in faulty)
        print(f"{name} {problem}: {len(shares)} candidates, largest error {max(shares.values()):.2g} of its bound")
