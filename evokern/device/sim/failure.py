"""Conversion of stopped launches to outcomes (crashed, hung, wrong, or infeasible) with evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evokern import simt
from evokern.declaration.kernel import Launch, Problem
from evokern.gate import RunFailed
from evokern.simt import ENDLESS, ERROR, OUTSIDE, UNFINISHED
from evokern.study.trial import TOO_LARGE, Outcome

CRASHES = frozenset({"out_of_bounds", "misaligned", "trap", "assert"})
"""Kinds of finding that cause a CUDA error on a GPU; the outcome is `crashed`. Endless launches are `hung`, unfinished
ones are `infeasible`. All other kinds are `wrong` (`sanitizer:KIND`)."""
HUNG_RATIO = 20
"""A launch that exceeds its limit is `hung` if it needs more than this multiple of the default candidate's
instructions at the same problem."""


def require_no_fault(
    result: simt.LaunchResult,
    launch: Launch,
    limit: int,
    problem: Problem,
    *,
    blocks: int | None = None,
) -> None:
    """Check that nothing ended a launch and that no error was found.

    Args:
        result: result of the launch.
        launch: the launch.
        limit: instruction limit of the launch, in warp instructions.
        problem: problem of the run.
        blocks: number of blocks that ran; None for all.

    Raises:
        RunFailed: the launch failed; the outcome and the evidence follow from the finding.
    """
    finding = result.fault
    if finding is not None:
        raise failure(finding, launch, limit, problem, blocks=blocks, executed=result.warp_instructions)


def failure(
    finding: simt.Finding, launch: Launch, limit: int, problem: Problem, *, blocks: int | None = None, executed: int = 0
) -> RunFailed:
    """Return the failure for a finding, with its outcome and evidence; the arguments are those of `require_no_fault`.

    Args:
        finding: the finding.
        launch: the launch.
        limit: instruction limit of the launch, in warp instructions.
        problem: problem of the run.
        blocks: number of blocks that ran; None for all.
        executed: warp instructions that ran.
    """
    evidence: dict[str, Any] = {"finding": finding.as_dict(), "problem": problem.key}
    if finding.kind in CRASHES:
        return RunFailed(Outcome.CRASHED, described({"error": finding.kind, **evidence}))
    if finding.kind in ENDLESS:
        return RunFailed(Outcome.HUNG, described({"limit_s": 0.0, "limit_instructions": limit, **evidence}))
    if finding.kind == UNFINISHED:
        share = launch.blocks / (launch.blocks if blocks is None else blocks)
        return too_large(
            limit + 1, limit, "warp instructions",
            f"{_blocks(launch, blocks)} at {problem} did not end within {limit:,} warp instructions{_end(finding)}",
            **evidence, at=str(problem), executed=round(executed * share),
        )  # fmt: skip
    return RunFailed(Outcome.WRONG, described({"check": f"sanitizer:{finding.kind}", **evidence}))


def too_large(needed: float, available: float, unit: str, what: str, **evidence: Any) -> RunFailed:
    """Return the failure of a candidate that the simulator cannot run completely.

    Args:
        needed: what the simulator would need at least.
        available: its limit.
        unit: unit of both.
        what: what happened, for the reason.
        **evidence: further evidence.
    """
    reason = f"{what}; the candidate may be correct and fast on a GPU"
    amounts = {"constraint": TOO_LARGE, "needed": needed, "available": available, "unit": unit}
    return RunFailed(Outcome.INFEASIBLE, {**amounts, "reason": reason, "message": reason, **evidence})


def is_too_large(failed: RunFailed) -> bool:
    """Return whether the simulator could not run a candidate completely."""
    return failed.outcome is Outcome.INFEASIBLE and failed.evidence.get("constraint") == TOO_LARGE


def waits_outside(failed: RunFailed) -> bool:
    """Return whether a launch may wait for blocks that did not run."""
    return OUTSIDE in failed.evidence.get("finding", {}).get("hint", "")


def compared_with_default(failed: RunFailed, default: float | None) -> RunFailed:
    """Return `hung` instead of `too_large_to_simulate` if the default candidate needs far fewer instructions.

    Args:
        failed: the failure of a candidate that is too large.
        default: warp instructions of the default candidate at the same problem; None if unknown.
    """
    executed = failed.evidence.get("executed", 0)
    if not default or executed <= HUNG_RATIO * default or waits_outside(failed):
        return failed
    at, needs = failed.evidence["at"], round(default)
    hint = (
        f"it needs more than {executed:,} warp instructions at {at}, where the default candidate needs {needs:,}; more "
        f"than {HUNG_RATIO} times as many count as endless"
    )
    found = {**failed.evidence["finding"], "kind": "instruction_limit", "level": ERROR, "hint": hint}
    shared = {"finding": found, "problem": failed.evidence["problem"], "executed": executed}
    limit = round(HUNG_RATIO * default)
    return RunFailed(Outcome.HUNG, described({"limit_s": 0.0, "limit_instructions": limit, **shared}))


def described(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evidence with a description of its finding: as `diagnosis` for a crash, otherwise as `message`."""
    finding = evidence["finding"]
    file = f" of {finding['file']}" if finding.get("file") else ""
    place = f"line {finding['line']}{file}" if finding["line"] else f"`{finding['instruction']}`"
    where = place + (f": {finding['source']}" if finding["source"] else "")
    message = f"{finding['kind'].replace('_', ' ')} at {where} ({finding['hint']})"
    return {**evidence, "diagnosis" if "error" in evidence else "message": message}


def _blocks(launch: Launch, blocks: int | None) -> str:
    """Return a description of the blocks that ran."""
    if blocks is None or blocks == launch.blocks:
        return f"the {launch.blocks:,} blocks of the launch" if launch.blocks > 1 else "the block of the launch"
    return f"{blocks} of its {launch.blocks:,} blocks" if blocks > 1 else f"one of its {launch.blocks:,} blocks"


def _end(finding: simt.Finding) -> str:
    """Return the line where the launch stopped, and whether it may wait for other blocks."""
    waits = "; the loop may wait for a block that did not run" if OUTSIDE in finding.hint else ""
    return (f" (stopped at {finding.place})" if finding.line else "") + waits
