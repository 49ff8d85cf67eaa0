"""Sums of the rows of a matrix in tiles; one variant forgets the last column where tiles do not divide the row."""

from evokern import Kernel, Launch, Mutation, Parameter, ProblemField, Tensor, Tolerance, Workload, i32

kernel = Kernel(
    name="tail_bug",
    genes=(
        Mutation("TAIL", ("right", "forgotten")),
        Parameter("TILE", (32, 64), default=64),
        Parameter("ROWS", (1, 2), doc="rows of a block"),
    ),
    fields=(ProblemField("R", most=4096), ProblemField("S", most=8192)),
    launches=lambda c, p: [Launch("row_sums", -(-p.R // c.ROWS), (c.TILE, c.ROWS), ("x", "y", i32(p.R), i32(p.S)))],
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.R, p.S)), "y": Tensor("f32", (p.R,), "output")},
        reference=lambda p, t: {"y": t["x"].sum(-1)},
        tolerance={"y": Tolerance(0.05, 1e-4)},
        flops=lambda p: p.R * p.S,
        bytes=lambda p: 4 * p.R * p.S,
        small_problems=("8,128", "3,192"),
    ),
)
