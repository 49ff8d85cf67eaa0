"""One round of a playoff on the GPU: everything loaded anew, new inputs, samples of all candidates in turn.

Candidates with the same tensors work on the same buffers: where a buffer lies in memory can change a time by more than
what a playoff decides about (two loads of one program on buffers of their own were told apart on an H200).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from evokern.declaration.kernel import Problem, Tensor
from evokern.device.gpu.cuda import Candidate
from evokern.device.gpu.graph_clock import GraphClock
from evokern.device.gpu.jobs import Contestant, Round
from evokern.device.gpu.timed_runs import TimedRuns
from evokern.errors import DeviceError
from evokern.gate.bench import Bench
from evokern.gate.check import RunFailed
from evokern.gate.verdict import judge
from evokern.measurement.statistics import geometric_mean


@dataclass(frozen=True)
class _TimedProblem:
    """One candidate at one problem, ready to be timed."""

    clock: GraphClock
    bench: Bench
    problem: Problem
    name: str


def play_round(runs: TimedRuns, job: Round) -> tuple[tuple[float, ...], ...]:
    """Load, warm up and sample every candidate in turn.

    Returns:
        Samples of each contestant in µs a call, over several problems their geometric mean; samples at one position
        were taken one after the other.

    Raises:
        DeviceError: a candidate's timed runs left wrong results, or it crashed or hung.
    """
    try:
        return _play(runs, job)
    except RunFailed as failed:
        raise DeviceError(f"a candidate failed in the playoff: {failed.outcome.value}, {failed.evidence}") from failed


def _play(runs: TimedRuns, job: Round) -> tuple[tuple[float, ...], ...]:
    loaded = [Candidate(one.built) if one.built else None for one in job.contestants]
    benches: list[tuple[Problem, dict[str, Tensor], Bench]] = []
    rows = []
    for contestant, candidate in zip(job.contestants, loaded, strict=True):
        row = []
        for problem in runs.problems:
            bench = _bench(runs, contestant, problem, benches)
            calls = runs.sequence(bench, contestant.config, problem, contestant.built, candidate, contestant.baseline)
            clock = runs.clock(calls, bench, contestant.baseline)
            clock.prepare()
            clock.settle()  # the next one draws its changes from the same inputs
            row.append(_TimedProblem(clock, bench, problem, contestant.baseline or "a candidate"))
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
    runs: TimedRuns, contestant: Contestant, problem: Problem, benches: list[tuple[Problem, dict[str, Tensor], Bench]]
) -> Bench:
    """Return the buffers that others with the same tensors use too, or new ones."""
    tensors, _ = runs.workload(contestant.config, problem)
    if not any(tensor.role == "inout" for tensor in tensors.values()):
        for of, same, bench in benches:
            if (of, same) == (problem, tensors):
                return bench
    bench = runs.bench(tensors, problem, fresh=True)
    bench.poison()
    benches.append((problem, tensors, bench))
    return bench


def _require_state(runs: TimedRuns, contestant: Contestant, candidate: Candidate) -> None:
    """Require that a candidate's timed runs left only declared variables changed."""
    for problem in runs.problems:
        if names := candidate.changed(candidate.built.build(problem).program):
            raise DeviceError(f"a candidate was wrong in the playoff: it left {', '.join(names)} changed at {problem}")


def _one_sample(clock: GraphClock) -> float:
    while True:
        samples = clock.take(1, sustained=True)
        if samples:
            clock.settle()  # others work on the same inputs next
            return statistics.fmean(samples)  # of long calls one for each input set


def _require_right_in_samples(row: Sequence[_TimedProblem]) -> None:
    """Check what was kept of the calls around which inputs changed; all inputs are still those of the samples."""
    for timed in row:
        fault = timed.clock.fault()
        if fault is not None:
            raise DeviceError(f"{timed.name} was wrong in the playoff: {fault['message']} at {timed.problem}")


def _require_right(row: Sequence[_TimedProblem]) -> None:
    """Run each timed graph once more, on poisoned outputs, and check what it leaves."""
    for timed in row:
        if any(tensor.role == "inout" for tensor in timed.bench.tensors.values()):
            continue  # timed calls worked on their own results, which cannot be compared
        timed.bench.poison()
        timed.clock.replay()
        verdict = judge(
            timed.bench, timed.bench.verify(), deterministic=False, problem=timed.problem, when="in the playoff"
        )
        if not verdict.passed:
            raise DeviceError(f"{timed.name} was wrong in the playoff: {verdict.evidence['message']}")
