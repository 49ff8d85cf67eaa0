"""`evokern render` writes a candidate that other compilers and editors can read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from paths import KERNELS
from typer.testing import CliRunner

from evokern.cli.app import app

KERNEL = """
#include "evokern_genes.h"
__global__ void k(const float* x, float* y) {
  if (threadIdx.x < TILE) y[threadIdx.x] = x[threadIdx.x] * genes::SCALE;
}
"""
DECLARATION = """
from evokern import *
kernel = Kernel(
    name="small",
    genes=(Parameter("TILE", (32, 64), doc="width"), Parameter("SCALE", (2, 3), as_="constexpr"),
           Mutation("LOADS", ("scalar", "vector"))),
    fields=(ProblemField("N"),),
    macros=lambda c, p: {"SIZE": p.N},
    launches=lambda c, p: [Launch("k", 1, c.TILE, ("x", "y"))],
    constraints=(Constraint("whole", lambda c, p: p.N % c.TILE == 0 or c["LOADS"] == "scalar", "N is not whole"),
                 Constraint("table", lambda c: {"scalar": 1, "vector": 2}[c["LOADS"]] > 0, "a table")),
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), "output")},
        reference=lambda p, t: {"y": t["x"]}, tolerance={"y": Tolerance(0, 0)},
        flops=lambda p: 0, bytes=lambda p: 8 * p.N, small_problems=("64",),
    ),
)
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel below the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "kernel.cu").write_text(KERNEL, encoding="utf-8")
    (folder / "kernel.py").write_text(DECLARATION, encoding="utf-8")
    return folder


def test_the_header_of_a_kernel_in_the_working_directory(small: Path) -> None:
    """The header is written next to the source, with values, constants, macros and assertions."""
    result = CliRunner().invoke(app, ["render", "./small", "--set", "TILE=64", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["entries"], told["left_out"]) == (["k"], ["table"])
    lines = (small / "evokern_genes.h").read_text(encoding="utf-8").splitlines()
    for line in ("#define TILE 64", "#define LOADS LOADS_SCALAR", "#define LOADS_VECTOR 1", "#define SIZE 64",
                 "constexpr int SCALE = static_cast<int>(EVOKERN_GENE_SCALE);",
                 'static_assert(((SIZE % TILE) == 0) || (LOADS == LOADS_SCALAR), "whole: N is not whole");',
                 "// Checked only by evokern: table"):  # fmt: skip
        assert line in lines, line


def test_rules_are_written_with_functions_and_fields(small: Path) -> None:
    """A function that is a macro becomes the macro, a similar one does not; min, max and other fields are written."""
    changed = DECLARATION.replace(
        "kernel = Kernel(",
        """
def threads(c): return 2 * c.TILE
def nearly(c, p): return 2 * c.TILE + (p.N > 10**6)
def table(c): return {"scalar": 1, "vector": 2}[c["LOADS"]]
def macros(c, p): return {"THREADS": threads(c), "NEARLY": 2 * c.TILE, "TABLE": table(c), "A": nearly(c, p) // 7}
kernel = Kernel(""",
    ).replace('lambda c, p: {"SIZE": p.N}', "macros")
    rules = """Constraint("some", lambda c, p: AtMost(threads(c), min(p.N, 128)), "r"),
        Constraint("other", lambda c, p: nearly(c, p) + max(c.TILE, 3) > 5, "r"),
        Constraint("mapped", lambda c: table(c) < 3, "r"),"""
    declaration = changed.replace("constraints=(", f"constraints=({rules}")
    (small / "kernel.py").write_text(declaration, encoding="utf-8")
    result = CliRunner().invoke(app, ["render", "./small", "--problem", "96"])
    assert result.exit_code == 0, result.output
    text = (small / "evokern_genes.h").read_text(encoding="utf-8")
    assert "namespace evokern_rules { enum : long long { problem_N = 96 }; }" in text
    for condition in (
        "THREADS <= evokern_rules::least(evokern_rules::problem_N, 128)",
        "(((1LL * 2 * TILE) + (evokern_rules::problem_N > 1000000)) + evokern_rules::most(TILE, 3)) > 5",
        "TABLE < 3",
    ):
        assert f"static_assert({condition}, " in text, text


def test_a_packaged_kernel_is_copied_with_its_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a kernel elsewhere stays as it is; source, shared headers and the header are written here."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["render", "rmsnorm"])
    assert result.exit_code == 0, result.output
    folder = tmp_path / "rmsnorm-candidate"
    assert (folder / "rmsnorm" / "evokern_genes.h").is_file()
    assert (folder / "rmsnorm" / "kernel.cu").read_bytes() == (KERNELS / "rmsnorm" / "kernel.cu").read_bytes()
    assert (folder / "common" / "half.cuh").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["./small", "--trial", "3"], "--trial 3 needs a study, but ./small is a kernel; name the study"),
        (["./small", "--set", "TILE=7"], "gene TILE cannot be '7'"),
        (["nowhere"], "there is no study or kernel 'nowhere'"),
        (["./small", "--problem", "x"], "N='x' is not a whole number"),
    ],
)
@pytest.mark.usefixtures("small")
def test_mistakes_end_with_a_sentence(words: list[str], said: str) -> None:
    """A wrong trial, gene, name or problem ends with exit code 2 and the remedy."""
    result = CliRunner().invoke(app, ["render", *words])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
