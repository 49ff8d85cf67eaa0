"""One candidate's source out of the source of all choices."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paths import DATA, KERNELS

from evokern import render
from evokern.compile import headers
from evokern.cuda_source import specialise
from evokern.cuda_source.conditionals import inline_headers, resolve_conditionals
from evokern.cuda_source.constant import Integer, UndecidableError, evaluate, parse_expression
from evokern.discovery import load_kernel

nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")

CHOICES = (DATA / "cuda_files" / "choices.cu").read_text()
VALUES = {"LOADS_SCALAR": "0", "LOADS_VECTOR": "1"}


def ptx(text: str, macros: dict[str, str] | None = None, own: dict[str, str] | None = None) -> str:
    """Compile to PTX; constants that no instruction reads are left out, because NVRTC keeps them all."""
    own = own or {}
    program = nvrtc.createProgram(text, "k.cu", [t.encode() for t in own.values()], [n.encode() for n in own])
    defines = [f"-D{name}={value}" for name, value in (macros or {}).items()]
    options = [option for option in headers.nvrtc_options() if option != "-default-device"]
    try:
        nvrtc.compileProgram(program, ("--gpu-architecture=compute_89", "--std=c++17", *options, *defines))
        listing = nvrtc.getPTX(program)
    except nvrtc.NVRTCError:
        raise AssertionError(nvrtc.getProgramLog(program)) from None
    finally:
        nvrtc.destroyProgram(program)
    lines = (listing.decode() if isinstance(listing, bytes) else listing).split("\n")
    stored = {line: m.group(1) for line in lines if (m := re.match(r"\.global .*?(\w+)(?:\[\d+\])?(?: = .*)?;$", line))}
    words = re.findall(r"\w+", "\n".join(lines))
    return "\n".join(line for line in lines if line not in stored or words.count(stored[line]) > 1)


def chosen(loads: str, tile: int, **more: str) -> dict[str, str]:
    return {**VALUES, "LOADS": loads, "TILE": str(tile), **more}


@pytest.mark.thorough
@pytest.mark.parametrize("loads", ["LOADS_SCALAR", "LOADS_VECTOR", "2"])
@pytest.mark.parametrize("tile", [32, 256, 4096])
@pytest.mark.parametrize("more", [{}, {"SCALE": "3"}])
def test_a_specialised_source_is_the_same_program(loads: str, tile: int, more: dict[str, str]) -> None:
    """It needs no -D, and compiles to the same code as the original with its macros."""
    macros = chosen(loads, tile, **more)

    assert ptx(CHOICES, macros) == ptx(specialise(CHOICES, macros))


def test_only_the_chosen_path_is_left() -> None:
    """Other branches, their helpers, guards and asserts are gone; comments and the choice's values stay."""
    text = specialise(CHOICES, chosen("LOADS_SCALAR", 256), closed=True)

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


def test_the_kept_branch_moves_out() -> None:
    """A branch loses its braces and its indentation; its comment stays."""
    text = (
        "__global__ void k(int* x) {\n"
        "  if constexpr (A == 1) {  // why\n    x[0] = 1;\n    x[1] = 2;\n  } else {\n    x[2] = 3;\n  }\n}\n"
    )

    assert specialise(text, {"A": 1}) == "__global__ void k(int* x) {\n  // why\n  x[0] = 1;\n  x[1] = 2;\n}\n"
    assert specialise(text, {"A": 2}) == "__global__ void k(int* x) {\n  x[2] = 3;\n}\n"


def test_braces_stay_where_a_name_would_clash() -> None:
    """Two kept branches that declare the same name keep their scopes."""
    text = (
        "__global__ void k(int* x) {\n"
        "  if constexpr (A) {\n    int v = 1;\n    x[v] = v;\n  }\n  int v = 2;\n  x[v] = 0;\n}\n"
    )
    result = specialise(text, {"A": 1})

    assert "  {\n    int v = 1;\n    x[v] = v;\n  }\n" in result
    assert ptx(text, {"A": "1"}) == ptx(result)


