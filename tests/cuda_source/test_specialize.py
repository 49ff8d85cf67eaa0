"""One candidate's source out of the source of all choices."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paths import DATA, KERNELS

from evokern.compile import headers
from evokern.cuda_source import specialize
from evokern.cuda_source.specialize.conditionals import inline_headers
from evokern.cuda_source.specialize.instrument import Compile, ConstantValue
from evokern.cuda_source.specialize.unreferenced import drop_unreferenced
from evokern.declaration import render
from evokern.hardware.profiles import chip
from evokern.study.discovery import load_kernel

nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")

CHOICES = (DATA / "cuda_files" / "choices.cu").read_text()
VALUES = {"LOADS_SCALAR": "0", "LOADS_VECTOR": "1"}


def compiled(
    text: str, macros: Mapping[str, str | int], own: Mapping[str, str] | None = None, entries: Iterable[str] = ()
) -> str:
    """Compile to PTX."""
    own = own or {}
    program = nvrtc.createProgram(text, "k.cu", [t.encode() for t in own.values()], [n.encode() for n in own])
    defines = [f"-D{name}={value}" for name, value in macros.items()]
    options = [option for option in headers.nvrtc_options() if option != "-default-device"]
    try:
        for entry in entries:
            nvrtc.addNameExpression(program, entry)
        nvrtc.compileProgram(program, ("--gpu-architecture=compute_89", "--std=c++17", *options, *defines))
        listing = nvrtc.getPTX(program)
    except nvrtc.NVRTCError:
        raise AssertionError(nvrtc.getProgramLog(program)) from None
    finally:
        nvrtc.destroyProgram(program)
    return listing.decode() if isinstance(listing, bytes) else str(listing)


def ptx(text: str, macros: Mapping[str, str] | None = None, own: Mapping[str, str] | None = None) -> str:
    """Compile to PTX; constants that no instruction reads are left out, because NVRTC keeps them all."""
    lines = compiled(text, macros or {}, own).split("\n")
    stored = {line: m.group(1) for line in lines if (m := re.match(r"\.global .*?(\w+)(?:\[\d+\])?(?: = .*)?;$", line))}
    words = re.findall(r"\w+", "\n".join(lines))
    return "\n".join(line for line in lines if line not in stored or words.count(stored[line]) > 1)


def compiler(macros: Mapping[str, str | int], entries: Iterable[str] = ()) -> Compile:
    """NVRTC as `specialize` asks it."""

    def compile_text(text: str) -> str | None:
        try:
            return compiled(text, macros, entries=entries)
        except AssertionError:
            return None

    return compile_text


def special(text: str, macros: Mapping[str, str | int], entries: Iterable[str] = ()) -> str:
    """Specialise with NVRTC."""
    return specialize(text, macros, compiler(macros), entries=entries)


def chosen(loads: str, tile: int, **more: str) -> dict[str, str]:
    return {**VALUES, "LOADS": loads, "TILE": str(tile), **more}


@pytest.mark.thorough
@pytest.mark.parametrize("loads", ["LOADS_SCALAR", "LOADS_VECTOR", "2"])
@pytest.mark.parametrize("tile", [32, 256, 4096])
@pytest.mark.parametrize("more", [{}, {"SCALE": "3"}])
def test_a_specialised_source_is_the_same_program(loads: str, tile: int, more: dict[str, str]) -> None:
    """It needs no -D, and compiles to the same code as the original with its macros."""
    macros = chosen(loads, tile, **more)

    assert ptx(CHOICES, macros) == ptx(special(CHOICES, macros))


@pytest.mark.thorough
@pytest.mark.parametrize("loads", ["LOADS_SCALAR", "LOADS_VECTOR"])
def test_blanks_before_a_directive_leave_no_choice_in(loads: str) -> None:
    """Preprocessor lines may stand behind blanks, tabs and comments: the same choices go, to the same program."""
    macros = chosen(loads, 256)
    plain = special(CHOICES, macros)
    for before in ("    ", "\t", "/* here */ "):
        indented = special(re.sub("^#", before + "#", CHOICES, flags=re.MULTILINE), macros)
        assert plain.replace("\n#", f"\n{before}#") == indented.replace("\n#define", f"\n{before}#define")
        assert ptx(plain) == ptx(indented)


def test_only_the_chosen_path_is_left() -> None:
    """Other branches, their helpers, guards and asserts are gone; comments and the choice's values stay."""
    text = special(CHOICES, chosen("LOADS_SCALAR", 256))

    for gone in (
        "four(",
        "float4",
        "LOADS ==",
        "if constexpr (LOADS",
        "#error",
        "static_assert",
        "UNUSED_CHOICE",
        "DEBUG",
        "__syncthreads",
    ):
        assert gone not in text
    for kept in (
        "// Vector scaling with choices",
        "#define TILE 256",
        "held[0] = one(x + at);",
        "// How x is read.",
        "= value + value;",
    ):
        assert kept in text
    assert "#define LOADS" not in text


