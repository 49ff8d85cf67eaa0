"""Kernels of many kinds: a right variant of each is the same as the default, and one without a term different."""

from __future__ import annotations

from pathlib import Path

import pytest
from exact_kernels import KERNELS, ForeignKernel

from evokern.declaration.kernel import Kernel
from evokern.device.sim.algebra import OutputComparison, Prover
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel
from evokern.study.trust import remember_trust

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
    assert {found.verdict for found in wrong} == {one.wrong}, [str(found) for found in wrong]
