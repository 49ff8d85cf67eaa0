"""Seeded generator of kernel folders whose sources are written in every way that CUDA sources are written in.

Each kernel computes y = scale * act(x) + shift. The text around it varies: comments, macros, line ends, names,
conditionals, namespaces, templates, headers, and the declaration in kernel.py.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

ACTS = {
    "twice": ("v + v", "2 * x", "2 * v"),
    "square": ("v * v", "x * x", "v * v"),
    "relu": ("v > 0 ? v : 0", "torch.relu(x)", "v > 0 ? v : 0"),
    "halved": ("v * 0.5f", "x * 0.5", "v * 0.5"),
}
"""Name of the function → CUDA, Python, C++."""
OURS = (
    "run", "require", "capture", "check", "launch", "refusal", "time_calls", "make_input", "worst_ratio", "places_of",
    "Input", "Expected", "parse_shape", "host_bytes", "floor_div", "ceil_div", "reference", "run_program", "pick",
    "copies", "absolute", "magnitudes_of",
)  # fmt: skip
"""Names of functions and types in the exported program."""
MACROS = (
    "len", "size", "count", "values", "stream", "shape", "config", "entry", "arguments", "inputs", "outputs", "T",
    "N_", "seed", "samples", "places", "expected", "worst", "error", "OK", "SETS", "SAMPLES", "WARM_UP",
    "BAD_SHAPE", "calls", "time", "random", "normal", "whole", "begin", "first", "second", "data",
)  # fmt: skip
"""Names of macros that the exported program or the standard library use for something else."""


FORMS = (
    "plain", "plain", "extern C", "extern block", "static", "namespace", "template", "template type", "overloaded",
    "pasted name", "functor argument", "function argument", "anonymous", "macro kernel",
)  # fmt: skip
"""Forms of the kernel's definition."""


@dataclass
class Parts:
    """A kernel folder while it is written."""

    seed: int
    random: random.Random
    top: list[str] = field(default_factory=list)
    """Text before everything else."""
    head: list[str] = field(default_factory=list)
    """Macros, types, helpers."""
    tail: list[str] = field(default_factory=list)
    """Text after the kernel."""
    headers: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    features: list[str] = field(default_factory=list)

    def maybe(self, share: float, feature: str) -> bool:
        """Return True for a share of the seeds, and note the feature."""
        if self.random.random() >= share:
            return False
        self.features.append(feature)
        return True

    def name(self, choices: tuple[str, ...]) -> str:
        """Return a name that is not yet used."""
        free = [name for name in choices if name not in self.names]
        found = self.random.choice(free)
        self.names.add(found)
        return found


def write_random_kernel(seed: int, folder: Path) -> list[str]:
    """Write a kernel folder and return the features of its source."""
    parts = Parts(seed, random.Random(seed))
    rng = parts.random
    dtype = rng.choice(["f32", "f32", "f32", "f16", "f64"])
    element = {"f32": "float", "f16": "__half", "f64": "double"}[dtype]
    act = rng.choice(list(ACTS))
    block = rng.choice(["BLOCK", "block_size_x", "kThreads", "_TPB", "threads"])
    field_name = rng.choice(["N", "N", "n", "len", "COUNT", "Size", "DEFAULT", "shape"])
    parts.names |= {block, field_name, field_name.lower(), "fill"}
    _comments(parts)
    macro_field = parts.maybe(0.3, "field is a macro")
    _block_macro(parts, block)
    if dtype == "f16":
        parts.head.append("#include <cuda_fp16.h>")
    if macro_field:
        field_name = rng.choice(["N", "COUNT", "n_elements", "LENGTH", "problem_size"])  # no word of other headers
        parts.head.append(f'#ifndef {field_name}\n#error "{field_name} must be defined"\n#endif')
    _toolkit_headers(parts)
    _macros(parts)
    _ladders(parts, block)
    _headers(parts)
    _tables(parts)
    _collisions(parts)
    qualifier = _function_space(parts)
    helper = _helper(parts, act, qualifier)
    kernel = _kernel(parts, element, helper, block, field_name if macro_field else "")
    _tail(parts)
    text = "\n".join([*parts.top, *parts.head, kernel.text, *parts.tail])
    if parts.maybe(0.25, "CRLF"):
        text = text.replace("\n", "\r\n")
    data = text.encode()
    if parts.maybe(0.2, "byte order mark"):
        data = b"\xef\xbb\xbf" + data
    if parts.maybe(0.2, "no line end at the end"):
        data = data.rstrip(b"\r\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.cu").write_bytes(data)
    for name, header in parts.headers.items():
        (folder / name).write_text(header)
    (folder / "reference.h").write_text(_reference(parts, act))
    (folder / "kernel.py").write_text(_declaration(parts, dtype, act, block, field_name, macro_field, kernel))
    return parts.features


