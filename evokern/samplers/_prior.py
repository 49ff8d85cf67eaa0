"""A warm start: what another study, another device or a time model says before anything is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from evokern.declaration.space import Config, Space, Value
from evokern.errors import StudyError

SIMULATED = "sim"
"""Source of a prior whose times a time model gave at the study's own problem and chip."""


@dataclass(frozen=True)
class Prior:
    """Configurations of this space with the log times that something else gave them."""

    entries: tuple[tuple[Config, float], ...]
    """Canonical configuration and its log(time), on any scale; each configuration once, best first."""
    source: str
    """Where they come from, for messages: `runs.db:attention-s128`, `sim:h200`."""
    used: tuple[str, ...] = ()
    """Genes that the source and this space share."""
    ignored: tuple[str, ...] = ()
    """Genes that only one of them has, with the reason: unknown here, or absent there and set to the default."""
    leaders: tuple[Config, ...] = ()
    """What was fastest in further studies, the nearest first: tried after the best entry; no more is known of them."""

    @property
    def modelled(self) -> bool:
        """Whether a time model gave its times for this very study; else they are of another problem or version."""
        return self.source == SIMULATED

    def __post_init__(self) -> None:
        if not self.entries:
            raise StudyError(f"warm start from {self.source} has no usable trial; leave --warm-start away")

    @classmethod
    def from_trials(cls, space: Space, trials: Iterable[tuple[Mapping[str, Value], float]], source: str) -> Prior:
        """Take over the trials of another study, gene by gene.

        Args:
            space: this study's space.
            trials: configuration and log(time) of each measured trial.
            source: where they come from.

        Raises:
            StudyError: no gene is shared, or no trial has values that this space knows.
        """
        known = [(dict(values), float(value)) for values, value in trials]
        there = {name for values, _ in known for name in values}
        here = [gene.name for gene in space.genes]
        used = tuple(name for name in here if name in there)
        if not used:
            raise StudyError(f"warm start from {source} shares no gene with this kernel ({', '.join(here)})")
        ignored = tuple(f"{name} (unknown here)" for name in sorted(there - set(here))) + tuple(
            f"{name} (not there: {space.gene(name).default})" for name in here if name not in there
        )
        best: dict[Config, float] = {}
        for values, value in known:
            if all(values[name] in space.gene(name).values for name in used if name in values):
                config = space.canonical({name: values.get(name, space.gene(name).default) for name in here})
                best[config] = min(value, best.get(config, value))
        ordered = sorted(best.items(), key=lambda entry: (entry[1], entry[0].key))
        return cls(tuple(ordered), source, used, ignored)
