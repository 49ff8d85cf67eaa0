"""Verification of a search's champion in a separate process, with the stages that need no GPU."""

from __future__ import annotations

import random
import time
from typing import Any

import torch

from evokern.analysis.verify.stages import ALGEBRA_S, algebra_stage, fuzz_stage, own_problem_stage, sanitizer_stage
from evokern.analysis.verify.under_test import CandidateUnderTest
from evokern.declaration.bounds.rounded import judged_in
from evokern.device.sim.full_size_runs import WHOLE_INSTRUCTIONS
from evokern.search.champion import VerifierSettings, VerifyJob

CASES = 24
"""Number of fuzzing cases (some seconds); a count instead of a time makes runs reproducible."""
FUZZ_SHARE = 0.6
"""Share of the remaining time for fuzzing; the rest allows the last case to finish."""
ALGEBRA_SHARE = 0.4
"""Share of the remaining time for exact arithmetic."""
LEAST_FUZZ_S = 1.0
"""Shortest fuzzing time in seconds."""
INSTRUCTIONS = 4 * WHOLE_INSTRUCTIONS
"""Maximum number of warp instructions on each full-size problem; they take up to a minute."""


class ChampionWorker:
    """Worker that runs the verification stages of a `VerifyJob`."""

    def __init__(self, settings: VerifierSettings) -> None:
        torch.set_num_threads(1)
        kernel = judged_in(settings.context.kernel(), settings.study.gate.precision)
        self._settings, self._kernel = settings, kernel
        self.ready_report: dict[str, Any] = {}

    def handle(self, job: VerifyJob) -> dict[str, Any]:
        """Verify one trial and return the stages as a JSON-serialisable dictionary."""
        settings, began = self._settings, time.monotonic()
        candidate = CandidateUnderTest(self._kernel, job.config, settings.study, settings.context.problems,
                              settings.context.profile, settings.secret)  # fmt: skip
        stages = [sanitizer_stage(candidate)]
        if stages[-1].state != "failed" and settings.predicted:
            stages.append(own_problem_stage(candidate, INSTRUCTIONS))
        if stages[-1].state != "failed":
            left_s = job.seconds - (time.monotonic() - began)
            stages.append(algebra_stage(candidate, stages[0], max(1.0, min(ALGEBRA_S, ALGEBRA_SHARE * left_s))))
        if stages[-1].state != "failed":
            seed = random.Random(f"{settings.secret} {job.number}").getrandbits(32)
            left_s = job.seconds - (time.monotonic() - began)
            stages.append(fuzz_stage(candidate, max(LEAST_FUZZ_S, FUZZ_SHARE * left_s), seed, most_cases=CASES))
        return {
            "passed": all(stage.state != "failed" for stage in stages),
            "stages": {stage.name: {"state": stage.state, "detail": stage.detail, **stage.facts} for stage in stages},
        }
