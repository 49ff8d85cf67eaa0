"""`init` learns from runs: roles, shapes, grids, what must divide a field; and says what stays a guess."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import DATA

from evokern.cuda_source import read
from evokern.errors import SourceError
from evokern.scaffold.declaration_text import kernel_py
from evokern.scaffold.draft import Draft, draft
from evokern.scaffold.evidence import fit, row_major
from evokern.scaffold.reading import read_kernel
from evokern.study.discovery import load_kernel

HALF_GRID = """
#define BX 32
#define BY 8
__global__ void twice(const float* x, float* y, int nx, int ny) {
  int i = blockIdx.x * BX + threadIdx.x, j = blockIdx.y * BY + threadIdx.y;
  if (i < nx && j < ny) y[j * nx + i] = 2 * x[j * nx + i];
}
void run(const float* x, float* y, int nx, int ny) {
  dim3 block(BX, BY);
  dim3 grid((nx + BX - 1) / BX, (ny + BY * 2 - 1) / (BY * 2));
  twice<<<grid, block>>>(x, y, nx, ny);
}
"""
ROLES = """
__global__ void other(float* z) { z[0] = 1; }
void update_cpu(float* w, float* m, const float* g, int n) {
  for (int i = 0; i < n; i++) w[i] -= g[i];
}
// The first step of an optimiser.
__global__ void update(float* w, float* g, float* total, unsigned short* unused, int n, int version) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    w[i] -= g[i] * version;
    atomicAdd(total, g[i]);
  }
}
void start(float* w, float* g, float* total, unsigned short* u, int count, int block_size) {
  update<<<(count + block_size - 1) / block_size, block_size>>>(w, g, total, u, count, 1);
}
"""
TILED = """
template <typename T, int BS>
__global__ void product(int M, int N, int K, const T* A, const T* B, T* C) {
  __shared__ T as[BS][BS], bs[BS][BS];
  int row = blockIdx.y * BS + threadIdx.y, col = blockIdx.x * BS + threadIdx.x;
  T sum = 0;
  for (int k = 0; k < K; k += BS) {
    as[threadIdx.y][threadIdx.x] = A[row * K + k + threadIdx.x];
    bs[threadIdx.y][threadIdx.x] = B[(k + threadIdx.y) * N + col];
    __syncthreads();
    for (int i = 0; i < BS; i++) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
    __syncthreads();
  }
  C[row * N + col] = sum;
}
#define BS 8
void start(int m, int n, int k, const float* a, const float* b, float* c) {
  dim3 grid(n / BS, m / BS), block(BS, BS);
  product<float, BS><<<grid, block>>>(m, n, k, a, b, c);
}
"""
GATHER = """
__constant__ float weights[64];
__global__ void gather(float* out, const float* table, const int* rows, int R, int C) {
  for (int c = threadIdx.x; c < C; c += blockDim.x)
    out[blockIdx.x * C + c] = weights[c % 4] * table[rows[blockIdx.x] * C + c];
}
void start(float* out, const float* table, const int* rows, int r, int c) {
  gather<<<r, 64>>>(out, table, rows, r, c);
}
"""


def drafted(text: str, entry: str | None = None) -> Draft:
    return draft(read(text), entry)


def shapes(made: Draft) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Buffer → role and shape."""
    return {tensor.name: (tensor.role, tensor.shape) for tensor in made.tensors}


def test_a_grid_of_two_dimensions_and_row_major_shapes(tmp_path: Path) -> None:
    """The drafted launch can be called; the file's own, which leaves half unwritten, is kept, and that is said."""
    made = drafted(HALF_GRID)
    assert shapes(made) == {"x": ("input", ("p.NY", "p.NX")), "y": ("inout", ("p.NY", "p.NX"))}
    assert made.plan.grid == ("ceil_div(p.NX, c.BX)", "ceil_div(p.NY, c.BY * 2)")
    assert [note for note in made.notes if "with the launch on line 11, runs wrote" in note]
    folder = tmp_path / "twice"
    folder.mkdir()
    (folder / "kernel.cu").write_text(made.source)
    (folder / "kernel.py").write_text(kernel_py("twice", "twice.cu", made))
    kernel = load_kernel(folder)
    (launch,) = kernel.launches(kernel.space.default(), kernel.problem("100,20"))
    assert (launch.grid, launch.block) == ((4, 2, 1), (32, 8, 1))


