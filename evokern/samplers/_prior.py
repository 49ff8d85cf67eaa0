"""A warm start: what another study, another device or a time model says before anything is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from evokern.declaration.genes import Config, Value
from evokern.declaration.space import Space
from evokern.errors import StudyError

SIMULATED = "sim"
"""Source of a prior whose times a time model gave at the study's own problem and chip."""


Entries = tuple[tuple[Config, float], ...]
"""Canonical configuration and its log(time), on any scale; each configuration once, best first."""
DISTANT = 2.0
"""Distance of a problem of which nothing else is known: that of a factor of four in a dimension."""
FURTHER = 12
"""Further studies that come with the nearest one."""
EACH = 64
"""Candidates of each: the fastest half of them, and others evenly spread over the rest."""
LEADERS = 3
"""Fastest candidates of further studies, the nearest first, that are tried after the nearest one's. Distinct ones: two
studies may have found the same."""


@dataclass(frozen=True)
class FurtherStudy:
    """What another study found, besides the nearest one."""

    entries: Entries
    """Its candidates."""
    distance: float
    """How far its problem is from this study's, as powers of two."""


@dataclass(frozen=True)
class Prior:
    """Configurations of this space with the log times that something else gave them."""

    entries: Entries
    """What they are."""
    source: str
    """Where they come from, for messages: `runs.db:attention-s128`, `sim:h200`."""
    used: tuple[str, ...] = ()
    """Genes that the source and this space share."""
    ignored: tuple[str, ...] = ()
    """Genes that only one of them has, with the reason: unknown here, or absent there and set to the default."""
    distance: float = DISTANT
    """How far the source's problem is from this study's, as powers of two."""
    further: tuple[FurtherStudy, ...] = ()
    """What further studies found, the nearest first."""

    @property
    def leaders(self) -> tuple[Config, ...]:
        """What was fastest in further studies and is not the best entry, the nearest first, `LEADERS` at most."""
        found = dict.fromkeys(one.entries[0][0] for one in self.further)
        found.pop(self.entries[0][0], None)
        return tuple(found)[:LEADERS]

    def beside(self, others: Sequence[Prior]) -> Prior:
        """Return this prior with what further studies found.

        Args:
            others: what each of them says, the nearest first: `FURTHER` are taken, `EACH` candidates of one.
        """
        return replace(
            self, further=tuple(FurtherStudy(_thinned(one.entries), one.distance) for one in others[:FURTHER])
        )

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


def _thinned(entries: Entries) -> Entries:
    """Return at most `EACH` entries, best first."""
    best, rest = entries[: EACH // 2], entries[EACH // 2 :]
    room = EACH - len(best)
    step = max(1.0, len(rest) / room)
    return (*best, *(rest[int(at * step)] for at in range(min(len(rest), room))))
