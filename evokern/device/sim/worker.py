"""Worker of the simulated device: gate on small problems, counters on the study's problems, predicted time.

The gate is the same as on a GPU, and the sanitizer also checks every access. It runs the kernel's declared small
problems that fit the candidate. Counters come from sampled blocks of the study's problems, because a small problem does
not show waves, residency or caches.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from evokern.compile.build import tensors_of
from evokern.compile.pool import FOREIGN_MEMORY
from evokern.compile.records import Built, CompileFailure
from evokern.declaration.bounds.strict import judged_in
from evokern.declaration.feasibility import launches_of
from evokern.declaration.foreign import ForeignCandidate
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Problem
from evokern.declaration.render import Rendered, render
from evokern.declaration.small_problems import gate_problems, is_fixed
from evokern.device.sim.algebra import Prover, algebra_facts, algebra_fault
from evokern.device.sim.failure import compared_with_default, is_too_large
from evokern.device.sim.full_size_check import OwnProblemCheck
from evokern.device.sim.full_size_runs import WHOLE_INSTRUCTIONS, FullSizeResult, OwnProblemRuns
from evokern.device.sim.host_memory import COPIES
from evokern.device.sim.jobs import CheckGateSensitivity, SimSettings, Simulate
from evokern.device.sim.lines import FailureLines
from evokern.device.sim.predict import MODEL_MARGIN, Predicted, Predictor
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.device.sim.recount import RECOUNTED, is_short, slower
from evokern.device.sim.runner import SimRunner, checked
from evokern.device.sim.study_prediction import predict_study
from evokern.device.sim.tail_risk import TailRiskProbe
from evokern.errors import DeviceError, EvokernError, GridTooLargeError, KernelError, UsageError
from evokern.gate import Gate, RunFailed, Verdict, prove_power
from evokern.gate.check import begin_candidate, candidate_seed
from evokern.gate.comparison import tolerances
from evokern.measurement.phases import PhaseClock
from evokern.measurement.roofline import recorded
from evokern.simt import MEMORY_LIMIT
from evokern.study.settings import InputSet
from evokern.study.trial import Evaluation, Outcome
from evokern.workers.role import limit_memory

ALGEBRA_S = 10.0
"""Maximum seconds of the processor for the comparison of a new best with the default candidate in exact arithmetic. In
seconds of wall time, other processes on a busy machine would decide what is compared."""
HALVINGS = 3
"""How often a small problem is halved for a candidate that needs too many instructions there."""


class SimWorker:
    """Worker that evaluates `Simulate` jobs."""

    def __init__(self, settings: SimSettings) -> None:
        torch.set_num_threads(1)
        if settings.foreign:
            limit_memory(COPIES * MEMORY_LIMIT + FOREIGN_MEMORY)
        self._settings = settings
        self._kernel, chip = judged_in(settings.context.kernel(), settings.gate.precision), settings.context.profile
        self._fixed = is_fixed(self._kernel)
        self._gates: dict[Problem, Gate] = {}
        self._last: tuple[Rendered, SimulatedProgram] | None = None
        tolerance = tolerances(self._kernel, settings.gate.atol, settings.gate.rtol)
        self._predictor = Predictor(self._kernel, chip, settings.timing, settings.simulation, tolerance)
        self._lines = FailureLines(self._kernel, chip)
        self._probe = TailRiskProbe(self._kernel, chip, settings.simulation, tolerance, settings.secret)
        self._own_runs = OwnProblemRuns(self._kernel, chip, settings.simulation, tolerance, settings.secret)
        self._own = OwnProblemCheck(self._own_runs)
        self._prover = Prover(self._kernel, chip, reference=False, clock=time.process_time)
        self._default_work: dict[Problem, float | None] = {}
        self._phases = PhaseClock()
        self.ready_report: dict[str, Any] = {}

    def handle(self, job: CheckGateSensitivity | Simulate) -> Evaluation | None:
        """Run one job."""
        began = time.perf_counter()
        if isinstance(job, CheckGateSensitivity):
            self._prove()
            return None
        self._phases.taken()  # discards phases of an aborted evaluation
        try:
            evaluation = self._evaluate(job)
        except RunFailed as failed:
            settled = self._settled(failed, job.config)
            evaluation = Evaluation(settled.outcome, evidence=settled.evidence)
        except (KernelError, DeviceError):  # errors of `kernel.py` or of the machine, not of the simulator
            raise
        except GridTooLargeError as error:
            evaluation = Evaluation(Outcome.INFEASIBLE, evidence=error.evidence)
        except UsageError as error:
            evaluation = not_simulated(error)
        except Exception as error:
            # An external source may request anything, even too much memory; its failure must not stop other candidates.
            if not isinstance(job.config, ForeignCandidate):
                raise
            evaluation = not_simulated(UsageError(f"{type(error).__name__}: {error}"))
        return replace(evaluation, device_s=time.perf_counter() - began, spans=self._phases.taken())

    def _prove(self) -> None:
        kernel, config = self._kernel, self._settings.default
        problems = self._gate_problems(config)
        if not problems and not self._fixed:
            raise KernelError(
                f"kernel {kernel.name}: its default candidate can run none of the small problems "
                f"({', '.join(kernel.workload.small_problems) or 'none is declared'}), but the simulated gate "
                "needs one; add a suitable problem to small_problems in kernel.py"
            )
        for problem in problems:
            prove_power(self._gate(problem), launches_of(kernel, config, problem), tensors_of(kernel, config, problem))

    def _gate_problems(self, config: Config) -> tuple[Problem, ...]:
        return gate_problems(self._kernel, config, self._settings.context.problems, self._settings.context.profile)

    def _gate(self, problem: Problem) -> Gate:
        # Simulated runs are deterministic, so a second run shows nothing; the sanitizer finds races instead.
        settings = replace(self._settings.gate, runs=1)
        return self._gates.setdefault(problem, Gate(self._kernel, problem, settings, torch.device("cpu")))

    def _evaluate(self, job: Simulate) -> Evaluation:
        """Evaluate a candidate; the prediction comes first, so that much slower candidates skip the gate."""
        problems = self._gate_problems(job.config)
        if not problems and not self._fixed:
            evidence = {"constraint": "small_problem", "needed": 1, "available": 0, "unit": "problems"}
            reason = "none of the kernel's small problems fits this candidate, so the simulated device cannot check it"
            return Evaluation(Outcome.INFEASIBLE, evidence={**evidence, "reason": reason})
        race = self._settings.timing.race
        limit_us = job.elite_us * (race + MODEL_MARGIN) if job.elite_us and race else None

        def predict(problem: Problem, most_us: float | None) -> Predicted:
            return self._predict(job, problem, most_us)

        try:
            with self._phases.phase("prediction"):
                predicted = predict_study(self._kernel, self._settings, job.config, limit_us, predict)
        except RunFailed as failed:
            if failed.outcome is not Outcome.SLOW:
                raise
            evidence = {**failed.evidence, "elite_us": job.elite_us, "limit_us": limit_us}
            raise RunFailed(Outcome.SLOW, evidence) from failed
        time_us = predicted.time_us
        if limit_us is not None and time_us >= limit_us:
            evidence = {"elite_us": job.elite_us, "predicted_us": time_us, "limit_us": limit_us}
            return Evaluation(Outcome.SLOW, time_us, evidence=evidence)
        with self._phases.phase("gate"):
            against, reports = self.gate(job.config, job.built, problems)
        if against is not None:
            return Evaluation(Outcome.WRONG, evidence=against, gate=reports)
        impossible = predicted.impossible()
        if impossible is not None:
            return Evaluation(Outcome.WRONG, evidence=impossible, gate=reports)
        best = job.best_us is None or time_us < job.best_us
        own: dict[str, Any] = {}
        for at, (problem, prediction) in enumerate(zip(predicted.problems, predicted.predictions, strict=True)):
            with self._phases.phase("gate"):
                found = self._own_problem(job, problem, prediction, WHOLE_INSTRUCTIONS if best else 0)
            if found.fault_evidence is not None:
                return Evaluation(Outcome.WRONG, evidence=found.fault_evidence, gate=reports)
            own[problem.key] = found.as_dict()
            if is_short(prediction, found.ran):
                with self._phases.phase("prediction"):
                    predicted = predicted.replaced(at, self._recounted(job, problem, prediction, found))
                impossible = predicted.impossible()
                if impossible is not None:
                    return Evaluation(Outcome.WRONG, evidence=impossible, gate=reports)
        algebra: dict[str, Any] = {}
        if best and problems:
            with self._phases.phase("gate"):
                proofs = self._prover.prove(job.config, problems, ALGEBRA_S)
            if (fault := algebra_fault(proofs)) is not None:
                return Evaluation(Outcome.WRONG, evidence=fault, gate=reports)
            algebra = {"algebra": algebra_facts(proofs)}
        time_us = predicted.time_us
        first = predicted.predictions[0].total
        evidence = {
            "terms_us": {name: round(value, 4) for name, value in first.terms_us.items()},
            "bound": first.cause,
            "own_problem": own,
            **algebra,
            **recorded(predicted.tasks, predicted.floors),
        }
        return Evaluation(Outcome.MEASURED, time_us, predicted.timings, evidence=evidence, gate=reports)

    def gate(
        self, config: Config, built: Built, problems: Sequence[Problem]
    ) -> tuple[Mapping[str, Any] | None, Mapping[str, Any]]:
        """Check a candidate on small problems, and on the study's problems if its errors are close to the tolerance.

        Returns:
            The evidence of a failed check, or None, and the report of each problem.

        Raises:
            RunFailed: the candidate crashed, hung, does not compile, or the sanitizer found a defect.
        """
        reports: dict[str, Any] = {}
        seen: dict[tuple[InputSet, str], torch.Tensor] = {}
        begin_candidate(self._settings.secret, config)
        for declared in problems:
            try:
                problem, verdict = self._affordable(config, declared)
            except RunFailed as failed:
                if not (self._fixed and is_too_large(failed)):
                    raise
                continue  # only blocks of the full-size problem are checked
            reports[problem.key] = dict(verdict.report)
            if not verdict.passed:
                return verdict.evidence, reports
            for key, errors in self._gate(problem).errors(tensors_of(self._kernel, config, problem)).items():
                seen[key] = torch.cat([seen[key], errors]) if key in seen else errors
        for problem in self._settings.context.problems:
            fault = self._tail_risk_fault(config, built, problem, seen)
            if fault is not None:
                return fault, reports
        return None, reports

    def _settled(self, failed: RunFailed, config: Config) -> RunFailed:
        """Return the failure; a candidate that exceeds the limit is `hung` if the default candidate needs far less."""
        if not is_too_large(failed) or config == self._settings.default:
            return failed
        problem = self._kernel.problem(failed.evidence["problem"])
        if problem not in self._default_work:
            self._default_work[problem] = self._own_runs.instructions(self._settings.default, problem)
        return compared_with_default(failed, self._default_work[problem])

    def _predict(self, job: Simulate, problem: Problem, limit_us: float | None) -> Predicted:
        def predict(built: Built) -> Predicted:
            return self._predictor.predict_long(
                job.config, built, problem, limit_us, lambda failed: self._settled(failed, job.config)
            )

        return self._lines.run(job.config, job.built, problem, predict)

    def _own_problem(self, job: Simulate, problem: Problem, predicted: Predicted, most: int) -> FullSizeResult:
        """Check a candidate on one of the study's problems."""
        counters = [launch.counters for launch in predicted.launches]
        each = [float(one.warp_instructions.sum()) / len(one.blocks) for one in counters]

        def check(built: Built) -> FullSizeResult:
            program = self._predictor.program(job.config, built, problem)
            return self._own.check(job.config, built, problem, program, each, most=most)

        return self._lines.run(job.config, job.built, problem, check)

    def _recounted(self, job: Simulate, problem: Problem, predicted: Predicted, found: FullSizeResult) -> Predicted:
        """Return a new prediction for a candidate whose uncounted blocks do more work than the counted ones."""

        def recount(built: Built) -> Predicted:
            stage, blocks = self._own.drawn(job.config, built, problem, RECOUNTED)
            again = self._predictor.predict(job.config, built, problem, stage=stage, blocks=blocks)
            return slower(predicted, again, found.ran)

        return self._lines.run(job.config, job.built, problem, recount)

    def _tail_risk_fault(
        self, config: Config, built: Built, problem: Problem, seen: Mapping[tuple[InputSet, str], torch.Tensor]
    ) -> Mapping[str, Any] | None:
        def probe(built: Built) -> Mapping[str, Any] | None:
            return self._probe.fault(config, built, problem, seen)

        return self._lines.run(config, built, problem, probe)

    def _affordable(self, config: Config, problem: Problem) -> tuple[Problem, Verdict]:
        """Check a candidate on a small problem, or on a smaller one if it needs too many instructions there.

        Raises:
            RunFailed: the candidate failed, or is too large at each of the problems.
        """
        try:
            return problem, self._check(config, problem)
        except RunFailed as failed:
            first = self._settled(failed, config)
            if not is_too_large(first):
                raise first from None
        for smaller in islice(self._own.smaller(config, problem), HALVINGS):
            try:
                return smaller, self._check(config, smaller)
            except RunFailed as failed:
                if not is_too_large(failed):
                    raise
        raise first

    def _check(self, config: Config, problem: Problem) -> Verdict:
        kernel, gate = self._kernel, self._gate(problem)
        rendered = render(kernel, config, problem)
        if self._last is None or self._last[0] != rendered:  # the small problems often share one program
            self._last = rendered, self._compiled(rendered, problem)
            self._prover.programs.remember(*self._last)
        runner = SimRunner(self._last[1], problem, self._settings.simulation.instruction_limit)
        launches, tensors = launches_of(kernel, config, problem), tensors_of(kernel, config, problem)
        gate.reseed(candidate_seed(self._settings.secret, config, problem))
        return checked(gate, runner, launches, tensors, foreign=isinstance(config, ForeignCandidate))

    def _compiled(self, rendered: Rendered, problem: Problem) -> SimulatedProgram:
        """Return the program with line information.

        Raises:
            RunFailed: the program does not compile for this problem.
        """
        program = compile_simulated(rendered, self._settings.context.profile)
        if isinstance(program, CompileFailure):
            evidence = {"log": program.log[:8000], "message": f"{program.message} (at {problem})"}
            raise RunFailed(Outcome.COMPILE_ERROR, evidence)
        return program


def not_simulated(error: EvokernError) -> Evaluation:
    """Return the outcome of a candidate with an instruction that the simulator does not support.

    A GPU may run the candidate, so the simulated device reports no verdict on it.
    """
    what = f"not simulated: {error}"
    return Evaluation(Outcome.CRASHED, evidence={"error": "not simulated", "message": str(error), "diagnosis": what})
