"""The command line: each command parses its arguments, makes one call and prints the result."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run `evokern`; entry point of the console script."""
    try:
        _open_streams()
        from evokern.cli.app import run

        run()
    except KeyboardInterrupt:  # during imports; later interrupts are handled by the command
        sys.exit(130)
    except (MemoryError, ImportError) as error:  # also during imports; without memory a library fails to import
        from evokern.cli._environment import out_of_memory_message

        message = out_of_memory_message(error)
        if message is None:
            raise
        sys.exit(_usage_error(message))


def _open_streams() -> None:
    """Open missing descriptors 0 to 2, and exit if stdout is closed.

    If the caller closed one of these descriptors, the next opened file would get its number. Terminal output could then
    overwrite a database.
    """
    deaf = sys.stdout is None
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115 (stays open until exit)
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115
    if deaf:
        sys.exit(
            _usage_error("stdout is closed, so the output would be lost; redirect it, for example with > /dev/null")
        )


def _usage_error(text: str) -> int:
    print(f"evokern: {text}", file=sys.stderr)
    return 2
