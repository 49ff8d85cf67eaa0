"""The generated header of each kernel says what its declaration says, and compiles without evokern's options."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from kernel_rules import asserted_rules, verdicts
from paths import KERNELS
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.compile.device_code import compile_device_code
from evokern.compile.records import CompileFailure, Program
from evokern.declaration.render import candidate_header, render, without_macros
from evokern.doctor import host_compiler
from evokern.study.discovery import load_kernel

PROBLEMS = {
    "rmsnorm": ("5,264", "3,1022,dtype=bf16,residual=add", "8192,8192", "1,36", "7,33", "9,6"),
    "matmul": ("4096,4096,4096", "144,160,96,dtype=bf16", "33,35,37,layout=nt", "1,8,72,dtype=bf16,layout=nt"),
    "attention": ("2,8,512,64", "1,2,72,64,causal=1,dtype=bf16", "300,300,300,128", "1,1,1,128,causal=1"),
    "attention_fp8": ("2,8,512,64", "1,2,72,64,causal=1,dtype=u8", "300,300,300,128,dtype=u8", "1,1,1,128,causal=1"),
}
ALWAYS = {
    "attention": {"resident_needs_known_steps"},
    "rmsnorm": {"whole_warps", "whole_rows", "next_row", "ring"},
    "matmul": {"mma_depth", "ring"},
}
"""Assertions that every drawn candidate keeps."""


@pytest.mark.skipif(host_compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", PROBLEMS)
def test_assertions_agree_with_the_constraints(name: str, tmp_path: Path) -> None:
    """For candidates drawn over the whole space, each assertion says what the constraint of its name says."""
    kernel = load_kernel(KERNELS / name)
    rng, problems = random.Random(0), [kernel.problem(text) for text in PROBLEMS[name]]
    pairs = [(kernel.space.draw(rng), problems[index % len(problems)]) for index in range(1000)]
    constraints = {constraint.name: constraint for constraint in kernel.constraints}
    asserted = asserted_rules(kernel, problems[0])
    chip_free = [one.name for one in kernel.constraints if not one.wasteful and one.arity < 3]
    assert asserted == chip_free, "a constraint that no assertion checks"
    expected = [{rule: constraints[rule].evaluate(c, p, None).holds for rule in asserted} for c, p in pairs]
    assert expected == verdicts(kernel, pairs, tmp_path)
    decided = {rule for rule in asserted if len({row[rule] for row in expected}) == 2}
    assert set(asserted) - decided == ALWAYS.get(name, set())
    assert len(decided) >= 3


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_default_header_replaces_the_options(name: str) -> None:
    """With the written header, the source compiles without -D to the same code; a value by -D takes precedence."""
    kernel = load_kernel(KERNELS / name)
    config, problem = kernel.space.default(), kernel.problem(PROBLEMS[name][0])
    rendered, header = render(kernel, config, problem), candidate_header(kernel, config, problem)
    assert header.included
    plain = replace(
        rendered,
        options=tuple(without_macros(rendered.options)),
        headers={**rendered.headers, "evokern_genes.h": header.text},
    )
    wanted, built = (compile_device_code(one, "compute_90", line_info=False) for one in (rendered, plain))
    assert isinstance(wanted, Program)
    assert isinstance(built, Program), built.message
    assert built.ptx == wanted.ptx
    if name == "attention_fp8":
        broken = compile_device_code(replace(plain, options=(*plain.options, "-DBLOCK_M=24")), "compute_90")
        assert isinstance(broken, CompileFailure)
        assert "rows_split_over_warps: the rows of a warp must be whole tiles" in broken.log


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("name", PROBLEMS)
def test_nvcc_compiles_a_rendered_kernel(name: str, tmp_path: Path) -> None:
    """The written folder needs no options; nvcc reads pragmas and unused code that NVRTC does not."""
    assert CliRunner().invoke(app, ["render", name, "-o", str(tmp_path)]).exit_code == 0
    command = ["nvcc", "-arch=sm_90", "-ptx", "-o", str(tmp_path / "k.ptx"), str(tmp_path / name / "kernel.cu")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_kernel_states_each_choice_once(name: str) -> None:
    """No source lists the macros, and no source repeats a constraint."""
    kernel = load_kernel(KERNELS / name)
    text = "\n".join(path.read_text(encoding="utf-8") for path in (KERNELS / name).glob("*.cu*"))
    assert "#error" not in text
    assert not [constraint.name for constraint in kernel.constraints if f'"{constraint.name}:' in text]
