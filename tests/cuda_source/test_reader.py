"""Reading CUDA files as people have them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paths import DATA

from evokern.cuda_source import CudaSource, device_only, read
from evokern.cuda_source.host import names_in, text_of
from evokern.cuda_source.reader.finders import dynamic_arrays
from evokern.cuda_source.specialize.conditionals import inline_headers
from evokern.errors import SourceError

FILES = DATA / "cuda_files"
NAMES = ["torch_extension.cu", "nvcc_program.cu", "templates.cu", "cuda_sample.cu", "windows.cu", "tensor_core.cu"]


def sample(name: str) -> CudaSource:
    return read(FILES / name, [FILES / "project" / "include"])


def names(source: CudaSource) -> list[str]:
    return [entry.qualified for entry in source.entries]


@pytest.mark.parametrize("name", NAMES)
def test_device_code_keeps_every_line_where_it_was(name: str) -> None:
    """Setting host code aside keeps the number of lines, and each remaining line's text and place."""
    source = sample(name)
    before, after = source.text.split("\n"), source.device_text.split("\n")

    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        assert new.startswith("#include") or all(
            new_character in (" ", old_character) for old_character, new_character in zip(old, new, strict=False)
        )
    for entry in source.entries:
        if not entry.obstacle:
            assert entry.name in after[entry.line - 1]


@pytest.mark.parametrize("name", NAMES)
def test_setting_aside_twice_changes_nothing(name: str) -> None:
    """`device_only` is idempotent on real files."""
    once = device_only(sample(name).text)

    assert once == device_only(once)


def test_host_side_of_a_torch_extension_goes() -> None:
    """Bindings, dispatch, tensor functions and host includes leave no word; kernels and their helpers stay."""
    text = sample("torch_extension.cu").device_text
    code = [line for line in text.split("\n") if not line.startswith(("#", "  CHECK", "//"))]

    words = ("torch", "at::", "PYBIND", "TORCH")
    assert [line.split()[-1] for line in code if any(word in line for word in words)] == ["gates,", "{"]  # accessors
    assert "#include <torch/extension.h>" not in text
    assert "#include <cuda_fp16.h>" in text
    assert "constexpr int kThreads = 256;" in text
    assert "warp_reduce_sum(float val)" in text


def test_a_kernel_that_needs_a_host_library_says_so() -> None:
    """A kernel over types of a host library is listed with its obstacle, set aside, and refused by name."""
    source = read(
        "#include <ATen/cuda/detail/TensorInfo.cuh>\n"
        "__global__ void copied(at::cuda::detail::TensorInfo<float, int> in, float* out) { out[0] = in.data[0]; }\n"
    )

    assert source.entries[0].obstacle.startswith("it uses at::cuda::detail::TensorInfo, which")
    assert "copied" not in source.device_text
    with pytest.raises(SourceError, match=r"copied \(line 2\).*plain pointers"):
        source.entry("copied")


def test_an_accessor_of_torch_is_supplied() -> None:
    """A kernel over PyTorch's accessors is compiled with evokern's declaration of them."""
    source = sample("torch_extension.cu")

    assert not next(e for e in source.entries if e.name == "lltm_accessor_kernel").obstacle
    assert '#include "torch_device.cuh"' in source.device_text
    assert "PackedTensorAccessor32" in source.headers["torch_device.cuh"]


def test_entries_of_a_whole_program() -> None:
    """Names, parameters and qualifiers are read from the declaration, wherever its line breaks are."""
    source = sample("nvcc_program.cu")

    assert names(source) == ["gemm_naive", "gemm_tiled"]
    naive = source.entries[0]
    assert [p.name for p in naive.parameters] == ["M", "N", "K", "alpha", "A", "B", "beta", "C"]
    assert [p.pointer for p in naive.parameters] == [False, False, False, False, True, True, False, True]
    assert [p.const for p in naive.parameters if p.pointer] == [True, True, False]
    assert [p.base for p in naive.parameters] == ["int", "int", "int", "float", "float", "float", "float", "float"]
    assert source.entries[1].line == 66


def test_host_program_goes_and_device_globals_stay() -> None:
    """`main`, host globals and host functions go; constants, device variables and types that kernels use stay."""
    text = sample("nvcc_program.cu").device_text

    for gone in (
        "int main",
        "h_A",
        "device_id",
        "names[]",
        "wall_time()",
        "void reference",
        "#include <sys/time.h>",
        "pragma omp",
    ):
        assert gone not in text
    for kept in (
        "kMaxRows = 1 << 12",
        "__constant__ float c_scale",
        "__device__ unsigned int d_counter",
        "} Matrix;",
        "#define TILE 16",
    ):
        assert kept in text


