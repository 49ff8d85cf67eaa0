"""`evokern prove`: a right candidate is the same, one with a dropped term different, bit tricks not comparable."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from paths import KERNELS
from typer.testing import CliRunner

import evokern
from evokern.analysis.prove import ProofSubject, prove_candidate
from evokern.cli.app import app
from evokern.declaration.as_data import declared
from evokern.declaration.kernel import Kernel
from evokern.device.sim.algebra import NOT_FINISHED, Prover, algebra_facts, algebra_fault, differences
from evokern.device.sim.algebra.comparison import compared
from evokern.device.sim.algebra.runs import ExactRun, exact_run
from evokern.errors import UsageError
from evokern.hardware.profiles import CHIPS
from evokern.simt import ROUNDS
from evokern.store import algebra_text
from evokern.study.discovery import load_kernel, remember_trust

CHIP = CHIPS["l4"]
PROBLEM = "3,264"
SUM = "sum_of_squares(span, read, keep);"
SCALE = "const float scale = rsqrtf(total / COLS + eps);"


def _changed(folder: Path, old: str, text: str) -> Kernel:
    """Return a copy of the normalisation in which ROW_STEPS=2 runs another text."""
    for name in ("rmsnorm", "common"):
        shutil.copytree(KERNELS / name, folder / name)
    source = folder / "rmsnorm" / "kernel.cu"
    whole = source.read_text()
    assert whole.count(old) >= 1
    source.write_text(whole.replace(old, text, 1))
    remember_trust(folder / "rmsnorm")
    return load_kernel(folder / "rmsnorm")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (SUM, "y: same as the default"),
        (f"{SUM} if (group == 1 && threadIdx.x == 5) squares = 0.f;", "y: different (264 elements, the first is 264)"),
        (
            f"{SUM} squares = __uint_as_float(__float_as_uint(squares) ^ 1u);",
            "y: not comparable (792 elements, the first is 0): integer instructions change the bits of a "
            "floating-point value (the source:72, xor.b32",
        ),
        (f"{SUM} if (group) squares /= squares - squares;", "y: different (528 elements, the first is 264)"),
        (f"{SUM} if (group == 1) break;", "y: different (264 elements, the first is 264)"),
    ],
)
def test_verdicts(tmp_path: Path, text: str, verdict: str) -> None:
    """A kernel with a changed sum of squares, against the kernel as it is."""
    remember_trust(KERNELS / "rmsnorm")
    kernel, changed = load_kernel(KERNELS / "rmsnorm"), _changed(tmp_path, SUM, text)
    problem = kernel.problem(PROBLEM)
    runs = []
    for one, own in ((changed, {"ROW_STEPS": 2}), (kernel, {})):
        config = one.space.canonical({**one.space.default(), **own})
        runs.append(exact_run(one, config, problem, Prover(one, CHIP).programs.program(config, problem)))
    (found,) = (str(verdict) for verdict in compared(*runs))
    assert found.startswith(verdict)


MEAN = "total / COLS + eps"
HALF = SCALE.replace("total", "(ROW_STEPS > 1 ? 0.5f * total : total)")
ROUNDED = SCALE.replace(MEAN, f"(ROW_STEPS > 1 ? total * (1 / 264.f) : {MEAN.split(' +')[0]}) + eps")
NEWTON = (
    f"const float mean = {MEAN}; float scale = rsqrtf(mean); "
    "if constexpr (ROW_STEPS > 1) scale *= 1.5f - 0.5f * mean * scale * scale;"
)


@pytest.mark.parametrize(
    ("text", "verdict", "reason"),
    [
        (HALF, "different", "792 elements, the first is 0, written by block 0"),
        (ROUNDED, "not comparable", "round constants differently (0.0037878"),
        (ROUNDED.replace("264.f", "263.f"), "different", "792 elements, the first is 0"),
        # The square of a root is the number or, for half of the numbers of the field, its negation.
        (NEWTON, "not comparable", "the sign of a square root"),
    ],
)
def test_a_difference_must_be_there_on_other_inputs(
    tmp_path: Path, text: str, verdict: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong factor differs everywhere; Newton's iteration for a root is right in half of the rows only.

    A default candidate that is not correct refutes no other candidate.
    """
    kernel = _changed(tmp_path, SCALE, text)
    config, problem = kernel.space.canonical({**kernel.space.default(), "ROW_STEPS": 2}), kernel.problem(PROBLEM)
    proof = Prover(kernel, CHIP).at(config, problem, time.monotonic() + 60)
    (found,) = proof.verdicts
    assert (found.verdict, reason in found.reason, found.reference) == (verdict, True, "equal"), str(found)
    assert (algebra_fault([proof]) is not None) == (verdict == "different")
    prover = Prover(kernel, CHIP)
    prover.at(kernel.space.default(), problem, time.monotonic() + 60)
    monkeypatch.setattr(differences, "exact_run", late_after(0))
    (early,) = prover.at(config, problem, time.monotonic() + 60).verdicts
    assert (early.verdict, "the time did not suffice" in early.reason) == (NOT_FINISHED, True)
    monkeypatch.undo()
    wrong = replace(kernel, workload=replace(kernel.workload, reference=lambda p, t: {"y": t["x"].sort().values}))
    (open_,) = Prover(wrong, CHIP).at(config, problem, time.monotonic() + 60).verdicts
    assert open_.verdict == "not comparable"


