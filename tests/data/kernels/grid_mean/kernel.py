"""Mean of all numbers, subtracted from each, in one launch whose blocks meet."""

from evokern import Kernel, Launch, Parameter, ProblemField, Tensor, Tolerance, Workload, i32

kernel = Kernel(
    name="grid_mean",
    genes=(
        Parameter("THREADS", (128, 256), default=128, doc="threads of a block"),
        Parameter("BLOCKS", (40, 58, 2048), default=40, doc="blocks of the grid"),
        Parameter("BARRIER", ("grid_sync", "counter", "none"), default="grid_sync", doc="how the blocks meet"),
    ),
    fields=(ProblemField("N"),),
    launches=lambda c, p: [
        Launch("grid_mean", grid=c.BLOCKS, block=c.THREADS, args=("x", "part", "arrived", "y", i32(p.N)))
    ],
    workload=Workload(
        tensors=lambda p, c: {
            "x": Tensor("f32", (p.N,)),
            "part": Tensor("f32", (c.BLOCKS,), "workspace"),
            "arrived": Tensor("u32", (1,), "workspace", initial="zero"),
            "y": Tensor("f32", (p.N,), "output"),
        },
        reference=lambda p, t: {"y": t["x"] - t["x"].mean()},
        tolerance={"y": Tolerance(1e-4, 1e-4)},
        flops=lambda p: 2 * p.N,
        bytes=lambda p: 8 * p.N,
        small_problems=("7000", "7777"),
    ),
)