def test_roles_come_from_runs_not_from_const() -> None:
    """What is read only is an input, what is read and written is both, atomics too; a flag is no field."""
    made = drafted(ROLES, "update")
    assert shapes(made) == {
        "w": ("inout", ("p.N",)),
        "g": ("input", ("p.N",)),
        "total": ("inout", ("1",)),
        "unused": ("input", ("1",)),
    }
    assert [field.name for field in made.plan.fields] == ["N"]
    assert [a.expression for a in made.plan.arguments if not a.is_tensor] == ["p.N", "1"]
    (gene,) = made.plan.genes
    assert (gene.name, gene.default, 64 in gene.values) == ("BLOCK_SIZE", 256, True)


def test_other_kernels_are_left_out_and_the_cpu_function_is_shown() -> None:
    """Only the kernel stands in kernel.cu; the file's own function stands as a comment where the reference goes."""
    made = drafted(ROLES, "update")
    assert made.source.count("__global__") == 1 and "update_cpu" not in made.source
    text = kernel_py("update", "update.cu", made)
    assert "#     for (int i = 0; i < n; i++) w[i] -= g[i];" in text
    assert "# guess: read before it is written" in text


def test_a_template_parameter_and_a_macro_of_one_name() -> None:
    """The gene has a name of its own, reaches the kernel as a template argument, and tiles become constraints."""
    made = drafted(TILED, "product")
    (gene,) = made.plan.genes
    assert (gene.name, gene.default) == ("BS", 8)
    assert made.plan.entry == "product<float, {c.BS}>"
    assert made.plan.block == ("c.BS", "c.BS")
    assert shapes(made) == {
        "A": ("input", ("p.M", "p.K")),
        "B": ("input", ("p.K", "p.N")),
        "C": ("output", ("p.M", "p.N")),
    }
    conditions = {condition for _, condition, _ in made.plan.constraints}
    assert {"divides(c.BS, p.M)", "divides(c.BS, p.N)"} <= conditions


def test_indices_limits_and_constant_memory() -> None:
    """A table that integers index has as many rows as they may be large; a constant array is a tensor of that role."""
    made = drafted(GATHER)
    assert shapes(made) == {
        "weights": ("constant", ("4",)),
        "out": ("output", ("p.R", "p.C")),
        "table": ("input", ("p.TABLE_ROWS", "p.C")),
        "rows": ("input", ("p.R",)),
    }
    assert "high=p.TABLE_ROWS - 1" in kernel_py("gather", "gather.cu", made)
    assert [(gene.name, gene.values) for gene in made.plan.genes] == [("BLOCK_X", (32, 64, 128))]


LEADING = """
template <unsigned T> __global__ void product(const float* a, int lda, const float* b, int ldb, float* c, int ldc,
                                              int m, int n, int k) {
  int x = blockIdx.x * T + threadIdx.x, y = blockIdx.y * T + threadIdx.y;
  if (x >= n || y >= m) return;
  float sum = 0;
  for (int i = 0; i < k; i++) sum += a[y * lda + i] * b[i * ldb + x];
  c[y * ldc + x] = sum;
}
void start(const float* a, int lda, const float* b, int ldb, float* c, int ldc, int m, int n, int k) {
  product<16><<<dim3((n + 15) / 16, (m + 15) / 16), dim3(16, 16)>>>(a, lda, b, ldb, c, ldc, m, n, k);
}
"""