def test_the_limit_is_one_of_the_clock() -> None:
    """A simulated device gives the clock of its process, so that a busy machine compares as much as an idle one."""
    remember_trust(KERNELS / "rmsnorm")
    kernel = load_kernel(KERNELS / "rmsnorm")
    config, problem = kernel.space.canonical({**kernel.space.default(), "ROW_STEPS": 2}), kernel.problem(PROBLEM)
    (late,) = Prover(kernel, CHIP).prove(config, [problem], -1.0)
    assert {one.verdict for one in late.verdicts} == {NOT_FINISHED}
    (whole,) = Prover(kernel, CHIP, clock=lambda: 0.0).prove(config, [problem], 1e-9)
    assert {one.verdict for one in whole.verdicts} == {"same"}


def test_a_loop_over_blocks_repeats_with_fewer_blocks() -> None:
    """The launch has a block for each group of rows, so the loop takes one round; the same program runs with fewer."""
    remember_trust(KERNELS / "rmsnorm")
    kernel = load_kernel(KERNELS / "rmsnorm")
    config = kernel.space.canonical({**kernel.space.default(), "ROW_STEPS": 2, "THREADS_PER_ROW": 128, "VECTOR": 4})
    problem = kernel.problem(PROBLEM)
    report = prove_candidate(ProofSubject("", kernel, config, (problem,), CHIP), 60.0)
    (remark,) = report.remarks
    assert report.proved and remark.startswith("the loop on line 46 of kernel.cu repeats at ROWS=")
    prover, end = Prover(kernel, CHIP), time.monotonic() + 60
    (loop,) = (one for one in prover.at(config, problem, end).paths.loops.values() if one.line == 46)
    where, paths = prover.with_fewer_blocks(config, kernel.problem("48,264"), loop, end)
    assert where.endswith((" blocks", "1 block"))
    assert paths.loops[loop.place].rounds == ROUNDS > loop.rounds


def test_a_default_candidate_that_differs_from_the_reference_is_not_proved() -> None:
    """It is the same as itself, so only the comparison with the reference can find a mistake."""
    remember_trust(KERNELS / "rmsnorm")
    kernel, default = load_kernel(KERNELS / "rmsnorm"), load_kernel(KERNELS / "rmsnorm").space.default()
    wrong = replace(kernel, workload=replace(kernel.workload, reference=lambda p, t: {"y": 2 * t["x"]}))
    for one, proved in ((kernel, True), (wrong, False)):
        report = prove_candidate(ProofSubject("", one, default, (one.problem(PROBLEM),), CHIP), 60.0, alone=True)
        assert report.proved == proved, str(report.proofs[0].verdicts[0])


def test_a_candidate_of_another_chip_needs_another_architecture() -> None:
    """The remedy is the architecture, not the problem."""
    remember_trust(KERNELS / "rmsnorm")
    kernel = load_kernel(KERNELS / "rmsnorm")
    config = kernel.space.canonical({**kernel.space.default(), "ROW_SUM": "cluster"})
    with pytest.raises(UsageError, match=r"needs 9, has .* choose an architecture with --arch"):
        prove_candidate(ProofSubject("", kernel, config, (kernel.problem(PROBLEM),), CHIP), 60.0)


