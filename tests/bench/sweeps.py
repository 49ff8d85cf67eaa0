r"""`python tests/bench/sweeps.py run|told …`: measure the gain from warm starts between the studies of a sweep.

```
python tests/bench/sweeps.py run FOLDER --seeds 0-2
python tests/bench/sweeps.py told FOLDER
python tests/bench/sweeps.py predicted FOLDER --chip h200 --seeds 1,2
```

`run` makes two concurrent sweeps per seed, each on half of the cores: a cold one (`--warm-start none`) and a warm one.
The warm sweep is interrupted three times (SIGINT, SIGKILL, SIGINT) at random times from the seed and resumed with the
same command. Its champions are exported, and built if nvcc is available. This takes more than an hour; run the same
command again to continue. `told` prints the seconds and trials of study time until each study was within 5 % of the
cold sweep's final best. A study that never was counts with its total.

`predicted` searches the same problems of one chip in one process, without gate and verification: each cold, and warm
from the results of the earlier warm searches. Predictions are stored in FOLDER. It takes about three minutes per seed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from gpu_searches import WITHIN, facts, seeds_of

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Problem
from evokern.samplers import Prior
from evokern.search._nearest_study import problem_distance
from evokern.study.trial import Outcome

SIGNALS = (signal.SIGINT, signal.SIGKILL, signal.SIGINT)
"""Signals that interrupt a warm sweep, in order."""
APART_S = (60.0, 240.0)
"""Range of seconds that a sweep runs before it is interrupted."""
PROBLEMS = (
    *((1, 8, keys) for keys in (128, 256, 384, 512)),
    *((2, 8, keys) for keys in (128, 256)),
    *((2, 16, keys) for keys in (128, 256)),
    *((4, 8, keys) for keys in (128, 256)),
    *((1, 16, keys) for keys in (256, 512)),
)
"""B, H and S of attention: shapes for which the simulated device runs a candidate in a second."""
SWEEP = """kernel = "attention"
problems = [{problems}]
devices = ["sim:l4", "sim:h200"]
trials = {trials}
seed = {seed}
"""


def command(folder: Path, name: str, *more: str) -> list[str]:
    """Return the command line of `evokern sweep` for a sweep of a folder, with databases in a subfolder."""
    verb, *rest = more
    line = [sys.executable, "-m", "evokern", "sweep", verb, str(folder / f"{name}.toml")]
    return [*line, "--db", str(folder / name), *rest]


def interrupted(told: Path) -> int:
    """Return the number of interruptions noted in a sweep's output."""
    return told.read_text(encoding="utf-8").count("# interrupted") if told.exists() else 0


def swept(folder: Path, name: str, cores: set[int], seed: int, *, warm: bool) -> None:
    """Run a sweep to its end, including the interruptions of a warm sweep.

    Raises:
        RuntimeError: The exit code was not 0; the message contains the last output.
    """
    drawn = random.Random(seed)
    line = command(folder, name, "run", *(() if warm else ("--warm-start", "none")))
    env = {**os.environ, "EVOKERN_CACHE": str(folder / f"{name}-cache")}  # do not share compiled programs
    (folder / f"{name}-cache").mkdir(mode=0o700, exist_ok=True)
    told = folder / f"{name}.log"
    met = interrupted(told)
    for _ in range(met):
        drawn.uniform(*APART_S)
    for number in (*SIGNALS[met:], None) if warm else (None,):
        with told.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                ["taskset", "-c", ",".join(map(str, sorted(cores))), *line], stdout=log, stderr=log, env=env
            )
            try:
                process.wait(None if number is None else drawn.uniform(*APART_S))
            except subprocess.TimeoutExpired:
                assert number is not None
                process.send_signal(number)
                process.wait()
                log.write(f"# interrupted by {number.name}\n")
                continue
        if process.returncode:
            raise RuntimeError(f"{name} ended with {process.returncode}: {told.read_text(encoding='utf-8')[-2000:]}")
        return


