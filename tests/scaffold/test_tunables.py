"""`init`: which numbers of a file become genes, with which values, and how they reach the code."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.cuda_source import read
from evokern.scaffold.draft import Draft, draft
from evokern.scaffold.genes.confirm import whole_quotients, with_rules
from evokern.scaffold.genes.tunables import values_of
from evokern.scaffold.plan import DraftField, DraftGene, Plan
from evokern.scaffold.source_text import with_definitions
from evokern.study.discovery import find_kernel

STENCIL = """
#define REACH 3
#define HALO 1
#define BLOCK_SIZE 128
#define CAPACITY 8
#define WARP_SIZE 32
#define FULL_MASK 0xffffffff
#define LIB_VERSION 12
#define EPS 1e-5f
#define USE_FMA 1
#define ORDER 0  // 0: rising, 1: falling
#define SPAN (BLOCK_SIZE * ITEMS)
constexpr int UNROLL = 4;  // 1, 2, 4 or 8
enum { ITEMS = 2 };
__global__ void stencil(const float* in, float* out, int n) {
  __shared__ float t[SPAN + 2 * REACH];
  float best[CAPACITY];
  const int base = blockIdx.x * SPAN;
  for (int i = threadIdx.x; i < SPAN + 2 * REACH; i += BLOCK_SIZE) {
    const int g = base + i - REACH;
    t[i] = g >= 0 && g < n && LIB_VERSION > 3 ? in[g] : 0;
  }
  __syncthreads();
  for (int k = 0; k < ITEMS; k++) {
    const int i = threadIdx.x + k * BLOCK_SIZE, g = base + i;
    best[0] = __shfl_sync(FULL_MASK, 0.0f, threadIdx.x % WARP_SIZE);
#pragma unroll UNROLL
    for (int r = 0; r <= 2 * REACH; r++) {
#if ORDER == 0
      const int at = i + r;
#elif ORDER == 1
      const int at = i + 2 * REACH - r;
#endif
      best[0] = USE_FMA ? fmaf(t[at], 0.5f, best[0]) : best[0] + 0.5f * t[at];
    }
    if (g < n * HALO) out[g] = best[0] + EPS;
  }
}
void go(const float* a, float* b, int n) { stencil<<<(n + SPAN - 1) / SPAN, BLOCK_SIZE>>>(a, b, n); }
"""


@pytest.fixture(scope="module")
def stencil() -> Draft:
    """The draft of `STENCIL`."""
    return draft(read(STENCIL), None)


def test_each_number_is_what_the_code_makes_of_it(stencil: Draft) -> None:
    """Tiles, switches and choices of code are genes; the algorithm, the hardware and capacities of arrays are not."""
    found = {gene.name: (gene.values, gene.as_) for gene in stencil.plan.genes}
    assert found == {
        "BLOCK_SIZE": ((64, 128, 256), "macro"),
        "USE_FMA": ((0, 1), "macro"),
        "ORDER": ((0, 1), "macro"),
        "UNROLL": ((1, 2, 4, 8), "constexpr"),
        "ITEMS": ((1, 2, 4), "constexpr"),
    }
    assert any("REACH = 3 stays fixed: with REACH = 2, 6, the results differ" in note for note in stencil.notes)


def test_the_text_of_the_file_stays(stencil: Draft) -> None:
    """A plain definition gets a guard, a constant the header's value; there is no `#error`."""
    assert stencil.source.startswith('#include "evokern_genes.h"\n')
    assert "#ifndef BLOCK_SIZE\n#define BLOCK_SIZE 128\n#endif\n" in stencil.source
    assert "constexpr int UNROLL = genes::UNROLL;  // 1, 2, 4 or 8\nenum { ITEMS = genes::ITEMS };" in stencil.source
    assert "#define SPAN (BLOCK_SIZE * ITEMS)\n" in stencil.source and "#error" not in stencil.source
    assert stencil.plan.grid == ("ceil_div(p.N, c.BLOCK_SIZE * c.ITEMS)",)


@pytest.mark.parametrize(
    ("default", "comment", "values"),
    [
        (64, "64, 128 or 256", (64, 128, 256)),
        (2, "{1,2,4}", (1, 2, 4)),
        (2, "one of 1/2/4", (1, 2, 4)),
        (128, "32..512", (32, 64, 128, 256, 512)),
        (96, "must be a multiple of 32", (96, 192)),
        (24, "a power of two", (24,)),
        (256, "at most 256", (128, 256)),
        (8, "see section 3, 4", (4, 8, 16)),
        (1, "", (1, 2, 4)),
    ],
)
def test_values_come_from_the_comment(default: int, comment: str, values: tuple[int, ...]) -> None:
    """A list or range that contains the value is taken; a condition removes guesses; other numbers say nothing."""
    assert values_of(default, [comment])[0] == values


