"""What does the correctness gate cost for each candidate on a GPU? Compares two versions of evokern.

    python tests/scripts/gate_time.py [--repeats 16] [--problem KERNEL:PROBLEM ...]

Evaluates the default candidate repeatedly, as a search evaluates candidates, and prints one JSON line per problem: the
median and the mean of the gate's time, and the median of the time of the whole evaluation, in ms. It measures the
version of evokern on PYTHONPATH and the kernels of the working directory, so an older version is measured from its
checkout. The mean includes the renewal of inputs that takes place every `gate.renew_every` candidates.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from evokern.compile.build import Target, build
from evokern.compile.cache import CompileCache
from evokern.compile.records import Built
from evokern.device.gpu.jobs import Evaluate, GpuSettings
from evokern.device.gpu.profile import live_gpu
from evokern.device.gpu.worker import GpuWorker
from evokern.study.discovery import WorkerContext, find_kernel
from evokern.study.settings import GateSettings, TimingSettings
from evokern.study.trial import Evaluation, Outcome

PROBLEMS = ("matmul:4096,4096,4096", "attention:4,16,4096,128")
WARM_UP = 3
"""Evaluations before the measured ones."""
NEVER_BEST_US = 1e-3
"""Time to beat, so that no evaluation counts as a new best and renews all inputs."""


def evaluations(name: str, text: str, repeats: int) -> list[Evaluation]:
    """Return the evaluations of a kernel's default candidate after the warm-up."""
    kernel, profile = find_kernel(name), live_gpu(0).profile
    problem, config = kernel.problem(text), kernel.space.default()
    timing = TimingSettings(race=0.0, max_samples=15)
    with tempfile.TemporaryDirectory() as folder:
        made = build(kernel, config, (problem,), Target(profile, CompileCache(Path(folder))))
        if not isinstance(made, Built):
            raise SystemExit(f"{name} at {text}: {made.reason}")
        turn = Path(folder) / "turn"
        turn.touch()
        context = WorkerContext(kernel.folder, (problem,), profile)
        worker = GpuWorker(GpuSettings(context, GateSettings(), timing, 0, turn, config))
        found = []
        for _ in range(WARM_UP + repeats):
            one = worker.handle(Evaluate(config, made, NEVER_BEST_US))
            if not isinstance(one, Evaluation) or one.outcome is not Outcome.MEASURED:
                raise SystemExit(f"{name} at {text}: {getattr(one, 'reason', one)}")
            found.append(one)
    return found[WARM_UP:]


def main() -> None:
    """Measure each problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--problem", nargs="+", default=PROBLEMS, metavar="KERNEL:PROBLEM")
    arguments = parser.parse_args()
    for one in arguments.problem:
        name, _, text = one.partition(":")
        began = time.monotonic()
        found = evaluations(name, text, arguments.repeats)
        gate = [1e3 * sum(span.seconds for span in each.spans if span.phase == "gate") for each in found]
        whole = [1e3 * each.device_s for each in found]
        numbers = {
            "problem": one,
            "gate_median_ms": round(statistics.median(gate), 3),
            "gate_mean_ms": round(statistics.fmean(gate), 3),
            "evaluation_median_ms": round(statistics.median(whole), 3),
            "repeats": len(gate),
            "gpu": torch.cuda.get_device_name(),
            "took_s": round(time.monotonic() - began, 1),
        }
        print(json.dumps(numbers), flush=True)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
