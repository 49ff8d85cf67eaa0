"""y = 2 x through every launch attribute that a kernel can ask for."""

from evokern import Kernel, L2Window, Launch, Mutation, ProblemField, Tensor, Tolerance, Workload, i32

BIG = 90 * 1024


def tensors(p, c):
    found = {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), role="output")}
    if c["FEATURE"] == "workspace":
        found["count"] = Tensor("i32", (1,), role="workspace", initial="zero")
        found["scratch"] = Tensor("f32", (p.N,), role="workspace")
    return found


def launches(c, p):
    grid, feature = p.N // 128, c["FEATURE"]
    if feature == "workspace":
        first = Launch("stage", grid, 128, ("x", "scratch", "count", i32(p.N)))
        return [first, Launch("finish<2>", grid, 128, ("scratch", "y", "count", i32(p.N)))]
    return [
        Launch(
            "twice",
            grid,
            128,
            ("x", "y", i32(p.N)),
            shared_bytes=BIG if feature == "big_shared" else 0,
            cluster=(2, 1, 1) if feature == "cluster" else None,
            l2_window=L2Window("x", 0.5) if feature == "l2_window" else None,
        )
    ]


kernel = Kernel(
    name="attributes",
    genes=(
        Mutation(
            "FEATURE",
            ("plain", "cluster", "l2_window", "big_shared", "workspace"),
            min_compute_capability={"cluster": (9, 0)},
        ),
    ),
    fields=(ProblemField("N"),),
    launches=launches,
    workload=Workload(
        tensors, lambda p, i: {"y": 2 * i["x"]}, {"y": Tolerance(0, 1e-6)}, lambda p: p.N, lambda p: 8 * p.N
    ),
)
