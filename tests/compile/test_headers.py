"""CUDA headers found, host headers stood in for: real files compile with NVRTC, with no GPU and no host compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import DATA

from evokern.compile import headers
from evokern.compile.isolated import compile_ptx
from evokern.compile.records import CompileFailure
from evokern.cuda_source import CudaSource, read
from evokern.cuda_source.reader import known_headers

nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")

FILES = DATA / "cuda_files"


def compile_source(
    source: CudaSource, options: tuple[str, ...] = (), expressions: tuple[str, ...] = ()
) -> tuple[str, list[str]]:
    """Compile to PTX as the compile room does; return the log (empty when all is well) and the lowered names."""
    texts = [text.encode() for text in source.headers.values()]
    program = nvrtc.createProgram(source.device_text, source.name, texts, [name.encode() for name in source.headers])
    try:
        for expression in expressions:
            nvrtc.addNameExpression(program, expression)
        try:
            nvrtc.compileProgram(
                program, ("--gpu-architecture=compute_89", "--std=c++17", *headers.nvrtc_options(), *options)
            )
        except nvrtc.NVRTCError:
            return nvrtc.getProgramLog(program), []
        return "", [nvrtc.getLoweredName(program, expression) for expression in expressions]
    finally:
        nvrtc.destroyProgram(program)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "options", "expressions"),
    [
        ("torch_extension.cu", (), ("swish_forward_kernel<float>", "rms_norm_kernel")),
        ("nvcc_program.cu", (), ("gemm_naive", "gemm_tiled")),
        ("templates.cu", (), ("kernels::reduce<int, 64>",)),
        ("cuda_sample.cu", (), ()),
        ("windows.cu", (), ("addKernel",)),
        ("tensor_core.cu", ("-DTILE_M=16", "-DTILE_N=16", "-DSTAGES=2"), ("convert",)),
        ("project/src/softmax.cu", (), ("softmax",)),
    ],
)
def test_files_as_people_have_them_compile(name: str, options: tuple[str, ...], expressions: tuple[str, ...]) -> None:
    """Torch extensions, nvcc programs, samples and projects compile unchanged, and their kernels can be named."""
    log, lowered = compile_source(read(FILES / name, [FILES / "project" / "include"]), options, expressions)

    assert log == ""
    assert len(lowered) == len(expressions)


def test_an_error_names_the_line_of_the_original_file() -> None:
    """Host code above an error does not move its line."""
    source = read(
        "#include <vector>\nvoid f() {\n  std::vector<int> v;\n}\n__global__ void k(float* x) {\n  x[0] = nowhere;\n}\n"
    )

    assert 'source.cu(6): error: identifier "nowhere"' in compile_source(source)[0]


def test_header_lists_and_shims_agree() -> None:
    """The reader keeps exactly those host headers for which a stand-in lies in shims/."""
    shims = {path.name for path in headers.SHIMS.iterdir() if not path.name.startswith("evokern_")}

    assert shims == known_headers.SHIMMED


@pytest.mark.thorough
@pytest.mark.parametrize("standard", ["14", "17", "20"])
def test_all_stand_ins_compile_together(standard: str) -> None:
    """Every stand-in can be included, all at once, in each C++ standard; libcu++'s tuple wants C++17."""
    wanted = sorted(known_headers.SHIMMED - ({"tuple"} if standard == "14" else set()))
    text = "".join(f"#include <{name}>\n" for name in wanted) + "__global__ void k() {}\n"

    assert compile_source(read(text), (f"--std=c++{standard}",))[0] == ""


@pytest.mark.thorough
def test_stand_ins_live_beside_the_real_device_library() -> None:
    """Fixed-width integers and limits of the stand-ins and of libcu++ are the same types and values."""
    text = (
        "#include <cstdint>\n#include <limits>\n#include <cfloat>\n#include <type_traits>\n"
        "#include <cuda/std/cstdint>\n#include <cuda/std/cfloat>\n"
        "#include <cuda/std/limits>\n#include <cuda/std/type_traits>\n"
        "static_assert(cuda::std::is_same<std::int64_t, cuda::std::int64_t>::value, \"\");\n"
        "static_assert(std::numeric_limits<float>::max() == cuda::std::numeric_limits<float>::max(), \"\");\n"
        "static_assert(std::numeric_limits<int>::lowest() == cuda::std::numeric_limits<int>::lowest(), \"\");\n"
        "using L = std::numeric_limits<double>;\n"
        "static_assert(L::infinity() == cuda::std::numeric_limits<double>::infinity(), \"\");\n"
        "static_assert(std::is_same_v<std::decay_t<const int (&)[3]>, cuda::std::decay_t<const int (&)[3]>>, \"\");\n"
        "__global__ void k() {}\n"
    )  # fmt: skip

    assert compile_source(read(text))[0] == ""