def test_leading_dimensions_are_row_lengths() -> None:
    """A distance between rows is not a field: the draft passes the extent that runs show."""
    made = drafted(LEADING)
    assert [field.name for field in made.plan.fields] == ["M", "N", "K"]
    assert [a.expression for a in made.plan.arguments if a.name.startswith("ld")] == ["p.K", "p.N", "p.N"]
    assert {name: shape for name, (_, shape) in shapes(made).items()} == {
        "a": ("p.M", "p.K"), "b": ("p.K", "p.N"), "c": ("p.M", "p.N")
    }  # fmt: skip


ADD = """
__global__ void add(float* out, const float* in, int m, int n) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * BODY + threadIdx.y;
  if (x < n && y < m) out[y * n + x] = in[y * n + x] + 1;
}
void start(float* out, const float* in, int m, int n) {
  dim3 grid((n + 15) / 16, (m + 7) / 8);
  add<<<grid, dim3(16, 8)>>>(out, in, m, n);
}
"""


@pytest.mark.parametrize(("body", "genes"), [("blockDim.y", ["BLOCK_X", "BLOCK_Y"]), ("8", ["BLOCK_X"])])
def test_numbers_of_a_launch_become_the_block_s_genes(body: str, genes: list[str]) -> None:
    """Where the body asks for the block's extent others are sound; where it holds the number the launch keeps it."""
    made = drafted(ADD.replace("BODY", body))
    assert [gene.name for gene in made.plan.genes] == genes
    config, problem = {"BLOCK_X": 32, "BLOCK_Y": 4}, {"M": 9, "N": 33}
    assert made.plan.extents(made.plan.grid, config, problem) == (2, 3 if len(genes) == 2 else 2, 1)


@pytest.mark.parametrize(
    ("grid", "text"),
    [
        ("256", "256"),
        ("THREADS", "256"),
        ("(n + 255) / 256", "ceil_div(p.N, c.BLOCK_X)"),
        ("min((n + 255) / 256, 256)", "min(ceil_div(p.N, c.BLOCK_X), 256)"),
        ("(n + 4 * THREADS - 1) / (4 * THREADS)", "ceil_div(p.N, 4 * c.BLOCK_X)"),
    ],
)
def test_a_grid_keeps_numbers_that_only_equal_the_block(grid: str, text: str) -> None:
    """A fixed number of blocks stays; where the work is divided by the block, its gene appears."""
    made = drafted(f"""
#define THREADS 256
__global__ void axpy(const float* x, float* y, int n) {{
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] += 2.f * x[i];
}}
void start(const float* x, float* y, int n) {{ axpy<<<{grid}, THREADS>>>(x, y, n); }}
""")
    assert made.plan.grid == (text,)


@pytest.mark.parametrize(
    ("text", "entry"), [(HALF_GRID.replace("BY * 2", "BY"), None), (ROLES, "update"), (GATHER, None)]
)
def test_small_problems_have_several_blocks_and_tails(text: str, entry: str | None) -> None:
    """Not one block, not square, and one of them a part of a block along each axis that a field is cut along."""
    made = drafted(text, entry)
    plan = made.plan
    tails = made.small[0]
    for axis, extent in enumerate(plan.extents(plan.grid, plan.defaults, tails)):
        if "p." in "".join(plan.grid[axis : axis + 1]):
            assert extent >= 2
    assert len(set(tails.values())) == len(tails)
    blocks = plan.extents(plan.block, plan.defaults, tails)
    cut = [
        f for axis, t in enumerate(plan.grid) for f in tails if f"p.{f}" in t and "c." in t and tails[f] % blocks[axis]
    ]
    assert len(cut) == sum("c." in text and "p." in text for text in plan.grid)


def test_small_problems_have_few_blocks_for_products_of_fields() -> None:
    """Of a grid `(B * H, …)`, both factors vary and stay small, so that a simulated check is short."""
    made = drafted("""
__global__ void twice(const float* x, float* y, int B, int H, int S) {
  int i = blockIdx.y * 16 + threadIdx.x;
  if (i < S) y[blockIdx.x * S + i] = 2 * x[blockIdx.x * S + i];
}
void run(const float* x, float* y, int B, int H, int S) {
  twice<<<dim3(B * H, (S + 15) / 16), 16>>>(x, y, B, H, S);
}
""")
    assert [(problem["B"], problem["H"]) for problem in made.small] == [(2, 3), (3, 2)]
    assert made.small[0]["S"] % 16


