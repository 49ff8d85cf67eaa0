"""Random candidates with tensor maps, mbarrier rings or clusters: measured on a GPU, predicted, and judged without one.

    python tests/hopper/hopper_candidates.py rows.jsonl --measure [--count 50] [--seconds 40]   # on a GPU

`--measure` draws candidates of each group (`GROUPS`), and appends a line for each one that the file does not contain:
its verdict at the gate, and its time at each problem. Every fifth candidate has a defect (`DEFECTS`), which the gate
must reject. The other modes need no GPU:

- `--gate` draws the same candidates, and appends the verdict of the simulated device's gate, which runs on the kernel's
  small problems.
- `--agree` compares both verdicts.
- `--predict` compares the measured times with predicted ones, for each candidate at one of the problems.

Exit code 1 if the mean rank correlation is below `BAR`, or if verdicts differ.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import hopper_paths  # noqa: F401 (finds the helpers)
import parity_gate
from model_accuracy import INSTRUCTIONS, accuracy
from parity_candidates import FOLDERS
from paths import KERNELS
from ranking import Ranking, drawn_candidates

from evokern.compile.build import Target, build
from evokern.compile.cache import CompileCache, default_directory
from evokern.compile.records import Built
from evokern.declaration.feasibility import feasible_space
from evokern.declaration.genes import Config, Value
from evokern.declaration.kernel import Kernel
from evokern.hardware.profiles import chip
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import GateSettings, SimulationSettings, Study, TimingSettings
from evokern.study.trial import Evaluation
from evokern.workers.process import Retire

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
GROUPS = {
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
        (
            "bulk.cuh",
            "rows.at(m * 64 * 128 + k * (",
            "rows.at(m * 64 * 128 + (DEFECT != DEFECT_SECOND) * k * (",
        ),
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
    return [
        kernel.space.with_changes(config, {"DEFECT": ("first", "second")[at // DEFECT_EVERY % 2]})
        if at % DEFECT_EVERY == DEFECT_EVERY - 1
        else config
        for at, config in enumerate(drawn_candidates(space, random.Random(seed), count))
    ]


def _built(job: tuple[str, tuple[str, ...], Config]) -> Built | Evaluation:
    folder, problems, config = job
    kernel = load_kernel(Path(folder))
    target = Target(chip(CHIP), CompileCache(default_directory()))
    return build(kernel, config, [kernel.problem(text) for text in problems], target)


def measured(name: str, folder: Path, configs: Sequence[Config], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each candidate that a GPU evaluated in time; the last one may have broken the GPU's context."""
    from evokern.device.gpu.jobs import Evaluate, GpuSettings
    from evokern.device.gpu.profile import live_gpu
    from evokern.device.gpu.worker import GpuWorker

    group, kernel, end = GROUPS[name], load_kernel(folder), time.monotonic() + seconds
    problems = tuple(kernel.problem(text) for text in group.problems)
    # Processes that exist before CUDA starts need not import torch again.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        programs = [pool.submit(_built, (str(folder), group.problems, config)) for config in configs]
        context, turn = WorkerContext(folder, problems, live_gpu(0).profile), folder / "turn"
        turn.touch()
        worker = GpuWorker(GpuSettings(context, GateSettings(), TIMING, 0, turn, kernel.space.default()))
        healthy = True
        for config, program in zip(configs, programs, strict=True):
            if time.monotonic() > end or not healthy:
                program.cancel()
                continue
            found = program.result()
            if isinstance(found, Built):
                try:
                    found = worker.handle(Evaluate(config, found, None))
                except Retire as broken:
                    found, healthy = broken.value, False
            assert isinstance(found, Evaluation)
            yield {
                "group": name,
                "kernel": group.kernel,
                "problems": group.problems,
                "config": dict(config),
                "outcome": found.outcome.value,
                "reason": found.reason[:200],
                "passed": found.passed_gate,
                "near": parity_gate.near(found.evidence),
                "times_us": [timing.median_us for timing in found.timings],
            }


