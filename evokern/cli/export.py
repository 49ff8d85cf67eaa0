"""`evokern export [STUDY] -o best.cu`: a result as a program of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evokern.cli._command import command
from evokern.cli._options import DEFAULT_DB, DbOption, StudyArgument, TrialOption, TrustOption
from evokern.cli._output import Output
from evokern.cli._text import microseconds
from evokern.errors import UsageError


@command(
    "export",
    examples="""
    evokern export -o best.cu
    evokern export attention-s512 --trial 42 -o trial42.cu --db runs.db
    """,
)
def export(
    output: Output,
    study: StudyArgument = None,
    file: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="File to write; - for stdout.")] = Path(
        "best.cu"
    ),
    trial: TrialOption = None,
    problem: Annotated[
        int, typer.Option("--problem", metavar="N", min=0, help="Which of the study's problems, counted from 0.")
    ] = 0,
    trust: TrustOption = False,
    db: DbOption = DEFAULT_DB,
) -> None:
    """Write the champion, or another trial, as one .cu that builds with nvcc alone.

    It holds the specialised kernel, a launcher with shape and alignment checks, and a main that checks its answers
    against the reference and times itself.
    """
    from evokern.export import export_trial
    from evokern.store import open_readonly

    name = "best.cu" if str(file) == "-" else file.name
    with open_readonly(db) as reader:
        made = export_trial(reader, study, trial, problem=problem, file_name=name, trust=trust)
    if str(file) == "-":
        print(made.text, end="")
        return
    try:
        file.write_text(made.text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; name another file with -o") from error
    if output.json:
        facts = {"trial": made.trial, "time_us": made.time_us, "predicted": made.predicted}
        output.emit({"file": str(file), **facts})
        return
    unit = "µs predicted" if made.predicted else "µs"
    build = next(line.removeprefix("//").strip() for line in made.text.splitlines() if "nvcc " in line)
    output.say(f"wrote {file}: trial {made.trial}, {microseconds(made.time_us)} {unit}")
    output.say(f"build and run: {build} && ./{file.stem}")
