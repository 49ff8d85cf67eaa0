"""Tables of `figures.py told`: figures with standard errors, by case and by kind of case."""

from __future__ import annotations

import importlib.util
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ablations import figures, score
from landscapes import Case, case_of

from evokern.device.recorded.recording import read_recording
from evokern.device.recorded.table import Table

MARKS = (20, 50, 100, 200, 400)
"""Evaluations at which figures are printed."""
LEAST = 200
"""Minimum number of evaluations of a search over a space's whole budget."""

Lines = Mapping[tuple[str, str], Mapping[str, Mapping[int, Mapping[str, Any]]]]
"""Lines of results by variant and window, case, and seed."""


def name_of(case: str) -> str:
    """Return the short name of a case: file and seed, without folders."""
    path, _, seed = case.removeprefix("fit:").partition(":")
    short = Path(path).name.split(".")[0]
    return f"{short}-{seed}" if ".py" in path else short


def kind_of(case: str) -> str:
    """Return the kind of a case: `fit`, `wide` or `recorded`."""
    return "fit" if case.startswith("fit:") else "wide" if ".py:" in case else "recorded"


@cache
def read_table(case: str) -> Table:
    """Return a recording, cached per process."""
    return read_recording(Path(case))


def lines_of(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the results in some files; missing files have none."""
    return [json.loads(line) for file in files if file.exists() for line in file.read_text("utf-8").splitlines()]


def told(names: Sequence[str], files: Sequence[Path], work: Path) -> None:
    """Print the figures of some files.

    Args:
        names: Cases, as for `case_of`.
        files: Files of results (JSON lines).
        work: Folder for stored fits.
    """
    cases = {name_of(name): (name, case_of(name, work)) for name in names}
    runs: dict[tuple[str, str], dict[str, dict[int, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines_of(files):
        variant, case, window, seed, trials = line["key"]
        if case in cases:
            before = runs[variant, window][case].get(seed)
            if before is None or before["key"][4] < trials:
                runs[variant, window][case][seed] = line
    for kind in ("recorded", "wide", "fit"):
        own = {name: case for name, (path, case) in cases.items() if kind_of(path) == kind}
        if own:
            _print_kind(kind, own, {n: path for n, (path, _) in cases.items()}, runs)
    if importlib.util.find_spec("autotuning_methodology"):
        _print_community({n: path for n, (path, _) in cases.items() if kind_of(path) == "recorded"}, runs)


def _print_kind(kind: str, cases: Mapping[str, Case], paths: Mapping[str, str], runs: Lines) -> None:
    marks = [n for n in MARKS if kind != "recorded" or n <= LEAST]
    for name, case in cases.items():
        print(f"\n{name}" + (f": budget {case.budget} evaluations" if case.budget else ""))
        for (variant, window), found in runs.items():
            lines = list(found.get(name, {}).values())
            if lines:
                print(
                    "  ".join(_cells(paths[name], case, lines, marks)), f"  {len(lines)} of {variant}, window {window}"
                )
    print(f"\nall of {', '.join(cases)}: mean, and in brackets the lead of evo with the same seeds")
    table = {
        key: {n: _by_seed(cases, paths, found, n) for n in (*marks, 0)}
        for key, found in runs.items()
        if all(found.get(name) for name in cases)
    }
    for (variant, window), row in table.items():
        cells = []
        for n, values in row.items():
            if values:
                cells.append(f"{f'at {n}' if n else 'score'} {_mean(list(values.values()))}")
        print("  ".join(cells), f"  {variant}, window {window}")
        # Compare both with the default schedule and with the same number in flight.
        for against in dict.fromkeys((("evo", "live"), ("evo", window))):
            theirs = table.get(against)
            if theirs is None or against == (variant, window):
                continue
            shared = {n: sorted(set(row[n]) & set(theirs[n])) for n in row}
            ahead = [
                f"{_mean([theirs[n][seed] - row[n][seed] for seed in seeds])} at {n or 'score'}"
                for n, seeds in shared.items()
                if seeds
            ]
            print(f"    (evo, window {against[1]}: {', '.join(ahead)})")


def _by_seed(cases: Mapping[str, Case], paths: Mapping[str, str], found: Any, n: int) -> dict[int, float]:
    """Return, for each seed that all cases have, the mean figure after n evaluations; n = 0 is the score."""
    values: dict[int, float] = {}
    for seed in sorted(set.intersection(*(set(found[name]) for name in cases))):
        each = [_figure(paths[name], case, found[name][seed], n) for name, case in cases.items()]
        if None not in each:
            values[seed] = fmean(value for value in each if value is not None)
    return values


def _figure(path: str, case: Case, line: Mapping[str, Any], n: int) -> float | None:
    curve, asked = curve_of(path, case, line), line["key"][4]
    if n:
        return figures(case, curve, max(n, len(curve)))[n - 1] if asked >= n else None
    return score(case, curve, asked) if case.budget and asked >= case.budget else None


def _cells(path: str, case: Case, lines: Sequence[Mapping[str, Any]], marks: Sequence[int]) -> list[str]:
    asked = min(line["key"][4] for line in lines)
    rows = [figures(case, curve_of(path, case, line), asked) for line in lines]
    return [f"at {n} {_mean([row[n - 1] for row in rows])}" for n in marks if n <= asked]


def curve_of(path: str, case: Case, line: Mapping[str, Any]) -> list[float | None]:
    """Return the best log(time) after each evaluation of a line of results."""
    curve: list[float | None] = []
    best: float | None = None
    if "order" in line:
        answers = list(read_table(path).answers)
        for index in line["order"]:
            value = case.answer(answers[index])[1]
            best = value if best is None else best if value is None else min(best, value)
            curve.append(best)
        return curve
    steps = dict(map(tuple, line["best"]))
    for n in range(1, line["evaluations"] + 1):
        best = steps.get(n, best)
        curve.append(best)
    return curve


def _print_community(paths: Mapping[str, str], runs: Lines) -> None:
    from community import Budget, scores
    from recorded import load

    spaces = [load(Path(path)) for path in paths.values()]
    budgets = [Budget(space) for space in spaces]
    orders: dict[str, list[list[list[Any]]]] = {}
    for (variant, window), found in runs.items():
        rows = []
        for path, name, space, budget in zip(paths.values(), paths, spaces, budgets, strict=True):
            answers = list(read_table(path).answers)
            lines = [line for line in found.get(name, {}).values() if line["key"][4] >= budget.evaluations]
            rows.append([space.filled([answers[i] for i in line["order"]], budget.evaluations) for line in lines])
        if all(rows):
            orders[f"{variant}, window {window}"] = rows
    sizes = ", ".join(f"{space.name} {budget.evaluations}" for space, budget in zip(spaces, budgets, strict=True))
    print(f"\ncommunity score: 0 is random search, 1 the optimum at once; evaluations of a search: {sizes}")
    for name, (mean, parts) in scores(spaces, budgets, orders).items():
        least = min(len(row) for row in orders[name])
        print(f"{mean:.3f}  " + "  ".join(f"{part:.3f}" for part in parts) + f"  {name}, {least} repeats")


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "none"
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{fmean(values):.3f} ± {error:.3f}"
