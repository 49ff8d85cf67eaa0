r"""`python tests/bench/transfer.py OUT TRANSFER …`: measure the gain from a warm start with a study of another problem.

A transfer is `KERNEL:CHIP:FROM:TO`, two problems of a kernel on a simulated chip. Each seed searches FROM cold, then TO
twice: cold, and with the results of the first search as a warm start. Times are predicted once and stored next to OUT.
There is no correctness gate; a candidate fails if it does not build, run, or compute the sampled blocks correctly. Use
`ONE.json:OTHER.json` for two recorded spaces of one kernel on two chips.

```
nice python tests/bench/transfer.py OUT.jsonl rmsnorm:l4:64,1024:256,2048 --seeds 0-5 --trials 48 --limit 600
python tests/bench/transfer.py OUT.jsonl --told
```

Each finished search is appended to OUT as a line of JSON and not repeated. `--limit` stops after a number of seconds;
run the same command again to continue. The output is the number of trials until each search was within 5 % of the best
time found by any search of that problem. It includes the quality after some trials, as means with standard errors.
`--ways cold unmarked` compares cold searches with and without the marks of values (for study, for other chips).
`--variant` searches TO with other constants of `evo` (as in `ablations.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

from ablations import Variant, schedule_of  # noqa: E402
from landscapes import Answer, recorded  # noqa: E402

from evokern.compile.cache import default_directory  # noqa: E402
from evokern.compile.pool import CompileSettings, CompileWorker  # noqa: E402
from evokern.compile.records import Built  # noqa: E402
from evokern.declaration.feasibility import feasible_space  # noqa: E402
from evokern.declaration.genes import Config  # noqa: E402
from evokern.declaration.space import Space  # noqa: E402
from evokern.hardware.profiles import chip  # noqa: E402
from evokern.samplers import History, Prior, make_sampler  # noqa: E402
from evokern.samplers.contract import TrialResult  # noqa: E402
from evokern.study.discovery import WorkerContext, find_kernel_folder, load_kernel  # noqa: E402
from evokern.study.settings import SimulationSettings, TimingSettings  # noqa: E402
from evokern.study.trial import Outcome  # noqa: E402

WITHIN = 1.05
"""Multiple of the best known time that counts as reached."""
CHECKPOINTS = (8, 16, 24, 32, 48, 64, 96)
"""Trials at which the quality is printed."""
BLOCKS = 2
"""Number of simulated blocks per launch; enough for ranking."""
LIVE = "live"
"""Schedule of a search on a GPU."""


@dataclass(frozen=True)
class Place:
    """A problem of a kernel on a chip, or a recorded space."""

    name: str
    """Name in the results."""
    space: Space
    """Genes and feasibility rules."""
    answer: Callable[[Config], Answer]
    """Function that evaluates a configuration."""


class Predictions:
    """Predicted times of a kernel's candidates at a problem, stored in a file."""

    def __init__(self, kernel: str, chip_name: str, problem: str, kept: Path) -> None:
        from evokern.device.sim.predict import Predictor
        from evokern.gate.comparison import tolerances

        loaded, profile = load_kernel(find_kernel_folder(kernel, None)), chip(chip_name)
        self.problem = loaded.problem(problem)
        self.space = feasible_space(loaded, [self.problem], profile)
        context = WorkerContext(loaded.folder, (self.problem,), profile)
        self._compiler = CompileWorker(CompileSettings(context, default_directory()))
        tolerance = tolerances(loaded, None, None)
        self._predictor = Predictor(loaded, profile, TimingSettings(), SimulationSettings(blocks=BLOCKS), tolerance)
        self._kept = kept / f"{kernel}-{chip_name}-{self.problem.key.replace(',', '_')}-{loaded.digest()[:12]}.jsonl"
        self._known: dict[str, float | None] = {}
        for line in self._kept.read_text().splitlines() if self._kept.exists() else ():
            key, time_us = json.loads(line)
            self._known[key] = time_us  # a candidate that kills the compiler was recorded without a time

    def __call__(self, config: Config) -> Answer:
        """Return the prediction for a candidate."""
        if config.key not in self._known:
            self._note(config.key, None)
            self._known[config.key] = self._predicted(config)
            self._note(config.key, self._known[config.key])
        time_us = self._known[config.key]
        return (Outcome.WRONG, None) if time_us is None else (Outcome.MEASURED, math.log(time_us))

    def _note(self, key: str, time_us: float | None) -> None:
        with self._kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, time_us]) + "\n")

    def _predicted(self, config: Config) -> float | None:
        from evokern.gate import RunFailed

        built = self._compiler.handle(config)
        if not isinstance(built, Built):
            return None
        with suppress(RunFailed):
            found = self._predictor.predict(config, built, self.problem)
            return None if found.sampled else found.total.time_us
        return None


@cache
def places_of(transfer: str, work: Path) -> tuple[Place, Place]:
    """Return the source and the target of a transfer."""
    if ".json" in transfer:
        cases = [recorded(Path(path)) for path in transfer.split(":")]
        one, two = (Place(case.name, case.space, case.answer) for case in cases)
        return one, two
    kernel, chip_name, *problems = transfer.split(":")
    made = [Predictions(kernel, chip_name, problem, work) for problem in problems]
    one, two = (Place(f"{kernel}:{chip_name}:{found.problem.key}", found.space, found) for found in made)
    return one, two


