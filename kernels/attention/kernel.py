"""FlashAttention forward in fp16 or bf16 on tensor cores, with every structural choice as a gene."""

import math
from functools import cache

from evokern import (
    AtMost,
    Attention,
    Baseline,
    Constraint,
    Kernel,
    L2Window,
    Launch,
    Mutation,
    Parameter,
    ProblemField,
    Slice,
    Tensor,
    TileMap,
    VectorAccess,
    Workload,
    divides,
    f32,
    i32,
)

WARPS, BULK = {"PATH": ("warps",)}, {"PATH": ("bulk",)}
FRAGMENTS = {"TENSOR_CORES": ("mma_sync", "wgmma")}
MMA = {**WARPS, "TENSOR_CORES": ("mma_sync",)}
SHARED_SCORES = {"TENSOR_CORES": ("none", "wmma")}
RING, RESIDENT = {"KV_BUFFERS": ("ring",)}, {"KV_BUFFERS": ("resident",)}

SCORES_AT_ONCE = 2**27
"""Scores that the reference computes at once: 1 GiB in float64, and two or three times that temporarily."""

GENES = (
    Mutation("PATH", ("warps", "bulk"), min_compute_capability={"bulk": (9, 0)},
             doc="warps: each warp copies and multiplies its part; bulk: the copy engine fills rings for warpgroups",
             relieves={"memory": 3, "tensor": 3, "latency": 2}),
    Mutation("TENSOR_CORES", ("mma_sync", "wmma", "none", "wgmma"), when=WARPS,
             min_compute_capability={"wgmma": (9, 0)}, for_study=("wmma", "none"),
             doc="matrix instruction; mma_sync and wgmma keep scores in registers",
             relieves={"tensor": 3, "arithmetic": 1}),
    Mutation("KV_LOAD", ("cp_async", "vector16", "scalar_coalesced", "scalar_strided"), when=WARPS,
             for_study=("scalar_coalesced", "scalar_strided"),
             doc="method of copying Q, K and V to shared memory",
             relieves={"memory": 2, "shared-memory": 1, "latency": 1}),
    Mutation("RESTRICT", (1, 0), when={"KV_LOAD": ("vector16", "scalar_coalesced", "scalar_strided")}, for_study=(0,),
             doc="__restrict__ on the tensors, so that plain loads may use the read-only path",
             relieves=("memory", "tensor")),
    Mutation("LENGTH", ("static", "steps", "runtime"),
             doc="compile-time sequence length: unrolled loops, and no tail code if all tiles are whole; or only the "
                 "number of steps, so that one program runs all lengths with as many steps; or neither",
             relieves={"arithmetic": 2, "latency": 1}),
    Mutation("KV_BUFFERS", ("ring", "resident"), when={**FRAGMENTS, **WARPS, "LENGTH": ("static", "steps")},
             doc="ring of STAGES buffers, or all of K and V in shared memory",
             relieves={"latency": 4}),
    Mutation("QK_PATH", ("shared", "direct"), when={**MMA, "KV_BUFFERS": ("resident",)},
             doc="Q and K through shared memory, or loaded directly into fragments if one step covers all keys",
             relieves={"shared-memory": 2}),
    Mutation("SMEM_LAYOUT", ("xor_swizzle", "padded", "plain"), when=WARPS, for_study=("plain",),
             doc="layout of tiles in shared memory",
             relieves={"shared-memory": 4, "memory": 1}),
    Mutation("SCORE_BUFFER", ("float", "half"), when=SHARED_SCORES, less_precise=("half",),
             doc="type of scores in shared memory",
             relieves=("shared-memory",)),
    Mutation("SOFTMAX", ("registers", "shared"), when=SHARED_SCORES,
             doc="read the scores of a row once and keep them in registers, or read them twice",
             relieves=("shared-memory", "arithmetic")),
    Mutation("Q_LOCATION", ("registers", "shared"), when=FRAGMENTS,
             doc="Q fragments kept in registers, or read from shared memory for every step",
             relieves={"shared-memory": 2, "arithmetic": 1}),
    Mutation("EXP", ("fp32", "f16x2"), when={**FRAGMENTS, **WARPS}, less_precise=("f16x2",),
             doc="exponentials in fp32, or in pairs in fp16",
             relieves={"arithmetic": 2}),
    Mutation("QK_ACC", ("fp32", "fp16"), when={**MMA, "EXP": ("f16x2",)}, less_precise=("fp16",),
             doc="accumulator of Q K^T; fp16 is imprecise on large inputs",
             relieves=("tensor", "arithmetic")),
    Mutation("PV_ACC", ("fp32", "fp16"), when=MMA, less_precise=("fp16",),
             doc="accumulator of P V; fp16 overflows on large inputs",
             relieves=("tensor", "arithmetic")),
    Mutation("ROW_SUM", ("ones_mma", "add"), when={**FRAGMENTS, "EXP": ("fp32",)},
             doc="row sums by an mma with a matrix of ones, or by additions",
             relieves=("tensor", "arithmetic")),
    Mutation("RESCALE", ("lazy", "on_change", "always", "restart"), when=FRAGMENTS,
             doc="when to rescale the output to a new row maximum; restart recomputes overflowed blocks instead",
             relieves={"arithmetic": 2}),
    Mutation("LOOP_ORDER", ("qk_first", "plain"), when={**FRAGMENTS, **WARPS},
             doc="compute the scores of the next step concurrently with the output of the current step, or after it",
             relieves=("memory", "latency")),
    Mutation("WARP_ROLES", ("same", "loaders"), when=WARPS,
             doc="each warp loads its own keys, or additional warps load all keys",
             relieves=("memory", "latency")),
    Mutation("SCHEDULE", ("one_task", "persistent"), doc="one block per task, or persistent blocks with several tasks",
             relieves={"launch": 3, "latency": 2}),
    Mutation("GRID_ORDER", ("rows_fast", "heads_fast"), doc="fastest index over the grid: row blocks or heads",
             relieves={"memory": 2, "launch": 1}),
    Mutation("CAUSAL_ORDER", ("longest_first", "folded"), when=WARPS,
             doc="order of the row blocks under a causal mask, which have different amounts of work",
             relieves=("memory", "tensor", "launch")),
    Mutation("KEY_WALK", ("forward", "rotated"), when={**FRAGMENTS, **WARPS},
             doc="every row block starts at the first key, or at a different key"),
    Mutation("L2_WINDOW", ("none", "k", "v"), doc="tensor to keep in L2 (launch attribute)",
             relieves=("memory", "tensor")),
    Mutation("TAIL", ("whole", "divided"), when={**BULK, "SCHEDULE": ("persistent",)},
             doc="tasks that do not fill all blocks: whole, or divided along the keys",
             relieves={"latency": 2, "tensor": 1}),
    Mutation("TURNS", ("alternate", "free"), when=BULK,
             doc="warpgroups alternate between products and exponentials, or run independently",
             relieves=("tensor", "arithmetic")),
    Parameter("GROUPS", (2, 1, 3), when=BULK, doc="warpgroups that compute, with 64 query rows each",
              relieves=("memory", "tensor")),
    Parameter("TILE_N", (128, 64, 80, 96, 112, 144, 160), when=BULK, doc="keys per step of the bulk path",
              relieves=("tensor", "latency")),
    Parameter("BLOCK_M", (16, 32, 64, 80, 96, 128, 256), default=64, when=WARPS, doc="query rows per block",
              relieves=("launch",)),
    Parameter("WARPS_M", (1, 2, 4, 8), default=4, when=WARPS, doc="warps along the query rows", relieves=("latency",)),
    Parameter("KEY_SPLITS", (1, 2, 4, 8), default=2, when={**WARPS, **FRAGMENTS},
              doc="warps along the keys; each processes a part of every step",
              relieves={"latency": 2, "launch": 1}),
    Parameter("BLOCK_N", (16, 32, 64, 128), default=32, when=WARPS, doc="keys per split and step",
              relieves=("latency", "launch")),
    Parameter("STAGES", (2, 1, 3, 4), when=RING, doc="ring buffers for K and for V; all but one are in flight",
              relieves={"latency": 4}),
    Parameter("LOOKAHEAD", (1, 2, 3, 4, 8), default=3, when=RESIDENT, doc="number of load groups in flight",
              relieves=("memory", "latency")),
    Parameter("UNROLL", (1, 2, 4, 8), when=FRAGMENTS, doc="number of unrolled steps",
              relieves=("latency", "arithmetic")),
    Parameter("LOAD_WARPS", (1, 2, 4), when={"WARP_ROLES": ("loaders",)}, doc="number of warps that only load",
              relieves=("memory", "latency")),
    Parameter("GRID_BLOCKS", (132, 58, 108, 116, 216, 264, 396), when={"SCHEDULE": ("persistent",)},
              for_chips={58: ("l4",), 116: ("l4",), 108: ("a100",), 216: ("a100",),
                         **dict.fromkeys((132, 264, 396), ("h100", "h200"))},
              doc="number of persistent blocks, a multiple of the chip's SMs",
              relieves={"launch": 3, "memory": 1, "latency": 1, "tensor": 1}),
    Parameter("MIN_BLOCKS", (1, 2, 3, 4), doc="minimum resident blocks per SM, which limits the registers",
              relieves=("latency", "launch", "arithmetic")),
    Mutation("MERGE", ("fp16", "fp32"), when={**WARPS, **FRAGMENTS, "KEY_SPLITS": (2, 4, 8)},
             doc="type for merging the splits' partial outputs; fp16 means bf16 for bf16 tensors",
             relieves=("latency", "launch", "arithmetic")),
    Mutation("OUTPUT", ("staged", "direct"), when={**FRAGMENTS, "KEY_SPLITS": (1,)},
             doc="16-byte stores through shared memory, or 4-byte stores from fragments",
             relieves={"shared-memory": 2, "memory": 1, "latency": 1}),
)  # fmt: skip