def test_conditionals_inside_host_functions_stay_balanced() -> None:
    """Preprocessor lines inside blanked functions stay, so that every #if keeps its #endif."""
    text = sample("nvcc_program.cu").device_text

    assert "#ifdef USE_DOUBLE\n\n#else\n\n#endif" in text


def test_macros_and_where_their_values_come_from() -> None:
    """A definition, a default and a demand are three different things."""
    kinds = {m.name: (m.kind, m.number) for m in sample("nvcc_program.cu").macros}
    demanded = {m.name: m.kind for m in sample("tensor_core.cu").macros}

    assert kinds == kinds | {"TILE": ("defined", 16), "UNROLL": ("default", 4)}
    assert demanded == {"TILE_M": "required", "TILE_N": "required", "STAGES": "required"}


def test_directives_behind_blanks_are_directives() -> None:
    """Macros, includes and conditionals are read with blanks, tabs or comments before and behind the hash."""
    source = read(
        "  #define BS 128\n"
        "\t# define TS 4\n"
        "/* a */ # /* b */ define WS 32\n"
        "  #ifndef QS\n    #define QS 3\n  #endif\n"
        '  #include "absent.h"\n'
        "  #include <vector>\n"
        "#define STRING(x) \\\n   #x\n"
        "  #if 0\n__global__ void dead() {}\n  #endif\n"
        "__global__ void k(float* a) {\n  #pragma unroll\n  for (int i = 0; i < BS; ++i) a[i] = TS;\n"
        "  #if USE_SMEM\n  a[0] = 1;\n  #endif\n}\n"
    )
    kinds = {macro.name: (macro.kind, macro.number, macro.line) for macro in source.macros}
    assert {
        "BS": ("defined", 128, 1),
        "TS": ("defined", 4, 2),
        "WS": ("defined", 32, 3),
        "QS": ("default", 3, 5),
        "STRING": ("defined", None, 9),
    } == kinds
    assert [(include.name, include.status, include.line) for include in source.includes] == [
        ("absent.h", "missing", 7),
        ("vector", "host", 8),
    ]
    assert names(source) == ["k"]
    assert "absent" not in source.device_text


def test_launches_carry_the_values_of_their_variables() -> None:
    """Grid and block are in the names of the host function, in which local variables are replaced by their values."""
    launches = sample("nvcc_program.cu").launches
    tiles, naive = "ceil_div(size, TILE)", "ceil_div(size, 32)"

    assert [(x.kernel, *map(text_of, (x.grid.x, x.grid.y, x.block.x, x.block.y))) for x in launches] == [
        ("gemm_tiled", tiles, tiles, "TILE", "TILE"),
        ("gemm_naive", naive, naive, "32", "32"),
        ("gemm_tiled", tiles, tiles, "TILE", "TILE"),
    ]
    assert (launches[0].function, launches[0].root) == ("main", "main")
    (size,) = {name for name in names_in(launches[0].grid) if name.text == "size"}
    assert size.value == 1024  # if the program gets no argument


def test_arrays_in_dynamic_shared_memory() -> None:
    """Only arrays whose size comes with the launch count, in any order of the words."""
    text = """__shared__ float tile[32][33];
    extern __shared__ __align__(16) unsigned char bytes[];
    __shared__ extern word_t sums [];"""
    assert dynamic_arrays(text) == ["bytes", "sums"]


def test_templates_namespaces_and_launch_bounds() -> None:
    """A template in a namespace gives its parameters with defaults; explicit instantiations are not entries."""
    source = sample("templates.cu")
    reduce = source.entries[0]

    assert names(source) == ["kernels::reduce", "kernels::scan"]
    assert [(p.type, p.name, p.default) for p in reduce.template] == [
        ("typename", "T", None),
        ("int", "kBlock", None),
        ("detail::Layout", "kLayout", "detail::Layout::kRow"),
        ("bool", "kBounds", "(kBlock > 128)"),
    ]
    assert reduce.launch_bounds == ("kBlock",)


