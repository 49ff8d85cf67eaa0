"""`evokern compare OLD NEW`: test whether the new champion or program is slower than the old one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from evokern.cli._command import command
from evokern.cli._output import Output, save, table
from evokern.errors import UsageError
from evokern.ownership import who_else_can_modify
from evokern.wording import microseconds

if TYPE_CHECKING:
    from evokern.analysis.compare.compare import Comparison

_RUN = "FILE.db, FILE.db:STUDY, or an exported FILE.cu"


@command(
    "compare",
    examples="""
    evokern compare main.db pull_request.db
    evokern compare old.db:attention-s512 new.db:attention-s512 --markdown comment.md
    evokern compare main.db pull_request.db --html comparison.html
    evokern compare best_old.cu best_new.cu --json
    """,
)
def compare(
    output: Output,
    old: Annotated[str, typer.Argument(metavar="OLD", help=f"Baseline run: {_RUN}.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help=f"Run under test: {_RUN}.")],
    threshold: Annotated[
        float,
        typer.Option(
            "--threshold", metavar="SHARE", help="Largest acceptable slowdown, as a fraction of the old time."
        ),
    ] = 0.03,
    level: Annotated[
        float, typer.Option("--level", metavar="P", help="Significance level: accepted probability of a false alarm.")
    ] = 0.01,
    stored: Annotated[
        bool, typer.Option("--stored", help="Compare stored samples even if both programs can run on this machine.")
    ] = False,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="Write the result as Markdown to FILE, or - for stdout."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write an HTML page with the verdict, both times and their distributions to FILE.",
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Allow the database's copy of kernel.py to run if the kernel folder is missing, changed or not "
            "trusted. Also allow running programs that other users can modify.",
        ),
    ] = False,
) -> int:
    """Test whether a new champion or program is slower than an old one.

    Both runs must use the same kernel and the same chip. If this machine has that chip and nvcc, both programs are
    timed head-to-head; otherwise their stored samples are compared. The exit code is 1 if the new run is slower by more
    than the threshold and the difference is statistically significant.
    """
    from evokern.analysis.compare.compare import markdown as as_markdown

    if not 0 < level < 1 or not 0 <= threshold < 1:
        raise UsageError(
            f"--level {level} --threshold {threshold}: both must be between 0 and 1; for example, 0.03 is 3 %"
        )
    found = _found(output, old, new, threshold, level, stored, trust)
    code = 1 if found.verdict == "slower" else 0
    if markdown is not None and str(markdown) != "-":
        save(markdown, as_markdown(found), "--markdown")
    if html is not None:
        from evokern.report.pages.compare_page import compare_page

        save(html, compare_page(found), "--html")
    if output.json:
        output.print_json(found.as_dict())
    elif markdown is not None and str(markdown) == "-":
        output.write(as_markdown(found))
    else:
        for line in _lines(found):
            output.print_line(line)
        if html is not None:
            output.print_line(f"wrote {html}")
    return code


def _found(output: Output, old: str, new: str, threshold: float, level: float, stored: bool, trust: bool) -> Comparison:
    from evokern.analysis.compare.compare import comparable, compare, compare_paired
    from evokern.analysis.compare.compared_runs import compared_run, pair, pairing_obstacle

    one, two = compared_run(old), compared_run(new)
    comparable(one, two)
    reason = "--stored was given" if stored else pairing_obstacle(one.device)
    if reason is None:
        output.note("running both head-to-head on this machine")
        with TemporaryDirectory(prefix="evokern-") as scratch:
            programs = [_program(text, Path(scratch) / f"{n}.cu", trust) for n, text in enumerate((old, new))]
            return compare_paired(one, two, pair(programs, level=level), threshold=threshold)
    output.note(f"comparing stored samples: {reason}")
    return compare(one, two, threshold=threshold, level=level)


def _program(text: str, target: Path, trust: bool) -> Path:
    """Return the path of an exported program; if the run is a study, export its champion to the target first.

    Raises:
        UsageError: another user can modify the program.
    """
    from evokern.analysis.compare.compared_runs import split
    from evokern.export import export_trial
    from evokern.store import open_readonly

    path, study = split(text)
    if path.suffix == ".cu":
        foreign = who_else_can_modify(path.resolve().parent, within=True) or who_else_can_modify(path.resolve())
        if foreign and not trust:
            raise UsageError(
                f"{path} is a program that would be built and run, {foreign}; inspect it, then pass --trust"
            )
        return path
    with open_readonly(path) as reader:
        target.write_text(export_trial(reader, study, None, trust=trust).text, encoding="utf-8")
    return target


def _lines(found: Comparison) -> list[str]:
    from evokern.analysis.compare.compare import changes

    unit = "predicted µs" if found.old.predicted else "µs"
    rows = [
        (
            found.in_words(line),
            microseconds(line.old_us),
            microseconds(line.new_us),
            f"{line.ratio:.3f}",
            f"{line.ratio_ci95[0]:.3f} to {line.ratio_ci95[1]:.3f}" if line.ratio_ci95 else "-",
            line.verdict,
        )
        for line in found.lines
    ]
    lines = [f"{found.new.kernel} on {found.new.device}: {found.verdict} ({found.method})", ""]
    lines += table(("problem", f"old {unit}", f"new {unit}", "new/old", "95 % interval", "verdict"), rows)
    changed = changes(found.old, found.new)
    if changed:
        lines += ["", *table(("", "old", "new"), [(n, str(a or "-"), str(b or "-")) for n, (a, b) in changed.items()])]
    return lines + [f"note: {remark}" for remark in found.remarks]
