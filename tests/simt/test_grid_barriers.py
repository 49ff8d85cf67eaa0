"""Launches whose blocks wait for each other: cooperative ones, and barriers that a kernel makes itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from simt_tools import module_of

from evokern import simt
from evokern.errors import GridTooLargeError, UsageError

GRID = "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
OWN = """
__device__ unsigned arrived; __device__ volatile unsigned turn;
__device__ void meet() {
  __threadfence(); __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned now = turn;
    if (atomicAdd(&arrived, 1u) == gridDim.x - 1) { arrived = 0; __threadfence(); turn = now + 1; }
    else while (turn == now) {}
    __threadfence();
  }
  __syncthreads();
}
"""
KINDS = {"cooperative": (GRID, "cg::this_grid().sync()"), "own": (OWN, "meet()")}
ROUNDS = """
for (int r = 0; r < 3; r++) {
  if (threadIdx.x == 0) (r % 2 ? b : a)[blockIdx.x] = 1 + (r % 2 ? a : b)[(blockIdx.x + 1) % gridDim.x];
  BARRIER;
}
"""


def _ran(
    start: str,
    body: str,
    blocks: int,
    threads: int = 256,
    *,
    sanitize: bool = True,
    some: Sequence[int] | None = None,
    limit: int = 20_000_000,
) -> tuple[simt.LaunchResult, list[int], simt.Module]:
    module = module_of(start + f'extern "C" __global__ void k(int* a, int* b) {{\n{body}\n}}')
    memory = simt.Memory()
    a, b = (memory.allocate(name, np.zeros(blocks, np.int32)) for name in "ab")
    result = simt.launch(
        module,
        simt.LaunchSpec("k", (blocks, 1, 1), (threads, 1, 1), blocks=some),
        [a, b],
        memory,
        simt.LaunchOptions(sanitize=sanitize, instruction_limit=limit),
    )
    return result, a.read().view(np.int32).tolist(), module


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sanitize", [True, False])
def test_blocks_of_several_batches_meet(kind: str, sanitize: bool) -> None:
    """A grid of more than one batch runs to its end, with right results and no finding."""
    start, barrier = KINDS[kind]
    result, a, module = _ran(start, ROUNDS.replace("BARRIER", barrier), 40, sanitize=sanitize)
    assert (result.completed, result.findings, a) == (True, (), [3] * 40)
    assert module.needs_whole_grid("k")


@pytest.mark.parametrize("kind", KINDS)
def test_accesses_on_the_same_side_of_a_barrier_race(kind: str) -> None:
    """The barrier orders what is before it and after it, nothing else."""
    start, barrier = KINDS[kind]
    body = f"a[blockIdx.x] = 1; {barrier}; if (threadIdx.x == 0) b[blockIdx.x] = a[(blockIdx.x + 1) % gridDim.x];"
    assert _ran(start, body, 40)[0].findings == ()
    found = _ran(start, body + " if (threadIdx.x == 0) a[blockIdx.x] = 9;", 40)[0].errors
    assert {finding.kind for finding in found} == {"global_race"}
    without = body.replace(f"{barrier};", f"if (gridDim.x == 1) {barrier};")
    assert {finding.kind for finding in _ran(start, without, 40)[0].errors} == {"global_race"}


def test_a_cooperative_launch_runs_all_blocks() -> None:
    """Some blocks of a cooperative grid cannot run alone."""
    start, barrier = KINDS["cooperative"]
    result, a, _ = _ran(start, ROUNDS.replace("BARRIER", barrier), 40, some=[3])
    assert (result.completed, a) == (True, [3] * 40)


@pytest.mark.parametrize(("fence", "kinds"), [("__threadfence", set()), ("__threadfence_block", {"global_race"})])
def test_a_fence_orders_other_blocks_only_in_the_scope_of_the_gpu(fence: str, kinds: set[str]) -> None:
    """The last block reads what the others wrote; a fence for their own block does not publish it."""
    body = f"""
      __shared__ bool last;
      a[blockIdx.x] = blockIdx.x;
      {fence}();
      if (threadIdx.x == 0) last = atomicAdd(&done, 1u) == gridDim.x - 1;
      __syncthreads();
      if (last) {{ {fence}(); for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) a[i] += 1; }}"""
    result, _, _ = _ran("__device__ unsigned done;", body, 4, 32)
    assert {finding.kind for finding in result.findings} == kinds


def test_a_grid_that_no_chip_holds_is_named() -> None:
    """A grid beyond every chip of the architecture is refused, before a cooperative launch or when its blocks wait."""
    for start, barrier in KINDS.values():
        with pytest.raises(
            GridTooLargeError, match=r"wait for each other, so all 800 must run at once, but .* holds 768"
        ):
            _ran(start, f"{barrier};", 800)


def test_blocks_that_wait_for_earlier_ones_need_not_all_run_at_once() -> None:
    """A chain from block to block is not a barrier of the grid."""
    body = """
      if (threadIdx.x == 0) {
        if (blockIdx.x) while (atomicAdd(a + blockIdx.x - 1, 0) == 0) {}
        __threadfence(); atomicExch(a + blockIdx.x, 1);
      }"""
    result, a, module = _ran("", body, 12, 1024)
    assert (result.completed, a, module.needs_whole_grid("k")) == (True, [1] * 12, False)


def test_a_barrier_that_some_blocks_skip_never_ends() -> None:
    """With all blocks in one batch, the repeated state proves it."""
    result, _, _ = _ran(GRID, "if (blockIdx.x > 0) cg::this_grid().sync();", 6, limit=400_000)
    assert result.hung and not result.waits_outside


def test_ranks_in_a_grid_need_no_cooperative_launch() -> None:
    """A kernel that only asks for its rank runs in batches, and its grid is not valid, as on a GPU."""
    body = "auto grid = cg::this_grid(); a[grid.block_rank()] = 2 + grid.is_valid();"
    result, a, module = _ran(GRID, body, 1000, 32)
    assert (result.completed, a, module.needs_whole_grid("k")) == (True, [2] * 1000, False)


@pytest.mark.parametrize(("attribute", "block"), [("__launch_bounds__(64)", 65), ("__block_size__((64, 1, 1))", 32)])
def test_a_block_against_the_attributes_is_not_run(attribute: str, block: int) -> None:
    """The machine refuses what a GPU refuses, and names the block."""
    source = f'extern "C" __global__ void {attribute} k(int* a) {{ a[threadIdx.x] = 1; }}'
    module = module_of(source, (), "compute_90")
    memory = simt.Memory()
    a = memory.allocate("a", np.zeros(128, np.int32))
    with pytest.raises(UsageError, match=rf"blocks of .*64 threads.*, not {block}"):
        simt.launch(module, simt.LaunchSpec("k", (1, 1, 1), (block, 1, 1)), [a], memory)
    assert simt.launch(module, simt.LaunchSpec("k", (1, 1, 1), (64, 1, 1)), [a], memory).completed


def test_a_number_that_all_threads_read_races_with_a_later_write() -> None:
    """Reads of one word by whole warps are kept together, but each of their threads counts."""
    for writer in (0, 33, 95):
        result, _, _ = _ran("", f"b[blockIdx.x] = a[0] + 1; if (threadIdx.x == {writer}) a[0] = 7;", 1, 96)
        races = [finding for finding in result.findings if finding.kind == "global_race"]
        assert {finding.level for finding in races} == {"error"}
    result, _, _ = _ran("", "b[blockIdx.x] = a[0] + 1; __syncthreads(); if (threadIdx.x == 33) a[0] = 7;", 1, 96)
    assert result.findings == ()
