"""Kernel Tuner's `hybrid_vndx` with its prediction in NumPy: the same decisions, a search in seconds.

Before each of up to 5,000 evaluations the strategy predicts eight candidates from the k nearest of all that were
evaluated, compared value by value in Python: 95 % of a search's 90 s. No other strategy here takes more than seconds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any

import numpy as np

Evaluated = Sequence[tuple[tuple[Hashable, ...], float]]
"""Configurations and their times, in the order of evaluation."""
COMPARED = 50
"""Evaluations up to which Kernel Tuner's own prediction is made as well, while it costs next to nothing."""


class Nearest:
    """Mean time of the k configurations with the fewest other values; of equally near ones the earliest count."""

    def __init__(self, genes: int) -> None:
        self._codes: list[dict[Hashable, int]] = [{} for _ in range(genes)]
        self._known = np.empty((genes, 64), np.int32)
        self._count = 0

    def predict(self, candidate: tuple[Hashable, ...], history: Evaluated, k: int) -> float:
        """Return what `HybridVNDX.knn_predict` returns, to the last bit.

        Args:
            candidate: the values of one configuration.
            history: what was evaluated; it only grows from one call to the next.
            k: how many neighbours count.
        """
        for config, _ in history[self._count :]:
            if self._count == self._known.shape[1]:
                self._known = np.concatenate([self._known, np.empty_like(self._known)], axis=1)
            self._known[:, self._count] = self._coded(config)
            self._count += 1
        differing = self._known[:, : self._count] != self._coded(candidate)[:, None]
        # Stable, and summed in this order by Python: another rounds differently, and the least prediction is tried.
        order = np.argsort(differing.sum(axis=0, dtype=np.uint8), kind="stable")[:k]
        return sum(history[at][1] for at in order) / len(order)

    def _coded(self, config: tuple[Hashable, ...]) -> np.ndarray:
        return np.array([codes.setdefault(value, len(codes)) for codes, value in zip(self._codes, config, strict=True)])


@cache
def predict_in_numpy() -> None:
    """Let this process's `hybrid_vndx` predict by `Nearest`; each search begins with both ways compared."""
    from kernel_tuner.strategies.gen_hybrid_vndx import HybridVNDX

    plain = HybridVNDX.knn_predict

    def knn_predict(self: Any, tpl: tuple[Hashable, ...], history: Evaluated) -> float:
        if not hasattr(self, "nearest"):
            self.nearest = Nearest(len(tpl))
        predicted: float = self.nearest.predict(tpl, history, self.k)
        if len(history) <= COMPARED and predicted != plain(self, tpl, history):
            raise RuntimeError("this Kernel Tuner's hybrid_vndx predicts otherwise: adapt tests/bench/nearest.py")
        return predicted

    HybridVNDX.knn_predict = knn_predict
