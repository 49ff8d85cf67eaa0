"""A package with several variants, chosen from the studies of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evokern.analysis.candidates import TrialUnderTest, trial_under_test
from evokern.analysis.stored import chip_of
from evokern.compile.nvrtc import compiler_version
from evokern.declaration.feasibility import check
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.render import macros
from evokern.errors import KernelError, StudyError
from evokern.export.checked import Report
from evokern.export.from_store import exportable_trial
from evokern.export.launcher import field_holds
from evokern.export.trace import Traces, trace
from evokern.hardware.profiles import Profile
from evokern.pack.baseline_code import BaselineModule, baselines_of
from evokern.pack.choice import Sample, Summary, chosen_variants, dispatch_tree, summary_of
from evokern.pack.crosswise import CrosswiseTimes, config_key
from evokern.pack.folder import Written, package_name, write_package
from evokern.pack.from_study import describe
from evokern.pack.tree import CAPABILITY, MODE, Tree, leaves
from evokern.pack.variant import Variant, variant_of
from evokern.store import Verification, open_readonly
from evokern.sweep import Sweep
from evokern.wording import command, count_noun

MOST_CANDIDATES = 24
"""Largest number of candidates that are measured at one problem; those of the nearest problems are preferred."""


@dataclass(frozen=True)
class _Study:
    """A study of the sweep with a champion that can be packed."""

    name: str
    subject: TrialUnderTest
    weight: float
    chip: Profile
    proof: Verification

    @property
    def problem(self) -> Problem:
        return self.subject.problems[0]

    @property
    def kernel(self) -> Kernel:
        return self.subject.kernel

    @property
    def config(self) -> Config:
        return self.kernel.space.canonical(self.subject.trial.config)


@dataclass(frozen=True)
class _Key:
    """Identity of a possible variant: a candidate, and the macros that its machine code contains."""

    device: str
    config: str
    macros: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class PackedSweep:
    """A package with several variants, and the costs of its dispatch."""

    written: Written
    """The package."""
    operator: str
    """Name of the operator with its namespace."""
    schema: str
    """Arguments of the operator."""
    variants: tuple[str, ...]
    """Titles of the variants."""
    summary: Summary
    """Costs of the dispatch at the searched problems."""
    without: tuple[str, ...]
    """Studies without a champion, whose problems go to the baseline."""


def packed_sweep(
    sweep: Sweep,
    databases: Path,
    folder: Path,
    *,
    most: int = 8,
    trust: bool = False,
    force: bool = False,
    report: Report = lambda text: None,
) -> PackedSweep:
    """Write a package with the best variants of a sweep.

    Args:
        sweep: the sweep.
        databases: folder of the studies' databases.
        folder: folder of the package.
        most: largest number of variants.
        trust: whether to load the kernel's declaration from a database if its folder is missing or changed.
        force: whether to pack champions that are not verified.
        report: prints a line before a step that may take several seconds.

    Raises:
        StudyError: no study has a champion, or a champion is not verified.
        KernelError: the studies ran different kernels or versions, or the kernel cannot become an operator.
        DeviceError: candidates must be measured, and the device of a study is not available.
    """
    package = package_name(folder)
    with ExitStack() as stack:
        studies, without = _studies(stack, sweep, databases, trust, force)
        kernel, baselines = studies[0].kernel, baselines_of(studies[0].kernel)
        times = CrosswiseTimes(databases)
        keys, samples = _samples(studies, times, baselines, report)
        chosen, variants, tree, samples = _chosen(studies, keys, samples, most, report)
        made = describe(kernel, package, variants, tree, _modes(studies))
        summary = summary_of(tree, samples)
        report(f"building the operator {package}::{made.name}")
        written = write_package(folder, made, baselines, _facts(studies, keys, chosen, variants, summary))
    return PackedSweep(
        written, f"{package}::{made.name}", made.signature.arguments_schema, tuple(one.title for one in variants),
        summary, tuple(without),
    )  # fmt: skip


def _studies(
    stack: ExitStack, sweep: Sweep, databases: Path, trust: bool, force: bool
) -> tuple[list[_Study], list[str]]:
    """Return the studies with a champion, and the names of the others."""
    found: list[_Study] = []
    without: list[str] = []
    for planned in sweep.studies:
        path = planned.database(databases)
        if not path.is_file():
            raise StudyError(
                f"{path} does not exist: study {planned.name} was not searched; run "
                f"`{command('sweep', 'run', sweep.path)}`, or name the folder of its databases with --db"
            )
        reader = stack.enter_context(open_readonly(path))
        record = reader.study(planned.name)
        if reader.best(record) is None and not reader.refuted(record):
            without.append(planned.name)
            continue
        record, trial, proof = exportable_trial(reader, planned.name, None, force=force)
        if proof.verified is not True and not force:
            raise StudyError(
                f"the champion of {planned.name}, trial {trial.trial.number}, is not verified ({proof.reason}); run "
                f"`{command('verify', planned.name, '--trial', trial.trial.number, '--db', path)}`, or use --force"
            )
        subject = stack.enter_context(trial_under_test(reader, planned.name, trial.trial.number, elites=0, trust=trust))
        chip = chip_of(record.device, reader.sessions(record))
        found.append(_Study(planned.name, subject, planned.weight, chip, proof))
    if not found:
        raise StudyError(f"no study of {sweep.path} has a correct candidate yet; search longer")
    _check_same(found)
    return found, without


def _check_same(studies: Sequence[_Study]) -> None:
    """Refuse studies of different kernels, of different versions, or on different chips of one architecture.

    Raises:
        KernelError: there are such studies.
    """
    first = studies[0]
    chips: dict[tuple[int, int], _Study] = {}
    for one in studies:
        if one.kernel.name != first.kernel.name:
            raise KernelError(
                f"{first.name} searched kernel {first.kernel.name}, but {one.name} searched {one.kernel.name}; a "
                "package contains one kernel, so give each kernel its own sweep file"
            )
        if one.kernel.digest() != first.kernel.digest():
            raise KernelError(
                f"{first.name} and {one.name} searched different versions of kernel {first.kernel.name} "
                f"({first.kernel.digest()[:12]} and {one.kernel.digest()[:12]}); search again with the current code"
            )
        other = chips.setdefault(one.chip.compute_capability, one)
        if other.subject.record.device != one.subject.record.device:
            raise KernelError(
                f"{other.name} ran on {other.subject.record.device} and {one.name} on {one.subject.record.device}, "
                "which have the same architecture; a package contains one chip of each, so choose one with --device"
            )


def _samples(
    studies: Sequence[_Study], stored: CrosswiseTimes, baselines: BaselineModule, report: Report
) -> tuple[list[_Key], list[Sample]]:
    """Measure the candidates crosswise; return the possible variants, and the times at each study's problem."""
    keys: dict[_Key, int] = {}
    samples = []
    modes: dict[tuple[tuple[str, str], ...], int] = {}
    for study in studies:
        configs = list(_candidates(study, studies))
        measured = stored.at(study.subject, configs, report)
        times = {}
        for config in configs:
            time_us = measured.candidates[config_key(config)]
            if time_us is not None:
                key = _Key(study.subject.record.device, config_key(config), _macros(study, config))
                times[keys.setdefault(key, len(keys))] = time_us
        major, minor = study.chip.compute_capability
        values = {CAPABILITY: 10 * major + minor, MODE: modes.setdefault(_names(study.problem), len(modes))}
        values |= {name: value for name, value in study.problem.items() if isinstance(value, int)}
        known = {baselines.names.index(n): t for n, t in measured.baselines.items() if n in baselines.names}
        samples.append(Sample(values, times, known, study.weight))
    return list(keys), samples


