"""Candidates for the variants of a package: the champions of a sweep, and other trials whose program runs more shapes.

A program is general over a field if the macros of the candidate do not depend on the field: the same machine code then
runs each shape that meets the constraints. Grid, shared memory and arguments are computed for each shape. A champion
with problem constants in its machine code serves few shapes. Therefore a study also contributes fast trials that serve
more shapes. It also contributes its champion with the one changed gene that lets it serve the most. The kernel's
starting points are candidates too: each was fast somewhere, perhaps at shapes that the sweep did not search.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

from evokern.analysis.candidates import TrialUnderTest
from evokern.declaration.feasibility import check
from evokern.declaration.genes import Config, Gene
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.render import macros
from evokern.hardware.profiles import Profile
from evokern.pack.tree import CAPABILITY, MODE
from evokern.store import Verification

MOST_TRIALS = 24
"""Number of the fastest trials of each study among which general candidates are looked for."""
MOST_OF_A_STUDY = 3
"""Largest number of trials that one study contributes."""
REFERENCES = 4
"""Number of nearest champions that are measured at each shape only to know how fast code for this shape can be."""


@dataclass(frozen=True, eq=False)
class Place:
    """A shape of the sweep's distribution, with the settings for measuring candidates there."""

    name: str
    """Name of the study, which was perhaps not searched."""
    subject: TrialUnderTest
    """Kernel, settings and problem; the champion and the fastest trials if the study was searched."""
    chip: Profile
    """Chip of the device."""
    weight: float
    """Weight of the shape."""
    held_out: bool = False
    """Whether the shape is held out: its times neither choose variants nor build the dispatch."""
    further: bool = False
    """Whether only the chosen variants are measured at the shape: its times build the dispatch."""
    proof: Verification | None = None
    """Verification of the champion; None if the study was not searched."""

    @property
    def device(self) -> str:
        """Device of the study."""
        return self.subject.record.device

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        return self.subject.kernel

    @property
    def problem(self) -> Problem:
        """The shape."""
        return self.subject.problems[0]

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """Fields with names as values, which distinguish modes of the operator."""
        return tuple((name, str(value)) for name, value in self.problem.items() if not isinstance(value, int))

    def values(self, mode: int) -> dict[str, int]:
        """Return the shape as values for a decision tree."""
        major, minor = self.chip.compute_capability
        numbers = {name: value for name, value in self.problem.items() if isinstance(value, int)}
        return {CAPABILITY: 10 * major + minor, MODE: mode, **numbers}

    def runs(self, config: Config) -> bool:
        """Return whether a candidate can run the shape, even if that is wasteful."""
        return check(self.kernel, config, [self.problem], self.chip, essential=True) is None

    def program(self, config: Config) -> ProgramKey:
        """Return the identity of a candidate's machine code for the shape."""
        if config not in self._programs:
            defined = tuple(sorted(macros(self.kernel, config, self.problem).items()))
            self._programs[config] = ProgramKey(self.device, config_key(config), defined)
        return self._programs[config]

    @cached_property
    def _programs(self) -> dict[Config, ProgramKey]:
        return {}


@dataclass(frozen=True)
class ProgramKey:
    """Identity of machine code: a candidate, and the macros that the code contains."""

    device: str
    """Device of the study."""
    config: str
    """Key of the candidate."""
    macros: tuple[tuple[str, str], ...]
    """Names and values of the macros."""


@dataclass(frozen=True)
class PoolCandidate:
    """A candidate of the pool."""

    owner: Place
    """Place whose study contributed it."""
    trial: int | None
    """Number of the trial; None for a starting point of the kernel."""
    config: Config
    """Values of the genes."""
    changed: str = ""
    """Gene that differs from the trial or starting point; empty if none does."""

    @cached_property
    def key(self) -> str:
        """Key of the configuration."""
        return config_key(self.config)

    @property
    def title(self) -> str:
        """Origin of the candidate, for people."""
        if self.trial is None:
            default = self.owner.kernel.space.default()
            genes = (f"{name}={value}" for name, value in self.config.items() if value != default[name])
            return f"starting point {' '.join(genes)}"
        return f"trial {self.trial} of {self.owner.name}{f' with {self.changed}' if self.changed else ''}"

    @property
    def proof(self) -> Verification | None:
        """Verification by the study; None if only the packer checked the candidate."""
        own = not self.changed and self.trial == self.owner.subject.trial.number
        return self.owner.proof if own else None