def test_what_cannot_be_run_is_drafted_and_marked() -> None:
    """A kernel that the compiler refuses is drafted from const, and every shape says why it is a guess."""
    made = drafted("__global__ void broken(const float* x, float* y, int n) { y[0] = nonsense(x); }")
    assert shapes(made) == {"x": ("input", ("p.N",)), "y": ("output", ("p.N",))}
    assert all("nonsense" in tensor.why for tensor in made.tensors)
    assert any("the simulator could not run the kernel" in note for note in made.notes)


@pytest.mark.parametrize(
    ("extents", "atoms", "axes", "exact"),
    [
        ([6, 20], {"p.A": [2, 4], "p.B": [3, 5]}, ("p.A", "p.B"), True),
        ([18, 60], {"p.A": [2, 4], "p.B": [3, 5]}, ("p.A", "p.B", "3"), True),
        ([4, 4], {"p.A": [2, 7]}, ("4",), True),
        ([16, 49], {"p.A": [4, 7]}, ("p.A", "p.A"), True),
        ([(9 + 2) * (7 + 2), (5 + 2) * (8 + 2)], {"p.A": [9, 5], "p.B": [7, 8]}, ("p.A + 2", "p.B + 2"), True),
        ([10, 35], {"p.A": [8, 31], "p.B": [3, 5]}, ("p.A + p.B - 1",), True),
        ([5, 19], {"p.A": [2, 4], "p.B": [3, 5]}, ("p.A", "p.B"), False),
        ([999, 999], {"p.A": [2, 4]}, None, None),
    ],
)  # fmt: skip
def test_shapes_are_the_shortest_products(
    extents: list[int], atoms: dict[str, list[int]], axes: tuple[str, ...] | None, exact: bool | None
) -> None:
    """Products of fields, with a constant, squares, borders, windows; else the smallest product that holds them."""
    found = fit(extents, atoms)
    if axes is None:
        assert found is None or found.axes == ("999",)
    else:
        assert found is not None and (found.axes, found.exact) == (axes, exact)


def test_axes_stand_as_the_index_has_them() -> None:
    """What multiplies an index is further in; a loop variable of the same letter in lower case is another word."""
    source = "sum += a[m * K + k] * b[k * N + n]; int at = t * C + c; out[at] = 0;"
    names = {"p.M": "M", "p.N": "N", "p.K": "K"}
    assert row_major(("p.M", "p.K"), "a", source, names) == ("p.M", "p.K")
    assert row_major(("p.N", "p.K"), "b", source, names) == ("p.K", "p.N")
    assert row_major(("p.C", "p.T"), "out", source, {"p.C": "C", "p.T": "T"}) == ("p.T", "p.C")


def test_the_suite_of_drafts_is_well_formed() -> None:
    """Each draft of other people's kernels has a filler with everything that is filled in, and digests are digests."""
    import tomllib

    folder = DATA.parent / "foreign"
    document = tomllib.loads((folder / "drafts.toml").read_text())
    names = [entry["name"] for entry in document["draft"]]
    assert len(names) == len(set(names)) >= 43
    assert {place.stem for place in (folder / "fillers").rglob("*.py")} == set(names)
    for entry in (*document["draft"], *document["header"]):
        assert len(entry["sha256"]) == 64 and len(document["commits"][entry["repository"]]) == 40
    for name in names:
        text = (folder / "fillers" / name.partition("_")[0] / f"{name}.py").read_text()
        assert all(
            word in text for word in ("def reference(p, t)", "REFERENCE_H", "TOLERANCE", "PROBLEM", "WRONG_INDEX")
        )


