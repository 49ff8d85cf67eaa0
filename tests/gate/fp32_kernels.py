"""Ten float32 kernels of usual kinds, without a declared bound or tolerance; their genes change only the rounding."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence

import torch
from paths import ROOT

from evokern import Kernel, Launch, Parameter, ProblemField, Tensor, Workload, i32
from evokern.compile.build import Target, build, tensors_of
from evokern.compile.records import Built
from evokern.declaration.bounds.derived import with_derived_bounds
from evokern.declaration.genes import Config
from evokern.declaration.problem import Problem
from evokern.declaration.render import launches_of, render
from evokern.device.gpu.profile import live_gpu
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.device.sim.runner import SimRunner, checked
from evokern.gate import Gate, Verdict
from evokern.hardware.profiles import CHIPS
from evokern.study.settings import GateSettings, SimulationSettings

HANG_S = 20.0
FOLDER = ROOT / "tests" / "data" / "fp32_kernels"
SUM = {"ORDER": (0, 1, 2, 3), "PARTS": (1, 2, 4, 8)}
BLOCKS = {"BLOCK": (32, 64, 128, 256)}
EXPONENTIAL = {"EXPONENTIAL": (0, 1, 2), "DIVISION": (0, 1, 2), "ONLINE": (0, 1)}
functional = torch.nn.functional
Values = Mapping[str, torch.Tensor]


def stencil(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    around = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
    y[1:-1, 1:-1] = 0.15 * around + 0.4 * x[1:-1, 1:-1]
    return y


def forces(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    r = x[None] - x[:, None]
    squares = (r * r).sum(-1) + 0.01
    return (m[None, :, None] * r * squares[..., None] ** -1.5).sum(1)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.T * 0.25, -1) @ v


def histogram(t: Values, bins: int) -> torch.Tensor:
    zero = torch.zeros(bins, dtype=torch.float64, device=t["w"].device)
    return zero.index_add(0, t["bin"].long(), t["w"])


def kernel(
    name: str,
    fields: Sequence[str],
    small: str,
    genes: Mapping[str, tuple[int, ...]],
    tensors: Callable[[Problem], Mapping[str, Tensor]],
    reference: Callable[[Problem, Values], torch.Tensor],
    *,
    threads: Callable[[Problem], int] | None,
    arguments: Sequence[str],
) -> Kernel:
    """Return a kernel with one output, which is its last tensor."""

    def launches(c: Config, p: Problem) -> list[Launch]:
        blocks = int(p["M"]) if threads is None else -(-threads(p) // (int(c["BLOCK"]) * int(c.get("ITEMS", 1))))
        buffers = list(tensors(p))
        return [Launch("run", blocks, int(c["BLOCK"]), (*buffers, *(i32(int(p[word])) for word in arguments)))]

    output = list(tensors(Problem(dict.fromkeys(fields, 8))))[-1]
    declared = Kernel(
        name=name,
        genes=tuple(Parameter(gene, values) for gene, values in (BLOCKS | genes | {"BUG": (0, 1)}).items()),
        fields=tuple(ProblemField(word) for word in fields),
        launches=launches,
        workload=Workload(
            lambda p, c: tensors(p), lambda p, t: {output: reference(p, t)}, flops=lambda p: 1, bytes=lambda p: 1,
            small_problems=(small,),
        ),
        source=f"{name}.cu",
        folder=FOLDER,
    )  # fmt: skip
    return with_derived_bounds(declared)


def _floats(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    *inputs, output = shapes.items()
    return {name: Tensor("f32", shape) for name, shape in inputs} | {output[0]: Tensor("f32", output[1], "output")}


KERNELS = {
    one.name: one
    for one in (
        kernel("gemm", "MNK", "5,7,75", SUM | {"FUSED": (0, 1)},
               lambda p: _floats(a=(p.M, p.K), b=(p.K, p.N), c=(p.M, p.N)), lambda p, t: t["a"] @ t["b"],
               threads=lambda p: p.M * p.N, arguments="MNK"),
        kernel("softmax", "MN", "9,67", SUM | EXPONENTIAL, lambda p: _floats(x=(p.M, p.N), y=(p.M, p.N)),
               lambda p, t: torch.softmax(t["x"], -1), threads=lambda p: p.M, arguments="MN"),
        kernel("layernorm", "MN", "9,67", SUM | {"STATISTICS": (0, 1, 2), "ROOT": (0, 1, 2, 3), "DISTRIBUTED": (0, 1)},
               lambda p: _floats(x=(p.M, p.N), w=(p.N,), b=(p.N,), y=(p.M, p.N)),
               lambda p, t: functional.layer_norm(t["x"], (p.N,), t["w"], t["b"]), threads=lambda p: p.M,
               arguments="MN"),
        kernel("convolution", "CHW", "3,5,6", SUM | {"FUSED": (0, 1)},
               lambda p: _floats(x=(1, p.C, p.H, p.W), w=(4, p.C, 3, 3), b=(4,), y=(1, 4, p.H, p.W)),
               lambda p, t: functional.conv2d(t["x"], t["w"], t["b"], padding=1).relu(),
               threads=lambda p: 4 * p.H * p.W, arguments="CHW"),
        kernel("scan", "MN", "2,70", SUM | {"CHUNK": (1, 4, 8)}, lambda p: _floats(x=(p.M, p.N), y=(p.M, p.N)),
               lambda p, t: t["x"].cumsum(-1), threads=lambda p: p.M * p.N, arguments="MN"),
        kernel("reduction", "MN", "3,301", SUM | {"STRIDED": (0, 1), "TREE": (0, 1, 2)},
               lambda p: _floats(x=(p.M, p.N), y=(p.M,)), lambda p, t: t["x"].sum(-1), threads=None, arguments="MN"),
        kernel("stencil", "MN", "9,11", {"FUSED": (0, 1), "FORM": (0, 1, 2, 3), "ITEMS": (1, 2, 3, 4)},
               lambda p: _floats(x=(p.M, p.N), y=(p.M, p.N)), lambda p, t: stencil(t["x"]),
               threads=lambda p: p.M * p.N, arguments="MN"),
        kernel("nbody", "N", "33", SUM | {"ROOT": (0, 1, 2, 3), "FUSED": (0, 1)},
               lambda p: _floats(x=(p.N, 3), m=(p.N,), y=(p.N, 3)), lambda p, t: forces(t["x"], t["m"]),
               threads=lambda p: p.N, arguments="N"),
        kernel("histogram", "NB", "90,7", SUM | {"CHUNK": (1, 4, 8)},
               lambda p: {"bin": Tensor("i32", (p.N,), high=p.B - 1), **_floats(w=(p.N,), y=(p.B,))},
               lambda p, t: histogram(t, p.B), threads=lambda p: p.B, arguments="NB"),
        kernel("attention", "S", "21", SUM | EXPONENTIAL | {"SCALED": (0, 1)},
               lambda p: _floats(q=(p.S, 16), k=(p.S, 16), v=(p.S, 16), o=(p.S, 16)),
               lambda p, t: attention(t["q"], t["k"], t["v"]), threads=lambda p: p.S, arguments="S"),
    )
}  # fmt: skip
"""Name → kernel."""
LARGE = {
    "gemm": "192,160,3000", "softmax": "300,5000", "layernorm": "300,5000", "convolution": "64,60,61",
    "scan": "16,4000", "reduction": "64,300001", "stencil": "1000,1003", "nbody": "3000", "histogram": "90000,65",
    "attention": "1500",
}  # fmt: skip
"""Kernel → larger problem, for a GPU."""


def candidates(of: Kernel, count: int, seed: int = 0) -> list[Config]:
    """Return different correct candidates, drawn at random."""
    genes = [gene for gene in of.genes if gene.name != "BUG"]
    every = list(itertools.product(*(gene.values for gene in genes)))
    drawn = random.Random(seed).sample(every, count)
    return [Config({**dict(zip([gene.name for gene in genes], values, strict=True)), "BUG": 0}) for values in drawn]


def verdict(of: Kernel, config: Config) -> Verdict:
    """Return the gate's verdict on a candidate at the small problem, on the simulated device."""
    problem = of.problem(of.workload.small_problems[0])
    program = compile_simulated(render(of, config, problem), CHIPS["l4"])
    assert isinstance(program, SimulatedProgram), program
    gate = Gate(of, problem, GateSettings(runs=1), torch.device("cpu"), 0)
    runner = SimRunner(program, problem, SimulationSettings().instruction_limit)
    return checked(gate, runner, launches_of(of, config, problem), tensors_of(of, config, problem))


def gpu_verdict(of: Kernel, config: Config, gate: Gate) -> Verdict:
    """Return the verdict of a gate on the GPU of this machine on a candidate."""
    from evokern.device.gpu.cuda import Candidate, GpuRunner

    problem = gate.problem
    made = build(of, config, [problem], Target(live_gpu(0).profile, None))
    assert isinstance(made, Built), made
    candidate = Candidate(made)
    runner = GpuRunner(candidate, made.build(problem).program, HANG_S)
    found = gate.check(runner, launches_of(of, config, problem), tensors_of(of, config, problem))
    candidate.unload()
    return found
