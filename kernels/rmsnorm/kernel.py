"""Root-mean-square normalisation of the rows of a matrix in fp16 or bf16; memory-bound."""

from functools import cache

from evokern import (
    AtMost,
    Baseline,
    Constraint,
    Kernel,
    Launch,
    Mutation,
    Parameter,
    ProblemField,
    RmsNorm,
    Slice,
    Tensor,
    Tolerance,
    VectorAccess,
    Workload,
    divides,
    f32,
    i32,
)

EPS = 1e-5
BF16_ROUNDOFF = 2.0**-8
"""Unit roundoff u of bfloat16, half a unit in the last of its 8 significant bits: |round(y) - y| <= u |y| (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 2.2)."""
F16_ROUNDOFF = 2.0**-11
"""Unit roundoff of fp16, which has 11 significant bits."""
FLUSHED = 2.0**-126
"""Smallest normal number of fp32 and bf16; smaller results may be flushed to zero."""
F16_LEAST = 2.0**-25
"""Half of the smallest fp16 number; fp16 additions do not flush subnormal results by default (PTX ISA, "add.f16")."""
MOST_WORDS = 128
"""Maximum number of words of a row per thread: half of a thread's registers."""
SEVERAL = {"ROW_SUM": ("every_block", "two_launches", "cluster")}
GENES = (
    Mutation("ROW_SUM", ("block", "every_block", "two_launches", "cluster"),
             doc="computes the row sum: the block that scales the row, every block of the row, an earlier launch, or a "
                 "cluster of the row's blocks",
             min_compute_capability={"cluster": (9, 0)}, relieves={"launch": 2, "latency": 2}),
    Parameter("BLOCKS_PER_ROW", (2, 4, 8, 16, 32), when=SEVERAL, doc="blocks that share a row", relieves=("latency",)),
    Parameter("ROW_STEPS", (1, 2, 4, 8, 16, 32), when={"ROW_SUM": ("block",)},
              doc="rows that a group of threads processes one after another", relieves={"launch": 2, "memory": 2}),
    Mutation("PREFETCH", ("none", "registers", "cp_async"), when={"ROW_STEPS": (2, 4, 8, 16, 32)},
             doc="prefetch of the next rows during a row's sum: none, into registers, or into shared memory",
             relieves={"memory": 3, "latency": 3}),
    Parameter("STAGES", (2, 3, 4), when={"PREFETCH": ("cp_async",)},
              doc="number of rows in shared memory per group of threads", relieves=("memory", "latency")),
    Mutation("ROW_STORAGE", ("registers", "shared", "reread"), when={"ROW_SUM": ("block", "cluster")},
             doc="storage of a row between summing and scaling it", relieves=("shared-memory", "arithmetic")),
    Mutation("WEIGHT_LOAD", ("after_sum", "before_sum"), doc="when the weights are loaded",
             relieves=("memory", "latency")),
    Mutation("LOAD_POLICY", ("normal", "streaming"), when={"PREFETCH": ("none", "registers")},
             doc="cache policy of row loads", relieves={"memory": 3}),
    Mutation("STORE_POLICY", ("normal", "streaming"), doc="cache policy of stores", relieves={"memory": 3}),
    Parameter("THREADS_PER_ROW", (4, 8, 16, 32, 64, 128, 256, 512, 1024), default=256,
              doc="maximum number of threads per row", relieves=("launch",)),
    Parameter("ROWS_PER_BLOCK", (1, 2, 4, 8, 16, 32, 64), doc="minimum number of rows per block", relieves=("launch",)),
    Parameter("VECTOR", (2, 4, 8), default=8, doc="maximum number of elements per access",
              relieves={"memory": 2, "arithmetic": 1}),
    Parameter("MIN_BLOCKS", (1, 2, 3, 4, 6, 8), doc="minimum resident blocks per SM, which limits the registers",
              relieves=("latency", "launch")),
)  # fmt: skip


