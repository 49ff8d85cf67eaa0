"""Host code is evaluated: helpers, templates, dispatch, tensors and allocations state launches and sizes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evokern.cuda_source.host import HostLaunch, Pointer, host_launches, number, text_of

KERNEL = "__global__ void k(float* x, float* y, int n) {}\n"


def launches(host: str, **headers: str) -> tuple[HostLaunch, ...]:
    return host_launches({"": KERNEL + host, **{f"{name}.cuh": text for name, text in headers.items()}})


def extents(launch: HostLaunch) -> tuple[str, ...]:
    """Grid x and y, block x and y, shared memory."""
    grid, block = launch.grid, launch.block
    return tuple(text_of(one) for one in (grid.x, grid.y, block.x, block.y, launch.shared))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("k<<<(n + 255) / 256, 256>>>(x, y, n);", ("ceil_div(n, 256)", "1", "256", "1", "0")),
        ("auto b = dim3(16, 8); dim3 g; g.x = n / b.x; g.y = 3; k<<<g, b>>>(x, y, n);",
         ("(n / 16)", "3", "16", "8", "0")),
        ("dim3 g{unsigned(n)}, b = {64, 2}; k<<<g, b, b.x * sizeof(double)>>>(x, y, n);", ("n", "1", "64", "2", "512")),
        ("int g = ceil((float)n / 128); k<<<g, 128>>>(x, y, n);", ("ceil_div(n, 128)", "1", "128", "1", "0")),
        ("k<<<THCCeilDiv((long)n, 64L), 64>>>(x, y, n);", ("ceil_div(n, 64)", "1", "64", "1", "0")),
        ("k<<<at::ceil_div(n, 64), 64>>>(x, y, n);", ("ceil_div(n, 64)", "1", "64", "1", "0")),
        ("k<<<GET_DIVUP(n, 64), 64>>>(x, y, n);", ("ceil_div(n, 64)", "1", "64", "1", "0")),
        ("const int p = std::log2(double(n)); k<<<1, 1 << p>>>(x, y, n);", ("1", "1", "(1 << bits(n))", "1", "0")),
        ("int p = log((double)n) / log(2.0); k<<<1, 1 << p>>>(x, y, n);", ("1", "1", "(1 << bits(n))", "1", "0")),
        ("k<<<std::min((n + 63) / 64, 512), 64>>>(x, y, n);", ("min(ceil_div(n, 64), 512)", "1", "64", "1", "0")),
        ("int g = n / 64; if (n % 64) g++; k<<<g, 64>>>(x, y, n);",
         ("((n % 64) ? ((n / 64) + 1) : (n / 64))", "1", "64", "1", "0")),
        ("auto f = &k; f<<<1 << 4, n > 99 ? 128 : 32>>>(x, y, n);", ("16", "1", "((n > 99) ? 128 : 32)", "1", "0")),
        ("void* a[] = {&x, &y, &n}; cudaLaunchKernel((void*)k, dim3(n), dim3(32), a, 64, 0);",
         ("n", "1", "32", "1", "64")),
        ("cudaLaunchConfig_t c = {0}; c.gridDim = dim3(n); c.blockDim = 96; c.dynamicSmemBytes = 4 * n;"
         "cudaLaunchKernelEx(&c, k, x, y, n);", ("n", "1", "96", "1", "(4 * n)")),
        ("[&] { k<<<n, 32>>>(x, y, n); }();", ("n", "1", "32", "1", "0")),
    ],
)  # fmt: skip
def test_extents_are_those_that_the_code_computes(body: str, expected: tuple[str, ...]) -> None:
    """Variables, members, casts, conditions and the runtime's launch functions give one expression for each extent."""
    (launch,) = launches(f"void run(float* x, float* y, int n) {{ {body} }}")
    assert extents(launch) == expected


def test_helpers_of_headers_and_macros_are_evaluated() -> None:
    """A helper with several statements gives the value that it returns; a macro that is a number keeps its name."""
    header = (
        "template <class T> T up(T a, T b) { return (a + b - 1) / b; }\n#define WARPS 4\n#define THREADS (WARPS * 32)"
    )
    host = '#include "help.cuh"\n#define GO(n) k<<<up(n, THREADS), pick(n)>>>(x, y, n)\n'
    host += "int pick(int n) { if (n < 64) return 64; return THREADS; }\nvoid run(float* x, float* y, int n) { GO(n); }"
    (launch,) = launches(host, help=header)
    assert extents(launch)[::2] == ("ceil_div(n, THREADS)", "((n < 64) ? 64 : THREADS)", "0")
    assert number(launch.grid.x) is None and number(launch.block.x) is None


def test_inactive_branches_are_left_out() -> None:
    """Conditions of the preprocessor hold as for nvcc's host pass."""
    host = """
#ifdef __CUDACC__
#define T 64
#else
#define T 32
#endif
void run(float* x, float* y, int n) {
#if T > 32 && !defined(OTHER)
  k<<<n, T>>>(x, y, n);
#else
  k<<<1, 1>>>(x, y, n);
#endif
}"""
    (launch,) = launches(host)
    assert (text_of(launch.grid.x), number(launch.block.x)) == ("n", 64)


