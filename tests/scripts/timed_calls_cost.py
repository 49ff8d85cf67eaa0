"""What the steps around drawn calls cost on a GPU: the same candidate with and without them, samples in turn, as JSON.

    python tests/scripts/timed_calls_cost.py [--samples 60]

For each kernel and problem: calls of a sample, steps among them, µs a call with and without, the difference as a share
of a sample (`share`, to be at most `STEP_SHARE`), its 95 % interval's half width (`noise`), and µs a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import helpers_path  # noqa: F401 (finds the helpers)

from evokern.compile.build import Target, build
from evokern.compile.cache import CompileCache, default_directory
from evokern.compile.records import Built
from evokern.declaration.kernel import Kernel, Problem
from evokern.device.contract import BaselineResult
from evokern.device.gpu.cuda import Candidate
from evokern.device.gpu.graph_clock import GraphClock
from evokern.device.gpu.jobs import Evaluate, GpuSettings, MeasureBaseline
from evokern.device.gpu.profile import live_gpu
from evokern.device.gpu.timed_calls import StepsAround
from evokern.device.gpu.worker import GpuWorker
from evokern.gate.timed_plan import TimedCalls
from evokern.measurement.statistics import median_interval
from evokern.measurement.timing import STEPS
from evokern.study.discovery import WorkerContext, find_kernel
from evokern.study.settings import GateSettings, TimingSettings
from evokern.study.trial import Evaluation

PROBLEMS = (
    ("rmsnorm", "64,8192"), ("rmsnorm", "8192,8192"), ("matmul", "256,256,256"), ("matmul", "4096,4096,4096"),
    ("attention", "2,8,128,64"), ("attention", "2,8,512,64"), ("attention", "4,16,1024,64"),
)  # fmt: skip


class _Nothing(TimedCalls):
    """No step at all, in a sample as long as one with steps."""

    def plan(self, calls: int) -> None:
        self.calls = calls


def _worker(name: str, text: str, timing: TimingSettings, turn: Path) -> tuple[GpuWorker, Kernel, Problem, Built]:
    turn.touch()
    kernel = find_kernel(name)
    problem, profile, config = kernel.problem(text), live_gpu(0).profile, kernel.space.default()
    made = build(kernel, config, (problem,), Target(profile, CompileCache(default_directory() or turn.parent)))
    if not isinstance(made, Built):
        raise SystemExit(f"{name} at {text}: {made.reason}")
    context = WorkerContext(kernel.folder, (problem,), profile)
    return GpuWorker(GpuSettings(context, GateSettings(), timing, 0, turn, config)), kernel, problem, made


def evaluated(name: str, text: str, timing: TimingSettings) -> tuple[Evaluation, tuple[BaselineResult, ...]]:
    """Evaluate a packaged kernel's default candidate, and its baselines, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        worker, kernel, _, made = _worker(name, text, timing, Path(folder) / "turn")
        baselines = [worker.handle(MeasureBaseline(index)) for index in range(len(kernel.workload.baselines))]
        found = worker.handle(Evaluate(kernel.space.default(), made, None))
    assert isinstance(found, Evaluation)
    return found, tuple(baselines)  # type: ignore[arg-type]


def cost(name: str, text: str, samples: int = 60) -> dict[str, Any]:
    """Measure what the steps cost a packaged kernel's default candidate."""
    with tempfile.TemporaryDirectory() as folder:
        worker, kernel, problem, made = _worker(name, text, TimingSettings(), Path(folder) / "turn")
    runs = worker._runs
    config = kernel.space.default()
    bench = runs.bench(runs.workload(config, problem)[0], problem)
    bench.poison()
    sequence = runs.sequence(bench, config, problem, made, Candidate(made), "")
    steps = runs.clock(sequence, bench)
    steps.prepare()
    plain = steps
    for _ in range(20):  # a pilot's noise may make one graph a round longer
        plain = GraphClock(sequence, TimingSettings(), worker._monitor, None, 10.0,
                           StepsAround(_Nothing(bench), runs._steps))  # fmt: skip
        plain.prepare()
        if plain.calls == steps.calls:
            break
        steps = runs.clock(sequence, bench)
        steps.prepare()
    both: tuple[list[float], list[float]] = ([], [])
    while len(both[1]) < samples:
        for clock, taken in zip((steps, plain), both, strict=True):
            taken += clock.take(1)[: samples - len(taken)]
    assert steps.timed is not None
    with_us, without_us = map(statistics.median, both)
    differences = [a - b for a, b in zip(*both, strict=True)]
    low, high = median_interval(differences)
    difference = statistics.median(differences)
    return {
        "kernel": name,
        "problem": text,
        "calls": steps.calls,
        "calls_without": plain.calls,
        "steps": STEPS,
        "with_us": with_us,
        "without_us": without_us,
        "share": difference / without_us,
        "noise": (high - low) / 2 / without_us,
        "step_us": difference * steps.calls / STEPS,
        "fault": steps.fault(),
        "timed_calls": steps.timed.report(),
    }


def main() -> None:
    """Print a line of JSON for each problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=60)
    chosen = parser.parse_args()
    for name, text in PROBLEMS:
        print(json.dumps(cost(name, text, chosen.samples)), flush=True)


if __name__ == "__main__":
    main()