@pytest.mark.parametrize(
    "statement",
    [
        "if (FIRST && SECOND) x[1] = 1;",
        "if constexpr (FIRST && SECOND) x[1] = 1;",
        "for (int i = 0; FIRST && SECOND; i++) x[i] = 1;",
        "while (FIRST & SECOND) x[1] = 1;",
    ],
)
def test_a_condition_declares_nothing(statement: str) -> None:
    """`FIRST && SECOND` there is no reference to a FIRST: SECOND stays a constant, whose choices are written out."""
    text = special(
        "constexpr bool FIRST = A == 1;\nconstexpr bool SECOND = A == 2;\n"
        "__global__ void k(int* x) {\n  int kept[SECOND ? 3 : 4];\n"
        f"  {statement}\n  kept[x[2]] = 1;\n  x[0] = kept[x[3]];\n}}\n",
        {"A": "1"},
    )
    assert "int kept[4];" in text


def test_the_kept_branch_moves_out() -> None:
    """A branch loses its braces and its indentation; its comment stays."""
    text = (
        "__global__ void k(int* x) {\n"
        "  if constexpr (A == 1) {  // why\n    x[0] = 1;\n    x[1] = 2;\n  } else {\n    x[2] = 3;\n  }\n}\n"
    )

    assert special(text, {"A": 1}) == "__global__ void k(int* x) {\n  // why\n  x[0] = 1;\n  x[1] = 2;\n}\n"
    assert special(text, {"A": 2}) == "__global__ void k(int* x) {\n  x[2] = 3;\n}\n"


def test_braces_stay_where_a_name_would_clash() -> None:
    """Two kept branches that declare the same name keep their scopes."""
    text = (
        "__global__ void k(int* x) {\n"
        "  if constexpr (A) {\n    int v = 1;\n    x[v] = v;\n  }\n  int v = 2;\n  x[v] = 0;\n}\n"
    )
    result = special(text, {"A": 1})

    assert "  {\n    int v = 1;\n    x[v] = v;\n  }\n" in result
    assert ptx(text, {"A": "1"}) == ptx(result)


def test_what_the_choice_does_not_decide_stays() -> None:
    """A branch that one instantiation takes and another does not, and a plain ``if``, stay."""
    text = (
        "template <int N> __device__ int both() { if constexpr (N == A) return 1; else return 2; }\n"
        "template <int N> __device__ int one() { if constexpr (N == A) return 1; else return 2; }\n"
        "template <int N> __global__ void never(int* x) { if constexpr (N == A) x[0] = 1; }\n"
        "__global__ void k(int* x) {\n  if (A == 4) x[0] = both<4>() + both<8>();\n"
        "  x[1] = one<4>();\n  x[2] = one<4>();\n}\n"
    )
    result = special(text, {"A": 4})

    assert "both() { if constexpr (N == A) return 1; else return 2; }" in result
    assert "one() { return 1; }" in result
    assert "if constexpr (N == A) x[0] = 1;" in result
    assert "if (A == 4) x[0]" in result


def test_a_template_kernel_is_decided_as_it_is_launched() -> None:
    """The compiler instantiates the kernels that it is told of."""
    text = "template <int N> __global__ void k(int* x) {\n  if constexpr (N == 4) x[0] = 1;\n  else x[0] = 2;\n}\n"

    assert specialize(text, {}, compiler({}, ["k<4>"]), entries=["k<4>"]).splitlines()[1] == "  x[0] = 1;"


def test_branches_inside_constexpr_functions_are_decided() -> None:
    """Without braces, with a declaration in the condition, and in a function that only constants call."""
    text = (
        "__host__ __device__ constexpr int f(int x) {\n  if constexpr (constexpr int n = A; n == 1) return x;\n"
        "  else return 2 * x;\n}\n__global__ void k(int* x) { x[f(3)] = f(x[0]); }\n"
    )

    assert "constexpr int f(int x) {\n  return x;\n}" in special(text, {"A": 1})
    assert "constexpr int f(int x) {\n  return 2 * x;\n}" in special(text, {"A": 2})


