"""A buffer has the size that the file states; an access beyond it is a finding, not a larger buffer."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.cuda_source import read
from evokern.scaffold.draft import Draft, draft
from evokern.scaffold.reading import read_kernel
from evokern.scaffold.stated.sizes import inclusive_check

KERNEL = """__global__ void scale(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (%s) y[i] = 2 * x[i%s];
}
"""
MAIN = """int main() {
  int n = 100000;
  float *x, *y;
  cudaMalloc(&x, %s);
  cudaMalloc((void**)&y, bytes_y);
  scale<<<(n + 255) / 256, 256>>>(x, y, n);
}
""".replace("bytes_y", "n * sizeof(float)")
CALLED = """void start(const float* a, float* b, int count) {
  scale<<<(count + 255) / 256, 256>>>(a, b, count);
}
int main() {
  const int N = 5000;
  size_t bytes = sizeof(float) * N;
  float *dx, *dy;
  cudaMalloc(&dx, bytes);
  cudaMalloc(&dy, bytes);
  start(dx, dy, N);
}
"""
ROWS = """#include <thrust/device_vector.h>
__global__ void sum(const float* a, float* out, int m, int n) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= m) return;
  float s = 0;
  for (int k = 0; k <= n; k++) s += a[r * n + k];
  out[r] = s;
}
int main() {
  int m = 1000, n = 64;
  thrust::device_vector<float> a(m * n), out(m);
  sum<<<(m + 127) / 128, 128>>>(thrust::raw_pointer_cast(a.data()), thrust::raw_pointer_cast(out.data()), m, n);
}
"""
DEFECTS = {
    "allocation": (KERNEL % ("i <= n", "") + MAIN % "n * sizeof(float)", "x", ("p.N",), 3),
    "allocation by the caller": (KERNEL % ("i <= n", "") + CALLED, "y", ("p.N",), 3),
    "one input is too short": (KERNEL % ("i < n", " + 1") + MAIN % "n * sizeof(float)", "x", ("p.N",), 3),
    "rows of a vector": (ROWS, "a", ("p.M", "p.N"), 5),
    "no host code": (KERNEL % ("i <= n", ""), "y", ("p.N",), 3),
}
SOUND = {
    "allocated": KERNEL % ("i < n", " + 1") + MAIN % "(n + 1) * sizeof(float)",
    "whole tiles": KERNEL % ("true", "") + MAIN % "n * sizeof(float)",
    "unknown": KERNEL % ("i < n", " + 1"),
}


def drafted(text: str) -> Draft:
    return draft(read(text), None)


@pytest.mark.parametrize("name", DEFECTS)
def test_an_access_beyond_the_stated_size_is_named(name: str) -> None:
    """The draft keeps the stated size and a small problem with the finding, and the list names buffer and line."""
    text, buffer, shape, line = DEFECTS[name]
    made = drafted(text)
    (tensor,) = [one for one in made.tensors if one.name == buffer]
    assert (tensor.shape, "states this size" in tensor.why) == (shape, True)
    assert [one for one in made.faults if f"kernel.cu:{line}: out of bounds: {buffer} has" in one]


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_kernel_has_no_fault(name: str) -> None:
    """Neither a border that is allocated, nor a kernel for whole tiles, nor an unknown size is a finding."""
    made = drafted(SOUND[name])
    assert made.faults == ()
    assert ["unknown size" in one.why for one in made.tensors] == [name == "unknown", False]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("if (i <= n) f();", "the check `i <= n`"),
        ("if (i > n) return;", "the check `i > n`"),
        ("if (n >= i) f();", "the check `n >= i`"),
        ("for (int k = 0; k <= n; k++) f();", "the check `k <= n`"),
        ("if (i < n + 1) f();", ""),
        ("if (i <= n - 1) f();", ""),
        ("if (p->n) f(); // i <= n", ""),
        ("if (n >= 4) f();", ""),
    ],
)
def test_inclusive_checks(source: str, found: str) -> None:
    assert inclusive_check(source, "n") == found


BINDING = """__global__ void shift(const float* x, const float* b, float* y, long total, int n) {
  long i = blockIdx.x * 256l + threadIdx.x;
  if (i < total) y[i] = x[i] + b[i %% n];
}
torch::Tensor run(torch::Tensor x, torch::Tensor b) {
  %s
  auto y = torch::empty_like(x);
  const long total = %s;
  shift<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(), total, %s);
  return y;
}
"""


@pytest.mark.parametrize(
    ("check", "total", "n", "fields", "count"),
    [
        ("TORCH_CHECK(x.dim() == 2 && b.size(0) == x.size(1));", "x.numel()", "x.size(1)", "M N", "p.M * p.N"),
        ("TORCH_CHECK(x.dim() == 2);", "x.numel()", "(int)x.size(1)", "M N", "p.M * p.N"),
        ("TORCH_CHECK_EQ(b.size(0), x.size(1));", "x.numel()", "b.size(0)", "M N", "p.M * p.N"),
        ("int cols = x.size(-1);", "x.numel()", "cols", "ROWS N", "p.ROWS * p.N"),
        ("", "x.size(0) * x.size(1)", "x.size(1)", "TOTAL N", "p.TOTAL"),
        ("TORCH_CHECK(x.dim() == 3);", "x.numel()", "b.numel()", "M K L N", "p.M * p.K * p.L"),
    ],
)
def test_a_count_of_elements_uses_extents(check: str, total: str, n: str, fields: str, count: str) -> None:
    """`x.numel()` is a product if the launch uses an extent of the same tensor, or one equal to it."""
    reading = read_kernel(read(BINDING % (check, total, n)), None)
    assert " ".join(field.name for field in reading.plan.fields) == fields
    assert [one.expression for one in reading.plan.arguments][3:] == [count, "p.N"]
    if "*" in count:
        assert reading.plan.stated["x"].axes == tuple(count.split(" * "))


COMMENTED = """%s
__global__ void gather(const float* w,%s
                       const int* idx, float* y, int num, int dim) {
  int t = blockIdx.x;
  for (int i = threadIdx.x; i < dim; i += blockDim.x) y[t * dim + i] = w[idx[t] * dim + i];
}
%s
void run(const float* weight, const int* idx, float* y, int num, int dim) {
  %s
  gather<<<num, 128>>>(weight, idx, y, num, dim);
}
"""


@pytest.mark.parametrize(
    ("comments", "axes", "fields"),
    [
        (("", "  // [vocab, dim]", "", ""), ("p.VOCAB", "p.DIM"), "NUM DIM VOCAB"),
        (("", "", "", "// weight: (V, dim)"), ("p.V", "p.DIM"), "NUM DIM V"),
        (("", "", "// input: weight (V, dim) float", ""), ("p.V", "p.DIM"), "NUM DIM V"),
        (("/*\n  Args:\n    w   : the table, FloatTensor[v, dim]\n*/", "", "", ""), ("p.V", "p.DIM"), "NUM DIM V"),
        (("", "  // [num * 2, dim / 2]", "", ""), ("p.NUM * 2", "p.DIM // 2"), "NUM DIM"),
        (("", "  // [..., 2 * dim]", "", ""), ("p.NUM", "2 * p.DIM"), "NUM DIM"),
        (("", "", "", "// w (see below)"), None, "NUM DIM"),
        (("// gathers rows of w (device, float), one for each idx", "", "", ""), None, "NUM DIM"),
        (("", "", "", "// y = softmax(weight, dim)"), None, "NUM DIM"),
        (("", "  // (rows, columns)", "", ""), None, "NUM DIM"),
    ],
)
def test_comments_state_shapes(comments: tuple[str, ...], axes: tuple[str, ...] | None, fields: str) -> None:
    """A comment next to a parameter, above the kernel or at its launch states a shape; prose does not."""
    reading = read_kernel(read(COMMENTED % comments), None)
    assert (reading.plan.stated["w"].axes if "w" in reading.plan.stated else None) == axes
    assert " ".join(field.name for field in reading.plan.fields) == fields


def test_a_stated_axis_limits_the_integers_that_index_it() -> None:
    """Integers stay below the extent of the axis that they index, not below a number of the draft."""
    made = drafted(COMMENTED % ("", "  // [vocab, dim]", "", ""))
    assert [(one.name, one.shape, one.extra) for one in made.tensors[:2]] == [
        ("w", ("p.VOCAB", "p.DIM"), ""), ("idx", ("p.NUM",), "high=p.VOCAB - 1")
    ]  # fmt: skip


def test_integers_of_the_last_axis_are_not_limited_by_the_others() -> None:
    """The runs show which of several axes the integers index."""
    made = drafted(
        """
