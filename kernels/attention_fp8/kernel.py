"""FlashAttention forward on 8-bit inputs (E4M3, or biased bytes) with per-head scales and fp16 output."""

import math

from evokern import (
    Baseline,
    Constraint,
    Kernel,
    Launch,
    Mutation,
    Need,
    Parameter,
    ProblemField,
    Slice,
    Tensor,
    Tolerance,
    VectorAccess,
    Workload,
    divides,
    f32,
    i32,
)

SCORES_AT_ONCE = 2**27
"""Scores that the reference computes at once, in float64: a GiB, and two or three of them while it does."""

GENES = (
    Mutation("DEQUANTISE", ("in_registers", "on_load"),
             doc="bytes become fp16 after a fragment is read, or on their way into shared memory",
             relieves={"shared-memory": 2, "arithmetic": 2, "memory": 1}),
    Mutation("MMA", ("fp16", "e4m3", "int8"), when={"DEQUANTISE": ("in_registers",)},
             min_compute_capability={"e4m3": (8, 9)},
             doc="tensor cores that multiply Q K^T: fp16 after conversion, or the 8-bit types as they are",
             relieves={"tensor": 3, "arithmetic": 2}),
    Mutation("E4M3_TO_FP16", ("bits", "cvt"), min_compute_capability={"cvt": (8, 9)},
             doc="E4M3 becomes fp16 by moving its bits, or by the instruction for it",
             relieves={"arithmetic": 2}),
    Mutation("ZERO_POINT", ("folded", "subtracted"),
             doc="biased bytes: 128 taken off the end result, or off each element"),
    Mutation("KV_LOAD", ("cp_async", "vector16", "scalar"), doc="how Q, K and V reach shared memory",
             relieves={"memory": 2, "shared-memory": 1, "latency": 1}),
    Mutation("STATIC_SEQ", (1, 0), doc="the length is a constant: no tail code where it divides, loops unroll",
             relieves={"arithmetic": 2, "latency": 1}),
    Mutation("SMEM_LAYOUT", ("xor_swizzle", "padded"), doc="layout of tiles in shared memory",
             relieves={"shared-memory": 4, "memory": 1}),
    Parameter("ROW_PAD", (16, 0, 4, 8), when={"SMEM_LAYOUT": ("padded",)},
              doc="bytes between rows in shared memory; 16-byte accesses need a stride of whole 16 bytes",
              relieves={"shared-memory": 2, "memory": 1}),
    Mutation("FRAGMENT_LOAD", ("ldmatrix", "words"), doc="fragments read by ldmatrix, or by 32-bit loads",
             relieves=("memory", "shared-memory")),
    Mutation("EXP", ("fp32", "f16x2"), doc="exponentials one by one in fp32, or in pairs in fp16",
             relieves={"arithmetic": 2}),
    Mutation("RESCALE", ("lazy", "on_change", "always"), doc="when the output is rescaled to a new row maximum",
             relieves=("arithmetic",)),
    Mutation("LOOP_ORDER", ("qk_first", "plain"), doc="scores of the next step beside the output of this, or after",
             relieves=("memory", "latency")),
    Mutation("GRID_ORDER", ("rows_fast", "heads_fast"), doc="which index runs fastest over the grid",
             relieves={"memory": 2, "launch": 1}),
    Parameter("BLOCK_M", (16, 32, 64, 128), default=64, doc="query rows of a block", relieves=("launch",)),
    Parameter("WARPS_M", (1, 2, 4, 8), default=4, doc="warps along the query rows", relieves=("latency",)),
    Parameter("KEY_SPLITS", (1, 2, 4, 8), default=2, doc="warps along the keys, each with a share of every step",
              relieves={"latency": 2, "launch": 1}),
    Parameter("BLOCK_N", (16, 32, 64, 128), default=32, doc="keys of one split in one step",
              relieves=("latency", "launch")),
    Parameter("STAGES", (2, 1, 3, 4), doc="buffers for K and for V: a ring, or one for each step where they suffice",
              relieves={"latency": 3}),
    Parameter("UNROLL", (1, 2, 4), doc="steps unrolled", relieves=("latency", "arithmetic")),
    Parameter("MIN_BLOCKS", (1, 2, 3, 4), doc="resident blocks promised to the compiler: bounds the registers",
              relieves=("latency", "launch", "arithmetic")),
)  # fmt: skip


# ---- sizes, as in choice.h


def on_load(c):
    """Whether shared memory holds fp16."""
    return c["DEQUANTISE"] == "on_load"


def by_words(c):
    """Whether fragments are read by 32-bit loads."""
    return c["FRAGMENT_LOAD"] == "words"


def threads(c):
    """Threads of a block."""
    return 32 * c.WARPS_M * c.KEY_SPLITS


