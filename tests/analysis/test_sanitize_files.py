"""`evokern sanitize FILE.cu` on files of other people: their types, their missing headers, the compiler's own words."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)

LAUNCH = ("--grid", "1", "--block", "32", "--arg", "out:f32[32]")
TYPES = """#include <cstdio>
struct T1 { static constexpr int n = 4; };
namespace modes { enum class Mode { fast, exact }; }
template <class T> __global__ void k(float* out) { out[threadIdx.x] = T::n; }
template <modes::Mode M> __global__ void m(float* out) { out[threadIdx.x] = M == modes::Mode::fast ? 1 : 2; }
template <class T> __global__ void bad(float* out) { out[threadIdx.x] = T::absent; }
template <int N> __global__ void even(float* out) {
  static_assert(N % 2 == 0, "N must be even");
  out[threadIdx.x] = N;
}
int main() { k<T1><<<1, 32>>>(nullptr); }
"""


def _sanitized(path: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["sanitize", str(path), *LAUNCH, *arguments])
    return result.exit_code, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("entry", "code", "told"),
    [
        ("k<T1>", 0, "clean: nothing was found"),
        ("m<modes::Mode::exact>", 0, "clean: nothing was found"),
        ("bad<T1>", 2, 'types.cu:6: class "T1" has no member "absent"'),
        ("even<3>", 2, 'types.cu:8: static assertion failed with "N must be even"'),
        ("k<T2>", 2, "no entry point 'k<T2>': identifier \"T2\" is undefined"),
    ],
)
def test_an_entry_takes_types_of_the_file(tmp_path: Path, entry: str, code: int, told: str) -> None:
    """A type that only host code names may be a template's argument; what is wrong is said as the compiler says it."""
    (tmp_path / "types.cu").write_text(TYPES)
    found, text = _sanitized(tmp_path / "types.cu", "--entry", entry)
    assert (found, told in text) == (code, True), text


def test_missing_headers_come_before_the_errors_that_follow_from_them(tmp_path: Path) -> None:
    """Each quoted header that is not there is named, line and file, nested ones too, ahead of the first error."""
    (tmp_path / "own.cuh").write_text('#pragma once\n\n  #include "nested.cuh"\n')
    (tmp_path / "k.cu").write_text(
        '#include "own.cuh"\n#include "utils.h"\n__global__ void k(float* out) { out[W] = 1; }\n'
    )
    code, text = _sanitized(tmp_path / "k.cu")
    assert code == 2
    assert text.startswith('evokern: not found: "utils.h" (line 2), "nested.cuh" (line 3 of own.cuh); ')
    assert "with -I" in text and text.index("with -I") < text.index('k.cu:3: identifier "W" is undefined')


def test_a_header_in_angle_brackets_that_was_left_out_is_a_suspect(tmp_path: Path) -> None:
    """What is no host library by name and was taken for one is named, where the compile fails."""
    (tmp_path / "k.cu").write_text(
        "#include <vector>\n#include <my/helpers.cuh>\n__global__ void k(float* out) { out[helper()] = 1; }\n"
    )
    code, text = _sanitized(tmp_path / "k.cu")
    assert code == 2
    assert 'k.cu:3: identifier "helper" is undefined (treated as host headers and skipped: "my/helpers.cuh"' in text
    assert " -I" in text


STRUCTURES = """struct Info { float* data; int n; float scale[3]; char flag; };
__global__ void k(Info a, float2 p, bool b, float* out) {
  int i = threadIdx.x;
  if (i < a.n) out[i] = a.data[i] * a.scale[2] + p.y + (b ? 1 : 0) + a.flag;
}
__global__ void halo(const float* in, float* out) { int i = threadIdx.x; out[i] = in[i - 3] + in[i + 3]; }
__global__ void table(float* const* in, float* out, int n) { out[threadIdx.x] = in[n - 1][threadIdx.x]; }
__global__ void tex(cudaTextureObject_t t, float* out) { out[threadIdx.x] = tex1Dfetch<float>(t, 0); }
"""
INFO = "struct:[in:f32[{}],i32=32,f32[3]=2,i8=1]"