def test_conditions_become_values_constraints_and_divisors() -> None:
    """One gene: fewer values. Several genes, or a gene and a field: a constraint, unless it always holds."""
    genes = (DraftGene("TILE", (16, 32, 48), 32), DraftGene("ROWS", (4, 8), 8), DraftGene("VEC", (1, 3), 1))
    plan = Plan("k", genes, (DraftField("N"), DraftField("K")), (), ("p.N",), ("c.TILE",))
    made = with_rules(
        plan,
        ["c.TILE % 32 == 0 and c.TILE % c.ROWS == 0", "p.N % c.TILE == 0", "p.K % 8 == 0", "c.VEC <= c.ROWS",
         *whole_quotients(["c.ROWS // c.VEC"])],
        "stated",
    )  # fmt: skip
    assert made.genes[0].values == (32,)
    assert made.constraints == (
        ("tile_n", "divides(c.TILE, p.N)", "stated"),
        ("rows_vec", "divides(c.VEC, c.ROWS)", "stated"),
    )
    assert [field.multiple_of for field in made.fields] == [1, 8]


BUILT = """
__global__ void scale(const float* x, float* y, int n) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
void run(const float* x, float* y, int n) { scale<<<(n + THREADS - 1) / THREADS, THREADS>>>(x, y, n); }
"""


def test_macros_of_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-D` gives the value; without it, the list says what to pass; another kind of input refuses it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scale.cu").write_text(BUILT)
    without = CliRunner().invoke(app, ["init", "scale.cu", "--name", "lost"])
    assert without.exit_code == 1 and "draft again with -D THREADS=VALUE" in without.stdout
    done = CliRunner().invoke(app, ["init", "scale.cu", "-D", "THREADS=128"])
    assert done.exit_code == 0, done.output
    assert {gene.name: (gene.values, gene.default) for gene in find_kernel("scale").genes} == {
        "THREADS": ((64, 128, 256), 128)
    }
    assert "#ifndef THREADS\n#define THREADS 128\n#endif\n" in (tmp_path / "kernels/scale/kernel.cu").read_text()
    wrong = CliRunner().invoke(app, ["init", "scale.cu", "--name", "other", "-D", "3=128"])
    assert wrong.exit_code == 2 and "'3' is not the name of a macro" in wrong.output
    (tmp_path / "task.py").write_text("from kernel_tuner import tune_kernel\ntune_kernel()\n")
    task = CliRunner().invoke(app, ["init", "task.py", "-D", "N=1", "--trust"])
    assert task.exit_code == 2 and "-D N=1 has no effect" in task.output


def test_a_definition_of_the_build_replaces_the_default() -> None:
    """The value of `-D` precedes the file's own default."""
    text = BUILT.replace("\n__global__", "\n#ifndef THREADS\n#define THREADS 256\n#endif\n__global__", 1)
    made = draft(with_definitions(read(text), ["THREADS=64"]), None)
    assert [(gene.name, gene.default) for gene in made.plan.genes] == [("THREADS", 64)]


SIZED = """
#include <cuda_runtime.h>
const int N = 1 << 9;
constexpr int THREADS = 16;
__global__ void twice(const float* a, float* b) {
  const int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y * THREADS + threadIdx.y;
  if (x < N && y < N) b[y * N + x] = 2 * a[y * N + x];
}
int main() {
  float *a, *b;
  cudaMalloc(&a, N * N * sizeof(float));
  cudaMalloc(&b, N * N * sizeof(float));
  const int blocks = N / THREADS;
  twice<<<dim3(blocks, blocks), dim3(THREADS, THREADS)>>>(a, b);
}
"""


def test_a_constant_that_allocations_use_is_a_field() -> None:
    """The kernel has no other size: the constant is the field, and code and launch follow it."""
    made = draft(read(SIZED), None)
    assert [(gene.name, gene.default) for gene in made.plan.genes] == [("THREADS", 16)]
    assert ([field.name for field in made.plan.fields], made.plan.macros) == (["N"], {"PROBLEM_N": "p.N"})
    assert "#define PROBLEM_N 512\n#endif\n" in made.source and "const int N = PROBLEM_N;" in made.source
    assert [tensor.shape for tensor in made.tensors] == [("p.N", "p.N")] * 2


COMMENTED = """
template <int THREADS,  // 64, 128 or 256
          int ITEMS>
__global__ void scale(const float* x, float* y, int n) {
  const int first = blockIdx.x * THREADS * ITEMS + threadIdx.x;
  for (int k = 0; k < ITEMS; k++)
    if (first + k * THREADS < n) y[first + k * THREADS] = 2 * x[first + k * THREADS];
}
void run(const float* x, float* y, int n) {
  constexpr int PER_THREAD = 4;  // {1, 2, 4, 8}
  scale<128, PER_THREAD><<<(n + 128 * PER_THREAD - 1) / (128 * PER_THREAD), 128>>>(x, y, n);
}
"""


def test_comments_on_template_parameters_and_their_arguments() -> None:
    """A comment at the parameter, or at the host's constant, lists the values."""
    made = draft(read(COMMENTED), None)
    assert {gene.name: gene.values for gene in made.plan.genes} == {"THREADS": (64, 128, 256), "ITEMS": (1, 2, 4, 8)}
    assert made.plan.entry == "scale<{c.THREADS}, {c.ITEMS}>"