def test_a_name_that_is_a_variable_somewhere_is_no_constant() -> None:
    """Where a parameter has a constant's name, no value is written in its place."""
    text = (
        "constexpr int N = A * 2;\n__host__ __device__ constexpr int twice(int x) { return 2 * x; }\n"
        "__device__ int f(int N) { return twice(N); }\n"
        "__global__ void k(int* x) { x[0] = f(x[1]) + twice(A) + twice(N); }\n"
    )
    result = special(text, {"A": 3})

    assert "return twice(N);" in result
    assert "f(x[1]) + 6 + twice(N)" in result
    assert ptx(text, {"A": "3"}) == ptx(result)


@pytest.mark.parametrize(("value", "kept"), [(1, "n"), (2, "n + 1"), (3, "n + 2")])
def test_a_chain_of_choices_leaves_one_side(value: int, kept: str) -> None:
    """Of ``A ? b : C ? d : e`` the chosen side stays, and the comment behind it in its column."""
    text = (
        "__global__ void k(int* x, int n) {\n"
        "  const int v = A == 1 ? n : A == 2 ? n + 1 : n + 2;  // why\n  x[0] = v;  // what\n}\n"
    )

    assert f"  const int v = {kept};" in special(text, {"A": value})
    assert ptx(text, {"A": str(value)}) == ptx(special(text, {"A": value}))


def test_a_choice_between_types_stays() -> None:
    """The other side of a ``?`` makes the type, so it stays where the types differ."""
    text = (
        "__global__ void k(float* x, int n) {\n  auto a = A ? n / 2 : 2.f;\n  auto b = A ? n : 3;\n  x[0] = a + b;\n}\n"
    )
    result = special(text, {"A": 1})

    assert "auto a = A ? n / 2 : 2.f;" in result
    assert "auto b = n;" in result
    assert ptx(text, {"A": "1"}) == ptx(result)


@pytest.mark.parametrize(
    ("type_", "value", "literal"),
    [
        ("int", "A - 3", "(-2)"),
        ("bool", "A == 1", "true"),
        ("unsigned", "A - 2", "4294967295u"),
        ("long long", "1ll << 40", "1099511627776ll"),
        ("unsigned long", "0ul - A", "18446744073709551615ul"),
        ("int", "-2147483647 - A", "f()"),
        ("float", "0.5f", "f()"),
        ("short", "A", "f()"),
    ],
)
def test_values_keep_their_type(type_: str, value: str, literal: str) -> None:
    """A call becomes a literal of the same type, and stays where there is no such literal."""
    text = f"__host__ __device__ constexpr {type_} f() {{ return {value}; }}\n"
    result = special(text + f"__global__ void k({type_}* x) {{ x[0] = x[0] * f(); }}\n", {"A": 1})

    assert f"x[0] * {literal};" in result


@pytest.mark.parametrize(
    ("answer", "literal"),
    [
        (ConstantValue(0, "b"), "false"),
        (ConstantValue(-(1 << 63), "x"), None),
        (ConstantValue(-1, "y"), "18446744073709551615ull"),
        (ConstantValue(7, "s"), None),
    ],
)
def test_literals(answer: ConstantValue, literal: str | None) -> None:
    """Each integer type has its suffix; the least integers and the short ones have no literal."""
    assert literal == answer.literal


def test_without_a_compiler_every_choice_stays() -> None:
    """The text is whole then, with the chosen macros in it, and means the same."""
    macros = chosen("LOADS_SCALAR", 256, SCALE="3")
    result = specialize(CHOICES, macros, lambda text: None)

    assert "if constexpr (LOADS == LOADS_VECTOR)" in result and "#error" in result
    assert ptx(CHOICES, macros) == ptx(result)


def test_questions_that_do_not_compile_are_left_out() -> None:
    """Where asking for values breaks the text, the branches are decided all the same."""
    asked: list[str] = []
    macros = chosen("LOADS_SCALAR", 256)

    def refuse_once(text: str) -> str | None:
        asked.append(text)
        return compiler(macros)(text) if len(asked) > 1 else None

    result = specialize(CHOICES, macros, refuse_once)

    assert "if constexpr" not in result and "__launch_bounds__(least(TILE, 128))" in result
    assert ptx(CHOICES, macros) == ptx(result)


