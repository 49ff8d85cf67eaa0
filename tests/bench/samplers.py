"""`make bench-sampler SPACES=FOLDER`: compare evo with Optuna's samplers and Kernel Tuner's strategies."""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # the cores are for parallel searches

from contenders import KERNEL_TUNER, evaluated  # noqa: E402
from recorded import Recorded, load  # noqa: E402

from evokern.declaration.genes import Config  # noqa: E402
from evokern.sampler_benchmark import CHECKPOINTS  # noqa: E402
from evokern.sampler_benchmark.results import half_width  # noqa: E402

STRATEGIES = "hybrid_vndx,diff_evo,adaptive_tabu_greywolf,pso"
"""Kernel Tuner's four best strategies by the community's score."""


def main() -> int:
    """Run the benchmark and return the exit code."""
    given = _arguments()
    paths = sorted(path for path in given.folder.iterdir() if path.name.endswith((".json", ".json.gz")))
    wanted = [name for name in given.only.split(",") if name]
    paths = [path for path in paths if not wanted or path.name.removesuffix(".gz").removesuffix(".json") in wanted]
    if not paths:
        named = f" named {given.only}" if wanted else ""
        print(f"{given.folder} contains no recorded space (*.json, *.json.gz){named}", file=sys.stderr)
        return 2
    missing = [name for name in ("kernel_tuner", "autotuning_methodology") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"{' and '.join(missing)} not installed, skipped; install both with pip install 'evokern[bench]'",
            file=sys.stderr,
        )
    contenders = [name for name in given.samplers.split(",") if name]
    if "kernel_tuner" not in missing:
        contenders += [KERNEL_TUNER + name for name in given.strategies.split(",") if name]
    spaces = [load(path) for path in paths]
    budgets = None
    if given.score and "autotuning_methodology" not in missing:
        from community import Budget

        budgets = [Budget(space) for space in spaces]
    lengths = [max(given.trials, budget.evaluations) for budget in budgets] if budgets else [given.trials] * len(paths)
    runs = _run(paths, contenders, lengths, given.trials, given.repeats, given.jobs)
    report = {space.name: _fractions(space, runs, index, given.trials) for index, space in enumerate(spaces)}
    for space, table in report.items():
        _print_fractions(space, table, given.repeats)
    community = {}
    if budgets:
        from community import scores

        community = scores(spaces, budgets, runs)
        _print_scores([space.name for space in spaces], community)
    if given.json:
        given.json.write_text(json.dumps({"spaces": report, "community": community}, indent=1), encoding="utf-8")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with Kernel Tuner cache files")
    parser.add_argument("--spaces", dest="only", default="", help="names of the spaces to use; default: all")
    parser.add_argument("--samplers", default="evo,tpe,nsga2,random", help="evokern's samplers (gp takes hours)")
    parser.add_argument("--strategies", default=STRATEGIES, help="Kernel Tuner's strategies")
    parser.add_argument("--trials", type=int, default=200, help="evaluations in the first tables")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--no-score", dest="score", action="store_false", help="omit the community's score")
    parser.add_argument("--json", type=Path, help="file for all figures")
    return parser.parse_args()


Runs = dict[str, list[list[list[Config]]]]
"""Evaluated configurations in order, by contender, space and repeat."""


def _run(paths: list[Path], contenders: list[str], lengths: list[int], trials: int, repeats: int, jobs: int) -> Runs:
    runs: Runs = {name: [[[] for _ in range(repeats)] for _ in paths] for name in contenders}
    missing = {(name, index): repeats for name in contenders for index in range(len(paths))}
    began = time.monotonic()
    # Start the longest first, to balance the processes.
    order = sorted(range(len(paths)), key=lambda index: -lengths[index])
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {
            pool.submit(evaluated, paths[index], name, seed, lengths[index]): (name, index, seed)
            for index in order
            for name in contenders
            for seed in range(repeats)
        }
        for future in as_completed(waiting):
            name, index, seed = waiting[future]
            runs[name][index][seed] = future.result()
            missing[name, index] -= 1
            if not missing[name, index]:
                table = _fractions(load(paths[index]), {name: runs[name]}, index, trials)[name]
                means = ", ".join(f"{sum(values) / len(values):.3f} at {n}" for n, values in table.items())
                said = f"{time.monotonic() - began:.0f} s: {paths[index].name}, {name}: {means}"
                print(said, file=sys.stderr, flush=True)
    return runs


def _fractions(space: Recorded, runs: Runs, index: int, trials: int) -> dict[str, dict[str, list[float]]]:
    optimum = space.table.optimum_us
    assert optimum is not None
    checkpoints = [n for n in CHECKPOINTS if n < trials] + [trials]
    table: dict[str, dict[str, list[float]]] = {}
    for name, searches in runs.items():
        rows: dict[str, list[float]] = {str(n): [] for n in checkpoints}
        for configs in searches[index]:
            for n in checkpoints:
                times = [space.table.answers[config].time_us for config in configs[:n]]
                rows[str(n)].append(optimum / min((t for t in times if t), default=float("inf")))
        table[name] = rows
    return table


def _print_fractions(space: str, table: dict[str, dict[str, list[float]]], repeats: int) -> None:
    print(f"\n{space}: optimum ÷ best, mean of {repeats} with its 95 % interval")
    checkpoints = list(next(iter(table.values())))
    print("".join(f"{n:>16}" for n in checkpoints) + "   worst  at least .90")
    for name, rows in sorted(table.items(), key=lambda item: -sum(item[1][checkpoints[-1]])):
        cells = [f"{sum(values) / len(values):.3f} ± {half_width(values):.3f}" for values in rows.values()]
        last = rows[checkpoints[-1]]
        enough = f"{sum(value >= 0.9 for value in last)} of {len(last)}"
        print("".join(f"{cell:>16}" for cell in cells) + f"   {min(last):.3f}  {enough:>12}  {name}")


def _print_scores(spaces: list[str], community: dict[str, tuple[float, list[float]]]) -> None:
    print("\ncommunity score: 0 is random search, 1 the optimum at once")
    print(f"{'all':>8}" + "".join(f"{name:>20}" for name in spaces))
    for name, (score, parts) in sorted(community.items(), key=lambda item: -item[1][0]):
        print(f"{score:>8.3f}" + "".join(f"{part:>20.3f}" for part in parts) + f"  {name}")


if __name__ == "__main__":
    sys.exit(main())
