"""Constraints that prevent single-gene changes of a champion, stored so that reports need no kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from evokern.declaration.feasibility import Violation
from evokern.declaration.genes import Config, Value
from evokern.declaration.space import Space
from evokern.errors import UsageError

MAX_SECOND_CHANGES = 3
"""Maximum number of second-gene changes listed for a value that is infeasible alone."""


def infeasible_neighbours(
    space: Space, violation: Callable[[Config], Violation | None], champion: Config, *, beyond: bool = False
) -> list[dict[str, Any]]:
    """Return the values that a gene cannot have while all other genes keep the champion's values.

    Args:
        space: the study's genes.
        violation: returns the constraint that a configuration violates; None if it is feasible.
        champion: the champion's configuration. Values that have no effect in this configuration are omitted.
        beyond: if the champion has the first or last of a parameter's values, also check the number beyond it.

    Returns:
        JSON values for each `gene` and `value`: the name of the `constraint`, the `reason`, and `together`. The last
        one maps other genes to values that make this value feasible, one change at a time. Values that a constraint
        cannot judge are omitted.
    """
    found = []
    for gene in space.genes:
        for value in gene.values:
            changed = space.canonical(champion.replace(**{gene.name: value}))
            if value == champion[gene.name] or changed[gene.name] != value:
                continue
            broken = _violation_of(violation, changed)
            if isinstance(broken, Violation):
                found.append(
                    _neighbour_record(gene.name, value, broken)
                    | {"together": _together(space, violation, changed, gene.name)}
                )
        # For an undeclared value it is unknown which genes have an effect.
        alone = space.active(gene, champion) and not any(gene.name in other.when for other in space.genes)
        farther = gene.beyond(champion[gene.name]) if beyond and alone else None
        if farther is not None:
            broken = _violation_of(violation, champion.replace(**{gene.name: farther}))
            if isinstance(broken, Violation):
                found.append(_neighbour_record(gene.name, farther, broken) | {"together": {}})
    return found


def _violation_of(
    violation: Callable[[Config], Violation | None], config: Config
) -> Violation | Literal["unknown"] | None:
    """Return the violation of a configuration, or `unknown` if a constraint cannot judge it."""
    try:
        return violation(config)
    except UsageError:
        return "unknown"


def _neighbour_record(gene: str, value: Value, broken: Violation) -> dict[str, Any]:
    return {"gene": gene, "value": value, "constraint": broken.constraint, "reason": str(broken)}


def _together(
    space: Space, violation: Callable[[Config], Violation | None], changed: Config, held: str
) -> dict[str, Value]:
    """Return changes of one other gene that make a configuration feasible.

    Genes at their defaults come first, because the champion's other values probably matter for its speed.
    """
    found: dict[str, Value] = {}
    for gene in sorted(space.genes, key=lambda gene: changed[gene.name] != gene.default):
        for value in gene.values:
            both = space.canonical(changed.replace(**{gene.name: value}))
            effective = gene.name not in (held, *found) and both[gene.name] == value != changed[gene.name]
            if effective and both[held] == changed[held] and _violation_of(violation, both) is None:
                found[gene.name] = value
        if len(found) == MAX_SECOND_CHANGES:
            break
    return found
