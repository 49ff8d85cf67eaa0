"""Cases for comparing samplers, which check feasibility as in a live study instead of getting a list.

| name | case | |---|---| | `FILE.json`, `FILE.json.gz` | a recorded space; the constraint is membership, the figure
optimum ÷ best | | `FILE.py:SEED` | an artificial landscape: a module with `GENES`, `feasible`, `crashes`, `wide(seed)`,
`reference(seed)` | | `fit:RECORDING:STUDY` | a landscape fitted to a search's recording over the space of a study | |
`fit:RECORDING:STUDY:DRAW` | the same, fitted to trials resampled with this seed | | `…@SD` | one of these, with an
error of this standard deviation in the log time of each configuration |

The figure of a landscape is exp(reference - best log(time)). The reference is the best of several greedy descents.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evokern.declaration.feasibility import feasible_space
from evokern.declaration.genes import Config, Gene, Mutation, Parameter
from evokern.declaration.space import Space
from evokern.device.recorded.recording import read_recording
from evokern.hardware.profiles import chip
from evokern.samplers.contract import objective
from evokern.study.discovery import find_study, kernel_of
from evokern.study.trial import Outcome

VERSION = 1
"""Version of the fit; stored fits of another version are recomputed."""
DESCENTS = 12
"""Number of greedy descents for a landscape's reference."""
CHIP = "h200"
"""Chip whose limits apply to a fitted landscape."""
CERTAIN = (12, 0.95)
"""Minimum number of recorded trials, and minimum share of failures, for a value or pair that always fails."""
PENALTIES = (1.0, 3.0, 10.0, 30.0)
"""Ridge penalties to try; the one with the smallest error on held-out trials is used."""
RARE = 4
"""Minimum number of recorded trials for a pair of values to have its own term."""

Answer = tuple[Outcome, float | None]
"""Outcome, and log(time) or None."""


@dataclass(frozen=True)
class Case:
    """A case for comparing samplers."""

    name: str
    """Name in tables."""
    space: Space
    """Genes and feasibility rules."""
    answer: Callable[[Config], Answer]
    """Function that evaluates a configuration."""
    reference: float
    """log(time) at which the figure is 1."""
    random: tuple[float, ...] = ()
    """Expected best time of random search after 1, 2, … evaluations if every configuration is known."""
    budget: int = 0
    """Evaluations that random search needs for 95 % of the way from the median to the optimum; 0 if unknown."""
    exact: Callable[[Config], Answer] | None = None
    """Evaluation without the error, if there is one."""

    def figure(self, best: float | None) -> float:
        """Return the figure of a best log(time), or 0 if nothing ran."""
        return 0.0 if best is None else math.exp(self.reference - best)


@cache
def case_of(name: str, work: Path | None = None) -> Case:
    """Return a case by its name (see the table above).

    Args:
        name: Name of the case.
        work: Folder for stored fits, which take half a minute each.
    """
    if "@" in name:
        exact, _, error = name.rpartition("@")
        return with_errors(case_of(exact, work), float(error))
    if name.startswith("fit:"):
        _, recording, study, *draw = name.split(":")
        return fitted(Path(recording), study, work, int(draw[0]) if draw else None)
    if ".py:" in name:
        path, seed = name.rsplit(":", 1)
        return made_up(Path(path), int(seed))
    return recorded(Path(name))


def recorded(path: Path) -> Case:
    """Return a recorded space in which samplers check membership."""
    table = read_recording(path)
    members, answers = frozenset(table.answers), table.answers

    def answer(config: Config) -> Answer:
        found = answers[config]
        return found.outcome, None if found.outcome is not Outcome.MEASURED else math.log(found.time_us or math.nan)

    times = np.sort([a.time_us for a in answers.values() if a.outcome is Outcome.MEASURED and a.time_us])
    median, total = float(np.median(times)), len(answers)
    expected, budget = [], 0
    for drawn in range(1, total + 1):
        missed = np.cumprod(np.maximum(total - drawn - np.arange(len(times)), 0) / (total - np.arange(len(times))))
        # If none of the drawn configurations ran, use the slowest time.
        expected.append(float(-np.diff(missed, prepend=1.0) @ times + missed[-1] * times[-1]))
        if not budget and median - expected[-1] >= 0.95 * (median - times[0]):
            budget = drawn
        if budget and drawn >= budget:
            break
    space = Space(table.genes, feasible=members.__contains__)
    return Case(table.name, space, answer, math.log(times[0]), tuple(expected), budget)


