"""Root-mean-square normalisation of the rows of a matrix in fp16 or bf16: memory-bound, so bytes in flight decide."""

from functools import cache

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

EPS = 1e-5
BF16_ROUNDOFF = 2.0**-8
"""Unit roundoff u of bfloat16, half a unit in the last of its 8 significant bits: |round(y) - y| <= u |y| (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 2.2)."""
FLUSHED = 2.0**-126
"""Smallest normal number of fp32 and bf16: below it results may be flushed to zero."""
GENES = (
    Mutation(
        "ROW_STORAGE",
        ("registers", "shared", "reread"),
        doc="where a row waits between its sum and its scaling",
        relieves=("shared-memory", "arithmetic"),
    ),
    Mutation(
        "WEIGHT_LOAD", ("after_sum", "before_sum"), doc="when the weights are fetched", relieves=("memory", "latency")
    ),
    Mutation("LOAD_POLICY", ("normal", "streaming"), doc="cache policy of the loads of x", relieves={"memory": 3}),
    Mutation("STORE_POLICY", ("normal", "streaming"), doc="cache policy of the stores of y", relieves={"memory": 3}),
    Parameter(
        "THREADS_PER_ROW",
        (32, 64, 128, 256, 512, 1024),
        default=256,
        doc="threads that share a row",
        relieves=("launch",),
    ),
    Parameter("ROWS_PER_BLOCK", (1, 2, 4, 8), doc="rows of a block", relieves=("launch",)),
    Parameter("VECTOR", (2, 4, 8), default=8, doc="elements of one access", relieves={"memory": 2, "arithmetic": 1}),
    Parameter(
        "MIN_BLOCKS", (1, 2, 4, 8), doc="resident blocks promised to the compiler", relieves=("latency", "launch")
    ),
)


def words_per_thread(c, p):
    """Return the 32-bit words of a row that one thread handles."""
    vectors = -(-p.COLS // c.VECTOR)
    return -(-vectors // c.THREADS_PER_ROW) * c.VECTOR // 2


def registers_for_rows(c, p):
    """Compare the registers that kept rows and weights take with what launch bounds leave (half of 255 at most)."""
    kept = words_per_thread(c, p) * ((c["ROW_STORAGE"] == "registers") + (c["WEIGHT_LOAD"] == "before_sum"))
    threads = c.THREADS_PER_ROW * c.ROWS_PER_BLOCK
    return Need(kept, min(128, 65536 // (threads * c.MIN_BLOCKS) - 24), "registers")


def bf16_instructions(c, p, chip):
    """Compare the chip's compute capability with what bf16 takes (PTX ISA, "cvt": cvt.rn.bf16x2.f32 from sm_80)."""
    major, minor = chip.compute_capability
    return Need(8.0 if p["dtype"] == "bf16" else 0.0, major + minor / 10)


def launches(c, p):
    """One block for each group of rows."""
    shared = c.ROWS_PER_BLOCK * p.COLS * 2 if c["ROW_STORAGE"] == "shared" else 0
    threads = c.THREADS_PER_ROW * c.ROWS_PER_BLOCK
    return [
        Launch(
            "rmsnorm", -(-p.ROWS // c.ROWS_PER_BLOCK), threads, ("x", "weight", "y", i32(p.ROWS), f32(EPS)),
            shared_bytes=shared, static_shared_bytes=threads // 32 * 4, min_blocks=c.MIN_BLOCKS,
        )
    ]  # fmt: skip


def reference(p, t):
    """Float64 normalisation."""
    import torch

    return {"y": t["x"] * torch.rsqrt(t["x"].square().mean(-1, keepdim=True) + EPS) * t["weight"]}


def some_columns(p, t, columns):
    """Return the columns of y that some weights reach."""
    import torch

    return {"y": t["x"][:, columns] * torch.rsqrt(t["x"].square().mean(-1, keepdim=True) + EPS) * t["weight"]}


def eager(p, t):
    """The layer of torch."""
    import torch

    return {"y": torch.nn.functional.rms_norm(t["x"], (p.COLS,), t["weight"], EPS)}


@cache
def _compiled():
    import torch

    return torch.compile(eager, dynamic=False)


kernel = Kernel(
    name="rmsnorm",
    genes=GENES,
    fields=(
        ProblemField("ROWS", most=2**24, doc="rows"),
        ProblemField("COLS", most=65536, multiple_of=2, doc="columns, a multiple of the vector width"),
        ProblemField("dtype", ("f16", "bf16"), "f16", doc="elements of x, weight and y"),
    ),
    launches=launches,
    macros=lambda c, p: {"COLS": p.COLS, "BF16": int(p["dtype"] == "bf16")},
    vector_accesses=lambda c, p: [VectorAccess("rows of x and y", 2 * c.VECTOR, (2 * p.COLS,))],
    constraints=(
        Constraint("whole_vectors", lambda c, p: divides(c.VECTOR, p.COLS), "a row must be a whole number of vectors"),
        Constraint("whole_warps", lambda c: divides(32, c.THREADS_PER_ROW), "a row's threads must be whole warps"),
        Constraint("row_registers", registers_for_rows, "a row and its weights kept in registers must leave some over"),
        Constraint(
            "threads_have_work",
            lambda c, p: c.THREADS_PER_ROW == 32 or c.THREADS_PER_ROW * c.VECTOR <= p.COLS,
            "threads beyond the row's vectors would only wait",
            wasteful=True,
        ),
        Constraint(
            "bf16_instructions",
            bf16_instructions,
            "instructions on bf16 need compute capability 8.0; dtype=f16 runs here",
        ),
    ),
    workload=Workload(
        tensors=lambda p, c: {
            "x": Tensor(p["dtype"], (p.ROWS, p.COLS)),
            "weight": Tensor(p["dtype"], (p.COLS,)),
            "y": Tensor(p["dtype"], (p.ROWS, p.COLS), "output"),
        },
        reference=reference,
        # Statistics are fp32, whose rounding is 2^-16 of bf16's; y is rounded once, and where the normalised row is
        # rounded ahead of the product with the weight, as in layers of transformers, twice: by (1 + u)^2 - 1 at most,
        # about 2 u. The tolerance is twice that, for errors beyond its half are marginal; nothing absolute but what may
        # be flushed.
        tolerance={"y": Tolerance(1e-3, 2e-3, {"bf16": Tolerance(FLUSHED, 4 * BF16_ROUNDOFF)})},
        flops=lambda p: 4 * p.ROWS * p.COLS,
        bytes=lambda p: 2 * (2 * p.ROWS * p.COLS + p.COLS),
        baselines=(Baseline("torch", eager), Baseline("torch.compile", lambda p, t: _compiled()(p, t))),
        small_problems=("ROWS=5,COLS=264", "ROWS=3,COLS=1024"),
        slices=(Slice({"x": 0, "y": 0}), Slice({"weight": 0, "y": 1}, reference=some_columns)),
        nonfinite=("x", "weight"),
    ),
)
