r"""`python tests/bench/figures.py run|told …`: what the sampler is held to, with feasibility asked, on all cores.

```
python tests/bench/figures.py run SPACES --landscape wide.py:11 --landscape fit:RECORDING:attention-s512 \
    --out one.jsonl --limit 500
PYTHONPATH=OLDER python tests/bench/figures.py run SPACES --landscape … --plan baseline --out two.jsonl
python tests/bench/figures.py told SPACES --landscape … one.jsonl two.jsonl
```

`run` makes the searches of a plan, the most important first: `figures`; `baseline`, of an older evo whose package comes
first on PYTHONPATH; `ablations`, with each part of evo switched off, and `ramps`, seed by seed. Each search is appended
to OUT as a line of JSON when it ends; those in OUT or in a file of `--known` are not repeated, so that the same command
goes on after `--limit`, with exit code 3. `told` prints figures with standard errors, and the community's score where
`autotuning_methodology` is installed.
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

if not hasattr(evokern.samplers, "TrialSchedule"):  # an evo from before the ramp: its windows are constant
    evokern.samplers.TrialSchedule = None  # type: ignore[misc]

from ablations import Variant, searched  # noqa: E402
from figure_tables import LEAST, kind_of, lines_of, name_of, read_table, told  # noqa: E402
from landscapes import Case, case_of  # noqa: E402

SPARE = 1.8
"""Evaluations of a search over a space's whole budget, as a multiple of its budget in evaluations: the community's
budget is one of seconds."""
LONG = 400
"""Evaluations of a search on a landscape."""
ALONE = (
    "baseline alone: evo; _surrogate.LARGE.linear=(0.3,); _generations.REPAIR_CROSSOVERS=0; "
    "_niche_restarts.STUCK=1000000000"
)
"""The older evo with one Gaussian process, and neither repair crossovers nor niche restarts."""
STRATEGIES = ("hybrid_vndx", "diff_evo", "adaptive_tabu_greywolf", "pso")
"""Kernel Tuner's best four by the community's score."""
TUNER = "kernel_tuner:"
"""What names of its strategies begin with."""
RAMPS = ("live 51 4 8", "live 51 8 8", "live 51 2 8", "live 51 16 8", "8", "51", "live", "live 96 4 8", "live 96 4 4")
"""Trials in flight: how fast a search gets more of them, against what its sampler knows."""
CLUSTER = ("8", "live 128 4 8", "128")
"""Trials in flight: what one GPU needs, and what many do, with a ramp and without."""
GPUS = ("live 51 4 8", "live 102 8 4", "live 102 8 8", "live 102 8 6", "live 204 16 2", "live 204 16 4")
"""Trials in flight for one, two and four GPUs: in proportion, and less of them later."""
Part = tuple[str, str, str, int]
"""Kind of case (empty: all), variant, window and evaluations (0: those of the space's budget) of some searches."""
Plan = Sequence[Sequence[Part]]
"""Stages, the most important first; within one the searches of a seed come together."""
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
"""What the sampler is held to, and its peers."""
BASELINE: Sequence[Part] = (
    ("fit", "baseline: evo", "8", LONG),
    ("wide", "baseline: evo", "8", LONG),
    ("recorded", "baseline: evo", "8", LEAST),
    ("recorded", "baseline: evo", "1", 0),
    ("recorded", "baseline: evo", "51", LEAST),
    ("fit", ALONE, "1", LONG),
    ("fit", "baseline: evo", "51", LONG),
)
"""The same of the older evo."""
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
    "no flattening: evo; _model.HOPELESS=-1e9",
    "128 rows: evo; _generations.MODEL_ROWS=128",
    "fit from 192: evo; _model.FIT_ROWS=192",
)
"""evo with each of its parts switched off or changed."""
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
"""What `--plan` names."""


@dataclass(frozen=True)
class Search:
    """One search to make."""

    case: str
    """What is searched, as `case_of` takes it."""
    variant: str
    """Who searches, as `Variant.read` takes it."""
    window: str
    """Trials in flight, or `live`."""
    trials: int
    """Evaluations."""
    seed: int
    """Of the proposals."""

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """What identifies it among results."""
        name = self.variant if self.variant.startswith(TUNER) else Variant.read(self.variant).name
        return name, name_of(self.case), self.window, self.seed, self.trials


def planned(cases: Mapping[str, Case], plan: Plan, repeats: int) -> list[Search]:
    """Return the searches of a plan, in its order."""
    found = []
    for stage, seed in itertools.product(plan, range(repeats)):
        for (kind, variant, window, trials), (name, case) in itertools.product(stage, cases.items()):
            if kind in ("", kind_of(name)):
                whole = max(LEAST, math.ceil(SPARE * case.budget))
                found.append(Search(name, variant, window, trials or whole, seed))
    return found


def made(search: Search, work: Path) -> dict[str, Any]:
    """Make a search; returns its line of results.

    Of a recorded space that is the positions in the recording of what was evaluated, in order; of a landscape the
    evaluations after which a better log(time) was known, and these.
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
    """Make the searches that are missing; returns 0, or 3 where some are left."""
    began = time.monotonic()
    known = {tuple(line["key"]) for line in lines_of([given.out, *given.known])}
    cases = {name: case_of(name, given.work or given.out.parent) for name in _cases(given)}
    for name in cases:
        if kind_of(name) == "recorded":
            read_table(name)
    plan = PLANS[given.plan]
    if importlib.util.find_spec("kernel_tuner") is None and given.plan == "figures":
        print("kernel_tuner is not installed: its strategies are left out", file=sys.stderr)
        plan = [[part for part in stage if not part[1].startswith(TUNER)] for stage in plan]
    searches = [search for search in planned(cases, plan, given.repeats) if search.key not in known]
    print(f"{len(searches)} searches to make, {time.monotonic() - began:.0f} s to read the cases", flush=True)
    core_s, done = defaultdict[tuple[str, str], float](float), 0
    # Cases are read before the processes are forked, so that they share them.
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
    """Do what the command line asks; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("spaces", type=Path, help="folder of recorded spaces")
    common.add_argument("--landscape", action="append", default=[], help="made-up or fitted: see landscapes.py")
    common.add_argument("--work", type=Path, help="folder that keeps fits; default: where the results are")
    one = parts.add_parser("run", parents=[common], help="make the searches")
    one.add_argument("--out", type=Path, required=True, help="file of results, JSON lines")
    one.add_argument("--known", type=Path, nargs="*", default=[], help="more files of results")
    one.add_argument("--plan", choices=PLANS, default="figures", help="which searches")
    one.add_argument("--repeats", type=int, default=20, help="seeds, from 0")
    one.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    one.add_argument("--limit", type=float, default=math.inf, help="seconds after which nothing more is made")
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
