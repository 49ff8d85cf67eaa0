r"""`python tests/bench/ablations.py OUT CASE …`: measure the effect of each part of a sampler.

Every search runs in this process through the sampler's contract: the proposal of trial n sees the results of trials up
to n - W(n). Samplers check feasibility one configuration at a time. Each finished search is appended to OUT (JSON
lines) and not repeated when the script runs again with the same arguments. The table shows the mean figure of each
variant with its standard error, and the paired difference from the first variant with the same seeds.

```
python tests/bench/ablations.py OUT.jsonl spaces/gemm.json.gz wide.py:5 fit:RECORDING:attention-s512 \
    --windows 8,live --seeds 10 --variant evo --variant tpe --variant 'fewer: evo; _generations.MODEL_ROWS=128'
```

A variant is a sampler's name, or a new name with switches: `NAME: SAMPLER; MODULE.CONSTANT=VALUE; …`. Modules are those
of `evokern.samplers.evo`. `MODULE.CONSTANT.FIELD=VALUE` sets a field of a record.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

from landscapes import Case, case_of  # noqa: E402

from evokern.declaration.genes import Config  # noqa: E402
from evokern.samplers import History, TrialSchedule, make_sampler  # noqa: E402
from evokern.samplers.contract import TrialResult  # noqa: E402

CHECKPOINTS = (20, 50, 100, 200, 400)
"""Evaluations at which figures are printed, as far as a search goes."""
LIVE = 96
"""Maximum number of trials in flight of a time-limited search on a GPU with 16 cores; older packages lack it."""
ROOM = "evokern.samplers.evo"
"""Package of the switched modules."""


@dataclass(frozen=True)
class Variant:
    """A sampler with optional changes of constants."""

    name: str
    """Name in tables."""
    sampler: str
    """Name of the sampler."""
    switches: tuple[tuple[str, Any], ...] = ()
    """Paths of constants with their values."""

    @classmethod
    def read(cls, text: str) -> Variant:
        """Parse a variant of the command line."""
        name, found, rest = text.partition(":")
        if not found:
            return cls(text.strip(), text.strip())
        sampler, *switches = (part.strip() for part in rest.split(";"))
        parsed = []
        for switch in switches:
            path, _, value = switch.partition("=")
            parsed.append((path, ast.literal_eval(value)))
        return cls(name.strip(), sampler, tuple(parsed))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Set the constants during a search."""
        before = []
        for path, value in self.switches:
            module, *records, name = path.split(".")
            where: Any = importlib.import_module(f"{ROOM}.{module}")
            for record in records:
                where = getattr(where, record)
            before.append((where, name, getattr(where, name)))
            object.__setattr__(where, name, value)  # bypass the frozen record
        try:
            yield
        finally:
            for where, name, value in reversed(before):
                object.__setattr__(where, name, value)


def searched(case: Case, sampler_name: str, seed: int, window: str, trials: int) -> dict[str, Any]:
    """Search once; return the best log(time) after each evaluation, the configurations, and the cost of the proposals.

    Args:
        case: Case to search.
        sampler_name: Name of the sampler.
        seed: Seed of the proposals.
        window: Trials in flight, or `live`.
        trials: Evaluations; fewer if the optimum of a recording is found.
    """
    in_flight, given = schedule_of(window)
    sampler = make_sampler(sampler_name, case.space, {}, seed, given)
    history, best, shown = History(case.space), math.inf, math.inf
    curve: list[float | None] = []
    configs: list[Config] = []
    spent = 0.0
    for number in range(trials):
        while history.results_seen <= number - in_flight(number):
            told = history.results_seen
            config = history.pending[told]
            outcome, value = case.answer(config)
            history.tell(TrialResult(told, config, outcome, value))
        begun = time.process_time()
        proposal = sampler.propose(history, number)
        spent += time.process_time() - begun
        if proposal is None:
            break
        history.commit(number, proposal)
        configs.append(proposal.config)
        value = case.answer(proposal.config)[1]
        if value is not None and value < best:
            # A search returns what looks best, but its true value is the time without the error.
            best, shown = value, value if case.exact is None else case.exact(proposal.config)[1] or 0.0
        curve.append(None if math.isinf(best) else round(shown, 5))
        if case.random and shown <= case.reference + 1e-12:
            break
    return {"curve": curve, "configs": configs, "ms": round(1000 * spent / max(len(curve), 1), 3)}


def schedule_of(window: str) -> tuple[Callable[[int], int], Any]:
    """Return the schedule of trials in flight, and the argument for the sampler.

    Args:
        window: A number, `live`, or `live MOST LEAST RAMP` for another schedule than today's.
    """
    if window.startswith("live"):
        schedule = TrialSchedule(*map(int, window.split()[1:] or [LIVE]))
        return schedule, schedule
    size = int(window)
    return (lambda number: size), size


