"""y = 2 · x by a chain of dependent steps: a kernel whose time grows evenly with its one number."""

from evokern import Kernel, Launch, Parameter, ProblemField, Tensor, Tolerance, Workload, i32


def launches(c, p):
    return [Launch("dial", grid=-(-p.N // 128), block=128, args=("x", "y", i32(p.N)))]


kernel = Kernel(
    name="dial",
    genes=(Parameter("STEPS", tuple(range(2000, 2600, 10)), doc="dependent steps"),),
    fields=(ProblemField("N", doc="elements"),),
    launches=launches,
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), "output")},
        reference=lambda p, t: {"y": 2 * t["x"]},
        tolerance={"y": Tolerance(1e-30, 1e-6)},
        flops=lambda p: p.N,
        bytes=lambda p: 8 * p.N,
        small_problems=("256", "129"),
    ),
)