def test_a_kernel_s_cluster_is_read_as_written() -> None:
    """The expressions of `__cluster_dims__`, wherever the attribute stands; none where the kernel has none."""
    source = read(
        "__global__ void __cluster_dims__(WIDE, 2) first(float* x) {}\n"
        "__cluster_dims__(4) __global__ void second(float* x) {}\n__global__ void third(float* x) {}\n"
    )
    assert [entry.cluster_dims for entry in source.entries] == [("WIDE", "2"), ("4",), ()]


def test_what_only_the_host_uses_goes_from_a_template_library() -> None:
    """Launchers with their instantiations go; traits, aliases, enums and constexpr helpers that kernels use stay."""
    text = sample("templates.cu").device_text

    for gone in ("Launcher", "registry", "std::map", "run<"):
        assert gone not in text
    for kept in (
        "struct Traits<int>",
        "constexpr int log2_of",
        "is_power_of_two",
        "template __global__ void reduce<float, 256>",
    ):
        assert kept in text


def test_linkage_blocks_and_macros_that_hide_the_qualifiers() -> None:
    """Linkage counts whether it is written, a block, or inside a macro."""
    source = sample("cuda_sample.cu")

    assert [(e.name, e.extern_c) for e in source.entries] == [
        ("transpose", True),
        ("count_bits", True),
        ("finish", True),
    ]
    assert "launch_transpose" not in source.device_text
    assert "fake" not in names(source)


def test_windows_file() -> None:
    """A byte order mark and carriage returns are no obstacle, and lines count as an editor counts them."""
    source = sample("windows.cu")

    assert [(e.name, e.line) for e in source.entries] == [("addKernel", 12)]
    assert "\r" not in source.device_text
    assert "café" in source.device_text
    assert "addWithCuda" not in source.device_text


def test_own_headers_are_read_and_their_host_code_set_aside() -> None:
    """Headers beside the file and in include directories come along, by the names in #include."""
    source = sample("project/src/softmax.cu")

    assert sorted(source.headers) == ["common.cuh", "reduce/ops.cuh", "reduce/warp.cuh"]
    assert "runtime_error" not in source.headers["common.cuh"].replace("\n", " ").split("#define EXP")[1]
    assert "constexpr int kWarpSize = 32;" in source.headers["common.cuh"]
    assert "std::vector" not in source.headers["reduce/ops.cuh"]
    assert "static __device__ float apply" in source.headers["reduce/ops.cuh"]
    assert {i.name: i.status for i in source.includes}["iostream"] == "host"


def test_an_own_header_that_is_not_there_is_reported() -> None:
    """A quoted include found nowhere is set aside and listed, so that a later error can name it."""
    source = sample("cuda_sample.cu")

    assert [(i.name, i.line) for i in source.missing_includes] == [("helper_timer.h", 15)]


@pytest.mark.parametrize(
    ("types", "stands"),
    [
        ("half* x", "#include <cuda_fp16.h>"),
        ("nv_bfloat162* x", "#include <cuda_bf16.h>"),
        ("__half2* x, __nv_bfloat16* y", "#include <cuda_fp8.h>"),
        ("float* x", ""),
    ],
)
@pytest.mark.parametrize("library", ["<cublas_v2.h>", "<torch/extension.h>", "<ATen/cuda/CUDAContext.h>", '"nccl.h"'])
def test_a_dropped_library_still_brings_the_half_types(library: str, types: str, stands: str) -> None:
    """A host library's header makes way, on its own line, for the headers of the half types that device code names."""
    source = read(
        f"#ifdef PROFILE\n#include <nvToolsExt.h>\n#endif\n#include {library}\n__global__ void k({types}) {{}}\n"
    )
    assert source.device_text.split("\n")[1:5] == ["", "#endif", stands, f"__global__ void k({types}) {{}}"]
    assert not source.missing_includes
    assert device_only(source.device_text) == source.device_text


def test_a_file_that_includes_the_half_types_itself_is_left_as_it_is() -> None:
    """Only what is lacking is put in place, in each file of the program for itself."""
    text = "#include <cuda_fp16.h>\n#include <cublas_v2.h>\n__global__ void k(half* x) {}\n"
    assert read(text).device_text.split("\n")[1] == ""
    both = text.replace("half* x", "half* x, nv_bfloat16* y")
    assert read(both).device_text.split("\n")[1] == "#include <cuda_bf16.h>"


def test_a_type_that_only_an_instantiation_names_stays() -> None:
    """A type of the file goes with the host's code, unless somebody asks for a kernel that takes it."""
    text = "struct T1 { int n; };\ntemplate <class T> __global__ void k() {}\nint main() { k<T1><<<1, 1>>>(); }\n"
    assert "T1" not in read(text).device_text
    assert "struct T1" in read(text, named=["k", "T1"]).device_text


