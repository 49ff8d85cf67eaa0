"""`evokern prove`: a right candidate is the same, one with a dropped term different, bit tricks not comparable."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from paths import KERNELS
from typer.testing import CliRunner

from evokern.analysis.prove import compared, compiled, exact_run
from evokern.cli.app import app
from evokern.declaration.kernel import Kernel
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel
from evokern.study.trust import remember_trust

CHIP = CHIPS["l4"]
PROBLEM = "3,264"
SUM = "sum_of_squares(span, read, keep);"


def _verdicts(kernel: Kernel, changed: Kernel, **genes: object) -> list[str]:
    problem = kernel.problem(PROBLEM)
    runs = []
    for one, own in ((changed, genes), (kernel, {})):
        config = one.space.canonical({**one.space.default(), **own})
        runs.append(exact_run(one, config, problem, compiled(one, config, problem, CHIP)))
    return [str(verdict) for verdict in compared(*runs)]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (SUM, "y: same"),
        (f"{SUM} if (group == 1 && threadIdx.x == 5) squares = 0.f;", "y: different (264 elements, the first is 264)"),
        (
            f"{SUM} squares = __uint_as_float(__float_as_uint(squares) ^ 1u);",
            "y: not comparable (792 elements, the first is 0): integer instructions change the bits of a "
            "floating-point value (the source:68, xor.b32",
        ),
        (f"{SUM} if (group) squares /= squares - squares;", "y: different (528 elements, the first is 264)"),
        (f"{SUM} if (group == 1) break;", "y: different (264 elements, the first is 264)"),
    ],
)
def test_verdicts(tmp_path: Path, text: str, verdict: str) -> None:
    """A kernel with a changed sum of squares, against the kernel as it is."""
    for folder in ("rmsnorm", "common"):
        shutil.copytree(KERNELS / folder, tmp_path / folder)
    source = tmp_path / "rmsnorm" / "kernel.cu"
    source.write_text(source.read_text().replace(SUM, text, 1))
    for folder in (tmp_path, KERNELS):
        remember_trust(folder / "rmsnorm")
    (found,) = _verdicts(load_kernel(KERNELS / "rmsnorm"), load_kernel(tmp_path / "rmsnorm"), ROW_STEPS=2)
    assert found.startswith(verdict)


def test_the_command() -> None:
    """The command prints one verdict per output; an infeasible problem is a usage error."""
    words = ["prove", str(KERNELS / "rmsnorm"), "--problem", "3,264,residual=add", "--trust"]
    done = CliRunner().invoke(app, [*words, "--set", "ROW_SUM=two_launches", "--json"])
    assert done.exit_code == 0, done.output
    (proof,) = json.loads(done.stdout)["proofs"]
    assert [(one["output"], one["verdict"]) for one in proof["verdicts"]] == [("y", "same"), ("sum", "same")]