def searched(place: Place, seed: int, trials: int, prior: Prior | None) -> list[tuple[Config, float | None]]:
    """Search a place once; return the evaluated configurations with log(time), in order."""
    in_flight, given = schedule_of(LIVE)
    sampler = make_sampler("evo", place.space, {}, seed, given, prior=prior)
    history = History(place.space)
    found: list[tuple[Config, float | None]] = []
    for number in range(trials):
        while history.results_seen <= number - in_flight(number):
            told = history.results_seen
            outcome, value = place.answer(history.pending[told])
            history.tell(TrialResult(told, history.pending[told], outcome, value))
        proposal = sampler.propose(history, number)
        if proposal is None:
            break
        history.commit(number, proposal)
        found.append((proposal.config, place.answer(proposal.config)[1]))
    return found


def unmarked(place: Place) -> Place:
    """Return a place whose kernel has no marked values."""
    return replace(place, space=replace(place.space, low_priority={}))


def timed(trials: Sequence[tuple[Config, float | None]]) -> list[tuple[Config, float]]:
    """Return the trials with a time."""
    return [(config, value) for config, value in trials if value is not None]


def lines_of(transfer: str, given: argparse.Namespace, known: set[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Yield a line for each missing search of a transfer, seed by seed."""
    source, target = places_of(transfer, given.out.parent)
    variants = [Variant.read(text) for text in given.variant or ["evo"]]
    for seed in given.seeds:
        first = {"transfer": transfer, "seed": seed, "trials": given.trials}
        wanted = [(variant, way) for variant in variants for way in given.ways]
        if all((transfer, seed, given.trials, variant.name, way) in known for variant, way in wanted):
            continue
        learned = timed(searched(source, 1000 + seed, given.source_trials, None)) if "warm" in given.ways else []
        for variant, way in wanted:
            if (transfer, seed, given.trials, variant.name, way) in known:
                continue
            prior = Prior.from_trials(target.space, learned, source.name) if way == "warm" else None
            with variant.applied():
                found = searched(unmarked(target) if way == "unmarked" else target, seed, given.trials, prior)
            yield {**first, "variant": variant.name, "way": way, "values": [value for _, value in found]}


def told(lines: Sequence[Mapping[str, Any]]) -> None:
    """Print the results of the searches."""
    best: dict[str, float] = defaultdict(lambda: math.inf)
    for line in lines:
        best[line["transfer"]] = min([best[line["transfer"]], *(v for v in line["values"] if v is not None)])
    marks = [mark for mark in CHECKPOINTS if mark <= max(line["trials"] for line in lines)]
    groups: dict[tuple[str, str, str], dict[int, Any]] = defaultdict(dict)
    for line in lines:
        groups[line["transfer"], line["variant"], line["way"]][line["seed"]] = line
    for (transfer, variant, way), runs in groups.items():
        arrived, shares, failed = [], defaultdict(list), []
        for line in runs.values():
            curve, so_far = [], math.inf
            for value in line["values"]:
                so_far = min(so_far, math.inf if value is None else value)
                curve.append(so_far)
            near = [n for n, v in enumerate(curve, 1) if v <= best[transfer] + math.log(WITHIN)]
            arrived.append(near[0] if near else len(curve) + 1)
            failed.append(fmean(v is None or v > best[transfer] + math.log(3.0) for v in line["values"][:16]))
            for mark in marks:
                shares[mark].append(math.exp(best[transfer] - curve[min(mark, len(curve)) - 1]))
        near_text = f"within 5 % after {sorted(arrived)}, mean {shown(arrived, 1)}"
        print(f"{transfer} {variant} {way}: {near_text}; hopeless of the first 16 {shown(failed)}")
        print("    " + ", ".join(f"{mark}: {shown(shares[mark])}" for mark in marks))


def shown(values: Sequence[float], digits: int = 3) -> str:
    """Return a mean with its standard error."""
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{fmean(values):.{digits}f} ± {error:.{digits}f}"


def main() -> int:
    """Run the command line; return the exit code, 3 if searches are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="file of results (JSON lines)")
    parser.add_argument("transfers", nargs="*", help="KERNEL:CHIP:FROM:TO, or two recorded spaces")
    parser.add_argument("--seeds", type=_numbers, default=range(6), help="FIRST-LAST")
    parser.add_argument("--trials", type=int, default=48, help="evaluations of a search of TO")
    parser.add_argument("--source-trials", type=int, default=64, help="evaluations of a search of FROM")
    parser.add_argument("--ways", nargs="+", choices=("cold", "warm", "unmarked"), default=("cold", "warm"))
    parser.add_argument("--variant", action="append", help="evo with other constants, as in ablations.py")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no search starts")
    parser.add_argument("--told", action="store_true", help="only print existing results")
    given = parser.parse_args()
    began = time.monotonic()
    lines = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    known = {(line["transfer"], line["seed"], line["trials"], line["variant"], line["way"]) for line in lines}
    left = False
    for transfer in () if given.told else given.transfers:
        for line in lines_of(transfer, given, known):
            lines.append(line)
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            if time.monotonic() - began > given.limit:
                left = True
                break
    told(lines)
    return 3 if left else 0


def _numbers(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    sys.exit(main())
