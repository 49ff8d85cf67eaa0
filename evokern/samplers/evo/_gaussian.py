"""Gaussian process regression over feature groups, with maximum a posteriori length scales and row-by-row updates.

The covariance is a Matérn 5/2 term over all groups plus a linear term. In the Matérn term, every choice can interact
with every other. In the linear term, each choice adds a constant to log(time), which is most of what a few trials can
show.

Formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning, sections 2.2 (algorithm 2.1), 4.2 and 5.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri, dtrtrs
from scipy.optimize import minimize

from evokern.samplers.evo._features import Features, Floats

LOG_NOISE = (-6.0, 2.0)
"""Prior mean and standard deviation of log(noise variance / signal variance)."""
LOG_WEIGHT = -1.0
"""Prior mean of a group's log inverse squared length scale."""
LOG_WEIGHT_BARE = -4.0
"""Prior mean for the names of a numeric gene, because near values are rarely unrelated. Fits to 250 trials each of five
recorded kernels, with a wide prior, put 22 of 24 such weights between -2 and -7."""
LOG_WEIGHT_EXPECTED = 1.0
"""Prior mean for expected times from another study, which initially count more than any gene."""
LOG_WEIGHT_PROBLEMS = -3.0
"""Prior mean for the problems of other studies; initially, a problem at distance 1 has a correlation of 0.98."""
JITTER = 1e-6
"""Addition to the diagonal, in units of the signal variance."""


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
    """Return the prior mean of the log weights, followed by the prior mean of the log noise."""
    weights = np.where(features.bare, LOG_WEIGHT_BARE, LOG_WEIGHT)
    if features.problems:
        weights[-1] = LOG_WEIGHT_PROBLEMS
    if features.expected is not None:
        weights[-1] = LOG_WEIGHT_EXPECTED
    return np.append(weights, LOG_NOISE[0])


def fit_weights(features: Features, columns: Floats, y: Floats, spread: float, iterations: int = 15) -> Floats:
    """Return the most probable log weights of the groups and the most probable log noise for the given data.

    Args:
        features: Columns and groups.
        columns: Features of the data, shape (n, columns).
        y: Standardised targets, shape (n,).
        spread: Prior standard deviation of the log weights.
        iterations: Iterations of L-BFGS, which starts from the prior mean so that the result depends only on the data.
    """
    start = prior_weights(features)
    spreads = np.append(np.full(len(features.bare), spread), LOG_NOISE[1])
    n, count = len(y), len(features.bare)
    # Store each pair once in single precision, because reading the distances dominates the time of a fit.
    left, right = np.tril_indices(n, -1)
    distances = np.zeros((count, len(left)), dtype=np.float32)
    for column, group in zip(columns.T.astype(np.float32), features.groups, strict=True):
        difference = column[left] - column[right]
        distances[group] += difference * difference

    def loss(logs: Floats) -> tuple[float, Floats]:
        weights, noise = np.exp(logs[:-1]), np.exp(logs[-1])
        scaled = np.sqrt(5.0 * (weights.astype(np.float32) @ distances).astype(np.float64))
        decay = np.exp(-scaled)
        covariance = np.zeros((n, n))
        covariance[left, right] = (1.0 + scaled + scaled * scaled / 3.0) * decay
        covariance.flat[:: n + 1] = 1.0 + noise + JITTER
        factor, failed = dpotrf(covariance, lower=1)
        if failed:
            return 1e10, np.zeros_like(logs)
        lower, _ = dpotri(factor, lower=1)
        inverse = np.tril(lower) + np.tril(lower, -1).T
        alpha = inverse @ y
        signal = max(float(y @ alpha) / n, 1e-12)
        outer = 0.5 * (inverse[left, right] - alpha[left] * alpha[right] / signal)
        by_distance = -(5.0 / 3.0) * (1.0 + scaled) * decay  # each pair counts for both orders
        trace = 0.5 * (np.trace(inverse) - float(alpha @ alpha) / signal)
        by_weight = (distances @ (outer * by_distance).astype(np.float32)).astype(np.float64)
        gradient = np.append(by_weight * weights, trace * noise)
        off = (logs - start) / spreads
        value = 0.5 * n * np.log(signal) + np.log(np.diag(factor)).sum() + 0.5 * off @ off
        return float(value), gradient + off / spreads

    bounds = [(-9.0, 6.0)] * count + [(-12.0, -1.0)]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": iterations})
    best: Floats = found.x
    return best


