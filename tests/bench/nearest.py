"""Kernel Tuner's `hybrid_vndx` with its prediction in NumPy: the same decisions, but a search takes seconds.

Before each of up to 5,000 evaluations, the strategy predicts eight candidates from their k nearest earlier evaluations.
In Python this takes 95 % of a search's 90 s. All other strategies here take seconds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any

import numpy as np

Evaluated = Sequence[tuple[tuple[Hashable, ...], float]]
"""Evaluated configurations with their times, in order."""
COMPARED = 50
"""Number of evaluations during which Kernel Tuner's own prediction is also computed, while it is cheap."""


class Nearest:
    """Mean time of the k most similar configurations; the earliest count if several are equally similar."""

    def __init__(self, genes: int) -> None:
        self._codes: list[dict[Hashable, int]] = [{} for _ in range(genes)]
        self._known = np.empty((genes, 64), np.int32)
        self._count = 0

    def predict(self, candidate: tuple[Hashable, ...], history: Evaluated, k: int) -> float:
        """Return exactly the result of `HybridVNDX.knn_predict`.

        Args:
            candidate: Values of one configuration.
            history: Evaluations so far; it only grows between calls.
            k: Number of neighbours.
        """
        for config, _ in history[self._count :]:
            if self._count == self._known.shape[1]:
                self._known = np.concatenate([self._known, np.empty_like(self._known)], axis=1)
            self._known[:, self._count] = self._coded(config)
            self._count += 1
        differing = self._known[:, : self._count] != self._coded(candidate)[:, None]
        # Use a stable order and Python's summation; another rounding would change the chosen candidate.
        order = np.argsort(differing.sum(axis=0, dtype=np.uint8), kind="stable")[:k]
        return sum(history[at][1] for at in order) / len(order)

    def _coded(self, config: tuple[Hashable, ...]) -> np.ndarray:
        return np.array([codes.setdefault(value, len(codes)) for codes, value in zip(self._codes, config, strict=True)])


@cache
def predict_in_numpy() -> None:
    """Use `Nearest` in this process's `hybrid_vndx`; each search first compares both implementations."""
    from kernel_tuner.strategies.gen_hybrid_vndx import HybridVNDX

    plain = HybridVNDX.knn_predict

    def knn_predict(self: Any, tpl: tuple[Hashable, ...], history: Evaluated) -> float:
        if not hasattr(self, "nearest"):
            self.nearest = Nearest(len(tpl))
        predicted: float = self.nearest.predict(tpl, history, self.k)
        if len(history) <= COMPARED and predicted != plain(self, tpl, history):
            raise RuntimeError("hybrid_vndx of this Kernel Tuner gives other predictions; adapt tests/bench/nearest.py")
        return predicted

    HybridVNDX.knn_predict = knn_predict
