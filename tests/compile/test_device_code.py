"""Host code is set aside where the compiler rejects it, and macros that replace names of the source are named."""

from __future__ import annotations

import pytest

from evokern.compile.device_code import compile_device_code, macro_collisions, without_host_code
from evokern.compile.records import CompileFailure, Program
from evokern.declaration.render import Rendered

_KERNEL = "__global__ void k(float* x) { x[0] = BLOCK; }"
_COLLIDING = {
    "template": ("template <int BLOCK> __global__ void k(float* x) { x[0] = BLOCK; }", 1),
    "constant": (f"\nstatic constexpr int BLOCK = 64;\n{_KERNEL}", 2),
    "local": ("__global__ void k(float* x) {\n  int BLOCK = blockDim.x;\n x[0] = BLOCK; }", 2),
    "pointer": ("__global__ void k(float* x) {\n  float* BLOCK = x;\n BLOCK[0] = 1; }", 2),
    "member": ("struct S { int a;\n int BLOCK; };\n__global__ void k(float* x) { x[0] = S{}.a; }", 2),
    "parameter": ("__device__ int f(int BLOCK) { return BLOCK; }\n__global__ void k(float* x) { x[0] = f(3); }", 1),
    "function": ("__device__ int BLOCK(int a) { return a; }\n__global__ void k(float* x) { x[0] = BLOCK(3); }", 1),
    "alias": ("using BLOCK = int;\n__global__ void k(float* x) { BLOCK b = 1; x[0] = b; }", 1),
    "enumerator": ("enum E { A,\n BLOCK };\n__global__ void k(float* x) { x[0] = A; }", 2),
    "second name": ("__global__ void k(float* x) { int a = 1,\n b,\n BLOCK; x[0] = a; }", 3),
}
_USES = (
    "#ifndef BLOCK\nconstexpr int BLOCK = 3;\n#endif\n"
    "__global__ void __launch_bounds__(BLOCK, 1) k(float* x) {\n  __shared__ float s[BLOCK];\n  s[0] = 2 * BLOCK;\n"
    "#pragma unroll BLOCK\n  for (int i = 0; i < BLOCK; i++) x[0] = i == 1 ? BLOCK : s[0];\n"
    "  if constexpr (BLOCK > 3) x[2] = -BLOCK; else x[1] = BLOCK;\n"
    "  switch (int(x[0])) { case BLOCK: x[0] = sizeof(int[BLOCK]); }\n}\n"
)
_HOSTED = """#include <iostream>
#include <vector>
#include <cuda_runtime.h>
#include "util.h"
__global__ void k(float* x) { x[0] = twice(3); }
int main() {
  std::vector<float> values(3);
  float* x;
  CHECK(cudaMalloc(&x, 4));
  k<<<1, 1>>>(x);
  std::cout << "done" << std::endl;
}
"""
_UTIL = """#pragma once
#include <string>
#include <chrono>
#define CHECK(e) do { if ((e) != cudaSuccess) throw std::string("failed"); } while (0)
inline std::string name(int i) { return std::to_string(i); }
struct Timer { std::chrono::steady_clock::time_point began; };
__device__ inline int twice(int a) { return 2 * a; }
"""


def _compiled(source: str, headers: dict[str, str] | None = None, *defines: str) -> Program | CompileFailure:
    rendered = Rendered(source, "kernel.cu", headers or {}, tuple(f"-D{one}" for one in defines), ("k",))
    return compile_device_code(rendered, "compute_89")


@pytest.mark.parametrize("kind", _COLLIDING)
def test_a_macro_with_the_name_of_a_declaration_is_named(kind: str) -> None:
    """The first compile names the macro, the line and the remedies."""
    source, line = _COLLIDING[kind]
    failure = _compiled(source, None, "BLOCK=64")
    assert isinstance(failure, CompileFailure)
    assert failure.message.startswith(f"kernel.cu:{line}: BLOCK is a macro, which replaces this name in ")
    assert 'rename one of the two, or declare the gene with as_="template"' in failure.message
    assert failure.line == line


