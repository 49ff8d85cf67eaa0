"""Gaussian process regression over feature groups, length scales by maximum a posteriori, grown row by row.

The covariance is a Matérn 5/2 of all groups together, in which every choice may matter beside every other, and a linear
part, in which each choice adds its own to log(time) wherever it is made: most of what few trials can tell.

Formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning, sections 2.2 (algorithm 2.1), 4.2 and 5.4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri, dtrtrs
from scipy.optimize import minimize

from evokern.samplers.evo._features import Features, Floats

LOG_NOISE = (-6.0, 2.0)
"""Mean and standard deviation of the prior of log(noise variance / signal variance)."""
LOG_WEIGHT = -1.0
"""Prior mean of a group's log inverse squared length scale."""
LOG_WEIGHT_PRODUCT = -3.0
"""The same for a product of two genes: rarer, so flatter."""
LOG_WEIGHT_BARE = -4.0
"""The same for the bare names of a number: near values are seldom unrelated. Under a wide prior, fits to
250 trials each of five recorded kernels put 22 of 24 of them between -2 and -7."""
JITTER = 1e-6
"""Added to the diagonal, in units of the signal variance."""


def matern(squared: Floats) -> Floats:
    """Return the Matérn 5/2 correlation at squared distances."""
    scaled = np.sqrt(5.0 * np.maximum(squared, 0.0))
    polynomial = scaled * (1.0 / 3.0)
    polynomial += 1.0
    polynomial *= scaled
    polynomial += 1.0
    correlation: Floats = polynomial * np.exp(-scaled)
    return correlation


def prior_weights(features: Features) -> Floats:
    """Return the prior mean of the log weights, and of the log noise behind them."""
    kinds = [features.product, features.bare]
    return np.append(np.select(kinds, [LOG_WEIGHT_PRODUCT, LOG_WEIGHT_BARE], LOG_WEIGHT), LOG_NOISE[0])


def fit_weights(features: Features, columns: Floats, y: Floats, spread: float, iterations: int = 15) -> Floats:
    """Return log weights of the groups, and log noise, that are most probable given data.

    Args:
        features: which column belongs to which group.
        columns: features of the data, shape (n, columns).
        y: standardised targets, shape (n,).
        spread: prior standard deviation of the log weights.
        iterations: of L-BFGS, from the prior mean, so that the answer depends on the data alone.
    """
    start = prior_weights(features)
    spreads = np.append(np.full(len(features.product), spread), LOG_NOISE[1])
    n, count = len(y), len(features.product)
    distances = np.zeros((count, n, n))
    for column, group in zip(columns.T, features.groups, strict=True):
        difference = column[:, None] - column[None]
        distances[group] += difference * difference
    flat = distances.reshape(count, n * n)

    def loss(logs: Floats) -> tuple[float, Floats]:
        weights, noise = np.exp(logs[:-1]), np.exp(logs[-1])
        scaled = np.sqrt(5.0 * (weights @ flat))
        decay = np.exp(-scaled)
        covariance = ((1.0 + scaled + scaled * scaled / 3.0) * decay).reshape(n, n)
        covariance.flat[:: n + 1] += noise + JITTER
        factor, failed = dpotrf(covariance, lower=1)
        if failed:
            return 1e10, np.zeros_like(logs)
        lower, _ = dpotri(factor, lower=1)
        inverse = np.tril(lower) + np.tril(lower, -1).T
        alpha = inverse @ y
        signal = max(float(y @ alpha) / n, 1e-12)
        outer = 0.5 * (inverse - np.outer(alpha, alpha) / signal)
        by_distance = -(5.0 / 6.0) * (1.0 + scaled) * decay
        gradient = np.append((flat @ (outer.ravel() * by_distance)) * weights, np.trace(outer) * noise)
        off = (logs - start) / spreads
        value = 0.5 * n * np.log(signal) + np.log(np.diag(factor)).sum() + 0.5 * off @ off
        return float(value), gradient + off / spreads

    bounds = [(-9.0, 6.0)] * count + [(-12.0, -1.0)]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": iterations})
    best: Floats = found.x
    return best