@pytest.mark.parametrize(
    ("entry", "arguments", "code", "told"),
    [
        ("k", (INFO.format(32), "struct:[f32=1,f32=2]", "bool=true", "out:f32[32]"), 0, "clean: nothing was found"),
        ("k", (INFO.format(16), "struct:[u8[8]=0]", "bool=0", "out:f32[32]"), 1, "a[0] has 64 bytes"),
        ("k", ("i32=3", "struct:[u8[8]=0]", "bool=0", "out:f32[32]"), 2, "all bytes at once: struct:[u8[32]=0]"),
        ("k", ("in:f32[3]",), 2, "--arg struct:[u8[32]=0] --arg struct:[u8[8]=0] --arg u8=1 --arg out:f32[1024]"),
        ("k", (INFO.format(32), "struct:[u8[8]=0]", "bool=2", "out:f32[32]"), 2, "'2' is not a bool"),
        ("halo", ("in:f32[38]+3", "out:f32[32]"), 0, "clean: nothing was found"),
        ("halo", ("in:f32[37]+3", "out:f32[32]"), 1, "in has 148 bytes"),
        ("halo", ("in:f32[38]+38", "out:f32[32]"), 2, "element 38 is outside the buffer; use at most 37"),
        ("table", ("table:[in:f32[8],in:f32[32]]", "out:f32[32]", "i32=2"), 0, "clean: nothing was found"),
        ("table", ("table:[in:f32[32],in:f32[8]]", "out:f32[32]", "i32=2"), 1, "in[1] has 32 bytes"),
        ("table", ("in:f32[32]", "out:f32[32]", "i32=2"), 2, "the parameter points to pointers, not to numbers"),
        ("tex", ("u64=0", "out:f32[32]"), 2, "textures are not simulated"),
    ],
)
def test_arguments_of_every_kind_can_be_said(
    tmp_path: Path, entry: str, arguments: tuple[str, ...], code: int, told: str
) -> None:
    """Structures by value, offsets into buffers, tables of pointers and flags; what does not fit is named."""
    (tmp_path / "k.cu").write_text(STRUCTURES)
    words = [word for argument in arguments for word in ("--arg", argument)]
    result = CliRunner().invoke(
        app, ["sanitize", str(tmp_path / "k.cu"), "--grid", "1", "--block", "32", "--entry", entry, *words]
    )
    text = result.stdout + result.stderr
    assert (result.exit_code, told in text) == (code, True), text


TORCH = """#include <torch/extension.h>
#include <initializer_list>
#include <algorithm>
constexpr size_t largest(std::initializer_list<size_t> sizes) { return std::max(sizes); }
template <class T> __global__ void rows(
    const torch::PackedTensorAccessor32<T, 2, torch::RestrictPtrTraits> in, at::PackedTensorAccessor32<T, 1> out) {
  static_assert(largest({sizeof(T), 8, 1}) == 8, "");
  at::acc_type<T, true> sum = 0;
  CUDA_KERNEL_LOOP(i, in.size(0)) {
    for (int j = 0; j < in.size(1); ++j) sum += in[i][j] * T(2);
    out[i] = sum + T(1);
  }
}
__global__ void added(const c10::BFloat16* x, c10::BFloat16* y) {
  c10::BFloat16 value = x[threadIdx.x];
  value += 1;
  if (value > x[0] || value == 3) gpuAtomicAdd(y, value / 2);
}
void host(torch::Tensor x) { TORCH_CHECK(x.is_cuda()); }
"""
ROWS = "struct:[in:f16[{},5],i32=32,i32=5,i32=5,i32=1]", "struct:[out:f16[32],i32=32,i32=1]"