def row_tiles(c):
    """Tiles of 16 query rows of a warp."""
    return c.BLOCK_M // (16 * c.WARPS_M)


def total_steps(c, p):
    """Steps over all keys: in each, every split takes BLOCK_N of them."""
    return -(-p.S // (c.BLOCK_N * c.KEY_SPLITS))


def row_bytes(c, p):
    """Stride of rows in shared memory, in bytes."""
    return (2 if on_load(c) else 1) * p.D + (c.ROW_PAD if c["SMEM_LAYOUT"] == "padded" else 0)


def shared_bytes(c, p):
    """Dynamic shared memory of a block: Q, each split's buffers or partial output, the exchange of row sums."""
    row = row_bytes(c, p)
    buffers = min(c.STAGES, total_steps(c, p)) if c.STATIC_SEQ else c.STAGES
    keys = 2 * buffers * c.BLOCK_N * row
    if c.KEY_SPLITS == 1:
        return c.BLOCK_M * row + keys
    columns = (2 if on_load(c) else 4) * (2 if by_words(c) else 1)
    partial = c.BLOCK_M * (2 * p.D + 8 * columns)
    return c.BLOCK_M * row + c.KEY_SPLITS * max(keys, partial) + 8 * c.KEY_SPLITS * c.BLOCK_M


def held_registers(c, p):
    """Compare the registers that fragments fill with those that launch bounds leave."""
    query = p.D // (4 if c["MMA"] == "fp16" else 8)
    needed = row_tiles(c) * (p.D // 2 + c.BLOCK_N // 2 + query + 6) + 40
    return Need(needed, min(255, 65536 // (threads(c) * c.MIN_BLOCKS) // 8 * 8), "registers")


# ---- rules, as in choice.h

CONSTRAINTS = (
    Constraint("rows_split_over_warps", lambda c: divides(16 * c.WARPS_M, c.BLOCK_M, "rows"),
               "each warp takes whole tiles of 16 query rows"),
    Constraint("threads_within_block", lambda c: Need(threads(c), 1024, "threads"), "a block has at most 1024 threads"),
    Constraint("async_copies_raw_bytes", lambda c: c["KV_LOAD"] != "cp_async" or not on_load(c),
               "cp.async copies bytes and cannot convert them on the way"),
    Constraint("mma_takes_the_dtype", lambda c, p: c["MMA"] == "fp16" or (c["MMA"] == "int8") == (p["dtype"] == "u8"),
               "8-bit tensor cores multiply the type that the inputs have"),
    Constraint("conversion_of_e4m3", lambda c, p: c["E4M3_TO_FP16"] == "bits" or p["dtype"] == "e4m3",
               "biased bytes are converted in one way only", wasteful=True),
    Constraint("zero_point_of_bytes", lambda c, p: c["ZERO_POINT"] == "folded" or p["dtype"] == "u8",
               "E4M3 has no zero point to take off", wasteful=True),
    Constraint("ring_within_steps", lambda c, p: Need(c.STAGES, max(total_steps(c, p) + 1, 2), "buffers"),
               "buffers beyond the number of steps are never filled", wasteful=True),
    Constraint("unroll_needs_known_steps", lambda c, p: c.UNROLL == 1 or (c.STATIC_SEQ == 1 and not p.causal),
               "a loop of unknown length unrolls into code that mostly waits in the instruction cache", wasteful=True),
    Constraint("unroll_within_steps", lambda c, p: c.UNROLL == 1 or Need(c.UNROLL, total_steps(c, p), "steps"),
               "unrolling past the last step changes nothing", wasteful=True),
    Constraint("unrolled_code_stays_small",
               lambda c, p: Need(c.UNROLL * c.BLOCK_N * row_tiles(c) * p.D // 64, 256, "units"),
               "unrolled fragments beyond this outgrow the instruction cache and compile for seconds", wasteful=True),
    Constraint("registers_hold_fragments", held_registers,
               "output, scores and Q live in registers at once, and spilled ones cost more than they save"),
    Constraint("heads_fit_grid", lambda c, p: Need(p.B * p.H, 65535, "heads"), "heads are an axis of the grid"),
)  # fmt: skip


def vector_accesses(c, p):
    """16-byte accesses, whose rows must be multiples of 16 bytes apart."""
    found = []
    if c["KV_LOAD"] != "scalar":
        found.append(VectorAccess("rows of q, k and v", 16, (p.D, p.S * p.D)))
        found.append(VectorAccess("stored rows of shared memory", 16, (row_bytes(c, p),)))
    if not by_words(c):
        found.append(VectorAccess("rows of shared memory that ldmatrix reads", 16, (row_bytes(c, p),)))
    return found


def launches(c, p):
    """One block for each block of query rows of each head."""
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
    """Q, K and V in 8 bits, a scale of each for each head, and O in fp16.

    The large set has large elements and scales as much smaller: scores stay where fp16 SDPA, which must round scaled
    inputs to fp16, is still within the tolerance.
    """
    shape, heads = (p.B, p.H, p.S, p.D), (p.B, p.H, 1)
    biased = p["dtype"] == "u8"
    one = 1 / 74 if biased else 1.0  # 74: the deviation of uniform bytes
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
    """Return q, k and v as numbers: element (less 128 where biased) times the magnitude of its head's scale."""
    zero = 128 if p["dtype"] == "u8" else 0
    result = {}
    for name in ("q", "k", "v"):
        scale = t[f"{name}_scale"].abs().reshape(p.B, p.H, 1, 1)
        result[name] = ((t[name].to(scale.dtype) - zero) * scale).to(of_type or scale.dtype)
    return result


def reference(p, t):
    """Softmax over whole rows of scores of the dequantised inputs, some heads at a time."""
    import torch

    x = dequantised(p, t)
    hidden = torch.ones(p.S, p.S, dtype=torch.bool, device=x["q"].device).triu(1) if p.causal else None
    q, k, v = (x[name].flatten(0, 1).split(max(1, SCORES_AT_ONCE // p.S**2)) for name in "qkv")
    parts = []
    for queries, keys, values in zip(q, k, v, strict=True):
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(p.D)
        if hidden is not None:
            scores.masked_fill_(hidden, -math.inf)
        parts.append(torch.softmax(scores, -1) @ values)
    return {"o": torch.cat(parts).view(x["q"].shape)}


def halves(p, t):
    """Return q, k and v as fp16, which is what fp16 attention would be given."""
    import torch

    return dequantised(p, t, torch.float16)


def sdpa(p, t):
    """PyTorch's scaled_dot_product_attention on fp16, which chooses its backend."""
    from torch.nn.functional import scaled_dot_product_attention

    return {"o": scaled_dot_product_attention(t["q"], t["k"], t["v"], is_causal=bool(p.causal))}


def sdpa_by(backend):
    """Return the same call held to one of torch's SDPBackend."""

    def run(p, t):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(getattr(SDPBackend, backend)):
            return sdpa(p, t)

    return run


kernel = Kernel(
    name="attention_fp8",
    genes=GENES,
    fields=(
        ProblemField("B", most=65535, doc="batch"),
        ProblemField("H", most=65535, doc="heads"),
        ProblemField("S", most=1 << 22, doc="sequence length"),
        ProblemField("D", (64, 128), doc="head dimension"),
        ProblemField("causal", (0, 1), 0, doc="hide keys after the row"),
        ProblemField("dtype", ("e4m3", "u8"), "e4m3", doc="elements of q, k and v; u8 stands for u8 - 128"),
    ),
    launches=launches,
    macros=lambda c, p: {
        "HEAD_DIM": p.D,
        "CAUSAL": p.causal,
        "SEQ_LEN": p.S if c.STATIC_SEQ else 0,
        "BIASED": int(p["dtype"] == "u8"),
    },
    constraints=CONSTRAINTS,
    vector_accesses=vector_accesses,
    workload=Workload(
        tensors=tensors,
        reference=reference,
        # Rounding P to fp16 leaves up to 2^-12 of |v - o|, that is 1e-3 at |v| = 4; the output's rounding adds 2^-12.
        tolerance={"o": Tolerance(2e-3, 2e-3)},
        flops=lambda p: 4 * p.B * p.H * p.D * (p.S * (p.S + 1) / 2 if p.causal else p.S * p.S),
        bytes=lambda p: p.B * p.H * (5 * p.S * p.D + 12),
        baselines=(
            Baseline("fp16 SDPA", sdpa, halves),
            Baseline("fp16 SDPA flash", sdpa_by("FLASH_ATTENTION"), halves),
            Baseline("fp16 SDPA cuDNN", sdpa_by("CUDNN_ATTENTION"), halves),
            Baseline("fp16 SDPA efficient", sdpa_by("EFFICIENT_ATTENTION"), halves),
            Baseline("dequantise + fp16 SDPA", lambda p, t: sdpa(p, halves(p, t))),
        ),
        small_problems=("B=1,H=2,S=72", "B=1,H=1,S=192", "B=1,H=2,S=64", "B=1,H=1,S=328", "B=1,H=1,S=1032"),
        slices=(
            Slice(dict.fromkeys(("q", "k", "v", "q_scale", "k_scale", "v_scale", "o"), (0, 1)), fields=("B", "H")),
        ),  # a head by itself
    ),
)