def config_key(config: Config) -> str:
    """Return the key of a candidate in files."""
    return " ".join(f"{name}={value}" for name, value in config.items())


def champion(place: Place) -> PoolCandidate:
    """Return the champion of a searched study."""
    trial = place.subject.trial
    return PoolCandidate(place, trial.number, place.kernel.space.canonical(trial.config))


def pool_of(searched: Sequence[Place], sample: Sequence[Place], most: int, variants: int) -> list[PoolCandidate]:
    """Return the candidates that may become variants: the most general one of each study, then the next of each.

    Studies that differ most come first.

    Args:
        searched: studies with a champion.
        sample: shapes for which variants are chosen.
        most: largest number of candidates. As many others are added whose programs serve a region: less than half as
            much weight as the most general program, but at least half of a variant's share.
        variants: largest number of variants. Programs that serve less come last, if there are too few others.
    """
    least = sum(one.weight for one in sample) / (2 * variants)
    fronts = [_front(place, sample)[::-1] for place in _spread(searched)]
    widest = max((served for front in fronts for _, served in front), default=0.0)
    kinds = tuple[dict[tuple[str, str], PoolCandidate], ...](({}, {}, {}))
    for candidate, served in (one for rank in zip_longest(*fronts) for one in rank if one):
        useful = served >= least or served > candidate.owner.weight
        key = candidate.owner.device, candidate.key
        if not any(key in kind for kind in kinds):
            kinds[0 if useful and served >= widest / 2 else 1 if useful else 2][key] = candidate
    general, regional, narrow = ([*kind.values()] for kind in kinds)
    found = [*general[:most], *regional[:most]]
    return [*found, *narrow[: max(0, most - len(found))]]


def _spread(places: Sequence[Place]) -> Iterator[Place]:
    """Yield the heaviest place, then always the one that is farthest from those before."""
    left = list(places)
    apart = [math.inf] * len(left)
    while left:
        index = max(range(len(left)), key=lambda one: (apart[one], left[one].weight, -one))
        place = left.pop(index)
        apart.pop(index)
        yield place
        apart = [min(far, _distance(place, other)) for far, other in zip(apart, left, strict=True)]


def _distance(one: Place, other: Place) -> float:
    """Return how far two places are apart: the sum of the logarithms of the ratios of their numbers."""
    total = 1000.0 * (one.device != other.device)
    for name, value in one.problem.items():
        theirs = other.problem[name]
        if isinstance(value, int) and isinstance(theirs, int):
            total += abs(math.log((value + 1) / (theirs + 1)))
        else:
            total += 100.0 * (value != theirs)
    return total


def _front(place: Place, sample: Sequence[Place]) -> list[tuple[PoolCandidate, float]]:
    """Return the trials of a study that serve more weight than each faster one, with the weight, and a derived one."""
    found: list[tuple[PoolCandidate, float]] = []
    first = champion(place)
    others = (PoolCandidate(place, t.number, place.kernel.space.canonical(t.config)) for t in place.subject.elites)
    for one in (first, *(one for one in others if one.trial != first.trial)):
        if len(found) == MOST_OF_A_STUDY:
            break
        served = _served(place, one.config, sample)
        if not found or served > found[-1][1]:
            found.append((one, served))
    widest, served = _widest(first, sample)
    return found if served <= found[0][1] else [*found, (widest, served)]


def _widest(candidate: PoolCandidate, sample: Sequence[Place]) -> tuple[PoolCandidate, float]:
    """Return a candidate or, if one changed gene lets it serve more weight, the changed one that serves the most."""
    place, space = candidate.owner, candidate.owner.kernel.space
    best = candidate, _served(place, candidate.config, sample)
    for gene in space.genes:
        for value in gene.values:
            config = space.with_changes(candidate.config, {gene.name: value})
            if config != candidate.config and place.runs(config):
                served = _served(place, config, sample)
                if served > best[1]:
                    best = PoolCandidate(place, candidate.trial, config, f"{gene.name}={value}"), served
    return best


