"""What stands in the way of changing one gene of a champion: kept with the study, which is read without its kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evokern.declaration.feasibility import Violation
from evokern.declaration.space import Config, Space


def infeasible_neighbours(
    space: Space, violation: Callable[[Config], Violation | None], champion: Config
) -> list[dict[str, Any]]:
    """Return the values that a gene cannot take while all others are the champion's.

    Args:
        space: the study's genes.
        violation: tells the constraint that a configuration violates.
        champion: the configuration. Values that have no effect in it are left out.

    Returns:
        For each `gene`, `value`, name of the `constraint`, and `reason` as a sentence; JSON values.
    """
    found = []
    for gene in space.genes:
        for value in gene.values:
            changed = space.canonical(Config({**champion, gene.name: value}))
            if value == champion[gene.name] or changed[gene.name] != value:
                continue
            broken = violation(changed)
            if broken is not None:
                found.append(
                    {"gene": gene.name, "value": value, "constraint": broken.constraint, "reason": str(broken)}
                )
    return found
