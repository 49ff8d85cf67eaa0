"""`evokern doctor`, `evokern cache` and `evokern selftest`: the installation, its cache, and a test of the gate."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from evokern.cli._command import command
from evokern.cli._options import complete_devices
from evokern.cli._output import Output
from evokern.errors import MAX_INTEGER, UsageError, suggestion
from evokern.wording import count_noun

_MARKS = {"ok": "ok", "missing": "MISSING", "optional": "-"}


@command(
    "doctor",
    examples="""
    evokern doctor
    evokern doctor --json
    """,
)
def doctor(output: Output) -> int:
    """Check the installation: GPU, driver, libraries, headers and tools.

    For each missing component, the command prints how to install it. The exit code is 1 if a required component
    is missing.
    """
    from evokern.doctor import diagnose

    checks = []
    for check in diagnose():
        checks.append(check)
        output.print_line(f"{_MARKS[check.status]:<9}{check.name:<15}{check.found}")
        if check.remedy:
            output.print_line(f"{'':<24}→ {check.remedy}")
    missing = [check.name for check in checks if check.status == "missing"]
    if output.json:
        output.print_json({"ok": not missing, "checks": [vars(check) for check in checks]})
    else:
        output.print_line(f"missing: {', '.join(missing)}" if missing else "no required component is missing")
    return 1 if missing else 0


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


_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@command(
    "cache",
    examples="""
    evokern cache
    evokern cache --cap 4GB
    evokern cache --clear
    """,
)
def cache(
    output: Output,
    clear: Annotated[bool, typer.Option("--clear", help="Delete all cached programs.")] = False,
    cap: Annotated[
        str | None,
        typer.Option(
            "--cap",
            metavar="SIZE",
            help="Set the size limit of the cache, such as 500MB or 4GB, now and for later commands.",
        ),
    ] = None,
) -> None:
    """Show, limit or clear the cache of compiled programs.

    The cache only saves compile time; clearing it deletes no results. By default, it is in the user's cache folder. The
    environment variable EVOKERN_CACHE sets another folder, or disables the cache if its value is `off`.
    """
    from evokern.compile.cache import CompileCache, default_directory

    limit = None if cap is None else parse_size(cap)
    directory = default_directory()
    if directory is None:
        raise UsageError("EVOKERN_CACHE is off, so there is no cache; unset the variable, or set it to a folder")
    programs = CompileCache(directory)
    dropped = programs.clear() if clear else 0
    if limit is not None:
        programs.set_cap(limit)
    info = programs.info()
    if output.json:
        facts = {"programs": info.programs, "bytes": info.bytes, "cap_bytes": info.cap_bytes, "dropped": dropped}
        output.print_json({"directory": str(info.directory), **facts})
        return
    if clear:
        output.print_line(f"deleted {count_noun(dropped, 'program')}")
    megabytes, capped = info.bytes / 10**6, info.cap_bytes / 10**6
    output.print_line(
        f"{info.directory}: {count_noun(info.programs, 'program')}, {megabytes:.1f} MB of at most {capped:.0f} MB"
    )


def parse_size(text: str) -> int:
    """Parse a size in bytes, such as `500MB`, `4GiB` or a plain number.

    Raises:
        UsageError: the text is not a valid size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?i?b?)", text.strip().lower())
    unit = match[2] if match else None
    if match and unit is not None:
        unit = unit if unit in _UNITS else unit + "b"
        size = float(match[1]) * _UNITS.get(unit, 0)
        if size > MAX_INTEGER:
            raise UsageError(f"size {text!r} is too large; use, for example, 500MB, 4GB or 2GiB")
        if unit in _UNITS:
            return int(size)
    raise UsageError(f"{text!r} is not a valid size; use, for example, 500MB, 4GB or 2GiB")
