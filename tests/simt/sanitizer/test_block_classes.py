"""Blocks that do the same share a shadow: what one of them does differently is seen, and counted for every block."""

from __future__ import annotations

import numpy as np
import pytest
from simt_tools import Defect, defects, module_of

from evokern import simt
from evokern.simt.arrays import Active, Array
from evokern.simt.sanitizer.block_classes import EVERYTHING, BlockClasses, LeaderLanes

SOURCE = """
extern "C" __global__ void neighbours(const int* which, float* out, int odd_block) {
  __shared__ float s[64];
  __shared__ float unused[64];
  s[threadIdx.x] = threadIdx.x;
  if (blockIdx.x == which[0]) { unused[threadIdx.x] = 1.0f; }
  if (blockIdx.x != odd_block) __syncthreads();
  out[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];
}
extern "C" __global__ void scattered(const int* place, float* out) {
  __shared__ float s[64];
  s[place[blockIdx.x * 64 + threadIdx.x]] = threadIdx.x;
  __syncthreads();
  out[blockIdx.x * 64 + threadIdx.x] = s[threadIdx.x];
}
extern "C" __global__ void copies(const float4* in, float* out, int early_block) {
  __shared__ float4 s[64];
  unsigned at = __cvta_generic_to_shared(s + threadIdx.x);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(in + threadIdx.x) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  if (blockIdx.x != early_block) asm volatile("cp.async.wait_group 0;" ::: "memory");
  out[blockIdx.x * 64 + threadIdx.x] = s[threadIdx.x].x;
}
"""


def findings(entry: str, *args: object, grid: int = 6) -> tuple[simt.Finding, ...]:
    """Run six blocks of 64 threads side by side and return what was found."""
    memory = simt.Memory()
    bound = [
        memory.allocate(f"argument {n}", item, initialised=n != 1) if isinstance(item, np.ndarray) else item
        for n, item in enumerate(args)
    ]
    return simt.launch(
        module_of(SOURCE),
        simt.LaunchSpec(entry, (grid, 1, 1), (64, 1, 1)),
        bound,
        memory,
        simt.LaunchOptions(source=SOURCE, count=False),
    ).findings  # type: ignore[arg-type]


def out() -> np.ndarray:
    """Return room for what the blocks write."""
    return np.zeros(6 * 64, np.float32)


@pytest.mark.parametrize("odd", range(6))
def test_one_block_without_a_barrier_is_found(odd: int) -> None:
    """A race of one block among equal ones is found wherever it stands, first, last or between, and nowhere else."""
    found = findings("neighbours", np.array([-1], np.int32), out(), np.int32(odd))
    assert {("shared_race", (odd, 0, 0))} == {(finding.kind, finding.block) for finding in found}


@pytest.mark.parametrize("other", [-1, 0, 4])
def test_a_race_of_every_block_counts_for_every_block(other: int) -> None:
    """Lanes are counted in all blocks, although one stood for all of them until then."""
    source = SOURCE.replace("if (blockIdx.x != odd_block) __syncthreads();", "")
    memory = simt.Memory()
    args = [memory.allocate("which", np.array([other], np.int32)), memory.allocate("out", out()), np.int32(0)]
    result = simt.launch(
        module_of(source),
        simt.LaunchSpec("neighbours", (6, 1, 1), (64, 1, 1)),
        args,
        memory,
        simt.LaunchOptions(source=source, count=False),
    )
    assert [("shared_race", 6 * 64)] == [(finding.kind, finding.count) for finding in result.findings]


@pytest.mark.parametrize("block", range(6))
def test_places_that_data_decide_are_compared(block: int) -> None:
    """A block whose data send two threads to one word, and none to another, is found beside five that do not."""
    place = np.tile(np.arange(64, dtype=np.int32), 6)
    assert findings("scattered", place, out()) == ()
    place[block * 64 + 7] = 6
    found = findings("scattered", place, out())
    assert {("shared_race", block), ("uninitialised", block)} == {(item.kind, item.block[0]) for item in found}


@pytest.mark.parametrize("early", range(6))
def test_a_copy_that_one_block_does_not_wait_for(early: int) -> None:
    """Copies land block by block: the one that does not wait is found, the others are not."""
    found = findings("copies", np.ones(256, np.float32), out(), np.int32(early))
    assert {("async_not_waited", early)} == {(item.kind, item.block[0]) for item in found}


