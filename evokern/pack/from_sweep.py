"""A package with several variants, chosen from the studies of a sweep."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from evokern.analysis.candidates import chip_of, trial_under_test
from evokern.compile.nvrtc import compiler_version
from evokern.errors import KernelError, StudyError
from evokern.export.checked import Report
from evokern.export.from_store import exportable_trial
from evokern.files import write_whole
from evokern.pack.baseline_code import baselines_of
from evokern.pack.candidates import MOST_TRIALS, Place, narrow_genes
from evokern.pack.choice import Summary, summary_of
from evokern.pack.crosswise import CrosswiseTimes
from evokern.pack.folder import Written, package_name, write_package
from evokern.pack.from_study import describe
from evokern.pack.page import pack_page
from evokern.pack.selection import PackRequest, Selection
from evokern.search.identity import problems_of
from evokern.store import has_studies, open_readonly
from evokern.sweep import PlannedStudy, Sweep
from evokern.wording import command, count_noun
from evokern.workers.fork_server import keeping_servers

MOST_SAMPLED = 48
"""Largest number of shapes at which candidates are measured to choose variants, without the held-out shapes."""
MOST_FURTHER = 72
"""Largest number of further shapes at which only the chosen variants are measured, to build the dispatch."""
PAGE = "report.html"
"""File of the page about a package, in its folder."""


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
    """Costs of the dispatch at the shapes for which variants were chosen."""
    held_out: Summary
    """Costs of the dispatch at the held-out shapes."""
    without: tuple[str, ...]
    """Searched studies without a champion."""

    @property
    def gains(self) -> bool:
        """Whether own variants serve at least half of the weight: of the held-out shapes, if there are any."""
        return (self.held_out if self.held_out.shapes else self.summary).own_share >= 0.5


def packed_sweep(
    sweep: Sweep, databases: Path, folder: Path, request: PackRequest, report: Report = lambda text: None
) -> PackedSweep:
    """Write a package with the best variants of a sweep.

    Args:
        sweep: the sweep.
        databases: folder of the studies' databases.
        folder: folder of the package.
        request: options.
        report: prints a line before a step that may take several seconds.

    Raises:
        OverBudgetError: the time for measuring is used up; the times so far are stored.
        StudyError: no study has a champion, or no verified candidate is faster than the baseline.
        KernelError: the studies ran different kernels or versions, or the kernel cannot become an operator.
        DeviceError: candidates must be measured, and the device of a study is not available.
    """
    package = package_name(folder)
    with ExitStack() as stack:
        stack.enter_context(keeping_servers())
        searched, without = _searched(stack, sweep, databases, request)
        kernel, baselines = searched[0].kernel, baselines_of(searched[0].kernel)
        stored = CrosswiseTimes(databases, baselines.names, report, request.budget_s)
        places = _places(sweep, searched)
        for gene, values in narrow_genes(searched, [one for one in places if not one.held_out]):
            used = " or ".join(f"{gene.name}={value}" for value in dict.fromkeys(values))
            others = json.dumps([value for value in gene.values if value not in values])
            report(
                f"{len(values)} of {count_noun(len(searched), 'champion')} run only their own shape because of {used}; "
                f"to search programs for more shapes, set {gene.name} = {others} in [genes] of {sweep.path}"
            )
        work = Selection(places, searched, stored, request, report, unseen=sweep.shapes.sampled)
        chosen, variants, tree = work.choose()
        made = describe(kernel, package, variants, tree, work.modes())
        summary, held_out = (summary_of(tree, work.samples_of(chosen, held_out=held)) for held in (False, True))
        report(f"building the operator {package}::{made.name}")
        facts = {
            "compiler": compiler_version(), "variants": work.facts(chosen, variants),
            "searched_problems": len(searched), "dispatch": asdict(summary), "held_out": asdict(held_out),
            "loss": LOSS, "refuted": work.refuted, "baselines": list(baselines.names),
            "shapes": work.shapes(chosen, tree),
        }  # fmt: skip
        written = write_package(folder, made, baselines, facts)
        packed = PackedSweep(
            written, f"{package}::{made.name}", made.signature.arguments_schema,
            tuple(one.title for one in variants), summary, held_out, tuple(without),
        )  # fmt: skip
        page = pack_page(package, list(in_words(packed)), packed.variants, facts, tree)
        write_whole(folder / PAGE, page.encode())
    return packed


LOSS = (
    "the loss at a shape is the time divided by the best time of all code measured there, minus 1: the candidates "
    "(at held-out shapes the variants), the nearest champions compiled for this shape, and the baselines. No search "
    "ran at held-out shapes. Shapes that go to code without a time are not part of the loss"
)
"""Meaning of the loss, for people."""


def _searched(stack: ExitStack, sweep: Sweep, databases: Path, request: PackRequest) -> tuple[list[Place], list[str]]:
    """Return the studies with a champion, and the names of the searched studies without one."""
    found: list[Place] = []
    without: list[str] = []
    for planned in sweep.studies:
        path = planned.database(databases)
        if not has_studies(path):
            continue  # the budget of the sweep ended before
        reader = stack.enter_context(open_readonly(path))
        record = reader.study(planned.name)
        if reader.best(record) is None and not reader.refuted(record):
            without.append(planned.name)
            continue
        record, trial, proof = exportable_trial(reader, planned.name, None, force=request.force)
        subject = stack.enter_context(
            trial_under_test(reader, planned.name, trial.trial.number, elites=MOST_TRIALS, trust=request.trust)
        )
        chip = chip_of(record.device, reader.sessions(record))
        found.append(Place(planned.name, subject, chip, planned.weight, proof=proof))
    if not found and not without:
        raise StudyError(
            f"{databases} has no database of {sweep.path}: the sweep was not searched; run "
            f"`{command('sweep', 'run', sweep.path)}`, or name the folder of its databases with --db"
        )
    if not found:
        raise StudyError(f"no study of {sweep.path} has a correct candidate yet; search longer")
    _check_same(found)
    return found, without


def _check_same(studies: Sequence[Place]) -> None:
    """Refuse studies of different kernels, of different versions, or on different chips of one architecture.

    Raises:
        KernelError: there are such studies.
    """
    first = studies[0]
    chips: dict[tuple[int, int], Place] = {}
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
        if other.device != one.device:
            raise KernelError(
                f"{other.name} ran on {other.device} and {one.name} on {one.device}, "
                "which have the same architecture; a package contains one chip of each, so choose one with --device"
            )


def _places(sweep: Sweep, searched: Sequence[Place]) -> list[Place]:
    """Return the places at which candidates are measured: searched ones first, then others, then held-out ones.

    A shape that was not searched is measured like the shapes of the first study on the same device.
    """
    known = {one.name: one for one in searched}
    likes: dict[str, Place] = {}
    for planned in sweep.studies:
        if planned.name in known:
            likes.setdefault(planned.study.device, known[planned.name])

    def further(planned: PlannedStudy, *, held_out: bool) -> Iterator[Place]:
        if (like := likes.get(planned.study.device)) and planned.name not in known:
            problems = problems_of(planned.study, like.kernel)
            subject = replace(like.subject, study=planned.study, problems=problems, elites=())
            yield Place(planned.name, subject, like.chip, planned.weight, held_out)

    others = [place for planned in sweep.studies for place in further(planned, held_out=False)]
    held = [place for planned in sweep.held_out for place in further(planned, held_out=True)]
    every = [*searched, *others]
    for_dispatch = [replace(place, further=True) for place in every[MOST_SAMPLED:][:MOST_FURTHER]]
    return [*every[:MOST_SAMPLED], *for_dispatch, *held]


def in_words(packed: PackedSweep) -> Iterator[str]:
    """Yield lines about the costs of a dispatch."""
    for summary, kind in ((packed.summary, "sampled"), (packed.held_out, "held-out")):
        if not summary.shapes:
            yield "no held-out shapes: set held_out in [shapes] to know the loss at shapes that were not searched"
            continue
        yield (
            f"at {count_noun(summary.shapes, f'{kind} shape')}: own variants serve {100 * summary.own_share:.0f} % of "
            f"the weight; loss {100 * summary.loss:.1f} % (geometric mean), at most {100 * summary.worst_loss:.1f} %; "
            f"{summary.to_baseline} go to a baseline"
        )
        if summary.speedup is not None:
            yield (
                f"{summary.speedup:.2f}× as fast as the fastest baseline of each {kind} shape; perhaps more than 2 % "
                f"slower at {summary.slower}"
            )
    yield LOSS
    if not packed.gains:
        yield "no gain: more than half of the weight goes to the baseline"