def with_errors(case: Case, error: float) -> Case:
    """Return a case with errors in its log times, fixed for each configuration."""

    def answer(config: Config) -> Answer:
        outcome, value = case.answer(config)
        drawn = random.Random(config.key).gauss(0.0, error)
        return outcome, None if value is None else value + drawn

    return replace(case, name=f"{case.name}@{error:g}", answer=answer, exact=case.answer)


def made_up(path: Path, seed: int) -> Case:
    """Return an artificial landscape of a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    genes = tuple(
        (Mutation if choice else Parameter)(name, values, default) for name, values, default, choice in module.GENES
    )
    land = module.wide(seed)

    def answer(config: Config) -> Answer:
        if module.crashes(config):
            return Outcome.CRASHED, None
        return Outcome.MEASURED, land.log_time(config)

    return Case(f"{path.stem}-{seed}", Space(genes, feasible=module.feasible), answer, module.reference(seed))


@dataclass(frozen=True)
class Fit:
    """A log(time) with a term per value and per pair of values, and failing values and pairs."""

    single: Mapping[tuple[str, Any], float]
    """Terms by gene and value."""
    pair: Mapping[tuple[str, str, Any, Any], float]
    """Terms by two genes and their values."""
    fails: frozenset[tuple[str, str, Any, Any]]
    """Two genes (the same twice for one value) and the values that always failed."""
    mean: float
    """Constant term."""
    error: float
    """Standard deviation of log(time) around the fit on held-out trials."""

    def log_time(self, config: Mapping[str, Any]) -> float:
        """Return the log(time) of a configuration."""
        items = list(config.items())
        total = self.mean + sum(self.single.get(item, 0.0) for item in items)
        pair = self.pair
        for (a, x), (b, y) in itertools.combinations(items, 2):
            total += pair.get((a, b, x, y), 0.0)
        return total

    def written(self) -> dict[str, Any]:
        """Return the object for `read`."""
        single = [[*term, weight] for term, weight in self.single.items()]
        pair = [[*term, weight] for term, weight in self.pair.items()]
        fails = sorted(map(list, self.fails), key=repr)
        return {"single": single, "pair": pair, "fails": fails, "mean": self.mean, "error": self.error}

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Fit:
        """Return a stored fit."""
        single = {(a, x): weight for a, x, weight in content["single"]}
        pair = {(a, b, x, y): weight for a, b, x, y, weight in content["pair"]}
        return cls(single, pair, frozenset(map(tuple, content["fails"])), content["mean"], content["error"])

    def knows(self, config: Mapping[str, Any]) -> bool:
        """Return whether the recording contains every value of a configuration."""
        varied = {gene for gene, _ in self.single}
        return all(item in self.single or item[0] not in varied for item in config.items())

    def failing(self, config: Mapping[str, Any]) -> bool:
        """Return whether a configuration fails."""
        items = list(config.items())
        if any((a, a, x, x) in self.fails for a, x in items):
            return True
        return any((a, b, x, y) in self.fails for (a, x), (b, y) in itertools.combinations(items, 2))


def fitted(path: Path, study: str, work: Path | None, draw: int | None = None) -> Case:
    """Return a landscape fitted to a recorded search, over the whole space of a study with its constraints.

    Args:
        path: File of the recording.
        study: Study that defines the space.
        work: Folder for stored fits.
        draw: Seed for resampling the trials; None uses each once.
    """
    found = find_study(study)
    kernel = kernel_of(found)
    space = feasible_space(kernel, [kernel.problem(p) for p in found.problems], chip(CHIP), found.genes)
    state = hashlib.sha256(path.read_bytes() + repr((VERSION, space.genes, draw)).encode())
    kept = None if work is None else work / f"fit-{state.hexdigest()[:16]}.json"
    content = json.loads(kept.read_text(encoding="utf-8")) if kept is not None and kept.exists() else None
    fit = fit_of(path, draw) if content is None else Fit.read(content)

    def answer(config: Config) -> Answer:
        return (Outcome.WRONG, None) if fit.failing(config) else (Outcome.MEASURED, fit.log_time(config))

    reference = _descended(space, answer) if content is None else float(content["reference"])
    if kept is not None and content is None:
        kept.write_text(json.dumps({**fit.written(), "reference": reference}), encoding="utf-8")
    both = zip(space.starting_points, space.starting_configs(), strict=True)
    points = tuple(changes for changes, config in both if fit.knows(config))
    name = path.name.split(".")[0] + ("" if draw is None else f":{draw}")
    return Case(name, replace(space, starting_points=points), answer, reference)


def fit_of(path: Path, draw: int | None = None) -> Fit:
    """Fit ridge regressions of main effects and pairs to the log times of a recording, and find failure patterns."""
    table = read_recording(path)
    known = [(c, v) for c, a in table.answers.items() if (v := objective(a)) is not None]
    failed = [c for c, a in table.answers.items() if objective(a) is None]
    fails = _failing(table.genes, [config for config, _ in known], failed)
    if draw is not None:
        known = [known[at] for at in np.random.default_rng(draw).integers(len(known), size=len(known))]
    timed = [config for config, _ in known]
    terms = _terms(table.genes, timed)
    matrix = _columns(terms, timed)
    y = np.array([value for _, value in known])
    # The slow half says little about fast candidates, so its distances get less weight.
    middle = float(np.median(y))
    y = np.where(y > middle, middle + np.log1p(np.maximum(y - middle, 0.0)), y)
    weights, mean, error = _ridge(matrix, y)
    found = dict(zip(terms, weights.tolist(), strict=True))
    single = {(a, x): w for (a, b, x, _), w in found.items() if a == b}
    pair = {term: w for term, w in found.items() if term[0] != term[1]}
    return Fit(single, pair, fails, mean, error)


Term = tuple[str, str, Any, Any]


def _terms(genes: tuple[Gene, ...], configs: list[Config]) -> list[Term]:
    counts: dict[Term, int] = defaultdict(int)
    for config in configs:
        items = list(config.items())
        for a, x in items:
            counts[a, a, x, x] += 1
        for (a, x), (b, y) in itertools.combinations(items, 2):
            counts[a, b, x, y] += 1
    varied = {gene.name for gene in genes if len({config[gene.name] for config in configs}) > 1}
    return sorted((t for t, n in counts.items() if n >= RARE and {t[0], t[1]} <= varied), key=repr)


def _columns(terms: list[Term], configs: list[Config]) -> npt.NDArray[np.float64]:
    at = {term: column for column, term in enumerate(terms)}
    matrix = np.zeros((len(configs), len(terms)))
    for row, config in enumerate(configs):
        items = list(config.items())
        hits = [at.get((a, a, x, x)) for a, x in items]
        hits += [at.get((a, b, x, y)) for (a, x), (b, y) in itertools.combinations(items, 2)]
        matrix[row, [hit for hit in hits if hit is not None]] = 1.0
    # Shrink main effects less than pairs, because most of the data is about single values.
    return matrix * np.array([3.0 if term[0] == term[1] else 1.0 for term in terms])


def _ridge(matrix: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], float, float]:
    scale = np.where(matrix.max(axis=0) > 1.0, 3.0, 1.0)
    kernel = matrix @ matrix.T
    held = np.random.default_rng(0).random(len(y)) < 0.2

    def solved(train: npt.NDArray[np.bool_], penalty: float) -> tuple[npt.NDArray[np.float64], float]:
        own = kernel[np.ix_(train, train)].copy()
        own.flat[:: len(own) + 1] += penalty
        mean = float(y[train].mean())
        return np.linalg.solve(own, y[train] - mean), mean

    errors = []
    for penalty in PENALTIES:
        alpha, mean = solved(~held, penalty)
        errors.append(float(np.std(kernel[np.ix_(held, ~held)] @ alpha + mean - y[held])))
    alpha, mean = solved(np.ones(len(y), dtype=bool), PENALTIES[int(np.argmin(errors))])
    return (matrix.T @ alpha) * scale, mean, min(errors)


def _failing(genes: tuple[Gene, ...], timed: list[Config], failed: list[Config]) -> frozenset[Term]:
    trials: dict[Term, list[int]] = defaultdict(lambda: [0, 0])
    for configs, place in ((timed, 0), (failed, 1)):
        for config in configs:
            items = list(config.items())
            for (a, x), (b, y) in itertools.chain(((i, i) for i in items), itertools.combinations(items, 2)):
                trials[a, b, x, y][place] += 1
    least, share = CERTAIN
    certain = {t for t, (right, wrong) in trials.items() if wrong >= least and wrong >= share * (right + wrong)}
    # If all trials of a value failed, its pairs add nothing.
    alone = {(t[0], t[2]) for t in certain if t[0] == t[1]}
    return frozenset(t for t in certain if t[0] == t[1] or ((t[0], t[2]) not in alone and (t[1], t[3]) not in alone))


def _descended(space: Space, answer: Callable[[Config], Answer]) -> float:
    draws, best = random.Random(1), math.inf
    for _ in range(DESCENTS):
        while True:
            here = space.sample(draws)
            assert here is not None
            value = answer(here)[1]
            if value is not None:
                break
        while True:
            near = [(v, c.key) for c in space.neighbours(here) if (v := answer(c)[1]) is not None]
            least = min(near, default=(math.inf, ""))
            if least[0] >= value - 1e-12:
                break
            value = least[0]
            here = next(c for c in space.neighbours(here) if c.key == least[1])
        best = min(best, value)
    return best
