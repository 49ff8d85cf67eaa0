"""Conversion of sanitizer findings to outcomes (crashed, hung or wrong) with evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evokern import simt
from evokern.declaration.kernel import Problem
from evokern.gate import RunFailed
from evokern.study.trial import Outcome

CRASHES = frozenset({"out_of_bounds", "misaligned", "trap", "assert"})
"""Kinds of finding that cause a CUDA error on a GPU; the outcome is `crashed`."""
ENDLESS = frozenset({"deadlock", "instruction_limit"})
"""Kinds of finding for an endless launch; the outcome is `hung`. All other kinds are `wrong` (`sanitizer:KIND`)."""


def failure(finding: simt.Finding, limit: int, problem: Problem) -> RunFailed:
    """Return the failure for a sanitizer finding, with its outcome and evidence.

    Args:
        finding: the finding.
        limit: instruction limit of the launch, in warp instructions.
        problem: problem of the run.
    """
    evidence: dict[str, Any] = {"finding": finding.as_dict(), "problem": problem.key}
    if finding.kind in CRASHES:
        return RunFailed(Outcome.CRASHED, described({"error": finding.kind, **evidence}))
    if finding.kind in ENDLESS:
        return RunFailed(Outcome.HUNG, described({"limit_s": 0.0, "limit_instructions": limit, **evidence}))
    return RunFailed(Outcome.WRONG, described({"check": f"sanitizer:{finding.kind}", **evidence}))


def described(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evidence with a description of its finding: as `diagnosis` for a crash, otherwise as `message`."""
    finding = evidence["finding"]
    file = f" of {finding['file']}" if finding.get("file") else ""
    place = f"line {finding['line']}{file}" if finding["line"] else f"`{finding['instruction']}`"
    where = place + (f": {finding['source']}" if finding["source"] else "")
    message = f"{finding['kind'].replace('_', ' ')} at {where} ({finding['hint']})"
    return {**evidence, "diagnosis" if "error" in evidence else "message": message}
