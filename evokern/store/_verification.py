"""What was proved of a trial: by the last verification, and by what its search ran of the study's own problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evokern.store._files import db_option
from evokern.store._proofs import ProofRecord
from evokern.store.records import StudyRecord
from evokern.study.trial import Trial
from evokern.wording import command

OWN_PROBLEM = "own problem"
"""Stage of a verification that runs blocks of the study's own problems."""


@dataclass(frozen=True)
class Verification:
    """Whether a trial was verified."""

    verified: bool | None
    """True: every stage passed, and its outputs are covered; False: refuted; None: not verified, or undecided."""
    reason: str
    """What was proved, what refuted it, or why nothing is known."""
    share: float | None
    """Blocks that ran at the study's own problems ÷ all of their blocks; None where nothing is known."""
    scaled: tuple[str, ...] = ()
    """Scaled-down problems, in words, at which the search ran all of its blocks; a later verification's `reason` names
    its own."""

    def as_dict(self) -> dict[str, object]:
        """Return the keys of `--json`."""
        return {
            "verified": self.verified, "verified_reason": self.reason, "verified_share": self.share,
            "verified_scaled": list(self.scaled),
        }  # fmt: skip


def verification(
    study: StudyRecord,
    trial: Trial,
    proofs: Sequence[ProofRecord],
    undone: Sequence[ProofRecord],
    *,
    interrupted: bool,
    db: Path,
) -> Verification:
    """Return what is proved of a trial.

    Args:
        study: its study.
        trial: the trial.
        proofs: what `verify` found of the study, the first one first.
        undone: verifications at the end of searches that came to nothing, the first one first.
        interrupted: whether its user stopped the study's latest session.
        db: the database, for the command that verifies.
    """
    # A GPU's gate runs every block of the study's own problems; a simulated device says how many it ran.
    share = 1.0 if not study.predicted else trial.evaluation.own_problem_share
    scaled = tuple(study.in_words(problem) for problem in trial.evaluation.scaled_problems)
    mine = [proof.result for proof in proofs if proof.trial == trial.number]
    where = db_option(db)
    if not mine:
        whys = [str(attempt.result["why"]) for attempt in undone if attempt.trial == trial.number]
        never = "the search was stopped before" if interrupted else "its search ended without a verification"
        why = whys[-1] if whys else never
        line = command("verify", study.name, "--trial", trial.number, *where)
        return Verification(None, f"{why}; `{line}` does it", share, scaled)
    stages = mine[-1].get("stages", {})
    for name, stage in stages.items():
        if stage.get("state") == "failed":
            return Verification(False, f"{name}: {stage['detail']}", share)
    own = stages.get(OWN_PROBLEM)
    shapes = study.problems_in_words()
    if study.predicted and own is None:
        reason = f"the last verification did not run {shapes} itself; `{command('verify', study.name, *where)}` does"
        return Verification(None, reason, share, scaled)
    if own is not None:
        share = own.get("share", share)
        if not own.get("covered"):
            return Verification(None, f"{OWN_PROBLEM}: {own['detail']}", share)
    parts = "; ".join(f"{name}: {stage['detail']}" for name, stage in stages.items() if stage["state"] == "passed")
    return Verification(True, f"at {shapes}: {parts}", share)
