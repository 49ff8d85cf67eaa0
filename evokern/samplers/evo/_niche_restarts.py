"""Excursions: what a stuck search of a large space spends half its trials on.

A model that knows one basin well judges every other by candidates that nobody has tuned, and never goes there. An
excursion does: it holds one gene at a value with which nothing good was seen yet, tunes the others beside it, and
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
"""Excursions at a time in a small window."""
TURN: Final = 2
"""Every so many trials of a stuck study belong to excursions."""
PATIENCE: Final = 8
"""Own results without a better one after which an excursion ends."""
STUCK: Final = 32
"""Least trials without progress after which a study is stuck."""
STUCK_SHARE: Final = 8
"""Where it is more: the trials so far over this."""
PROGRESS: Final = 0.01
"""Difference in log(time) below which a better time is noise."""
NEAR: Final = 0.03
"""Difference in log(time) up to which a niche's best is as good as the best: expected improvement deals with it."""
AGAIN: Final = 3.0
"""How much less a niche deserves another trip after one."""
MATES: Final = 6
"""Best trials that an excursion's best is crossed with."""
CHILDREN: Final = 64
"""Children of an excursion's best that are made for a generation."""
KEPT: Final = 10
"""Feasible ones that are kept."""
TRIES: Final = 3
"""Niches that a slot looks at before it gives its trial back."""


@dataclass(frozen=True)
class Niche:
    """The candidates with one value of one gene."""

    gene: int
    """Position of the gene."""
    value: int
    """Position of the value."""


@dataclass(frozen=True)
class Excursion:
    """One excursion."""

    root: int | None
    """Number of its first trial; None where it is to begin."""
    niche: Niche
    """What it holds."""
    best: float
    """Best log(time) in its niche."""


@dataclass(frozen=True)
class ExcursionPlan:
    """What a slot may propose in a generation."""

    excursion: Excursion
    """Its excursion."""
    candidates: Candidates
    """Children of its best."""
    keys: Keys
    """Their keys."""


def slots(window: int) -> int:
    """Return how many excursions run side by side where `window` trials are in flight."""
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
    wanted: list[int],
    worthwhile: Callable[[Candidates], Candidates],
    promise: Callable[[Rows], Floats],
    rng: np.random.Generator,
) -> dict[int, ExcursionPlan]:
    """Return what each of some slots may propose next; nothing for a slot that finds nothing worth a trial.

    Args:
        pool: feasibility.
        seen: trials so far.
        wanted: the slots.
        worthwhile: of candidates, those that are fresh and likely to give a time.
        promise: a rough score of rows, higher is better.
        rng: source of randomness.
    """
    all_slots = [int(slot) for slot in np.unique(seen.slots) if slot >= 0]
    under_way = {slot: excursion for slot in all_slots if (excursion := _going(seen, slot)) is not None}
    busy = {excursion.niche for excursion in under_way.values()}
    waiting = [niche for niche in _niches(pool, seen) if niche not in busy]
    order = seen.best_first
    bred: dict[int, tuple[Excursion, Candidates]] = {}
    for slot in wanted:
        tried = [under_way[slot]] if slot in under_way else []
        while len(tried) < TRIES and waiting:
            niche = waiting.pop(0)
            tried.append(Excursion(None, niche, _best(seen, niche)))
        for excursion in tried:
            best = order[seen.rows[order, excursion.niche.gene] == excursion.niche.value][0]
            made = niche_children(
                pool, seen.keys, seen.rows[best], int(seen.numbers[best]), excursion.niche.gene,
                seen.rows[order[:MATES]], rng, CHILDREN,
            )  # fmt: skip
            made = worthwhile(made)
            if len(made.rows):
                bred[slot] = excursion, made
                break
    if not bred:
        return {}
    # One look of the model at all of them costs less than a look at each slot's.
    scores = promise(np.concatenate([made.rows for _, made in bred.values()]))
    found, at = {}, 0
    for slot, (excursion, made) in bred.items():
        kept = screened(pool, made, scores[at : at + len(made.rows)], KEPT)
        at += len(made.rows)
        if len(kept.rows):
            found[slot] = ExcursionPlan(excursion, kept, pool.genome.keys(kept.rows))
    return found


def _going(seen: Observations, slot: int) -> Excursion | None:
    """Return the excursion of a slot, unless it has ended."""
    own = np.flatnonzero(seen.slots == slot)
    root = int(seen.roots[own].max())
    own = own[seen.roots[own] == root]
    gene = int(seen.held[own[0]])
    niche = Niche(gene, int(seen.rows[own[0], gene]))
    best = _best(seen, niche)
    improved = own[seen.timed[own]]
    improved = improved[seen.values[improved] <= best]
    since = seen.finished[own[own > improved[0]]] if len(improved) else seen.finished[own]
    return None if since.sum() >= PATIENCE else Excursion(root, niche, best)


def _best(seen: Observations, niche: Niche) -> float:
    inside = seen.timed & (seen.rows[:, niche.gene] == niche.value)
    return float(seen.values[inside].min())


def _niches(pool: Pool, seen: Observations) -> list[Niche]:
    """Return the niches in which nothing is nearly as good as the best, in the order in which they deserve a trip.

    Few trials, a best that is not far behind and few trips speak for one.
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
                trips = int((begun & inside & (seen.held == gene)).sum())
                deserving.append((np.exp(behind) * np.sqrt(timed.sum()) * AGAIN**trips, gene, value))
    return [Niche(gene, value) for _, gene, value in sorted(deserving)]