PACKED = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
__global__ void twice(const TYPE* x, TYPE* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}
void run(const TYPE* x, TYPE* y, int n) { twice<<<(n + 127) / 128, 128>>>(x, y, n); }
"""


@pytest.mark.parametrize(
    ("packed", "element", "count"),
    [
        ("__half2", "f16", 2),
        ("__nv_bfloat162", "bf16", 2),
        ("nv_bfloat162", "bf16", 2),
        ("__nv_fp8x2_e4m3", "e4m3", 2),
        ("__nv_fp8x4_e5m2", "e5m2", 4),
    ],
)
def test_a_packed_type_counts_as_its_elements(packed: str, element: str, count: int) -> None:
    """A buffer of packed numbers has its element's type, and an axis as long as one holds."""
    made = drafted(PACKED.replace("TYPE", packed))
    assert [(tensor.dtype, tensor.shape, tensor.why) for tensor in made.tensors] == [
        (element, ("p.N", str(count)), "") for _ in "xy"
    ]


CLUSTERED = """
#define WIDE 4
#define IN_CLUSTERS __cluster_dims__(2, 1, 1)
template <int ROWS>
__global__ void __cluster_dims__(WIDE, ROWS) tiles(const float* x, float* y, int m, int n) {
  const int i = blockIdx.x * 32 + threadIdx.x, j = blockIdx.y * 8 + threadIdx.y;
  if (i < n && j < m) y[j * n + i] = 2 * x[j * n + i];
}
__global__ void IN_CLUSTERS row(const float* x, float* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;");
  if (i < n) y[i] = 2 * x[i];
}
void start(const float* x, float* y, int m, int n) {
  tiles<2><<<dim3((n + 31) / 32, (m + 7) / 8), dim3(32, 8)>>>(x, y, m, n);
  row<<<(n + 127) / 128, 128>>>(x, y, n);
}
"""


@pytest.mark.parametrize(
    ("entry", "cluster", "problem", "grid"),
    [
        ("tiles", ("c.WIDE", "c.ROWS"), {"M": 17, "N": 129}, (8, 4, 1)),
        ("row", ("2",), {"N": 300}, (4, 1, 1)),  # only the compiler knows what the macro stands for
    ],
)
def test_a_kernel_in_clusters_is_launched_in_whole_ones(
    entry: str, cluster: tuple[str, ...], problem: dict[str, int], grid: tuple[int, int, int]
) -> None:
    """The launch names the kernel's cluster, its grid is rounded up to it, and it runs on a chip that has clusters."""
    made = drafted(CLUSTERED, entry)
    assert (made.plan.cluster, [tensor.why for tensor in made.tensors]) == (cluster, ["", ""])
    assert made.plan.extents(made.plan.whole_grid, made.plan.defaults, problem) == grid
    assert [note for note in made.notes if "sm_90 or later" in note and "--device sim:h100" in note]
    assert "rounded up to whole clusters" in kernel_py("k", "k.cu", made) or made.launch_guess
    blocks = [made.plan.extents(made.plan.whole_grid, made.plan.defaults, one) for one in made.small]
    size = made.plan.extents(made.plan.cluster, made.plan.defaults, made.small[0])
    assert all(x >= 2 * size[0] and y >= size[1] for x, y, _ in blocks)


def test_a_cluster_divides_a_field_without_a_bounds_check() -> None:
    """A block that a grid in whole clusters has more must have work too, where the kernel checks no bound."""
    made = drafted(CLUSTERED.replace("if (i < n) ", ""), "row")
    divided = [field.multiple_of for field in made.plan.fields]
    assert divided == [256] or any("* (2)" in condition for _, condition, _ in made.plan.constraints)


def test_what_no_simulated_chip_has_is_said_so() -> None:
    """A kernel for a chip later than drafts are run on says which one that is."""
    made = drafted(
        '#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 1000\n#error "not supported for this GPU architecture"\n#endif\n'
        "__global__ void later(const float* x, float* y, int n) { y[0] = x[0]; }"
    )
    assert any("drafts support at most sm_90" in note for note in made.notes)


