"""`evokern export` and `evokern render`: write programs, studies for other tools, and sources of candidates."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from evokern.cli._command import command
from evokern.cli._options import (
    DEFAULT_DB,
    PROBLEM_FORMS,
    DbOption,
    ReferenceOption,
    SetOption,
    StoredStudyArgument,
    StoredTrustOption,
    TrialOption,
    complete_kernels,
    parse_assignments,
)
from evokern.cli._output import Output, save
from evokern.errors import StudyError, UsageError
from evokern.wording import command as command_line
from evokern.wording import count_noun, mean_suffix, microseconds, verification_text


class Format(StrEnum):
    """Output format of `export`."""

    CU = "cu"
    T4 = "t4"
    T1 = "t1"
    TRACE = "trace"
    TORCH = "torch"


@command(
    "export",  # words: the examples are commands
    examples="""
    evokern export -o best.cu
    evokern export attention-s512 --trial 42 -o trial42.cu --db runs.db
    evokern export attention-s512 --format t4 -o study.json
    evokern export attention-s512 --format t1 -o space.json
    evokern export attention-s512 --format trace -o trace.json
    evokern export attention-s512 --format torch -o my_attention/
    """,
)
def export(
    output: Output,
    study: StoredStudyArgument = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File to write, or - for stdout; for torch, a folder. Default: best.cu, study.json, space.json, "
            "trace.json or KERNEL_op.",
        ),
    ] = None,
    format_: Annotated[
        Format,
        typer.Option(
            "--format",
            help="cu: one trial as a CUDA program. t4: all trials, for other auto-tuners. t1: the search space, for "
            "other auto-tuners. trace: a timeline of the search, for Perfetto. torch: a Python package with one trial "
            "as an operator for torch.",
        ),
    ] = Format.CU,
    trial: TrialOption = None,
    problem: Annotated[
        str | None,
        typer.Option(
            "--problem",
            metavar="P",
            help="Problem to specialise the program for, written as in reports, or its index, starting at 0. "
            "Default: the study's first problem.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Export a trial even if its verification failed, or its program fails on the GPU. For --format torch, "
            "also export a trial that is not verified.",
        ),
    ] = False,
    reference: ReferenceOption = None,
    trust: StoredTrustOption = False,
    db: DbOption = DEFAULT_DB,
) -> None:
    """Export the champion as a CUDA program, or the study for other tools.

    The CUDA program is one .cu file that builds with nvcc alone. It contains the specialised kernel and a launcher that
    checks shapes and alignment. Its main function checks the results against the reference and times the kernel. The
    command compiles the program before it writes it, and prints which checks were made. If this machine has the
    study's GPU, the command also runs the program once.

    T1 and T4 are JSON formats that auto-tuners exchange. A T4 file contains all trials, for `evokern replay` and other
    auto-tuners; it is compressed if its name ends in .gz. A T1 file contains the search space: genes, constraints,
    launch and arguments. The command lists the parts that T1 cannot express. A trace shows each trial on the timeline
    of its worker; open it at ui.perfetto.dev.

    The package for torch contains the machine code and a library that launches it. All shapes that the kernel does not
    take run a torch function. `pip install` needs no compiler. The trial must be verified.
    """
    from evokern.export import export_trial
    from evokern.export.banner import build_commands
    from evokern.store import open_readonly
    from evokern.tuning.reference import register_reference

    if format_ is Format.T4:
        if trial is not None or problem not in (None, "0"):
            raise UsageError("--format t4 exports all trials and problems; omit --trial and --problem")
        _study(output, study, file or Path("study.json"), db)
        return
    if format_ is Format.TRACE:
        if trial is not None or problem not in (None, "0"):
            raise UsageError("--format trace exports all trials; omit --trial and --problem")
        _trace(output, study, file or Path("trace.json"), db)
        return
    if format_ is Format.T1:
        if trial is not None:
            raise UsageError("--format t1 exports the search space, not a trial; omit --trial")
        _space(output, study, file or Path("space.json"), db, problem, trust)
        return
    if reference:
        register_reference(reference)
    if format_ is Format.TORCH:
        _package(output, study, trial, file, db, problem, force=force, trust=trust)
        return
    file = file or Path("best.cu")
    name = "best.cu" if str(file) == "-" else file.name
    with open_readonly(db) as reader:
        record = reader.study(study)
        place = 0 if problem is None else record.problem_index(problem)
        made = export_trial(
            reader, study, trial, problem=place, file_name=name, trust=trust, force=force, alone=str(file) == "-",
            report=output.note,
        )  # fmt: skip
    if str(file) == "-":
        output.note(made.checks.in_words())
        output.write(made.text)
        return
    if made.golden is not None:
        save(file.with_name(made.golden.file_name), made.golden.data, "-o")
    save(file, made.text, "-o")
    if output.json:
        facts = {"trial": made.trial, "problem": made.problem, "time_us": made.time_us, "is_mean": made.is_mean}
        facts |= {"checks": made.checks.passed, "checks_omitted": made.checks.omitted}
        output.print_json({"file": str(file), **facts, "predicted": made.predicted, **made.proof.as_dict()})
        return
    unit = "µs predicted" if made.predicted else "µs"
    build, run = build_commands(made.text, file)
    where = ""
    if made.problems > 1:
        where = mean_suffix(made.problems) if made.is_mean else f" at {made.problem}"
    time = f"{microseconds(made.time_us)} {unit}{where}"
    output.print_line(f"wrote {file}: trial {made.trial} of {record.name}, {time}")
    if made.problems > 1:
        output.print_line(
            f"specialised for {made.problem}, one of the study's {made.problems} problems; "
            "choose another problem with --problem"
        )
    output.print_line(made.checks.in_words())
    output.print_line(verification_text(made.proof.as_dict()))
    output.print_line(f"build and run: {build} && {run}")


@command(
    "render",
    examples="""
    evokern render ./kernels/scale
    evokern render rmsnorm --set VECTOR=4 --problem 64,1024 --output candidate
    evokern render rmsnorm-8192 --trial 42 --db runs.db
    """,
)
def render(
    output: Output,
    name: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL|STUDY", help="Name or folder of a kernel, or name of a study.",
            autocompletion=complete_kernels,
        ),
    ],
    trial: TrialOption = None,
    set_: SetOption = [],  # noqa: B006 (typer makes a new list for every call)
    problem: Annotated[
        str | None,
        typer.Option(
            "--problem", metavar="P",
            help=f"Problem with the values of problem macros, {PROBLEM_FORMS}. Default: the first known problem.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FOLDER",
            help="Folder for the source and the header. Default: for a kernel below the working directory, "
            "only the header is written, into its folder; otherwise ./KERNEL-candidate or ./STUDY-trial-N.",
        ),
    ] = None,
    trust: StoredTrustOption = False,
    db: DbOption = DEFAULT_DB,
) -> None:  # fmt: skip
    """Write the source and the header evokern_genes.h of a candidate.

    The header contains the values of genes and of other macros, and assertions that follow from the kernel's
    constraints. With the header, nvcc, clangd and editors read the source without -D options. -D replaces one value;
    values that kernel.py computes from it do not change. A search neither reads nor needs a written header.
    """
    from evokern.analysis.profile.subject import ProfileRequest, subject_of
    from evokern.declaration.kernel_files import CODE, GENERATED, write_kernel_files
    from evokern.declaration.render import candidate_header
    from evokern.study.discovery import kernel_folders

    request = ProfileRequest(name, db, trial, parse_assignments(set_), problem, "sim:l4", trust, runs=False)
    try:
        with subject_of(request) as subject:
            kernel, header = subject.kernel, candidate_header(subject.kernel, subject.config, subject.problem)
            here = kernel.folder.resolve().is_relative_to(Path.cwd().resolve())
            own = subject.record is None and folder is None and here
            if own:
                place = kernel.folder
            else:
                number = f"trial-{subject.trial.number}" if subject.trial else "candidate"
                code = {one.name: one.content for one in kernel.files() if Path(one.name).suffix in CODE}
                root = folder or Path(f"{subject.record.name if subject.record else kernel.name}-{number}")
                place = write_kernel_files(root, kernel.name, code)
            title, at = subject.title, subject.problem
    except StudyError:
        if trial is not None and (name in kernel_folders() or Path(name).is_dir()):
            raise UsageError(f"--trial {trial} needs a study, but {name} is a kernel; name the study") from None
        raise
    save(place / GENERATED, header.text, "--output")
    if output.json:
        output.print_json(
            {"folder": str(place), "source": str(place / kernel.source), "header": str(place / GENERATED),
             "entries": header.entries, "left_out": header.left_out}
        )  # fmt: skip
        return
    output.print_line(f"wrote {place / GENERATED}{'' if own else f' and {kernel.source}'}: {title} at {at}")
    output.print_line(f"entry points: {', '.join(header.entries)}")
    if header.left_out:
        output.print_line(f"constraints without an assertion: {', '.join(header.left_out)}")
    if not header.included:
        output.print_line(
            f'{kernel.source} does not include the header; add #include "{GENERATED}", or compile it with '
            f"-include {place / GENERATED}"
        )


def _study(output: Output, study: str | None, file: Path, db: Path) -> None:
    from evokern.export.t4 import t4
    from evokern.store import open_readonly

    with open_readonly(db) as reader:
        record = reader.study(study)
        made = t4(reader, record)
    if _written(output, file, made, {"study": record.name, "trials": len(made["results"])}):
        output.print_line(f"wrote {file}: {len(made['results'])} trials of {record.name}")
        output.print_line(f"to compare samplers on this file: {command_line('replay', file)}")


def _trace(output: Output, study: str | None, file: Path, db: Path) -> None:
    from evokern.export.search_trace import search_trace
    from evokern.store import open_readonly

    with open_readonly(db) as reader:
        record = reader.study(study)
        made = search_trace(reader, record)
    facts = made["otherData"]
    if not _written(output, file, made, facts):
        return
    contents = f"{facts['spans']} spans of {count_noun(facts['trials'], 'trial')} of {record.name}"
    output.print_line(f"wrote {file}: {contents}; open it at ui.perfetto.dev")
    if facts["missing"]:
        output.print_line(facts["missing"])


def _space(output: Output, study: str | None, file: Path, db: Path, problem: str | None, trust: bool) -> None:
    from evokern.export.t1 import t1
    from evokern.store import open_readonly

    with open_readonly(db) as reader:
        record = reader.study(study)
        made = t1(reader, record, problem=0 if problem is None else record.problem_index(problem), trust=trust)
    space = made["ConfigurationSpace"]
    parameters, conditions = len(space["TuningParameters"]), len(space["Conditions"])
    left_out = made["evokern"]["left_out"]
    facts = {"study": record.name, "parameters": parameters, "conditions": conditions, "left_out": left_out}
    facts |= {"checks": made["evokern"]["checks"]}
    if not _written(output, file, made, facts):
        return
    output.print_line(f"wrote {file}: {parameters} parameters and {conditions} conditions of {record.name}")
    output.print_line(made["evokern"]["checks"])
    for what in left_out:
        output.print_line(f"T1 cannot express {what}")


def _package(
    output: Output, study: str | None, trial: int | None, folder: Path | None, db: Path, problem: str | None, *,
    force: bool, trust: bool,
) -> None:  # fmt: skip
    from evokern.pack import packed_study
    from evokern.store import open_readonly

    if str(folder) == "-":
        raise UsageError("--format torch writes a folder; name it with -o, for example -o my_operator/")
    with open_readonly(db) as reader:
        record = reader.study(study)
        place = 0 if problem is None else record.problem_index(problem)
        made = packed_study(
            reader, study, trial, folder or Path(f"{record.kernel}_op"), problem=place, trust=trust, force=force,
            report=output.note,
        )  # fmt: skip
    if output.json:
        facts = {"folder": str(made.written.folder), "operator": made.operator, "trial": made.trial}
        facts |= {"launch": made.written.launch, "machine_code": made.machine_code}
        output.print_json({**facts, "files": list(made.written.files), **made.proof.as_dict()})
        return
    output.print_line(
        f"wrote {made.written.folder}: operator {made.operator}({made.schema}) from trial {made.trial} of {record.name}"
    )
    output.print_line(f"machine code: {made.machine_code}; launched by {made.written.launch}")
    output.print_line(verification_text(made.proof.as_dict()))
    output.print_line(f"install: {made.written.install}")


def _written(output: Output, file: Path, made: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Write JSON to a file or to stdout; return whether it was written to a file.

    Args:
        output: output of the command.
        file: the file, or `-` for stdout.
        made: the content.
        facts: facts about the content that `--json` prints in addition to the file name.
    """
    from evokern.export.t4 import json_bytes

    content = json_bytes(made, file)
    if str(file) == "-":
        output.write(content.decode() + "\n")
        return False
    save(file, content, "-o")
    if output.json:
        output.print_json({"file": str(file), **facts})
    return True
