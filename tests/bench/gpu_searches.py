r"""`python tests/bench/gpu_searches.py search|told|record …`: measure how soon GPU searches find the best known time.

```
python tests/bench/gpu_searches.py search --study attention-s512 --seeds 0-19 --seconds 25 --out s512.jsonl
python tests/bench/gpu_searches.py search --study attention-s1024 --seeds 0-4 --trials 150 --out rest.jsonl --limit 540
python tests/bench/gpu_searches.py told s512.jsonl rest.jsonl --best attention-s512=4.44
python tests/bench/gpu_searches.py record --study attention-s1024 --seconds 480 --out attention_s1024.json.gz
```

Every search is `evokern search` in its own process, with an empty database, without cached programs and without the
final verification. `search` appends a line of JSON to OUT for each finished search and skips those already in it. It
starts no search that would exceed `--limit`. `record` makes a T4 recording for fitting a landscape (`landscapes.py`):
of random draws, or with `--sampler evo` of every second trial of them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from evokern.errors import UsageError
from evokern.store import open_readonly
from evokern.study.trial import Outcome

WITHIN = 0.05
"""Relative distance from the best known time that counts as reached."""
AFTER_S = 12.0
"""Extra seconds for a search beyond its budget: imports, stopping workers, measuring the GPU's rates."""


