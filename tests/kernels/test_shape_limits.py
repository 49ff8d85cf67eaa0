"""Shapes that a kernel cannot take are refused with what it takes: by a study, by the declaration, by the launcher."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from paths import DATA, KERNELS
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.declaration.problem import ProblemField
from evokern.doctor import host_compiler
from evokern.errors import KernelError
from evokern.export.banner import Provenance
from evokern.export.standalone import standalone_program
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import find_kernel

FAKE = DATA / "fake_cuda"

REFUSED = [
    ("attention", "1,1,64,96", "D=96 is not supported; choose from 64, 128"),
    ("attention", "0,1,64,64", "B=0 is out of range; use 1 to 65535"),
    ("attention", "1,1,0,64", "S=0 is out of range; use 1 to 4194304"),
    ("attention", "1,1,64,64,causal=2", "causal=2 is not supported; choose from 0, 1"),
    ("attention", "1,1,64,64,dtype=f32", "dtype=f32 is not supported; choose from f16, bf16"),
    ("attention_fp8", "1,1,64,64,dtype=bf16", "dtype=bf16 is not supported; choose from e4m3, u8"),
    ("attention", "1,1,64,64,stride=80", "has no problem field 'stride': known: B, H, S, D, causal, dtype"),
    ("attention", "1,1,64", "has no value for D; fields: B, H, S, D"),
    ("attention_fp8", "1,1,64,80", "D=80 is not supported; choose from 64, 128"),
    ("attention_fp8", "1,0,64,64", "H=0 is out of range; use 1 to 65535"),
    ("attention_fp8", "1,1,64,64,dtype=e5m2", "dtype=e5m2 is not supported; choose from e4m3, u8"),
    ("matmul", "0,64,64", "M=0 is out of range; use 1 to 65536"),
    ("matmul", "64,64,65537", "K=65537 is out of range; use 1 to 65536"),
    ("matmul", "64,64", "has no value for K; fields: M, N, K"),
    ("rmsnorm", "0,64", "ROWS=0 is out of range; use 1 to 16777216"),
    ("matmul", "64,64,64,layout=tn", "layout=tn is not supported; choose from nn, nt"),
    ("matmul", "64,64,64,dtype=fp16", "dtype=fp16 is not supported; choose from f16, bf16"),
    ("rmsnorm", "8,8192,dtype=f32", "dtype=f32 is not supported; choose from f16, bf16"),
    ("rmsnorm", "8,65537", "COLS=65537 is out of range; use 1 to 65536"),
    ("rmsnorm", "8,64,residual=1", "residual=1 is not supported; choose from none, add"),
]

EXPORTED = [
    ("attention", "2,8,512,64", "2,8,512,96,0", "D must be 64 or 128"),
    ("attention", "2,8,512,64", "2,8,0,64,0", "S must be 1 to 4194304"),
    ("attention", "2,8,512,64", "2,8,511,64,0", "the program was compiled for this value"),
    ("attention", "2,8,512,64", "2,8,512,128,0", "the program was compiled for this value"),
    pytest.param("attention_fp8", "2,8,512,64", "2,8,512,80,0", "D must be 64 or 128", marks=pytest.mark.slow),
    pytest.param("attention_fp8", "2,8,512,64", "0,8,512,64,0", "B must be 1 to 65535", marks=pytest.mark.slow),
    ("matmul", "512,512,512", "0,512,512", "M must be 1 to 65536"),
    ("matmul", "512,512,512", "512,510,512", "floor_mod"),
    pytest.param("matmul", "512,512,512,dtype=bf16,layout=nt", "512,510,512", "floor_mod", marks=pytest.mark.slow),
    ("matmul", "512,512,512", "512,512,65537", "K must be 1 to 65536"),
    ("rmsnorm", "64,8192", "0,8192", "ROWS must be 1 to 16777216"),
    ("rmsnorm", "64,8192", "64,65537", "COLS must be 1 to 65536"),
    pytest.param(
        "rmsnorm", "64,8192,residual=add", "64,8191", "the program was compiled for this value", marks=pytest.mark.slow
    ),
    ("rmsnorm", "64,8192", "64,4096", "the program was compiled for this value"),
]


@pytest.mark.parametrize(("kernel", "problem", "message"), REFUSED)
def test_a_study_with_such_a_problem_ends_with_2(kernel: str, problem: str, message: str, tmp_path: Path) -> None:
    """The one message echoes the value and lists what the kernel takes; nothing is written, no traceback."""
    study = tmp_path / "refused.toml"
    study.write_text(f'kernel = "{KERNELS / kernel}"\nproblems = ["{problem}"]\n', encoding="utf-8")
    database = tmp_path / "results.db"
    words = ["search", str(study), "--device", "sim:l4", "--trials", "1", "--db", str(database), "--trust"]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, message in done.output, "Traceback" in done.output) == (2, True, False), done.output
    assert not database.exists()


def test_a_number_that_is_no_multiple_is_refused() -> None:
    """The message echoes the value and says what it must be a multiple of."""
    with pytest.raises(KernelError, match="N=12 is not supported; use a multiple of 8 up to 64"):
        ProblemField("N", multiple_of=8, most=64).parse("12")


@pytest.mark.parametrize("value", ["96", "0"])
def test_check_names_a_small_problem_that_the_kernel_does_not_take(value: str, tmp_path: Path) -> None:
    """A kernel folder that lists a problem its own fields refuse is unsound, and `check` says what the field takes."""
    folder = tmp_path / "attention"
    folder.mkdir()
    for path in (KERNELS / "attention").iterdir():
        if path.is_file():
            text = path.read_text(encoding="utf-8").replace('"B=1,H=2,S=72"', f'"B=1,H=2,S=72,D={value}"')
            (folder / path.name).write_text(text, encoding="utf-8")
    done = CliRunner().invoke(app, ["check", str(folder), "--trust", "--json"])
    findings = json.loads(done.stdout)
    assert (done.exit_code, findings["sound"]) == (1, False)
    assert any(f"D={value} is not supported; choose from 64, 128" in entry["detail"] for entry in findings["checks"])


@cache
def _program(name: str, problem: str) -> Path:
    """Build the host part of an exported program: kernels are stubs, and the CUDA runtime is no GPU."""
    kernel = find_kernel(str(KERNELS / name))
    made = standalone_program(kernel, kernel.space.default(), kernel.problem(problem), CHIPS["h200"], Provenance())
    stubs = made.section.declarations.replace(";", " { return nullptr; }")
    folder = Path(mkdtemp())
    (folder / "best.cpp").write_text(f"{made.host_text}\n{stubs}\n", encoding="utf-8")
    types = ["-DFAKE_KERNEL_TYPES=int*", "-DFAKE_KERNEL_COUNT=1"]
    build = [str(host_compiler()), "-std=c++17", "-w", f"-I{FAKE}", "-include", "utility", *types]
    done = subprocess.run(
        [*build, str(folder / "best.cpp"), "-o", str(folder / "best")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "best"


@pytest.mark.thorough
@pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler on PATH")
@pytest.mark.parametrize(("kernel", "problem", "shape", "message"), EXPORTED)
def test_an_exported_program_refuses_the_shape(kernel: str, problem: str, shape: str, message: str) -> None:
    """It ends with 2 and the condition that does not hold, before anything is launched."""
    done = subprocess.run([str(_program(kernel, problem)), shape], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