class Candidates:
    """Candidates in the form that a process needs for queries."""

    def __init__(self, scaled: Floats, norms: Floats, cross: Floats, solved: Floats, left: Floats) -> None:
        self.scaled = scaled
        """Scaled columns, shape (m, columns)."""
        self.norms = norms
        """Squared norms of the scaled columns."""
        self.cross = cross
        """Covariance with each row of the process, shape (rows and reserve, m)."""
        self.solved = solved
        """Covariance, multiplied by the inverse Cholesky factor."""
        self.left = left
        """Posterior variance in units of the signal variance."""

    def take(self, kept: Any) -> Candidates:
        """Return a subset, by index or mask."""
        return Candidates(
            self.scaled[kept], self.norms[kept], self.cross[:, kept], self.solved[:, kept], self.left[kept]
        )

    @staticmethod
    def joined(parts: Sequence[Candidates]) -> Candidates:
        """Return the concatenation of several parts."""
        return Candidates(
            np.concatenate([part.scaled for part in parts]),
            np.concatenate([part.norms for part in parts]),
            np.concatenate([part.cross for part in parts], axis=1),
            np.concatenate([part.solved for part in parts], axis=1),
            np.concatenate([part.left for part in parts]),
        )


class Process:
    """Posterior distribution, conditioned on rows; pending rows can be added one at a time.

    A pending row is assumed to have its predicted value. This leaves the mean unchanged and reduces the variance around
    the row (the kriging believer of Ginsbourger et al. 2010).
    """

    def __init__(self, features: Features, logs: Floats, rows: Floats, y: Floats, room: int, linear: float) -> None:
        # words: `room` is a parameter name
        """Condition the process on rows.

        Args:
            features: Columns and groups.
            logs: Log weights of the groups and log noise.
            rows: Columns of the rows, shape (n, columns).
            y: Targets of the first k rows, shape (k,); the others are pending.
            room: Number of rows that can be added later.
            linear: Share of the linear part in the signal variance.
        """
        scale = np.sqrt(np.exp(logs[:-1]))[features.groups]
        self._noise = float(np.exp(logs[-1])) + JITTER
        self._scale, self._centre = scale, features.centre * scale
        # Both parts have an average variance of 1 over all combinations.
        self._linear = linear
        self._unit = linear / max(float(features.variance @ (scale * scale)), 1e-12)
        self._count = n = len(rows)
        self._rows = np.zeros((n + room, len(scale)))
        self._rows[:n] = self._scaled(rows)
        # Cache squared norms, which every distance needs.
        self._norms = np.zeros(n + room)
        self._norms[:n] = _norms(self._rows[:n])
        covariance = self._covariance(self._rows[:n], self._norms[:n], self._rows[:n], self._norms[:n])
        covariance.flat[:: n + 1] += self._noise
        # The factor is padded with an identity matrix, so that LAPACK can use the whole array without a copy.
        self._factor = np.asfortranarray(np.eye(n + room))
        self._factor[:n, :n] = np.linalg.cholesky(covariance)
        known = self._factor[: len(y), : len(y)]
        half = _solve(known, y)
        self._weights = _solve(known, half, transposed=True)
        self._signal = max(float(half @ half) / max(len(y), 1), 1e-12)

    def candidates(self, columns: Floats) -> Candidates:
        """Return candidates prepared for queries.

        Args:
            columns: Columns of the candidates, shape (m, columns).
        """
        n, room = self._count, len(self._rows) - self._count
        scaled = self._scaled(columns)
        norms = _norms(scaled)
        cross = self._covariance(self._rows[:n], self._norms[:n], scaled, norms)
        solved = _solve(self._factor[:n, :n], cross) if len(columns) else cross
        left = self._variance(norms) - np.einsum("ij,ij->j", solved, solved)
        more = np.zeros((room, len(columns)))
        return Candidates(scaled, norms, np.concatenate([cross, more]), np.concatenate([solved, more]), left)

    def add(self, row: Floats, candidates: Candidates) -> None:
        """Condition on one more pending row, shape (columns,), and update the candidates."""
        n = self._count
        scaled = self._scaled(row)[None]
        norms = _norms(scaled)
        known = np.zeros(len(self._rows))
        known[:n] = self._covariance(self._rows[:n], self._norms[:n], scaled, norms)[:, 0]
        link = _solve(self._factor, known)[:n]
        own = np.sqrt(max(float(self._variance(norms)[0]) + self._noise - float(link @ link), self._noise))
        self._rows[n], self._norms[n] = scaled[0], norms[0]
        self._factor[n, :n], self._factor[n, n] = link, own
        candidates.cross[n] = self._covariance(scaled, norms, candidates.scaled, candidates.norms)[0]
        candidates.solved[n] = (candidates.cross[n] - link @ candidates.solved[:n]) / own
        candidates.left -= candidates.solved[n] * candidates.solved[n]
        self._count = n + 1

    def predict(self, candidates: Candidates) -> tuple[Floats, Floats]:
        """Return the mean and standard deviation at every candidate."""
        mean: Floats = self._weights @ candidates.cross[: len(self._weights)]
        return mean, np.sqrt(np.maximum(candidates.left, 1e-10) * self._signal)

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


def _norms(rows: Floats) -> Floats:
    norms: Floats = np.einsum("ij,ij->i", rows, rows)
    return norms


def _solve(lower: Any, right: Any, *, transposed: bool = False) -> Any:
    # Call LAPACK directly, because SciPy's checks take longer than the solution at these sizes.
    return dtrtrs(lower, right, lower=1, trans=int(transposed))[0]