def test_kernels_that_launch_kernels_are_refused_for_themselves() -> None:
    """Dynamic parallelism needs a runtime on the device: who uses it, directly or not, is told, and others run."""
    source = read(
        "__global__ void child() {}\n__device__ void go() { child<<<1, 32>>>(); }\n"
        "__global__ void direct() { child<<<1, 32>>>(); }\n__global__ void indirect() { go(); }\n"
    )
    assert source.entry("child").expression == "child"
    for name, why in (("direct", "launches a kernel itself"), ("indirect", "calls go, .* a kernel launch")):
        with pytest.raises(SourceError, match=why):
            source.entry(name)
    assert "go" not in source.device_text


def test_one_include_name_for_two_files_is_refused(tmp_path: Path) -> None:
    """NVRTC knows an in-memory header by its name alone, so the name must mean one file."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.cuh").write_text('#include "y.cuh"\n')
    (tmp_path / "a" / "y.cuh").write_text("// one\n")
    (tmp_path / "y.cuh").write_text("// two\n")
    (tmp_path / "k.cu").write_text('#include "y.cuh"\n#include "a/x.cuh"\n__global__ void k() {}\n')

    with pytest.raises(SourceError, match=r'"y.cuh" refers to both .* rename one'):
        read(tmp_path / "k.cu")


def test_the_only_kernel_needs_no_name() -> None:
    """With one kernel in the file, nobody has to name it; with several, the message lists them."""
    assert sample("windows.cu").entry().expression == "addKernel"
    with pytest.raises(SourceError, match=r"2 kernels; .*--entry: gemm_naive, gemm_tiled"):
        sample("nvcc_program.cu").entry()


@pytest.mark.parametrize(
    ("file", "wanted", "symbol", "expression"),
    [
        ("cuda_sample.cu", "transpose", "transpose", None),
        ("nvcc_program.cu", "gemm_tiled", None, "gemm_tiled"),
        ("nvcc_program.cu", "_Z10gemm_tiled6MatrixS_S_", "_Z10gemm_tiled6MatrixS_S_", None),
        ("templates.cu", "kernels::reduce<float, 512>", None, "kernels::reduce<float, 512>"),
        ("templates.cu", "reduce<float,512>", None, "kernels::reduce<float,512>"),
        ("templates.cu", "_ZN7kernels6reduceIfLi512ELb1EEEvPKT_PS3_x", None, "kernels::reduce<float, 512, true>"),
    ],
)
def test_a_kernel_is_found_by_what_people_call_it(
    file: str, wanted: str, symbol: str | None, expression: str | None
) -> None:
    """Plain, qualified, mangled and template names all lead to the entry."""
    point = sample(file).entry(wanted)

    assert (symbol, expression) == (point.symbol, point.expression)


@pytest.mark.parametrize(
    ("file", "wanted", "message"),
    [
        ("nvcc_program.cu", "gemm_tile", "did you mean 'gemm_tiled'"),
        (
            "templates.cu",
            "reduce",
            r"template <typename T, int kBlock.*for example 'kernels::reduce<float, 64, 64, true>'",
        ),
        ("templates.cu", "reduce<float>", "has 1 template arguments"),
        ("templates.cu", "reduce<float, 4", "missing closing '>'"),
        ("nvcc_program.cu", "gemm_tiled<4>", "is not a template; omit '<4>'"),
        ("nvcc_program.cu", "_Z3foov", "no kernel 'foo'"),
    ],
)
def test_a_wrong_name_gets_an_answer_that_helps(file: str, wanted: str, message: str) -> None:
    """The message names what is there or what is missing."""
    with pytest.raises(SourceError, match=message):
        sample(file).entry(wanted)


def test_a_file_that_is_not_there_or_holds_nothing() -> None:
    """A missing path and a file without kernels are the user's mistakes, said plainly."""
    with pytest.raises(SourceError, match=r"no CUDA file at nowhere\.cu"):
        read("nowhere.cu")
    with pytest.raises(SourceError, match="cannot be read"):
        read(FILES)
    with pytest.raises(SourceError, match="no __global__ function"):
        read("int main() {}\n").entry("k")