def built(folder: Path, name: str) -> dict[str, Any]:
    """Export and build a sweep's champions; return their number and the failures."""
    out = folder / f"{name}-cu"
    subprocess.run(command(folder, name, "export", "-o", str(out), "-q"), check=True)
    files = sorted(out.glob("*.cu"))
    if shutil.which("nvcc") is None:
        return {"written": len(files), "built": None}
    failed = []
    for file in files:
        arch = "sm_90a" if "h200" in file.name else "sm_89"
        target = f"-gencode=arch=compute_{arch.removeprefix('sm_')},code={arch}"
        done = subprocess.run(
            ["nvcc", target, str(file), "-o", str(file.with_suffix(""))], capture_output=True, text=True
        )
        if done.returncode:
            failed.append(f"{file.name}: {done.stderr[-300:]}")
    return {"written": len(files), "built": len(files) - len(failed), "failed": failed}


def run(given: argparse.Namespace) -> int:
    """Make the missing sweeps and return the exit code."""
    given.folder.mkdir(parents=True, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2 or 1
    problems = ", ".join(f'"B={b} H={h} S={s} D=64"' for b, h, s in PROBLEMS)
    for seed in seeds_of(given.seeds):
        done = given.folder / f"done-{seed}.json"
        if done.exists():
            continue
        for way in ("cold", "warm"):
            text = SWEEP.format(problems=problems, trials=given.trials, seed=seed)
            (given.folder / f"{way}-{seed}.toml").write_text(text, encoding="utf-8")
        began = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            ways = [
                pool.submit(swept, given.folder, f"cold-{seed}", set(cores[:half]), seed, warm=False),
                pool.submit(swept, given.folder, f"warm-{seed}", set(cores[-half:]), seed, warm=True),
            ]
            for sweep in ways:
                sweep.result()
        result = {
            "seconds": round(time.monotonic() - began),
            "interrupted": interrupted(given.folder / f"warm-{seed}.log"),
            "export": built(given.folder, f"warm-{seed}"),
        }
        done.write_text(json.dumps(result), encoding="utf-8")
        print(f"seed {seed}: {json.dumps(result)}", flush=True)
    return 0


def predicted(given: argparse.Namespace) -> int:
    """Print the results of sweeps simulated with predicted times; return the exit code."""
    # Import here, because it limits libraries to one thread, which the searches of `run` must not inherit.
    from transfer import Place, Predictions, searched, timed

    given.folder.mkdir(parents=True, exist_ok=True)
    places = []
    for b, h, s in PROBLEMS:
        answers = Predictions("attention", given.chip, f"{b},{h},{s},64,0", given.folder)
        places.append((answers.problem, Place(f"{b},{h},{s}", answers.space, answers)))

    def within(values: Sequence[float | None], target: float) -> int:
        return next((n for n, value in enumerate(values, 1) if value is not None and value <= target), len(values))

    for seed in seeds_of(given.seeds):
        targets: list[float] = []
        for way in ("cold", "warm"):
            found: list[tuple[Problem, list[tuple[Config, float]]]] = []
            took, gains = [], []
            for place, (problem, where) in enumerate(places):
                prior = None
                if way == "warm" and found:
                    far = [problem_distance(problem, other) for other, _ in found]
                    order = sorted(range(len(found)), key=lambda at: (far[at], -len(found[at][1]), at))
                    told = [Prior.from_trials(where.space, found[at][1], "before") for at in order]
                    priors = [replace(one, distance=far[at]) for one, at in zip(told, order, strict=True)]
                    prior = priors[0].with_further(priors[1:])
                trials = searched(where, seed, given.trials, prior)
                values = [value for _, value in trials]
                best = min(value for value in values if value is not None)
                if way == "cold":
                    targets.append(best)
                found.append((problem, timed(trials)))
                took.append(within(values, targets[place] + math.log(1 + WITHIN)))
                gains.append(math.exp(targets[place] - best))
            print(
                f"{given.chip} seed {seed} {way}: {sum(took)} trials to within {WITHIN:.0%} of the cold one's best "
                f"({', '.join(map(str, took))}); at the end {fmean(gains):.3f} times as fast",
                flush=True,
            )
    return 0


@dataclass
class Spent:
    """Total cost of studies until each reached its target time, or in total if it did not."""

    trials: int = 0
    """Number of evaluated trials."""
    seconds: float = 0.0
    """Seconds of the studies' own time."""
    arrived: int = 0
    """Number of studies that reached the target."""

    def add(self, db: Path, target_us: float) -> None:
        """Add a study with a target time."""
        evaluated, last_s = 0, 0.0
        for outcome, time_us, _, done_s in facts(db)["trials"]:
            evaluated += Outcome(outcome).evaluated
            last_s = max(last_s, done_s)
            if time_us is not None and time_us <= target_us:
                self.arrived += 1
                break
        self.trials += evaluated
        self.seconds += last_s


def shown(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return a sweep's studies by name, as in `sweep show --json`."""
    done = subprocess.run(command(folder, name, "show", "--json"), capture_output=True, text=True, check=True)
    return {study["name"]: study for study in json.loads(done.stdout)["studies"]}


def told(given: argparse.Namespace) -> int:
    """Print the results of the sweeps in a folder; return the exit code."""
    ratios: list[tuple[float, float]] = []
    for done in sorted(given.folder.glob("done-*.json")):
        seed = done.stem.removeprefix("done-")
        ways = {way: shown(given.folder, f"{way}-{seed}") for way in ("cold", "warm")}
        lacking = {name for studies in ways.values() for name, study in studies.items() if not study["best_us"]}
        if lacking:
            raise SystemExit(f"seed {seed}: no correct candidate was found by {', '.join(sorted(lacking))}")
        took = {way: Spent() for way in ways}
        for name, study in ways["cold"].items():
            for way, studies in ways.items():
                took[way].add(Path(studies[name]["db"]), (1 + WITHIN) * study["best_us"])
        gains = [cold["best_us"] / ways["warm"][name]["best_us"] for name, cold in ways["cold"].items()]
        ratios.append((took["warm"].seconds / took["cold"].seconds, took["warm"].trials / took["cold"].trials))
        verified = sum(study["verified"] is True for study in ways["warm"].values())
        print(f"seed {seed}: {len(gains)} studies, {verified} champions of the warm sweep verified, {done.read_text()}")
        for way, found in took.items():
            print(f"  {way}: {found.seconds:.0f} s, {found.trials} trials, {found.arrived} arrived")
        print(
            f"  warm / cold: seconds {ratios[-1][0]:.2f}, trials {ratios[-1][1]:.2f}; at the end warm champions are "
            f"{math.exp(fmean(map(math.log, gains))):.3f} times as fast"
        )
    if ratios:
        seconds, trials = (median(column) for column in zip(*ratios, strict=True))
        print(f"median of warm / cold: seconds {seconds:.2f}, trials {trials:.2f}")
    return 0


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    one = parts.add_parser("run", help="run the sweeps")
    one.add_argument("folder", type=Path, help="folder for sweeps and databases")
    one.add_argument("--seeds", default="0-2", help="N or FROM-TO")
    one.add_argument("--trials", type=int, default=32, help="trials of each study")
    one.set_defaults(run=run)
    three = parts.add_parser("predicted", help="simulate the sweeps with predicted times")
    three.add_argument("folder", type=Path, help="folder for predictions")
    three.add_argument("--chip", default="h200")
    three.add_argument("--seeds", default="1,2", help="N, FROM-TO or a list")
    three.add_argument("--trials", type=int, default=30, help="trials of each study")
    three.set_defaults(run=predicted)
    two = parts.add_parser("told", help="print the results")
    two.add_argument("folder", type=Path)
    two.set_defaults(run=told)
    given = parser.parse_args()
    return int(given.run(given))


if __name__ == "__main__":
    sys.exit(main())