def test_a_local_constant_that_nothing_names_goes() -> None:
    """What only the other branch used is gone, inside functions too."""
    body = "  constexpr int n = A * 2;\n  if constexpr (A == 1) x[0] = n;\n  else x[0] = 5;\n"
    text = "__global__ void k(int* x) {\n" + body + "}\n"

    assert special(text, {"A": 2}) == "__global__ void k(int* x) {\n  x[0] = 5;\n}\n"
    assert "constexpr int n = A * 2;" in special(text, {"A": 1})


def test_a_statement_inside_another_stays_one_statement() -> None:
    """Where a branch is the body of a loop or an else, the result is still one statement."""
    text = (
        "__global__ void k(int* x, int n) {\n  for (int i = 0; i < n; ++i)\n    if constexpr (A) x[i] = 1;\n"
        "  if (n) x[0] = 2; else if constexpr (A) { x[1] = 3; }\n}\n"
    )

    assert "for (int i = 0; i < n; ++i)\n    {}" in special(text, {"A": 0})
    assert "else {}" in special(text, {"A": 0})
    assert "else { x[1] = 3; }" in special(text, {"A": 1})


def test_only_the_launched_kernels_are_kept() -> None:
    """Kernels that a choice does not launch go, with what only they use."""
    text = special(CHOICES, chosen("LOADS_SCALAR", 256), entries=["scale"])

    assert "finish" not in text and "STEPS" not in text
    assert "finish" in special(CHOICES, chosen("LOADS_SCALAR", 256))


def test_headers_take_the_place_of_their_includes() -> None:
    """Each header appears once, without its guard; other includes stay."""
    text = '#include <cuda_fp16.h>\n#include "a.h"\n#include "b.h"\nint z;\n'
    own = {"a.h": '#pragma once\n#include "b.h"\nint a;\n', "b.h": "#ifndef B_H\n#define B_H\nint b;\n#endif\n"}

    assert inline_headers(text, own) == "#include <cuda_fp16.h>\n// ---- a.h\n// ---- b.h\nint b;\nint a;\n\nint z;\n"


X, Y, Z = (f"__device__ int {name};\n" for name in "xyz")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"#if A == 1\n{X}#else\n{Y}#endif\n", X),
        (f"#if A == 2\n{X}#elif A\n{Y}#else\n{Z}#endif\n", Y),
        (f"#if A == 2\n{X}#elif U\n{Y}#else\n{Z}#endif\n", Z),
        (f"#ifndef A\n#error no\n#endif\n{X}", X),
        (f"#if defined(A) && !defined(U)\n{X}#endif\n", X),
        (f"#if !A\n#if U\n{X}#else\n{Y}#endif\n#endif\n{Z}", Z),
        (f"#if A\n#if !U\n{X}#else\n{Y}#endif\n{Z}#endif\n", X + Z),
        (f"#define B(n) (A + n)\n#if B(1) == 2\n{X}#endif\n", X),
        (f"#ifdef __CUDACC__\n{X}#else\n{Y}#endif\n", X),
        (f"#if 0\n{X}#endif\n{Y}", Y),
        (f"#if A == 2\n{X}#elif __CUDA_ARCH__\n{Y}#else\n{Z}#endif\n", f"#if __CUDA_ARCH__\n{Y}#else\n{Z}#endif\n"),
    ],
)
def test_conditionals(text: str, expected: str) -> None:
    """The branch that is compiled loses its directives, the others go."""
    assert expected == special(text, {"A": "1"})


@pytest.mark.parametrize(
    "text",
    [
        f"#if __CUDA_ARCH__ >= 900\n{X}#elif A\n{Y}#endif\n",
        f"#if __CUDA_ARCH__ < 900\n#if A\n{X}#endif\n#endif\n",
        f"#if defined(A) && CUDA_VERSION\n{X}#endif\n",
        f"#define B __CUDACC_RTC__\n#if B\n{X}#endif\n",
    ],
)
def test_what_another_compiler_may_decide_otherwise_stays(text: str) -> None:
    """Macros of the compiler's own differ between NVRTC and nvcc, and between its passes."""
    assert text.splitlines() == [
        line for line in special(text, {"A": "1"}).splitlines() if line and "define A" not in line
    ]


