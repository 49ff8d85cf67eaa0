r"""`python tests/bench/figures.py run|told …`: run the searches by which the sampler is judged, on all cores.

```
python tests/bench/figures.py run SPACES --landscape wide.py:11 --landscape fit:RECORDING:attention-s512 \
    --out one.jsonl --limit 500
PYTHONPATH=OLDER python tests/bench/figures.py run SPACES --landscape … --plan baseline --out two.jsonl
python tests/bench/figures.py told SPACES --landscape … one.jsonl two.jsonl
```

`run` makes the searches of a plan, most important first. `figures` is the main plan. `baseline` repeats it with an
older evo that comes first on PYTHONPATH. `ablations` switches off each part of evo, and `ramps` varies the schedule;
both go seed by seed. Each finished search is appended to OUT as a line of JSON. Searches in OUT or in a file of
`--known` are not repeated. After `--limit` the exit code is 3; run the same command again to continue. `told` prints
figures with standard errors, and the community's score if `autotuning_methodology` is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import evokern.samplers  # noqa: E402

if not hasattr(evokern.samplers, "TrialSchedule"):  # an older evo with constant windows
    evokern.samplers.TrialSchedule = None  # type: ignore[misc]

from ablations import Variant, searched  # noqa: E402
from figure_tables import LEAST, kind_of, lines_of, name_of, read_table, told  # noqa: E402
from landscapes import Case, case_of  # noqa: E402

SPARE = 1.8
"""Evaluations of a search over a space's whole budget, relative to the budget in evaluations; the community's budget is
in seconds."""
LONG = 400
"""Evaluations of a search on a landscape."""
STRATEGIES = ("hybrid_vndx", "diff_evo", "adaptive_tabu_greywolf", "pso")
"""Kernel Tuner's four best strategies by the community's score."""
TUNER = "kernel_tuner:"
"""Prefix of the names of its strategies."""
RAMPS = ("live 51 4 8", "live 51 8 8", "live 51 2 8", "live 51 16 8", "8", "51", "live", "live 96 4 8", "live 96 4 4")
"""Schedules that trade the ramp's speed for the sampler's knowledge."""
CLUSTER = ("8", "live 128 4 8", "128")
"""Schedules for one GPU and for many, with and without a ramp."""
GPUS = ("live 51 4 8", "live 102 8 4", "live 102 8 8", "live 102 8 6", "live 204 16 2", "live 204 16 4")
"""Schedules for one, two and four GPUs: in proportion, with fewer later."""
Part = tuple[str, str, str, int]
"""Kind of case (empty for all), variant, window and evaluations (0 for the space's budget) of some searches."""
Plan = Sequence[Sequence[Part]]
"""Stages, most important first; within a stage, the searches of a seed are consecutive."""
PLAN: Sequence[Part] = (
    ("recorded", "evo", "live", 0),
    ("recorded", "tpe", "live", 100),
    ("recorded", "evo", "1", 0),
    ("fit", "evo", "live", LONG),
    ("wide", "evo", "8", LONG),
    ("recorded", "evo", "8", LEAST),
    ("recorded", "tpe", "1", 0),
    ("recorded", "nsga2", "live", 0),
    ("recorded", "nsga2", "1", 0),
    *(("recorded", TUNER + name, "1", 0) for name in STRATEGIES),
    ("recorded", "tpe", "live", 0),
    ("wide", "evo", "live", LONG),
)
"""Main searches of the sampler and its peers."""
BASELINE: Sequence[Part] = (
    ("fit", "baseline: evo", "8", LONG),
    ("wide", "baseline: evo", "8", LONG),
    ("recorded", "baseline: evo", "8", LEAST),
    ("recorded", "baseline: evo", "1", 0),
    ("recorded", "baseline: evo", "51", LEAST),
    ("fit", "baseline: evo", "51", LONG),
)
"""The same searches with the older evo."""
ABLATIONS = (
    "evo",
    "no climbing: evo; _candidates.ROUNDS=0",
    "no validity: evo; _validity.CAUTION=1e9",
    "first design at random: evo; _first.DRAWN=1",
    "no linear part: evo; _model.LINEAR=0.0",
    "no crossover: evo; _candidates.CROSSED=0",
    "no elites of niches: evo; _candidates.NICHE_BEST=0",
    "no whole neighbourhoods: evo; _candidates.SURROUNDED=0",
    "no immigrants: evo; _candidates.DRAWN=0",
    "neither crossover nor elites of niches: evo; _candidates.CROSSED=0; _candidates.NICHE_BEST=0",
    "no flattening: evo; _model.FLATTEN_BELOW=-1e9",
    "128 rows: evo; _generations.MODEL_ROWS=128",
    "fit from 192: evo; _model.FIT_ROWS=192",
)
"""Variants of evo with one part switched off or changed."""
PLANS: Mapping[str, Plan] = {
    "figures": tuple((part,) for part in PLAN),
    "baseline": tuple((part,) for part in BASELINE),
    "ramps": ([("", "evo", window, LEAST) for window in RAMPS],),
    "cluster": ([("", "evo", window, LONG) for window in CLUSTER],),
    "gpus": ([("", "evo", window, LONG) for window in GPUS],),
    "ablations": (
        (*(("", name, "live", LEAST) for name in ABLATIONS), ("", "evo", "8", LEAST), ("", "evo", "51", LEAST)),
    ),
}
"""Plans by name, for `--plan`."""


@dataclass(frozen=True)
class Search:
    """One search to make."""

    case: str
    """Case, as for `case_of`."""
    variant: str
    """Sampler, as for `Variant.read`."""
    window: str
    """Trials in flight, or `live`."""
    trials: int
    """Number of evaluations."""
    seed: int
    """Seed of the proposals."""

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """Key of the search in the results."""
        name = self.variant if self.variant.startswith(TUNER) else Variant.read(self.variant).name
        return name, name_of(self.case), self.window, self.seed, self.trials


def planned(cases: Mapping[str, Case], plan: Plan, repeats: int) -> list[Search]:
    """Return the searches of a plan in order."""
    found = []
    for stage, seed in itertools.product(plan, range(repeats)):
        for (kind, variant, window, trials), (name, case) in itertools.product(stage, cases.items()):
            if kind in ("", kind_of(name)):
                whole = max(LEAST, math.ceil(SPARE * case.budget))
                found.append(Search(name, variant, window, trials or whole, seed))
    return found


def made(search: Search, work: Path) -> dict[str, Any]:
    """Make a search and return its line of results.

    For a recorded space the line contains the positions of the evaluated configurations in the recording. For a
    landscape it contains the evaluations with a new best log(time), and these values.
    """
    case, began = case_of(search.case, work), time.process_time()
    if search.variant.startswith(TUNER):
        from contenders import evaluated

        configs = evaluated(Path(search.case), search.variant, search.seed, search.trials)
        found: dict[str, Any] = {"configs": configs, "curve": [], "ms": 0.0}
    else:
        variant = Variant.read(search.variant)
        with variant.applied():
            found = searched(case, variant.sampler, search.seed, search.window, search.trials)
    line = {"key": search.key, "ms": found["ms"], "core_s": round(time.process_time() - began, 2)}
    if kind_of(search.case) == "recorded":
        at = {config: index for index, config in enumerate(read_table(search.case).answers)}
        return line | {"order": [at[config] for config in found["configs"]]}
    steps: list[tuple[int, float]] = []
    for n, best in enumerate(found["curve"], 1):
        if best is not None and (not steps or best < steps[-1][1]):
            steps.append((n, best))
    return line | {"best": steps, "evaluations": len(found["curve"])}


def run(given: argparse.Namespace) -> int:
    """Make the missing searches; return 0, or 3 if some are left."""
    began = time.monotonic()
    known = {tuple(line["key"]) for line in lines_of([given.out, *given.known])}
    cases = {name: case_of(name, given.work or given.out.parent) for name in _cases(given)}
    for name in cases:
        if kind_of(name) == "recorded":
            read_table(name)
    plan = PLANS[given.plan]
    if importlib.util.find_spec("kernel_tuner") is None and given.plan == "figures":
        print("kernel_tuner is not installed; skipping its strategies", file=sys.stderr)
        plan = [[part for part in stage if not part[1].startswith(TUNER)] for stage in plan]
    searches = [search for search in planned(cases, plan, given.repeats) if search.key not in known]
    print(f"{len(searches)} searches to make, {time.monotonic() - began:.0f} s to read the cases", flush=True)
    core_s, done = defaultdict[tuple[str, str], float](float), 0
    # Read the cases before forking, so that the processes share them.
    with multiprocessing.get_context("fork").Pool(given.jobs) as pool, given.out.open("a", encoding="utf-8") as out:
        waiting = pool.imap_unordered(_Maker(given.work or given.out.parent), searches)
        with contextlib.suppress(multiprocessing.TimeoutError, StopIteration):
            while (left := began + given.limit - time.monotonic()) > 0:
                line = waiting.next(None if math.isinf(left) else left)
                out.write(json.dumps(line) + "\n")
                out.flush()
                core_s[line["key"][0], line["key"][2]] += line["core_s"]
                done += 1
        pool.terminate()
    for (variant, window), seconds in core_s.items():
        print(f"{variant}, window {window}: {seconds / 60:.1f} core-minutes")
    print(f"{done} searches made, {len(searches) - done} left, {time.monotonic() - began:.0f} s")
    return 3 if done < len(searches) else 0


@dataclass(frozen=True)
class _Maker:
    work: Path

    def __call__(self, search: Search) -> dict[str, Any]:
        return made(search, self.work)


def _cases(given: argparse.Namespace) -> list[str]:
    spaces = sorted(p for p in given.spaces.iterdir() if p.name.endswith((".json", ".json.gz")))
    return [*map(str, spaces), *given.landscape]


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("spaces", type=Path, help="folder of recorded spaces")
    common.add_argument(
        "--landscape", action="append", default=[], help="artificial or fitted landscape; see landscapes.py"
    )
    common.add_argument("--work", type=Path, help="folder for stored fits; default: folder of the results")
    one = parts.add_parser("run", parents=[common], help="run the searches")
    one.add_argument("--out", type=Path, required=True, help="file of results (JSON lines)")
    one.add_argument("--known", type=Path, nargs="*", default=[], help="further files of results")
    one.add_argument("--plan", choices=PLANS, default="figures", help="plan to run")
    one.add_argument("--repeats", type=int, default=20, help="number of seeds, starting at 0")
    one.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    one.add_argument("--limit", type=float, default=math.inf, help="seconds after which no search starts")
    one.set_defaults(run=run)
    two = parts.add_parser("told", parents=[common], help="print the figures")
    two.add_argument("files", type=Path, nargs="+", help="files of results")
    two.set_defaults(run=None)
    given = parser.parse_args()
    if given.run is None:
        told(_cases(given), given.files, given.work or given.files[0].parent)
        return 0
    return run(given)


if __name__ == "__main__":
    sys.exit(main())
