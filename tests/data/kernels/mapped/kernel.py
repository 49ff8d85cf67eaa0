"""Rows of x, doubled, through tensor maps: tiles arrive and leave by the copy engine."""

from evokern import (
    Kernel,
    Launch,
    Mutation,
    Parameter,
    ProblemField,
    Tensor,
    TileMap,
    Tolerance,
    Workload,
    i32,
)


def launches(c, p):
    """Return one launch, with one map to load from and one to store to."""
    box = (c.ROWS, c.COLUMNS)
    maps = [TileMap(name, box, swizzle=c["SWIZZLE"]) for name in ("x", "y")]
    grid = (-(-p.N // c.COLUMNS), -(-p.M // c.ROWS))
    return [Launch("mapped", grid, 128, (*maps, i32(4 * c.ROWS * c.COLUMNS)))]


kernel = Kernel(
    name="mapped",
    genes=(
        Parameter("ROWS", (8, 16, 512)),
        Parameter("COLUMNS", (32, 16, 8, 2)),
        Mutation("SWIZZLE", ("128B", "none", "64B", "32B")),
    ),
    fields=(ProblemField("M", most=65536), ProblemField("N", most=65536)),
    launches=launches,
    architecture_suffix=lambda c: "a",
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.M, p.N)), "y": Tensor("f32", (p.M, p.N), "output")},
        reference=lambda p, t: {"y": 2 * t["x"]},
        tolerance={"y": Tolerance(1e-6, 1e-6)},
        flops=lambda p: p.M * p.N,
        bytes=lambda p: 8 * p.M * p.N,
        small_problems=("M=20,N=40", "M=5,N=12"),
    ),
)
