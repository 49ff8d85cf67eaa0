"""A loop whose state repeats is ended early, and only such a loop."""

from __future__ import annotations

import numpy as np
import pytest
from simt_tools import module_of

from evokern import simt
from evokern.simt.sanitizer.hang import REPEATS, HangDetector

LIMIT = 400_000

ENDLESS = {
    "flag": "while (*(volatile int*)flag == 0) {}",
    "lock": "while (atomicCAS(flag + 1, 1, 0) != 0) {}",
    "rewrites": "volatile int* mine = out + threadIdx.x; while (*mine != 3) *mine = 0;",
    "counts and starts over": "for (unsigned i = 0; *(volatile int*)flag == 0; i = (i + 1) % 5) out[i] = i;",
    "half of a warp": "if (threadIdx.x % 32 < 16) while (*(volatile int*)flag == 0) {}\n__syncwarp();",
    "a warp waits at the barrier": "if (threadIdx.x < 32) while (*(volatile int*)flag == 0) {}\n__syncthreads();",
}
FINITE = {
    "register": "int n = 0; while (n < 2500) { n += *(volatile int*)one; } out[threadIdx.x] = n;",
    "global memory": (
        "for (;;) { const int n = *(volatile int*)out; __syncthreads(); if (n >= 700) break;"
        " if (threadIdx.x == 0) *out = n + 1; __syncthreads(); }"
    ),
    "the last lane": (
        "for (int n = 0; !__syncthreads_or(n >= 500); n += threadIdx.x == 63 ? *(volatile int*)one : 0) {}"
    ),
    "shared memory": (
        "__shared__ volatile int n[64]; n[threadIdx.x] = 0; while (n[threadIdx.x] < 1500) n[threadIdx.x] += 1;"
    ),
    "local memory": ("volatile int n[2]; n[0] = 0; while (n[0] < 1500) n[0] = n[0] + 1; out[threadIdx.x] = n[*one];"),
    "an atomic": "while (atomicAdd(out, 1) < 64 * 1500) {}",
    "the clock": "long long began = clock64(); while (clock64() - began < 250000) {}",
    "one lane among others": "int n = 0; if (threadIdx.x == 5) while (n < 2000) { n += *(volatile int*)one; }",
}


def _run(body: str, limit: int = LIMIT) -> simt.LaunchResult:
    source = f'extern "C" __global__ void kernel(int* out, int* flag, const int* one) {{\n{body}\n}}'
    memory = simt.Memory()
    data = {"out": np.zeros(64, np.int32), "flag": np.array([0, 5], np.int32), "one": np.ones(1, np.int32)}
    buffers = [memory.allocate(name, array) for name, array in data.items()]
    return simt.launch(
        module_of(source),
        simt.LaunchSpec("kernel", (1, 1, 1), (64, 1, 1)),
        buffers,
        memory,
        simt.LaunchOptions(source=source, instruction_limit=limit),
    )


