"""`evokern doctor`: what is there, what is missing, how to get it."""

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
    """Look for GPU, driver, CuPy, NVRTC, headers and tools, and say how to get what is missing.

    Exits with 1 when something is missing that evokern cannot do without on this machine.
    """
    from evokern.doctor import diagnose

    checks = []
    for check in diagnose():
        checks.append(check)
        output.say(f"{_MARKS[check.status]:<9}{check.name:<15}{check.found}")
        if check.remedy:
            output.say(f"{'':<24}→ {check.remedy}")
    missing = [check.name for check in checks if check.status == "missing"]
    if output.json:
        output.emit({"ok": not missing, "checks": [vars(check) for check in checks]})
    else:
        output.say(f"missing: {', '.join(missing)}" if missing else "nothing that is needed is missing")
    return 1 if missing else 0
