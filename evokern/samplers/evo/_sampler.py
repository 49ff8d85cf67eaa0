"""The sampler, and the stages of a proposal.

A proposal of trial n is a pure function of the results it may see, the configurations before it, the study's seed and
n. Work that is shared by several trials (length scales, a generation's candidates) is tied to fixed trial numbers and
uses only what was visible at them, so that it can be remembered while the process lives and is rebuilt alike by
another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from evokern.declaration.space import Space
from evokern.errors import InternalError
from evokern.samplers._prior import Prior
from evokern.samplers.contract import Explain, History, trial_seed
from evokern.samplers.evo import _first, _niche_restarts
from evokern.samplers.evo._features import features_of
from evokern.samplers.evo._generations import Generation, Generations
from evokern.samplers.evo._observations import OPERATORS, Ledger, Observations
from evokern.samplers.evo._pool import Pool
from evokern.samplers.evo._prior import PriorModel
from evokern.samplers.evo.genome import Genome, Rows
from evokern.study.trial import Proposal

LEAST_TIMES = 3
"""Times that must be known before the model speaks."""
NICHE_TURN = 6
"""Every so many trials, the least tried value of an outer gene gets the trial."""
RESTART_TURN = 4
"""Every so many trials of a stuck study, a trial is spent far from the elites."""
PATIENCE = 24
"""Least number of trials without progress after which a study is stuck."""
PATIENCE_SHARE = 5
"""Where it is more: the trials so far over this."""
PROGRESS = 0.1
"""Difference in log(time) that ends being stuck. A plateau's best times come a percent at a time, each of them only a
little better than dozens alike, while another basin is better by half."""


class EvoSampler:
    """Two-layer evolutionary sampler with a model of the time; feasible and unseen by construction.

    Args:
        space: genes with feasibility bound.
        seed: the study's seed.
        window: the study's window: the proposal of trial n sees the results of trials up to n - window.
        explain: names the constraint that turns an infeasible configuration away.
        prior: a warm start.
    """

    def __init__(
        self,
        space: Space,
        seed: int = 0,
        window: int = 1,
        explain: Explain | None = None,
        prior: Prior | None = None,
    ) -> None:
        self._genome = Genome(space)
        self._pool = Pool(self._genome, explain or (lambda config: "infeasible"), seed)
        features = features_of(self._genome)
        self._seed = seed
        self._window = max(window, 1)
        self._prior = None if prior is None else PriorModel(prior, self._genome, features)
        self._generations = Generations(self._pool, features, seed, self._window, self._prior)
        self._first = _first.size(self._genome, self._prior)
        self._ledger = Ledger(self._genome)
        self._history: History | None = None
        self._threads = ThreadpoolController()

    def propose(self, history: History, number: int) -> Proposal | None:
        """Return the candidate of one trial; None when every feasible configuration was proposed already."""
        if self._history is not history:
            self._history = history
            self._generations.forget()
        self._pool.rejections.clear()
        seen = self._ledger.read(history)
        rng = np.random.default_rng(trial_seed(self._seed, number))
        # Matrices this small lose more to threads than they gain, and one thread always rounds alike.
        with self._threads.limit(limits=1):
            found = self._propose(seen, number, rng)
        if found is None:
            return None
        row, info = found
        config = self._genome.config(row)
        if config in history.seen:
            raise InternalError(f"evo proposed {dict(config)} twice, at last for trial {number}")
        return Proposal(config, info, dict(self._pool.rejections))

    def _propose(
        self, seen: Observations, number: int, rng: np.random.Generator
    ) -> tuple[Rows, Mapping[str, Any]] | None:
        start = self._generations.start_of(number)
        if number >= self._first and seen.before(start, start - self._window).timed.sum() >= LEAST_TIMES:
            generation = self._generations.at(start, seen)
            if number > start:
                self._pool.rejections.clear()  # they were counted for the trial that began the generation
            if generation.free.any():
                return self._select(generation, seen, number)
        first = _first.propose(self._pool, seen.without_lost(), self._prior, rng)
        if first is None:
            return None
        return first[0][0], {"operator": first[1]}

    def _select(
        self,
        generation: Generation,
        seen: Observations,
        number: int,
    ) -> tuple[Rows, Mapping[str, Any]]:
        free = generation.free
        at = np.searchsorted(seen.numbers, generation.selected)
        plan = self._plan_of(generation, number)
        over = None if plan is None else plan.restart.best
        forecast = generation.ensemble.forecast(seen.values[at], seen.finished[at], over)
        valid = np.log(generation.factor + 1e-9)
        score = np.where(free, np.log(forecast.improvement + 1e-300) + valid, -np.inf)
        extra: dict[str, Any] = {}
        if plan is not None:
            score = np.where(np.isin(generation.keys, plan.keys), score, -np.inf)
            extra = self._restart_info(generation, plan.restart, seen, number)
        elif turn := (
            self._niche_turn(generation, seen, number, free) or self._restart_turn(generation, seen, number, free)
        ):
            reason, among = turn
            own = -forecast.optimism + valid if reason == "restart" else score
            score = np.where(among, own, -np.inf)
            extra = {"turn": reason}
        chosen = int(np.argmax(score))
        made = generation.candidates
        info: dict[str, Any] = {
            "operator": OPERATORS[made.operators[chosen]],
            "parents": [int(n) for n in made.parents[chosen] if n >= 0],
            "predicted_us": round(float(np.exp(np.clip(forecast.log_time[chosen], -50, 50))), 4),
            **extra,
        }
        return made.rows[chosen], info

    def _plan_of(self, generation: Generation, number: int) -> _niche_restarts.NicheRestartPlan | None:
        """Return the plan of the niche restart to which a trial belongs, if to one and something is left of it."""
        slot = _niche_restarts.slot_of(number, self._window)
        plan = None if slot is None else generation.plans.get(slot)
        if plan is None or not np.isin(generation.keys[generation.free], plan.keys).any():
            return None
        return plan

    def _restart_info(
        self, generation: Generation, restart: _niche_restarts.NicheRestart, seen: Observations, number: int
    ) -> dict[str, Any]:
        """Return what is recorded of a trial of a niche restart."""
        gene = self._genome.genes[restart.niche.gene]
        slot, root = _niche_restarts.slot_of(number, self._window), restart.root
        if root is None:
            # It begins in this generation: with this trial, unless an earlier one began it.
            begun = seen.roots[(seen.slots == slot) & (seen.numbers >= generation.start)]
            root = int(begun[0]) if len(begun) else number
        # The stored word for a niche restart, which `show --trial` puts in its own.
        turn = f"excursion {gene.name}={gene.values[restart.niche.value]}"
        return {"turn": turn, "root": root, "slot": slot, "held": gene.name}

    def _niche_turn(
        self, generation: Generation, seen: Observations, number: int, free: npt.NDArray[np.bool_]
    ) -> tuple[str, npt.NDArray[np.bool_]] | None:
        """Return the candidates with the outer gene's value that had fewest trials, when it is its turn."""
        outer = [i for i, gene in enumerate(self._genome.genes) if gene.layer == "mutation" and len(gene.values) > 1]
        if not outer or number % NICHE_TURN:
            return None
        rows = generation.candidates.rows
        tried = [(int((seen.rows[:, i] == v).sum()), i, v) for i in outer for v in range(int(self._genome.sizes[i]))]
        for _, index, value in sorted(tried):
            among = free & generation.sound & (rows[:, index] == value)
            if among.any():
                gene = self._genome.genes[index]
                return f"niche {gene.name}={gene.values[value]}", among
        return None

    def _restart_turn(
        self, generation: Generation, seen: Observations, number: int, free: npt.NDArray[np.bool_]
    ) -> tuple[str, npt.NDArray[np.bool_]] | None:
        """Return the candidates far from the best trial, when the study is stuck and it is their turn."""
        if self._pool.everything is None or number % RESTART_TURN:
            return None
        if not seen.stuck(PROGRESS, PATIENCE, PATIENCE_SHARE):
            return None
        best = int(np.nanargmin(seen.values))
        apart = (generation.candidates.rows != seen.rows[best]).sum(axis=1)
        among = free & generation.sound & (apart >= min(len(self._genome) / 2, apart[free].max()))
        return ("restart", among) if among.any() else None