def _known(path: Path, key: str) -> dict[str, list[dict[str, Any]]]:
    """Return the configurations of the rows with a key, by group."""
    path.touch()
    rows = rows_of(path, list(GROUPS))
    return {name: [row["config"] for row in of_group if key in row] for name, of_group in rows.items()}


def measure(path: Path, arguments: argparse.Namespace) -> int:
    """Append the rows of candidates that a file does not contain yet, and print their outcomes."""
    known = _known(path, "outcome")
    for name in arguments.group:
        began = time.monotonic()
        outcomes: Counter[str] = Counter()
        with tempfile.TemporaryDirectory() as scratch, path.open("a", encoding="utf-8") as file:
            folder = with_defects(GROUPS[name].kernel, Path(scratch))
            configs = drawn(load_kernel(folder), GROUPS[name], arguments.count, arguments.seed)
            configs = [config for config in configs if dict(config) not in known.get(name, ())]
            for row in measured(name, folder, configs, arguments.seconds):
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
    for rows in rows_of(path, arguments.group).values():
        right = [row for row in rows if row.get("outcome") == "measured" and row["config"]["DEFECT"] == "none"]
        for number, row in enumerate(right[: arguments.count]):
            at = number % len(row["problems"])
            config = Config({gene: value for gene, value in row["config"].items() if gene != "DEFECT"})
            timed[row["kernel"], row["problems"][at]].append((config, row["times_us"][at]))
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
    """Append the verdicts of the simulated gate."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    cores, end = len(os.sched_getaffinity(0)), time.monotonic() + arguments.seconds
    with (
        tempfile.TemporaryDirectory() as scratch,
        ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool,
        path.open("a", encoding="utf-8") as file,
    ):
        known = _known(path, "simulated")
        waiting = {}
        for name in arguments.group:
            group = GROUPS[name]
            folder = with_defects(group.kernel, Path(scratch) / name)
            for config in drawn(load_kernel(folder), group, arguments.count, arguments.seed):
                if dict(config) not in known.get(name, ()):
                    job = f"{name} with defects", str(folder), group.problems[0], config
                    waiting[pool.submit(_judged, job)] = name, config
        with contextlib.suppress(TimeoutError):
            for done in as_completed(waiting, end - time.monotonic()):
                name, config = waiting[done]
                reason, near = done.result()
                row = {"group": name, "config": dict(config), "simulated": reason[:200], "near": near}
                print(json.dumps(row), file=file, flush=True)
        for job in waiting:
            job.cancel()
        for process in multiprocessing.active_children():
            process.terminate()  # else the end would wait for candidates that the time did not suffice for
    return 0


def agree(path: Path, arguments: argparse.Namespace) -> int:
    """Print the candidates that the two gates judge differently; return the exit code."""
    apart = 0
    for name, rows in rows_of(path, arguments.group).items():
        simulated = {Config(row["config"]): row for row in rows if "simulated" in row}
        pairs = [(row, other) for row in rows if "outcome" in row and (other := simulated.get(Config(row["config"])))]
        counts: Counter[str] = Counter()
        for row, other in pairs:
            same = row["passed"] == (not other["simulated"])
            counts["agree" if same else "near the tolerance" if row["near"] or other["near"] else "differ"] += 1
            counts["rejected by both"] += same and not row["passed"]
            if not same:
                told = {"gpu": row["reason"], "simulated": other["simulated"], "config": row["config"]}
                print(json.dumps(told), flush=True)
        apart += counts["differ"]
        print(f"{name}: {len(pairs)} candidates, {dict(counts)}", flush=True)
    return int(apart > 0)


def main() -> int:
    """Run the mode that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="rows, one JSON object a line")
    parser.add_argument("--group", nargs="*", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--count", type=int, default=50, help="candidates of each group")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="for the candidates of one group, or for all gates")
    parser.add_argument("--show", action="store_true", help="print each candidate with both times")
    modes = parser.add_mutually_exclusive_group(required=True)
    for mode in (measure, gate, predict, agree):
        modes.add_argument(f"--{mode.__name__}", dest="mode", action="store_const", const=mode)
    arguments = parser.parse_args()
    return int(arguments.mode(arguments.file, arguments))


if __name__ == "__main__":
    sys.exit(main())
