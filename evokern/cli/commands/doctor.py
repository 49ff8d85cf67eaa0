"""`evokern doctor`: check the installation."""

from __future__ import annotations

from evokern.cli._command import command
from evokern.cli._output import Output

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
