"""Choice of the variants of a package, and of its dispatch, from times that were measured crosswise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Problem
from evokern.errors import StudyError
from evokern.export.checked import Report
from evokern.export.launcher import field_holds
from evokern.export.trace import Traces, trace
from evokern.pack.candidates import (
    Place,
    PoolCandidate,
    ProgramKey,
    config_key,
    measured_at,
    pool_of,
    starting_points_of,
)
from evokern.pack.choice import Sample, chosen_variants, dispatch_tree, served_at, served_by
from evokern.pack.crosswise import CrosswiseTimes, PlaceTimes, is_wrong
from evokern.pack.tree import CAPABILITY, MODE, Tree, leaf_of, regions
from evokern.pack.unseen import Shape, expected_samples, recombined
from evokern.pack.variant import Variant, variant_of
from evokern.store import Verification


@dataclass(frozen=True)
class PackRequest:
    """Options of a package from a sweep."""

    variants: int = 8
    """Largest number of variants."""
    candidates: int = 16
    """Largest number of candidates that may become variants."""
    budget_s: float | None = None
    """Seconds for measuring; None for no limit."""
    trust: bool = False
    """Whether to load the kernel's declaration from a database if its folder is missing or changed."""
    force: bool = False
    """Whether to pack variants that are not verified."""


