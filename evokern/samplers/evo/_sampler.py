"""Sampler `evo`, with the stages of a proposal.

The proposal of trial n is a pure function of the visible results, the earlier configurations, the study's seed and n.
Work shared by several trials (length scales, a generation's candidates) depends on fixed trial numbers and on the
results visible at these. It can therefore be cached, and another process reproduces it exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from evokern.declaration.genes import Config
from evokern.declaration.space import Space
from evokern.errors import InternalError
from evokern.samplers.contract import Explain, History, Prior, TrialSchedule, trial_seed
from evokern.samplers.evo import _first
from evokern.samplers.evo._features import features_of
from evokern.samplers.evo._generations import Generation, Generations
from evokern.samplers.evo._observations import OPERATORS, Ledger, Observations
from evokern.samplers.evo._pool import Pool
from evokern.samplers.evo._prior import StudyPrior, study_prior
from evokern.samplers.evo._validity import Exploration
from evokern.samplers.genome import Genome, Rows
from evokern.study.trial import Proposal

LIKELY = 8
"""Number of candidates reported as likely next proposals. About 60 % of proposals are among the next eight candidates
of an earlier one (docs/lab/2026-11-26-sampler.md)."""


class EvoSampler:
    """Two-layer evolutionary sampler with a model of the time; all proposals are feasible and new.

    Args:
        space: Genes with their feasibility rules.
        seed: Seed of the study.
        window: Schedule for the number of trials in flight, or a constant number. The proposal of trial n sees the
            results of trials up to n - window(n).
        explain: Function that names the constraint violated by an infeasible configuration.
        prior: Warm start.
    """

    def __init__(
        self,
        space: Space,
        seed: int = 0,
        window: TrialSchedule | int = 1,
        explain: Explain | None = None,
        prior: Prior | None = None,
    ) -> None:
        in_flight = TrialSchedule.constant(window) if isinstance(window, int) else window
        self._genome = Genome(space)
        self._pool = Pool(self._genome, explain or (lambda config: "infeasible"))
        self._features = features = features_of(self._genome)
        self._seed = seed
        self._prior: StudyPrior | None = None
        if prior is not None:
            self._prior, features = study_prior(prior, self._genome, features)
        self._generations = Generations(self._pool, features, seed, in_flight, self._prior)
        self._first = _first.size(self._pool, self._prior)
        self._ledger = Ledger(self._genome, in_flight)
        self._history: History | None = None
        self._threads = ThreadpoolController()
        self._likely: Rows | None = None
        self._latest: tuple[Observations, int, Proposal] | None = None
        self._foreseen: dict[int, Config] = {}

    def propose(self, history: History, number: int) -> Proposal | None:
        """Return the candidate of a trial, or None if no feasible configuration is left."""
        if self._history is not history:
            self._history = history
            self._generations.clear()
            self._foreseen = {}
        self._pool.rejections.clear()
        self._likely = None
        seen = self._ledger.read(history)
        # For small matrices, one thread is faster, and its rounding is reproducible.
        with self._threads.limit(limits=1):
            found = self._propose(seen, number)
        if found is None:
            return None
        row, info = found
        config = self._genome.config(row)
        self._latest = seen, number, Proposal(config, info)
        if config in history.seen:
            raise InternalError(f"evo proposed {dict(config)} again for trial {number}")
        return Proposal(config, info, dict(self._pool.rejections))

    def likely(self) -> list[Config]:
        """Return the next-best candidates of the latest proposal, or the remaining first generation."""
        if self._likely is not None:
            return [self._genome.config(row) for row in self._likely]
        if self._latest is None:
            return []
        seen, number, proposal = self._latest
        if self._foreseen.pop(number, None) != proposal.config:
            self._foreseen = self._rest_of_first(seen, number, proposal)
        return [self._foreseen[later] for later in sorted(self._foreseen)]

    def _rest_of_first(self, seen: Observations, number: int, proposal: Proposal) -> dict[int, Config]:
        """Return the remaining trials of the first generation; only lost trials change them."""
        found: dict[int, Config] = {}
        for later in range(number + 1, min(self._first, number + 1 + LIKELY)):
            seen = self._ledger.with_pending(seen, later - 1, proposal)
            with self._threads.limit(limits=1):
                first = self._of_first(seen, later)
            if first is None:
                break
            proposal = Proposal(self._genome.config(first[0]), first[1])
            found[later] = proposal.config
        return found

    def _propose(self, seen: Observations, number: int) -> tuple[Rows, Mapping[str, Any]] | None:
        start = self._generations.start_of(number)
        generation = self._generations.at(start, seen) if number >= self._first else None
        if generation is not None:
            if number > start:
                self._pool.rejections.clear()  # already counted for the first trial of the generation
            if generation.free.any():
                return self._select(generation, seen, number)
        return self._of_first(seen, number)

    def _of_first(self, seen: Observations, number: int) -> tuple[Rows, Mapping[str, Any]] | None:
        rng = np.random.default_rng(trial_seed(self._seed, number))
        seen = seen.without_lost()
        nothing_right = number >= self._first and seen.failed.any() and not seen.timed.any()
        exploration = Exploration(self._genome, seen) if nothing_right else None
        first = _first.propose(self._pool, self._features, seen, self._prior, rng, exploration)
        if first is None:
            return None
        return first[0][0], {"operator": first[1]}

    def _select(self, generation: Generation, seen: Observations, number: int) -> tuple[Rows, Mapping[str, Any]]:
        forecast = generation.model.forecast(generation.candidates)
        score = np.where(generation.free, forecast.score + generation.weight, -np.inf)
        best_first = np.argsort(-score, kind="stable")[: min(1 + LIKELY, int(generation.free.sum()))]
        chosen, made = int(best_first[0]), generation.made
        self._likely = made.rows[best_first[1:]]
        info: dict[str, Any] = {
            "operator": OPERATORS[made.operators[chosen]],
            "parents": [int(n) for n in made.parents[chosen] if n >= 0],
            "predicted_us": round(float(np.exp(np.clip(forecast.log_time[chosen], -50, 50))), 4),
        }
        return made.rows[chosen], info
