"""Kernels of many kinds: a right variant of each is the same as the default, and one without a term different."""

from __future__ import annotations

from pathlib import Path

import pytest
from exact_kernels import KERNELS, ForeignKernel

from evokern.declaration.kernel import Kernel
from evokern.device.sim.algebra import OutputComparison, Prover
from evokern.device.sim.algebra.comparison import differing
from evokern.device.sim.algebra.runs import exact_run
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel, remember_trust

_DECLARATION = """
import torch
from evokern import Kernel, Launch, Parameter, ProblemField, Tensor, Tolerance, Workload, i32


def rotary(x):
    half = x.shape[1] // 2

    rate = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * rate
    a, b = x[:, :half], x[:, half:]
    sine, cosine = angles.sin(), angles.cos()
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], 1)


kernel = Kernel(
    name="{name}",
    genes=(Parameter("VARIANT", (1, 2, 4), default=1, doc="variant"),),
    fields=({fields}),
    launches=lambda c, p: [Launch("{name}", {grid}, {block}, ({arguments})), {more}],
    workload=Workload(
        tensors=lambda p, c: {{{tensors}}},
        reference=lambda p, t: {{"{output}": {reference}}},
        tolerance={{"{output}": Tolerance({tolerance}, {tolerance})}},
        flops=lambda p: 1.0,
        bytes=lambda p: 1.0,
        small_problems=({problems},),
    ),
)
"""


def foreign(folder: Path, name: str, one: ForeignKernel) -> Kernel:
    """Write a kernel to a folder, and load it."""
    place = folder / name
    place.mkdir()
    (place / "kernel.cu").write_text(one.source)
    fields = one.fields.split()
    arguments = [f"i32(p.{word})" if word in fields else f'"{word}"' for word in one.arguments.split()]
    text = _DECLARATION.format(
        name=name, fields=" ".join(f'ProblemField("{field}"),' for field in fields), grid=one.grid, block=one.block,
        arguments=", ".join(arguments), more=one.more, tensors=one.tensors, output=one.output, reference=one.reference,
        tolerance=1e-2 if one.default == "equal" else 0,
        problems=", ".join(f'"{problem}"' for problem in one.problems),
    )  # fmt: skip
    (place / "kernel.py").write_text(text)
    remember_trust(place)
    return load_kernel(place)


def compared(prover: Prover, kernel: Kernel, variant: int) -> list[OutputComparison]:
    """Return the comparisons of a variant at the kernel's problems."""
    config = kernel.space.canonical({"VARIANT": variant})
    problems = [kernel.problem(problem) for problem in kernel.workload.small_problems]
    proofs = prover.prove(config, problems, 250)
    return [one for proof in proofs for one in proof.verdicts]


_COMMON = """
exp(a) * exp(b) | expf(a + b)
log(c * d) | __logf(c) + log2f(d) * 0.69314718f
log(1.f + expf(a)) | fmaxf(a, 0.f) + log1pf(expf(-fabsf(a)))
tanhf(a) | (expf(2.f * a) - 1.f) / (expf(2.f * a) + 1.f)
normcdff(a) | 0.5f * (1.f - erff(-0.70710678f * a))
__sinf(a) * __sinf(a) | 1.f - __cosf(-a) * __cosf(a)
"""
_OTHERS = """
powf(c, 0.5f) | sqrtf(c)
exp2f(a + 3.f) | 8.f * exp2(a)
log(expf(a)) + b | a + b
powf(a, 3.f) | a * a * a
pow(c, b) | expf(b * logf(c))
exp10f(log10f(c)) | exp2f(log2f(c))
expm1f(a) | __expf(a) - 1.f
coshf(a) * coshf(a) | 1.f + sinhf(a) * sinhf(a)
atanhf(0.5f * erff(b)) | 0.5f * logf((2.f + erff(b)) / (2.f - erff(b)))
asinhf(a) | logf(a + sqrtf(a * a + 1.f))
acoshf(c) | logf(c + sqrtf(c * c - 1.f))
erfcf(a) | 1.f + erff(-a)
tanf(a) | sinf(a) / cosf(a)
atanf(-a) * asinf(b) | cbrtf(0.f) - asinf(b) * atanf(a)
acosf(b) + lgammaf(c) | lgammaf(c) + acosf(b)
sinpif(a) | sinf(3.14159265f * a)
(float)exp((double)a) | (float)(exp(2.0 * a) / exp((double)a))
(float)log((double)c) | (float)(log2((double)c * c) * 0.5 * 0.69314718055994531)
(float)pow((double)c, 0.5) | (float)sqrt((double)c)
"""