def starting_points_of(
    pool: Sequence[PoolCandidate], searched: Sequence[Place], sample: Sequence[Place], most: int, variants: int
) -> list[PoolCandidate]:
    """Return starting points of the kernel that serve a region and that the pool lacks, the most general ones first.

    Args:
        pool: candidates of the studies.
        searched: studies with a champion.
        sample: shapes for which variants are chosen.
        most: largest number of starting points; of more, those that the kernel names for the most shapes are tried.
        variants: largest number of variants.
    """
    least = sum(one.weight for one in sample) / (2 * variants)
    known = {(one.owner.device, one.key) for one in pool}
    found: dict[tuple[str, str], tuple[PoolCandidate, float]] = {}
    for device in dict.fromkeys(one.device for one in searched):
        owners = [one for one in searched if one.device == device]
        for config in _starting_points(owners[0], [one.problem for one in sample if one.device == device])[:most]:
            own = [PoolCandidate(owner, None, config) for owner in owners if owner.runs(config)]
            if not own:
                continue
            pairs = [_widest(own[0], sample)]
            if sum(value != config[name] for name, value in pairs[0][0].config.items()) > 1:
                # The gene that makes it more general excludes another choice of it, so it is a candidate itself, too.
                pairs.append(max(((one, _served(one.owner, config, sample)) for one in own), key=lambda pair: pair[1]))
            for one, served in pairs:
                found.setdefault((device, one.key), (one, served))
    useful = {key: pair for key, pair in found.items() if pair[1] >= least and key not in known}
    return [one for one, _ in sorted(useful.values(), key=lambda pair: -pair[1])][:most]


def _starting_points(place: Place, problems: Sequence[Problem]) -> list[Config]:
    """Return starting points with gene values that the study permits; those for the most problems come first."""
    space, proposed = place.kernel.space, Counter[Config]()
    for problem in problems:
        for point in place.kernel.starting_points_for([problem], place.chip):
            config = space.canonical({**space.default(), **point})
            genes = place.subject.study.genes.items()
            proposed[space.with_changes(config, {n: own[0] for n, own in genes if config[n] not in own})] += 1
    return [config for config, _ in proposed.most_common()]


def _served(place: Place, config: Config, sample: Sequence[Place]) -> float:
    """Return the weight of the shapes that a candidate's program for a place can run."""
    own = place.program(config)
    return sum(
        one.weight
        for one in sample
        if one.device == place.device and one.names == place.names and one.program(config) == own and one.runs(config)
    )


def measured_at(
    place: Place, pool: Sequence[PoolCandidate], searched: Sequence[Place], useful: Callable[[ProgramKey], bool]
) -> tuple[list[Config], list[Config]]:
    """Return the candidates to measure at a place: those that may serve it, and the nearest champions as references."""
    own = [one for one in pool if one.owner.device == place.device and place.runs(one.config)]
    serving = [one.config for one in own if one.owner.name == place.name or useful(place.program(one.config))]
    same = [one for one in searched if one.device == place.device and one.names == place.names]
    near = sorted(same, key=lambda one: (_distance(one, place), one.name))
    configs = dict.fromkeys(config for one in near for config in _with_excluded(one))
    return serving, [one for one in configs if one not in serving and place.runs(one)][:REFERENCES]


def _with_excluded(place: Place) -> Iterator[Config]:
    """Yield a champion with the values of genes that its study excludes, perhaps because they serve one shape only.

    The champion itself follows.
    """
    config, space = champion(place).config, place.kernel.space
    for name, allowed in place.subject.study.genes.items():
        for value in next(gene for gene in space.genes if gene.name == name).values:
            if value not in allowed:
                yield space.with_changes(config, {name: value})
    yield config


def narrow_genes(searched: Sequence[Place], sample: Sequence[Place]) -> Iterator[tuple[Gene, list[Any]]]:
    """Yield the genes that let champions run only their own shape, with the value of each of these champions."""
    found: dict[str, list[Any]] = {}
    for place in searched:
        first = champion(place)
        if _served(place, first.config, sample) <= place.weight and (widest := _widest(first, sample)[0]).changed:
            name = widest.changed.partition("=")[0]
            found.setdefault(name, []).append(first.config[name])
    for name, values in found.items():
        yield next(gene for gene in searched[0].kernel.space.genes if gene.name == name), values