def up(number, divisor):
    """Return number / divisor rounded up."""
    return -(-number // divisor)


def residual(p):
    """Return whether a residual is added first and the sum is returned."""
    return p["residual"] == "add"


def width(c, p):
    """Return the elements per access: the largest power of two that divides VECTOR and the columns."""
    return (p.COLS | c.VECTOR) & -(p.COLS | c.VECTOR)


def words(c, p):
    """Return the 32-bit words of a vector; in odd rows a vector is a pair of elements with two accesses."""
    return max(1, width(c, p) // 2)


def blocks(c):
    """Return the number of blocks per row."""
    return 1 if c["ROW_SUM"] == "block" else c.BLOCKS_PER_ROW


def read_once(c):
    """Return whether each block loads only the part of the row that it scales."""
    return c["ROW_SUM"] in ("block", "cluster")


def vectors(c, p):
    """Return the vectors of a row, and the vectors that one block scales."""
    total = up(p.COLS, 2 * words(c, p))
    return total, up(total, blocks(c))


def accesses(c, p):
    """Return the number of vectors that one thread scales."""
    return up(vectors(c, p)[1], c.THREADS_PER_ROW)


def threads(c, p):
    """Return the threads per row: the fewest with the same number of accesses, as whole warps or a part of a warp."""
    busy = up(vectors(c, p)[1], accesses(c, p))
    return next((part for part in (4, 8, 16) if busy <= part), 32 * up(busy, 32))


def rows(c, p):
    """Return the rows per block, at least the rows of one warp."""
    return max(c.ROWS_PER_BLOCK, 32 // threads(c, p))


def grid(c, p):
    """Return the grid: blocks along the rows, and blocks per row."""
    return up(up(p.ROWS, rows(c, p)), c.ROW_STEPS), blocks(c)


def shared_bytes(c, p):
    """Return the bytes of dynamic shared memory for stored or prefetched rows."""
    row = 4 * words(c, p) * vectors(c, p)[1]
    if c["PREFETCH"] == "cp_async":
        return c.STAGES * (2 if residual(p) else 1) * rows(c, p) * row
    return rows(c, p) * row if c["ROW_STORAGE"] == "shared" and read_once(c) else 0


def macros(c, p):
    """Return the problem and the sizes, which kernel.cu describes."""
    total, share = vectors(c, p)
    return {
        "COLS": p.COLS, "BF16": int(p["dtype"] == "bf16"), "RESIDUAL": int(residual(p)), "WIDTH": width(c, p),
        "WORDS": words(c, p), "VECTORS": total, "BLOCKS": blocks(c), "SHARE": share, "PER_THREAD": accesses(c, p),
        "THREADS": threads(c, p), "ROWS": rows(c, p),
    }  # fmt: skip


def registers_for_rows(c, p):
    """Compare the registers for rows, weights and loads in flight with the available registers.

    The limit is half of a thread's 255 registers, plus 32 if no weights are kept. Above it the compiler spills.
    """
    row, inputs = accesses(c, p) * words(c, p), 1 + residual(p)
    kept, weights = (c["ROW_STORAGE"] == "registers") & read_once(c), c["WEIGHT_LOAD"] == "before_sum"
    ahead = row * inputs * (c["PREFETCH"] == "registers")
    in_flight = min(8, accesses(c, p)) * words(c, p) * (inputs - kept)
    left = 65536 // (threads(c, p) * rows(c, p) * c.MIN_BLOCKS) - 32
    return AtMost(row * (kept + weights) + ahead + in_flight, min(MOST_WORDS + 32 * (1 - weights), left), "registers")


def threads_have_work(c, p):
    """Return whether every thread has work; THREADS_PER_ROW=256 always passes, because it uses only such threads."""
    share = vectors(c, p)[1]
    too_many = share if c.THREADS_PER_ROW < 256 else 2 * share
    return c.THREADS_PER_ROW == 256 or too_many > c.THREADS_PER_ROW


def sms_have_blocks(c, p, chip):
    """Compare the number of blocks with several rows to the number of multiprocessors or, if smaller, of rows."""
    return c.ROWS_PER_BLOCK * c.ROW_STEPS == 1 or AtMost(min(chip.sms, p.ROWS), grid(c, p)[0], "blocks")


def bf16_instructions(c, p, chip):
    """Compare the compute capability with that required for bf16 (PTX ISA, "cvt": cvt.rn.bf16x2.f32 from sm_80)."""
    major, minor = chip.compute_capability
    return AtMost(8.0 if p["dtype"] == "bf16" else 0.0, major + minor / 10)


CONSTRAINTS = (
    Constraint("whole_warps", lambda c, p: divides(32, rows(c, p) * threads(c, p)),
               "the threads of a block must be whole warps for reductions by shuffles"),
    Constraint("cluster_blocks", lambda c: c["ROW_SUM"] != "cluster" or AtMost(c.BLOCKS_PER_ROW, 8, "blocks"),
               "clusters of more than 8 blocks do not run on every chip (CUDA Programming Guide)"),
    Constraint("whole_rows", lambda c: blocks(c) == 1 or c.ROW_STEPS == 1,
               "only blocks with whole rows can process several rows"),
    Constraint("next_row", lambda c: c.ROW_STEPS > 1 or c["PREFETCH"] == "none",
               "only blocks that process several rows can prefetch a next row"),
    Constraint("loaded_ahead",
               lambda c: c["PREFETCH"] != "registers" or (blocks(c) == 1 and c["ROW_STORAGE"] == "registers"),
               "rows prefetched into registers need ROW_STORAGE=registers"),
    Constraint("copied_ahead",
               lambda c: c["PREFETCH"] != "cp_async" or (blocks(c) == 1 and c["ROW_STORAGE"] != "reread"),
               "rows copied to shared memory are not loaded from global memory a second time"),
    Constraint("async_width", lambda c, p: c["PREFETCH"] != "cp_async" or width(c, p) > 1,
               "cp.async copies at least 4 bytes, but odd rows use single elements"),
    Constraint("ring", lambda c: c["PREFETCH"] != "cp_async" or c.STAGES > 1,
               "two rows are needed: one is summed while another is copied"),
    Constraint("row_registers", registers_for_rows,
               "a row and its weights must leave enough registers for other values"),
    Constraint("row_share", lambda c, p: AtMost(accesses(c, p) * words(c, p), MOST_WORDS, "words"),
               "with a larger part of a row per thread, too few threads run on the chip", wasteful=True),
    Constraint("widest_access", lambda c, p: c.VECTOR == 8 or divides(2 * c.VECTOR, p.COLS),
               "VECTOR=8 already selects the widest access that the row allows", wasteful=True),
    Constraint("threads_have_work", threads_have_work,
               "more threads than vectors in the row would have no work; THREADS_PER_ROW=256 never starts such threads",
               wasteful=True),
    Constraint("whole_warp_filled", lambda c, p: c.ROWS_PER_BLOCK == 1 or c.ROWS_PER_BLOCK * threads(c, p) > 32,
               "ROWS_PER_BLOCK=1 already uses enough rows to fill a warp", wasteful=True),
    Constraint("sms_have_blocks", sms_have_blocks,
               "several rows per block would leave some multiprocessors without a block", wasteful=True),
    Constraint("shared_rows_are_few",
               lambda c, p, chip: read_once(c) or AtMost(p.ROWS, 4 * chip.sms, "rows"),
               "the rows already fill the chip, and a second block per row would read the row again", wasteful=True),
    Constraint("blocks_have_vectors",
               lambda c, p: AtMost((blocks(c) - 1) * vectors(c, p)[1] + 1, vectors(c, p)[0], "vectors"),
               "the last block of a row would have no work", wasteful=True),
    Constraint("bf16_instructions", bf16_instructions,
               "bf16 instructions need compute capability 8.0; use dtype=f16 on this chip"),
)  # fmt: skip


def launches(c, p):
    """Return the launch or, for two_launches, one launch for the row sums and one for the scaling."""
    block = threads(c, p) * rows(c, p)
    read, written = (("x", "residual"), ("y", "sum")) if residual(p) else (("x",), ("y",))
    numbers = i32(p.ROWS), f32(EPS)

    def launch(entry, *args, halves=0):
        static = halves * block // 32 * 4 if threads(c, p) > 32 else 0
        together = c["ROW_SUM"] == "cluster"
        static += together * 4 * rows(c, p) * blocks(c)
        return Launch(
            f"add_{entry}" if residual(p) else entry, grid(c, p), block, args,
            shared_bytes=shared_bytes(c, p), static_shared_bytes=static, min_blocks=c.MIN_BLOCKS,
            cluster=(1, blocks(c), 1) if together else None,
        )  # fmt: skip

    if c["ROW_SUM"] != "two_launches":
        return [launch("rmsnorm", *read, "weight", *written, *numbers, halves=2)]
    return [
        launch("sum_rows", *read, "partial", numbers[0], halves=1),
        launch("scale_rows", *read, "weight", *written, "partial", *numbers),
    ]


def tensors(p, c):
    """Return the inputs and outputs and, for two_launches, a workspace for the partial sums of rows."""
    matrix = (p.ROWS, p.COLS)
    found = {"x": Tensor(p["dtype"], matrix)}
    if residual(p):
        found["residual"] = Tensor(p["dtype"], matrix)
    found |= {"weight": Tensor(p["dtype"], (p.COLS,)), "y": Tensor(p["dtype"], matrix, "output")}
    if residual(p):
        found["sum"] = Tensor(p["dtype"], matrix, "output")
    if c["ROW_SUM"] == "two_launches":
        found["partial"] = Tensor("f32", (p.ROWS, c.BLOCKS_PER_ROW), "workspace")
    return found


def summed(p, t):
    """Return x, or x + residual rounded to the element type."""
    import torch

    if not residual(p):
        return t["x"]
    stored = torch.bfloat16 if p["dtype"] == "bf16" else torch.float16
    return (t["x"] + t["residual"]).to(stored).to(t["x"].dtype)


def outputs(p, y, total):
    """Return the outputs by name."""
    return {"y": y, "sum": total} if residual(p) else {"y": y}


def reference(p, t):
    """Return the normalisation in float64."""
    import torch

    h = summed(p, t)
    return outputs(p, h * torch.rsqrt(h.square().mean(-1, keepdim=True) + EPS) * t["weight"], h)


def some_columns(p, t, columns):
    """Return the columns of y that depend on some weights."""
    import torch

    h = summed(p, t)
    return {"y": h[:, columns] * torch.rsqrt(h.square().mean(-1, keepdim=True) + EPS) * t["weight"]}


def slices(p):
    """Return the slices: rows of the inputs affect rows of the outputs, and weights affect columns of y."""
    inputs = dict.fromkeys(("x", "residual", "y", "sum") if residual(p) else ("x", "y"), 0)
    return Slice(inputs), Slice({"weight": 0, "y": 1}, reference=some_columns)


def eager(p, t):
    """Return the result of torch's layer, applied to the sum of two tensors if there is a residual."""
    import torch

    h = t["x"] + t["residual"] if residual(p) else t["x"]
    return outputs(p, torch.nn.functional.rms_norm(h, (p.COLS,), t["weight"], EPS), h)


@cache
def _compiled():
    import torch

    return torch.compile(eager, dynamic=False)


def quack(p, t):
    """Return the result of quack, which returns the sum with the residual too if `prenorm` is set."""
    from quack.rmsnorm import rmsnorm

    if not residual(p):
        return {"y": rmsnorm(t["x"], t["weight"], eps=EPS)}
    y, h = rmsnorm(t["x"], t["weight"], residual=t["residual"], eps=EPS, prenorm=True)
    return {"y": y, "sum": h}


def flashinfer(p, t):
    """Return the result of FlashInfer."""
    from flashinfer.norm import rmsnorm

    if residual(p):
        raise NotImplementedError("FlashInfer's fused_add_rmsnorm overwrites its inputs")
    return {"y": rmsnorm(t["x"], t["weight"], eps=EPS)}


kernel = Kernel(
    name="rmsnorm",
    genes=GENES,
    fields=(
        ProblemField("ROWS", most=2**24, doc="rows"),
        ProblemField("COLS", most=65536, doc="columns"),
        ProblemField("dtype", ("f16", "bf16"), "f16", doc="element type of all tensors"),
        ProblemField("residual", ("none", "add"), "none", later=True, doc="first add a residual, and return the sum"),
    ),
    launches=launches,
    macros=macros,
    vector_accesses=lambda c, p: [VectorAccess("rows", 2 * width(c, p), (2 * p.COLS,))],
    constraints=CONSTRAINTS,
    workload=Workload(
        tensors=tensors,
        reference=reference,
        # The sum of two elements is rounded once to nearest, so only one result is correct. An fp32 sum rounds to the
        # same result, because 24 bits are 2 * 11 + 2 (Figueroa, When is double rounding innocuous?, 1995). Neighbouring
        # numbers are at least u |sum| away, so half of that rejects them.
        tolerance={"sum": Tolerance(F16_LEAST, F16_ROUNDOFF / 2, {"bf16": Tolerance(FLUSHED, BF16_ROUNDOFF / 2)})},
        # Statistics are fp32. Transformer layers round the normalised row before the product with the weight. Some
        # kernels normalise the sum with a residual before it is rounded.
        error={
            "y": RmsNorm(
                terms=lambda p: p.COLS,
                normalised=lambda c, p: p["dtype"],
                row=lambda c, p: p["dtype"] if residual(p) else "f32",
            )
        },
        flops=lambda p: (5 if residual(p) else 4) * p.ROWS * p.COLS,
        bytes=lambda p: 2 * ((4 if residual(p) else 2) * p.ROWS * p.COLS + p.COLS),
        baselines=(
            Baseline("torch", eager),
            Baseline("torch.compile", lambda p, t: _compiled()(p, t)),
            Baseline("quack", quack, requires="quack.rmsnorm"),
            Baseline("FlashInfer", flashinfer, requires="flashinfer"),
        ),
        small_problems=("ROWS=5,COLS=264", "ROWS=3,COLS=1024"),
        slices=slices,
        nonfinite=("x", "weight"),
    ),
)
