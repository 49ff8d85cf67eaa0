"""One playoff round on the GPU: newly loaded modules, new inputs, and interleaved samples of all candidates.

Candidates with the same tensors share their buffers, because the address of a buffer can change a time by more than the
playoff's margin (docs/lab/2026-11-27-timing.md#buffers-in-a-playoff).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evokern.declaration.kernel import Problem, Tensor
from evokern.device.gpu.cuda import Candidate
from evokern.device.gpu.graph_clock import GraphClock
from evokern.device.gpu.jobs import Contestant, Round
from evokern.device.gpu.timed_runs import TimedRuns
from evokern.errors import DeviceError
from evokern.gate.buffer_set import BufferSet
from evokern.gate.check import RunFailed
from evokern.gate.verdict import judge
from evokern.measurement.statistics import geometric_mean


@dataclass(frozen=True)
class _TimedProblem:
    """Candidate on one problem, ready for timing."""

    clock: GraphClock
    bench: BufferSet
    tensors: Mapping[str, Tensor]
    problem: Problem
    name: str


def play_round(runs: TimedRuns, job: Round) -> tuple[tuple[float, ...], ...]:
    """Load, warm up and sample every candidate in interleaved order.

    Returns:
        Samples of each contestant in µs per call, as the geometric mean over problems. Samples at the same position
        were taken one after another.

    Raises:
        DeviceError: a candidate's timed runs returned wrong results, crashed or hung.
    """
    try:
        return _play(runs, job)
    except RunFailed as failed:
        raise DeviceError(f"a candidate failed in the playoff: {failed.outcome.value}, {failed.evidence}") from failed


def _play(runs: TimedRuns, job: Round) -> tuple[tuple[float, ...], ...]:
    loaded = [Candidate(one.built) if one.built else None for one in job.contestants]
    benches: list[tuple[Problem, dict[str, Tensor], BufferSet]] = []
    rows = []
    for contestant, candidate in zip(job.contestants, loaded, strict=True):
        row = []
        for problem in runs.problems:
            tensors, _ = runs.workload(contestant.config, problem, contestant.baseline)
            bench = _bench(runs, tensors, problem, benches)
            bench.judge_as(tensors)
            calls = runs.sequence(bench, contestant.config, problem, contestant.built, candidate, contestant.baseline)
            clock = runs.clock(calls, bench, contestant.baseline)
            clock.prepare()
            clock.settle()  # the next clock chooses its changes from the same inputs
            row.append(_TimedProblem(clock, bench, tensors, problem, contestant.baseline or "a candidate"))
        rows.append(row)
    taken: list[list[float]] = [[] for _ in rows]
    for turn in range(job.samples):
        order = range(len(rows)) if turn % 2 == 0 else range(len(rows) - 1, -1, -1)
        for index in order:
            taken[index].append(geometric_mean([_one_sample(timed.clock) for timed in rows[index]]))
    for row in rows:
        _require_right_in_samples(row)
    for contestant, row in zip(job.contestants, rows, strict=True):
        if not contestant.baseline:
            _require_right(row)
    for contestant, candidate in zip(job.contestants, loaded, strict=True):
        if candidate is not None:
            _require_state(runs, contestant, candidate)
            candidate.unload()
    return tuple(tuple(samples) for samples in taken)


def _bench(
    runs: TimedRuns,
    tensors: dict[str, Tensor],
    problem: Problem,
    benches: list[tuple[Problem, dict[str, Tensor], BufferSet]],
) -> BufferSet:
    """Return buffers shared with candidates that have the same tensors, or new ones."""
    if not any(tensor.role == "inout" for tensor in tensors.values()):
        for of, same, bench in benches:
            if (of, same) == (problem, tensors):
                return bench
    bench = runs.bench(tensors, problem, fresh=True)
    bench.poison()
    benches.append((problem, tensors, bench))
    return bench


def _require_state(runs: TimedRuns, contestant: Contestant, candidate: Candidate) -> None:
    """Check that a candidate's timed runs changed only declared variables."""
    for problem in runs.problems:
        if names := candidate.changed(candidate.built.build(problem).program):
            raise DeviceError(f"a candidate failed in the playoff: it changed {', '.join(names)} at {problem}")


def _one_sample(clock: GraphClock) -> float:
    while True:
        samples = clock.take(1, sustained=True)
        if samples:
            clock.settle()  # the next candidate uses the same inputs
            return statistics.fmean(samples)  # long calls give one sample per input set


def _require_right_in_samples(row: Sequence[_TimedProblem]) -> None:
    """Check the recorded outputs of calls with changed inputs while the buffers still hold the samples' inputs."""
    for timed in row:
        timed.bench.judge_as(timed.tensors)  # others with the same buffers may have other bounds
        fault = timed.clock.fault()
        if fault is not None:
            raise DeviceError(
                f"{timed.name} returned wrong results in the playoff: {fault['message']} at {timed.problem}"
            )


def _require_right(row: Sequence[_TimedProblem]) -> None:
    """Run each timed graph again on poisoned outputs and check the results."""
    for timed in row:
        if any(tensor.role == "inout" for tensor in timed.bench.tensors.values()):
            continue  # timed calls used their own results as inputs, so their results cannot be compared
        timed.bench.judge_as(timed.tensors)
        timed.bench.poison()
        timed.clock.replay()
        verdict = judge(
            timed.bench, timed.bench.verify(), deterministic=False, problem=timed.problem, when="in the playoff"
        )
        if not verdict.passed:
            raise DeviceError(f"{timed.name} returned wrong results in the playoff: {verdict.evidence['message']}")
