"""`evokern list`: list the available kernels, studies and devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from evokern.cli._command import command
from evokern.cli._output import Output, show_line
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
        Path | None, typer.Option("--db", metavar="FILE", help="Also list the studies in this database.")
    ] = None,
) -> None:
    """List the available kernels, studies and devices.

    The command finds kernels and studies in ./kernels and ./studies, and in the installed package. It shows each
    study's kernel, its problems and the question that it answers. If a study cannot be searched, the list shows the
    reason, such as an invalid problem or gene. No kernel code runs.
    """
    from evokern.hardware.driver import probe
    from evokern.hardware.profiles import CHIPS
    from evokern.study.discovery import kernel_folders, study_files

    stored, words, damaged = (None, {}, []) if db is None else _stored(db)
    kernels, studies, driver = kernel_folders(), study_files(), probe()
    summaries = {name: _summary(path) for name, path in studies.items()}
    if output.json:
        output.print_json(
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
    show_line("Studies" if studies else "Studies: none found in ./studies or in the package")
    for name, summary in summaries.items():
        detail = summary.get("error") or f"{summary['kernel']} at {' and '.join(summary['problems'])}"
        show_line(f"  {name:<24}{detail}")
        if summary.get("asks"):
            show_line(f"  {'':<24}{summary['asks']}")
    show_line("Devices")
    for gpu in driver.gpus:
        show_line(f"  cuda:{gpu.index:<19}{gpu.model}, {gpu.memory_bytes / 2**30:.0f} GiB")
    if not driver.gpus:
        show_line(f"  {'cuda':<24}no GPU: {driver.problem}")
    for name, chip in CHIPS.items():
        show_line(f"  {'sim:' + name:<24}{chip.model}, simulated (predicted times)")
    show_line(f"  {'replay:FILE':<24}results from a recording")
    if stored is None:
        return
    show_line(f"Database {db}" if stored else f"Database {db}: contains no study")
    for row in stored:
        show_line(f"  {row['name']:<24}{row['kernel']} at {words[row['name']]} on {row['device']}")
        show_line(f"  {'':<24}{row['standing']}, started {row['created']}")


def _stored(db: Path) -> tuple[list[dict[str, Any]], dict[str, str], list[str]]:
    """Return the studies of a database (last searched first), their problems as text, and damaged rows."""
    from evokern.results.overview import summary_line
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
                    "standing": summary_line(summary),
                }
            )
        return rows, words, list(reader.damaged)


def _summary(path: Path) -> dict[str, Any]:
    """Return a summary of a study file, or its error, because one invalid study must not hide the others."""
    from evokern.analysis.check.study_soundness import require_sound
    from evokern.errors import UsageError
    from evokern.study.file import read_study

    summary: dict[str, Any] = {}
    try:
        study = read_study(path)
        problems = [p if isinstance(p, str) else ",".join(f"{k}={v}" for k, v in p.items()) for p in study.problems]
        summary = {"kernel": study.kernel, "problems": problems, "device": study.device, "asks": study_question(path)}
        require_sound(study)
    except UsageError as error:
        summary["error"] = str(error)
    return summary


def study_question(path: Path) -> str | None:
    """Return the question at the top of a study file, `# Asks: …`, or None if there is none.

    The question ends where the comment ends, or before a sentence that starts on a new line, such as `# Found on …`.
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
    """Return a path, relative to the working directory if it is inside that directory."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
