"""Rounds of loops and sides of branches, as the machine records them."""

from __future__ import annotations

import numpy as np
import pytest
from simt_tools import module_of

from evokern import simt
from evokern.simt.control_flow.paths import Paths, few_rounds

HEAD = 'extern "C" __global__ void kernel(float* y, const float* x, int n, int m) {\n'


def recorded(body: str, n: int = 1, m: int = 1, grid: int = 2, before: str = "") -> Paths:
    """Return the paths of a kernel whose body starts on line 2."""
    memory = simt.Memory()
    buffers = [memory.allocate(name, np.ones(4096, np.float32)) for name in ("y", "x")]
    done = simt.launch(
        module_of(before + HEAD + body + "\n}"),
        simt.LaunchSpec("kernel", (grid, 1, 1), (64, 1, 1)),
        [*buffers, np.int32(n), np.int32(m)],
        memory,
        simt.LaunchOptions(record_paths=True),
    )
    assert done.paths is not None
    return done.paths


def rounds(paths: Paths) -> dict[int, int]:
    return {loop.line: loop.rounds for loop in paths.loops.values()}


STRIDE = "#pragma unroll 1\nfor (int i = blockIdx.x; i < n; i += gridDim.x)\ny[i] = 2 * x[i];"


@pytest.mark.parametrize(("n", "found"), [(0, 0), (2, 1), (3, 2), (5, 3), (6, 3), (90, 3)])
def test_rounds_are_those_of_the_block_with_most(n: int, found: int) -> None:
    """A loop that never runs has no round, one without a back edge has one; after three nothing is counted."""
    assert rounds(recorded(STRIDE, n)) == {3: found}


def test_a_branch_back_from_a_slow_path_is_no_loop() -> None:
    """The compiler puts rare cases of pow behind the loop; they return to its middle."""
    body = (
        "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {\n"
        "y[i] = pow(x[i], y[0]);\ny[i] += pow(1 - x[i], y[0]);\n}"
    )
    assert rounds(recorded(body, 4000)) == {2: 3}


def test_a_loop_counts_anew_when_it_is_entered_again() -> None:
    """Two rounds in each of nine rounds of an outer loop are two, also in a function that is called."""
    inner = "#pragma unroll 1\nfor (int j = 0; j < m; j++)\ny[i * 64 + j] += x[j];"
    body = "#pragma unroll 1\nfor (int i = 0; i < n; i++) {\n" + inner + "\n}"
    assert rounds(recorded(body, 9, 2)) == {3: 3, 5: 2}
    loop = "#pragma unroll 1\nfor (int j = 0; j < m; j++) y[j] += 1;"
    function = f"__device__ __noinline__ void add(float* y, int m) {{\n{loop}\n}}\n"
    called = recorded("for (int i = 0; i < n; i++) add(y + threadIdx.x * 8, m);", 90, 2, before=function)
    assert sorted(rounds(called).values()) == [2, 3]


@pytest.mark.parametrize(
    ("loop", "cause"),
    [
        ("for (int i = threadIdx.x; i < n; i += 64) y[i] = 1;", "launch"),
        ("int i = blockIdx.x; while (true) { if (i >= n) break; y[i] = 1; i += gridDim.x; }", "launch"),
        ("int i = blockIdx.x; do { y[i] = 1; i += gridDim.x; } while (i < n);", "launch"),
        ("for (int i = 0; i < 5; i++) y[i * 64 + threadIdx.x] = x[i];", "constant"),
        ("for (int i = threadIdx.x; i < 1000; i += blockDim.x) y[i] = 1;", "constant"),
        ("for (int i = 0; x[i] < y[i]; i++) y[i + 64] = 1;", "data"),
        ("while (atomicCAS((int*)y, 0, 1) == 0);", "data"),
    ],
)
def test_what_ends_a_loop(loop: str, cause: str) -> None:
    """Arguments and the grid; constants and the block; or values in memory, which no problem decides."""
    (found,) = recorded("#pragma unroll 1\n" + loop, 70).loops.values()
    assert found.cause == cause


def test_two_loops_on_one_line_are_two() -> None:
    inner = "for (int j = 0; j < m; j++) y[i * m + j] += 1;"
    body = f"#pragma unroll 1\nfor (int i = blockIdx.x; i < n; i += gridDim.x) {inner}"
    assert sorted((loop.depth, loop.rounds) for loop in recorded(body, 1, 40).loops.values()) == [(0, 1), (1, 3)]


def test_sides_of_a_branch() -> None:
    """A bounds check that always holds goes one way; a branch over data or over the thread alone is not listed."""
    body = "const int i = blockIdx.x * 64 + threadIdx.x;\nif (i < n) y[i] = x[i];\nif (threadIdx.x < 3) y[i] = 3;"
    whole, tail = recorded(body, 128), recorded(body, 100)
    assert {line: len(sides) for (_, line), sides in whole.branches.items()} == {3: 1}
    assert {line: len(sides) for (_, line), sides in tail.branches.items()} == {3: 2}
    assert whole.merged(tail).branches == tail.branches


def test_launches_are_merged_by_their_most_rounds() -> None:
    one, three = recorded(STRIDE, 2), recorded(STRIDE, 6)
    assert [loop.line for loop in few_rounds(one)] == [3]
    assert few_rounds(one.merged(three)) == few_rounds(three) == []


def test_nothing_is_recorded_unless_asked() -> None:
    memory = simt.Memory()
    buffers = [memory.allocate(name, np.ones(64, np.float32)) for name in ("y", "x")]
    done = simt.launch(
        module_of(HEAD + STRIDE + "}"),
        simt.LaunchSpec("kernel", (1, 1, 1), (64, 1, 1)),
        [*buffers, np.int32(9), np.int32(1)],
        memory,
    )
    assert done.paths is None
