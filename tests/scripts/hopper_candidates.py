"""Random candidates with tensor maps, mbarrier rings or clusters: measured on a GPU, then predicted and judged without.

    python tests/scripts/hopper_candidates.py rows.jsonl --measure [--count 50] [--seconds 40]   # on a GPU
    python tests/scripts/hopper_candidates.py rows.jsonl --predict                               # on a CPU
    python tests/scripts/hopper_candidates.py rows.jsonl --gate                                  # on a CPU

`--measure` draws candidates of each task (`TASKS`), and appends a line for each: its verdict at the gate, and its time
at each problem. Every fifth candidate has a defect (`DEFECTS`), which the gate must reject. `--predict` compares the
predicted with the measured times, and `--gate` the verdict with that of the simulated device's gate, which runs on the
kernel's small problems. Exit code 1 if the mean rank correlation is below `BAR`, or if verdicts differ.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import helpers_path  # noqa: F401 (finds the helpers)
import parity_gate
from model_accuracy import INSTRUCTIONS, accuracy
from parity_candidates import FOLDERS
from paths import KERNELS
from ranking import Ranking

from evokern.declaration.feasibility import feasible_space
from evokern.declaration.genes import Config, Value
from evokern.declaration.kernel import Kernel
from evokern.device.contract import Request, Task
from evokern.device.opening import open_device
from evokern.hardware.profiles import chip
from evokern.study.discovery import load_kernel
from evokern.study.settings import SimulationSettings, Study, TimingSettings

CHIP = "h200"
BAR = 0.80
"""Lowest mean rank correlation over all problems."""
DEFECT_EVERY = 5
"""One of this many candidates has a defect."""
TIMING = TimingSettings(race=0, min_samples=5, max_samples=9, sample_us=200.0, warmup_us=300.0)
"""Times of random candidates differ far more than repeated measurements."""


@dataclass(frozen=True)
class Group:
    """Candidates of one kernel that are measured at the same problems."""

    kernel: str
    genes: Mapping[str, Value]
    """Choices that select the machinery."""
    problems: tuple[str, ...]


BULK: Mapping[str, Value] = {"PATH": "bulk"}
TASKS = {
    "attention-64": Group("attention", BULK, ("4,16,1024,64", "3,16,777,64,causal=1")),
    "attention-128": Group("attention", BULK, ("2,16,2048,128", "2,24,1500,128,causal=1")),
    "matmul": Group("matmul", BULK, ("1000,2056,1544", "4096,4096,512", "192,5120,4096", "3072,768,3072")),
    "rmsnorm": Group("rmsnorm", {"ROW_SUM": "cluster"}, ("2,65536", "16,16384", "300,5120")),
}
"""Names of groups. The problems of one group are those that a candidate must be able to run."""

DEFECTS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "attention": (
        ("ring_loop.cuh", "maps.v, step * TILE_KEYS", "maps.v, step * TILE_KEYS + (DEFECT == DEFECT_FIRST)"),
        ("ring_loop.cuh", "rcp_approx(rows.sum[0][2])}", "rcp_approx(rows.sum[0][DEFECT == DEFECT_SECOND ? 0 : 2])}"),
    ),
    "matmul": (
        ("bulk.cuh", "step > 0 || k > 0)", "step > 0 || (DEFECT != DEFECT_FIRST && k > 0))"),
        ("bulk.cuh", "rows.at(m * 64 * 128 + k * 32)", "rows.at(m * 64 * 128 + (DEFECT == DEFECT_SECOND ? 0 : k * 32))"),
    ),
    "rmsnorm": (
        ("cluster.cuh", "block < BLOCKS; block++", "block < BLOCKS - (DEFECT == DEFECT_FIRST); block++"),
        ("kernel.cu", "cluster_sum(total, parts)", "cluster_sum(DEFECT == DEFECT_SECOND ? squares : total, parts)"),
    ),
}
"""Kernel → (file, text, the same text with a defect), which a gene DEFECT selects in a copy of the kernel."""


def with_defects(name: str, folder: Path) -> Path:
    """Copy a kernel and add the gene DEFECT; return the folder of the copy."""
    for part in (name, "common"):
        shutil.copytree(KERNELS / part, folder / part, dirs_exist_ok=True)
    gene = '    Mutation("DEFECT", ("none", "first", "second"), doc="seeded defect"),\n'
    for file, right, wrong in (("kernel.py", "GENES = (\n", f"GENES = (\n{gene}"), *DEFECTS[name]):
        path = folder / name / file
        text = path.read_text(encoding="utf-8")
        assert text.count(right) == 1, f"{path} contains {right!r} {text.count(right)} times"
        path.write_text(text.replace(right, wrong), encoding="utf-8")
    return folder / name


def drawn(kernel: Kernel, group: Group, count: int, seed: int) -> list[Config]:
    """Return different feasible candidates with the machinery, some of them with a defect."""
    problems = [kernel.problem(text) for text in group.problems]
    fixed = {**group.genes, "DEFECT": "none"}
    space = feasible_space(kernel, problems, chip(CHIP), {gene: (value,) for gene, value in fixed.items()})
    rng = random.Random(seed)
    found: dict[Config, None] = {}
    while len(found) < count:
        config = space.draw(rng)
        if space.feasible(config):
            found[config] = None
    right = list(found)
    return [
        kernel.space.with_changes(config, {"DEFECT": ("first", "second")[at // DEFECT_EVERY % 2]})
        if at % DEFECT_EVERY == DEFECT_EVERY - 1
        else config
        for at, config in enumerate(right)
    ]


def measured(name: str, kernel: Kernel, count: int, seed: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each candidate that a GPU evaluated in time."""
    group, configs = TASKS[name], drawn(kernel, TASKS[name], count, seed)
    timed = replace(kernel, workload=replace(kernel.workload, baselines=()))
    problems = tuple(timed.problem(text) for text in group.problems)
    study = replace(Study(name, str(kernel.folder), group.problems), timing=TIMING)
    device, end = open_device("cuda:0"), time.monotonic() + seconds
    try:
        device.start(Task(timed, problems, study))
        for number, config in enumerate(configs):
            device.submit(Request(number, config))
        left = len(configs)
        while left and time.monotonic() < end:
            for answer in device.poll(0.5):
                left -= 1
                result = answer.evaluation
                yield {
                    "group": name,
                    "kernel": group.kernel,
                    "problems": group.problems,
                    "config": dict(configs[answer.number]),
                    "outcome": result.outcome.value,
                    "reason": result.reason[:200],
                    "passed": result.passed_gate,
                    "near": parity_gate.near(result.evidence),
                    "times_us": [timing.median_us for timing in result.timings],
                }
    finally:
        device.close()


