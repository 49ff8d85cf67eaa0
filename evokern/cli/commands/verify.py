"""`evokern verify` and `evokern ablate`: test whether a champion is correct, and what each of its choices gains."""

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
from evokern.cli._output import Output, save, table
from evokern.errors import UsageError
from evokern.wording import command as command_line
from evokern.wording import microseconds, stage_label

DEFAULT_FUZZ = "5s"
_MARKS = {"passed": "ok", "failed": "FAILED", "skipped": "-"}


@command(
    "verify",
    examples="""
    evokern verify
    evokern verify attention-s512 --fuzz 5m
    evokern verify --trial 42 --device sim:h200 --json
    """,
)
def verify(
    output: Output,
    study: StoredStudyArgument = None,
    trial: TrialOption = None,
    fuzz: Annotated[
        str,
        typer.Option(
            "--fuzz",
            metavar="TIME",
            help="Duration of fuzzing with random shapes, values, alignments and seeds, such as 1m; 0 skips fuzzing.",
        ),
    ] = DEFAULT_FUZZ,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", help="Random seed for fuzzing. Default: a new seed for each run."),
    ] = None,
    elites: Annotated[
        int, typer.Option("--elites", metavar="N", min=1, max=20, help="Number of fastest trials in the playoff.")
    ] = 5,
    level: Annotated[
        float,
        typer.Option(
            "--level",
            metavar="P",
            help="Significance level: probability that the playoff reports a difference between equally fast "
            "candidates.",
        ),
    ] = 0.01,
    device: DeviceOption = None,
    reference: ReferenceOption = None,
    trust: StoredTrustOption = False,
    db: DbOption = DEFAULT_DB,
) -> int:
    """Verify that the champion is correct and that no other trial is faster.

    The command runs the correctness gate at full strength, the sanitizer and fuzzing. It also runs a playoff, which
    times the champion against the next fastest trials. On a simulated device, the playoff compares predicted times,
    which have no noise. The exit code is 1 if any of these parts fails.
    """
    from evokern.analysis.candidates import device_for, trial_under_test
    from evokern.measurement.playoff import Rules
    from evokern.store import add_proof, open_readonly, undecided
    from evokern.study.options import parse_duration
    from evokern.tuning.reference import register_reference

    if not 0 < level < 1:
        raise UsageError(f"--level {level} is not a probability; use a number between 0 and 1")
    if reference:
        register_reference(reference)
    seconds = 0.0 if fuzz.strip() == "0" else parse_duration(fuzz)
    with open_readonly(db) as reader, trial_under_test(reader, study, trial, elites=elites, trust=trust) as chosen:
        opened = device_for(chosen.record, device)
        # Imports torch, so it comes after the start of the device's processes, which import torch in parallel.
        from evokern.analysis.verify.verify import verify as prove

        proof = prove(
            chosen, opened, reader.sessions(chosen.record), rules=Rules(level=level), fuzz_s=seconds, seed=seed,
            on_stage=output.note,
        )  # fmt: skip
        record = chosen.record
    facts = proof.as_dict()
    if proof.device == record.device:
        add_proof(db, record, "verify", proof.trial, facts)
    if output.json:
        output.print_json(facts)
        return 0 if proof.passed else 1
    output.print_line(f"trial {proof.trial} of {proof.study} on {proof.device}")
    for stage in proof.stages:
        output.print_line(f"{_MARKS[stage.state]:<8}{stage_label(stage.name):<18}{stage.detail}")
    if proof.passed and (unclear := undecided(facts["stages"])):
        output.note(f"trial {proof.trial} is not verified: {unclear}")
    if proof.playoff:
        unit = "predicted µs" if proof.playoff.predicted else "µs"
        # Predicted times have no noise, so they have neither an interval nor Cliff's delta.
        measured = not proof.playoff.predicted
        header = ("", unit, "vs champion", *(("95 % interval", "Cliff's delta") if measured else ()), "result")
        rows = [
            (
                proof.players[one.index],
                microseconds(one.time_us),
                f"{one.ratio:.3f}",
                *((f"{one.ratio_ci95[0]:.3f} to {one.ratio_ci95[1]:.3f}", f"{one.delta:+.2f}") if measured else ()),
                one.result if one.result != "tie" or one.equivalent else "tie (inconclusive)",
            )
            for one in proof.playoff.finalists
        ]
        output.print_line("")
        for line in table(header, rows):
            output.print_line(line)
    if trial is None:
        with open_readonly(db) as reader:
            best = reader.best(record)
            if best is not None and best.number != proof.trial and reader.verification(record, best).verified is None:
                again = command_line("verify", record.name, "--trial", str(best.number), "--db", db)
                output.note(f"the champion is now trial {best.number}, which is not verified; run `{again}`")
    return 0 if proof.passed else 1


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