def _candidates(study: _Study, studies: Sequence[_Study]) -> Iterator[Config]:
    """Yield the champions that can run a study's problem, those of the nearest problems first."""
    same = [one for one in studies if one.subject.record.device == study.subject.record.device]
    same.sort(key=lambda one: (_distance(one.problem, study.problem), one.name))
    seen: set[str] = set()
    for one in same:
        if config_key(one.config) in seen or len(seen) == MOST_CANDIDATES:
            continue
        seen.add(config_key(one.config))
        if check(study.kernel, one.config, [study.problem], study.chip, essential=True) is None:
            yield one.config


def _distance(one: Problem, other: Problem) -> float:
    """Return how far two problems are apart: the sum of the logarithms of the ratios of their numbers."""
    total = 0.0
    for name, value in one.items():
        if isinstance(value, int) and isinstance(other[name], int):
            total += abs(math.log((value + 1) / (int(other[name]) + 1)))
        else:
            total += 100.0 * (value != other[name])
    return total


def _macros(study: _Study, config: Config) -> tuple[tuple[str, str], ...]:
    found = macros(study.kernel, config, study.problem)
    return tuple(sorted((name, str(value)) for name, value in dict(found).items()))


def _chosen(
    studies: Sequence[_Study], keys: Sequence[_Key], samples: list[Sample], most: int, report: Report
) -> tuple[tuple[int, ...], tuple[Variant, ...], Tree, list[Sample]]:
    """Choose and compile variants; return their keys, the variants, the dispatch over them, and the samples."""
    made: dict[int, Variant] = {}
    while True:
        chosen = chosen_variants(samples, most)
        if not chosen:
            raise StudyError("no candidate is faster than the baseline at any problem, so there is nothing to pack")
        for key in chosen:
            if key not in made:
                made[key] = _variant(studies, keys[key], samples, key, report)
        kept = [_taken(study, sample, made) for study, sample in zip(studies, samples, strict=True)]
        if kept == samples:  # each variant takes all shapes for which it was chosen
            break
        samples = kept
    fields = (CAPABILITY, MODE, *(e.name for e in studies[0].kernel.fields if e.name in samples[0].values))
    numbers = {key: index for index, key in enumerate(chosen)}
    own = [
        Sample(s.values, {numbers[k]: t for k, t in s.times.items() if k in numbers}, s.baselines, s.weight)
        for s in samples
    ]
    tree = dispatch_tree(own, tuple(numbers.values()), fields)
    used = sorted({variant for leaf in leaves(tree) for variant in leaf.variants})
    if len(used) < len(chosen):  # a variant that no leaf names is left out
        return _chosen(studies, keys, [_only(s, {chosen[one] for one in used}) for s in samples], most, report)
    return chosen, tuple(made[key] for key in chosen), tree, own