@pytest.mark.thorough
@pytest.mark.parametrize("defect", defects(), ids=lambda defect: defect.name)
def test_sharing_changes_no_finding(defect: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every planted defect is told in the same words, lanes counted, when each block keeps a shadow of its own."""

    def alone(classes: BlockClasses, active: Active, address: Array | None) -> LeaderLanes:
        classes.split_all()
        return LeaderLanes(active, EVERYTHING)

    shared = defect.run().findings
    monkeypatch.setattr(BlockClasses, "leader_lanes", alone)
    assert defect.run().findings == shared


def test_classes_divide_by_what_blocks_do() -> None:
    """Blocks divide by mask and addresses, those that differ alike stay together, and shadows are copied once."""
    copied: list[tuple[int, int]] = []
    classes = BlockClasses(4, 2, lambda source, target: copied.append((source, target)))
    everyone = Active(np.ones(8, np.bool_), 8, 8)
    assert classes.leader_lanes(everyone, np.tile([0, 4], 4)).active.lanes.tolist() == [0, 1]
    part = classes.leader_lanes(everyone, np.array([0, 4, 0, 8, 0, 4, 0, 8]))
    assert (part.active.lanes.tolist(), copied) == ([0, 1, 2, 3], [(0, 1)])
    some = Active(np.array([1, 1, 0, 0, 1, 1, 0, 1], np.bool_), 5, 8)
    part = classes.leader_lanes(some, np.array([0, 4, 0, 4, 8]))
    assert (part.active.lanes.tolist(), copied[1:]) == ([0, 1, 7], [(1, 3)])
    assert np.arange(5)[part.chosen].tolist() == [0, 1, 4]
    classes.split_all()
    assert (classes.any_merged, copied[2:]) == (False, [(0, 2)])
    assert classes.leader_lanes(everyone, np.arange(8)).complete


STOPPED = """
extern "C" __global__ void k(float* out, int n, int from) {
  __shared__ float s[64];
  s[threadIdx.x] = threadIdx.x;
  if (blockIdx.x < from) __syncthreads();
  float early = s[(threadIdx.x + 32) % 64];
  asm volatile("" : "+f"(early));
  if (n == 1 || blockIdx.x >= 4) out[blockIdx.x * 64 + threadIdx.x] = early;
}
"""


@pytest.mark.parametrize(("used", "clean_blocks", "seen"), [(1, 0, 2), (1, 3, 1), (2, 0, 4), (1, 8, 0)])
def test_an_error_ends_the_run_of_further_batches(used: int, clean_blocks: int, seen: int) -> None:
    """The batch with the first error is the last; a read whose value is never used does not hide a later error."""

    def run(*, until_error: bool) -> simt.LaunchResult:
        memory = simt.Memory()
        out = memory.allocate("out", np.zeros(8 * 64, np.float32))
        return simt.launch(
            module_of(STOPPED),
            simt.LaunchSpec("k", (8, 1, 1), (64, 1, 1)),
            [out, np.int32(used), np.int32(clean_blocks)],
            memory,
            simt.LaunchOptions(source=STOPPED, count=False, batch_blocks=2, until_error=until_error),
        )

    short, whole = run(until_error=True), run(until_error=False)
    assert [(one.kind, one.line, one.level) for one in short.findings] == [
        (one.kind, one.line, one.level) for one in whole.findings
    ]
    assert sum(one.count for one in short.findings) == 64 * seen or used == 2
    assert bool(short.errors) == (seen > 0)


UNUSED = """
extern "C" __global__ void k(float* out, const float* x) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  float value = x[i];
  asm volatile("" :: "f"(value));
  out[i] = 1;
}
"""


def test_reads_whose_values_are_never_used_end_no_run() -> None:
    """After the first batch, no finding is an error, so the launch runs completely, once."""
    memory = simt.Memory()
    out = memory.allocate("out", np.zeros(8 * 64, np.float32))
    x = memory.allocate("x", np.zeros(8 * 64, np.float32), initialised=False)
    spec = simt.LaunchSpec("k", (8, 1, 1), (64, 1, 1))
    options = simt.LaunchOptions(source=UNUSED, count=False, batch_blocks=2, until_error=True)
    result = simt.launch(module_of(UNUSED), spec, [out, x], memory, options)
    assert [(one.kind, one.level, one.count) for one in result.findings] == [("uninitialised", "warning", 512)]
    assert result.completed and (out.read() == 1).all()