@dataclass
class Entry:
    """The kernel's text, and how it is launched."""

    text: str
    entry: str
    grid_stride: bool
    scalar: str
    buffers: tuple[str, str]
    constant: str = ""


def _comments(parts: Parts) -> None:
    licence = '/*\n * Copyright of nobody.\n\n * It has a blank line, a #define X 1 and an #include "none.h".\n */'
    choices = {
        "licence": licence,
        "licence before a directive": licence.replace("\n */", "\n */ #define LICENCE 1"),
        "line comments": "// A kernel.\n//\n// #define NOT_THIS 3",
        "spliced comment": "// continues \\\n#define NOT_THIS 3 \\\n still a comment",
        "backslash and space": "// the folder C:\\kernels\\ \n#define AFTER_BACKSLASH 1",
        "comment glued": "/* a */ /* b\n c */",
        "quotes in comments": "// don't \"quote\n/* it's \"open */",
        "none": "",
    }
    for kind in parts.random.sample(list(choices), parts.random.randint(1, 3)):
        parts.features.append(kind)
        parts.top.append(choices[kind])
    if parts.maybe(0.2, "comment before the first token"):
        parts.top.append("/* on\n its own */ static __device__ const int kAfterComment = 3;")


def _block_macro(parts: Parts, block: str) -> None:
    parts.head.append(
        parts.random.choice(
            [
                f"#ifndef {block}\n#define {block} 128\n#endif",
                f'#ifndef {block}\n#error "{block} must be defined"\n#endif',
                f"#if !defined({block})  // default\n#  define {block} /* threads */ 128 // of a block /* here\n#endif",
                f"#if !defined({block})\n#error don't compile without \"{block}\n#endif",
                f"/* x */ # /* y */ ifndef /* z */ {block}\n# define {block} \\\n   128\n#endif",
                f'#if defined {block} && \\\n    {block} > 0\n#else\n#error "{block}"\n#endif',
                "",
            ]
        )
    )


def _macros(parts: Parts) -> None:
    for _ in range(parts.random.randint(0, 3)):
        name = parts.name(MACROS)
        parts.features.append(f"macro {name}")
        parts.head.append(f"#define {name} 4096")
    if parts.maybe(0.3, "function-like macro of several lines"):
        name = parts.name(("CLAMP", "clamp_", "MIN", "ELEMENT"))
        parts.head.append(
            f"#define {name}(a, b) \\\n  ((a) < (b) /* smaller */ \\\n       ? (a)        \\\n       : (b))  // done"
        )
    if parts.maybe(0.3, "redefined macro"):
        parts.head.append('#define STEP 3\n#undef STEP\n#define STEP 1\nstatic_assert(STEP == 1, "redefined");')
    if parts.maybe(0.2, "macro of the standard library"):
        parts.head.append("#undef INFINITY\n#define INFINITY __int_as_float(0x7f800000)")
    if parts.maybe(0.2, "string macro"):
        parts.head.append('#define TEXT(x) #x\n#define QUOTE \'"\'  // "\n#define SLASHES "//" /* not a comment */')
    if parts.maybe(0.2, "variadic macro"):
        parts.head.append("#define ALL(...) __VA_ARGS__\nALL(__device__ static const int kAll = 2;)")
    if parts.maybe(0.2, "digit separator"):
        parts.head.append("#define LARGE 1'000'000 /* it's large */")
    if parts.maybe(0.15, "splice in a word"):
        parts.head.append("__dev\\\nice__ static const int kSpl\\\niced = 1;")