def _only(sample: Sample, keys: set[int]) -> Sample:
    return Sample(sample.values, {k: t for k, t in sample.times.items() if k in keys}, sample.baselines, sample.weight)


def _taken(study: _Study, sample: Sample, made: dict[int, Variant]) -> Sample:
    """Return a sample without times of variants whose launcher does not take the problem."""
    return _only(sample, {key for key in sample.times if key not in made or _takes(made[key], study)})


def _takes(variant: Variant, study: _Study) -> bool:
    fields = {name: int(study.problem[name]) for name in variant.traces.fields}
    names = all(variant.problem[n] == v for n, v in study.problem.items() if n not in fields)
    ranges = all(field_holds(entry, fields[entry.name]) for entry in study.kernel.fields if entry.name in fields)
    return names and ranges and all(guard.holds(fields) for guard in variant.traces.guards)


def _variant(studies: Sequence[_Study], key: _Key, samples: Sequence[Sample], number: int, report: Report) -> Variant:
    """Compile a variant for the problem with the largest weight at which it was measured."""
    places = [index for index, sample in enumerate(samples) if number in sample.times]
    at = studies[max(places, key=lambda index: (samples[index].weight, -index))]
    owner = next(
        one for one in studies
        if config_key(one.config) == key.config and one.subject.record.device == key.device
    )  # fmt: skip
    title = f"trial {owner.subject.trial.number} of {owner.name}, compiled for {at.problem}"
    report(f"compiling for {at.chip.architecture}: {title}")
    return variant_of(studies[0].kernel, owner.config, at.problem, at.chip, title)


def _modes(studies: Sequence[_Study]) -> list[tuple[Problem, Traces]]:
    """Return a problem with its traces for each combination of names, in the order of the modes in `_samples`."""
    found: dict[tuple[tuple[str, str], ...], tuple[Problem, Traces]] = {}
    for one in studies:
        if (names := _names(one.problem)) not in found:
            found[names] = one.problem, trace(one.kernel, one.config, one.problem, one.chip)
    return list(found.values())


def _names(problem: Problem) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in problem.items() if not isinstance(value, int))


def _facts(
    studies: Sequence[_Study],
    keys: Sequence[_Key],
    chosen: Sequence[int],
    variants: Sequence[Variant],
    summary: Summary,
) -> dict[str, Any]:
    rows = []
    for key, variant in zip((keys[one] for one in chosen), variants, strict=True):
        owner = next(s for s in studies if config_key(s.config) == key.config and s.subject.record.device == key.device)
        record = owner.subject.record
        rows.append(
            {
                "study": owner.name, "created": record.created, "trial": owner.subject.trial.number,
                "genes": dict(owner.config), "problem": variant.problem.in_words(every=True), "device": record.device,
                "times": "predicted" if record.predicted else "measured", "verification": owner.proof.as_dict(),
                "architecture": f"sm_{variant.capability}", "kernel_digest": owner.kernel.digest(),
            }
        )  # fmt: skip
    return {
        "compiler": compiler_version(), "variants": rows, "searched_problems": len(studies),
        "dispatch": asdict(summary),
    }  # fmt: skip


def in_words(summary: Summary, studies: int) -> Iterator[str]:
    """Yield lines about the costs of a dispatch."""
    yield (
        f"at the {count_noun(studies, 'searched problem')}: own variants serve {100 * summary.own_share:.0f} % of the "
        f"weight, {100 * summary.loss:.1f} % slower than the best candidate of each problem"
    )
    if summary.speedup is not None:
        yield f"{summary.speedup:.2f}× as fast as the baseline; slower by more than 2 % at {summary.slower} problems"
    if summary.own_share < 0.5:
        yield "no gain: more than half of the weight goes to the baseline"
