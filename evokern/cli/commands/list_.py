"""`evokern list`: kernels, studies and devices that can be named here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from evokern.cli._command import command
from evokern.cli._output import Output
from evokern.cli._text import show_line
from evokern.files import read_text


@command(
    "list",
    examples="""
    evokern list
    evokern list --db runs.db
    evokern list --json
    """,
)
def list_(
    output: Output,
    db: Annotated[
        Path | None, typer.Option("--db", metavar="FILE", help="List what a database holds as well: its studies.")
    ] = None,
) -> None:
    """List the kernels, studies and devices that can be named here, with what each study asks.

    Kernels and studies are looked for in ./kernels and ./studies, then in the installed package. A study that cannot be
    searched says why: its file, its kernel, or a problem, limit, gene or sampler option that cannot be. No code of a
    kernel runs.
    """
    from evokern.hardware.driver import probe
    from evokern.hardware.profiles import CHIPS
    from evokern.study.discovery import kernel_folders, study_files

    stored, words, damaged = (None, {}, []) if db is None else _stored(db)
    kernels, studies, driver = kernel_folders(), study_files(), probe()
    summaries = {name: _summary(path) for name, path in studies.items()}
    if output.json:
        output.emit(
            {
                "kernels": [{"name": name, "path": str(path)} for name, path in kernels.items()],
                "studies": [{"name": name, "path": str(path), **summaries[name]} for name, path in studies.items()],
                "devices": [
                    {
                        "name": f"cuda:{gpu.index}",
                        "model": gpu.model,
                        "compute_capability": ".".join(map(str, gpu.compute_capability)),
                    }
                    for gpu in driver.gpus
                ]
                + [
                    {
                        "name": f"sim:{name}",
                        "model": chip.model,
                        "compute_capability": ".".join(map(str, chip.compute_capability)),
                    }
                    for name, chip in CHIPS.items()
                ],
                **({} if stored is None else {"database": {"path": str(db), "studies": stored, "damaged": damaged}}),
            }
        )
        return
    show_line("Kernels")
    for name, path in kernels.items():
        show_line(f"  {name:<24}{_short(path)}")
    show_line("Studies" if studies else "Studies: none found in ./studies or the package")
    for name, summary in summaries.items():
        detail = summary.get("error") or f"{summary['kernel']} at {' and '.join(summary['problems'])}"
        show_line(f"  {name:<24}{detail}")
        if summary.get("asks"):
            show_line(f"  {'':<24}{summary['asks']}")
    show_line("Devices")
    for gpu in driver.gpus:
        show_line(f"  cuda:{gpu.index:<19}{gpu.model}, {gpu.memory_bytes / 2**30:.0f} GiB")
    if not driver.gpus:
        show_line(f"  {'cuda':<24}none: {driver.problem}")
    for name, chip in CHIPS.items():
        show_line(f"  {'sim:' + name:<24}{chip.model}, simulated: times are predicted")
    show_line(f"  {'replay:FILE':<24}recorded answers")
    if stored is None:
        return
    show_line(f"Database {db}" if stored else f"Database {db}: no study yet")
    for row in stored:
        show_line(f"  {row['name']:<24}{row['kernel']} at {words[row['name']]} on {row['device']}")
        show_line(f"  {'':<24}{row['standing']}, begun {row['created']}")


def _stored(db: Path) -> tuple[list[dict[str, Any]], dict[str, str], list[str]]:
    """Return the studies of a database, the one searched last first, each one's problems in words, and damaged rows."""
    from evokern.results.overview import standing
    from evokern.store import open_readonly

    rows, words = [], {}
    with open_readonly(db) as reader:
        for record in reader.studies():
            words[record.name] = record.problems_in_words()
            summary = reader.summary(record)
            rows.append(
                {
                    "name": record.name,
                    "kernel": record.kernel,
                    "problems": list(record.problems),
                    "device": record.device,
                    "created": record.created,
                    "trials": summary["trials"],
                    "best": summary["best"],
                    "standing": standing(summary),
                }
            )
        return rows, words, list(reader.damaged)


def _summary(path: Path) -> dict[str, Any]:
    """Return what a study is about, and what is wrong with it: one broken study must not hide the others."""
    from evokern.analysis.check.study_soundness import require_sound
    from evokern.errors import UsageError
    from evokern.study.file import read_study

    summary: dict[str, Any] = {}
    try:
        study = read_study(path)
        problems = [p if isinstance(p, str) else ",".join(f"{k}={v}" for k, v in p.items()) for p in study.problems]
        summary = {"kernel": study.kernel, "problems": problems, "device": study.device, "asks": asked(path)}
        require_sound(study)
    except UsageError as error:
        summary["error"] = str(error)
    return summary


def asked(path: Path) -> str | None:
    """Return the question that a study's file begins with, `# Asks: …`; None where it has none.

    It ends with the comment, or where the next sentence of its own line begins, such as `# Found on …`.
    """
    words: list[str] = []
    for line in read_text(path).splitlines():
        text = line.removeprefix("#").strip() if line.startswith("#") else ""
        if not words:
            if not text.startswith("Asks:"):
                return None
            text = text.removeprefix("Asks:").strip()
        if not text or (words and words[-1].endswith(("?", "."))):
            break
        words.append(text)
    question, mark, _ = " ".join(words).partition("?")
    return (question + mark) or None


def _short(path: Path) -> str:
    """Return a path relative to the working directory where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
