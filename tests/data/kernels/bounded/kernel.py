"""Doubling, with promises about the block."""

from evokern import Kernel, Launch, Parameter, ProblemField, Tensor, Tolerance, Workload, i32

kernel = Kernel(
    name="bounded",
    genes=(
        Parameter("THREADS", (128, 256, 512), default=128, doc="threads of a block"),
        Parameter("BOUND", (0, 1, 2), default=0, doc="no promise, at most 256 threads, exactly 128 threads"),
    ),
    fields=(ProblemField("N"),),
    launches=lambda c, p: [Launch("bounded", -(-p.N // c.THREADS), c.THREADS, ("x", "y", i32(p.N)))],
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), "output")},
        reference=lambda p, t: {"y": 2 * t["x"]},
        tolerance={"y": Tolerance(1e-6, 1e-6)},
        flops=lambda p: p.N,
        bytes=lambda p: 8 * p.N,
        small_problems=("3000", "4096"),
        cpp_reference=False,
    ),
)