class Process:
    """A posterior over fixed candidates, conditioned on rows that are added one by one.

    Where the rows lie decides the variance; the targets come later, in `predict`, so that a pending row narrows the
    variance around it before its result is known.
    """

    def __init__(
        self, features: Features, logs: Floats, rows: Floats, candidates: Floats, room: int, linear: float = 0.5
    ) -> None:
        """Condition on rows.

        Args:
            features: columns and groups.
            logs: log weights of the groups and log noise.
            rows: columns of the rows, shape (n, columns).
            candidates: columns of the candidates.
            room: rows that may be added later.
            linear: share of the signal variance that is the linear part's.
        """
        scale = np.sqrt(np.exp(logs[:-1]))[features.groups]
        self._noise = float(np.exp(logs[-1])) + JITTER
        self._scale, self._centre = scale, features.centre * scale
        # The linear part's variance is 1 on average over all combinations, as the other part's is everywhere.
        self._linear = linear
        self._unit = linear / max(float(features.variance @ (scale * scale)), 1e-12)
        self._count = n = len(rows)
        self._rows = np.zeros((n + room, len(scale)))
        self._rows[:n] = self._scaled(rows)
        self._candidates = self._scaled(candidates)
        # Squared norms, which every distance needs.
        self._row_norms = np.zeros(n + room)
        self._row_norms[:n] = _norms(self._rows[:n])
        self._candidate_norms = _norms(self._candidates)
        covariance = self._covariance(self._rows[:n], self._row_norms[:n], self._rows[:n], self._row_norms[:n])
        covariance.flat[:: n + 1] += self._noise
        self._factor = np.zeros((n + room, n + room))
        self._factor[:n, :n] = np.linalg.cholesky(covariance)
        self._cross = np.zeros((n + room, len(candidates)))
        self._cross[:n] = self._covariance(self._rows[:n], self._row_norms[:n], self._candidates, self._candidate_norms)
        self._solved = np.zeros_like(self._cross)
        self._solved[:n] = _solve(self._factor[:n, :n], self._cross[:n])
        # What is left of each candidate's variance.
        self._left = self._variance(self._candidate_norms) - np.einsum("ij,ij->j", self._solved[:n], self._solved[:n])

    def _scaled(self, columns: Floats) -> Floats:
        scaled: Floats = columns * self._scale - self._centre
        return scaled

    def _covariance(self, one: Floats, one_norms: Floats, other: Floats, other_norms: Floats) -> Floats:
        inner = one @ other.T
        squared = one_norms[:, None] + other_norms[None] - 2.0 * inner
        return (1.0 - self._linear) * matern(squared) + self._unit * inner

    def _variance(self, norms: Floats) -> Floats:
        variance: Floats = (1.0 - self._linear) + self._unit * norms
        return variance

    def add(self, row: Floats) -> None:
        """Condition on one more row, shape (columns,)."""
        n = self._count
        scaled = self._scaled(row)[None]
        norms = _norms(scaled)
        known = self._covariance(self._rows[:n], self._row_norms[:n], scaled, norms)[:, 0]
        link = _solve(self._factor[:n, :n], known)
        own = np.sqrt(max(float(self._variance(norms)[0]) + self._noise - float(link @ link), self._noise))
        self._rows[n], self._row_norms[n] = scaled[0], norms[0]
        self._factor[n, :n], self._factor[n, n] = link, own
        self._cross[n] = self._covariance(scaled, norms, self._candidates, self._candidate_norms)[0]
        self._solved[n] = (self._cross[n] - link @ self._solved[:n]) / own
        self._left = self._left - self._solved[n] * self._solved[n]
        self._count = n + 1

    def predict(self, y: Floats) -> tuple[Floats, Floats]:
        """Return mean and standard deviation at every candidate.

        Args:
            y: targets of the first rows that were added, shape (k,). The rows after them are pending: believed to be
                what the model says of them, which leaves the mean as it is and narrows the variance (the kriging
                believer of Ginsbourger et al. 2010).
        """
        known = self._factor[: len(y), : len(y)]
        half = _solve(known, y)
        weights = _solve(known, half, transposed=True)
        mean: Floats = weights @ self._cross[: len(y)]
        signal = max(float(half @ half) / max(len(y), 1), 1e-12)
        return mean, np.sqrt(np.maximum(self._left, 1e-10) * signal)


def _norms(rows: Floats) -> Floats:
    norms: Floats = np.einsum("ij,ij->i", rows, rows)
    return norms


def _solve(lower: Any, right: Any, *, transposed: bool = False) -> Any:
    # LAPACK itself: at these sizes SciPy's checks cost more than the solution.
    return dtrtrs(lower, right, lower=1, trans=int(transposed))[0]
