"""A kernel with faults on request: 20 candidates crash, 5 never end, 20 are wrong, 10 are right."""

from evokern import Constraint, Kernel, Launch, Mutation, Parameter, ProblemField, Tensor, Tolerance, Workload, i32

kernel = Kernel(
    name="faulty",
    genes=(
        Mutation("FAULT", ("none", "out_of_bounds", "misaligned", "endless", "wrong", "nan")),
        Parameter("VARIANT", tuple(range(10))),
    ),
    fields=(ProblemField("N"),),
    launches=lambda c, p: [Launch("twice", -(-p.N // 128), 128, ("x", "y", i32(p.N)))],
    constraints=(Constraint("five_hang", lambda c: c["FAULT"] != "endless" or c.VARIANT < 5, "five are enough"),),
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), "output")},
        reference=lambda p, t: {"y": 2 * t["x"]},
        tolerance={"y": Tolerance(1e-5, 1e-5)},
        flops=lambda p: p.N,
        bytes=lambda p: 8 * p.N,
        small_problems=("300",),
    ),
)
