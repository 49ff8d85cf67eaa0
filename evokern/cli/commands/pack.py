"""`evokern pack SWEEP -o FOLDER`: write the best kernels of a sweep as an operator for torch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from evokern.cli._command import command
from evokern.cli._options import StoredTrustOption
from evokern.cli._output import Output
from evokern.cli.commands.sweep import FolderOption, SweepArgument
from evokern.wording import count_noun


@command(
    "pack",
    examples="""
    evokern pack sweep.toml -o my_attention/
    evokern pack sweep.toml -o my_attention/ --variants 4 --db runs
    """,
)
def pack(
    output: Output,
    sweep: SweepArgument,
    folder: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FOLDER", help="Folder of the package; its name is the package's name."),
    ],
    variants: Annotated[
        int, typer.Option("--variants", metavar="N", min=1, max=256, help="Maximum number of kernels in the package.")
    ] = 8,
    force: Annotated[bool, typer.Option("--force", help="Also pack champions that are not verified.")] = False,
    trust: StoredTrustOption = False,
    db: FolderOption = None,
) -> None:
    """Write the best kernels of a sweep as an installable Python package with one operator for torch.

    The command measures the champion of each study at the problems of the other studies, and stores the times in the
    folder of the sweep. It then chooses at most N kernels, and a decision tree that selects a kernel for each shape.
    Other shapes run a torch function. `pip install` needs no compiler.
    """
    from evokern.pack import packed_sweep
    from evokern.pack.from_sweep import in_words
    from evokern.sweep import Journal, read_sweep

    databases = db or read_sweep(sweep).folder
    found = read_sweep(sweep, Journal.of(databases).device)
    made = packed_sweep(found, databases, folder, most=variants, trust=trust, force=force, report=output.note)
    if output.json:
        facts = {"folder": str(made.written.folder), "operator": made.operator, "variants": made.variants}
        facts |= {"launch": made.written.launch, "without_champion": made.without}
        output.print_json({**facts, **asdict(made.summary), "files": list(made.written.files)})
        return
    output.print_line(f"wrote {made.written.folder}: operator {made.operator}({made.schema})")
    output.print_line(f"{count_noun(len(made.variants), 'variant')}: {', '.join(made.variants)}")
    for line in in_words(made.summary, len(found.studies) - len(made.without)):
        output.print_line(line)
    if made.without:
        output.print_line(f"without a champion, so the baseline serves them: {', '.join(made.without)}")
    output.print_line(f"launched by {made.written.launch}")
    output.print_line(f"install: pip install {made.written.folder}")