class Selection:
    """Choice of variants and of a dispatch from measured times."""

    def __init__(
        self, places: Sequence[Place], searched: Sequence[Place], stored: CrosswiseTimes, request: PackRequest,
        report: Report, *, unseen: bool,
    ) -> None:  # fmt: skip
        """Measure the candidates of searched studies at places, the held-out ones last.

        If `unseen`, other shapes than those of the places will occur.
        """
        self._places, self._stored, self._most, self._report = places, stored, request.variants, report
        sampled = [one for one in places if not one.held_out and not one.further]
        pool = pool_of(searched, sampled, request.candidates, request.variants)
        pool += starting_points_of(pool, searched, sampled, 2 * request.candidates, request.variants)
        useful = _useful(pool, sampled, sum(one.weight for one in sampled) / (2 * request.variants))
        self._origins = {(one.owner.device, one.key): one for one in pool}
        self._force = request.force
        self._made: dict[int, Variant] = {}
        self._proofs: dict[int, Verification] = {}
        self.refuted: dict[str, str] = {}
        """Candidates that failed the gate at a shape, with the reason."""
        self._programs: dict[ProgramKey, int] = {}
        self._modes: dict[tuple[tuple[str, str], ...], int] = {}
        self._traced: list[tuple[Place, Config]] = []
        """A place and a candidate for each mode."""
        self._searched = searched
        plans = [(place, *measured_at(place, pool, searched, useful.__contains__)) for place in sampled]
        self._wrong: set[tuple[str, str]] = set()
        """Device and key of each candidate with a wrong result at any place; none of its programs is used."""
        self._out: set[int] = set()
        """Other programs that are used nowhere."""
        self._refused: set[tuple[str, int]] = set()
        """Names of places and programs that do not take them."""
        self._found = self._measured(plans)
        """Measured times at the sampled places."""
        self._samples: list[tuple[Place, Sample]] = []
        """Sampled places with times, by numbers of programs."""
        self._further: list[tuple[Place, Sample]] = []
        self._held: list[tuple[Place, Sample]] = []
        """Further and held-out places with the times of the chosen programs."""
        self._dropped()
        self._unseen = [*self._recombined(pool)] if unseen else None
        """Shapes of the same kind that were not sampled, with weights and programs; None if none will occur."""

    def _measured(
        self, plans: Sequence[tuple[Place, list[Config], list[Config]]]
    ) -> list[tuple[Place, list[Config], PlaceTimes]]:
        """Return the times of candidates and of references at places, which are measured unless they are stored.

        Candidates with a wrong result are remembered and reported.
        """
        for place, serving, references in plans:
            if (serving or references) and place.names not in self._modes:
                self._modes[place.names] = len(self._modes)
                self._traced.append((place, [*serving, *references][0]))
        measured = []
        for place, serving, references in plans:
            configs = [one for one in (*serving, *references) if (place.device, config_key(one)) not in self._wrong]
            found = self._stored.at(place, configs)
            for key, why in found.refuted.items():
                self._leave_out(place.device, key, f"{why} at {place.problem}")
            if place.names in self._modes:
                measured.append((place, serving, found))
        return measured

    def _sample(self, place: Place, configs: Sequence[Config], found: PlaceTimes) -> Sample:
        numbers = {config_key(config): self._number(place.program(config)) for config in configs}
        times = {key: time_us for key, time_us in found.times.items() if (place.device, key) not in self._wrong}
        right = {
            n: key
            for key, n in numbers.items()
            if key in times and n not in self._out and (place.name, n) not in self._refused
        }
        return Sample(
            place.values(self._modes[place.names]),
            {n: times[key] for n, key in right.items()},
            {self._stored.baselines.index(n): t for n, t in found.baselines.items()},
            place.weight,
            {n: found.ratios[key] for n, key in right.items() if key in found.ratios},
            min(times.values(), default=None),
        )

    def _recombined(self, pool: Sequence[PoolCandidate]) -> Iterator[tuple[Shape, float, frozenset[int]]]:
        """Yield shapes whose fields come from different sampled shapes, weights and programs that run there."""
        like = {(place.chip.compute_capability, self._modes[place.names]): place for place, _ in self._samples}
        for shape, weight in recombined([sample for _, sample in self._samples]):
            place = like[divmod(shape[CAPABILITY], 10), shape[MODE]]
            fields = {name: value for name, value in shape.items() if name not in (CAPABILITY, MODE)}
            place = replace(place, subject=replace(place.subject, problems=(place.problem.changed(fields),)))
            configs = (one.config for one in pool if one.owner.device == place.device and place.runs(one.config))
            programs = (self._programs.get(place.program(one)) for one in configs)
            yield shape, weight, frozenset(one for one in programs if one is not None)

    def _expected(self, measured: Sequence[Sample], numbers: Mapping[int, int]) -> list[Sample]:
        """Return samples with expected times of programs, which have new numbers, where shapes were not sampled."""
        if self._unseen is None:
            return []
        others = [(s, weight, {numbers[one] for one in runs if one in numbers}) for s, weight, runs in self._unseen]
        return expected_samples(measured, others)

    def _number(self, program: ProgramKey) -> int:
        return self._programs.setdefault(program, len(self._programs))

    def choose(self) -> tuple[tuple[int, ...], tuple[Variant, ...], Tree]:
        """Choose, compile and verify variants, and check them at the edges of their regions.

        Raises:
            StudyError: no verified candidate is faster than the baseline.
        """
        while True:
            self._further, self._held = [], []
            measured = [sample for _, sample in self._samples]
            known = {number: number for sample in measured for number in sample.times}
            chosen = chosen_variants([*measured, *self._expected(measured, known)], self._most)
            if not chosen:
                left_out = "".join(f"; {title} was left out: {why}" for title, why in [*self.refuted.items()][:1])
                raise StudyError(
                    "no candidate is right, verified and faster than the baseline at any problem, so there is nothing "
                    f"to pack{left_out}; search longer, or use --force for candidates that are not verified"
                )
            for number in chosen:
                if number not in self._made:
                    self._made[number] = self._variant(number)
            self._check_fit(chosen)
            if self._dropped():
                continue
            self._out |= {*chosen} - {*self._used(chosen, self._tree(chosen))}
            if self._dropped():
                continue
            # Proofs come before the many measurements at further and held-out places, which another choice needs again.
            self._check_proofs(chosen)
            if self._dropped():
                continue
            self._further = self._checked(chosen, [one for one in self._places if one.further], [])
            if self._dropped():
                continue
            tree = self._tree(chosen)
            while (used := self._used(chosen, tree)) and used != chosen:
                chosen, tree = used, self._tree(used)
            if not used:
                self._out |= {*chosen}
                self._dropped()
                continue
            self._held = self._checked(chosen, [one for one in self._places if one.held_out], self._searched)
            if self._dropped():
                continue
            self._check_edges(chosen, tree)
            if not self._dropped():
                return chosen, tuple(self._made[number] for number in chosen), tree

    def _tree(self, chosen: Sequence[int]) -> Tree:
        """Return the dispatch to chosen programs, by the numbers of variants."""
        own = [sample for place, sample in self.served(chosen) if not place.held_out]
        expected = self._expected(own, {number: index for index, number in enumerate(chosen)})
        fields = (CAPABILITY, MODE, *(name for name in own[0].values if name not in (CAPABILITY, MODE)))
        return dispatch_tree([*own, *expected], range(len(chosen)), fields)

    def _used(self, chosen: Sequence[int], tree: Tree) -> tuple[int, ...]:
        """Return the programs to which a dispatch sends measured shapes."""
        used = {served_by(tree, sample) for place, sample in self.served(chosen) if not place.held_out}
        return tuple(number for index, number in enumerate(chosen) if index in used)

    def _dropped(self) -> bool:
        """Compute the samples without the programs that were left out; return whether they changed."""
        before = self._samples
        self._samples = [(place, self._sample(place, configs, found)) for place, configs, found in self._found]
        return [sample.times for _, sample in before] != [sample.times for _, sample in self._samples]

    def samples_of(self, chosen: Sequence[int], *, held_out: bool) -> list[Sample]:
        """Return the samples of chosen programs with the numbers of variants, at sampled or at held-out places."""
        return [one for place, one in self.served(chosen) if place.held_out == held_out and not place.further]

    def served(self, chosen: Sequence[int]) -> list[tuple[Place, Sample]]:
        """Return each place with the times of the chosen programs, by the numbers of variants."""
        numbers = {number: index for index, number in enumerate(chosen)}
        return [(place, sample.only(chosen, numbers)) for place, sample in self._every()]

    def shapes(self, chosen: Sequence[int], tree: Tree) -> list[dict[str, Any]]:
        """Return the code that a dispatch selects at each place, with its time, as JSON values."""
        leaves, rows = [leaf for _, leaf in regions(tree)], []
        for place, sample in self.served(chosen):
            found = served_at(tree, sample)
            if place.further:
                found = replace(found, loss=None)  # no other code was measured there
            region = next(i for i, leaf in enumerate(leaves) if leaf is leaf_of(tree, sample.values))
            ratio = None if found.variant is None else sample.ratios.get(found.variant)
            rows.append(
                {
                    "problem": place.problem.in_words(every=True), "held_out": place.held_out,
                    "further": place.further, "weight": place.weight,
                    "region": region, **asdict(found), "best_us": sample.best_us, "baseline_us": sample.baseline_us,
                    "ratio_ci95": None if ratio is None else list(ratio),
                }
            )  # fmt: skip
        return rows

    def _check_fit(self, chosen: Sequence[int]) -> None:
        """Leave out times and programs, so that variants take exactly the places at which they have a time.

        A variant that takes a place without a time there could serve it, although no gate accepted it there.
        """
        for place, sample in self._samples:
            taken = self._taking(chosen, place)
            self._refused |= {(place.name, number) for number in chosen if number in sample.times} - {
                (place.name, number) for number in taken
            }
            if sample.times:
                self._leave_out_unchecked(taken, place, sample)

    def _every(self) -> list[tuple[Place, Sample]]:
        return [*self._samples, *self._further, *self._held]

    def _checked(
        self, chosen: Sequence[int], places: Sequence[Place], references: Sequence[Place]
    ) -> list[tuple[Place, Sample]]:
        """Measure the chosen programs at places, and the nearest of some champions as references.

        Programs that fail at a place that they take are left out.
        """
        plans = []
        for place in places:
            pool = [self._origin(number) for number in self._taking(chosen, place)]
            plans.append((place, *measured_at(place, pool, references, lambda program: True)))
        found = [(place, self._sample(place, configs, times)) for place, configs, times in self._measured(plans)]
        for place, sample in found:
            self._leave_out_unchecked(self._taking(chosen, place), place, sample)
        return found

    def _taking(self, chosen: Sequence[int], place: Place) -> list[int]:
        """Return the programs whose variants take a place."""
        return [n for n in chosen if self._made[n].chip == place.chip and _takes(self._made[n], place)]

    def _leave_out_unchecked(self, taken: Sequence[int], place: Place, sample: Sample) -> None:
        """Leave out the programs that take a place and have no time there."""
        for number in taken:
            if number not in sample.times:
                self._leave_out_program(number, f"it could not be checked at {place.problem}, which it takes")

    def _check_edges(self, chosen: Sequence[int], tree: Tree) -> None:
        """Leave out the programs that fail the gate at an edge of a region that they serve."""
        for index, number in enumerate(chosen):
            place = self._home(number)
            edges = [one for one in self._edges(tree, place) if self._serves(tree, chosen, one, place) == index]
            known = {one.problem.key for one, sample in self._every() if number in sample.times}
            new = [one for one in edges if one.key not in known]
            if new and (why := self._stored.failure_at(place, self._origin(number), new)):
                leave_out = self._leave_out_candidate if is_wrong(why) else self._leave_out_program
                leave_out(number, f"{why} at an edge of its region ({'; '.join(map(str, new))})")

    def _check_proofs(self, chosen: Sequence[int]) -> None:
        """Leave out the programs without a passed verification; verifications of a search are not repeated."""
        wanted = [one for one in chosen if one not in self._proofs]
        for number in wanted:
            if (proof := self._origin(number).proof) is not None and proof.verified:
                self._proofs[number] = proof
        wanted = [] if self._force else [one for one in wanted if one not in self._proofs]
        variants = [(self._origin(number), self._home(number)) for number in wanted]
        for number, (_, place), proof in zip(wanted, variants, self._stored.verifications(variants), strict=True):
            self._proofs[number] = proof
            if proof.verified is False:
                self._leave_out_candidate(number, f"{proof.reason} at {place.problem}")
            elif proof.verified is None:
                self._leave_out_program(number, f"it is not verified at {place.problem} ({proof.reason})")

    def _edges(self, tree: Tree, place: Place) -> Iterator[Problem]:
        """Yield the smallest and the largest shape of each region, and the largest less one, as far as they exist.

        Regions are bounded by the tree, and by the smallest and largest value of each field at the places.
        """
        same = [one.problem for one in self._places if one.names == place.names and one.device == place.device]
        entries = {one.name: one for one in place.kernel.fields if isinstance(place.problem[one.name], int)}
        seen: set[str] = set()
        for box, _ in regions(tree):
            ends: dict[str, tuple[int, int]] = {}
            for name, entry in entries.items():
                values = sorted(v for one in same if isinstance(v := one[name], int))
                low, high = box.get((name,), (None, None))
                low, high = values[0] if low is None else low, values[-1] if high is None else high
                inner = [v for v in (*values, low, high) if field_holds(entry, v) and low <= v <= high] or values
                ends[name] = min(inner), max(inner)
            tail = {n: high - (high > low and field_holds(entries[n], high - 1)) for n, (low, high) in ends.items()}
            corners = ({n: low for n, (low, _) in ends.items()}, {n: high for n, (_, high) in ends.items()}, tail)
            for corner in corners:
                problem = place.problem.changed(corner)
                if problem.key not in seen:
                    seen.add(problem.key)
                    yield problem

    def _serves(self, tree: Tree, chosen: Sequence[int], problem: Problem, like: Place) -> int | None:
        """Return the variant that the package selects for a shape with another place's mode and chip."""
        place = replace(like, subject=replace(like.subject, problems=(problem,)))
        leaf = leaf_of(tree, place.values(self._modes[place.names]))
        return next((index for index in leaf.variants if _takes(self._made[chosen[index]], place)), None)

    def _home(self, number: int) -> Place:
        """Return the heaviest sampled place at which a program was measured."""
        here = [place for place, sample in self._samples if number in sample.times]
        return max(here, key=lambda place: place.weight)

    def _program(self, number: int) -> ProgramKey:
        return [*self._programs][number]

    def _origin(self, number: int) -> PoolCandidate:
        program = self._program(number)
        return self._origins[program.device, program.config]

    def _leave_out(self, device: str, key: str, why: str) -> None:
        """Leave out a wrong candidate with all its programs; report it once if it could become a variant."""
        if (device, key) not in self._wrong:
            self._wrong.add((device, key))
            if origin := self._origins.get((device, key)):
                self._report(f"{origin.title} is left out: {why}")
                self.refuted[origin.title] = why

    def _leave_out_candidate(self, number: int, why: str) -> None:
        program = self._program(number)
        self._leave_out(program.device, program.config, why)

    def _leave_out_program(self, number: int, why: str) -> None:
        """Leave out one program of a candidate that is not wrong, and report it."""
        program, origin = self._program(number), self._origin(number)
        if number not in self._out and (program.device, program.config) not in self._wrong:
            self._out.add(number)
            self._report(f"{origin.title} is left out: {why}")
            self.refuted.setdefault(origin.title, why)

    def _variant(self, number: int) -> Variant:
        """Compile a program for its heaviest place."""
        home, origin = self._home(number), self._origin(number)
        title = f"{origin.title}, compiled for {home.problem}"
        self._report(f"compiling for {home.chip.architecture}: {title}")
        return variant_of(home.kernel, origin.config, home.problem, home.chip, title)

    def modes(self) -> list[tuple[Problem, Traces]]:
        """Return a problem with its traces for each combination of names, in the order of the modes."""
        return [(p.problem, trace(p.kernel, config, p.problem, p.chip)) for p, config in self._traced]

    def facts(self, chosen: Sequence[int], variants: Sequence[Variant]) -> list[dict[str, Any]]:
        """Return the origin of each variant."""
        rows = []
        for number, variant in zip(chosen, variants, strict=True):
            origin = self._origin(number)
            record, proof = origin.owner.subject.record, self._proofs.get(number, origin.proof)
            checked = [place for place, sample in self._every() if number in sample.times]
            rows.append(
                {
                    "study": origin.owner.name, "created": record.created, "trial": origin.trial,
                    "changed": origin.changed, "genes": dict(origin.config),
                    "problem": variant.problem.in_words(every=True), "device": record.device,
                    "times": "predicted" if record.predicted else "measured",
                    "verification": None if proof is None else proof.as_dict(),
                    "gate_passed_at": [place.problem.in_words(every=True) for place in checked],
                    "architecture": f"sm_{variant.capability}", "kernel_digest": origin.owner.kernel.digest(),
                }
            )  # fmt: skip
        return rows


def _useful(pool: Sequence[PoolCandidate], sample: Sequence[Place], least: float) -> set[ProgramKey]:
    """Return the programs that may become variants: those that serve some weight, and those of a study's own shape."""
    weights: Counter[ProgramKey] = Counter()
    for one in pool:
        for place in sample:
            if place.device == one.owner.device and place.runs(one.config):
                weights[place.program(one.config)] += place.weight  # type: ignore[assignment]
    own = {one.owner.program(one.config) for one in pool}
    return own | {program for program, weight in weights.items() if weight >= least}


def _takes(variant: Variant, place: Place) -> bool:
    problem = place.problem
    fields = {name: int(problem[name]) for name in variant.traces.fields}
    names = all(variant.problem[n] == v for n, v in problem.items() if n not in fields)
    ranges = all(field_holds(entry, fields[entry.name]) for entry in place.kernel.fields if entry.name in fields)
    return names and ranges and all(guard.holds(fields) for guard in variant.traces.guards)
