"""Launch bounds that a source states, known before the compile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paths import DATA

from evokern.declaration.feasibility import check
from evokern.declaration.foreign import ForeignCandidate, ForeignSource, LaunchGeometry
from evokern.declaration.launch_bounds import thread_bound
from evokern.hardware.profiles import chip
from evokern.study.discovery import load_kernel

KERNEL = replace(load_kernel(DATA / "kernels" / "bounded"), macros=lambda c, p: {"EXTRA": 96})
PROBLEM = KERNEL.problem("4096")
K = " bounded(const float* x, float* y, int n) {}"
KNOWN = {
    "literal": ("", "__global__ void __launch_bounds__(256)", 256),
    "several arguments": ("", "__global__ __launch_bounds__(0x100u, 2) void", 256),
    "before the kernel": ("", "__launch_bounds__(64) __global__ void", 64),
    "linkage": ("extern \"C\" {\n", "__global__ void __launch_bounds__(64)", 64),
    "gene": ("", "__global__ void __launch_bounds__(THREADS * 2)", 256),
    "macro of the kernel": ("", "__global__ void __launch_bounds__(EXTRA)", 96),
    "macro": ("#define W 3\n#define N (W * \\\n32)\n", "__global__ void __launch_bounds__(N)", 96),
    "default": ("#ifndef Q\n#define Q 32\n#endif\n", "__global__ void __launch_bounds__(Q)", 32),
    "gene over default": (
        "#ifndef THREADS\n#define THREADS 7\n#endif\n", "__global__ void __launch_bounds__(THREADS)", 128
    ),
    "constant": (
        "namespace a { constexpr int W = 4; }\nstatic const unsigned N{W << 5};\n",
        "__global__ void __launch_bounds__(N)", 128,
    ),
    "attribute in a macro": ("#define PROMISE __launch_bounds__(32)\n", "__global__ void PROMISE", 32),
    "clusters too": ("", "__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(96)", 96),
}  # fmt: skip
UNKNOWN = {
    "no bound": ("", "__global__ void"),
    "a comment": ("// __launch_bounds__(4)\n", "__global__ void /* __launch_bounds__(3) */"),
    "another kernel": ("__global__ void __launch_bounds__(4) other() {}\n", "__global__ void"),
    "kernel under a condition": ("#if THREADS > 0\n", "__global__ void __launch_bounds__(4)"),
    "bound under a condition": ("", "__global__ void\n#if THREADS > 0\n__launch_bounds__(4)\n#endif\n"),
    "macro under a condition": (
        "#if Q\n#define N 1\n#else\n#define N 2\n#endif\n", "__global__ void __launch_bounds__(N)"
    ),
    "redefined gene": ("#define THREADS 512\n", "__global__ void __launch_bounds__(THREADS)"),
    "function": ("constexpr int f() { return 3; }\n", "__global__ void __launch_bounds__(f())"),
    "local constant": ("__device__ void f() { constexpr int N = 5; }\n", "__global__ void __launch_bounds__(N)"),
    "member": ("struct S { static constexpr int N = 5; };\n", "__global__ void __launch_bounds__(N)"),
    "division by zero": ("", "__global__ void __launch_bounds__(3 / 0)"),
    "redefined attribute": ("#define __launch_bounds__(n)\n", "__global__ void __launch_bounds__(4)"),
}  # fmt: skip


def _candidate(text: str, threads: int = 128) -> ForeignCandidate:
    config = {"THREADS": threads, "BOUND": 0}
    return ForeignCandidate(config, ForeignSource("x.cu", text), LaunchGeometry())


@pytest.mark.parametrize("name", KNOWN)
def test_a_bound_that_the_text_determines_is_known(name: str) -> None:
    """Literals, genes, macros and constants of the file are evaluated."""
    before, head, bound = KNOWN[name]
    assert thread_bound(KERNEL, _candidate(before + head + K), PROBLEM, "bounded") == bound


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_bound_that_the_text_leaves_open_is_not_guessed(name: str) -> None:
    """A bound that only the compiler knows never makes a candidate infeasible."""
    before, head = UNKNOWN[name]
    assert thread_bound(KERNEL, _candidate(before + head + K), PROBLEM, "bounded") is None


@pytest.mark.parametrize(
    ("entry", "template", "bound"),
    [
        ("n::bounded<float, 64>", "template <class F, int T, int W = 2> __global__ void __launch_bounds__(T * W)", 128),
        ("bounded<Shape<3, 4>, 96>", "template <class S, int T> __global__ void __launch_bounds__(T)", 96),
        ("bounded<THREADS>", "template <int T> __global__ void __launch_bounds__(T)", 128),
        ("bounded<Shape<3, 4>>", "template <class S> __global__ void __launch_bounds__(S::threads)", None),
    ],
)  # fmt: skip
def test_template_arguments_are_those_of_the_entry(entry: str, template: str, bound: int | None) -> None:
    """A bound in terms of template parameters depends on the launched instance."""
    assert thread_bound(KERNEL, _candidate(template + K), PROBLEM, entry) == bound


def test_a_specialisation_has_its_own_bound() -> None:
    """With several definitions of one name, nothing is known."""
    text = "template <int T> __global__ void __launch_bounds__(T)" + K + "template <> __global__ void bounded<64>() {}"
    assert thread_bound(KERNEL, _candidate(text), PROBLEM, "bounded<64>") is None


def test_a_larger_block_is_infeasible_before_the_compile() -> None:
    """The violation names both numbers; a block at the bound is feasible."""
    text = "__global__ void __launch_bounds__(256)" + K
    violation = check(KERNEL, _candidate(text, 512), [PROBLEM], chip("l4"))
    assert violation is not None
    assert (violation.constraint, violation.needed, violation.available) == ("launch_bounds", 512, 256)
    assert "allow blocks of at most 256 threads, not 512" in violation.reason
    assert check(KERNEL, _candidate(text, 256), [PROBLEM], chip("l4")) is None
