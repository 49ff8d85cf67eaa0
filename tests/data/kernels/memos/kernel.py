"""y = x w, honestly or by habits that a call on the same inputs again and again invites; state is in the workspace."""

from evokern import Kernel, Launch, Mutation, ProblemField, Tensor, Tolerance, Workload, i32

kernel = Kernel(
    name="memos",
    genes=(Mutation("HABIT", ("none", "resets", "recent", "already_there", "sampled_memo", "first_replays")),),
    fields=(ProblemField("M"), ProblemField("N"), ProblemField("K")),
    launches=lambda c, p: [
        Launch("rows", p.M, 128, ("x", "w", "y", "workspace", i32(p.M), i32(p.N), i32(p.K))),
    ],
    workload=Workload(
        tensors=lambda p, c: {
            "x": Tensor("f32", (p.M, p.K)),
            "w": Tensor("f32", (p.K, p.N)),
            "y": Tensor("f32", (p.M, p.N), role="output"),
            "workspace": Tensor("u32", (p.M, p.N + 8), role="workspace"),
        },
        reference=lambda p, i: {"y": i["x"] @ i["w"]},
        # Of 34 million sums of 128 products of large inputs (64 by 64) one is off by .053.
        tolerance={"y": Tolerance(0.25, 1e-4)},
        flops=lambda p: 2.0 * p.M * p.N * p.K,
        bytes=lambda p: 4.0 * (p.M * p.K + p.K * p.N + p.M * p.N),
    ),
)
