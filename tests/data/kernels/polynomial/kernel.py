"""A polynomial whose coefficients are in constant memory."""

from evokern import Kernel, Launch, Parameter, ProblemField, Scalar, Tensor, Tolerance, Workload, i32


def launches(c, p):
    """One thread per element."""
    numbers = (i32(p.N), Scalar("f16", 0.5), Scalar("bf16", 1.5), Scalar("bool", True))
    return [Launch("polynomial", -(-p.N // 64), 64, ("x", "y", *numbers))]


def reference(p, t):
    """The same in float64."""
    total = sum(t["weights"][k] * t["x"] ** k for k in range(3))
    return {"y": -(total * 0.5 + 1.5)}


kernel = Kernel(
    name="polynomial",
    genes=(Parameter("TERMS", (3, 4)),),
    fields=(ProblemField("N"),),
    launches=launches,
    workload=Workload(
        tensors=lambda p, c: {
            "weights": Tensor("f32", (3,), role="constant"),
            "x": Tensor("f32", (p.N,), large=4.0),
            "y": Tensor("f32", (p.N,), role="output"),
        },
        reference=reference,
        tolerance={"y": Tolerance(1e-3, 1e-3)},
        flops=lambda p: 6 * p.N,
        bytes=lambda p: 8 * p.N,
        small_problems=("300", "512"),
    ),
)