# ---- sizes, which the source receives as macros


def bulk(c):
    """Return whether the copy engine fills rings for warpgroups that compute."""
    return c["PATH"] == "bulk"


def on_wgmma(c):
    """Return whether the candidate uses wgmma, so that the tensor cores read K and V from shared memory."""
    return bulk(c) or c["TENSOR_CORES"] == "wgmma"


def in_registers(c):
    """Return whether scores stay in registers."""
    return c["TENSOR_CORES"] == "mma_sync" or on_wgmma(c)


def resident(c):
    """Return whether all of K and V stay in shared memory."""
    return c["KV_BUFFERS"] == "resident"


def loaders(c):
    """Return whether additional warps load the keys; on the bulk path, other warps always do."""
    return c["WARP_ROLES"] == "loaders"


def splits(c):
    """Return the number of warps along the keys."""
    return c.KEY_SPLITS if in_registers(c) and not bulk(c) else 1


def tile_rows(c):
    """Return the query rows of a block."""
    return 64 * c.GROUPS if bulk(c) else c.BLOCK_M


def tile_keys(c):
    """Return the keys per split and step."""
    return c.TILE_N if bulk(c) else c.BLOCK_N


def row_warps(c):
    """Return the warps along the query rows."""
    return 4 * c.GROUPS if bulk(c) else c.WARPS_M