@pytest.fixture
def issued(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Issued instructions of each launch that was ended."""
    counts: list[int] = []
    stop = HangDetector.stop_hung

    def noted(self: HangDetector, *args: object, **options: object) -> None:
        counts.append(self.schedule.issued)
        stop(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(HangDetector, "stop_hung", noted)
    return counts


@pytest.mark.parametrize("name", ENDLESS)
def test_a_loop_that_never_ends_is_ended_early(name: str, issued: list[int]) -> None:
    """A state that comes back ends the launch within a sixth of the limit, and the finding says why."""
    result = _run(ENDLESS[name])
    finding = result.fatal
    assert finding is not None
    assert ("instruction_limit", True, 2) == (finding.kind, result.hung, finding.line)
    assert finding.hint.startswith(f"{REPEATS}. ")
    assert 1 == len(issued)
    assert LIMIT // 64 < issued[0] < LIMIT // 6


@pytest.mark.thorough
@pytest.mark.parametrize("name", FINITE)
def test_a_long_loop_runs_to_its_end(name: str) -> None:
    """What changes a register, any memory or only the clock is not taken for endless."""
    result = _run(FINITE[name])
    assert (True, None) == (result.completed, result.fatal)
    short = _run(FINITE[name], LIMIT // 4)
    assert (short.over_limit, short.hung) == (True, False), "the loop is too short to be watched"


def test_a_warp_that_polls_waits_for_the_other_ones_turn() -> None:
    """While another warp waits for its turn, a poll that looks the same again and again is not endless."""
    body = "if (threadIdx.x < 32) while (*(volatile int*)flag == 0) {} else *(volatile int*)flag = 1;"
    result = _run(body, 16_000)
    assert (True, None) == (result.completed, result.fatal)
    short = _run(body, 8_000)
    assert (short.over_limit, short.hung) == (True, False), "the poll is too short to be watched"


def test_a_loop_that_goes_on_counts_to_the_limit(issued: list[int]) -> None:
    """A loop whose state never repeats is stopped at the limit, and nothing claims that it never ends."""
    result = _run("unsigned long long n = 0; while (n + 1 != 0) n += *(volatile int*)one;")
    assert result.fatal is not None
    assert f"within {LIMIT:,} warp instructions" in result.fatal.hint
    assert (result.fatal.kind, result.fatal.matters) == ("unfinished", False)
    assert (result.hung, result.over_limit, result.completed) == (False, True, False)
    assert issued[0] > LIMIT


def test_another_block_may_end_the_loop() -> None:
    """Where blocks of the launch are not in the batch, the finding does not claim more than it knows."""
    source = 'extern "C" __global__ void kernel(int* flag) {\nwhile (*(volatile int*)flag == 0) {}\n}'
    memory = simt.Memory()
    flag = memory.allocate("flag", np.zeros(1, np.int32))
    result = simt.launch(
        module_of(source),
        simt.LaunchSpec("kernel", (3, 1, 1), (32, 1, 1), blocks=[1]),
        [flag],
        memory,
        simt.LaunchOptions(instruction_limit=LIMIT),
    )
    assert result.fatal is not None
    assert f"{REPEATS}, unless a block outside this batch ends it. " in result.fatal.hint
    assert (result.hung, result.over_limit) == (False, True)


def _flags(body: str, blocks: int, threads: int = 1024) -> simt.LaunchResult:
    """Run a grid that needs several batches."""
    source = f'extern "C" __global__ void kernel(volatile int* flag, int* out) {{\n{body}\n}}'
    memory = simt.Memory()
    flag = memory.allocate("flag", np.zeros(blocks, np.int32))
    out = memory.allocate("out", np.zeros(blocks, np.int32))
    return simt.launch(
        module_of(source),
        simt.LaunchSpec("kernel", (blocks, 1, 1), (threads, 1, 1)),
        [flag, out],
        memory,
        simt.LaunchOptions(source=source, instruction_limit=20 * LIMIT),
    )


def test_a_block_that_waits_for_a_later_batch_ends() -> None:
    """Blocks that wait for later blocks run together, so their wait ends as on a GPU."""
    result = _flags(
        "if (threadIdx.x == 0) { if (blockIdx.x == gridDim.x - 1) *flag = 1; else while (*flag == 0) {} }"
        " if (threadIdx.x == 0) out[blockIdx.x] = 1;", 9
    )  # fmt: skip
    assert (result.completed, result.hung) == (True, False)


def test_a_flag_that_no_block_sets_is_proven_over_all_batches() -> None:
    """A grid of several batches that waits for nothing is endless."""
    result = _flags("if (threadIdx.x == 0) while (*flag == 0) {}", 9)
    assert (result.hung, result.over_limit) == (True, False)


def test_a_loop_that_reads_nothing_needs_no_other_block() -> None:
    """No block can end a loop that reads no memory, so one batch proves that it never ends."""
    result = _flags("if (threadIdx.x == 0) for (;;) { __nanosleep(0); }", 40, 512)
    assert (result.hung, result.over_limit) == (True, False)


def test_a_launch_may_end_at_the_first_fatal_finding() -> None:
    """Reads outside are left out and counted, or the first one ends the launch before anything is written."""
    source = (
        'extern "C" __global__ void k(const float* x, float* y) {'
        " float sum = 0; for (int i = 0; i < 64; i++) sum += x[i * 1024 + threadIdx.x]; y[threadIdx.x] = sum; }"
    )
    for until_fatal, lanes in ((False, 63 * 32), (True, 32)):
        memory = simt.Memory()
        x = memory.allocate("x", np.ones(32, np.float32))
        y = memory.allocate("y", np.full(32, 7, np.float32))
        result = simt.launch(
            module_of(source),
            simt.LaunchSpec("k", (1, 1, 1), (32, 1, 1)),
            [x, y],
            memory,
            simt.LaunchOptions(until_fatal=until_fatal),
        )
        assert not result.completed and result.fatal is not None
        assert (result.fatal.kind, result.fatal.count, result.hung) == ("out_of_bounds", lanes, False)
        assert bool(y.read().view(np.float32)[0] == 7) == until_fatal
