"""`evokern report [STUDY] -o report.html`: everything about a study on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evokern.cli._command import command
from evokern.cli._options import DEFAULT_DB, DbOption, StudyArgument
from evokern.cli._output import Output
from evokern.errors import UsageError
from evokern.files import write_text


@command(
    "report",
    examples="""
    evokern report -o report.html
    evokern report attention-s512 --db runs.db -o attention.html
    """,
)
def report(
    output: Output,
    study: StudyArgument = None,
    file: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="File to write; - for stdout.")] = Path(
        "report.html"
    ),
    db: DbOption = DEFAULT_DB,
) -> None:
    """Write one HTML page about a study: champion and proof, convergence, outcomes, ablation, roofline, source.

    The page needs no network, and making it needs neither the kernel folder nor a GPU.
    """
    from evokern.report import gather, render_page
    from evokern.store import open_readonly

    with open_readonly(db) as reader:
        facts = gather(reader, study)
    text = render_page(facts)
    if str(file) == "-":
        output.write(text + "\n")
        return
    try:
        write_text(file, text)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; name another file with -o") from error
    size = len(text.encode())
    if output.json:
        output.emit({"file": str(file), "study": facts.record.name, "bytes": size, "trials": len(facts.trials)})
        return
    output.say(f"wrote {file}: {facts.record.name}, {len(facts.trials)} trials, {size / 1e6:.2f} MB")
