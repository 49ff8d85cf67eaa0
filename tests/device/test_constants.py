"""Constant memory as a tensor, and numbers of every kind by value: simulated, on a GPU, in the exported program."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from paths import DATA

from evokern.analysis.check.soundness import check_kernel
from evokern.compile.build import Target, build
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Scalar, Tensor, bfloat16_bits
from evokern.device.sim.jobs import SimSettings, Simulate
from evokern.device.sim.worker import SimWorker
from evokern.errors import KernelError
from evokern.export.standalone import Provenance, standalone
from evokern.hardware.profiles import chip
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import Study
from evokern.study.trial import Outcome

FOLDER = DATA / "kernels" / "polynomial"
KERNEL = load_kernel(FOLDER)
PROBLEM = KERNEL.problem("3000")
L4 = chip("l4")


@pytest.mark.parametrize(("terms", "outcome"), [(3, Outcome.MEASURED), (4, Outcome.WRONG)])
def test_an_array_is_filled_before_each_launch_and_poisoned_behind(terms: int, outcome: Outcome) -> None:
    """Every input set has its own coefficients; one that nobody gave is no number."""
    study = Study("constants", "polynomial", ("3000",))
    default = KERNEL.space.default()
    context = WorkerContext(Path(FOLDER), (PROBLEM,), L4)
    worker = SimWorker(SimSettings(context, study.gate, study.timing, study.simulation, default))
    config = Config({"TERMS": terms})
    built = build(KERNEL, config, (PROBLEM,), Target(L4, None))
    assert isinstance(built, Built)
    found = worker.handle(Simulate(config, built, None))
    assert found is not None
    assert found.outcome is outcome, found.reason


def test_a_tensor_without_an_array_fails_the_check() -> None:
    """`check` names a constant whose array the source does not have."""
    workload = replace(
        KERNEL.workload,
        tensors=lambda p, c: {"wieghts": Tensor("f32", (3,), role="constant"), **KERNEL.workload.tensors(p, c)},
    )
    (failed,) = [f.detail for f in check_kernel(replace(KERNEL, workload=workload)) if f.check == "entry points"]
    for part in ("'wieghts' is a constant", "kernel.cu", "no __constant__ array"):
        assert part in failed


@pytest.mark.thorough
def test_the_exported_program_fills_the_array(tmp_path: Path) -> None:
    """It copies to the symbol before its launch, and compiles where nvcc is."""
    text = standalone(KERNEL, KERNEL.space.default(), PROBLEM, L4, Provenance())
    assert "cudaMemcpyToSymbolAsync(::weights, evokern_values, evokern_bytes, 0, cudaMemcpyDeviceToDevice," in text
    assert "if (::evokern_copy_0(weights, static_cast<size_t>(3) * 4, stream) != cudaSuccess)" in text
    assert "__nv_bfloat16(float(1.5))" in text and "bool argument_" in text
    if compiler := shutil.which("nvcc"):
        (tmp_path / "best.cu").write_text(text)
        subprocess.run([compiler, "-arch=sm_89", "-fatbin", "-o", "best", "best.cu"], cwd=tmp_path, check=True)


def test_machine_code_knows_its_arrays() -> None:
    """What a GPU's process gets has no PTX any more, and still names the arrays that are to be filled."""
    made = build(KERNEL, KERNEL.space.default(), (PROBLEM,), Target(L4, None))
    assert isinstance(made, Built)
    (program,) = made.without_ptx().programs
    assert ("", ("weights",)) == (program.ptx, program.constants)


@pytest.mark.gpu
def test_a_gpu_fills_the_array_too() -> None:
    """The right candidate is measured; what lies behind the tensor is no number there either."""
    from live_bench import Bench

    with Bench("polynomial", "3000") as bench:
        right, behind = (Config({"TERMS": terms}) for terms in (3, 4))
        assert [one.outcome for one in bench.run([right, behind])] == [Outcome.MEASURED, Outcome.WRONG]


def test_bits_of_a_bfloat16_are_rounded_to_even() -> None:
    """As torch rounds: ties to the even neighbour, infinities stay, NaN stays one."""
    given = torch.tensor([1.0, 1.00390625, 1.01171875, -3.0e38, 0.0, float("inf"), 3.4e38, -1e-40], dtype=torch.float32)
    wanted = given.to(torch.bfloat16).view(torch.int16).tolist()
    assert [bfloat16_bits(value) for value in given.tolist()] == [bits & 0xFFFF for bits in wanted]
    assert bfloat16_bits(float("nan")) & 0x7FFF > 0x7F80


def test_scalars_of_no_kind_are_refused() -> None:
    """A wrong name of a type is named with the nearest one; a bool is one of two."""
    with pytest.raises(KernelError, match="did you mean 'bf16'"):
        Scalar("bfl6", 1.0)  # type: ignore[arg-type]
    with pytest.raises(KernelError, match="True or False"):
        Scalar("bool", 2)