def test_a_templated_launcher_names_its_parameters_and_its_instantiations() -> None:
    """The launch itself is in the launcher's names; each caller's view has the numbers of its instantiation."""
    host = """
template <int A, int B> struct Traits { static constexpr int THREADS = A, ROWS = A / B; };
template <class Tr> __global__ void t(float* x, int n) {}
template <class Tr> void launch(float* x, int n) { t<Tr><<<n / Tr::ROWS, Tr::THREADS>>>(x, n); }
using Small = Traits<64, 2>;
void small(float* x, int n) { launch<Small>(x, n); }
void large(float* x, int n) { launch<Traits<256, 4>>(x, n); }"""
    own, *views = launches(host)
    assert (extents(own)[0], extents(own)[2], [text_of(one) for one in own.template]) == (
        "(n / (A / B))", "A", ["Traits<A, B>"],
    )  # fmt: skip
    assert [(view.root, view.bindings["A"], view.bindings["B"]) for view in views] == [
        ("small", 64, 2),
        ("large", 256, 4),
    ]


def test_a_dispatch_states_its_condition() -> None:
    """A switch and a chain of conditions give each launch the value that selects it."""
    host = """
template <int D> __global__ void d(float* x) {}
void run(float* x, int dim) {
  switch (dim) { case 64: d<64><<<1, 64>>>(x); break; case 128: d<128><<<1, 64>>>(x); break; default: return; }
  if (dim == 32) { d<32><<<1, 64>>>(x); } else if (dim == 96) d<96><<<1, 64>>>(x);
}"""
    found = [(text_of(one.template[0]), text_of(one.conditions[-1])) for one in launches(host)]
    assert found == [(str(size), f"(dim == {size})") for size in (64, 128, 32, 96)]


def test_tensors_have_checked_shapes_and_dispatched_types() -> None:
    """Checks state the axes, `empty` the shape, and a dispatch macro the types."""
    host = """
template <class T> __global__ void s(const T* x, T* y, int n, int m) {}
torch::Tensor run(torch::Tensor x) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) % 8 == 0, "shape");
  const int rows = x.size(0);
  auto y = torch::zeros({rows, 4}, x.options());
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "s", [&] {
    s<scalar_t><<<rows, 64>>>(x.contiguous().data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), rows, x.size(1));
  });
  return y;
}"""
    (launch,) = launches(host)
    x, y, *_ = launch.arguments
    assert isinstance(x, Pointer) and isinstance(y, Pointer)
    assert [text_of(one) for one in x.buffer.shape or ()] == ["x.size(0)", "x.size(1)"]
    assert [text_of(one) for one in y.buffer.shape or ()] == ["x.size(0)", "4"]
    assert x.buffer.labels == {0: "rows"}
    assert launch.types["scalar_t"] == ("float", "double", "at::Half")
    assert "((x.size(1) % 8) == 0)" in [text_of(one) for one in launch.requirements]


def test_rows_of_tensors_are_variables_and_whole_sizes_are_products() -> None:
    """`numel` of a known shape is the product of its extents; a part of the extents is a number of its own."""
    host = """
void run(torch::Tensor x, torch::Tensor z) {
  TORCH_CHECK(x.dim() == 2);
  const int64_t total = x.numel();
  int rows = z.numel() / z.size(-1);
  k<<<total, rows>>>(x.data_ptr<float>(), z.data_ptr<float>(), total);
}"""
    (launch,) = launches(host)
    assert extents(launch)[::2][:2] == ("(x.size(0) * x.size(1))", "rows")


def test_allocations_reach_the_launch_through_calls() -> None:
    """Sizes, copies and numbers of `main` are those of the launcher's parameters."""
    host = """
void run(float* a, float* b, int count) { k<<<count / 64, 64>>>(a, b, count); }
int main(int argc, char** argv) {
  const int rows = argc > 1 ? atoi(argv[1]) : 512, cols = 64;
  std::vector<float> h(rows * cols);
  float *a, *b;
  CHECK(cudaMalloc(&a, h.size() * sizeof(float)))
  cudaMalloc((void**)&b, rows * sizeof(float)); cudaMemset(b, 0, rows * 4);
  cudaMemcpy(a, h.data(), h.size() * 4, cudaMemcpyHostToDevice);
  run(a, b, rows);
  cudaMemcpy(h.data(), b, rows * 4, cudaMemcpyDeviceToHost);
}"""
    own, view = launches(host)
    a, b, count = view.arguments
    assert isinstance(a, Pointer) and isinstance(b, Pointer)
    assert text_of(a.buffer.bytes) == "((rows * cols) * 4)"
    assert (a.buffer.copied_in, b.buffer.copied_out) == (True, True)
    assert (text_of(own.arguments[2]), number(count)) == ("count", 512)


@pytest.mark.parametrize(
    "host",
    [
        "void run(float* x) { while (true) run(x); k<<<1, 1>>>(x, x, 1); }",
        "int f(int n) { return f(n - 1) + f(n - 2); } void run(float* x, int n) { k<<<f(n), 64>>>(x, x, n); }",
        "#define A B\n#define B A\nvoid run(float* x) { k<<<A, 64>>>(x, x, 1); }",
        "struct S : S { static constexpr int N = N; }; void run(float* x) { k<<<S::N, 64>>>(x, x, 1); }",
        "void run(float* x) { k<<<1 / 0, 1 % 0>>>(x, x, 1 << 99); }",
        "void run(float* x) { int n = ((((; k<<<n, 64>>>(x, x, n); }",
        "void run(float* x, int n) { " + "n = n + n; " * 200 + "k<<<n, 64>>>(x, x, n); }",
    ],
)
def test_odd_code_ends(host: str) -> None:
    """Recursion, errors and impossible arithmetic neither raise nor take long."""
    assert len(launches(host)) <= 1


def test_the_parser_is_imported_when_it_is_needed() -> None:
    """A plain import of the package does not load it."""
    code = "import sys, evokern; sys.exit('tree_sitter' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
