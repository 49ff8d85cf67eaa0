"""Reading a file for `init` without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from evokern.cuda_source import read
from evokern.errors import SourceError
from evokern.scaffold.reading import read_kernel

KERNEL = """__global__ void scale(int n, const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = WIDTH * x[i];
}
"""
PLATFORM = "#if defined(__HIP_PLATFORM_AMD__)\n#define WIDTH 64\n#else\n#define WIDTH 32\n#endif\n"


@pytest.mark.parametrize(
    ("host", "grid", "block", "unread"),
    [
        ("int up(int a, int b) { return (a + b - 1) / b; }\nvoid run(int n) { scale<<<up(n, 128), 128>>>(n, x, y); }",
         "ceil_div(n, c.BLOCK_X)", "c.BLOCK_X", ""),
        ("void run(int n) { scale<<<ceil((double)n / 512), 512>>>(n, x, y); }",
         "ceil_div(n, c.BLOCK_X)", "c.BLOCK_X", ""),
        ("inline int threads(int n) { return n < 512 ? n : 512; }\n"
         "void run(int n) { scale<<<(n + 511) / 512, threads(n)>>>(n, x, y); }",
         "ceil_div(p.N, 512)", "min(p.N, 512)", ""),
        ("void run(int n) { scale<<<blocks_for(n), unknown(n)>>>(n, x, y); }", "", "c.BLOCK_X",
         "the grid `blocks_for(n)` of the launch on line 10 could not be read and the block `unknown(n)` of the launch "
         "on line 10 could not be read"),
        ("", "", "c.BLOCK_X", "the file does not launch the kernel"),
    ],
)  # fmt: skip
def test_a_launch_is_read_through_functions(host: str, grid: str, block: str, unread: str) -> None:
    """Helper functions, `ceil` and conditions are translated; an expression that is not is shown as written."""
    reading = read_kernel(read(PLATFORM + KERNEL + host), None)

    assert "WIDTH" not in [gene.name for gene in reading.plan.genes]
    assert (reading.plan.block, reading.unread) == ((block,), unread)
    assert [text.replace("p.N", "n") for text in reading.plan.grid] == ([grid.replace("p.N", "n")] if grid else [])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("template <class In> __global__ void f(In x)", "the type of x is a template argument"),
        ("template <class... Args> __global__ void f(float* y, Args... args)", "args is a parameter pack"),
        ("__global__ void f(float* y, Unknown x)", "Unknown x is neither a pointer nor a number"),
    ],
)
def test_a_refusal_states_what_the_file_shows(parameters: str, message: str) -> None:
    """Types that the file does not show are not called structures."""
    with pytest.raises(SourceError, match=message):
        read_kernel(read(f"{parameters} {{ (void)threadIdx.x; }}"), None)


def test_a_typedef_of_an_integer_is_a_field() -> None:
    """The draft has a field for each number, and no gene for a reserved macro."""
    reading = read_kernel(
        read(
            "typedef int size_type;\n#ifdef HOST\n#define __CUDA_ARCH__ 800\n#endif\n"
            "__global__ void f(float* y, size_type n) {\n#if __CUDA_ARCH__ >= 800\n"
            " if (threadIdx.x < n) y[threadIdx.x] = 1;"
            "\n#endif\n}\nvoid run(size_type n) { f<<<1, 256>>>(y, n); }"
        ),
        None,
    )
    assert [one.name for one in reading.plan.fields] == ["N"]
    assert [gene.name for gene in reading.plan.genes] == ["BLOCK_X"]


def test_include_guards_and_pointer_types_are_read(tmp_path: Path) -> None:
    """A guard with a value is no gene, also around the file itself; a typedef of a pointer is a buffer."""
    (tmp_path / "own.cuh").write_text(
        "#ifndef OWN_H_\n#define OWN_H_ 1\ntypedef const float *__restrict__ In;\n#endif\n"
    )
    (tmp_path / "k.cu").write_text(
        '#ifndef K_CU\n#define K_CU 1\n#include "own.cuh"\ntypedef const float *In;\nusing Out = float*;\n'
        "__global__ void k(int n, In x, Out y) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x]; }\n#endif\n"
    )
    reading = read_kernel(read(tmp_path / "k.cu"), None)

    assert [gene.name for gene in reading.plan.genes] == ["BLOCK_X"]
    assert [(one.name, one.dtype) for one in reading.plan.arguments if one.is_tensor] == [("x", "f32"), ("y", "f32")]


SCALED = """__global__ void scale(const float* x, float* y, int n, int d, float s) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n * d) y[i] = s * x[i];
}
void run(const float* x, float* y, int n, int d) {
  %s
  scale<<<(n * d + 255) / 256, 256>>>(x, y, n, d, %s);
}
"""


@pytest.mark.parametrize(
    ("before", "passed", "text"),
    [
        ("", "1.0f / sqrtf((float)d)", "1 / (p.D ** 0.5)"),
        ("const float s = 1.f / std::sqrt(float(d));", "s", "1 / (p.D ** 0.5)"),
        ("", "rsqrtf(d)", "p.D ** -0.5"),
        ("double s = 1.0 / (n * d);", "(float)s", "1 / (p.N * p.D)"),
        ("float s = (n / d) * 0.5f;", "s", "(p.N // p.D) * 0.5"),
        ("", "powf(d, -0.5f)", "p.D ** -0.5"),
        ("const float s = 0.125f;", "s", "0.125"),
    ],
)
def test_a_number_that_the_host_computes_from_sizes_is_a_formula(before: str, passed: str, text: str) -> None:
    argument = read_kernel(read(SCALED % (before, passed)), None).plan.arguments[-1]
    assert (argument.expression, argument.why) == (text, "")


def test_a_number_from_an_unknown_function_stays_open() -> None:
    argument = read_kernel(read(SCALED % ("float s = scale_of(d);", "s")), None).plan.arguments[-1]
    assert (argument.expression, argument.why) == ("1.0", "the file's launch passes a variable")


def test_the_cluster_of_a_launch_attribute_is_read() -> None:
    """A launch sets its cluster if the kernel does not."""
    host = """void run(const float* x, float* y, int n) {
  cudaLaunchConfig_t config = {0};
  config.gridDim = dim3((n + 255) / 256);
  config.blockDim = dim3(256);
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeClusterDimension;
  attribute[0].val.clusterDim.x = 2;
  attribute[0].val.clusterDim.y = 1;
  attribute[0].val.clusterDim.z = 1;
  config.attrs = attribute;
  cudaLaunchKernelEx(&config, scale, x, y, n);
}
"""
    kernel = (
        "__global__ void scale(const float* x, float* y, int n) { y[threadIdx.x + blockIdx.x * 256] = x[0] * n; }\n"
    )
    plan = read_kernel(read(kernel + host), None).plan
    assert (plan.cluster, plan.grid) == (("2",), ("ceil_div(p.N, c.BLOCK_X)",))
