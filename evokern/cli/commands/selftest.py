"""`evokern selftest gate`: test that the gate rejects every cheat and accepts every honest kernel."""

from __future__ import annotations

from typing import Annotated

import typer

from evokern.cli._command import command
from evokern.cli._options import complete_devices
from evokern.cli._output import Output
from evokern.errors import UsageError, suggestion

SUITES = ("gate",)


@command(
    "selftest",
    examples="""
    evokern selftest gate
    evokern selftest gate --device sim:l4 --json
    evokern selftest gate --device cuda:0 --problem 8191,4093,254
    """,
)
def selftest(
    output: Output,
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="Suite to run; gate is the only suite.")],
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="Device: auto (a GPU, otherwise a simulated L4), cuda:N or sim:CHIP (see `evokern list`). "
            "Default: auto.",
            autocompletion=complete_devices,
        ),
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(
            "--problem",
            metavar="M,N,K",
            help="Size of the matrix product in the test cases. Default: 1021,1013,254.",
        ),
    ] = None,
) -> int:
    """Test the correctness gate of a device with cheating and honest kernels.

    The kernels run as external sources, as with `evaluate`. Honest kernels include champions of the packaged kernels.
    The exit code is 1 if a cheat passes, if the wrong check catches it, or if an honest kernel is rejected.
    """
    from evokern.exploits import selftest as run
    from evokern.exploits.suite import PROBLEM, CaseResult

    if suite not in SUITES:
        raise UsageError(f"unknown self-test suite {suite!r}: {suggestion(suite, SUITES)}")

    def report_case(one: CaseResult) -> None:
        result_text = f"caught by {one.caught_by}" if one.caught_by else "passed"
        output.note(f"{'ok' if one.right else 'FAILED':<8}{one.case.name:<32}{result_text}")

    result = run(device or "auto", report_case, problem or PROBLEM)
    facts = result.as_dict()
    if output.json:
        output.print_json(facts)
        return 0 if result.passed else 1
    for one in (*result.missed, *result.rejected):
        expectation = "must pass" if one.case.honest else f"expected: {' or '.join(one.case.checks(one.kind))}"
        result_text = f"caught by {one.caught_by}" if one.caught_by else "passed"
        output.print_line(f"FAILED  {one.case.name}: {result_text}, {expectation} ({one.evaluation.reason})")
    cheats, honest = facts["cheats"], facts["honest"]
    output.print_line(
        f"{result.device}: {cheats['caught']} of {cheats['total']} cheats caught, "
        f"{honest['rejected']} of {honest['total']} honest kernels rejected"
    )
    return 0 if result.passed else 1
