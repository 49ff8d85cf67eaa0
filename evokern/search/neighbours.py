"""What stands in the way of changing one gene of a champion: kept with the study, which is read without its kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from evokern.declaration.feasibility import Violation
from evokern.declaration.genes import Config, Value
from evokern.declaration.space import Space
from evokern.errors import UsageError

TOGETHER = 3
"""Most changes of a second gene that are named for a value that the champion cannot take alone."""


def infeasible_neighbours(
    space: Space, violation: Callable[[Config], Violation | None], champion: Config, *, beyond: bool = False
) -> list[dict[str, Any]]:
    """Return the values that a gene cannot take while all others are the champion's.

    Args:
        space: the study's genes.
        violation: tells the constraint that a configuration violates.
        champion: the configuration. Values that have no effect in it are left out.
        beyond: ask as well about the number that would come next where the champion stands at the end of a parameter's
            values.

    Returns:
        For each `gene`, `value`, name of the `constraint`, `reason` as a sentence, and under `together` gene → value,
        each a change of one more gene with which the champion could take it; JSON values. What a constraint cannot
        answer for is left out.
    """
    found = []
    for gene in space.genes:
        for value in gene.values:
            changed = space.canonical(champion.replace(**{gene.name: value}))
            if value == champion[gene.name] or changed[gene.name] != value:
                continue
            broken = _broken(violation, changed)
            if isinstance(broken, Violation):
                found.append(
                    _told(gene.name, value, broken) | {"together": _together(space, violation, changed, gene.name)}
                )
        # Which genes have an effect at a value that nobody declared is not known.
        alone = space.active(gene, champion) and not any(gene.name in other.when for other in space.genes)
        farther = gene.beyond(champion[gene.name]) if beyond and alone else None
        if farther is not None:
            broken = _broken(violation, champion.replace(**{gene.name: farther}))
            if isinstance(broken, Violation):
                found.append(_told(gene.name, farther, broken) | {"together": {}})
    return found


def _broken(violation: Callable[[Config], Violation | None], config: Config) -> Violation | Literal["unknown"] | None:
    """Return what a configuration violates that may never have been proposed: a constraint may be unable to answer."""
    try:
        return violation(config)
    except UsageError:
        return "unknown"


def _told(gene: str, value: Value, broken: Violation) -> dict[str, Any]:
    return {"gene": gene, "value": value, "constraint": broken.constraint, "reason": str(broken)}


def _together(
    space: Space, violation: Callable[[Config], Violation | None], changed: Config, held: str
) -> dict[str, Value]:
    """Return further changes, one of each gene, with any of which a configuration becomes feasible.

    Those of genes at their defaults come first: what else the champion chose is what it is fast by.
    """
    found: dict[str, Value] = {}
    for gene in sorted(space.genes, key=lambda gene: changed[gene.name] != gene.default):
        for value in gene.values:
            both = space.canonical(changed.replace(**{gene.name: value}))
            effective = gene.name not in (held, *found) and both[gene.name] == value != changed[gene.name]
            if effective and both[held] == changed[held] and _broken(violation, both) is None:
                found[gene.name] = value
        if len(found) == TOGETHER:
            break
    return found
