"""`evokern verify [STUDY]`: the proof that a candidate is right, and that it is the fastest."""

from __future__ import annotations

from typing import Annotated

import typer

from evokern.cli._command import command
from evokern.cli._options import DEFAULT_DB, DbOption, DeviceOption, StoredTrustOption, StudyArgument, TrialOption
from evokern.cli._output import Output
from evokern.cli._text import table
from evokern.errors import UsageError
from evokern.wording import command as command_line
from evokern.wording import microseconds

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
    study: StudyArgument = None,
    trial: TrialOption = None,
    fuzz: Annotated[
        str, typer.Option("--fuzz", metavar="TIME", help="Fuzz shapes, values, alignments, seeds: 1m, 5m; 0 for none.")
    ] = DEFAULT_FUZZ,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of the fuzzing.")] = None,
    elites: Annotated[
        int, typer.Option("--elites", metavar="N", min=1, max=20, help="Fastest trials that take part in the playoff.")
    ] = 5,
    level: Annotated[
        float, typer.Option("--level", metavar="P", help="Probability that the playoff calls equals different.")
    ] = 0.01,
    device: DeviceOption = None,
    trust: StoredTrustOption = False,
    db: DbOption = DEFAULT_DB,
) -> int:
    """Verify the champion: gate at full strength, sanitizer, a playoff against the other elites, fuzzing.

    On a simulated device the playoff compares predicted times, which have no noise. Exits with 1 when a part fails.
    """
    from evokern.analysis.candidates import device_for, subject
    from evokern.measurement.playoff import Rules
    from evokern.store import add_proof, open_readonly
    from evokern.study.duration import parse_duration

    if not 0 < level < 1:
        raise UsageError(f"--level {level} is no probability; give a number between 0 and 1")
    seconds = 0.0 if fuzz.strip() == "0" else parse_duration(fuzz)
    with open_readonly(db) as reader, subject(reader, study, trial, elites=elites, trust=trust) as chosen:
        opened = device_for(chosen.record, device)
        # After the device's processes began to import torch, which this brings in too.
        from evokern.analysis.verify.verify import verify as prove

        proof = prove(
            chosen, opened, reader.sessions(chosen.record), rules=Rules(level=level), fuzz_s=seconds, seed=seed,
            on_stage=output.remark,
        )  # fmt: skip
        record = chosen.record
    facts = proof.as_dict()
    if proof.device == record.device:
        add_proof(db, record, "verify", proof.trial, facts)
    if output.json:
        output.emit(facts)
        return 0 if proof.passed else 1
    output.say(f"trial {proof.trial} of {proof.study} on {proof.device}")
    for stage in proof.stages:
        output.say(f"{_MARKS[stage.state]:<8}{stage.name:<13}{stage.detail}")
    if proof.playoff:
        unit = "predicted µs" if proof.playoff.predicted else "µs"
        # Predicted times have no noise, so that neither an interval nor Cliff's delta says anything of them.
        measured = not proof.playoff.predicted
        header = ("", unit, "of champion", *(("95 % interval", "Cliff's delta") if measured else ()), "standing")
        rows = [
            (
                proof.players[one.index],
                microseconds(one.time_us),
                f"{one.ratio:.3f}",
                *((f"{one.ratio_ci95[0]:.3f} to {one.ratio_ci95[1]:.3f}", f"{one.delta:+.2f}") if measured else ()),
                one.standing if one.standing != "tie" or one.equivalent else "tie (not told apart)",
            )
            for one in proof.playoff.finalists
        ]
        output.say("")
        for line in table(header, rows):
            output.say(line)
    if trial is None:
        with open_readonly(db) as reader:
            best = reader.best(record)
            if best is not None and best.number != proof.trial and reader.verification(record, best).verified is None:
                again = command_line("verify", record.name, "--trial", str(best.number), "--db", db)
                output.remark(f"the champion is trial {best.number} now, which nobody verified: `{again}` does")
    return 0 if proof.passed else 1
