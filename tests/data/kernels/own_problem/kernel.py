"""y = x w in forty ways that are wrong at large problems alone, and in twenty odd ways that are right."""

from evokern import Kernel, Launch, Parameter, ProblemField, Tensor, Tolerance, Workload, i32

WRONG, RIGHT = tuple(range(40)), tuple(range(100, 120))


def whole(p):
    return -(-p.M * p.N // 128)


def grid(c, p):
    blocks, way = whole(p), c.CASE_NUMBER
    if p.M > 64 and way < 10:  # grids that are too small where the problem is large
        cut = (blocks // 2, blocks // 3, blocks - 1, blocks - 2, blocks * 3 // 4, blocks - 16, 1, blocks - blocks // 8)
        return (*cut, blocks // 16 * 16, 64)[way]
    odd = {100: 4, 101: 7, 102: 13, 103: 5, 106: 2 * blocks, 107: 1, 108: -(-p.M * 32 // 128), 111: (blocks, 2)}
    odd |= {113: blocks + 9, 114: blocks + 1, 116: -(-p.N // 128), 118: (-(-blocks // 4), 4)}
    odd |= {115: next(b for b in range(1, 1000) if b * (b + 1) // 2 >= blocks), 119: (-(-blocks // 6), 3, 2)}
    return odd.get(way, blocks)


def launches(c, p):
    return [Launch("run", grid=grid(c, p), block=128, args=("x", "w", "y", "scratch", i32(p.M), i32(p.N), i32(p.K)))]


def tensors(p, c):
    room = {103: 1, 111: 1 + 2 * p.M * p.N}.get(c.CASE_NUMBER)
    found = {
        "x": Tensor("f32", (p.M, p.K), large=4.0),
        "w": Tensor("f32", (p.K, p.N), large=4.0),
        "y": Tensor("f32", (p.M, p.N), "output"),
    }
    # Most ways take no workspace: a buffer of theirs is an input of one element.
    return found | {"scratch": Tensor("f32", (room,), "workspace", initial="zero") if room else Tensor("f32", (1,))}


kernel = Kernel(
    name="own_problem",
    genes=(Parameter("CASE_NUMBER", WRONG + RIGHT, default=118, doc="the way"),),
    fields=(ProblemField("M", doc="rows"), ProblemField("N", doc="columns"), ProblemField("K", doc="terms")),
    launches=launches,
    workload=Workload(
        tensors=tensors,
        reference=lambda p, t: {"y": t["x"] @ t["w"]},
        tolerance={"y": Tolerance(atol=2e-3, rtol=1e-5)},
        flops=lambda p: 2.0 * p.M * p.N * p.K,
        bytes=lambda p: 4.0 * (p.M * p.K + p.K * p.N + p.M * p.N),
        small_problems=("24,40,96", "37,53,90"),
    ),
)