def _laws(pairs: list[list[str]]) -> ForeignKernel:
    """Return a kernel whose blocks compute one formula each: the left one by default, else the right one."""
    one, two = ("".join(f"case {i}: v = {pair[at]}; break;\n" for i, pair in enumerate(pairs)) for at in (0, 1))
    source = f"""
__global__ void laws(const float* x, const float* z, float* y, int n) {{
  int i = blockIdx.x * 32 + threadIdx.x;
  if (i >= n) return;
  float a = x[i], b = z[i], c = a * a + 1.f, d = b * b + 2.f, v = 0.f;
#if VARIANT == 1
  switch (blockIdx.x) {{ {one} }}
  y[i] = v;
#else
  switch (blockIdx.x) {{ {two} }}
  y[i] = VARIANT == 2 ? v : v + b;
#endif
}}"""
    tensors = '"x": Tensor("f32", (p.N,)), "z": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), role="output")'
    return ForeignKernel(source, "N", (str(32 * len(pairs)),), tensors, "x z y N", str(len(pairs)), "32", "t['x'] + 0")


@pytest.mark.parametrize("identities", [_COMMON, pytest.param(_OTHERS, marks=pytest.mark.slow)])
def test_functions_keep_their_laws(tmp_path: Path, identities: str) -> None:
    """Both sides of each identity are the same, and another term makes every element different."""
    pairs = [line.split(" | ") for line in identities.strip().splitlines()]
    kernel = foreign(tmp_path, "laws", _laws(pairs))
    prover = Prover(kernel, CHIPS["l4"], reference=False)
    (right,) = compared(prover, kernel, 2)
    assert right.verdict == "same", f"{right}, for {pairs[right.element // 32]}"
    problem = kernel.problem(kernel.workload.small_problems[0])
    runs = [exact_run(kernel, config, problem, prover.programs.program(config, problem))
            for config in ({"VARIANT": 1}, {"VARIANT": 4})]  # fmt: skip
    assert differing("y", *runs).all()


@pytest.mark.parametrize(
    ("default", "other", "reference", "reason"),
    [
        ("__sinf(2.f * v)", "2.f * __sinf(v) * __cosf(v)", "(2 * t['x']).sin()", "laws such as addition theorems"),
        ("v * sqrtf(v * v)", "v * fabsf(v)", "t['x'] * (t['x'] * t['x']).sqrt()", "sign of a square root"),
        ("expf(expf(v))", "exp(exp(v))", "t['x'].exp().exp()", "kernel.cu:5, slct"),
        ("expf(v) * logf(1.f + expf(v))", "v", "t['x']", "kernel.cu:5, mul"),
        ("powf(99.f, v)", "exp2f(v * 6.62935662f)", "99 ** t['x']", "differently (6.62935"),
        ("erff(v)", "-erff(-v) + v", "t['x']", "already been defined"),
    ],
)
def test_unknown_laws_are_not_comparable(
    tmp_path: Path, default: str, other: str, reference: str, reason: str
) -> None:  # fmt: skip
    """Addition theorems, signs of roots, second exponentials, rounded logarithms and own functions are not known."""
    own = "__device__ float erff(float v) { return v; }" if "erff" in default else ""
    source = f"""{own}
__global__ void one(const float* x, float* y, int n) {{
  int i = threadIdx.x;
  float v = x[i];
  y[i] = VARIANT == 1 ? {default} : {other};
}}"""
    tensors = '"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), role="output")'
    one = ForeignKernel(source, "N", ("64",), tensors, "x y N", "1", "p.N", reference)
    kernel = foreign(tmp_path, "one", one)
    (found,) = compared(Prover(kernel, CHIPS["l4"]), kernel, 2)
    assert found.verdict == "not comparable"
    assert reason in found.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_right_variant_is_the_same_and_a_dropped_term_is_different(name: str, tmp_path: Path) -> None:
    """Tiles, orders and rewritten functions change nothing; a term that is left out does."""
    one = KERNELS[name]
    kernel = foreign(tmp_path, name, one)
    prover = Prover(kernel, CHIPS["l4"])
    right, wrong = (compared(prover, kernel, variant) for variant in (2, 4))
    assert {found.verdict for found in right} == {one.right}, [str(found) for found in right]
    assert {found.reference for found in right} == {one.default}, [str(found) for found in right]
    # A term may be zero for the inputs of one problem, for example behind a ReLU.
    assert one.wrong in {found.verdict for found in wrong} <= {one.wrong, "same"}, [str(found) for found in wrong]
