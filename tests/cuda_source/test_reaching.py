"""The slice of a source: which names reach a line, in addresses, in values, and at compile time."""

from __future__ import annotations

import pytest

from evokern.cuda_source.reaching import names_reaching

SOURCE = """
#define WIDTH (TILE * 4)
template <int K> __device__ float twice(float v, int j) {
  return v * SCALE;
}
extern "C" __global__ void __launch_bounds__(THREADS) never(const float* x, float* y, int n) {
  __shared__ float big[WIDTH * 1000];
  for (int k = 0; k < ITEMS; k++) {
    int i = (blockIdx.x * ITEMS + k) * THREADS + threadIdx.x;
    float v = x[i < n ? i : 0];
    for (int j = 0; j < UNROLL; j++) v += 1.f / UNROLL;
    if (i < n) y[i + 10000] = 2 * v;
  }
  x_undefined(3);
#if PATH == 2
  static_assert(A * B == 64, "x");
#endif
  Frag<WIDTH> frag;
  frag.load(x);
  y[0] = twice<GROUP>(x[0], 1);
}
"""
GENES = frozenset({"THREADS", "TILE", "ITEMS", "UNROLL", "A", "B", "PATH", "SCALE", "GROUP"})


def reaching(line: int | None, **how: bool) -> set[str]:
    found = names_reaching(
        {"kernel.cu": SOURCE}, "kernel.cu", line, entries=frozenset({"never"}), fixed=GENES | {"blockIdx"}, **how
    )
    assert found is not None
    return set(found & GENES)


@pytest.mark.parametrize(
    ("line", "how", "genes"),
    [
        (12, {"addresses": True}, {"ITEMS", "THREADS"}),
        (11, {}, set(GENES - {"A", "B", "PATH"})),
        (12, {"compile_time": True}, set()),
        (14, {}, set()),
        (16, {}, {"A", "B", "PATH"}),
        (19, {"compile_time": True}, {"TILE"}),
        (4, {"compile_time": True}, {"SCALE", "GROUP"}),
        (None, {"compile_time": True}, {"TILE"}),
    ],
)
def test_genes_that_reach_a_line(line: int | None, how: dict[str, bool], genes: set[str]) -> None:
    """Conditions, loops, assignments, macros and template arguments count; what a line does not use does not."""
    assert reaching(line, **how) == genes


def test_a_line_outside_the_texts_is_unknown() -> None:
    """A line of another file, and shared memory that nothing declares, have no slice."""
    none = {"entries": frozenset[str](), "fixed": frozenset[str]()}
    assert names_reaching({"kernel.cu": SOURCE}, "other.h", 3, **none) is None
    assert names_reaching({"kernel.cu": "int a;"}, "kernel.cu", None, **none) is None


@pytest.mark.parametrize(
    "source",
    ["", "}", "else x = A;", "#define", "f(", "if (A) { y[0] = 1; } else { y[0] = 2; }", "x = A; } } #endif\n{"],
)
def test_broken_sources_are_accepted(source: str) -> None:
    """Any text has a slice, because a candidate that does not compile has to be explained as well."""
    names_reaching({"k": source}, "k", 1, entries=frozenset(), fixed=frozenset())


def test_an_else_depends_on_its_condition() -> None:
    source = "void f() {\n  if (A) { y[0] = 1; }\n  else {\n    y[1] = 2;\n  }\n  return;\n  y[2] = 3;\n}\n"
    found = names_reaching({"k": source}, "k", 4, entries=frozenset({"f"}), fixed=frozenset({"A"}))
    assert found is not None and "A" in found
