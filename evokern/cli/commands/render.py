"""`evokern render KERNEL|STUDY`: write the source and the generated header of a candidate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evokern.cli._command import command
from evokern.cli._options import (
    DEFAULT_DB,
    PROBLEM_FORMS,
    DbOption,
    SetOption,
    StoredTrustOption,
    TrialOption,
    complete_kernels,
    parse_assignments,
)
from evokern.cli._output import Output, save
from evokern.errors import StudyError, UsageError


@command(
    "render",
    examples="""
    evokern render ./rmsnorm
    evokern render rmsnorm --set VECTOR=4 --problem ROWS=64,COLS=1024 --output candidate
    evokern render rmsnorm-4096 --trial 42 --db runs.db
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

    The header contains the values of genes and problem macros, and assertions that follow from the kernel's
    constraints. With the header, nvcc, clangd and editors read the source without -D options; -D still replaces a
    value. A search neither reads nor needs a written header.
    """
    from evokern.analysis.profile.subject import ProfileRequest, subject_of
    from evokern.declaration.kernel_files import GENERATED, write_kernel_files
    from evokern.declaration.render import candidate_header
    from evokern.study.discovery import kernel_folders

    request = ProfileRequest(name, db, trial, parse_assignments(set_), problem, "sim:l4", trust)
    try:
        with subject_of(request) as subject:
            kernel, header = subject.kernel, candidate_header(subject.kernel, subject.config, subject.problem)
            here = kernel.folder.resolve().is_relative_to(Path.cwd().resolve())
            own = subject.record is None and folder is None and here
            if own:
                place = kernel.folder
            else:
                number = f"trial-{subject.trial.number}" if subject.trial else "candidate"
                root = folder or Path(f"{subject.record.name if subject.record else kernel.name}-{number}")
                place = write_kernel_files(root, kernel.name, {file.name: file.content for file in kernel.files()})
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