def test_what_the_choice_does_not_decide_stays() -> None:
    """Template parameters, shadowed names and unknown macros leave code as it is."""
    text = (
        "constexpr int N = 4;\n"
        "template <int N> __device__ int f() { if constexpr (N == 4) return 1; else return 2; }\n"
        "__global__ void k(int* x, bool A) {\n  if (A) x[0] = f<8>();\n"
        "  if constexpr (sizeof(x[0]) == B) x[1] = 1;\n}\n"
    )
    result = specialise(text, {"C": 1})

    assert "if constexpr (N == 4) return 1; else return 2;" in result
    assert "if (A) x[0]" in result
    assert "if constexpr (sizeof(x[0]) == B)" in result


def test_a_local_constant_that_nothing_names_goes() -> None:
    """What only the other branch used is gone, inside functions too."""
    body = "  constexpr int n = A * 2;\n  if constexpr (A == 1) x[0] = n;\n  else x[0] = 5;\n"
    text = "__global__ void k(int* x) {\n" + body + "}\n"

    assert specialise(text, {"A": 2}) == "__global__ void k(int* x) {\n  x[0] = 5;\n}\n"
    assert "constexpr int n = A * 2;" in specialise(text, {"A": 1})


def test_a_statement_inside_another_stays_one_statement() -> None:
    """Where a branch is the body of a loop or an else, the result is still one statement."""
    text = (
        "__global__ void k(int* x, int n) {\n  for (int i = 0; i < n; ++i)\n    if constexpr (A) x[i] = 1;\n"
        "  if (n) x[0] = 2; else if constexpr (A) { x[1] = 3; }\n}\n"
    )

    assert "for (int i = 0; i < n; ++i)\n    {}" in specialise(text, {"A": 0})
    assert "else {}" in specialise(text, {"A": 0})
    assert "else { x[1] = 3; }" in specialise(text, {"A": 1})


def test_only_the_launched_kernels_are_kept() -> None:
    """Kernels that a choice does not launch go, with what only they use."""
    text = specialise(CHOICES, chosen("LOADS_SCALAR", 256), entries=["scale"])

    assert "finish" not in text and "STEPS" not in text
    assert "finish" in specialise(CHOICES, chosen("LOADS_SCALAR", 256))


def test_headers_take_the_place_of_their_includes() -> None:
    """Each header appears once, without its guard; other includes stay."""
    text = '#include <cuda_fp16.h>\n#include "a.h"\n#include "b.h"\nint z;\n'
    own = {"a.h": '#pragma once\n#include "b.h"\nint a;\n', "b.h": "#ifndef B_H\n#define B_H\nint b;\n#endif\n"}

    assert inline_headers(text, own) == "#include <cuda_fp16.h>\n// ---- a.h\n// ---- b.h\nint b;\nint a;\n\nint z;\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#if A == 1\nx\n#else\ny\n#endif\n", "x\n"),
        ("#if A == 2\nx\n#elif U\ny\n#else\nz\n#endif\n", "#if U\ny\n#else\nz\n#endif\n"),
        ("#if U\nx\n#elif A\ny\n#else\nz\n#endif\n", "#if U\nx\n#else\ny\n#endif\n"),
        ("#ifndef A\n#error no\n#endif\nx\n", "x\n"),
        ("#if defined(A) && !defined(U)\nx\n#endif\n", "#if defined(A) && !defined(U)\nx\n#endif\n"),
        ("#if defined(A) || defined(U)\nx\n#endif\n", "x\n"),
        ("#if U\n#if A\nx\n#endif\n#endif\n", "#if U\nx\n#endif\n"),
        ("#if !A\n#if U\nx\n#else\ny\n#endif\n#endif\nz\n", "z\n"),
        ("#define B (A + 1)\n#if B == 2\nx\n#endif\n", "#define B (A + 1)\nx\n"),
        ("#if U\n#define B 1\n#endif\n#if B\nx\n#endif\n", "#if U\n#define B 1\n#endif\n#if B\nx\n#endif\n"),
        ("#ifdef __CUDACC__\nx\n#else\ny\n#endif\n", "x\n"),
    ],
)
def test_conditionals(text: str, expected: str) -> None:
    """Decided branches lose their directives, undecided ones keep them, and no name is guessed."""
    assert expected == resolve_conditionals(text, {"A": "1"})