def main() -> int:
    """Run the missing searches and print the table; return the exit code."""
    given = _arguments()
    variants = [Variant.read(text) for text in given.variant or ["evo"]]
    known = _known(given.out)
    work = [
        (case, window, variant, seed)
        for seed in range(given.first, given.first + given.seeds)
        for case in given.cases
        for window in given.windows.split(",")
        for variant in variants
    ]
    with given.out.open("a", encoding="utf-8") as out:
        for case_name, window, variant, seed in work:
            key = (variant.name, case_name, window, seed, given.trials)
            if key in known:
                continue
            with variant.applied():
                found = searched(case_of(case_name, given.out.parent), variant.sampler, seed, window, given.trials)
            del found["configs"]
            known[key] = found
            out.write(json.dumps({"key": key, **found}) + "\n")
            out.flush()
    _print(known, variants, given)
    return 0


def _known(path: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {tuple(line["key"]): line for line in lines}


def figures(case: Case, curve: Sequence[float | None], trials: int) -> list[float]:
    """Return the figure after each evaluation; a finished search keeps its last value."""
    found = [case.figure(best) for best in curve]
    return found + [found[-1] if found else 0.0] * (trials - len(found))


def score(case: Case, curve: Sequence[float | None], trials: int) -> float | None:
    """Return the closed fraction of the gap between random search and the optimum, over the space's own budget.

    None if the time of a configuration is unknown. This is the community's score in evaluations instead of seconds: the
    mean of (random - best) / (random - optimum) over the budget.
    """
    if not case.random or not curve:
        return None
    # As for the baseline, a search without a result counts as random search's expectation.
    times = [case.random[i] if best is None else math.exp(best) for i, best in enumerate(curve)]
    times += [times[-1]] * (trials - len(times))
    optimum, most = math.exp(case.reference), min(case.budget, trials)
    return fmean((case.random[i] - times[i]) / (case.random[i] - optimum) for i in range(most))


def _print(
    known: dict[tuple[Any, ...], dict[str, Any]], variants: Sequence[Variant], given: argparse.Namespace
) -> None:
    marks = [n for n in CHECKPOINTS if n <= given.trials]
    seeds = range(given.first, given.first + given.seeds)
    for window in given.windows.split(","):
        means: dict[tuple[str, int], list[list[float]]] = {}
        for case_name in given.cases:
            case = case_of(case_name, given.out.parent)
            print(
                f"\n{case.name}, window {window}, {given.seeds} seeds" + f", budget {case.budget}" * bool(case.budget)
            )
            for variant in variants:
                runs = [known[variant.name, case_name, window, seed, given.trials] for seed in seeds]
                rows = [figures(case, run["curve"], given.trials) for run in runs]
                for n in marks:
                    means.setdefault((variant.name, n), []).append([row[n - 1] for row in rows])
                cells = [_mean([row[n - 1] for row in rows]) for n in marks]
                parts = [score(case, run["curve"], given.trials) for run in runs]
                if all(part is not None for part in parts):
                    cells.append("score " + _mean([part for part in parts if part is not None]))
                    means.setdefault((variant.name, 0), []).append([p for p in parts if p is not None])
                print("  ".join(cells), f"{fmean(run['ms'] for run in runs):6.1f} ms  {variant.name}")
        print(f"\nall, window {window}: mean over cases; difference from {variants[0].name} of the same seeds")
        for variant in variants:
            cells = []
            for n in [*marks, 0]:
                own, first = means.get((variant.name, n)), means.get((variants[0].name, n))
                if not own or not first:
                    continue
                # Seeds are repeats; the cases are fixed.
                mean = [fmean(values) for values in zip(*own, strict=True)]
                gain = [a - b for a, b in zip(mean, [fmean(v) for v in zip(*first, strict=True)], strict=True)]
                cells.append(("score " if n == 0 else "") + f"{_mean(mean)} ({_mean(gain, sign=True)})")
            print("  ".join(cells), variant.name)


def _mean(values: Sequence[float], *, sign: bool = False) -> str:
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{fmean(values):+.3f} ± {error:.3f}" if sign else f"{fmean(values):.3f} ± {error:.3f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="file of results (JSON lines); created if missing")
    parser.add_argument("cases", nargs="+", help="cases to search; see tests/bench/landscapes.py")
    parser.add_argument("--windows", default="8", help="trials in flight, separated by commas")
    parser.add_argument("--variant", action="append", help="sampler or variant; repeatable")
    parser.add_argument("--seeds", type=int, default=10, help="searches of each variant on each case")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--trials", type=int, default=200, help="evaluations of each search")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
