"""Expected times at shapes that were not sampled, so that a choice and a dispatch do not fit the sampled shapes only.

The time of a variant is relative to the fastest code at the shape. Its expected logarithm is the mean of a Gaussian
process over the logarithms of the sizes. (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
equation 2.23.) This mean averages over similar shapes. A variant that is the fastest at one shape, but slow at shapes
like it, is therefore expected to be slow there.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from evokern.pack.choice import Sample, sizes_of
from evokern.pack.tree import CAPABILITY, MODE

RECOMBINED = 128
"""Number of shapes whose fields come from different sampled shapes."""
LENGTH = 1.5
"""Distance over which times become independent, as a natural logarithm of sizes."""
NOISE = 0.2
"""Variance of the part of a time that similar shapes do not share, relative to the variance of the shared part. Between
0.05 and 0.2, and lengths between 1 and 1.5, the loss at shapes that were left out changed by less than 1 %."""
MOST_VARIANCE = 0.3
"""Largest variance of the shared part of a time that is expected, relative to its variance without any sample."""
MOST_LOG = 1.0
"""Largest logarithm of a relative time; all slower variants count as equally slow."""
EXACT = 6
"""Decimals of an expected logarithm, so that another processor's rounding does not change a package."""

Shape = Mapping[str, int]
"""Fields, architecture and mode, by their names in a tree."""


def recombined(samples: Sequence[Sample]) -> Iterator[tuple[Shape, float]]:
    """Yield other shapes of the same architecture and mode, each field with the value of one of the sampled shapes.

    The same samples in another order give the same shapes.

    Yields:
        a shape, and the smallest weight of the samples that contribute fields.
    """
    groups: dict[tuple[int, int], list[Sample]] = defaultdict(list)
    for one in sorted(samples, key=lambda sample: sorted(sample.values.items())):
        groups[one.values[CAPABILITY], one.values[MODE]].append(one)
    rng = random.Random("recombined")
    seen = {tuple(one.values.items()) for one in samples}
    for _ in range(RECOMBINED):
        (group,) = rng.choices([*groups.values()], [len(one) for one in groups.values()])
        parts = {name: rng.choice(group) for name in group[0].values}
        made = {name: one.values[name] for name, one in parts.items()}
        if tuple(made.items()) not in seen:
            seen.add(tuple(made.items()))
            yield made, min(one.weight for one in parts.values())


def expected_samples(samples: Sequence[Sample], others: Sequence[tuple[Shape, float, Collection[int]]]) -> list[Sample]:
    """Return samples with expected times: at each sampled shape, as if it had not been sampled, and at other shapes.

    Variants whose machine code runs no other sampled shape have no expected time. If all weights are equal, both parts
    have the weight of the given samples in total.

    Args:
        samples: shapes with measured times.
        others: further shapes, with the weight of one and the variants that run there.
    """
    sizes = sizes_of(samples, samples[0].values)

    def group(shape: Shape) -> tuple[int, ...]:
        return tuple(value for name, value in shape.items() if name not in sizes)

    groups: dict[tuple[int, ...], list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.best_us is not None:
            groups[group(sample.values)].append(sample)
    models = {key: _Model(same, sizes) for key, same in groups.items()}
    left_out = [one for key, same in groups.items() for one in models[key].left_out(same)]
    part = len(samples) / max(1, len(others))
    further = [models[key].at(s, runs, weight * part) for s, weight, runs in others if (key := group(s)) in models]
    return [*left_out, *further]


class _Model:
    """Expected times of variants and baselines at shapes of one architecture and mode."""

    def __init__(self, samples: Sequence[Sample], sizes: Sequence[str]) -> None:
        self._sizes = sizes
        points = np.array([self._point(sample.values) for sample in samples])
        self._own: dict[int, _Process] = {}
        self._other: dict[int, _Process] = {}
        for table, known in ((self._own, [s.times for s in samples]), (self._other, [s.baselines for s in samples])):
            for one in sorted({one for times in known for one in times}):
                rows = [row for row, times in enumerate(known) if one in times]
                relative = [math.log(known[row][one] / (samples[row].best_us or math.inf)) for row in rows]
                table[one] = _Process(rows, points[rows], np.minimum(relative, MOST_LOG))

    def _point(self, shape: Shape) -> list[float]:
        return [math.log(shape[name]) for name in self._sizes]

    def left_out(self, samples: Sequence[Sample]) -> Iterator[Sample]:
        """Yield the samples of the model, each with times that the others let expect."""
        for row, sample in enumerate(samples):
            own, other = (
                {one: process.without[row] for one, process in table.items() if row in process.without}
                for table in (self._own, self._other)
            )
            yield _sample(sample.values, own, other, sample.weight)

    def at(self, shape: Shape, runs: Collection[int], weight: float) -> Sample:
        """Return a shape with the expected times of the variants that run there."""
        point = np.array(self._point(shape))
        own, other = (
            {one: value for one, process in table if (value := process.at(point)) is not None}
            for table in ([pair for pair in self._own.items() if pair[0] in runs], self._other.items())
        )
        return _sample(shape, own, other, weight)


class _Process:
    """A Gaussian process with a constant mean."""

    def __init__(self, rows: Sequence[int], points: np.ndarray, values: np.ndarray) -> None:
        self._points, self._mean = points, float(values.mean())
        self._inverse = np.linalg.inv(self._like(points[:, None]) + NOISE * np.eye(len(points)))
        self._factors = self._inverse @ (values - self._mean)
        left_out = 1.0 / np.diag(self._inverse)  # variance; Rasmussen and Williams, equation 5.12
        expected = np.where(left_out - NOISE <= MOST_VARIANCE, values - self._factors * left_out, values)
        self.without = dict(zip(rows, expected.tolist(), strict=True)) if len(rows) > 1 else {}
        """Row of a sample → value there that the other samples let expect, if they are near, and the measured one
        otherwise; empty if there are no other samples."""

    def _like(self, point: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(-0.5 * ((point - self._points) ** 2).sum(axis=-1) / LENGTH**2))

    def at(self, point: np.ndarray) -> float | None:
        """Return the expected value at a point; None if no sample is near."""
        like = self._like(point)
        if 1.0 - float(like @ self._inverse @ like) > MOST_VARIANCE:
            return None
        return self._mean + float(like @ self._factors)


def _sample(shape: Shape, own: Mapping[int, float], other: Mapping[int, float], weight: float) -> Sample:
    """Return a sample from logarithms of relative times; the ratios have no interval, because none was measured."""
    times, baselines = ({one: math.exp(round(log, EXACT)) for one, log in table.items()} for table in (own, other))
    found = Sample(shape, times, baselines, weight)
    if (fastest := found.baseline_us) is None:
        return found
    return replace(found, ratios={one: (time / fastest, time / fastest) for one, time in times.items()})
