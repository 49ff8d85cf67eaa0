"""Latencies of chip generations, for the warp schedule simulation and the time model.

All values are SM clocks unless stated otherwise. Sources, by field:
    dependent latencies   Abdelkhalik et al., "Demystifying the NVIDIA Ampere Architecture through Microbenchmarking and
                          Instruction-level Analysis" (arXiv 2208.11174); Luo et al., "Benchmarking and Dissecting the
                          NVIDIA Hopper GPU Architecture" (arXiv 2402.13499): tables of ALU, tensor and memory latencies
    tensor, special, product, launch_us of sm_90
                          measured on an H200: docs/lab/2026-11-22-sm90-latencies.md
    copies, fences and clusters of sm_90
                          measured on an H200: docs/lab/2026-11-28-hopper-machinery.md
    launch_us of sm_80 and sm_89
                          2 µs, an assumption without measurements
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evokern.hardware.profiles import Profile
from evokern.ptx.syntax import Instruction


@dataclass(frozen=True, kw_only=True)
class Latencies:
    """Clocks from the issue of an instruction to the use of its result; see `pipes` for the occupancy of pipes."""

    alu: float = 4.5
    """Arithmetic in fp32, fp16 and simple integer arithmetic."""
    wide: float = 6.0
    """64-bit integer and wide multiplication."""
    convert: float = 12.0
    """Conversions between types. Conversions between fp32 and halves take as long as arithmetic."""
    double: float = 16.0
    """fp64 arithmetic."""
    special: float = 23.0
    """Special functions: exp2, log2, reciprocal, square root, sine."""
    shuffle: float = 23.0
    """Shuffles, votes and matches of a warp."""
    shared: float = 24.0
    """Shared-memory load without conflicts."""
    matrix_load: float = 30.0
    """ldmatrix of four matrices without conflicts."""
    tensor: float = 33.0
    """mma.sync m16n8k16, until its accumulator is ready."""
    product: float = 60.0
    """Time from the end of a warpgroup's last product until waiting warps continue."""
    l1: float = 34.0
    """Global or local load that hits L1."""
    l2: float = 270.0
    """Global load that hits L2."""
    dram: float = 560.0
    """Global load that misses L2."""
    atomic: float = 350.0
    """Atomic operation on global memory that returns a value."""
    barrier: float = 20.0
    """Time from the last arrival at a barrier to the next issue."""
    cluster: float = 180.0
    """Load from the shared memory of another block of the cluster: 180 clocks on an H800 (arXiv 2402.13499, section on
    distributed shared memory)."""
    cluster_barrier: float = 360.0
    """Time from the last arrival at a cluster barrier to the next issue: four blocks of 256 threads on an H200."""
    cluster_arrival: float = 520.0
    """Time from an arrival at a barrier object of another block until a thread there sees it, on an H200."""
    copy_l2: float = 411.0
    """Bulk copy of 128 bytes that hits L2, until a waiting thread continues, on an H200."""
    copy_dram: float = 785.0
    """The same if the bytes come from DRAM."""
    gpu_fence: float = 720.0
    """Store and fence in the scope of the GPU, on an H200."""
    proxy_fence: float = 150.0
    """Fence between ordinary accesses and those of the copy engine or wgmma, on an H200."""
    cluster_start: float = 11.0
    """Clocks from the start of a block of a cluster to the start of its next block.

    Measured on an H200: rows of rmsnorm ran in 300 clusters of 2, 4 and 8 blocks. Products of 64 clusters took 1.1 µs
    longer than the same blocks without clusters."""
    launch_us: float = 1.4
    """Start and drain of a kernel in a graph of equal kernels, µs."""


GENERATIONS: Mapping[int, Latencies] = {
    80: Latencies(l2=200.0, dram=470.0, tensor=33.0, launch_us=2.0),
    89: Latencies(l2=270.0, dram=590.0, tensor=34.0, special=23.0, launch_us=2.0),
    90: Latencies(l2=265.0, dram=560.0, tensor=24.0, special=17.0, launch_us=0.95),
}
"""Compute capability × 10 → latencies; a missing generation uses the nearest lower one."""