def searched(
    study: str, seed: int, given: argparse.Namespace, folder: Path, cache: Path, *more: str
) -> tuple[Path, float]:
    """Search once; return the database and the duration in seconds.

    Args:
        study: Name or file of the study.
        seed: Seed of the proposals.
        given: Command line: `seconds`, `trials`, `device`, `max_in_flight`.
        folder: Folder of the database.
        cache: Folder for compiled programs.
        more: Further options of `evokern search`.

    Raises:
        UsageError: The search failed; the message contains its output.
    """
    db = folder / f"{Path(study).stem}-{seed}.db"
    line = [sys.executable, "-m", "evokern", "search", study, "--seed", str(seed), "--db", str(db)]
    line += ["--device", given.device, "--no-verify", *more]
    if given.seconds is not None:
        line += ["--budget", f"{given.seconds:g}s"]
    if given.trials is not None:
        line += ["--trials", str(given.trials)]
    if given.max_in_flight is not None:
        line += ["--window", str(given.max_in_flight)]  # old name of the option, for older versions of evokern
    began = time.monotonic()
    done = subprocess.run(line, env={**os.environ, "EVOKERN_CACHE": str(cache)}, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # 1 means that every candidate failed
        raise UsageError(f"{' '.join(line)} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return db, time.monotonic() - began


def facts(db: Path) -> dict[str, Any]:
    """Return the trials of a search in number order, and how busy the device was.

    A trial has its outcome, its complete time in µs if any, and the study times in seconds at its proposal and its
    record.
    """
    with open_readonly(db) as reader:
        record = reader.study()
        trials, proposed = list(reader.trials(record)), reader.proposed_s(record)
    rows = [
        [
            trial.outcome.value,
            trial.evaluation.time_us if trial.outcome in (Outcome.MEASURED, Outcome.DUPLICATE) else None,
            round(proposed[trial.number], 3),
            round(trial.seconds, 3),
        ]
        for trial in trials
    ]
    began, ended = min((row[2] for row in rows), default=0.0), max((row[3] for row in rows), default=0.0)
    running_s = max(ended - began, 1e-9)
    return {
        "device": record.device,
        "window": record.window,
        "ramp": getattr(record, "ramp", None),  # missing in older versions of evokern
        "start_s": began,
        "running_s": round(running_s, 3),
        "busy": round(sum(trial.evaluation.device_s for trial in trials) / running_s, 3),
        "per_minute": round(60 * len(rows) / running_s, 1),
        "trials": rows,
    }


def arrived(trials: Sequence[Sequence[Any]], target_us: float) -> tuple[int, float] | None:
    """Return the number of evaluations until a time was reached, and the study time; None if it was not.

    Args:
        trials: Trials from `facts`.
        target_us: Time to reach in µs.
    """
    evaluated = 0
    for outcome, time_us, _, done_s in trials:
        evaluated += Outcome(outcome).evaluated
        if time_us is not None and time_us <= target_us:
            return evaluated, done_s
    return None


def search(given: argparse.Namespace) -> int:
    """Run the missing searches; return the exit code."""
    began = time.monotonic()
    done = {tuple(line["key"]) for line in _lines([given.out])}
    warm = ["--warm-start", given.warm_start] if given.warm_start else []
    longest = (given.seconds or 0.0) + AFTER_S
    with tempfile.TemporaryDirectory() as scratch, given.out.open("a", encoding="utf-8") as out:
        rates = Path(scratch) / "rates"
        for study in given.study:
            for seed in seeds_of(given.seeds):
                key = (study, seed, given.seconds, given.trials, given.warm_start, given.sampler, given.max_in_flight)
                if key in done:
                    continue
                if time.monotonic() - began + longest > given.limit:
                    print(
                        f"{given.limit:g} s are over before {study} with seed {seed}; run the command again to continue"
                    )
                    return 3
                cache = Path(scratch) / "cache"
                shutil.rmtree(cache, ignore_errors=True)
                cache.mkdir(mode=0o700)
                if rates.exists():  # reuse the measured rates of the GPU
                    shutil.copytree(rates, cache / "rates")
                db, wall_s = searched(study, seed, given, Path(scratch), cache, "--sampler", given.sampler, *warm)
                longest = max(longest, wall_s)
                if (cache / "rates").exists() and not rates.exists():
                    shutil.copytree(cache / "rates", rates)
                found = facts(db)
                out.write(json.dumps({"key": key, "wall_s": round(wall_s, 1), **found}) + "\n")
                out.flush()
                best = min((row[1] for row in found["trials"] if row[1] is not None), default=math.nan)
                print(
                    f"{study} seed {seed}: {len(found['trials'])} trials, best {best:.4g} µs, "
                    f"busy {found['busy']:.0%}, {found['per_minute']:.0f} a minute, {wall_s:.0f} s",
                    flush=True,
                )
    return 0


def told(given: argparse.Namespace) -> int:
    """Print the results of the searches in some files; return the exit code."""
    named = dict(text.rsplit("=", 1) for text in given.best)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in _lines(given.files):
        study, _, *rest = line["key"]
        groups.setdefault((study, *rest), []).append(line)
    for (study, seconds, trials, warm, sampler, most), lines in groups.items():
        times = [row[1] for line in lines for row in line["trials"] if row[1] is not None]
        if not times:
            print(f"\n{study}: nothing ran")
            continue
        best = float(named.get(study, min(times)))
        limits = {"s": seconds, "trials": trials}
        limit = " and ".join(f"{most:g} {unit}" for unit, most in limits.items() if most is not None)
        start = f"warm start {warm}" if warm else "cold"
        allowed = f", at most {most} in flight" if most else ""
        print(f"\n{study}, {sampler}, {start}, {limit}{allowed}: {len(lines)} searches,")
        print(f"to within {WITHIN:.0%} of {best:.4g} µs{'' if study in named else ', the best of them'}")
        reached = []
        for line in sorted(lines, key=lambda one: one["key"][1]):
            found = arrived(line["trials"], (1 + WITHIN) * best)
            own = min((row[1] for row in line["trials"] if row[1] is not None), default=math.nan)
            reached.append(math.inf if found is None else found[0])
            arrival = "not reached" if found is None else f"{found[0]} trials, {found[1]:.1f} s"
            print(
                f"  seed {line['key'][1]}: {arrival}; best {own:.4g} µs of {len(line['trials'])} trials, begun after "
                f"{line['start_s']:.1f} s, busy {line['busy']:.0%}, {line['per_minute']:.0f} a minute"
            )
        within = {n: sum(count <= n for count in reached) for n in (10, 35, 60, 120)}
        print(f"  median {median(reached):g} trials; " + ", ".join(f"{c} in {n}" for n, c in within.items()))
        print(
            f"  busy {fmean(line['busy'] for line in lines):.0%}, {fmean(line['per_minute'] for line in lines):.0f} "
            "trials a minute on average"
        )
    return 0


def record(given: argparse.Namespace) -> int:
    """Record a search as a T4 file; return the exit code."""
    control = ["--control", "random"] if given.sampler != "random" else []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        cache = folder / "cache"
        cache.mkdir(mode=0o700)
        db, wall_s = searched(given.study, given.seed, given, folder, cache, "--sampler", given.sampler, *control)
        export = [sys.executable, "-m", "evokern", "export", "--format", "t4", "-o", str(given.out), "--db", str(db)]
        done = subprocess.run(export, capture_output=True, text=True)
        if done.returncode:
            raise UsageError(f"{' '.join(export)}: {done.stderr}")
        found = facts(db)
    size = given.out.stat().st_size
    print(
        f"{given.out}: {len(found['trials'])} trials in {wall_s:.0f} s, {size / 1e6:.1f} MB, busy {found['busy']:.0%}"
    )
    return 0


def seeds_of(text: str) -> list[int]:
    """Parse seeds such as `0-4,7`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def _lines(files: Iterable[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files if file.exists() for line in file.read_text("utf-8").splitlines()]


def main() -> int:
    """Run the command line; return the exit code, 3 if searches are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--seconds", type=float, help="time limit of a search, including its start")
    common.add_argument("--trials", type=int, help="evaluations of a search")
    common.add_argument("--device", default="cuda:0", help="as `evokern search --device`")
    common.add_argument("--max-in-flight", type=int, help="as `evokern search --max-in-flight`")
    one = parts.add_parser("search", parents=[common], help="run a search for each seed")
    one.add_argument("--study", action="append", required=True, help="name or file of a study; repeatable")
    one.add_argument("--seeds", default="0-19", help="for example 0-4,7")
    one.add_argument("--sampler", default="evo", help="sampler")
    one.add_argument("--warm-start", help="as `evokern search --warm-start`")
    one.add_argument("--limit", type=float, default=math.inf, help="seconds after which no search starts")
    one.add_argument("--out", type=Path, required=True, help="file of results (JSON lines)")
    one.set_defaults(run=search)
    two = parts.add_parser("told", help="print the results")
    two.add_argument("files", nargs="+", type=Path)
    two.add_argument("--best", action="append", default=[], metavar="STUDY=US", help="best known time, in µs")
    two.set_defaults(run=told)
    three = parts.add_parser("record", parents=[common], help="make a recording")
    three.add_argument("--study", required=True, help="name or file of a study")
    three.add_argument(
        "--sampler", default="random", help="sampler; with another than random, every second trial is random"
    )
    three.add_argument("--seed", type=int, default=1)
    three.add_argument("--out", type=Path, required=True, help="T4 file; the suffix .gz compresses it")
    three.set_defaults(run=record)
    given = parser.parse_args()
    if given.run is not told and given.seconds is None and given.trials is None:
        parser.error("give --seconds, --trials or both: something must end a search")
    try:
        code: int = given.run(given)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
