"""Evaluation of one candidate on a GPU: gate, timing, and a check of the timed runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.device.gpu.between_calls import BetweenCalls, SharedMemory
from evokern.device.gpu.cuda import Candidate, GpuRunner, PreparedCall, finish
from evokern.device.gpu.graph_clock import GraphClock
from evokern.device.gpu.jobs import Evaluate, GpuSettings
from evokern.device.gpu.timed_runs import TimedRuns
from evokern.gate import Gate, Verdict
from evokern.gate.buffer_set import BufferSet
from evokern.gate.check import Repetition, RunFailed, begin_candidate, calls, candidate_seed, repeated
from evokern.gate.verdict import judge
from evokern.measurement.phases import PhaseClock
from evokern.measurement.roofline import LowerBound, Work, below, boosted, floor, peak_rates, recorded, work
from evokern.measurement.statistics import geometric_mean
from evokern.measurement.timing import Measurement, Series, launch_limits, lost_by_pilot, measure
from evokern.study.trial import Evaluation, Outcome, Timing


class CandidateEvaluator:
    """Evaluator that checks and times a study's candidates one after another in one CUDA context."""

    def __init__(
        self,
        settings: GpuSettings,
        kernel: Kernel,
        gates: Mapping[Problem, Gate],
        runs: TimedRuns,
        shared: SharedMemory | None,
        phases: PhaseClock,
    ) -> None:
        """Use the objects that a worker created for its study.

        Args:
            settings: settings of the worker.
            kernel: kernel of the study.
            gates: gate of each problem, in the study's order.
            runs: timed runs of the worker.
            shared: object that overwrites shared memory between calls; None if every launch clears shared memory.
            phases: recorder of the time spent in gate and timing.
        """
        self._settings = settings
        self._kernel = kernel
        self._gates = gates
        self._runs = runs
        self._shared = shared
        self._phases = phases
        self._best_us = math.inf
        self.next_waits: Callable[[], bool] = lambda: True
        """Function that returns whether another candidate waits; if not, the current one gets more samples."""

    def evaluate(self, job: Evaluate, candidate: Candidate) -> Evaluation:
        """Return the evaluation of a candidate.

        Raises:
            RunFailed: a launch crashed, hung, or was far too slow.
        """
        reports: dict[str, Any] = {}
        marginal: set[Problem] = set()
        begin_candidate(self._settings.secret, job.config)
        if self._shared is not None:
            self._shared.values.seed(candidate_seed(self._settings.secret, job.config, purpose="shared memory"))
        for problem, gate in self._gates.items():
            with self._phases.phase("gate"):
                verdict = self._check(job, candidate, problem, gate)
            reports[problem.key] = dict(verdict.report)
            marginal |= {problem} if verdict.marginal else set()
            if not verdict.passed:
                return Evaluation(Outcome.WRONG, evidence=verdict.evidence, gate=reports)
        benches, clocks, resets = [], [], []
        with self._phases.phase("timing"):
            for problem in self._gates:
                tensors, launches = self._runs.workload(job.config, problem)
                bench = self._runs.bench(tensors, problem)
                self._reseed(job, problem, "timing")
                if problem in marginal:
                    bench.refresh(whole=True)  # the inputs of earlier candidates must not decide
                bench.poison()
                program = job.built.build(problem).program
                prepared = [candidate.prepare(program, call) for call in calls(bench, launches)]
                clocks.append(self._runs.clock([call.enqueue for call in prepared], bench))
                benches.append(bench)
                resets.append(prepared)
            pilots = [clock.pilot_us for clock in clocks]
            if self._settings.timing.cache != "flush" and lost_by_pilot(pilots, self._settings.timing, job.elite_us):
                for bench in benches:
                    bench.restore_inputs()
                return self._lost_by_pilot(pilots, clocks, job, reports)
            for clock in clocks:
                clock.prepare()
            measurement = measure(clocks, self._settings.timing, job.elite_us, lambda: not self.next_waits())
        timings = timings_of(measurement, clocks)
        tasks, floors = self._least(job.config, timings)
        if measurement.lost:
            # The gate found it correct and its time is not used, so its timed runs are not checked.
            for bench in benches:
                bench.restore_inputs()
            evidence = recorded(tasks, floors)
            evidence |= {"elite_us": job.elite_us, "samples": len(measurement.series[0].samples_us)}
            return Evaluation(Outcome.SLOW, measurement.time_us, timings, evidence=evidence, gate=reports)
        for problem, bench, clock, prepared in zip(self._gates, benches, clocks, resets, strict=True):
            with self._phases.phase("gate"):
                self._reseed(job, problem, "repetition")
                between = self._between(job, candidate, problem)
                verdict = self._check_timed(between, bench, clock, prepared, problem, whole=problem in marginal)
            if clock.timed is not None:
                reports[problem.key]["timed_calls"] = clock.timed.report()
            if not verdict.passed:
                return Evaluation(Outcome.WRONG, timings=timings, evidence=verdict.evidence, gate=reports)
        for problem, timing, limit in zip(self._gates, timings, floors, strict=True):
            impossible = below(timing.median_us, limit)
            if impossible:
                fault = {"check": "floor", "message": impossible, "problem": problem.key}
                return Evaluation(Outcome.WRONG, timings=timings, evidence=fault, gate=reports)
        # `elite_us` counts only trials that the sampler may know. Faster ones may have been measured since.
        best = job.elite_us is None or measurement.time_us < min(job.elite_us, self._best_us)
        # A marginal candidate has been checked on inputs that no earlier candidate saw.
        for problem, gate in self._gates.items() if best else ():
            if problem in marginal:
                continue
            verdict = self._check_renewed(job, candidate, problem, gate)
            if not verdict.passed:
                reports[problem.key] = dict(verdict.report)
                return Evaluation(Outcome.WRONG, timings=timings, evidence=verdict.evidence, gate=reports)
        self._best_us = min(self._best_us, measurement.time_us)
        evidence = recorded(tasks, floors)
        return Evaluation(Outcome.MEASURED, measurement.time_us, timings, evidence=evidence, gate=reports)

    def _lost_by_pilot(
        self,
        pilots: Sequence[Sequence[float]],
        clocks: Sequence[GraphClock],
        job: Evaluate,
        reports: Mapping[str, Any],
    ) -> Evaluation:
        """Return the evaluation of a candidate that lost the race by its pilot; its timed runs are not checked."""
        measurement = Measurement(tuple(Series(tuple(pilot)) for pilot in pilots), lost=True)
        timings = timings_of(measurement, clocks)
        lost = {"elite_us": job.elite_us, "samples": len(pilots[0]), "pilot": True}
        evidence = recorded(*self._least(job.config, timings)) | lost
        return Evaluation(Outcome.SLOW, measurement.time_us, timings, evidence=evidence, gate=reports)

    def _least(self, config: Config, timings: Sequence[Timing]) -> tuple[list[Work], list[LowerBound]]:
        """Return the work of a call for each problem, and the lower bound on its time at the observed clocks."""
        profile, tasks = self._settings.context.profile, []
        for problem in self._gates:
            tensors, _ = self._runs.workload(config, problem)
            tasks.append(work(self._kernel, problem, tensors, self._settings.timing, profile))
        chip = boosted(profile, [timing.clock_mhz for timing in timings])
        return tasks, [floor(task, peak_rates(chip), chip) for task in tasks]

    def _check(self, job: Evaluate, candidate: Candidate, problem: Problem, gate: Gate) -> Verdict:
        tensors, launches = self._runs.workload(job.config, problem)
        program = job.built.build(problem).program
        between = self._between(job, candidate, problem)
        timing = self._settings.timing
        limits = launch_limits(timing, job.elite_us, self._default_us(job, problem), len(self._gates))
        runner = GpuRunner(
            candidate, program, timing.hang_s, before=between.overwrite, after=between.require_state,
            limits=limits,
        )  # fmt: skip
        try:
            self._reseed(job, problem, "check")
            verdict = gate.check(runner, launches, tensors)
            self._reseed(job, problem, "fresh inputs")
            verdict = gate.retest(verdict, runner, launches, tensors)
        except RunFailed as failed:
            if failed.outcome is not Outcome.SLOW:
                raise
            raise RunFailed(
                Outcome.SLOW, failed.evidence | self._unchecked_evidence(job, problem, failed.evidence)
            ) from failed
        if verdict.passed:
            return verdict
        bench = gate.bench(tensors, gate.kinds(tensors), self._settings.gate.runs)
        first = candidate.prepare(program, calls(bench, launches)[0])
        return between.explain(verdict, bench, lambda: self._once([first]))

    def _reseed(self, job: Evaluate, problem: Problem, purpose: str) -> None:
        """Derive the next random choices from the study's secret, so that searches with one seed agree."""
        self._gates[problem].reseed(candidate_seed(self._settings.secret, job.config, problem, purpose))

    def _unchecked_evidence(self, job: Evaluate, problem: Problem, seen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the evidence for a candidate whose first launches were far too slow; its results were not checked."""
        bound_us, raced_us, count = seen["bound_us"], seen["elite_us"], len(self._gates)
        if count > 1:  # assumes the default candidate's speed on the other problems
            bound_us = geometric_mean(job.default_us) * (bound_us / raced_us) ** (1 / count)
        return {"unproved": True, "problem": problem.key, "bound_us": bound_us}

    def _default_us(self, job: Evaluate, problem: Problem) -> float | None:
        """Return the launch time of the default candidate on a problem; None if unknown."""
        return dict(zip(self._gates, job.default_us, strict=False)).get(problem)

    def _between(self, job: Evaluate, candidate: Candidate, problem: Problem) -> BetweenCalls:
        return BetweenCalls(self._kernel, job, candidate, problem, self._shared)

    def _check_renewed(self, job: Evaluate, candidate: Candidate, problem: Problem, gate: Gate) -> Verdict:
        """Check a possible new best on fresh inputs if earlier candidates saw the current ones."""
        tensors, launches = self._runs.workload(job.config, problem)
        if not gate.keeps_inputs(tensors):
            return Verdict(True)
        program = job.built.build(problem).program
        runner = GpuRunner(candidate, program, self._settings.timing.hang_s)
        self._reseed(job, problem, "renewed")
        return gate.check(runner, launches, tensors, whole=True)

    def _check_timed(
        self,
        between: BetweenCalls,
        bench: BufferSet,
        clock: GraphClock,
        prepared: Sequence[PreparedCall],
        problem: Problem,
        *,
        whole: bool,
    ) -> Verdict:
        """Check the timed runs, and the module variables after the timed and the repeated runs."""
        try:
            between.require_state()
            verdict = self._judge_timed(between, bench, clock, prepared, problem, whole=whole)
            if verdict.passed:
                between.require_state()
            else:
                verdict = between.explain(verdict, bench, lambda: self._once(prepared[:1]))
        except RunFailed as failed:
            if failed.outcome is not Outcome.WRONG:
                raise
            verdict = Verdict(False, failed.evidence)
        if not verdict.passed:
            # Restore the inputs for the next candidate in case this one changed them.
            bench.refresh()
        return verdict

    def _judge_timed(
        self,
        between: BetweenCalls,
        bench: BufferSet,
        clock: GraphClock,
        prepared: Sequence[PreparedCall],
        problem: Problem,
        *,
        whole: bool,
    ) -> Verdict:
        """Check the recorded and the final outputs of the timed runs, then repeat the runs.

        The timed graph is repeated first, then single calls.
        """
        fault = clock.fault()
        if fault is not None:
            return Verdict(False, {**fault, "message": f"{fault['message']} at {problem}", "problem": problem.key})
        in_place = any(tensor.role == "inout" for tensor in bench.tensors.values())
        if in_place:
            # The timed calls used their own results as inputs; only one call from the initial state can be compared.
            bench.poison()
            self._once(prepared)
        verdict = judge(bench, bench.verify(), deterministic=False, problem=problem, when="in the timed runs")
        if not verdict.passed:
            verdict = replace(verdict, evidence={**verdict.evidence, "check": "timed_runs"})
        else:

            def repeat(repetition: Repetition) -> None:
                between.overwrite()
                self._repeat(clock, prepared, repetition)

            verdict = repeated(bench, repeat, problem=problem, whole=whole)
        return verdict

    def _repeat(self, clock: GraphClock, prepared: Sequence[PreparedCall], repetition: Repetition) -> None:
        if repetition.poisoned:
            self._once(prepared)
        else:
            if clock.timed is not None:
                clock.timed.reset_versions()
            clock.replay()

    def _once(self, prepared: Sequence[PreparedCall]) -> None:
        for call in prepared:
            call.enqueue()
        finish(self._settings.timing.hang_s * len(prepared), self._settings.timing.hang_s)


def timings_of(measurement: Measurement, clocks: Sequence[GraphClock]) -> tuple[Timing, ...]:
    """Return the timings of a measurement for each problem, with the observed clocks and throttle reasons."""
    timings = []
    for series, clock in zip(measurement.series, clocks, strict=True):
        seen = [state.clock_mhz for state in clock.states if state.clock_mhz is not None]
        reasons = sorted({state.throttle for state in clock.states if state.throttle})
        timings.append(
            Timing(
                series.median_us,
                series.ci95_us,
                series.samples_us,
                clock_mhz=sum(seen) / len(seen) if seen else None,
                throttle="; ".join(reasons),
                temperature_c=clock.states[-1].temperature_c,
            )
        )
    return tuple(timings)
