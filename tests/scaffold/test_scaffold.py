"""`init`: what a CUDA file tells is taken, what it does not tell is marked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from paths import DATA
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.cuda_source.host import translated
from evokern.scaffold.buffers import neighbours
from evokern.study.discovery import find_kernel, find_study

FILES = DATA / "cuda_files"

SAXPY = """
#include <cstdio>
#include <cuda_runtime.h>
#define BLOCK 256
#define ITEMS 4
#define ROUNDS 10
__global__ void saxpy(int n, float a, const float* __restrict__ x, float* y) {
  const int first = (blockIdx.x * BLOCK + threadIdx.x) * ITEMS;
  for (int i = first; i < first + ITEMS && i < n; ++i) y[i] = a * x[i];
}
int main() {
  const int count = 1 << 20;
  float *x, *y;
  dim3 blocks((count + BLOCK * ITEMS - 1) / (BLOCK * ITEMS));
  for (int round = 0; round < ROUNDS; ++round) saxpy<<<blocks, BLOCK>>>(count, 2.5f, x, y);
  printf("done");
}
"""


GEMM = """
#define TILE 16
#define CEIL(a, b) (((a) + (b) - 1) / (b))
template <typename T, class S, int PAD>
__global__ void gemm(const T* a, T* c, int m, int n, S alpha) {
  __shared__ T tile[TILE][TILE + PAD];
  c[threadIdx.x] = a[blockIdx.x] * T(alpha);
}
void start(__half* a, __half* c, int rows, int columns) {
  dim3 grid(CEIL(columns, TILE), CEIL(rows, TILE)), block(TILE, TILE);
  gemm<__half, float, 8><<<grid, block>>>(a, c, rows, columns, 0.5f);
}
"""


def _invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with saxpy.cu."""
    (tmp_path / "saxpy.cu").write_text(SAXPY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_becomes_a_kernel(here: Path) -> None:
    """Macros of device code become genes, the launch and its numbers are taken over, host code is left out."""
    code, told, _ = _invoke("init", "saxpy.cu")
    assert (code, "evokern check saxpy" in told) == (0, True)
    kernel = find_kernel("saxpy")
    assert {gene.name: gene.values for gene in kernel.genes} == {"BLOCK": (128, 256, 512), "ITEMS": (2, 4, 8)}
    problem = kernel.problem("1000000")
    (launch,) = kernel.launches(kernel.space.default(), problem)
    assert (launch.grid, launch.block) == ((977, 1, 1), (256, 1, 1))
    assert [getattr(argument, "value", argument) for argument in launch.args] == [1_000_000, 2.5, "x", "y"]
    source = (here / "kernels" / "saxpy" / "kernel.cu").read_text()
    assert "#ifndef BLOCK\n" in source and "#define BLOCK 256\n#endif" in source and "#error" not in source
    assert "printf" not in source and "main" not in source
    assert find_study("saxpy").kernel == "saxpy"


def test_macros_behind_blanks_become_genes(here: Path) -> None:
    """`  #define BLOCK 256` is as tunable as one at the line's start."""
    (here / "saxpy.cu").write_text(SAXPY.replace("#define", "  #define"))
    assert _invoke("init", "saxpy.cu")[0] == 0
    assert {gene.name for gene in find_kernel("saxpy").genes} == {"BLOCK", "ITEMS"}
    source = (here / "kernels" / "saxpy" / "kernel.cu").read_text()
    assert "#ifndef BLOCK\n" in source and "#define BLOCK 256\n#endif" in source and "#error" not in source


def test_a_template_and_its_launch_are_understood(here: Path) -> None:
    """Element types come from the template's arguments, extents from variables declared together and own macros."""
    (here / "gemm.cu").write_text(GEMM)
    code, told, _ = _invoke("init", "gemm.cu", "--entry", "gemm<__half, float, 8>")
    assert (code, '"__half" is undefined' in told) == (1, True)  # the file lacks <cuda_fp16.h>, so it does not compile
    kernel = find_kernel("gemm")
    config, problem = kernel.space.default(), kernel.problem("100,33")
    tensors = kernel.workload.tensors(problem, config)
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {"a": "f16", "c": "f16"}
    (launch,) = kernel.launches(config, problem)
    assert (launch.grid, launch.block) == ((3, 7, 1), (16, 16, 1))
    assert [(x.dtype, x.value) for x in launch.args if not isinstance(x, str)] == [
        ("i32", 100), ("i32", 33), ("f32", 0.5),
    ]  # fmt: skip


def test_check_names_what_only_the_user_knows(here: Path) -> None:
    """A draft passes every check but the reference, which it says is the user's to write."""
    _invoke("init", "saxpy.cu")
    code, told, _ = _invoke("check", "saxpy", "--json")
    failed = {finding["check"]: finding["detail"] for finding in json.loads(told)["checks"] if finding["ok"] is False}
    assert (code, list(failed)) == (1, ["reference"])
    assert "write the reference in kernel.py" in failed["reference"]


@pytest.mark.slow
def test_a_draft_with_its_references_is_sound(here: Path) -> None:
    """Once the two references are written, nothing is left to complain about."""
    _invoke("init", "saxpy.cu")
    _write_references(here / "kernels" / "saxpy", "2.5 * ")
    code, told, _ = _invoke("check", "saxpy")
    assert (code, told.splitlines()[-1].partition(";")[0]) == (0, "all checks passed")


def _write_references(folder: Path, factor: str) -> None:
    declaration = (folder / "kernel.py").read_text()
    raising = next(line for line in declaration.splitlines() if "raise ValueError" in line)
    (folder / "kernel.py").write_text(declaration.replace(raising, f'    return {{"y": {factor}t["x"]}}'))
    header = (folder / "reference.h").read_text()
    error = next(line for line in header.splitlines() if line.startswith("#error"))
    (folder / "reference.h").write_text(header.replace(error, f"  for (int i = 0; i < N; i++) y[i] = {factor}x[i];"))


SWAPPED_TWICE = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void __cluster_dims__(2, 1, 1) twice(const float* x, float* y, int n) {
  __shared__ float mine[128];
  cg::cluster_group cluster = cg::this_cluster();
  const int i = blockIdx.x * 128 + threadIdx.x, other = (blockIdx.x ^ 1) * 128 + threadIdx.x;
  mine[threadIdx.x] = other < n ? 2 * x[other] : 0;
  cluster.sync();
  const float value = cluster.map_shared_rank(mine, cluster.block_rank() ^ 1)[threadIdx.x];
  cluster.sync();
  if (i < n) y[i] = value;
}
void start(const float* x, float* y, int n) { twice<<<(n + 127) / 128, 128>>>(x, y, n); }
"""


def test_a_draft_in_clusters_is_sound(here: Path) -> None:
    """The drafted launch names the cluster that the kernel demands, and `check` finds that they agree."""
    (here / "twice.cu").write_text(SWAPPED_TWICE)
    code, told, _ = _invoke("init", "twice.cu")
    assert (code, "--device sim:h100" in told, "could not run" in told) == (0, True, False)
    kernel = find_kernel("twice")
    (launch,) = kernel.launches(kernel.space.default(), kernel.problem("300"))
    assert (launch.cluster, launch.grid) == ((2, 1, 1), (4, 1, 1))
    _write_references(here / "kernels" / "twice", "2 * ")
    code, told, _ = _invoke("check", "twice")
    assert (code, told.splitlines()[-1].partition(";")[0]) == (0, "all checks passed")
    assert "is correct on" in told


def test_nothing_is_overwritten(here: Path) -> None:
    """A second draft of the same name is refused with the remedy, and the first stays as it is."""
    _invoke("init", "saxpy.cu")
    (here / "kernels" / "saxpy" / "kernel.py").write_text("mine")
    code, _, told = _invoke("init", "saxpy.cu")
    assert (code, "already exists" in told, "--name" in told) == (2, True, True)
    assert (here / "kernels" / "saxpy" / "kernel.py").read_text() == "mine"
    assert _invoke("init", "saxpy.cu", "--name", "other")[0] == 0


def test_two_drafts_at_once_are_told_apart(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that another `init` made meanwhile is refused as one that was there before."""
    from evokern.scaffold import write

    (here / "kernels" / "saxpy").mkdir(parents=True)
    monkeypatch.setattr(write, "kernel_name", lambda path, root, name: "saxpy")
    code, _, told = _invoke("init", "saxpy.cu")
    assert (code, "kernels/saxpy already exists" in told, "--name" in told) == (2, True, True)


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("absent.cu", [], "absent.cu"),
        (str(FILES / "templates.cu"), [], "with --entry"),
        (str(FILES / "nvcc_program.cu"), ["--entry", "gemm_tield"], "gemm_tiled"),
        (str(FILES / "nvcc_program.cu"), ["--entry", "gemm_tiled"], "gemm_tiled"),
        ("saxpy.cu", ["--name", "a-b"], "'a-b' is not a valid kernel name"),
    ],
)
def test_what_cannot_be_drafted_is_said(here: Path, file: str, options: list[str], message: str) -> None:
    """A missing file, an ambiguous or unknown entry, a struct by value, a bad name: one message, nothing written."""
    code, _, told = _invoke("init", file, *options)
    assert (code, message in told, told.count("\n")) == (2, True, 1)
    assert not (here / "kernels").exists()


