"""`make bench-sampler SPACES=DIR`: evo, Optuna's samplers and Kernel Tuner's strategies over the same recorded spaces.

Every file `*.json.gz` or `*.json` of the folder is a space. Each tuner searches each space `--repeats` times with as
many evaluations as the space's official budget, at least `--trials`. Printed are the mean fraction of the optimum
after 50, 100 and 200 evaluations with its 95 % interval, standard deviation, worst repeat, how many repeats reached
0.90, and the community score. Runs are kept in `--keep FILE`, so that a later call only makes what is missing.

Needs the extra `bench` (kernel_tuner, autotuning_methodology). Spaces: any Kernel Tuner cache or T4 file, for example
those of the AutoTuningAssociation's benchmark hub.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from evokern.replay._score import half_width
from tests.bench.kernel_tuner_runs import STRATEGIES, Simulation
from tests.bench.ours import run as run_ours
from tests.bench.records import Recording, Run

OURS = ("evo", "tpe", "nsga2", "gp", "random")
"""Tuners that run in evokern's own loop; Optuna's behind the guard."""
CHECKPOINTS = (50, 100, 200)
"""Evaluations after which the fraction of the optimum is told."""
LONGEST = {"gp": 100, "tpe": 600}
"""Tuner → evaluations after which it is stopped: seconds a proposal beyond them."""

Job = tuple[str, str, int, int]
"""Path of the space, tuner, seed, evaluations."""


@cache
def recording_of(path: str) -> Recording:
    """Return a recording, read once in each process."""
    return Recording(Path(path))


@cache
def simulation_of(path: str) -> Simulation:
    """Return a recording prepared for Kernel Tuner, once in each process."""
    return Simulation(recording_of(path), Path(tempfile.mkdtemp(prefix="evokern-bench-")))


def one(job: Job) -> Run:
    """Make one repeat."""
    path, tuner, seed, evaluations = job
    if tuner in OURS:
        return run_ours(recording_of(path), tuner, seed, min(evaluations, LONGEST.get(tuner, evaluations)))
    return simulation_of(path).run(tuner, seed, evaluations)


def make(jobs: Sequence[Job], workers: int, keep: Path | None) -> list[Run]:
    """Make every repeat that is not kept yet."""
    import optuna

    threadpool_limits(1)  # here and, inherited by the fork, in the workers: repeats run side by side
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    kept = [Run(**{**json.loads(line), "evaluated": tuple(json.loads(line)["evaluated"])}) for line in _lines(keep)]
    known = {(run.space, run.tuner, run.seed) for run in kept}
    missing = [job for job in jobs if (recording_of(job[0]).name, job[1], job[2]) not in known]
    print(f"{len(jobs)} repeats, {len(missing)} to make", file=sys.stderr)
    with ProcessPoolExecutor(workers) as pool:
        for run in map(one, missing) if workers == 1 else pool.map(one, missing):
            kept.append(run)
            if keep is not None:
                with keep.open("a") as file:
                    file.write(json.dumps(asdict(run)) + "\n")
    return kept


def _lines(keep: Path | None) -> Iterable[str]:
    return keep.read_text().splitlines() if keep is not None and keep.exists() else ()


def table(recordings: Sequence[Recording], tuners: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Return the lines of the table of fractions."""
    lines = []
    for recording in recordings:
        lines.append(f"{recording.name}: {len(recording.configs)} configurations, budget {recording.budget}")
        for tuner in tuners:
            own = [run for run in runs if run.tuner == tuner and run.space == recording.name]
            cells = [f"  {tuner:24s}{len(own):3d}"]
            for at in CHECKPOINTS:
                if tuner in LONGEST and LONGEST[tuner] < at:
                    continue
                found = [float(recording.fractions(run, at)[-1]) for run in own]
                good = sum(fraction >= 0.9 for fraction in found)
                cells.append(
                    f"@{at}: {np.mean(found):.3f} ± {half_width(found):.3f} sd {np.std(found, ddof=1):.2f} "
                    f"worst {min(found):.2f} ≥.90 {good}"
                )
            lines.append("  |  ".join(cells))
    return lines


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spaces", type=Path, help="folder of recorded spaces")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--tuners", default=",".join((*OURS, *STRATEGIES)))
    parser.add_argument("--only", default="", help="part of a space's name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first repeat")
    parser.add_argument("--keep", type=Path, help="file of runs: made ones are added, known ones are not made again")
    parser.add_argument("--no-score", action="store_true", help="leave the community score out")
    given = parser.parse_args()
    paths = [path for path in sorted(given.spaces.glob("*.json*")) if given.only in path.name]
    if not paths:
        sys.exit(f"no recorded space (*.json, *.json.gz) in {given.spaces}")
    tuners = given.tuners.split(",")
    recordings = [recording_of(str(path)) for path in paths]
    jobs: list[Job] = [
        (str(path), tuner, given.seed + repeat, max(given.trials, 0 if given.no_score else recording.budget))
        for path, recording in zip(paths, recordings, strict=True)
        for tuner in tuners
        for repeat in range(given.repeats)
    ]
    runs = make(jobs, given.jobs, given.keep)
    wanted = {(recording_of(job[0]).name, job[1], job[2]) for job in jobs}
    runs = [run for run in runs if (run.space, run.tuner, run.seed) in wanted]
    print("\n".join(table(recordings, tuners, runs)))
    if not given.no_score:
        from tests.bench.community import scores

        grouped: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for run in runs:
            grouped[run.tuner, run.space].append(run)
        print("community score (0 random search, 1 the optimum at once)")
        for tuner, (mean, per_space) in sorted(scores(recordings, grouped).items(), key=lambda item: -item[1][0]):
            print(f"  {tuner:24s}{mean:6.3f}  " + "  ".join(f"{name} {own:.3f}" for name, own in per_space.items()))


if __name__ == "__main__":
    main()