SNIPPETS = [
    "#include <vector>\n",
    "#if 0\nit's {\n#endif\n",
    "#ifdef A\nvoid f(int x) {\n#else\nvoid f() {\n#endif\n  g(); }\n",
    "__global__ void k(float* x) { x[0] = helper(1); }\n",
    "constexpr int helper(int a) { return a; }\n",
    "static std::vector<int> v;\nint main() { k<<<1, 2>>>(0); }\n",
    "template <int N> struct S { __device__ int f() { return N; } void host() { cudaFree(0); } };\n",
    "namespace a { int h; __device__ int d; }\n",
    'extern "C" { void p(); __global__ void q() {} }\n',
    "PYBIND11_MODULE(a, b) { b.def(); }\n",
    "MACRO(x)\n__device__ int y;\n",
    "static_assert(helper(1) == 1, \"\");\n",
    "using namespace torch;\nnamespace py = pybind11;\n",
    "enum { A1, B1 }; typedef struct { int a; } T;\n",
    'const char* s = R"(}{)";\n',
]  # fmt: skip
TOKENS = st.sampled_from(
    [
        "{",
        "}",
        "(",
        ")",
        "<",
        ">",
        ";",
        "=",
        "\n",
        " ",
        "__global__",
        "__device__",
        "x",
        "int",
        "template",
        "#if\n",
        "#else\n",
        "#endif\n",
        '"',
        "'",
        "/*",
        "*/",
        "//",
        "struct",
        "namespace",
        "using",
        "<<<",
        ",",
        ":",
        "::",
        "\\\n",
        "extern",
        '"C"',
        "operator",
        "#define x y\n",
        "\r\n",
    ]
)


@settings(max_examples=150, deadline=None)
@example("PYBIND11_MODULE(a, b) { b.def(); }\n;#include <vector>\n__global__ void k(float* x) { x[0] = 1; }\n")
@example("int host() { return std::max(1, 2); } /* no line of its own */ #define HALF 2\n__global__ void k() {}\n")
@given(
    st.lists(st.one_of(st.sampled_from(SNIPPETS), st.lists(TOKENS, max_size=6).map("".join)), max_size=12).map("".join)
)
def test_any_text_keeps_its_lines_and_settles_at_once(text: str) -> None:
    """Whatever the text, setting host code aside keeps the number of lines and is idempotent."""
    once = device_only(text)

    assert text.count("\n") == once.count("\n")
    assert once == device_only(once)


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_any_characters_can_be_read(text: str) -> None:
    """No text makes the reader fail."""
    assert read(text + "\n").text.count("\n") == read(text + "\n").device_text.count("\n")


def test_of_two_heads_before_one_body_the_first_counts() -> None:
    """An #if around a function's head leaves one entry, without the preprocessor's words in its parameters."""
    source = read(
        "#define UNALIASED __restrict__\n"
        "#if A\n__device__ void inner(const\n#else\n__global__ void outer(const\n#endif\n  float* UNALIASED x) {}\n"
        "#ifdef B\n__global__ void k(const float* UNALIASED x,\n"
        "#else\n__global__ void k(const int* x,\n#endif\n  int n) {}\n"
    )
    first = source.entries[0].parameters[0]

    assert names(source) == ["k"]
    assert [p.name for p in source.entries[0].parameters] == ["x", "n"]
    assert (first.base, first.pointer, first.const) == ("float", True, True)


def test_a_constant_that_only_a_pragma_names_stays() -> None:
    """`#pragma unroll N` needs its constant."""
    loop = "#pragma unroll N\n  for (int i = 0; i < 8; ++i) x[i] = 0;\n"
    text = f"constexpr int N = 4;\n__global__ void k(int* x) {{\n{loop}}}\n"

    assert text == device_only(text)


def test_a_header_with_one_default_is_no_include_guard(tmp_path: Path) -> None:
    """Its macro can be set; a guard with a value, around a whole header, cannot, and it is not inlined."""
    (tmp_path / "tile.h").write_text("#ifndef TILE\n#define TILE 16\n#endif\n")
    (tmp_path / "size.h").write_text("#ifndef SIZE_H\n#define SIZE_H 1\nconstexpr int SIZE = 4;\n#endif\n")
    file = tmp_path / "k.cu"
    file.write_text('#include "tile.h"\n#include "size.h"\n__global__ void k(int* x) { x[TILE] = SIZE; }\n')
    source = read(file)

    assert {macro.name: macro.kind for macro in source.macros} == {"TILE": "default"}
    inlined = inline_headers(source.device_text, source.headers)
    assert "#define TILE 16" in inlined and "SIZE_H" not in inlined
