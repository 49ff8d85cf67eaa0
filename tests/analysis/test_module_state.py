"""What commands say of state between calls: `check`, `sanitize`, `verify` and `evaluate`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paths import DATA

from evokern.analysis.check.soundness import check_kernel
from evokern.analysis.evaluate import Evaluator
from evokern.analysis.sanitize.candidate import KEPT_STATE, sanitize_kernel
from evokern.analysis.verify.fuzz import Checker, FuzzCase
from evokern.declaration.foreign import ForeignSource
from evokern.declaration.genes import Config
from evokern.hardware.profiles import chip
from evokern.study.discovery import load_kernel
from evokern.study.settings import Study
from evokern.study.trial import Outcome

FOLDER = DATA / "kernels" / "state"
KERNEL = load_kernel(FOLDER)
PROBLEM = KERNEL.problem("640")
L4 = chip("l4")


@pytest.mark.thorough
def test_check_names_a_variable_that_is_not_there() -> None:
    """A misspelt name among the declared ones fails the check, with the nearest variable; the others hold."""
    kernel = replace(KERNEL, state={**KERNEL.state, "factor": 0})
    found = [one for one in check_kernel(kernel) if one.check == "state"]
    assert [one.ok for one in found] == [False]
    assert "no variable of that name: did you mean 'factors'?" in found[0].detail
    assert [one.ok for one in check_kernel(KERNEL) if one.check == "state"] == [True]


@pytest.mark.thorough
def test_check_names_an_undeclared_variable() -> None:
    """The default candidate's run says which one, and how it is declared."""
    (gene,) = KERNEL.genes
    kernel = replace(KERNEL, genes=(replace(gene, default="toggles"),))
    (found,) = [one for one in check_kernel(kernel) if one.check == "simulated run"]
    assert found.ok is False
    assert "changes flag" in found.detail


@pytest.mark.parametrize(("keeps", "kinds"), [("toggles", [KEPT_STATE]), ("restored", []), ("tickets", [])])
def test_sanitize_finds_it(keeps: str, kinds: list[str]) -> None:
    """Beside races and bounds: a variable that a call leaves changed, unless it is declared."""
    report = sanitize_kernel(KERNEL, Config({"KEEPS": keeps}), [PROBLEM], L4)
    assert [finding.kind for finding in report.findings] == kinds
    assert len(report.errors) == len(kinds)


@pytest.mark.parametrize(("keeps", "check"), [("whole_hash", "state"), ("heap", "state"), ("first_bytes", None)])
def test_verify_finds_it(keeps: str, check: str | None) -> None:
    """Its cases run as the gate's, so that what is kept falls there too."""
    checker = Checker(KERNEL, Config({"KEEPS": keeps}), Study("state", "state", ("640",)), L4)
    failure = checker.check(FuzzCase(PROBLEM, 1, ("normal",), 0))
    assert (failure and failure.check) == check


COUNTS = """
__device__ int {name};
extern "C" __global__ void twice(const float* x, float* y, int n) {{
  const int i = blockIdx.x * 128 + threadIdx.x;
  y[i] = 2.0f * x[i];
  if (i == 0) {name} = 1;
}}
"""
SPACED = COUNTS.replace(
    "__device__ int {name};", "namespace counts {{ __device__ int calls; }}\nusing namespace counts;"
)


@pytest.mark.thorough
def test_a_foreign_source_has_the_state_that_the_kernel_declares() -> None:
    """A variable of its own has to be declared by the kernel, as the message says; a declared one is restored."""
    with Evaluator(FOLDER, problem="1024", device="sim:l4") as evaluator:
        own, declared = evaluator.evaluate_all(
            [
                ForeignSource("own.cu", COUNTS.format(name="mine")),
                ForeignSource("declared.cu", SPACED.format(name="calls")),
            ]
        )
    assert (own.evaluation.outcome, own.evaluation.evidence["check"]) == (Outcome.WRONG, "state")
    assert "in kernel.py (an external source cannot declare it) with state={'mine': 0}" in own.evaluation.reason
    assert declared.evaluation.outcome is Outcome.MEASURED, declared.evaluation.reason