def latencies_of(chip: Profile) -> Latencies:
    """Return the latencies of a chip's generation."""
    wanted = chip.compute_capability[0] * 10 + chip.compute_capability[1]
    known = [number for number in GENERATIONS if number <= wanted]
    return GENERATIONS[max(known)] if known else GENERATIONS[min(GENERATIONS)]


FREE = frozenset({"mov", "cvta", "pragma"})
"""Opcodes that the assembler removes by renaming registers."""

SPECIAL = frozenset({"ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh"})
_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
_PRODUCTS = {"mma_async": "product", "commit_group": "product_commit", "wait_group": "product_wait"}
WARP_WIDE = frozenset({"shfl", "vote", "match", "redux", "activemask", "elect"})


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one instruction."""

    latency: float
    """Clocks until a dependent instruction may issue."""
    kind: str
    """`plain`, `free`, `global`, `local`, `shared`, `async`, `commit`, `wait`, `bulk`, `bulk_commit`, `bulk_wait`,
    `product`, `product_commit`, `product_wait`, `store`, `barrier`, `fence` or `sleep`."""


def cost_of(instruction: Instruction, table: Latencies) -> Cost:
    """Return the cost of an instruction without bank conflicts and cache misses."""
    opcode = instruction.opcode
    if opcode in FREE:
        return Cost(0.0, "free")
    if opcode in ("mma", "wmma") and not instruction.has("load", "store"):
        return Cost(table.tensor, "plain")
    if opcode == "wgmma":
        return Cost(0.0, _PRODUCTS.get(instruction.modifiers[0], "plain"))
    if opcode == "ldmatrix" or (opcode == "wmma" and instruction.has("load")):
        return Cost(table.matrix_load, "shared")
    if opcode in ("ld", "ldu"):
        if instruction.has("shared"):
            return Cost(table.shared, "shared")
        if instruction.has("shared::cluster"):
            return Cost(table.cluster, "shared")
        if instruction.has("param", "const"):
            return Cost(table.alu, "plain")
        return Cost(table.l1, "local") if instruction.has("local") else Cost(table.l2, "global")
    if opcode in ("st", "stmatrix", "red") or (opcode == "wmma" and instruction.has("store")):
        return Cost(0.0, "store")
    if opcode == "atom":
        if instruction.has("shared::cluster"):
            return Cost(table.cluster + table.shared, "shared")
        on_chip = instruction.has("shared")
        return Cost(table.shared * 2, "shared") if on_chip else Cost(table.atomic, "global")
    if opcode == "cp":
        return _async_cost(instruction, table)
    if opcode == "barrier" and instruction.has("cluster"):
        # Arriving warps continue and wait only at the wait instruction.
        return Cost(table.cluster_barrier, "barrier") if instruction.has("wait") else Cost(table.alu, "plain")
    if opcode in ("bar", "barrier"):
        return Cost(table.barrier, "barrier")
    if opcode == "nanosleep":
        return Cost(0.0, "sleep")
    if opcode in ("membar", "fence") and instruction.has("gl", "gpu", "sys"):
        return Cost(table.gpu_fence, "fence")
    if opcode == "fence" and instruction.has("async"):
        return Cost(table.proxy_fence, "fence")
    if opcode in ("membar", "fence", "mbarrier"):
        return Cost(table.barrier, "fence")
    if opcode in SPECIAL:
        return Cost(table.special, "plain")
    if opcode in WARP_WIDE:
        return Cost(table.shuffle, "plain")
    if opcode == "cvt":
        halves = instruction.has("f32") and instruction.has(*_HALVES)
        return Cost(table.alu if halves else table.convert, "plain")
    if instruction.has("f64"):
        return Cost(table.double, "plain")
    if opcode in ("div", "rem"):
        return Cost(table.special * 2 + table.alu * 8, "plain")
    return Cost(table.wide if instruction.has("u64", "s64", "b64", "wide") else table.alu, "plain")


def _async_cost(instruction: Instruction, table: Latencies) -> Cost:
    bulk = instruction.has("bulk")
    if instruction.has("commit_group"):
        return Cost(0.0, "bulk_commit" if bulk else "commit")
    if instruction.has("wait_group", "wait_all"):
        return Cost(0.0, "bulk_wait" if bulk else "wait")
    # Waits for the barrier objects of bulk copies are part of the record.
    return Cost(0.0, "bulk") if bulk and not instruction.has("prefetch") else Cost(table.l2, "async")
