"""Random programs, told apart from one another by vector clocks over every access; and the races that used to hide."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from race_oracle import judge
from race_programs import PRELUDE, REGION, REGIONS, draw
from simt_tools import module_of

from evokern import simt

BATCH = 50
"""Programs of one compile."""

KINDS = {
    f"{one} after {other}" for one in ("read", "write", "atomic") for other in ("read", "write", "atomic")
    if "write" in (one, other) or one != other
}  # fmt: skip
"""What may race with what."""


def disagreements(first: int, count: int, space: str) -> tuple[list[str], Counter[str]]:
    """Return the programs on which the sanitizer and the oracle differ, and how many there were of each level and kind.

    A kind is one of `KINDS`, after ``across`` or ``within`` warps.
    """
    seeds = range(first, first + count)
    wrong, levels = [], Counter[str]()
    for start in range(0, count, BATCH):
        programs = [draw(seed, space) for seed in seeds[start : start + BATCH]]
        source = PRELUDE + "".join(program.text() for program in programs)
        module = module_of(source)
        for program in programs:
            verdict = judge(program.steps, program.threads, program.expected)
            memory = simt.Memory()
            out = memory.allocate("out", np.zeros(program.threads, np.uint32))
            scratch = memory.allocate("scratch", np.zeros(REGION * REGIONS, np.uint8))
            result = simt.launch(
                module,
                simt.LaunchSpec(program.entry, (1, 1, 1), (program.threads, 1, 1)),
                [out, scratch],
                memory,
                simt.LaunchOptions(count=False),
            )
            levels[verdict.level] += 1
            levels.update(f"across {kind}" for kind in verdict.across)
            levels.update(f"within {kind}" for kind in verdict.within)
            against = verdict.fault_evidence(f"seed {program.seed} ({', '.join(program.names)})", space, [result])
            wrong += [against] if against else []
    return wrong, levels


@pytest.mark.thorough
@pytest.mark.parametrize(("space", "count"), [("shared", 50), ("global", 25)])
def test_races_are_told_from_what_is_ordered(space: str, count: int) -> None:
    """Programs drawn anew at each run: a race, a race within a warp, or none, as the oracle says."""
    wrong, levels = disagreements(random.SystemRandom().randrange(1 << 30), count, space)
    assert not wrong, "\n".join(wrong)
    assert min(levels["error"], levels["clean"]) > count // 10


@pytest.mark.slow
@pytest.mark.parametrize("space", ["shared", "global"])
def test_a_thousand_races_and_a_thousand_without(space: str) -> None:
    """A thousand programs with races and a thousand without, drawn anew at each run, are all told apart."""
    first, total = random.SystemRandom().randrange(1 << 30), Counter[str]()
    while min(total["error"] + total["warning"], total["clean"]) < 1000:
        wrong, levels = disagreements(first, 500, space)
        assert not wrong, "\n".join(wrong)
        first, total = first + 500, total + levels
    assert {f"{where} {kind}" for where in ("across", "within") for kind in KINDS} <= set(total)


HIDDEN = """
extern "C" __global__ void odd(float* out, const float* in) {
  __shared__ float sh[4]; int t = threadIdx.x; if (t < 4) sh[t] = t;
  __syncthreads();
  float o = sh[0];
  if (t == 0) sh[0] = o + 1;  // odd
  __syncthreads(); out[t] = sh[0] + o;
}
extern "C" __global__ void even(float* out, const float* in) {
  __shared__ float sh[4]; int t = threadIdx.x; if (t < 4) sh[t] = t;
  __syncthreads();
  float e = sh[3];
  float o = sh[0];
  if (t == 0) sh[0] = o + 1;  // even
  __syncthreads(); out[t] = sh[0] + o + e;
}
// A softmax over long rows: the maximum is read back from shared memory by all, and the sums then take its place.
extern "C" __global__ void rows(float* out, const float* in) {
  extern __shared__ float part[];
  int t = threadIdx.x, warp = t / 32, lane = t % 32, warps = blockDim.x / 32;
  float most = -1e30f;
  for (int i = t; i < 512; i += blockDim.x) most = fmaxf(most, in[i]);
  for (int d = 16; d; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
  if (lane == 0) part[warp] = most;
  __syncthreads();
  if (t == 0) { most = part[0]; for (int w = 1; w < warps; w++) most = fmaxf(most, part[w]); part[0] = most; }
  __syncthreads();
  most = part[0];  // read
#ifdef FIXED
  __syncthreads();
#endif
  float sum = 0;
  for (int i = t; i < 512; i += blockDim.x) { float e = __expf(in[i] - most); out[i] = e; sum += e; }
  for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (lane == 0) part[warp] = sum;  // rows
  __syncthreads();
  if (t == 0) { for (int w = 1; w < warps; w++) sum += part[w]; part[0] = sum; }
  __syncthreads();
  for (int i = t; i < 512; i += blockDim.x) out[i] /= part[0];
}
// A block's threads hand data over in global memory.
extern "C" __global__ void scratch(float* out, const float* in) {
  int t = threadIdx.x;
  out[t] = in[t];
#ifdef FIXED
  __syncthreads();
#endif
  float x = out[(t + 32) % blockDim.x];  // scratch
  __syncthreads();
  out[t] = x;
}
"""


@pytest.mark.parametrize("entry", ["odd", "even", "rows", "scratch"])
def test_races_that_used_to_hide(entry: str) -> None:
    """Reads before a write, whatever their number; a read across a loop; global memory within a block."""
    for fixed in (False, True):
        memory = simt.Memory()
        out = memory.allocate("out", np.zeros(512, np.float32))
        args = [out, memory.allocate("in", np.linspace(0, 1, 512, dtype=np.float32), writable=False)]
        module = module_of(HIDDEN, ("-DFIXED",) if fixed else ())
        found = simt.launch(
            module,
            simt.LaunchSpec(entry, (1, 1, 1), (128, 1, 1), dynamic_shared=64),
            args,
            memory,
            simt.LaunchOptions(source=HIDDEN, count=False),
        ).findings
        if fixed and entry in ("rows", "scratch"):
            assert found == ()
            continue
        assert {("global_race" if entry == "scratch" else "shared_race", "error")} == {
            (finding.kind, finding.level) for finding in found
        }
        assert any(finding.source.endswith(f"// {entry}") for finding in found)


BLOCKS = """
extern "C" __global__ void readers(float* x, float* out) {
  float mine = x[0];
  if (blockIdx.x == 5) mine += x[0];
  out[blockIdx.x] = mine;
  if (blockIdx.x == 5 && threadIdx.x == 0) x[0] = 2;
}
extern "C" __global__ void updates(int* x, float* out) {
  if (threadIdx.x == 0) atomicAdd(x, 1);
  if (blockIdx.x == 5 && threadIdx.x == 0) out[0] = x[0];
}
"""


@pytest.mark.parametrize("entry", ["readers", "updates"])
def test_every_block_that_read_or_updated_a_word_is_known(entry: str) -> None:
    """The last block to read, or to update, a word races with the others although it came last itself."""
    memory = simt.Memory()
    args = [memory.allocate("x", np.zeros(1, np.int32)), memory.allocate("out", np.zeros(6, np.float32))]
    module = module_of(BLOCKS)
    found = simt.launch(
        module,
        simt.LaunchSpec(entry, (6, 1, 1), (1, 1, 1)),
        args,
        memory,
        simt.LaunchOptions(source=BLOCKS, count=False),
    ).findings
    assert [("global_race", (5, 0, 0))] == [(finding.kind, finding.block) for finding in found]