def _ladders(parts: Parts, block: str) -> None:
    if parts.maybe(0.4, "ladder"):
        parts.head.append(
            f"#if {block} >= 256\n#define WIDE 1\n#elif {block} >= 128 /* usual */\n#define WIDE 0\n#else\n"
            '# ifdef NOT_DEFINED\n#  error "never"\n# else\n#  define WIDE 0\n# endif\n#endif'
        )
    if parts.maybe(0.3, "architecture required"):
        parts.head.append('#if __CUDA_ARCH__ < 800\n#error "needs sm_80"\n#endif')
    if parts.maybe(0.2, "architecture chosen"):
        parts.head.append(
            "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900\n#define FAST 1\n#elif __CUDA_ARCH__ >= 800\n"
            "#define FAST 0\n#else\n#define FAST 0\n#endif"
        )
    if parts.maybe(0.2, "NVRTC or not"):
        parts.head.append(
            "#ifdef __CUDACC_RTC__\nusing host_index = unsigned long long;\n#else\n#include <vector>\n"
            "#include <string>\ninline std::vector<int> host_only() { return {1}; }\n"
            "int main(int, char**) { return (int)host_only().size(); }\n#endif"
        )
    if parts.maybe(0.2, "#if 0"):
        parts.head.append("#if 0\nthis isn't C++ \"at all\n#define BLOCK_ 1\n#else\n#define ALIVE 1\n#endif")
    if parts.maybe(0.15, "__has_include"):
        parts.headers["present.h"] = "#pragma once\n#define PRESENT 1\n"
        parts.head.append('#if __has_include("present.h")\n#include "present.h"\n#else\n#error "no present.h"\n#endif')


def _headers(parts: Parts) -> None:
    if parts.maybe(0.3, "header"):
        parts.headers["helpers.cuh"] = (
            "/* helpers */\n#pragma once\n#define HELPED(x) ((x) + 0)\n"
            "template <typename Type>\n__device__ __forceinline__ Type passed(Type v) { return HELPED(v); }\n"
        )
        parts.head.append('#include "helpers.cuh" // once\n#include "helpers.cuh"')
    if parts.maybe(0.2, "nested headers"):
        parts.headers["outer.h"] = '#ifndef OUTER_H\n#define OUTER_H\n#include "inner.h"\n#endif  // OUTER_H\n'
        parts.headers["inner.h"] = (
            "#ifndef INNER_H_\n#define INNER_H_\nnamespace inner { enum Mode { kOff, kOn }; }\n#endif\n"
        )
        parts.head.append('#  include "outer.h"')


def _toolkit_headers(parts: Parts) -> None:
    if parts.maybe(0.3, "toolkit headers"):
        parts.head.append(
            parts.random.choice(
                [
                    "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;",
                    "#include <cuda_runtime.h>\n#include <cuda_bf16.h>",
                    "#include <cstdint>\n#include <cmath>\n#include <algorithm>",
                    "#include <cuda/std/type_traits>",
                    "#include <stdio.h>\n#include <assert.h>\n#include <float.h>",
                ]
            )
        )