def late_after(runs: int) -> Callable[..., ExactRun]:
    """Return `exact_run`, which reaches its time limit after some runs."""
    left = iter([True] * runs)

    def run(*args: Any, **named: Any) -> ExactRun:
        found = exact_run(*args, **named)
        return found if next(left, False) else replace(found, stopped="was stopped")

    return run


def test_a_proof_that_takes_too_long_says_how_far_it_came() -> None:
    """At the time limit a comparison is not finished, which is no fault, and other problems keep their result."""
    remember_trust(KERNELS / "rmsnorm")
    kernel = load_kernel(KERNELS / "rmsnorm")
    config = kernel.space.canonical({**kernel.space.default(), "ROW_STEPS": 2})
    prover = Prover(kernel, CHIP)
    small, large = kernel.problem(PROBLEM), kernel.problem("512,2048")
    proofs = [*prover.prove(config, [small], 60.0), *prover.prove(config, [large], 0.0)]
    assert proofs[1].verdicts[0].verdict == NOT_FINISHED
    assert "was stopped after 0 s, in launch 1 of 1" in proofs[1].verdicts[0].detail
    assert algebra_fault(proofs) is None
    text = algebra_text(algebra_facts(proofs), lambda key: f"[{key}]")
    assert text.startswith("y is the same expression as the default candidate's, which equals the reference; at [")
    assert "the default candidate was stopped" in text
    assert algebra_facts(proofs[1:])["outputs"]["y"]["verdict"] == NOT_FINISHED


def _prove(*words: str) -> tuple[int, Any]:
    done = CliRunner().invoke(app, ["prove", *words, "--json"])
    return done.exit_code, json.loads(done.stdout) if done.stdout else done.stderr


def test_the_command() -> None:
    """The command prints one verdict per output; an infeasible problem is a usage error."""
    words = [str(KERNELS / "rmsnorm"), "--problem", "3,264,residual=add", "--trust"]
    code, found = _prove(*words, "--set", "ROW_SUM=two_launches")
    assert (code, found["proved"]) == (0, True)
    (proof,) = found["proofs"]
    assert [(one["output"], one["verdict"], one["reference"]) for one in proof["verdicts"]] == [
        ("y", "same", "equal"),
        ("sum", "same", "equal"),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rmsnorm", "--set", "ROW_STEPS=2", "--trial", "1"), "omit one of the two options"),
        (("nothing",), "has no study 'nothing', and there is no kernel 'nothing'"),
        (("rmsnorm-long",), "study rmsnorm-long is not in missing.db; start it with `evokern search rmsnorm-long`"),
        (("rmsnorm", "--set", "ROW_STEPS=2", "--problem", "3,264", "--limit", "soon"), "soon"),
    ],
)
def test_mistakes_are_named(words: tuple[str, ...], message: str) -> None:
    """A wrong target, option or time is one sentence with the remedy."""
    done = CliRunner().invoke(app, ["prove", *words, "--db", "missing.db"])
    assert done.exit_code in (1, 2)
    assert message in " ".join(done.stderr.split())


def test_a_tuned_kernel_is_compared_at_its_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of `evokern.tune` has no small problems; the reference is named on the command line."""
    monkeypatch.setattr(declared, "_registered", {})
    monkeypatch.setattr(declared, "_passed", [])
    monkeypatch.chdir(tmp_path)
    Path("twice.py").write_text("def twice(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    source = (
        "__global__ void twice(const float* x, float* y) { int i = blockIdx.x * N + threadIdx.x; y[i] = x[i] + x[i]; }"
    )
    x = torch.rand(64)
    evokern.tune(source, "twice", args=[x, evokern.out_like(x)], params={"N": [32]}, grid=lambda p: 64 // p.N,
                 block=lambda p: p.N, reference=import_module("twice").twice, device="sim:l4", trials=1,
                 verify=False, db="t.db")  # fmt: skip
    done = CliRunner().invoke(app, ["prove", "--db", "t.db", "--reference", "twice:twice"])
    assert done.exit_code == 0, done.output
    assert "y: same as the default, which equals the reference" in done.output