def test_a_collision_in_a_header_is_named_there() -> None:
    """A header's declaration is found as one of the source."""
    failure = _compiled(
        '#include "a.h"\n__global__ void k(float* x) { x[0] = BLOCK; }',
        {"a.h": "\nconstexpr int BLOCK = 3;"},
        "BLOCK=4",
    )
    assert isinstance(failure, CompileFailure)
    assert failure.message.startswith("a.h:2: BLOCK is a macro")


def test_a_collision_in_a_header_of_the_compiler_is_named() -> None:
    """A gene named T breaks the templates of the compiler's headers, whose text evokern does not have."""
    failure = _compiled(f"#include <cuda_fp16.h>\n{_KERNEL}", None, "T=4", "BLOCK=64")
    assert isinstance(failure, CompileFailure)
    assert failure.message.startswith("T is a macro, which replaces this name in 'template<typename T>' of a header")
    assert "rename the gene T" in failure.message


def test_uses_of_a_macro_are_no_collisions() -> None:
    """Ordinary uses, and a default under a condition that tests the macro, are not reported."""
    rendered = Rendered(_USES, "kernel.cu", {}, ("-DBLOCK=64",), ("k",))
    assert macro_collisions(rendered) == {}
    assert isinstance(compile_device_code(rendered, "compute_89"), Program)
    types = Rendered(
        "__global__ void NAME(T* x) { const T y = 1; x[0] = y; }", "k.cu", {}, ("-DNAME=k", "-DT=float"), ()
    )
    assert macro_collisions(types) == {}


def test_a_definition_that_replaces_the_value_is_found() -> None:
    """A `#define` of the source without a guard would make a gene change nothing."""
    rendered = Rendered(f"#define BLOCK 3\n{_KERNEL}", "kernel.cu", {}, ("-DBLOCK=64",), ("k",))
    (found,) = macro_collisions(rendered)["kernel.cu"]
    assert (found.line, found.defines) == (1, True)
    failure = compile_device_code(rendered, "compute_89")
    assert isinstance(failure, CompileFailure)
    assert (failure.file, failure.line) == ("kernel.cu", 1)
    assert "'#define BLOCK 3' replaces the value that evokern gives to BLOCK" in failure.message
    assert isinstance(_compiled(f"#undef BLOCK\n#define BLOCK 3\n{_KERNEL}", None, "BLOCK=64"), Program)


def test_another_error_stays_the_compilers() -> None:
    """A missing semicolon next to a macro is not called a collision."""
    failure = _compiled("__global__ void k(float* x) { x[0] = BLOCK }", None, "BLOCK=64")
    assert isinstance(failure, CompileFailure)
    assert failure.message == 'kernel.cu:1: expected a ";"'


def test_host_code_of_source_and_headers_is_set_aside() -> None:
    """A file with `main`, and a header with host helpers, compile as their device code; lines keep their numbers."""
    assert isinstance(_compiled(_HOSTED, {"util.h": _UTIL}), Program)
    failure = _compiled(_HOSTED.replace("twice(3)", "thrice(3)"), {"util.h": _UTIL})
    assert isinstance(failure, CompileFailure)
    assert failure.message == 'kernel.cu:5: identifier "thrice" is undefined'
    failure = _compiled(_HOSTED, {"util.h": _UTIL.replace("2 * a", "2 * b")})
    assert isinstance(failure, CompileFailure)
    assert (failure.file, failure.line) == ("util.h", 7)


def test_a_missing_local_header_is_reported() -> None:
    """Only headers of host libraries are left out, not a header whose name is mistyped."""
    failure = _compiled(_HOSTED, {"utils.h": _UTIL})
    assert isinstance(failure, CompileFailure)
    assert failure.message == 'kernel.cu:4: cannot open source file "util.h"'


def test_a_type_in_a_template_argument_is_device_code() -> None:
    """A type that only the entry point names is kept, although no device code uses it."""
    source = (
        "#include <iostream>\nstruct Tile { static constexpr int size = 3; };\n"
        "template <class T> __global__ void k(int* x) { x[0] = T::size; }\n"
    )
    rendered = Rendered(source, "kernel.cu", {}, (), ("k<Tile>",))
    assert "struct Tile" in without_host_code(rendered).source
    assert isinstance(compile_device_code(rendered, "compute_89"), Program)