@pytest.mark.parametrize(
    ("parameter", "told"),
    [
        ("float* const* x", "points to pointers, but evokern passes only pointers to numbers"),
        ("cudaTextureObject_t t", "textures and surfaces are not supported"),
        ("Info info", "Info info is neither a pointer nor a number"),
        ("int n", "takes no pointer, so it cannot return a result"),
    ],
)
def test_a_parameter_that_a_draft_cannot_pass_is_named(parameter: str, told: str, tmp_path: Path) -> None:
    """The reason is the parameter's type, not what follows from it."""
    (tmp_path / "k.cu").write_text(f"struct Info {{ float* data; int n; }};\n__global__ void k({parameter}) {{}}\n")
    with pytest.raises(SourceError, match=told):
        read_kernel(read(tmp_path / "k.cu"), None)


@pytest.mark.parametrize(
    ("source", "expected", "fields", "condition"),
    [
        # The kernel takes the width from the grid, so that it is right only for a square.
        (
            """
__global__ void turn(float* out, const float* in) {
  int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y, width = gridDim.x * 16;
  out[x * width + y] = in[y * width + x];
}
void start(float* out, const float* in, int nx, int ny) {
  cudaMalloc(&out, nx * ny * sizeof(float));
  turn<<<dim3(nx / 16, ny / 16), dim3(16, 16)>>>(out, in);
}
""",
            {"in": ("input", ("p.NX", "p.NX")), "out": ("output", ("p.NX", "p.NX"))},
            {"NX": ()},
            "",
        ),
        # The channels are an extent of the block, so that runs can have only a few.
        (
            """
__global__ void halve(unsigned char* out, const unsigned char* in, int width, int height) {
  int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
  int at = (threadIdx.z * height + y) * width + x;
  if (x < width && y < height) out[at] = in[at] / 2;
}
torch::Tensor start(torch::Tensor image) {
  int channels = image.size(0), height = image.size(1), width = image.size(2);
  auto out = torch::empty_like(image);
  halve<<<dim3((width + 15) / 16, (height + 15) / 16), dim3(16, 16, channels)>>>(
      out.data_ptr<unsigned char>(), image.data_ptr<unsigned char>(), width, height);
  return out;
}
""",
            dict.fromkeys(("in", "out"), ("p.CHANNELS", "p.HEIGHT", "p.WIDTH")),
            {"WIDTH": (), "HEIGHT": (), "CHANNELS": ()},
            "",
        ),
        # Each thread visits all bodies; one of four components is never written.
        (
            """
#define TILE 64
__global__ void pull(const float4* p, float4* v, int n) {
  __shared__ float4 near[TILE];
  int i = blockIdx.x * TILE + threadIdx.x;
  if (i < n) {
    float sum = 0;
    for (int tile = 0; tile < gridDim.x; tile++) {
      near[threadIdx.x] = p[tile * TILE + threadIdx.x];
      __syncthreads();
      for (int j = 0; j < TILE; j++) sum += near[j].x;
      __syncthreads();
    }
    v[i].x += sum;
  }
}
void start(const float4* p, float4* v, int n) { pull<<<(n + TILE - 1) / TILE, TILE>>>(p, v, n); }
""",
            {"p": ("input", ("p.N", "4")), "v": ("inout", ("p.N", "4"))},
            {"N": ()},
            "divides(c.TILE, p.N)",
        ),
    ],
    ids=["square", "channels in the block", "all pairs"],
)
def test_runs_fit_what_the_kernel_can_do(
    source: str, expected: dict[str, object], fields: dict[str, object], condition: str
) -> None:
    """Problems of runs are squares, have few threads per block, or are short, if nothing else shows the shapes."""
    made = drafted(source)
    found = shapes(made)
    assert {name: found[name] if len(value) == 2 else found[name][1] for name, value in expected.items()} == expected  # type: ignore[arg-type]
    assert {field.name: field.choices for field in made.plan.fields} == fields
    assert [text for _, text, _ in made.plan.constraints if condition] == ([condition] if condition else [])
    assert not made.launch_guess
