"""FlashAttention forward on 8-bit inputs (E4M3, or biased bytes) with per-head scales and fp16 output."""

import math
from dataclasses import replace

from evokern import (
    AtMost,
    Attention,
    Baseline,
    Constraint,
    Kernel,
    Launch,
    Mutation,
    Parameter,
    ProblemField,
    Slice,
    Tensor,
    VectorAccess,
    Workload,
    divides,
    f32,
    i32,
)

SCORES_AT_ONCE = 2**27
"""Scores that the reference computes at once: 1 GiB in float64, and two or three times that temporarily."""

GENES = (
    Mutation("DEQUANTISE", ("in_registers", "on_load"),
             doc="convert bytes to fp16 after reading a fragment, or before storing them to shared memory",
             relieves={"shared-memory": 2, "arithmetic": 2, "memory": 1}),
    Mutation("MMA", ("fp16", "e4m3", "int8"), when={"DEQUANTISE": ("in_registers",)},
             min_compute_capability={"e4m3": (8, 9)},
             doc="operand type for Q K^T: fp16 after conversion, or an 8-bit type",
             relieves={"tensor": 3, "arithmetic": 2}),
    Mutation("E4M3_TO_FP16", ("bits", "cvt"), min_compute_capability={"cvt": (8, 9)},
             doc="conversion of E4M3 to fp16 by moving bits, or by the cvt instruction",
             relieves={"arithmetic": 2}),
    Mutation("ZERO_POINT", ("folded", "subtracted"),
             doc="for biased bytes: 128 subtracted from the final result, or from each element"),
    Mutation("KV_LOAD", ("cp_async", "vector16", "scalar"), doc="method of copying Q, K and V to shared memory",
             relieves={"memory": 2, "shared-memory": 1, "latency": 1}),
    Mutation("LENGTH", ("static", "steps", "runtime"),
             doc="compile-time sequence length: unrolled loops, and no tail code if all tiles are whole; or only the "
                 "number of steps, so that one program runs all lengths with as many steps; or neither",
             relieves={"arithmetic": 2, "latency": 1}),
    Mutation("SMEM_LAYOUT", ("xor_swizzle", "padded"), doc="layout of tiles in shared memory",
             relieves={"shared-memory": 4, "memory": 1}),
    Parameter("ROW_PAD", (16, 0, 4, 8), when={"SMEM_LAYOUT": ("padded",)},
              doc="padding bytes between rows in shared memory; 16-byte accesses need a multiple of 16 bytes",
              relieves={"shared-memory": 2, "memory": 1}),
    Mutation("FRAGMENT_LOAD", ("ldmatrix", "words"), doc="fragments read with ldmatrix, or with 32-bit loads",
             relieves=("memory", "shared-memory")),
    Mutation("EXP", ("fp32", "f16x2"), doc="exponentials in fp32, or in pairs in fp16",
             relieves={"arithmetic": 2}),
    Mutation("RESCALE", ("lazy", "on_change", "always"), doc="when to rescale the output to a new row maximum",
             relieves=("arithmetic",)),
    Mutation("LOOP_ORDER", ("qk_first", "plain"),
             doc="compute the scores of the next step concurrently with the output of the current step, or after it",
             relieves=("memory", "latency")),
    Mutation("GRID_ORDER", ("rows_fast", "heads_fast"), doc="fastest index over the grid: row blocks or heads",
             relieves={"memory": 2, "launch": 1}),
    Parameter("BLOCK_M", (16, 32, 64, 128), default=64, doc="query rows per block", relieves=("launch",)),
    Parameter("WARPS_M", (1, 2, 4, 8), default=4, doc="warps along the query rows", relieves=("latency",)),
    Parameter("KEY_SPLITS", (1, 2, 4, 8), default=2, doc="warps along the keys; each processes a part of every step",
              relieves={"latency": 2, "launch": 1}),
    Parameter("BLOCK_N", (16, 32, 64, 128), default=32, doc="keys per split and step",
              relieves=("latency", "launch")),
    Parameter("STAGES", (2, 1, 3, 4), doc="buffers for K and for V: a ring, or one per step if they suffice",
              relieves={"latency": 3}),
    Parameter("UNROLL", (1, 2, 4), doc="number of unrolled steps", relieves=("latency", "arithmetic")),
    Parameter("MIN_BLOCKS", (1, 2, 3, 4), doc="minimum resident blocks per SM, which limits the registers",
              relieves=("latency", "launch", "arithmetic")),
)  # fmt: skip


# ---- sizes, which the source receives as macros


def on_load(c):
    """Return whether shared memory holds fp16."""
    return c["DEQUANTISE"] == "on_load"