def _tables(parts: Parts) -> None:
    rng = parts.random
    for declaration in (
        "__constant__ float kTable[4] = {1.f, 2.f, 3.f, 4.f};",
        "static __device__ const float kWeights[] = {1.f, 2.f};",
        "constexpr int kUnmarked[3] = {1, 2, 3};",
        "static constexpr int kStatic = sizeof(float) == 4 ? 1 : 2;",
        "const float kScalar = 1.5f;",
        '__device__ const char kNote[] = R"(a "raw" string  \n\n\n\n#define NOT_A_MACRO 1\n*/ // not a comment\n)";',
        "struct Pair { float first_, second_; constexpr Pair(float a, float b) : first_{a}, second_{b} {} };",
        "enum class Mode : int { Off, On };",
        "typedef float real_t;\nusing Real = real_t;",
        "template <typename A, typename B> struct Same { static constexpr bool value = false; };\n"
        "template <typename A> struct Same<A, A> { static constexpr bool value = true; };",
        "template <int W> struct alignas(W * 4) Vec { float v[W]; };",
    ):
        if rng.random() < 0.2:
            parts.features.append(declaration.split("\n")[0][:30])
            parts.head.append(declaration)


def _collisions(parts: Parts) -> None:
    for _ in range(parts.random.choice([0, 1, 1, 2])):
        name = parts.name(OURS)
        parts.features.append(f"collides {name}")
        parts.head.append(
            parts.random.choice(
                [
                    f"__device__ inline float {name}(float v) {{ return v; }}",
                    f"struct {name} {{ int held; }};",
                    f"namespace {name} {{ __device__ inline int inside() {{ return 1; }} }}",
                    f"template <typename Q> __device__ Q {name}(Q v, int) {{ return v; }}",
                ]
            )
        )
    if parts.maybe(0.15, "namespace evokern"):
        parts.head.append("namespace evokern { struct Shape { int n; }; __device__ inline int launch() { return 1; } }")
    if parts.maybe(0.1, "using namespace"):
        parts.head.append("namespace things { __device__ inline int SETS_() { return 3; } }\nusing namespace things;")


def _function_space(parts: Parts) -> str:
    kind = parts.random.choice(
        ["__device__", "__device__ __forceinline__", "", "static __inline__ __device__", "macro"]
    )
    if kind == "macro":
        parts.features.append("qualifier in a macro")
        parts.head.append("#define DEVICE_FN \\\n  static __device__ __forceinline__")
        return "DEVICE_FN"
    if not kind:
        parts.features.append("function without a space")
    return kind


def _helper(parts: Parts, act: str, qualifier: str) -> str:
    """Write the function `act`, and return how it is used: `function`, `functor`, `pasted` or `overload`."""
    body = ACTS[act][0]
    kind = parts.random.choice(["function", "functor", "pasted", "overload", "pointer", "constexpr"])
    parts.features.append(f"helper {kind}")
    function = f"{qualifier} float {act}(float v) {{ return {body}; }}"
    if kind == "functor":
        space = parts.random.choice(["__device__ ", "", "__host__ __device__ "])
        parts.head.append(f"struct Act_{act} {{\n  {space}float operator()(float v) const {{ return {body}; }}\n}};")
        parts.head.append(f"struct Act_unused {{\n  {space}float operator()(float v) const {{ return v; }}\n}};")
    elif kind == "pasted":
        parts.head.append(f"{function.replace(f' {act}(', f' {act}_fn(', 1)}\n#define CALL(op, v) op##_fn(v)")
    elif kind == "overload":
        parts.head.append(f"{function}\n{qualifier} int {act}(int v) {{ return v; }}")
    elif kind == "constexpr":
        parts.head.append(f"constexpr float {act}(float v) {{ return {body}; }}")
    else:
        parts.head.append(f"{function}\n{qualifier} float unused_{act}(float v) {{ return v; }}")
    return kind + ":" + act


