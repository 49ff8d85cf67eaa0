"""y = 2 x by kernels that leave something behind for the next call, or that look as if they did."""

import struct

from evokern import Kernel, Launch, Mutation, ProblemField, Tensor, Tolerance, Workload, i32

CHEATS = ("fingerprint", "whole_hash", "toggles", "heap", "shared", "shared_marked")
HONEST = ("none", "prints", "restored", "first_bytes", "tickets", "table", "constants")


def launches(c, p):
    """One launch, and one that spoils a table where that is what is to be restored."""
    spoils = [Launch("spoil", 1, 1, ())] if c.KEEPS == "first_bytes" else []
    return [Launch("twice", p.N // 128, 128, ("x", "y", i32(p.N))), *spoils]


kernel = Kernel(
    name="state",
    genes=(Mutation("KEEPS", HONEST + CHEATS, default="none"),),
    fields=(ProblemField("N", multiple_of=128, most=1 << 14),),
    launches=launches,
    state={"counts::calls": 0, "factors": struct.pack("<2f", 1.5, 0.5)},
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), role="output")},
        reference=lambda p, t: {"y": 2 * t["x"]},
        tolerance={"y": Tolerance(0, 1e-6)},
        flops=lambda p: p.N,
        bytes=lambda p: 8 * p.N,
        small_problems=("256", "640"),
    ),
)
