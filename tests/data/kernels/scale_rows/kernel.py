"""y = a · x row by row, scaled by the row's largest magnitude: small, memory-bound, two choices and three numbers."""

from evokern import (
    Baseline,
    Constraint,
    Kernel,
    Launch,
    Mutation,
    Parameter,
    ProblemField,
    Tensor,
    Tolerance,
    VectorAccess,
    Workload,
    divides,
    f32,
    i32,
)  # fmt: skip


def tensors(p, c):
    return {"x": Tensor("f32", (p.ROWS, p.COLS)), "y": Tensor("f32", (p.ROWS, p.COLS), role="output")}


def reference(p, inputs):
    x = inputs["x"]
    largest = x.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30)
    return {"y": 2.5 * x / largest}


def torch_expression(p, inputs):
    x = inputs["x"]
    return {"y": 2.5 * x / x.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30)}


def launches(c, p):
    threads = 32 * c.WARPS
    args = ("x", "y", i32(p.ROWS), i32(p.COLS), f32(2.5))
    return [Launch("scale_rows", grid=(-(-p.ROWS // c.ROWS_PER_BLOCK),), block=(threads,), args=args)]


def vector_accesses(c, p):
    return [VectorAccess("x", 16, (4 * p.COLS,))] if c.LOADS == "vector4" else []


kernel = Kernel(
    name="scale_rows",
    genes=(
        Mutation("LOADS", ["scalar", "vector4"], doc="one float or four a load"),
        Mutation("REDUCE", ["warps", "block"], doc="shuffles, or a tree in shared memory"),
        Parameter("WARPS", [1, 2, 4, 8], default=4, doc="warps of a block"),
        Parameter("ROWS_PER_BLOCK", [1, 2, 4], doc="rows that a block walks through"),
        Parameter("UNROLL", [1, 2, 4], doc="unrolling of the loop over a row"),
    ),
    fields=(ProblemField("ROWS", doc="rows"), ProblemField("COLS", doc="floats of a row")),
    launches=launches,
    vector_accesses=vector_accesses,
    constraints=(
        Constraint("row_has_work", lambda c, p: 32 * c.WARPS <= p.COLS, "threads without an element of the row idle"),
        Constraint("vectors_fill_rows", lambda c, p: divides(4 if c.LOADS == "vector4" else 1, p.COLS), "a vector load "
                   "would cross the row's end"),
    ),
    workload=Workload(
        tensors, reference, {"y": Tolerance(1e-6, 1e-5)}, lambda p: 3 * p.ROWS * p.COLS, lambda p: 8 * p.ROWS * p.COLS,
        baselines=(Baseline("torch", torch_expression),), small_problems=("3,64", "2,160"),
    ),
)  # fmt: skip
