"""What a finding of the sanitizer does to a candidate: it crashed, hung or is wrong, and the evidence says why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evokern import simt
from evokern.declaration.kernel import Problem
from evokern.gate import RunFailed
from evokern.study.trial import Outcome

CRASHES = frozenset({"out_of_bounds", "misaligned", "trap", "assert"})
"""Kinds of finding that are a CUDA error on a GPU: `crashed`."""
ENDLESS = frozenset({"deadlock", "instruction_limit"})
"""Kinds of finding of a launch that does not end: `hung`. Every other kind is `wrong` by the check `sanitizer:KIND`."""


def failure(finding: simt.Finding, limit: int, problem: Problem) -> RunFailed:
    """Turn a finding of the sanitizer into an outcome with its evidence.

    Args:
        finding: the finding.
        limit: warp instructions that the launch might issue.
        problem: the problem that was run.
    """
    evidence: dict[str, Any] = {"finding": finding.as_dict(), "problem": problem.key}
    if finding.kind in CRASHES:
        return RunFailed(Outcome.CRASHED, described({"error": finding.kind, **evidence}))
    if finding.kind in ENDLESS:
        return RunFailed(Outcome.HUNG, described({"limit_s": 0.0, "limit_instructions": limit, **evidence}))
    return RunFailed(Outcome.WRONG, described({"check": f"sanitizer:{finding.kind}", **evidence}))


def described(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return evidence that holds a finding with the finding in a sentence: a crash's diagnosis, or the message."""
    finding = evidence["finding"]
    file = f" of {finding['file']}" if finding.get("file") else ""
    place = f"line {finding['line']}{file}" if finding["line"] else f"`{finding['instruction']}`"
    where = place + (f": {finding['source']}" if finding["source"] else "")
    message = f"{finding['kind'].replace('_', ' ')} at {where} ({finding['hint']})"
    return {**evidence, "diagnosis" if "error" in evidence else "message": message}