def _kernel(parts: Parts, element: str, helper: str, block: str, macro_field: str) -> Entry:
    rng = parts.random
    kind, act = helper.split(":")
    name = parts.name(
        ("fill", "apply", "k_", "scale_rows", "evokern_kernel", "Run", "run_kernel", "main_kernel", "reference_")
    )
    call = {"pasted": f"CALL({act}, v)", "functor": f"Act_{act}()(v)"}.get(kind, f"{act}(v)")
    x, y = rng.choice([("x", "y"), ("in", "out"), ("stream", "shape"), ("default", "config"), ("a", "A")])
    stride = parts.maybe(0.5, "grid-stride loop")
    scalar = rng.choice(["", "float", "bool", "long long"])
    parameters = "const ELEMENT_* x, ELEMENT_* y".replace("ELEMENT_", "TYPE_")
    parameters += "" if macro_field else ", int n"
    parameters += {"": "", "float": ", float shift", "bool": ", bool shifted", "long long": ", long long unused"}[
        scalar
    ]
    count = macro_field or "n"
    load = {"__half": "__half2float(x[i])", "double": "(float)x[i]"}.get(element, "x[i]")
    store = {"__half": "__float2half(r)", "double": "(double)r"}.get(element, "r")
    shift = {"": "1.0f", "float": "shift", "bool": "(shifted ? 1.0f : 0.0f)", "long long": "1.0f"}[scalar]
    first = f"blockIdx.x * {block} + threadIdx.x"
    loop = (
        f"for (int i = {first}; i < {count}; i += {block} * gridDim.x)"
        if stride
        else f"if (const int i = {first}; i < {count})"
    )
    form = rng.choice(FORMS)
    if form == "functor argument" and kind != "functor":
        form = "template"
    if form == "function argument" and kind not in ("function", "pointer"):
        form = "template type"
    if form in ("functor argument", "function argument"):
        call = "ACT()(v)" if form == "functor argument" else "ACT(v)"
    parts.features.append(f"kernel {form}")
    types = element
    if form in ("template type", "functor argument", "function argument"):
        types = "E"
    bounds = rng.choice(["", f" __launch_bounds__({block})"])
    body = f"""  {loop} {{
    const float v = {load};
    if constexpr ({block} >= 64) {{  // the usual case
      const float r = 0.5f * {call} + {shift};
      y[i] = {store};
    }} else {{
      y[i] = {store.replace("r", f"0.5f * {call} + {shift}") if store != "r" else f"0.5f * {call} + {shift}"};
    }}
  }}"""
    parameters = parameters.replace("TYPE_", types)
    entry, head = name, "__global__ void"
    text = f"{head}{bounds} {name}({parameters}) {{\n{body}\n}}"
    if form == "extern C":
        text = f'extern "C" {text}'
    elif form == "extern block":
        text = f'extern "C" {{\n{text}\n}}  // extern "C"'
    elif form == "static":
        text = f"static {text}"
    elif form == "namespace":
        text, entry = f"namespace outer_ {{ namespace inner_ {{\n{text}\n}} }}", f"outer_::inner_::{name}"
    elif form == "anonymous":
        text = f"namespace {{\n{text}\n}}"
    elif form == "template":
        text, entry = (
            f"template <int WIDTH, bool FLAG = true>\n{text}",
            rng.choice([f"{name}<4>", f"::{name}< 4, true >", f"{name}<{block} / 32>"]),
        )
    elif form == "template type":
        text, entry = f"template <typename E, int UNROLL>\n{text}", f"{name}<{element}, 4>"
    elif form == "functor argument":
        text, entry = f"template <typename E, class ACT>\n{text}", f"{name}<{element}, Act_{act}>"
    elif form == "function argument":
        text, entry = f"template <typename E, float (*ACT)(float)>\n{text}", f"{name}<{element}, {act}>"
    elif form == "overloaded":
        kinds = ", ".join(part.strip().rpartition(" ")[0] for part in parameters.split(","))
        text += f"\n__global__ void {name}(int* p) {{ *p = 1; }}"
        entry = f"static_cast<void (*)({kinds})>({name})"
    elif form == "pasted name":
        text = f"#define KERNEL(n) n##_kernel\n{text.replace(f' {name}(', f' KERNEL({name})(', 1)}"
        entry = f"{name}_kernel"
    elif form == "macro kernel":
        lines = " \\\n".join(line.split("//")[0].rstrip() for line in text.replace(name, "NAME", 1).split("\n"))
        text = f"#define MAKE_KERNEL(NAME) {lines}\nMAKE_KERNEL({name})"
    if parts.maybe(0.5, "another kernel"):
        text = f"__global__ void other_{name}(float* q) {{ q[threadIdx.x] = 1.f; }}\n{text}"
    return Entry(text, entry, stride, scalar, (x, y))


