"""Niche restarts: what a stuck search of a large space spends half its trials on.

A model that knows one basin well judges every other by candidates that nobody has tuned, and never goes there. A
niche restart does: it holds one gene at a value with which nothing good was seen yet, tunes the others, and
expects improvement over the best with that value, so that it may climb before it is compared. It ends when it stops
climbing; the next one holds another value: one that had few trials and is not far behind. Several run side by side, so
that results arrive between the trials of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from evokern.samplers.evo._breeding import Candidates, niche_children, screened
from evokern.samplers.evo._features import Floats
from evokern.samplers.evo._observations import Observations
from evokern.samplers.evo._pool import Pool
from evokern.samplers.evo.genome import Keys, Rows

LEAST_SLOTS: Final = 4
"""Niche restarts at a time in a small window."""
TURN: Final = 2
"""Every so many trials of a stuck study belong to niche restarts."""
PATIENCE: Final = 8
"""Own results without a better one after which a niche restart ends."""
STUCK: Final = 32
"""Least trials without progress after which a study is stuck."""
STUCK_SHARE: Final = 8
"""Where it is more: the trials so far over this."""
PROGRESS: Final = 0.01
"""Difference in log(time) below which a better time is noise."""
NEAR: Final = 0.03
"""Difference in log(time) up to which a niche's best is as good as the best: expected improvement deals with it."""
REPEAT_PENALTY: Final = 3.0
"""How much less a niche deserves another restart after one."""
MATES: Final = 6
"""Best trials that a niche restart's best is crossed with."""
CHILDREN: Final = 64
"""Children of a niche restart's best that are made for a generation."""
KEPT: Final = 10
"""Feasible ones that are kept."""
TRIES: Final = 3
"""Niches that a slot tries before it gives its trial back."""


@dataclass(frozen=True)
class Niche:
    """The candidates with one value of one gene."""

    gene: int
    """Position of the gene."""
    value: int
    """Position of the value."""


@dataclass(frozen=True)
class NicheRestart:
    """One niche restart."""

    root: int | None
    """Number of its first trial; None where it is to begin."""
    niche: Niche
    """What it holds."""
    best: float
    """Best log(time) in its niche."""


@dataclass(frozen=True)
class NicheRestartPlan:
    """What a slot may propose in a generation."""

    restart: NicheRestart
    """Its niche restart."""
    candidates: Candidates
    """Children of its best."""
    keys: Keys
    """Their keys."""


def slots(window: int) -> int:
    """Return how many niche restarts run side by side where `window` trials are in flight."""
    return max(LEAST_SLOTS, window // 8)


def slot_of(number: int, window: int) -> int | None:
    """Return the slot to which a trial belongs, if it belongs to one."""
    turn, rest = divmod(number, TURN)
    return turn % slots(window) if rest == TURN - 1 else None


def is_stuck(seen: Observations) -> bool:
    """Tell whether the best time, up to noise, was reached long ago."""
    return seen.stuck(PROGRESS, STUCK, STUCK_SHARE)


def plans(
    pool: Pool,
    seen: Observations,
    due: list[int],
    worthwhile: Callable[[Candidates], Candidates],
    promise: Callable[[Rows], Floats],
    rng: np.random.Generator,
) -> dict[int, NicheRestartPlan]:
    """Return what each of some slots may propose next; nothing for a slot that finds nothing worth a trial.

    Args:
        pool: feasibility.
        seen: trials so far.
        due: the slots.
        worthwhile: of candidates, those that are fresh and likely to give a time.
        promise: a rough score of rows, higher is better.
        rng: source of randomness.
    """
    all_slots = [int(slot) for slot in np.unique(seen.slots) if slot >= 0]
    under_way = {slot: restart for slot in all_slots if (restart := _running(seen, slot)) is not None}
    busy = {restart.niche for restart in under_way.values()}
    waiting = [niche for niche in _niches(pool, seen) if niche not in busy]
    order = seen.best_first
    bred: dict[int, tuple[NicheRestart, Candidates]] = {}
    for slot in due:
        tried = [under_way[slot]] if slot in under_way else []
        while len(tried) < TRIES and waiting:
            niche = waiting.pop(0)
            tried.append(NicheRestart(None, niche, _best(seen, niche)))
        for restart in tried:
            best = order[seen.rows[order, restart.niche.gene] == restart.niche.value][0]
            made = niche_children(
                pool, seen.keys, seen.rows[best], int(seen.numbers[best]), restart.niche.gene,
                seen.rows[order[:MATES]], rng, CHILDREN,
            )  # fmt: skip
            made = worthwhile(made)
            if len(made.rows):
                bred[slot] = restart, made
                break
    if not bred:
        return {}
    # One prediction of the model for all of them costs less than one for each slot.
    scores = promise(np.concatenate([made.rows for _, made in bred.values()]))
    found, at = {}, 0
    for slot, (restart, made) in bred.items():
        kept = screened(pool, made, scores[at : at + len(made.rows)], KEPT)
        at += len(made.rows)
        if len(kept.rows):
            found[slot] = NicheRestartPlan(restart, kept, pool.genome.keys(kept.rows))
    return found


def _running(seen: Observations, slot: int) -> NicheRestart | None:
    """Return the niche restart of a slot, unless it has ended."""
    own = np.flatnonzero(seen.slots == slot)
    root = int(seen.roots[own].max())
    own = own[seen.roots[own] == root]
    gene = int(seen.held[own[0]])
    niche = Niche(gene, int(seen.rows[own[0], gene]))
    best = _best(seen, niche)
    improved = own[seen.timed[own]]
    improved = improved[seen.values[improved] <= best]
    since = seen.finished[own[own > improved[0]]] if len(improved) else seen.finished[own]
    return None if since.sum() >= PATIENCE else NicheRestart(root, niche, best)


def _best(seen: Observations, niche: Niche) -> float:
    inside = seen.timed & (seen.rows[:, niche.gene] == niche.value)
    return float(seen.values[inside].min())


def _niches(pool: Pool, seen: Observations) -> list[Niche]:
    """Return the niches in which nothing is nearly as good as the best, in the order in which they deserve a restart.

    Few trials, a best that is not far behind and few restarts speak for one.
    """
    best = float(np.nanmin(seen.values))
    begun = seen.roots == seen.numbers
    deserving = []
    for gene, size in enumerate(pool.genome.sizes.tolist()):
        for value in range(size):
            inside = seen.rows[:, gene] == value
            timed = inside & seen.timed
            if not timed.any():
                continue
            behind = float(seen.values[timed].min()) - best
            if behind >= NEAR:
                restarts = int((begun & inside & (seen.held == gene)).sum())
                deserving.append((np.exp(behind) * np.sqrt(timed.sum()) * REPEAT_PENALTY**restarts, gene, value))
    return [Niche(gene, value) for _, gene, value in sorted(deserving)]
