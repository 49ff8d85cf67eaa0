"""The benchmark of the samplers: what runs without the tools that it compares with."""

from __future__ import annotations

import random
import sys

from bench.nearest import Nearest


def test_the_prediction_is_that_of_the_plain_comparison_to_the_last_bit() -> None:
    """`Nearest` predicts as Kernel Tuner's `hybrid_vndx` does: ties go to the earliest, failed configurations count."""
    draws = random.Random(4)
    genes = ((1, 2, 4, 8), (0, 1), ("row", "column"), (0.5, 1.5, 2.5), (False, True))
    nearest, history = Nearest(len(genes)), []
    for _ in range(300):
        config = tuple(draws.choice(values) for values in genes)
        history.append((config, sys.float_info.max if draws.random() < 0.01 else draws.lognormvariate(0, 1)))
        candidate = tuple(draws.choice(values) for values in genes)
        distances = [(sum(a != b for a, b in zip(candidate, known, strict=True)), time) for known, time in history]
        top = sorted(distances, key=lambda entry: entry[0])[:5]
        assert sum(time for _, time in top) / len(top) == nearest.predict(candidate, history, 5)
