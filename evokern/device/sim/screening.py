"""Worker for ranking candidates: a predicted time and a spot check of the results.

A warm start predicts hundreds of candidates. The gate would take most of that time, because its small problems are
separate programs that run completely under the sanitizer. So only possible best candidates are checked, by some blocks
of the full-size problem, whose program is already compiled (`evokern.device.sim.spot_check`). Candidates that pass are
checked completely before they are measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from evokern.declaration.bounds.strict import judged_in
from evokern.declaration.kernel import Problem
from evokern.declaration.small_problems import gate_problems
from evokern.device.sim.jobs import SimSettings, Simulate
from evokern.device.sim.predict import Predicted, Predictor
from evokern.device.sim.spot_check import SpotCheck
from evokern.device.sim.study_prediction import StudyPrediction, predict_study
from evokern.device.sim.worker import SimWorker, not_simulated
from evokern.errors import DeviceError, KernelError, UsageError
from evokern.gate import RunFailed
from evokern.gate.comparison import tolerances
from evokern.study.trial import Evaluation, Outcome

STOP = 1.5
"""Multiple of the time to race against at which a prediction stops; the candidate gets this time."""
NEAR = 1.15
"""Multiple of the time to race against up to which results are checked; it covers the time model's error."""


class ScreeningWorker:
    """Worker for `Simulate` jobs; `measured` candidates passed the spot check, `slow` candidates were not checked."""

    def __init__(self, settings: SimSettings) -> None:
        torch.set_num_threads(1)
        self._settings = settings
        self._kernel = kernel = judged_in(settings.context.kernel(), settings.gate.precision)
        tolerance = tolerances(kernel, settings.gate.atol, settings.gate.rtol)
        chip, simulation = settings.context.profile, settings.simulation
        self._predictor = Predictor(kernel, chip, settings.timing, simulation, tolerance)
        self._spot_check = SpotCheck(kernel, simulation, tolerance, settings.gate.input_sets)
        self._full: SimWorker | None = None
        self.ready_report: dict[str, Any] = {}

    def handle(self, job: Simulate) -> Evaluation:
        """Screen one candidate."""
        began = time.perf_counter()
        try:
            evaluation = self._screened(job)
        except RunFailed as failed:
            evaluation = Evaluation(failed.outcome, evidence=failed.evidence)
        except (KernelError, DeviceError):  # errors of `kernel.py` or of the machine, not of the simulator
            raise
        except UsageError as error:
            evaluation = not_simulated(error)
        return replace(evaluation, device_s=time.perf_counter() - began)

    def _screened(self, job: Simulate) -> Evaluation:
        limit_us = None if job.elite_us is None else STOP * job.elite_us

        def predict(problem: Problem, most_us: float | None) -> Predicted:
            return self._predictor.predict_long(job.config, job.built, problem, most_us)

        try:
            predicted = predict_study(self._kernel, self._settings, job.config, limit_us, predict)
        except RunFailed as failed:
            if failed.outcome is not Outcome.SLOW:
                raise
            return Evaluation(Outcome.SLOW, limit_us, evidence={**failed.evidence, "elite_us": job.elite_us})
        if job.elite_us is not None and predicted.time_us >= NEAR * job.elite_us:
            return _not_checked(predicted, job.elite_us)
        problems = self._settings.context.problems
        if all(self._spot_check.judges(job.config, job.built, problem, self._predictor) for problem in problems):
            faults = (self._spot_check.fault(job.config, job.built, problem, self._predictor) for problem in problems)
            against = next((fault for fault in faults if fault is not None), None)
        elif job.elite_us is not None and predicted.time_us >= job.elite_us:
            return _not_checked(predicted, job.elite_us)  # the gate is too slow for a non-best candidate
        else:
            against = self._gate(job)
        against = against or predicted.impossible()
        if against is not None:
            return Evaluation(Outcome.WRONG, evidence=against)
        return Evaluation(Outcome.MEASURED, predicted.time_us, predicted.timings)

    def _gate(self, job: Simulate) -> Mapping[str, Any] | None:
        """Return the gate's evidence against a candidate with dependent blocks, or None."""
        problems = gate_problems(
            self._kernel, job.config, self._settings.context.problems, self._settings.context.profile
        )
        self._full = self._full or SimWorker(self._settings)
        return self._full.gate(job.config, job.built, problems)[0]


def _not_checked(predicted: StudyPrediction, elite_us: float) -> Evaluation:
    return Evaluation(
        Outcome.SLOW, predicted.time_us, evidence={"elite_us": elite_us, "predicted_us": predicted.time_us}
    )
