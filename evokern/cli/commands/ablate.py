"""`evokern ablate [STUDY]`: measure how much each of the champion's choices contributes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evokern.cli._command import command
from evokern.cli._options import (
    DEFAULT_DB,
    DbOption,
    DeviceOption,
    ReferenceOption,
    StoredStudyArgument,
    StoredTrustOption,
    TrialOption,
)
from evokern.cli._output import Output, save
from evokern.cli._text import table


@command(
    "ablate",
    examples="""
    evokern ablate
    evokern ablate attention-s512 --markdown ablation.md
    evokern ablate --trial 42 --no-path --json
    """,
)
def ablate(
    output: Output,
    study: StoredStudyArgument = None,
    trial: TrialOption = None,
    path: Annotated[
        bool,
        typer.Option(
            "--path/--no-path",
            help="Also find the greedy path from the default candidate to the champion.",
        ),
    ] = True,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the tables to FILE as Markdown.")
    ] = None,
    device: DeviceOption = None,
    reference: ReferenceOption = None,
    trust: StoredTrustOption = False,
    db: DbOption = DEFAULT_DB,
) -> None:
    """Measure how much each of the champion's choices contributes.

    The command changes one gene at a time back to its default value. It also finds the greedy path, which starts from
    the default candidate and adds the most helpful change at each step. On a GPU, every candidate is timed head-to-head
    with the champion. On a simulated device, times are predicted. The path needs about n²/2 candidates for n changed
    genes, which can take minutes; --no-path skips the path.
    """
    from evokern.analysis.candidates import device_for, trial_under_test
    from evokern.analysis.genes.ablate import AblationRow, cells, changed_genes, no_changes_message
    from evokern.analysis.genes.ablate import ablate as take_apart
    from evokern.analysis.genes.ablate import markdown as as_markdown
    from evokern.store import add_proof, open_readonly
    from evokern.tuning.reference import register_reference

    if reference:
        register_reference(reference)
    with open_readonly(db) as reader, trial_under_test(reader, study, trial, elites=1, trust=trust) as chosen:
        record = chosen.record
        opened = device_for(record, device)
        if not changed_genes(chosen):
            opened.close()
            if output.json:
                output.print_json({"study": record.name, "trial": chosen.trial.number, "alone": [], "path": [],
                             "note": no_changes_message(chosen)})  # fmt: skip
            output.print_line(no_changes_message(chosen))
            return
        found = take_apart(chosen, opened, path=path, on_step=output.note)
    if found.device == record.device:
        add_proof(db, record, "ablate", found.trial, found.as_dict())
    if markdown is not None:
        save(markdown, as_markdown(found), "--markdown")
    if output.json:
        output.print_json(found.as_dict())
        return
    unit = "predicted µs" if found.predicted else "µs"
    header = (unit, "vs champion", "95 % interval", "GB/s", "occupancy", "speedup", "change")

    def print_rows(rows: list[tuple[AblationRow, str]]) -> None:
        texts = [cells(row, unnamed) for row, unnamed in rows]
        for line in table(header, [(*text[1:], text[0]) for text in texts]):
            output.print_line(line)

    output.print_line(
        f"trial {found.trial} of {found.study} on {found.device}, with one gene at a time reset to its default"
    )
    print_rows([(found.champion, "champion"), *((row, "") for row in found.alone)])
    if found.path:
        output.print_line("")
        output.print_line("greedy path from the default candidate to the champion, one change per row")
        print_rows(
            [(row, "default candidate" if n == 0 else "all other changes together") for n, row in enumerate(found.path)]
        )