def test_own_headers_are_put_in_place(here: Path) -> None:
    """What the kernel uses of headers found with -I stands in kernel.cu, and nothing else of them."""
    project = FILES / "project"
    assert _invoke("init", str(project / "src" / "softmax.cu"), "-I", str(project / "include"))[0] == 0
    folder = here / "kernels" / "softmax"
    text = (folder / "kernel.cu").read_text()
    assert {path.name for path in folder.iterdir()} == {"kernel.cu", "kernel.py", "reference.h"}
    assert "warp.cuh" not in text and text.count("__global__") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(n + BLOCK - 1) / BLOCK", "ceil_div(p.N, c.BLOCK)"),
        ("cdiv(n, BLOCK) * 2u", "ceil_div(p.N, c.BLOCK) * 2"),
        ("half_n * 3", "(p.N // 2) * 3"),
        ("2 * BLOCK * sizeof(float)", "2 * c.BLOCK * 4"),
        ("unknown / 2", None),
        ("n > 3 ? 1 : 2", "(1 if p.N > 3 else 2)"),
        ("n > 3 ? 1 : unknown", None),
        ("ceil((double)(n * 3) / BLOCK)", "ceil_div(p.N * 3, c.BLOCK)"),
        ("std::ceil(n / 64.0f)", "ceil_div(p.N, 64)"),
        ("n +", None),
    ],
)
def test_launch_expressions_are_translated_or_left(text: str, expected: str | None) -> None:
    """C integer expressions become Python over genes and fields; what is not understood is not guessed."""
    names = {"n": "p.N", "BLOCK": "c.BLOCK"}
    assert expected == translated(text, names, {"half_n": "n / 2"})


@pytest.mark.parametrize(
    ("number", "expected"), [(0, (0, 1)), (1, (1, 2, 4)), (64, (32, 64, 128)), (80, (40, 80, 160)), (3, (2, 3, 6))]
)
def test_values_worth_trying_surround_the_given_one(number: int, expected: tuple[int, ...]) -> None:
    """The file's value stays among its neighbours."""
    assert expected == neighbours(number)