def by_words(c):
    """Return whether fragments are read with 32-bit loads."""
    return c["FRAGMENT_LOAD"] == "words"


def threads(c):
    """Return the threads per block."""
    return 32 * c.WARPS_M * c.KEY_SPLITS


def row_tiles(c):
    """Return the number of 16-row query tiles per warp."""
    return c.BLOCK_M // (16 * c.WARPS_M)


def total_steps(c, p):
    """Return the number of steps over all keys; in each step, every split processes BLOCK_N keys."""
    return -(-p.S // (c.BLOCK_N * c.KEY_SPLITS))


def element_bytes(c):
    """Return the bytes of one element in shared memory."""
    return 2 if on_load(c) else 1


def row_bytes(c, p):
    """Return the stride of rows in shared memory, in bytes."""
    return element_bytes(c) * p.D + (c.ROW_PAD if c["SMEM_LAYOUT"] == "padded" else 0)


def resident(c, p):
    """Return whether each step has its own buffer, so that no buffer is filled twice."""
    return c["LENGTH"] != "runtime" and total_steps(c, p) <= c.STAGES


def buffers(c, p):
    """Return the number of buffers for K in each split; the number for V is the same."""
    return total_steps(c, p) if resident(c, p) else c.STAGES


def groups_ahead(c, p):
    """Return the load groups in flight: the free buffers of a ring, or of all groups, one more than steps."""
    return min(c.STAGES, total_steps(c, p) + 1) if resident(c, p) else c.STAGES - 1


def columns_of_thread(c):
    """Return the consecutive output columns of a thread; see OutputColumns in fragments.cuh."""
    return (2 if on_load(c) else 4) * (2 if by_words(c) else 1)


def partial_row_bytes(c, p):
    """Return the row stride of a partial output in bytes; the padding spreads a warp's stores over the banks."""
    return 2 * p.D + 8 * columns_of_thread(c)


def split_bytes(c, p):
    """Return the bytes of a split's memory: the buffers for K and V, later the partial output."""
    keys = 2 * buffers(c, p) * c.BLOCK_N * row_bytes(c, p)
    return keys if c.KEY_SPLITS == 1 else max(keys, c.BLOCK_M * partial_row_bytes(c, p))


def shared_bytes(c, p):
    """Return the bytes of dynamic shared memory: Q, the memory of each split, and references and sums of the splits."""
    exchange = 8 * c.KEY_SPLITS * c.BLOCK_M if c.KEY_SPLITS > 1 else 0
    return c.BLOCK_M * row_bytes(c, p) + c.KEY_SPLITS * split_bytes(c, p) + exchange


def macros(c, p):
    """Return the problem and the sizes; SEQ_LEN and TOTAL_STEPS are 0 if they are known only at run time."""
    return {
        "HEAD_DIM": p.D, "CAUSAL": p.causal, "BIASED": int(p["dtype"] == "u8"),
        "SEQ_LEN": p.S if c["LENGTH"] == "static" else 0,
        "TOTAL_STEPS": 0 if c["LENGTH"] == "runtime" else total_steps(c, p),
        "THREADS": threads(c), "TILES_M": row_tiles(c), "STEP_KEYS": c.BLOCK_N * c.KEY_SPLITS,
        "ELEMENT_BYTES": element_bytes(c), "ROW_BYTES": row_bytes(c, p), "TILE_BYTES": c.BLOCK_N * row_bytes(c, p),
        "RESIDENT": int(resident(c, p)), "BUFFERS": buffers(c, p), "AHEAD": groups_ahead(c, p),
        "COLUMNS_OF_THREAD": columns_of_thread(c), "PARTIAL_ROW_BYTES": partial_row_bytes(c, p),
        "SPLIT_BYTES": split_bytes(c, p),
    }  # fmt: skip


def held_registers(c, p):
    """Compare the registers that fragments need with the limit from the launch bounds."""
    query = p.D // (4 if c["MMA"] == "fp16" else 8)
    needed = row_tiles(c) * (p.D // 2 + c.BLOCK_N // 2 + query + 6) + 40
    return AtMost(needed, min(255, 65536 // (threads(c) * c.MIN_BLOCKS) // 8 * 8), "registers")


# ---- rules

CONSTRAINTS = (
    Constraint("rows_split_over_warps", lambda c: divides(16 * c.WARPS_M, c.BLOCK_M, "rows"),
               "the rows of a warp must be whole tiles of 16 query rows"),
    Constraint("threads_within_block", lambda c: AtMost(threads(c), 1024, "threads"),
               "a block has at most 1024 threads"),
    Constraint("async_copies_raw_bytes", lambda c: c["KV_LOAD"] != "cp_async" or not on_load(c),
               "cp.async cannot convert the bytes that it copies"),
    Constraint("mma_takes_the_dtype", lambda c, p: c["MMA"] == "fp16" or (c["MMA"] == "int8") == (p["dtype"] == "u8"),
               "8-bit tensor cores need operands of the inputs' type"),
    Constraint("conversion_of_e4m3", lambda c, p: c["E4M3_TO_FP16"] == "bits" or p["dtype"] == "e4m3",
               "E4M3_TO_FP16 has no effect on biased bytes", wasteful=True),
    Constraint("zero_point_of_bytes", lambda c, p: c["ZERO_POINT"] == "folded" or p["dtype"] == "u8",
               "E4M3 has no zero point to subtract", wasteful=True),
    Constraint("ring_within_steps", lambda c, p: AtMost(c.STAGES, max(total_steps(c, p) + 1, 2), "buffers"),
               "more buffers than steps would stay empty", wasteful=True),
    Constraint("unroll_needs_known_steps", lambda c, p: c.UNROLL == 1 or (c["LENGTH"] != "runtime" and not p.causal),
               "unrolling a loop of unknown length mostly adds unused code", wasteful=True),
    Constraint("unroll_within_steps", lambda c, p: c.UNROLL == 1 or AtMost(c.UNROLL, total_steps(c, p), "steps"),
               "unrolling by more than the number of steps has no effect", wasteful=True),
    Constraint("unrolled_code_stays_small",
               lambda c, p: AtMost(c.UNROLL * c.BLOCK_N * row_tiles(c) * p.D // 64, 256, "units"),
               "larger unrolled code exceeds the instruction cache and takes seconds to compile", wasteful=True),
    Constraint("registers_hold_fragments", held_registers,
               "output, scores and Q must fit in registers, because spills cost more than this choice saves"),
    Constraint("heads_fit_grid", lambda c, p: AtMost(p.B * p.H, 65535, "heads"),
               "an axis of the grid has at most 65535 heads"),
)  # fmt: skip


def vector_accesses(c, p):
    """Return the 16-byte accesses, whose row strides must be multiples of 16 bytes."""
    found = []
    if c["KV_LOAD"] != "scalar":
        found.append(VectorAccess("rows of q, k and v", 16, (p.D, p.S * p.D)))
        found.append(VectorAccess("stored rows of shared memory", 16, (row_bytes(c, p),)))
    if not by_words(c):
        found.append(VectorAccess("rows of shared memory that ldmatrix reads", 16, (row_bytes(c, p),)))
    return found


def launches(c, p):
    """Return the launch, with one block for each block of query rows of each head."""
    rows, heads = -(-p.S // c.BLOCK_M), p.B * p.H
    return [
        Launch(
            "attention_fp8",
            (rows, heads) if c["GRID_ORDER"] == "rows_fast" else (heads, rows),
            threads(c),
            ("q", "k", "v", "q_scale", "k_scale", "v_scale", "o", i32(p.S), f32(math.log2(math.e) / math.sqrt(p.D))),
            shared_bytes=shared_bytes(c, p),
            min_blocks=c.MIN_BLOCKS,
        )
    ]


def tensors(p, c):
    """Return Q, K and V in 8 bits, their scales per head, and O in fp16.

    The `large` inputs have large elements and correspondingly small scales. The scores remain in a range where fp16
    SDPA, which rounds the scaled inputs to fp16, is within the tolerance.
    """
    shape, heads = (p.B, p.H, p.S, p.D), (p.B, p.H, 1)
    biased = p["dtype"] == "u8"
    one = 1 / 74 if biased else 1.0  # 74: standard deviation of uniform bytes
    large = one if biased else 1 / 16
    element = Tensor("u8", shape, low=0, high=255) if biased else Tensor("e4m3", shape, large=16.0)
    return {
        "q": element,
        "k": element,
        "v": element,
        "q_scale": Tensor("f32", heads, scale=one / 2, large=large / 2),
        "k_scale": Tensor("f32", heads, scale=one / 2, large=large / 2),
        "v_scale": Tensor("f32", heads, scale=one, large=large),
        "o": Tensor("f16", shape, "output"),
    }


def dequantised(p, t, of_type=None):
    """Return q, k and v as numbers: element (minus 128 if biased) times the magnitude of its head's scale."""
    zero = 128 if p["dtype"] == "u8" else 0
    result = {}
    for name in ("q", "k", "v"):
        scale = t[f"{name}_scale"].abs().reshape(p.B, p.H, 1, 1)
        result[name] = ((t[name].to(scale.dtype) - zero) * scale).to(of_type or scale.dtype)
    return result


def merged_unit(p, t):
    """Return the value of a 1 in fp16 partial outputs: bits of E4M3 are fp16 numbers divided by 256."""
    return t["v_scale"].abs().reshape(p.B, p.H, 1, 1) * (1 if p["dtype"] == "u8" else 256)


def zero_points(p, t):
    """Return the zero points of keys and values times the scales."""
    zero = 128.0 if p["dtype"] == "u8" else 0.0
    return tuple(t[f"{name}_scale"].abs().reshape(p.B, p.H, 1, 1) * zero for name in "kv")


def reference(p, t):
    """Return attention of the dequantised inputs in float64."""
    return {"o": attended(p, dequantised(p, t))}


def attended(p, x):
    """Return attention of q, k and v, computed for some heads at a time."""
    import torch

    hidden = torch.ones(p.S, p.S, dtype=torch.bool, device=x["q"].device).triu(1) if p.causal else None
    q, k, v = (x[name].flatten(0, 1).split(max(1, SCORES_AT_ONCE // p.S**2)) for name in "qkv")
    parts = []
    for queries, keys, values in zip(q, k, v, strict=True):
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(p.D)
        if hidden is not None:
            scores.masked_fill_(hidden, -math.inf)
        parts.append(torch.softmax(scores, -1) @ values)
    return torch.cat(parts).view(x["q"].shape)


def halves(p, t):
    """Return q, k and v as fp16, the inputs of an fp16 attention."""
    import torch

    return dequantised(p, t, torch.float16)


def sdpa(p, t):
    """Return the result of PyTorch's scaled_dot_product_attention on fp16, which chooses its backend."""
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


BOUND = Attention(
    depth=lambda p: p.D,
    keys=lambda p: p.S,
    operands=dequantised,
    attend=attended,
    score_bits=lambda c, p: 8 if c["MMA"] == "e4m3" else 16,
    probabilities="f16",
    exponential=lambda c, p: "f16" if c["EXP"] == "f16x2" else "f32",
    merge=lambda c, p: "f16" if c.KEY_SPLITS > 1 else "f32",
    merge_unit=merged_unit,
    offsets=zero_points,
    keeps_offsets=lambda c, p: c["ZERO_POINT"] == "folded",
)
HALVES = {"o": replace(BOUND, rounded="f16")}
"""Bound of the baselines, which multiply elements and scales before they round to fp16."""

kernel = Kernel(
    name="attention_fp8",
    genes=GENES,
    fields=(
        ProblemField("B", most=65535, doc="batch"),
        ProblemField("H", most=65535, doc="heads"),
        ProblemField("S", most=1 << 22, doc="sequence length"),
        ProblemField("D", (64, 128), doc="head dimension"),
        ProblemField("causal", (0, 1), 0, doc="causal mask: hide the keys after each row"),
        ProblemField("dtype", ("e4m3", "u8"), "e4m3", doc="element type of q, k and v; u8 is a byte minus 128"),
    ),
    launches=launches,
    macros=macros,
    constraints=CONSTRAINTS,
    vector_accesses=vector_accesses,
    workload=Workload(
        tensors=tensors,
        reference=reference,
        error={"o": BOUND},
        flops=lambda p: 4 * p.B * p.H * p.D * (p.S * (p.S + 1) / 2 if p.causal else p.S * p.S),
        bytes=lambda p: p.B * p.H * (5 * p.S * p.D + 12),
        baselines=(
            Baseline("fp16 SDPA", sdpa, halves, HALVES),
            Baseline("fp16 SDPA flash", sdpa_by("FLASH_ATTENTION"), halves, HALVES),
            Baseline("fp16 SDPA cuDNN", sdpa_by("CUDNN_ATTENTION"), halves, HALVES),
            Baseline("fp16 SDPA efficient", sdpa_by("EFFICIENT_ATTENTION"), halves, HALVES),
            Baseline(
                "fp16 FlashAttention 4",
                flash_by("flash_attn.cute.interface"),
                halves,
                HALVES,
                requires="flash_attn.cute.interface",
            ),
            Baseline("dequantise + fp16 SDPA", lambda p, t: sdpa(p, halves(p, t)), error=HALVES),
        ),
        small_problems=("B=1,H=2,S=72", "B=1,H=1,S=192", "B=1,H=2,S=64", "B=1,H=1,S=328", "B=1,H=1,S=1032"),
        slices=(
            Slice(dict.fromkeys(("q", "k", "v", "q_scale", "k_scale", "v_scale", "o"), (0, 1)), fields=("B", "H")),
        ),  # heads are independent
    ),
)