def _tail(parts: Parts) -> None:
    if parts.maybe(0.2, "text at the end"):
        parts.tail.append(parts.random.choice(["// the end \\", "/* the end */", "#define LATE 1", "\n\n\n// end"]))


def _reference(parts: Parts, act: str) -> str:
    body = ACTS[act][2]
    rng = parts.random
    lines = (
        ["// The reference.", "#pragma once"] if rng.random() < 0.5 else ["#ifndef REFERENCE_H", "#define REFERENCE_H"]
    )
    guarded = lines[0].startswith("#ifndef")
    lines += rng.sample(["#include <cmath>", "#include <vector>", "#include <algorithm>", "#include <cstdint>"], 2)
    if parts.maybe(0.3, "reference uses std"):
        lines.append("using namespace std;")
    if parts.maybe(0.3, "reference macros"):
        lines += ["#define SETS 1", "#define shape 3", "#define T double"]
    name = act if parts.maybe(0.5, "reference function named like the kernel's") else f"{act}_of"
    lines.append(f"static inline double {name}(double v) {{ return {body}; }}")
    lines.append("inline void reference(int n, const double* x, double* y) {")
    lines.append(f"  for (int i = 0; i < n; i++) y[i] = 0.5 * {name}(x[i]) + 1.0;")
    lines.append("}")
    return "\n".join([*lines, *(["#endif"] if guarded else []), ""])


def _declaration(
    parts: Parts, dtype: str, act: str, block: str, field_name: str, macro_field: bool, kernel: Entry
) -> str:
    rng = parts.random
    x, y = kernel.buffers
    n = f"p[{field_name!r}]"
    blocks = f"-(-{n} // c[{block!r}])"
    if kernel.grid_stride:
        blocks = rng.choice(
            [f"min({blocks}, 65535)", f"min({blocks}, 4)", f"max(1, {n} // 1000)", f"3 if {n} > 2000 else {blocks}",
             f"{{0: 2, 1: 3}}.get({n} % 4, 4)", f"min(math.ceil({n} / c[{block!r}]), 1024)", blocks]
        )  # fmt: skip
    arguments = [repr(x), repr(y)]
    arguments += [] if macro_field else [f"i32({n})"]
    arguments += {"": [], "float": ["f32(1.0)"], "bool": ["Scalar('bool', True)"], "long long": [f"i64(min({n}, 7))"]}[
        kernel.scalar
    ]
    macros = f"macros=lambda c, p: {{{field_name!r}: {n}}}," if macro_field else ""
    return f'''"""A random kernel: {", ".join(parts.features)!r}."""

import math

import torch

from evokern import Kernel, Launch, Parameter, ProblemField, Tensor, Tolerance, Workload, f32, i32, i64
from evokern.declaration.launch import Scalar


def launches(c, p):
    return [Launch({kernel.entry!r}, {blocks}, c[{block!r}], ({", ".join(arguments)},))]


def reference(p, t):
    x = t[{x!r}]
    return {{{y!r}: 0.5 * ({ACTS[act][1]}) + 1.0}}


kernel = Kernel(
    name="random_{parts.seed}",
    genes=(Parameter({block!r}, (64, 128, 256), default=128),),
    fields=(ProblemField({field_name!r}, most=1 << 24),),
    launches=launches,
    {macros}
    workload=Workload(
        tensors=lambda p, c: {{
            {x!r}: Tensor("{dtype}", ({n},)),
            {y!r}: Tensor("{dtype}", ({n},), role="output"),
        }},
        reference=reference,
        tolerance={{{y!r}: Tolerance(1e-2, 1e-2)}},
        flops=lambda p: {n},
        bytes=lambda p: 8 * {n},
        small_problems=("299", "384"),
    ),
)
'''