def consumer_threads(c):
    """Return the threads of the warps that compute."""
    return 32 * row_warps(c) * splits(c)


def threads(c):
    """Return the threads per block."""
    return consumer_threads(c) + (128 if bulk(c) else 32 * c.LOAD_WARPS if loaders(c) else 0)


def row_tiles(c):
    """Return the number of 16-row query tiles per warp."""
    return tile_rows(c) // (16 * row_warps(c))


def step_keys(c):
    """Return the keys per step."""
    return tile_keys(c) * splits(c)


def total_steps(c, p):
    """Return the number of steps over all keys."""
    return -(-p.S // step_keys(c))


def tasks(c, p):
    """Return the number of tasks: the blocks of query rows of all heads."""
    return p.B * p.H * -(-p.S // tile_rows(c))


def equal_registers(c):
    """Return the registers of a thread if all threads of the resident blocks have the same number."""
    return min(255, 65536 // (threads(c) * c.MIN_BLOCKS) // 8 * 8)


def load_registers(c):
    """Return the registers of a thread that loads; with tensor copies, it gives some to those that compute."""
    equal = equal_registers(c)
    return (32 if c.GROUPS > 2 else 24) if bulk(c) and equal <= 240 else equal


def compute_registers(c):
    """Return the registers of a thread that computes, a multiple of 8 if others give some (PTX ISA, "setmaxnreg")."""
    equal, least, groups = equal_registers(c), load_registers(c), c.GROUPS
    return equal if least == equal else min(240, (equal * (groups + 1) - least) // groups // 8 * 8)


def free_buffers(c):
    """Return the ring buffers that can be filled during a step; plain order reads K and V at different times."""
    return c.STAGES - (2 if in_registers(c) and c["LOOP_ORDER"] == "plain" else 1)


def row_bytes(c, p):
    """Return the bytes of one row of a tile; 16 bytes of padding shift each row by four banks."""
    return 2 * p.D + (16 if c["SMEM_LAYOUT"] == "padded" else 0)


def buffers(c, p):
    """Return the number of buffers for K in each split; the number for V is the same."""
    return total_steps(c, p) if resident(c) else c.STAGES


def split_bytes(c, p):
    """Return the bytes of a split's memory: the buffers for K and V, later the partial output."""
    keys = 2 * buffers(c, p) * tile_keys(c) * row_bytes(c, p)
    return keys if splits(c) == 1 else max(keys, tile_rows(c) * partial_row_bytes(c, p))


def partial_row_bytes(c, p):
    """Return the bytes of one row of a partial output."""
    return (p.D + 8) * (2 if c["MERGE"] == "fp16" else 4)


def score_row_bytes(c):
    """Return the bytes of one row of scores in shared memory."""
    return tile_keys(c) * (4 if c["SCORE_BUFFER"] == "float" else 2) + 16


def divided(c):
    """Return whether tasks that do not fill all blocks are divided along the keys."""
    return bulk(c) and c["SCHEDULE"] == "persistent" and c["TAIL"] == "divided"


def divided_steps(c, p):
    """Return the number of steps that persistent blocks divide."""
    return tasks(c, p) % c.GRID_BLOCKS * total_steps(c, p)


def shared_bytes(c, p):
    """Return the bytes of dynamic shared memory: Q, the splits' memory, and references, sums or scores of rows."""
    rows = 8 * splits(c) if splits(c) > 1 else 0
    if not in_registers(c):
        rows = score_row_bytes(c) + 4 * p.D + 16 + 8
    if bulk(c):
        rows = 2 * p.D  # the output
    barriers = 16 * (c.GROUPS + 2 * c.STAGES + divided(c)) * bulk(c)
    return tile_rows(c) * row_bytes(c, p) + splits(c) * split_bytes(c, p) + rows * tile_rows(c) + barriers


def macros(c, p):
    """Return the problem and the sizes; SEQ_LEN and TOTAL_STEPS are 0 if they are known only at run time."""
    steps = total_steps(c, p)
    return {
        "HEAD_DIM": p.D, "CAUSAL": p.causal, "BF16": int(p["dtype"] == "bf16"),
        "SEQ_LEN": p.S if c["LENGTH"] == "static" else 0, "TOTAL_STEPS": 0 if c["LENGTH"] == "runtime" else steps,
        "STEP_KEYS": step_keys(c), "TILES_M": row_tiles(c),
        "THREADS": threads(c), "CONSUMER_THREADS": consumer_threads(c), "BUFFERS": buffers(c, p),
        "AHEAD": min(c.LOOKAHEAD, steps + 1) if resident(c) else c.STAGES - 1,  # load groups in flight
        "ROW_BYTES": row_bytes(c, p), "TILE_BYTES": tile_keys(c) * row_bytes(c, p), "SPLIT_BYTES": split_bytes(c, p),
        "PARTIAL_ROW_BYTES": partial_row_bytes(c, p), "SCORE_ROW_BYTES": score_row_bytes(c),
        "OUTPUT_ROW_BYTES": 4 * p.D + 16, "TILE_ROWS": tile_rows(c), "TILE_KEYS": tile_keys(c),
        "ROW_WARPS": row_warps(c), "SPLITS": splits(c),
        "COMPUTE_REGISTERS": compute_registers(c), "LOAD_REGISTERS": load_registers(c),
    }  # fmt: skip


def held_registers(c, p):
    """Compare the registers that fragments need with the limit from the launch bounds."""
    output = p.D // 8 * (2 + 2 * (c["PV_ACC"] == "fp32"))
    scores = tile_keys(c) // 8 * (2 + 2 * (c["QK_ACC"] == "fp32"))
    query = p.D // 4 * (c["Q_LOCATION"] == "registers")
    keys = tile_keys(c) * p.D // 64 * (c["QK_PATH"] == "direct")
    probabilities = tile_keys(c) // 4 * on_wgmma(c)
    needed = row_tiles(c) * (output + scores + query + probabilities + 4) + keys + 8 + 20 * on_wgmma(c)
    return AtMost(needed, compute_registers(c), "registers")


# ---- rules


def bf16_instructions(c, p, chip):
    """Compare the chip's compute capability with that required for bf16 (PTX ISA, "mma": .bf16 from sm_80)."""
    major, minor = chip.compute_capability
    return AtMost(8.0 if p["dtype"] == "bf16" else 0.0, major + minor / 10)


CONSTRAINTS = (
    Constraint("rows_split_over_warps",
               lambda c: not in_registers(c) or divides(16 * row_warps(c), tile_rows(c), "rows"),
               "the rows of a warp must be whole tiles of 16 query rows"),
    Constraint("threads_within_block", lambda c: AtMost(threads(c), 1024, "threads"),
               "a block has at most 1024 threads"),
    Constraint("resident_needs_known_steps", lambda c: not resident(c) or c["LENGTH"] != "runtime",
               "resident K and V need a compile-time number of steps (LENGTH=static or steps)"),
    Constraint("direct_takes_one_step", lambda c, p: c["QK_PATH"] == "shared"
               or (total_steps(c, p) == 1 and c["Q_LOCATION"] == "registers"),
               "fragments loaded directly from global memory hold the keys of only one step, and need Q in registers"),
    Constraint("ring_within_steps", lambda c, p: resident(c) or AtMost(c.STAGES, max(total_steps(c, p), 2), "steps"),
               "more ring buffers than steps would stay empty", wasteful=True),
    Constraint("lookahead_within_steps",
               lambda c, p: not resident(c) or AtMost(c.LOOKAHEAD, total_steps(c, p) + 2, "groups"),
               "all loads are already in flight with fewer load groups", wasteful=True),
    Constraint("qk_first_needs_lookahead",
               lambda c: not in_registers(c) or c["LOOP_ORDER"] == "plain" or resident(c) or c.STAGES > 1,
               "K of the next step must be loaded while V of the current step is read"),
    Constraint("loaders_need_a_ring",
               lambda c: not loaders(c) or (not resident(c) and free_buffers(c) > 0),
               "loading warps need a ring with free buffers"),
    Constraint("persistent_blocks_have_work", lambda c, p: c["SCHEDULE"] == "one_task" or divided(c)
               or AtMost(c.GRID_BLOCKS, tasks(c, p), "tasks"),
               "more persistent blocks than tasks would have no work", wasteful=True),
    Constraint("pieces_have_work", lambda c, p: not divided(c) or AtMost(c.GRID_BLOCKS, divided_steps(c, p), "steps"),
               "each block takes a part of the tasks that do not fill all blocks", wasteful=True),
    Constraint("divided_tasks_are_alike", lambda c, p: not divided(c) or not p.causal,
               "under a causal mask, tasks have different numbers of steps"),
    Constraint("folding_is_causal", lambda c, p: c["CAUSAL_ORDER"] == "longest_first" or bool(p.causal),
               "without a causal mask all row blocks have the same work", wasteful=True),
    Constraint("unroll_needs_known_steps", lambda c, p: c.UNROLL <= 2 or (c["LENGTH"] != "runtime" and not p.causal),
               "unrolling a loop of unknown length mostly adds unused code", wasteful=True),
    Constraint("unroll_within_steps",
               lambda c, p: c.UNROLL == 1 or AtMost(-(-c.UNROLL // 2), total_steps(c, p), "steps"),
               "half of this UNROLL value already unrolls the loop completely", wasteful=True),
    Constraint("unrolled_code_stays_small",
               lambda c, p: not in_registers(c)
               or AtMost(c.UNROLL * tile_keys(c) * row_tiles(c) * p.D // 64, 1024, "mma"),
               "larger unrolled code exceeds the instruction cache and takes seconds to compile", wasteful=True),
    Constraint("restart_finds_its_keys", lambda c: not in_registers(c) or c["RESCALE"] != "restart"
               or (not loaders(c) and c["KEY_WALK"] == "forward" and c["PV_ACC"] == "fp32"),
               "a restart needs WARP_ROLES=same, KEY_WALK=forward and PV_ACC=fp32, which shows overflows of P"),
    Constraint("bf16_sums", lambda c, p: p["dtype"] == "f16"
               or (c["QK_ACC"] == "fp32" and c["PV_ACC"] == "fp32" and c["SCORE_BUFFER"] == "float"),
               "bf16 needs fp32 sums and float scores (QK_ACC=fp32, PV_ACC=fp32, SCORE_BUFFER=float)"),
    Constraint("bf16_exponents", lambda c, p: p["dtype"] == "f16" or c["EXP"] == "fp32",
               "bf16 exponents have 8 significant bits and errors of several percent; use EXP=fp32"),
    Constraint("bf16_instructions", bf16_instructions,
               "bf16 instructions need compute capability 8.0; use dtype=f16 on this chip"),
    Constraint("wmma_needs_whole_rows", lambda c: c["TENSOR_CORES"] != "wmma" or c["SMEM_LAYOUT"] != "xor_swizzle",
               "wmma loads need a constant row stride, which a swizzled layout does not have"),
    Constraint("wgmma_takes_64_rows",
               lambda c: not on_wgmma(c) or (row_warps(c) % 4 == 0 and tile_rows(c) == 16 * row_warps(c)),
               "four warps together process 64 query rows"),
    Constraint("wgmma_reads_swizzled_tiles", lambda c: not on_wgmma(c) or c["SMEM_LAYOUT"] == "xor_swizzle",
               "wgmma reads rows of 128 bytes with XOR-swizzled chunks (SMEM_LAYOUT=xor_swizzle)"),
    Constraint("turns_need_groups", lambda c: not bulk(c) or c["TURNS"] == "free" or c.GROUPS > 1,
               "a single warpgroup would wait for another forever"),
    Constraint("registers_hold_fragments", lambda c, p: not in_registers(c) or held_registers(c, p),
               "output, scores and Q must fit in registers, because spills cost more than this choice saves"),
    Constraint("heads_fit_grid", lambda c, p: AtMost(p.B * p.H, 65535, "heads"),
               "an axis of the grid has at most 65535 heads"),
)  # fmt: skip


def launches(c, p):
    """Return the launch, with one task for each block of query rows of each head."""
    rows, heads = -(-p.S // tile_rows(c)), p.B * p.H
    grid = (rows, heads) if c["GRID_ORDER"] == "rows_fast" else (heads, rows)
    name, args = "attention", ["q", "k", "v", "o"]
    if bulk(c):  # in panels of 64 columns
        shape, strides = (heads, p.D // 64, p.S, 64), (p.S * p.D, 64, p.D)
        boxes = {"q": 64, "k": tile_keys(c), "v": tile_keys(c), "o": 64}
        maps = [TileMap(one, (1, p.D // 64, keys, 64), "128B", shape, strides) for one, keys in boxes.items()]
        name, args = "attention_bulk", ["q", "k", "v", *maps, "partials"]
    return [
        Launch(
            name,
            grid if c["SCHEDULE"] == "one_task" else (c.GRID_BLOCKS,),
            threads(c),
            (*args, i32(heads), i32(p.S), f32(math.log2(math.e) / math.sqrt(p.D))),
            shared_bytes=shared_bytes(c, p),
            min_blocks=c.MIN_BLOCKS,
            l2_window=None if c["L2_WINDOW"] == "none" else L2Window(c["L2_WINDOW"]),
        )
    ]


def tensors(p, c):
    """Return Q, K, V and O, each of shape [B, H, S, D], and a workspace for the pieces of divided tasks."""
    shape = (p.B, p.H, p.S, p.D)
    partials = (2 * c.GRID_BLOCKS, c.GROUPS, p.D // 8 + 1, 512) if divided(c) else (1,)
    return {
        "q": Tensor(p["dtype"], shape, large=8.0),
        "k": Tensor(p["dtype"], shape, large=8.0),
        "v": Tensor(p["dtype"], shape, large=1.0),
        "o": Tensor(p["dtype"], shape, "output"),
        **({"partials": Tensor("f32", partials, "workspace")} if bulk(c) else {}),
    }


def reference(p, t):
    """Return attention in float64, computed for some heads at a time."""
    import torch

    hidden = torch.ones(p.S, p.S, dtype=torch.bool, device=t["q"].device).triu(1) if p.causal else None
    q, k, v = (t[name].flatten(0, 1).split(max(1, SCORES_AT_ONCE // p.S**2)) for name in "qkv")
    parts = []
    for queries, keys, values in zip(q, k, v, strict=True):
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(p.D)
        if hidden is not None:
            scores.masked_fill_(hidden, -math.inf)
        parts.append(torch.softmax(scores, -1) @ values)
    return {"o": torch.cat(parts).view(t["q"].shape)}


def sdpa(p, t):
    """Return the result of PyTorch's scaled_dot_product_attention, which chooses its backend."""
    from torch.nn.functional import scaled_dot_product_attention

    return {"o": scaled_dot_product_attention(t["q"], t["k"], t["v"], is_causal=bool(p.causal))}


def sdpa_by(backend):
    """Return the same function with a fixed SDPBackend."""

    def run(p, t):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(getattr(SDPBackend, backend)):
            return sdpa(p, t)

    return run


def flash_by(module):
    """Return a function that calls flash_attn_func of a module, whose layout is [B, S, H, D]."""

    def run(p, t):
        from importlib import import_module

        q, k, v = (t[name].transpose(1, 2) for name in "qkv")
        made = import_module(module).flash_attn_func(q, k, v, causal=bool(p.causal))
        return {"o": (made[0] if isinstance(made, tuple) else made).transpose(1, 2)}

    return run


@cache
def workspace(device):
    """Return a buffer of the size that FlashInfer recommends."""
    import torch

    return torch.empty(128 << 20, dtype=torch.uint8, device=device)


@cache
def planned(B, H, S, D, causal, dtype, device):
    """Return FlashInfer's plan for B·H requests with one head each, which needs no other layout of the tensors."""
    import torch
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace(device), "NHD")
    starts = torch.arange(0, B * H * S + 1, S, dtype=torch.int32, device=device)
    wrapper.plan(starts, starts, 1, 1, D, causal=causal, q_data_type=dtype)
    return wrapper


def flashinfer(p, t):
    """Return the result of FlashInfer's attention over a batch of requests."""
    wrapper = planned(p.B, p.H, p.S, p.D, bool(p.causal), t["q"].dtype, t["q"].device)
    return {"o": wrapper.run(*(t[name].view(-1, 1, p.D) for name in "qkv")).view(t["q"].shape)}


WARPGROUP = {"TENSOR_CORES": "wgmma", "Q_LOCATION": "shared", "ROW_SUM": "add", "RESCALE": "restart"}
RINGS = {"PATH": "bulk", "Q_LOCATION": "shared", "ROW_SUM": "add", "RESCALE": "restart", "SCHEDULE": "persistent"}
SMALL_BLOCKS = {**RINGS, "GROUPS": 1, "TURNS": "free"}
SHORT = {"KV_BUFFERS": "resident", "RESCALE": "restart", "LOOKAHEAD": 4, "MIN_BLOCKS": 3}
STARTING_POINTS = (
    # A warpgroup with 64 rows; two of them along the rows, as in FlashAttention-3 (Shah et al., arXiv 2407.08608); two
    # along the keys, for few rows, as in Flash-Decoding (Dao et al., 2023). RESCALE=restart is fastest
    # (docs/lab/2026-11-27-kernels.md).
    {**WARPGROUP, "KEY_SPLITS": 1, "BLOCK_N": 64},
    {**WARPGROUP, "KEY_SPLITS": 1, "BLOCK_N": 128, "BLOCK_M": 128, "WARPS_M": 8},
    {**WARPGROUP, "KEY_SPLITS": 2, "BLOCK_N": 64},
    # The bulk path: two or three warpgroups for many rows, small steps for D = 128; heads first under a causal mask;
    # divided tasks, if some blocks would have no work in the last round; small blocks for short rows; and one block for
    # each task, if there are few.
    {**RINGS, "TILE_N": 144},
    {**RINGS, "TILE_N": 128},
    {**RINGS, "TILE_N": 128, "GRID_ORDER": "heads_fast"},
    {**RINGS, "TILE_N": 128, "GROUPS": 3},
    {**RINGS, "TILE_N": 128, "GROUPS": 3, "GRID_ORDER": "heads_fast"},
    {**RINGS, "TILE_N": 80, "GROUPS": 3},
    {**RINGS, "TILE_N": 64, "GROUPS": 3, "STAGES": 3},
    {**RINGS, "TILE_N": 64, "GROUPS": 3, "STAGES": 3, "GRID_ORDER": "heads_fast"},
    {**RINGS, "TILE_N": 64, "GROUPS": 3, "TAIL": "divided"},
    {**SMALL_BLOCKS, "TILE_N": 160, "MIN_BLOCKS": 2, "GRID_BLOCKS": 264},
    {**SMALL_BLOCKS, "TILE_N": 80, "MIN_BLOCKS": 2, "GRID_BLOCKS": 264, "GRID_ORDER": "heads_fast"},
    {**SMALL_BLOCKS, "TILE_N": 64, "MIN_BLOCKS": 3, "GRID_BLOCKS": 396, "GRID_ORDER": "heads_fast"},
    {**SMALL_BLOCKS, "TILE_N": 80, "MIN_BLOCKS": 2, "SCHEDULE": "one_task"},
    {**SMALL_BLOCKS, "TILE_N": 80, "MIN_BLOCKS": 3, "SCHEDULE": "one_task"},
    {**RINGS, "TILE_N": 80, "SCHEDULE": "one_task"},
    {**RINGS, "TILE_N": 112, "GROUPS": 3, "SCHEDULE": "one_task"},
    # Up to a few hundred keys, which shared memory holds at once: one warp for 16 rows, and a warpgroup.
    {**SHORT, "BLOCK_M": 16, "WARPS_M": 1, "KEY_SPLITS": 4, "BLOCK_N": 16, "UNROLL": 4, "MERGE": "fp32"},
    {**WARPGROUP, **SHORT, "KEY_SPLITS": 1, "BLOCK_N": 64},
)
"""Default choices of other attention kernels, and the fastest of the bulk path and for short rows, combined with
RESCALE=restart."""

kernel = Kernel(
    name="attention",
    genes=GENES,
    starting_points=STARTING_POINTS,
    fields=(
        ProblemField("B", most=65535, doc="batch"),
        ProblemField("H", most=65535, doc="heads"),
        ProblemField("S", most=1 << 22, doc="sequence length"),
        ProblemField("D", (64, 128), doc="head dimension"),
        ProblemField("causal", (0, 1), 0, doc="causal mask: hide the keys after each row"),
        ProblemField("dtype", ("f16", "bf16"), "f16", doc="element type of q, k, v and o"),
    ),
    launches=launches,
    architecture_suffix=lambda c: "a" if on_wgmma(c) else "",
    macros=macros,
    constraints=CONSTRAINTS,
    vector_accesses=lambda c, p: [
        VectorAccess("rows of q, k, v and o", 16, (2 * p.D, 2 * p.S * p.D)),
        VectorAccess("shared rows", 16, (row_bytes(c, p),)),
    ],
    workload=Workload(
        tensors=tensors,
        reference=reference,
        error={
            "o": Attention(
                depth=lambda p: p.D,
                keys=lambda p: p.S,
                probabilities=lambda c, p: p["dtype"],
                exponential=lambda c, p: "f16" if c["EXP"] == "f16x2" else "f32",
                scores=lambda c, p: "f16" if c["QK_ACC"] == "fp16" or c["SCORE_BUFFER"] == "half" else "f32",
                values=lambda c, p: "f16" if c["PV_ACC"] == "fp16" else "f32",
                merge=lambda c, p: p["dtype"] if c["MERGE"] == "fp16" else "f32",
            )
        },
        flops=lambda p: 4 * p.B * p.H * p.D * (p.S * (p.S + 1) / 2 if p.causal else p.S * p.S),
        bytes=lambda p: 4 * 2 * p.B * p.H * p.S * p.D,
        baselines=(
            Baseline("SDPA", sdpa),
            Baseline("SDPA flash", sdpa_by("FLASH_ATTENTION")),
            Baseline("SDPA cuDNN", sdpa_by("CUDNN_ATTENTION")),
            Baseline("SDPA efficient", sdpa_by("EFFICIENT_ATTENTION")),
            Baseline("SDPA math", sdpa_by("MATH")),
            Baseline("FlashAttention 4", flash_by("flash_attn.cute.interface"), requires="flash_attn.cute.interface"),
            Baseline("FlashAttention 2", flash_by("flash_attn"), requires="flash_attn.flash_attn_interface"),
            Baseline("FlashInfer", flashinfer, requires="flashinfer"),
        ),
        small_problems=("B=1,H=2,S=72", "B=1,H=1,S=192", "B=1,H=2,S=64", "B=1,H=1,S=328", "B=1,H=1,S=1032"),
        slices=(Slice(dict.fromkeys("qkvo", (0, 1)), fields=("B", "H")),),  # heads are independent
    ),
)
