"""Warm starts: times of candidates from other studies, devices or a time model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from evokern.declaration.genes import Config, Value
from evokern.declaration.space import Space
from evokern.errors import StudyError

SIMULATED = "sim"
"""Source name of a prior predicted by a time model for the study's problem and chip."""


Entries = tuple[tuple[Config, float], ...]
"""Canonical configurations with log(time) on any scale, distinct, best first."""
DISTANT = 2.0
"""Assumed distance of an unknown problem: a factor of four in one dimension."""
FURTHER = 12
"""Maximum number of further studies in addition to the nearest one."""
EACH = 64
"""Maximum number of candidates per further study: the fastest half, and an even selection of the rest."""
LEADERS = 3
"""Maximum number of distinct best candidates of further studies to try, nearest study first."""


@dataclass(frozen=True)
class FurtherStudy:
    """Results of a further study."""

    entries: Entries
    """Candidates of the further study."""
    distance: float
    """Distance of the further study's problem from this study's, in powers of two."""


@dataclass(frozen=True)
class Prior:
    """Configurations with log times from another source."""

    entries: Entries
    """Candidates and their times."""
    source: str
    """Source for messages, such as `runs.db:attention-s128` or `sim:h200`."""
    used: tuple[str, ...] = ()
    """Genes shared by the source and this space."""
    ignored: tuple[str, ...] = ()
    """Genes that exist only in the source or only in this space, with the reason."""
    distance: float = DISTANT
    """Distance of the source's problem from this study's, in powers of two."""
    further: tuple[FurtherStudy, ...] = ()
    """Results of further studies, nearest first."""

    @property
    def leaders(self) -> tuple[Config, ...]:
        """Best candidates of further studies, nearest study first, without the overall best; at most `LEADERS`."""
        found = dict.fromkeys(one.entries[0][0] for one in self.further)
        found.pop(self.entries[0][0], None)
        return tuple(found)[:LEADERS]

    def with_further(self, others: Sequence[Prior]) -> Prior:
        """Return this prior with the results of further studies.

        Args:
            others: Priors of the further studies, nearest first; at most `FURTHER` are used, with `EACH` candidates.
        """
        return replace(
            self, further=tuple(FurtherStudy(_thinned(one.entries), one.distance) for one in others[:FURTHER])
        )

    @property
    def from_time_model(self) -> bool:
        """Whether a time model predicted the times for this study, and not for another problem or version."""
        return self.source == SIMULATED

    def __post_init__(self) -> None:
        if not self.entries:
            raise StudyError(f"warm start from {self.source} has no usable trial; omit --warm-start")

    @classmethod
    def from_trials(cls, space: Space, trials: Iterable[tuple[Mapping[str, Value], float]], source: str) -> Prior:
        """Convert the trials of another study to this space, gene by gene.

        Args:
            space: Space of this study.
            trials: Configuration and log(time) of each measured trial.
            source: Name of the source.

        Raises:
            StudyError: No gene is shared, or no trial has values that this space contains.
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
