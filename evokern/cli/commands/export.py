"""`evokern export [STUDY] -o best.cu`: a result as a program of its own, or a study in a format that others read."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from evokern.cli._command import command
from evokern.cli._options import DEFAULT_DB, DbOption, StoredTrustOption, StudyArgument, TrialOption
from evokern.cli._output import Output, save
from evokern.errors import UsageError
from evokern.wording import command as command_line
from evokern.wording import mean_of, microseconds, proved, several


class Format(StrEnum):
    """What `export` writes."""

    CU = "cu"
    T4 = "t4"
    T1 = "t1"
    TRACE = "trace"


@command(
    "export",
    examples="""
    evokern export -o best.cu
    evokern export attention-s512 --trial 42 -o trial42.cu --db runs.db
    evokern export attention-s512 --format t4 -o study.json
    evokern export attention-s512 --format t1 -o space.json
    evokern export attention-s512 --format trace -o trace.json
    """,
)
def export(
    output: Output,
    study: StudyArgument = None,
    file: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="File to write; - for stdout. Default: best.cu."),
    ] = None,
    format_: Annotated[
        Format,
        typer.Option(
            "--format",
            help="cu: one trial as a program. t4: every trial, for other auto-tuners. t1: the space, for them. "
            "trace: when each trial was compiled, checked and timed, for Perfetto.",
        ),
    ] = Format.CU,
    trial: TrialOption = None,
    problem: Annotated[
        str | None,
        typer.Option(
            "--problem",
            metavar="P",
            help="Which of the study's problems: as reports print it, or its place counted from 0. Default: the first.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write a trial that its verification refuted.")] = False,
    trust: StoredTrustOption = False,
    db: DbOption = DEFAULT_DB,
) -> None:
    """Write the champion, or another trial, as one .cu that builds with nvcc alone; or the study as T4, T1 or a trace.

    The .cu holds the specialised kernel, a launcher with shape and alignment checks, and a main that checks its answers
    against the reference and times itself. The T4 file holds every trial; `evokern replay` reads it, and so do other
    auto-tuners (a name that ends in .gz is compressed). The T1 file holds the space: genes, constraints, launch and
    arguments, for other auto-tuners to search; what it has no words for is said. The trace is Chrome's trace-event
    JSON, which ui.perfetto.dev opens: a track for each worker with what each trial took, its outcome and its genes.
    """
    from evokern.export import export_trial
    from evokern.export.banner import build_commands
    from evokern.store import open_readonly

    if format_ is Format.T4:
        if trial is not None or problem not in (None, "0"):
            raise UsageError("--format t4 writes every trial and problem; leave --trial and --problem away")
        _study(output, study, file or Path("study.json"), db)
        return
    if format_ is Format.TRACE:
        if trial is not None or problem not in (None, "0"):
            raise UsageError("--format trace writes every trial; leave --trial and --problem away")
        _trace(output, study, file or Path("trace.json"), db)
        return
    if format_ is Format.T1:
        if trial is not None:
            raise UsageError("--format t1 writes the space, not a trial; leave --trial away")
        _space(output, study, file or Path("space.json"), db, problem, trust)
        return
    file = file or Path("best.cu")
    name = "best.cu" if str(file) == "-" else file.name
    with open_readonly(db) as reader:
        place = 0 if problem is None else reader.study(study).place_of(problem)
        made = export_trial(reader, study, trial, problem=place, file_name=name, trust=trust, force=force)
    if str(file) == "-":
        output.write(made.text)
        return
    save(file, made.text, "-o")
    if output.json:
        facts = {"trial": made.trial, "problem": made.problem, "time_us": made.time_us, "is_mean": made.is_mean}
        output.emit({"file": str(file), **facts, "predicted": made.predicted, **made.proof.as_dict()})
        return
    unit = "µs predicted" if made.predicted else "µs"
    build, run = build_commands(made.text, file)
    where = ""
    if made.problems > 1:
        where = mean_of(made.problems) if made.is_mean else f" at {made.problem}"
    output.say(f"wrote {file}: trial {made.trial}, {microseconds(made.time_us)} {unit}{where}")
    if made.problems > 1:
        output.say(f"compiled for {made.problem}, one of the study's {made.problems} problems; --problem names another")
    output.say(proved(made.proof.as_dict()))
    output.say(f"build and run: {build} && {run}")


def _study(output: Output, study: str | None, file: Path, db: Path) -> None:
    from evokern.export.t4 import t4
    from evokern.store import open_readonly

    with open_readonly(db) as reader:
        record = reader.study(study)
        made = t4(reader, record)
    if _written(output, file, made, {"study": record.name, "trials": len(made["results"])}):
        output.say(f"wrote {file}: {len(made['results'])} trials of {record.name}")
        output.say(f"{command_line('replay', file)}   compares samplers on it")


def _trace(output: Output, study: str | None, file: Path, db: Path) -> None:
    from evokern.export.search_trace import search_trace
    from evokern.store import open_readonly

    with open_readonly(db) as reader:
        record = reader.study(study)
        made = search_trace(reader, record)
    facts = made["otherData"]
    if not _written(output, file, made, facts):
        return
    told = f"{facts['spans']} spans of {several(facts['trials'], 'trial')} of {record.name}"
    output.say(f"wrote {file}: {told}; ui.perfetto.dev opens it")
    if facts["missing"]:
        output.say(facts["missing"])


def _space(output: Output, study: str | None, file: Path, db: Path, problem: str | None, trust: bool) -> None:
    from evokern.export.t1 import t1
    from evokern.store import open_readonly

    with open_readonly(db) as reader:
        record = reader.study(study)
        made = t1(reader, record, problem=0 if problem is None else record.place_of(problem), trust=trust)
    space = made["ConfigurationSpace"]
    parameters, conditions = len(space["TuningParameters"]), len(space["Conditions"])
    left_out = made["evokern"]["left_out"]
    facts = {"study": record.name, "parameters": parameters, "conditions": conditions, "left_out": left_out}
    if not _written(output, file, made, facts):
        return
    output.say(f"wrote {file}: {parameters} parameters and {conditions} conditions of {record.name}")
    for what in left_out:
        output.say(f"T1 has no words for {what}")


def _written(output: Output, file: Path, made: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Write JSON to a file, or alone to stdout; tell whether it is a file that there is something to say of.

    Args:
        output: where the command prints.
        file: the file, `-` for stdout.
        made: what is written.
        facts: what `--json` says of it beside the file's name.
    """
    from evokern.export.t4 import json_bytes

    content = json_bytes(made, file)
    if str(file) == "-":
        output.write(content.decode() + "\n")
        return False
    save(file, content, "-o")
    if output.json:
        output.emit({"file": str(file), **facts})
    return True
