"""Candidates that take long, and candidates that never end."""

from evokern import Kernel, Launch, Mutation, Parameter, ProblemField, Tensor, Tolerance, Workload, i32

kernel = Kernel(
    name="long_loops",
    genes=(
        Mutation("LOOP", ("finite", "counter", "flag", "livelock", "handshake"), doc="kind of loop"),
        Parameter("ROUNDS", (3, 24, 50), doc="rounds of a finite loop for each 64 elements"),
    ),
    fields=(ProblemField("N", doc="elements"),),
    launches=lambda c, p: [Launch("double_slowly", grid=-(-p.N // 128), block=128, args=("x", "y", i32(p.N)))],
    state={"arrived": 0},
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), "output")},
        reference=lambda p, t: {"y": 2 * t["x"]},
        tolerance={"y": Tolerance(atol=1e-6, rtol=1e-6)},
        flops=lambda p: p.N,
        bytes=lambda p: 8 * p.N,
        baselines=(),
        small_problems=("300", "256"),
    ),
)