@pytest.mark.parametrize(
    "statement",
    [
        "static_assert(INFINITY > 3.4e38f && NAN != NAN, \"\");",
        "static_assert(sizeof(uint64_t) == 8 && sizeof(int8_t) == 1 && sizeof(uint) == 4, \"\");",
        "static_assert(INT_MAX == 2147483647 && CHAR_BIT == 8 && UINT32_MAX == 4294967295u, \"\");",
        "x[0] = std::sqrt(x[1]) + std::min(x[2], 1.0f) + std::abs(x[3]) + float(M_PI);",
        "size_t n = 3; ptrdiff_t d = -1; x[0] = n + d; void* p = NULL; x[1] = p == nullptr;",
    ],
)  # fmt: skip
def test_what_nvcc_brings_without_an_include(statement: str) -> None:
    """Names that nvcc always has are there although NVRTC has none of them."""
    assert compile_source(read(f"__global__ void k(float* x) {{ {statement} }}\n"))[0] == ""


def test_this_installation_has_every_header_that_kernels_need() -> None:
    """The wheels of the extra bring the CUDA headers; what is optional says how to get it."""
    report = headers.header_report()

    assert [status.name for status in report if status.path is None and not status.optional] == []
    assert all(status.remedy.startswith("pip install") for status in report if status.path is None)


def test_wheels_of_cuda_12_lie_in_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA 12's wheels have one include folder each; all that exist are found, the stand-ins last."""
    for folder in ("cuda_runtime", "cuda_nvcc", "cuda_cccl"):
        (tmp_path / "nvidia" / folder / "include").mkdir(parents=True)
    (tmp_path / "nvidia" / "cuda_runtime" / "include" / "cuda_fp16.h").touch()
    monkeypatch.setattr(headers, "_wheel_roots", lambda: [tmp_path / "nvidia"])
    monkeypatch.setattr(headers, "_DEFAULT_TOOLKIT", tmp_path / "none")

    found = headers.include_directories(12, {})
    report = {status.name: status for status in headers.header_report(12, {})}

    assert [path.parent.name for path in found[:-1]] == ["cuda_runtime", "cuda_nvcc", "cuda_cccl"]
    assert found[-1] == headers.SHIMS
    assert report["cuda_fp16.h"].path == found[0] / "cuda_fp16.h"
    assert report["crt/mma.h"].remedy == "pip install nvidia-cuda-nvcc-cu12, or set CUDA_HOME to a CUDA 12 toolkit"


def test_a_toolkit_helps_out_when_its_release_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_HOME is used where wheels lack headers and its major version is the right one, and only then."""
    include = tmp_path / "toolkit" / "include"
    include.mkdir(parents=True)
    (include / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  12080\n")
    monkeypatch.setattr(headers, "_wheel_roots", list)
    monkeypatch.setattr(headers, "_DEFAULT_TOOLKIT", tmp_path / "none")
    environ = {"CUDA_HOME": str(tmp_path / "toolkit")}

    assert headers.include_directories(12, environ) == (include, headers.SHIMS)
    assert headers.include_directories(13, environ) == (headers.SHIMS,)


def test_macros_of_one_letter_reach_no_header() -> None:
    """A file may call its tile sizes A, B or N: the shims of the standard headers use no such name."""
    names = ("type_traits", "utility", "array", "numeric", "algorithm", "limits")
    text = "".join(f"#include <{name}>\n" for name in names) + 'extern "C" __global__ void k(int* x) { x[0] = N; }\n'
    options = [*headers.nvrtc_options(), *(f"-D{letter}={i}" for i, letter in enumerate("ABCDKMNR"))]
    assert not isinstance(compile_ptx(text, "k.cu", {}, options, ["k"], (8, 9)), CompileFailure)