@pytest.mark.parametrize(
    ("entry", "arguments", "code", "expected"),
    [
        ("rows<c10::Half>", (ROWS[0].format(32), ROWS[1]), 0, "clean: nothing was found"),
        ("rows<at::Half>", (ROWS[0].format(31), ROWS[1]), 1, "in[0] has 310 bytes"),
        ("added", ("in:bf16[32]", "inout:bf16[1]"), 0, "clean: nothing was found"),
    ],
)
def test_device_types_of_torch_are_supplied(
    tmp_path: Path, entry: str, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    """Half types, accessors and accumulator types of PyTorch work without its headers."""
    (tmp_path / "k.cu").write_text(TORCH)
    words = [word for argument in arguments for word in ("--arg", argument)]
    result = CliRunner().invoke(
        app, ["sanitize", str(tmp_path / "k.cu"), "--grid", "1", "--block", "32", "--entry", entry, *words]
    )
    text = result.stdout + result.stderr
    assert (result.exit_code, expected in text) == (code, True), text


def test_a_condition_that_needs_a_skipped_header_names_it(tmp_path: Path) -> None:
    """The macro of a host library is undefined, because its header was skipped."""
    (tmp_path / "k.cu").write_text(
        "#include <nccl.h>\n#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)\n#define E 1\n#endif\n"
        "__global__ void k(float* out) { out[threadIdx.x] = 1; }\n"
    )
    code, text = _sanitized(tmp_path / "k.cu")
    assert code == 2 and 'skipped: "nccl.h" (line 1)' in text, text


def test_the_only_kernel_of_a_file_needs_no_name(tmp_path: Path) -> None:
    """Kernels of included headers do not make the file's kernel ambiguous."""
    (tmp_path / "other.cuh").write_text("static __global__ void theirs(float* y) { y[threadIdx.x] = 2; }\n")
    (tmp_path / "k.cu").write_text('#include "other.cuh"\n__global__ void mine(float* y) { y[threadIdx.x] = 1; }\n')
    code, text = _sanitized(tmp_path / "k.cu")
    assert (code, "mine of k.cu" in text) == (0, True), text


BRANCHES = """#ifdef __HIP_PLATFORM_AMD__
#include "hip_helpers.h"
#elif defined(__ARM_NEON)
#include <arm_neon/arm.h>
#elif defined(SYCL_LANGUAGE_VERSION)
#include <sycl/sycl.hpp>
#else
#include <cuda_runtime.h>
#endif
__global__ void k(float* out) { out[threadIdx.x] = VALUE; }
"""


@pytest.mark.parametrize(
    ("options", "code", "told", "untold"),
    [
        ((), 2, 'k.cu:10: identifier "VALUE" is undefined', "hip_helpers"),
        ((), 2, 'k.cu:10: identifier "VALUE" is undefined', "skipped"),
        (("-D", "VALUE=1"), 0, "clean", "hip_helpers"),
        (("-D", "__HIP_PLATFORM_AMD__"), 2, 'not found: "hip_helpers.h" (line 2)', "sycl"),
        (("-D", "SYCL_LANGUAGE_VERSION"), 2, '"sycl/sycl.hpp" (line 6)', "hip_helpers"),
    ],
)
def test_headers_that_an_if_excludes_are_not_blamed(
    tmp_path: Path, options: tuple[str, ...], code: int, told: str, untold: str
) -> None:
    """Only includes that the compiler reaches may cause an error or be skipped."""
    (tmp_path / "k.cu").write_text(BRANCHES)
    found, text = _sanitized(tmp_path / "k.cu", *options)
    assert (found, told in text, untold in text) == (code, True, False), text


@pytest.mark.parametrize("name", ["cutlass/mine.h", "thrust/mine.h", "cub/mine.cuh", "curand_kernel.h"])
def test_a_folder_of_the_user_precedes_cuda_s(tmp_path: Path, name: str) -> None:
    """`-I` holds for names of the toolkit and of its libraries too; without it, the message says to give it."""
    (tmp_path / "own" / name).parent.mkdir(parents=True)
    (tmp_path / "own" / name).write_text("#define MINE 3\n")
    (tmp_path / "k.cu").write_text(f"#include <{name}>\n__global__ void k(float* out) {{ out[threadIdx.x] = MINE; }}\n")
    code, text = _sanitized(tmp_path / "k.cu", "-I", str(tmp_path / "own"))
    assert code == 0, text
    code, text = _sanitized(tmp_path / "k.cu")
    assert code == 2
    assert "with -I" in text or "MINE" in text  # some toolkits contain the header


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("x.ptx", "x.ptx is compiled code; sanitize reads CUDA source (.cu, .cuh, .h, .hpp, .hxx)"),
        ("x.txt", "x.txt is not a CUDA file (.cu, .cuh, .h, .hpp, .hxx)"),
        ("x.h", "x.h declares kernels but defines none"),
        ("declared.cuh", "declared.cuh declares kernels but defines none"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_its_kind(tmp_path: Path, name: str, told: str) -> None:
    """It is not taken for a kernel folder."""
    (tmp_path / name).write_text("__global__ void k(float* out);\n")
    code, text = _sanitized(tmp_path / name)
    assert (code, told in text) == (2, True), text


def test_what_the_assembler_rejects_is_an_error(tmp_path: Path) -> None:
    """Inline assembly is assembled for the target, but another kernel of the file does not count."""
    (tmp_path / "k.cu").write_text(
        '__global__ void k(float* out) { asm volatile("redux.sync.max.f32 %0, %0, -1;" : "+f"(out[0])); }\n'
        '__global__ void other(float* out) { asm volatile("membar.gl;"); out[threadIdx.x] = 1; }\n'
    )
    code, text = _sanitized(tmp_path / "k.cu", "--entry", "k")
    assert code == 2 and "the assembler rejects the code for sm_89" in text and "'redux.f32'" in text
    assert _sanitized(tmp_path / "k.cu", "--entry", "other")[0] == 0


def test_an_undefined_toolkit_type_names_its_header(tmp_path: Path) -> None:
    """The compiler's first error may be about `__global__`; the undefined name says more."""
    (tmp_path / "k.cu").write_text("__global__ void k(half* out) { out[threadIdx.x] = 1; }\n")
    _, text = _sanitized(tmp_path / "k.cu")
    assert "the file lacks an include: half needs <cuda_fp16.h>" in text


def test_an_index_that_wraps_is_told_from_one_that_is_too_large(tmp_path: Path) -> None:
    """Far outside an array, the usual cause is 32-bit arithmetic."""
    (tmp_path / "k.cu").write_text("__global__ void k(float* out) { unsigned i = threadIdx.x; out[i - 1] = 1; }\n")
    _, text = _sanitized(tmp_path / "k.cu")
    assert "an index that wrapped in 32 bits" in text and "check the last block" not in text


def test_a_null_pointer_is_no_index(tmp_path: Path) -> None:
    """An address far from every buffer belongs to none of them."""
    (tmp_path / "k.cu").write_text("__global__ void k(float** out) { float* p = out[threadIdx.x]; p[2] = 1; }\n")
    result = CliRunner().invoke(app, ["sanitize", str(tmp_path / "k.cu"), "--block", "32", "--arg", "zero:u64[32]"])
    assert "at address 0x8, far from every buffer. Check for a null pointer" in result.stdout
    assert "   memory  " not in result.stdout and "byte -" not in result.stdout


def test_host_parts_of_device_libraries_are_left_out(tmp_path: Path) -> None:
    """Thrust's containers and algorithms and CUB's device-wide functions are host code; their device parts remain."""
    (tmp_path / "k.cu").write_text(
        "#include <thrust/device_vector.h>\n#include <thrust/sort.h>\n#include <cub/device/device_reduce.cuh>\n"
        "#include <thrust/complex.h>\n"
        "struct Holder { thrust::device_vector<float> v; };\n"
        "__global__ void k(float* out) { out[threadIdx.x] = thrust::complex<float>(1, 2).real(); }\n"
        "int main() { thrust::device_vector<float> v(32); thrust::sort(v.begin(), v.end()); }\n"
    )
    code, text = _sanitized(tmp_path / "k.cu")
    assert code == 0, text
