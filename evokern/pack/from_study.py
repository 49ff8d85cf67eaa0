"""A package with one variant: the champion of one study, or a trial of it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evokern.analysis.candidates import chip_of, declared_config
from evokern.compile.nvrtc import compiler_version
from evokern.declaration.kernel import Kernel, Problem
from evokern.errors import StudyError
from evokern.export.checked import Report
from evokern.export.from_store import exportable_trial
from evokern.export.trace import Traces
from evokern.pack.baseline_code import baselines_of
from evokern.pack.folder import Written, package_name, write_package
from evokern.pack.operations import operation_of
from evokern.pack.operator_code import Description
from evokern.pack.signature import signature_of
from evokern.pack.tree import Tree, TreeLeaf
from evokern.pack.variant import Variant, variant_of
from evokern.search.stored_kernel import stored_kernel
from evokern.store import Reader, StudyRecord, TrialRecord, Verification, db_option
from evokern.wording import command

_TAKEN = (
    "explain", "stats", "selftest", "benchmark", "torch", "Any", "Path", "Explanation", "Operator", "BASELINES", "Sdpa",
    "Launcher", "annotations", "replace_sdpa", "register_attention", "replace_linear", "replace_rmsnorm",
    "replace_modules", "is_linear", "is_rmsnorm",
)  # fmt: skip


@dataclass(frozen=True)
class PackedStudy:
    """A package with one variant, and its origin."""

    written: Written
    """The package."""
    operator: str
    """Name of the operator with its namespace."""
    schema: str
    """Arguments of the operator."""
    trial: int
    """Number of the trial."""
    proof: Verification
    """Verification of the trial."""
    machine_code: str
    """Whether the machine code is the measured one."""


def packed_study(
    reader: Reader,
    study: str | None,
    trial: int | None,
    folder: Path,
    *,
    problem: int = 0,
    trust: bool = False,
    force: bool = False,
    report: Report = lambda text: None,
) -> PackedStudy:
    """Write a package with one trial of a study.

    Args:
        reader: the open database.
        study: name of the study; None for the latest study.
        trial: number of the trial; None for the champion.
        folder: folder of the package.
        problem: index of the study's problem whose values are part of the machine code.
        trust: whether to load the kernel's declaration from the database if its folder is missing or changed.
        force: whether to pack a trial that is not verified.
        report: prints a line before a step that may take several seconds.

    Raises:
        StudyError: the trial does not exist, was not measured, or is not verified.
        KernelError: the kernel cannot become an operator.
        UsageError: the folder cannot be written, or its name cannot name a package.
    """
    record, found, proof = exportable_trial(reader, study, trial, problem=problem, force=force)
    if proof.verified is not True and not force:
        number, where = found.trial.number, db_option(reader.path)
        raise StudyError(
            f"trial {number} of {record.name} is not verified ({proof.reason}); run "
            f"`{command('verify', record.name, '--trial', number, *where)}`, or use --force to pack it anyway"
        )
    package = package_name(folder)
    with tempfile.TemporaryDirectory(prefix="evokern-pack-") as scratch:
        kernel = stored_kernel(reader, record, found.kernel_digest, Path(scratch), trust=trust)
        chip = chip_of(record.device, reader.sessions(record))
        at, baselines = kernel.problem(record.problems[problem]), baselines_of(kernel)
        title = f"trial {found.trial.number} of {record.name}"
        report(f"compiling {title} for {chip.architecture}")
        variant = variant_of(kernel, declared_config(kernel, record, found.trial), at, chip, title)
        made = describe(kernel, package, (variant,))
        same = variant.built.fingerprint == found.trial.evaluation.fingerprint
        code = "as measured" if same else f"compiled again by {compiler_version()}, differs from the measured code"
        facts = _facts(reader, record, found, proof, variant, code)
        report(f"building the operator {package}::{made.name}")
        written = write_package(folder, made, baselines, facts)
    return PackedStudy(
        written, f"{package}::{made.name}", made.signature.arguments_schema, found.trial.number, proof, code
    )


def describe(
    kernel: Kernel,
    package: str,
    variants: tuple[Variant, ...],
    tree: Tree | None = None,
    others: Sequence[tuple[Problem, Traces]] = (),
) -> Description:
    """Return the description of an operator.

    Args:
        kernel: the kernel.
        package: name of the package.
        variants: its variants.
        tree: the dispatch; None tries the variants in their order.
        others: problems that the operator also takes, for example with another data type, before those of variants.
    """
    signature = signature_of(kernel, [*others, *((one.problem, one.traces) for one in variants)])
    tree = TreeLeaf(tuple(range(len(variants)))) if tree is None else tree
    found = operation_of(kernel, signature, variants[0].problem, variants[0].config)
    return Description(kernel, package, operator_name(kernel), signature, variants, tree, found)


def operator_name(kernel: Kernel) -> str:
    """Return the name of a kernel's operator."""
    name = re.sub(r"\W", "_", kernel.name, flags=re.ASCII).strip("_") or "operator"
    return f"{name}_op" if name[0].isdigit() or name in _TAKEN else name


def _facts(
    reader: Reader, record: StudyRecord, found: TrialRecord, proof: Verification, variant: Variant, code: str
) -> dict[str, Any]:
    """Return the origin of the variant."""
    sessions = reader.sessions(record)
    environment = sessions[-1].environment if sessions else {}
    fastest, best = reader.baseline(record), found.trial.evaluation.time_us
    own = {
        "study": record.name, "created": record.created, "trial": found.trial.number,
        "genes": dict(found.trial.config), "problem": variant.problem.in_words(every=True),
        "device": record.device, "times": "predicted" if record.predicted else "measured", "time_us": best,
        "fastest_baseline": None if fastest is None else {"name": fastest[0], "time_us": fastest[1]},
        "verification": proof.as_dict(), "machine_code": code, "architecture": f"sm_{variant.capability}",
        "kernel_digest": found.kernel_digest,
        "environment": {key: environment[key] for key in ("driver", "driver_cuda", "compiler") if key in environment},
    }  # fmt: skip
    return {"compiler": compiler_version(), "variants": [own]}