def random_candidates(name: str, problem: str, count: int) -> list[render.Rendered]:
    """Programs of random candidates that keep the kernel's own constraints."""
    kernel = load_kernel(KERNELS / name)
    at = kernel.problem(problem)
    generator = random.Random(20)
    found: list[render.Rendered] = []
    while len(found) < count:
        config = kernel.space.draw(generator)
        if all(constraint.evaluate(config, at, chip("l4")).holds for constraint in kernel.constraints):
            found.append(render.render(kernel, config, at))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "problem", "count"),
    [
        ("rmsnorm", "5,264", 1),
        pytest.param("matmul", "144,160,96", 1, marks=pytest.mark.slow),
        ("attention", "1,2,72,64", 1),
        pytest.param("attention", "1,2,72,64", 4, marks=pytest.mark.slow),
    ],
)
def test_kernels_of_the_repository(name: str, problem: str, count: int) -> None:
    """Specialised candidates are shorter, and compile to the same code as the originals."""
    for program in random_candidates(name, problem, count):
        ask = compiler(program.macros, program.entries)
        text = specialize(program.source, program.macros, ask, program.headers, program.entries)
        whole = specialize(program.source, program.macros, ask, program.headers)

        assert ptx(program.source, program.macros, dict(program.headers)) == ptx(whole)
        before = (program.source, *program.headers.values())
        assert len(text.splitlines()) < sum(len(part.splitlines()) for part in before)
        assert text == specialize(text, program.macros, ask, {}, program.entries)


PIECES = st.sampled_from(
    [
        "if constexpr (A) {",
        "if constexpr (A == 1)",
        "} else {",
        "}",
        "{",
        "x = 1;",
        "int v = A ? 2 : 3;",
        "#if A\n",
        "#else\n",
        "#endif\n",
        "#define B A\n",
        "constexpr int C = A + 1;\n",
        "__global__ void k(int* x) {\n",
        "template <int A>\n",
        "struct S {",
        "};",
        "return A;",
        "[&](int i) {",
        "});",
        'static_assert(A == 1, "");',
        "for (int i = 0; i < A; ++i)",
        "else",
        "// note\n",
        "\n",
        " ",
        "(",
        ")",
        "<",
        "case 1:",
        "do",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join), st.randoms(use_true_random=False))
@example("if constexpr (A) {do// note\ndo", random.Random(0))
def test_any_text_can_be_specialised(text: str, answers: random.Random) -> None:
    """No text makes it fail, however its brackets stand and whatever a compiler says of it."""

    def answer(asked: str) -> str:
        numbers = re.findall(r"evokern_tell<(\d+)", asked)
        return "\n".join(f"evokern_answerILi{number}EbLx{answers.randrange(2)}EE" for number in numbers)

    assert isinstance(specialize(text, {"A": 1}, answer), str)
    assert isinstance(specialize(text, {"A": 1}, lambda asked: None), str)


def test_a_header_that_two_branches_include_stands_in_both() -> None:
    """Each branch of an `#if` gets its own include, a third one behind them needs none, and the result is one copy."""
    text = (
        '#if A\n#include "shared.cuh"\n#else\n#include "shared.cuh"\n#endif\n#include "shared.cuh"\n'
        "__global__ void k(int* x) { *x = shared(); }\n"
    )
    headers = {"shared.cuh": "#pragma once\n__device__ int shared() { return A; }\n"}
    for chosen in (0, 1):
        macros = {"A": chosen}
        made = specialize(text, macros, compiler(macros, ("k",)), headers, ("k",))
        assert made.count("int shared()") == 1
        assert "#if" not in made
        assert ptx(text, macros, headers) == ptx(made)


@pytest.mark.parametrize("between", ["", "#else\n", "#elif INLINE == 0\n__noinline__\n"])
def test_a_condition_before_the_first_word_goes_with_its_declaration(between: str) -> None:
    """The `#if` is before the declaration and the `#endif` is in it: both are dropped, or neither."""
    unused = f"#if INLINE == 2\n__forceinline__\n{between}#endif\n__device__ float unused(float x) {{ return x; }}\n"
    text = f"{unused}\n#if A\n#endif\n__global__ void k(float* x) {{ *x = 1; }}\n"
    left = drop_unreferenced(text, ["k"])
    assert "unused" not in left and left.count("#if") == left.count("#endif") == 1
