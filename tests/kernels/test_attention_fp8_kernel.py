"""The kernel on 8-bit inputs: declaration and CUDA source agree, and each way through it is right."""

from __future__ import annotations

import random

import pytest
import torch
from engine_helpers import share_of_allowed
from paths import KERNELS

from evokern.compile.nvrtc import compile_program
from evokern.compile.records import CompileFailure
from evokern.declaration.feasibility import check, feasible_space
from evokern.declaration.genes import Config, Value
from evokern.declaration.render import render
from evokern.device.sim.jobs import SimSettings
from evokern.device.sim.worker import SimWorker
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import GateSettings, SimulationSettings, TimingSettings

FOLDER = KERNELS / "attention_fp8"
KERNEL = load_kernel(FOLDER)
PROBLEMS = ("2,8,512,64", "1,2,72,64,causal=1,dtype=u8", "2,4,300,128,dtype=u8", "1,1,1,128,causal=1")


def _with(**choices: Value) -> Config:
    return KERNEL.space.canonical({**KERNEL.space.default(), **choices})


def test_default_is_feasible_on_every_chip_at_every_length() -> None:
    """Nobody starts with a candidate that cannot run."""
    for text in (*PROBLEMS, "4,16,1024,128", "2,8,512,64,causal=1", "1,32,2048,128,dtype=u8"):
        for chip in CHIPS.values():
            assert check(KERNEL, KERNEL.space.default(), [KERNEL.problem(text)], chip) is None


@pytest.mark.parametrize(
    ("choices", "constraint"),
    [
        ({"ROW_PAD": 4}, "vector_alignment"),
        ({"ROW_PAD": 8, "KV_LOAD": "vector16"}, "vector_alignment"),
        ({"ROW_PAD": 4, "KV_LOAD": "scalar"}, "vector_alignment"),
        ({"ROW_PAD": 4, "KV_LOAD": "scalar", "FRAGMENT_LOAD": "words"}, None),
        ({"ROW_PAD": 16}, None),
    ],
)
def test_misaligned_rows_are_turned_away_by_name(choices: dict[str, Value], constraint: str | None) -> None:
    """16-byte accesses on a row stride that is no multiple of 16 never reach the compiler; narrow ones may."""
    config = _with(SMEM_LAYOUT="padded", **choices)
    violation = check(KERNEL, config, [KERNEL.problem("2,8,512,64")], CHIPS["l4"])
    assert constraint == (violation.constraint if violation else None)


@pytest.mark.thorough
@pytest.mark.parametrize(("architecture", "chip"), [("sm_80", "a100"), ("sm_89", "l4"), ("sm_90", "h200")])
def test_feasible_candidates_compile(architecture: str, chip: str) -> None:
    """A sample of feasible candidates, for each type of input, compiles without an error."""
    rng = random.Random(architecture)
    for text in ("2,8,512,64", "1,2,300,128,causal=1,dtype=u8"):
        problem = KERNEL.problem(text)
        config = feasible_space(KERNEL, [problem], CHIPS[chip]).sample(rng)
        assert config is not None
        built = render(KERNEL, config, problem)
        result = compile_program(built.source, built.name, built.headers, built.options, built.entries, architecture)
        assert not isinstance(result, CompileFailure), f"{dict(config)} at {problem}: {result}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("problem", "choices"),
    [
        ("1,1,200,64", {}),
        ("1,1,72,64,causal=1", {"E4M3_TO_FP16": "cvt", "KEY_SPLITS": 4, "WARPS_M": 1, "BLOCK_M": 16, "BLOCK_N": 16}),
        ("1,1,72,64", {"MMA": "e4m3", "SMEM_LAYOUT": "padded", "KEY_SPLITS": 1, "LENGTH": "runtime"}),
        ("1,1,72,64,causal=1,dtype=u8", {"MMA": "int8", "STAGES": 1, "BLOCK_N": 16}),
        ("1,1,40,128,dtype=u8", {"MMA": "int8", "ZERO_POINT": "subtracted", "FRAGMENT_LOAD": "words"}),
        ("1,1,72,64,dtype=u8", {"FRAGMENT_LOAD": "words", "KV_LOAD": "scalar", "SMEM_LAYOUT": "padded", "ROW_PAD": 4}),
        ("1,1,40,128", {"DEQUANTISE": "on_load", "KV_LOAD": "vector16", "LENGTH": "steps"}),
        ("1,1,72,64,dtype=u8", {"DEQUANTISE": "on_load", "KV_LOAD": "scalar", "FRAGMENT_LOAD": "words"}),
    ],
)
def test_right_and_without_a_race_on_the_ptx_machine(problem: str, choices: dict[str, Value]) -> None:
    """Each way through the kernel passes the gate, scales of 1e-39 included, and the sanitizer finds nothing."""
    p = KERNEL.problem(problem)
    context = WorkerContext(KERNEL.folder, (p,), CHIPS["l4"])
    settings = SimSettings(context, GateSettings(), TimingSettings(), SimulationSettings(), KERNEL.space.default())
    verdict = SimWorker(settings)._check(_with(**choices), p)
    assert verdict.passed, verdict.evidence
    assert verdict.report["relative_error"] < 1e-3


@pytest.mark.parametrize("dtype", ["e4m3", "u8"])
def test_fp16_attention_on_the_same_numbers_is_right(dtype: str) -> None:
    """The baseline's inputs, rounded to fp16, leave it within the tolerance: it is a fair opponent."""
    p = KERNEL.problem(f"1,4,64,64,dtype={dtype}")
    torch.manual_seed(0)
    inputs: dict[str, torch.Tensor] = {}
    for name, tensor in KERNEL.workload.buffers(p, KERNEL.space.default()).items():
        if tensor.role == "input" and tensor.dtype == "u8":
            inputs[name] = torch.randint(tensor.low, tensor.high + 1, tensor.shape, dtype=torch.uint8)
        elif tensor.role == "input":
            kind = torch.float8_e4m3fn if tensor.dtype == "e4m3" else torch.float32
            inputs[name] = (torch.randn(tensor.shape) * tensor.scale).to(kind)
    baseline = KERNEL.workload.baselines[0]
    given = baseline.given(p, inputs)
    assert {tensor.dtype for tensor in given.values()} == {torch.float16}
    assert float(share_of_allowed(KERNEL, p, inputs, "o", baseline.run(p, given)["o"]).max()) <= 1
