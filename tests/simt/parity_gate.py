"""The same random candidates through the live device's gate and through the simulated one's."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Any

from parity_candidates import FOLDERS
from ranking import drawn_candidates

from evokern.compile.build import Target, build
from evokern.compile.cache import default_cache
from evokern.declaration.feasibility import feasible_space
from evokern.declaration.genes import Config
from evokern.declaration.small_problems import gate_problems
from evokern.device.contract import Request, Task
from evokern.device.opening import open_device
from evokern.device.sim.jobs import SimSettings
from evokern.device.sim.worker import SimWorker
from evokern.gate import RunFailed
from evokern.hardware.profiles import CHIPS, chip
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import GateSettings, SimulationSettings, Study, TimingSettings
from evokern.study.trial import Evaluation, Outcome

PASSED = frozenset({Outcome.MEASURED, Outcome.SLOW, Outcome.DUPLICATE})
"""Outcomes of candidates that the gate let through."""
BRIEF = TimingSettings(race=0, min_samples=3, max_samples=3, sample_us=50.0, warmup_us=50.0)
"""As little timing as the live device does; racing is off, so that slow candidates are checked too."""
PATIENT = SimulationSettings(instruction_limit=400_000_000)
"""Gates are compared, not limits: a candidate of one warp a block may take some seconds here that are none on a GPU."""
BORDERLINE = 4.0
"""Error over tolerance up to which a wrong candidate is one that rounds just too often."""


def on_the_gpu(task: Task, configs: Sequence[Config], limit_s: float = 400) -> list[Evaluation]:
    """Evaluate candidates on the first GPU."""
    device = open_device("cuda:0")
    try:
        device.start(task)
        for number, config in enumerate(configs):
            device.submit(Request(number, config))
        found: dict[int, Evaluation] = {}
        end = time.monotonic() + limit_s
        while len(found) < len(configs) and time.monotonic() < end:
            found |= {answer.number: answer.evaluation for answer in device.poll(1.0)}
    finally:
        device.close()
    missing = [number for number in range(len(configs)) if number not in found]
    assert missing == [], f"the GPU did not answer for candidates {missing} within {limit_s:g} s"
    return [found[number] for number in range(len(configs))]


@lru_cache(maxsize=4)
def _worker(kernel: str, problem: str, name: str) -> SimWorker:
    folder, profile = FOLDERS[kernel], chip(name)
    loaded = load_kernel(folder)
    context, default = WorkerContext(folder, (loaded.problem(problem),), profile), loaded.space.default()
    return SimWorker(SimSettings(context, GateSettings(), TimingSettings(), PATIENT, default))


def simulated_gate(kernel: str, problem: str, name: str, config: Config) -> tuple[str, bool]:
    """Run the simulated device's gate alone on one candidate.

    Returns:
        What is wrong with it, or nothing, and whether it just leaves the tolerance.
    """
    worker = _worker(kernel, problem, name)
    loaded, profile = load_kernel(FOLDERS[kernel]), chip(name)
    problems = (loaded.problem(problem),)
    built = build(loaded, config, problems, Target(profile, default_cache()))
    if isinstance(built, Evaluation):
        return f"{built.outcome}: {built.reason}", False
    try:
        against, _ = worker.gate(config, built, gate_problems(loaded, config, problems, profile))
    except RunFailed as failed:
        return str(failed), False
    return ("", False) if against is None else (str(against["message"]), near(against))


def near(evidence: Mapping[str, Any]) -> bool:
    """Tell whether a wrong candidate is one that rounds just too often: chance has a part in whether that shows."""
    return float(evidence.get("over", "inf")) <= BORDERLINE


def compared(kernel: str, problem: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Return, for each of `count` random candidates, what both gates said of it: nothing where it passed.

    Raises:
        LookupError: there is no data sheet of this GPU, so nothing simulates it.
    """
    loaded = load_kernel(FOLDERS[kernel])
    study = replace(Study("parity", str(FOLDERS[kernel]), (problem,)), timing=BRIEF)
    task = Task(loaded, (loaded.problem(problem),), study)
    device = open_device("cuda:0")
    model, profile = device.identity, device.profile
    device.close()
    name = next((name for name, known in CHIPS.items() if known.model == model), None)
    if name is None:
        raise LookupError(f"no data sheet of {model}")
    space = feasible_space(loaded, task.problems, profile)
    configs = drawn_candidates(space, random.Random(seed), count)
    cores = len(os.sched_getaffinity(0))
    # A process per core, each with one thread: those of its linear algebra would get in the others' way.
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        simulated = [pool.submit(simulated_gate, kernel, problem, name, config) for config in configs]
        measured = on_the_gpu(task, configs)
        rows = zip(configs, measured, (sim.result() for sim in simulated), strict=True)
        return [
            {
                "config": dict(config),
                "borderline": near(gpu.evidence) or just,
                "gpu": "" if gpu.outcome in PASSED else f"{gpu.outcome}: {gpu.reason}",
                "simulated": told,
            }
            for config, gpu, (told, just) in rows
        ]
