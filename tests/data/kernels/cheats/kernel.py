"""y = 2 x, honestly or by tricks that look right until inputs change under a warm kernel."""

from evokern import Kernel, Launch, Mutation, ProblemField, Tensor, Tolerance, Workload, i32

kernel = Kernel(
    name="cheats",
    genes=(
        Mutation(
            "CHEAT",
            ("none", "skip_when_written", "remember_by_address", "remember_by_sample", "only_first_launches"),
        ),
    ),
    fields=(ProblemField("N", most=4096),),
    launches=lambda c, p: [Launch("twice", p.N // 128, 128, ("x", "y", i32(p.N)))],
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), role="output")},
        reference=lambda p, i: {"y": 2 * i["x"]},
        tolerance={"y": Tolerance(0, 1e-6)},
        flops=lambda p: p.N,
        bytes=lambda p: 8 * p.N,
    ),
)
