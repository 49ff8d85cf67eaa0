"""Sources written in random ways: each export compiles, is the same program, and verifies itself on a GPU.

The test marked `slow` builds 200 sources with nvcc for sm_80, sm_89 and sm_90a. The test marked `gpu` builds 50 of them
and runs them on the GPU of this machine.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from random_sources import write_random_kernel

from evokern.compile.records import Program
from evokern.declaration.feasibility import check
from evokern.declaration.kernel import Kernel
from evokern.export import checked
from evokern.export.banner import Provenance, build_target
from evokern.export.standalone import StandaloneProgram, standalone_program
from evokern.hardware.driver import probe
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel

TARGETS = {"sm_80": "a100", "sm_89": "l4", "sm_90a": "h100"}
"""Architecture → chip."""
MANY, RUN, PART = 200, 50, 10
"""Number of sources to build, to run on a GPU, and to build in one test."""
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")


def exported(kernel: Kernel, seed: int, target: str) -> StandaloneProgram | None:
    """Return a random candidate's program, or None if the candidate is infeasible on the chip."""
    suffix = "a" if target.endswith("a") else ""
    kernel = replace(kernel, architecture_suffix=lambda config: suffix)
    config, chip = kernel.space.draw(random.Random(seed)), CHIPS[TARGETS[target]]
    problem = kernel.problem(str(random.Random(seed).choice([1000, 5000, 65536, 100003])))
    if check(kernel, config, [problem], chip) is not None:
        return None
    return standalone_program(kernel, config, problem, chip, Provenance())


def fault(program: StandaloneProgram) -> str:
    """Return why the specialised source is not the original program; empty if it is."""
    original = checked._compiled(program, program.original.source)
    assert isinstance(original, Program), original.message
    return checked._device_fault(program, original) or ""


def built(program: StandaloneProgram, folder: Path, *options: str) -> str:
    """Build a program with nvcc without warnings, and return the compiler's output."""
    (folder / "best.cu").write_text(program.text)
    command = ["nvcc", build_target(program.target), *program.options, *options, "best.cu", "-o", "best"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False).stderr


def sources(folder: Path, seeds: range) -> Iterator[tuple[int, Path, Kernel, list[str]]]:
    for seed in seeds:
        here = folder / f"random_{seed}"
        features = write_random_kernel(seed, here)
        yield seed, here, load_kernel(here), features


@pytest.mark.parametrize(
    "seed", [3, 12, 27, 31, *(pytest.param(n, marks=pytest.mark.slow) for n in (64, 90, 118, 133, 171, 188))]
)
def test_a_random_source_is_exported_as_the_same_program(seed: int, tmp_path: Path) -> None:
    """The kernel's section compiles by itself, to the machine code of the original with its macros and headers."""
    folder = tmp_path / f"random_{seed}"
    features = write_random_kernel(seed, folder)
    program = exported(load_kernel(folder), seed, "sm_89")
    assert program is not None
    assert (fault(program), features) == ("", features)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, MANY, PART))
@needs_nvcc
def test_random_sources_build_with_nvcc(first: int, tmp_path: Path) -> None:
    """All exports compile for each architecture on which the candidate is feasible."""
    found: dict[str, str] = {}
    invalid: set[int] = set()
    built_ones = 0
    for seed, folder, kernel, features in sources(tmp_path, range(first, first + PART)):
        for target in TARGETS:
            program = exported(kernel, seed, target)
            if program is None:
                continue
            if not isinstance(checked._compiled(program, program.original.source), Program):
                invalid.add(seed)  # a macro of the source breaks a header of the toolkit
                continue
            here = folder / target
            here.mkdir()
            built_ones += 1
            if errors := fault(program) or built(program, here):
                found[f"{seed} {target}"] = f"{errors[:600]} {features}"
    print(f"{built_ones} programs, {len(found)} failed, {len(invalid)} sources invalid")
    assert built_ones >= PART and len(invalid) <= 1
    assert not found, "\n".join(f"{name}: {errors}" for name, errors in found.items())


@pytest.mark.gpu
@pytest.mark.timeout(1800)
@needs_nvcc
def test_random_sources_verify_themselves_on_a_gpu(tmp_path: Path) -> None:
    """Each program is built for the GPU of this machine, runs, and prints PASS at its own shape and at another."""
    capability = "".join(map(str, probe().gpus[0].compute_capability))
    target = {"90": "sm_90a"}.get(capability, f"sm_{capability}")
    if target not in TARGETS:
        pytest.skip(f"the GPU is {target}, not one of {', '.join(TARGETS)}")
    ran: dict[str, str] = {}
    jobs = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for seed, folder, kernel, _ in sources(tmp_path, range(RUN)):
            program = exported(kernel, seed, target)
            assert program is not None
            jobs.append((seed, folder, pool.submit(built, program, folder)))
        errors = {seed: job.result() for seed, _, job in jobs}
    assert not any(errors.values()), errors
    for seed, folder, _ in jobs:
        for shape in ([], ["70001"]):
            done = subprocess.run(
                [folder / "best", "--check", *shape], capture_output=True, text=True, timeout=120, check=False
            )
            if (done.returncode, done.stdout.splitlines()[-1:]) != (0, ["PASS"]):
                own = (folder / "kernel.cu").read_text(errors="replace")
                refused = shape and done.returncode == 2  # the shape is a macro of this program
                if not (refused and "must be defined" in own):
                    ran[f"{seed} {shape}"] = done.stdout + done.stderr
    assert not ran, ran