def test_a_closed_text_has_no_other_macros() -> None:
    """Where the macros are all there is, an unknown name is undefined; the compiler's own stay open."""
    assert resolve_conditionals("#ifdef DEBUG\nx\n#endif\n#if U > 1\ny\n#endif\nz\n", {}, closed=True) == "z\n"
    assert "__CUDA_ARCH__" in resolve_conditionals("#if __CUDA_ARCH__ >= 900\nx\n#endif\n", {}, closed=True)


NUMBERS = st.integers(0, 60).map(str)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "&", "|", "^", "==", "!=", "<", ">", "<=", ">="]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(st.sampled_from(["-", "~"]), inner).map(lambda t: f"({t[0]}({t[1]}))"),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_constant_expressions_agree_with_python(expression: str) -> None:
    """Without division, overflow and mixed widths, C++ and Python integers are the same."""
    expected = int(eval(expression))  # an expression of numbers, made above
    if -(1 << 20) < expected < 1 << 20 and "~" not in expression:
        assert expected == value_of(expression).value


def value_of(expression: str) -> Integer:
    def unknown(name: str) -> Integer:
        raise UndecidableError(name)

    def no_call(name: str, arguments: object) -> Integer:
        raise UndecidableError(name)

    value = evaluate(parse_expression(expression), unknown, no_call)
    assert isinstance(value, Integer)
    return value


@pytest.mark.parametrize(
    ("expression", "literal"),
    [
        ("-7 / 2", "-3"),
        ("-7 % 2", "-1"),
        ("1 ? 2 : 3u", "2u"),
        ("-1 < 0u", "false"),
        ("0xffffffff + 1", "0u"),
        ("1 << 31 >> 31 == 0 || true", "true"),
        ("unsigned(-1) / 2", "2147483647u"),
        ("(long long)1 << 40", "1099511627776ll"),
        ("static_cast<bool>(5)", "true"),
        ("1'000 * 2", "2000"),
        ("0 && nobody_knows", "false"),
        ("nobody_knows || 1", "true"),
        ("sizeof(float4) == 16", "true"),
        ("!3 + ~0", "-1"),
        ("010 + 0b11", "11"),
    ],
)
def test_constant_expressions_follow_the_standard(expression: str, literal: str) -> None:
    """Division rounds to zero, unsigned wraps and wins, && and || need one side only."""
    assert literal == value_of(expression).literal


@pytest.mark.parametrize(
    "expression", ["1 / 0", "2147483647 + 1", "1 << 40", "x", "f(1)", "1.5", "a<4>", "1 +", "x ? 1 : 2", ""]
)
def test_what_is_not_certain_has_no_value(expression: str) -> None:
    """Undefined behaviour, unknown names and anything but integers are left alone."""
    with pytest.raises(UndecidableError):
        value_of(expression)


def random_candidates(name: str, problem: str, count: int) -> list[render.Rendered]:
    """Programs of random candidates that keep the kernel's own constraints."""
    kernel = load_kernel(KERNELS / name)
    at = kernel.problem(problem)
    generator = random.Random(20)
    found: list[render.Rendered] = []
    while len(found) < count:
        config = kernel.space.draw(generator)
        if all(constraint.evaluate(config, at, None).holds for constraint in kernel.constraints):
            found.append(render.render(kernel, config, at))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "problem"), [("rmsnorm", "5,264"), ("matmul", "144,160,96"), ("attention", "1,2,72,64")]
)
def test_kernels_of_the_repository(name: str, problem: str) -> None:
    """Specialised candidates are shorter, and compile to the same code as the originals."""
    for program in random_candidates(name, problem, 2):
        text = specialise(program.source, program.macros, program.headers, program.entries, closed=True)
        whole = specialise(program.source, program.macros, program.headers, closed=True)

        assert ptx(program.source, program.macros, dict(program.headers)) == ptx(whole)
        before = (program.source, *program.headers.values())
        assert len(text.splitlines()) < sum(len(part.splitlines()) for part in before)
        assert text == specialise(text, program.macros, {}, program.entries, closed=True)


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
@given(st.lists(PIECES, max_size=14).map("".join))
@example("if constexpr (A) {do// note\ndo")
def test_any_text_can_be_specialised(text: str) -> None:
    """No text makes it fail, however its brackets stand."""
    assert isinstance(specialise(text, {"A": 1}), str)