def measure(path: Path, arguments: argparse.Namespace) -> int:
    """Append the rows of the groups that were asked for to a file, and print their outcomes."""
    for name in arguments.group:
        began = time.monotonic()
        outcomes: Counter[str] = Counter()
        with tempfile.TemporaryDirectory() as folder, path.open("a", encoding="utf-8") as file:
            kernel = load_kernel(with_defects(TASKS[name].kernel, Path(folder)))
            for row in measured(name, kernel, arguments.count, arguments.seed, arguments.seconds):
                kind = "right" if row["config"]["DEFECT"] == "none" else "defect"
                outcomes[f"{kind} {row['outcome']}"] += 1
                print(json.dumps(row), file=file, flush=True)
        print(f"{name}: {dict(outcomes)} in {time.monotonic() - began:.0f} s", flush=True)
    return 0


def rows_of(path: Path, groups: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a file by group."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["group"] in groups:
            found[row["group"]].append(row)
    return found


def predict(path: Path, arguments: argparse.Namespace) -> int:
    """Print the accuracy of the predicted times at each problem; return the exit code."""
    correlations = []
    timed: dict[tuple[str, str], list[tuple[Config, float]]] = defaultdict(list)
    for row in (row for rows in rows_of(path, arguments.group).values() for row in rows):
        config = Config({gene: value for gene, value in row["config"].items() if gene != "DEFECT"})
        if row["outcome"] == "measured" and row["config"].get("DEFECT", "none") == "none":
            for problem, time_us in zip(row["problems"], row["times_us"], strict=True):
                timed[row["kernel"], problem].append((config, time_us))
    for (name, text), pairs in timed.items():
        kernel = load_kernel(FOLDERS[name])
        study = replace(Study(name, name, (text,)), simulation=SimulationSettings(INSTRUCTIONS))
        with Ranking(kernel, (kernel.problem(text),), study, chip(CHIP)) as ranking:
            times = ranking.predict([config for config, _ in pairs])
        found = accuracy([real for _, real in pairs], times, [False] * len(pairs))
        correlations.append(found.spearman)
        print(json.dumps({"kernel": name, "problem": text, **asdict(found)}), flush=True)
        default = kernel.space.default()
        for (config, real), predicted in zip(pairs, times, strict=True) if arguments.show else ():
            changes = {gene: value for gene, value in config.items() if value != default[gene]}
            told = f"{predicted:9.2f} {predicted / real:5.2f}" if predicted else f"{'-':>15}"
            print(f"  {real:9.2f} {told} {json.dumps(changes)}")
    mean = statistics.fmean(correlations)
    print(f"mean Spearman over {len(correlations)} problems: {mean:.3f}")
    return int(mean < BAR)


def _judged(job: tuple[str, str, str, Config]) -> tuple[str, bool]:
    name, folder, problem, config = job
    FOLDERS[name] = Path(folder)
    return parity_gate.simulated_gate(name, problem, CHIP, config)


def gate(path: Path, arguments: argparse.Namespace) -> int:
    """Print the candidates that the two gates judge differently; return the exit code."""
    apart = 0
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    cores = len(os.sched_getaffinity(0))
    for name, rows in rows_of(path, arguments.group).items():
        group = TASKS[name]
        with (
            tempfile.TemporaryDirectory() as scratch,
            ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool,
        ):
            folder = str(with_defects(group.kernel, Path(scratch)))
            jobs = [(f"{name} with defects", folder, group.problems[0], Config(row["config"])) for row in rows]
            verdicts = list(pool.map(_judged, jobs))
        counts: Counter[str] = Counter()
        for row, (reason, near) in zip(rows, verdicts, strict=True):
            same = row["passed"] == (not reason)
            counts["agree" if same else "near the tolerance" if near or row["near"] else "differ"] += 1
            counts["rejected by both"] += same and not row["passed"]
            if not same:
                print(json.dumps({"gpu": row["reason"], "simulated": reason, "config": row["config"]}), flush=True)
        apart += counts["differ"]
        print(f"{name}: {len(rows)} candidates, {dict(counts)}", flush=True)
    return int(apart > 0)


def main() -> int:
    """Measure, predict or judge the groups that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="rows, one JSON object a line")
    parser.add_argument("--group", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--count", type=int, default=50, help="candidates of each group to measure")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="for the candidates of one group, with the start")
    parser.add_argument("--show", action="store_true", help="print each candidate with both times")
    modes = parser.add_mutually_exclusive_group(required=True)
    for mode in (measure, predict, gate):
        modes.add_argument(f"--{mode.__name__}", dest="mode", action="store_const", const=mode)
    arguments = parser.parse_args()
    return int(arguments.mode(arguments.file, arguments))


if __name__ == "__main__":
    sys.exit(main())
