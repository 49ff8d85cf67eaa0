"""Choices in `launches` become formulas of the exported launcher: min, max, conditions, lookups, rounding up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Parameter
from evokern.declaration.kernel import Kernel, Launch, ProblemField, Tensor, Tolerance, Workload, i32
from evokern.export.formula import evaluate, member
from evokern.export.launcher import number, shape_checks
from evokern.export.trace import trace
from evokern.export.traced import Traced
from evokern.hardware.profiles import CHIPS


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def blocks(c: Any, p: Any) -> int:
    return ceil_div(p.N, c.BLOCK)


GRIDS: Mapping[str, Callable[[Any, Any], Any]] = {
    "min": lambda c, p: min(blocks(c, p), 65535),
    "max": lambda c, p: max(1, p.N // c.BLOCK),
    "both": lambda c, p: max(2, min(blocks(c, p), 1024)),
    "condition": lambda c, p: 132 if p.N > 100_000 else blocks(c, p),
    "two conditions": lambda c, p: 8 if p.N % 2 else 132 if p.N > 100_000 else blocks(c, p),
    "math.ceil": lambda c, p: min(math.ceil(p.N / c.BLOCK), 65535),
    "rounding up with a mask": lambda c, p: ((p.N + 127) & ~127) // 128,
    "bit length": lambda c, p: min(1024, max(32, 1 << (p.N - 1).bit_length())),
    "table": lambda c, p: {0: 3, 1: 5}.get(p.N % 4, 7),
    "two axes": lambda c, p: (min(blocks(c, p), 65535), ceil_div(blocks(c, p), 65535)),
}


def kernel_of(grid: Callable[[Any, Any], Any]) -> Kernel:
    return Kernel(
        name="choices",
        genes=(Parameter("BLOCK", (64, 128), default=128),),
        fields=(ProblemField("N"),),
        launches=lambda c, p: [Launch("k", grid(c, p), c.BLOCK, ("x", "y", i32(p.N)))],
        workload=Workload(
            tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), role="output")},
            reference=lambda p, t: {"y": t["x"]},
            tolerance={"y": Tolerance(1e-3, 1e-3)},
            flops=lambda p: p.N,
            bytes=lambda p: p.N,
        ),
    )


@pytest.mark.parametrize("name", GRIDS)
def test_the_launcher_computes_choices(name: str) -> None:
    """Every shape of the kernel is accepted, with the launches of `kernel.py`."""
    kernel = kernel_of(GRIDS[name])
    traces = trace(kernel, kernel.space.default(), kernel.problem("4096"), CHIPS["l4"])
    for n in (1, 2, 3, 5, 127, 128, 129, 4096, 100_000, 100_001, 65535 * 128, 65535 * 128 + 1, 1 << 30, (1 << 31) - 1):
        assert all(guard.holds({"N": n}) for guard in traces.guards), n
        own = [e for launch in launches_of(kernel, kernel.space.default(), kernel.problem(str(n))) for e in launch.grid]
        found = [
            evaluate(e.formula, {"N": n}) if isinstance(e, Traced) else e
            for launch in traces.launches
            for e in launch.grid
        ]
        assert own == found, n


def test_a_cap_reads_as_one() -> None:
    """`min(blocks, 65535)` is a `std::min` in C++, and no limit of the chip is blamed."""
    kernel = kernel_of(GRIDS["min"])
    traces = trace(kernel, kernel.space.default(), kernel.problem("4096"), CHIPS["l4"])
    assert number(traces.launches[0].grid[0]) == "std::min<long long>(65535, ceil_div(shape.n, 128))"
    assert shape_checks(kernel, kernel.problem("4096"), traces).count("return") == 1  # the range of N


def test_launches_that_differ_in_more_than_numbers_are_refused() -> None:
    """A second launch for large shapes is not in the program; the reason names the condition."""
    kernel = kernel_of(lambda c, p: 4)
    one = kernel.launches

    def launches(c: Any, p: Any) -> list[Launch]:
        return [*one(c, p), *(one(c, p) if p.N > 5000 else ())]

    kernel = replace(kernel, launches=launches)
    traces = trace(kernel, kernel.space.default(), kernel.problem("4096"), CHIPS["l4"])
    text = shape_checks(kernel, kernel.problem("4096"), traces)
    assert "n <= 5000 must hold: the launch was derived for this value" in text


def test_fields_that_are_words_of_cpp_have_names_of_their_own() -> None:
    """The member of `Shape` is the field in lower case, unless the program needs that word."""
    assert [member(name) for name in ("N", "DEFAULT", "shape", "linux")] == ["n", "default_", "shape_", "linux_"]
