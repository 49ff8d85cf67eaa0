"""Sums of rows, each split over the blocks of a cluster; some ways are wrong between the blocks alone."""

from evokern import Constraint, Kernel, Launch, Mutation, Parameter, ProblemField, Tensor, Tolerance, Workload, i32

ROWS = 64

kernel = Kernel(
    name="cluster_split",
    genes=(
        Parameter("SPLIT", (1, 2, 4, 8), min_compute_capability={2: (9, 0), 4: (9, 0), 8: (9, 0)}),
        Mutation("WRONG", ("nothing", "barrier", "end")),
    ),
    fields=(ProblemField("M"), ProblemField("K")),
    launches=lambda c, p: [
        Launch(
            "split_sum",
            (p.M // ROWS, c["SPLIT"]),
            ROWS,
            ("x", "y", i32(p.K)),
            cluster=(1, c["SPLIT"], 1) if c["SPLIT"] > 1 else None,
        )
    ],
    constraints=(Constraint("whole_blocks", lambda c, p: p.M % ROWS == 0, "blocks have 64 rows"),),
    workload=Workload(
        lambda p, c: {"x": Tensor("f32", (p.M, p.K)), "y": Tensor("f32", (p.M,), role="output")},
        lambda p, i: {"y": i["x"].sum(1)},
        {"y": Tolerance(1e-3, 1e-3)},
        lambda p: p.M * p.K,
        lambda p: 4 * p.M * (p.K + 1),
        small_problems=("128,64",),
    ),
)
