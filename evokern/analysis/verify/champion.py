"""What a search asks of its champion at the end: the stages that need no GPU, in a process of their own."""

from __future__ import annotations

import random
import time
from typing import Any

import torch

from evokern.analysis.verify.stages import fuzz_stage, own_problem_stage, sanitizer_stage
from evokern.analysis.verify.under_test import CandidateUnderTest
from evokern.device.sim.own_problem_runs import WHOLE_INSTRUCTIONS
from evokern.search.champion import VerifierSettings, VerifyJob

CASES = 24
"""Cases of fuzzing: a count, so that a run repeats; some seconds."""
FUZZ_SHARE = 0.6
"""Share of the time that is left when fuzzing begins: the shape and the case that run at its end are ended."""
LEAST_FUZZ_S = 1.0
"""Seconds of fuzzing however little is left."""
INSTRUCTIONS = 4 * WHOLE_INSTRUCTIONS
"""Warp instructions at each of the study's own problems: most of a minute."""


class ChampionWorker:
    """Answers `VerifyJob` with stages."""

    def __init__(self, settings: VerifierSettings) -> None:
        torch.set_num_threads(1)
        self._settings, self._kernel = settings, settings.context.kernel()
        self.ready_report: dict[str, Any] = {}

    def handle(self, job: VerifyJob) -> dict[str, Any]:
        """Verify one trial."""
        settings, began = self._settings, time.monotonic()
        candidate = CandidateUnderTest(self._kernel, job.config, settings.study, settings.context.problems,
                              settings.context.profile, settings.secret)  # fmt: skip
        stages = [sanitizer_stage(candidate)]
        if stages[-1].state != "failed" and settings.predicted:
            stages.append(own_problem_stage(candidate, INSTRUCTIONS))
        if stages[-1].state != "failed":
            seed = random.Random(f"{settings.secret} {job.number}").getrandbits(32)
            left_s = job.seconds - (time.monotonic() - began)
            stages.append(fuzz_stage(candidate, max(LEAST_FUZZ_S, FUZZ_SHARE * left_s), seed, most_cases=CASES))
        return {
            "passed": all(stage.state != "failed" for stage in stages),
            "stages": {stage.name: {"state": stage.state, "detail": stage.detail, **stage.facts} for stage in stages},
        }