__global__ void pick(float* y, const float* probs, const int* targets, int B, int T, int V) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < B * T) y[i] = probs[i * V + targets[i]];  // probs: (B, T, V)
}
void run(float* y, int* targets, int B, int T, int V) {
  float* probs;
  cudaMalloc(&probs, B * T * V * sizeof(float));
  pick<<<(B * T + 127) / 128, 128>>>(y, probs, targets, B, T, V);
}
"""
    )
    assert [one.extra for one in made.tensors if one.name == "targets"] == ["high=p.V - 1"]


def test_sanitize_reports_each_buffer_of_a_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding of `init` is one for `sanitize` too, with one entry per buffer."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "off.cu").write_text(DEFECTS["no host code"][0])
    assert CliRunner().invoke(app, ["init", "off.cu"]).exit_code == 0
    done = CliRunner().invoke(app, ["sanitize", "off", "--trust", "--problem", "598"])
    assert done.exit_code == 1
    assert [done.stdout.count(f"memory        {name}, byte") for name in "xy"] == [1, 1]


@pytest.mark.parametrize(
    ("body", "code", "first"),
    [
        ("int i = threadIdx.x y[i] = x[i];", 1, 'does not compile: kernel.cu:1: expected a ";"'),
        ("__shared__ float s[64]; s[64 + n] = x[0]; __syncthreads(); y[0] = s[n];", 0, "kernel.cu:1: out of bounds: s"),
    ],
)
def test_a_defect_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, code: int, first: str
) -> None:
    """A syntax error, and an access outside shared memory, head the list of what there is to do."""
    monkeypatch.chdir(tmp_path)
    text = f"__global__ void k(const float* x, float* y, int n) {{ {body} }}\nvoid f(float* x, float* y, int n) "
    (tmp_path / "k.cu").write_text(text + "{ k<<<1, 64>>>(x, y, n); }\n")
    done = CliRunner().invoke(app, ["init", "k.cu"])
    todo = done.stdout.partition("To do:\n")[2].splitlines()
    assert (done.exit_code, first in todo[0]) == (code, True)


def test_init_does_not_write_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository's link `studies` that leads out of it is refused; one inside it is followed."""
    (tmp_path / "elsewhere").mkdir()
    here = tmp_path / "here"
    (here / "own").mkdir(parents=True)
    monkeypatch.chdir(here)
    (here / "k.cu").write_text(SOUND["unknown"])
    (here / "studies").symlink_to(tmp_path / "elsewhere")
    done = CliRunner().invoke(app, ["init", "k.cu"])
    assert (done.exit_code, "outside the working directory" in done.stderr) == (2, True)
    assert not [*(tmp_path / "elsewhere").iterdir(), *(here / "kernels").glob("*")]
    (here / "studies").unlink()
    (here / "studies").symlink_to("own")
    assert CliRunner().invoke(app, ["init", "k.cu"]).exit_code == 0
