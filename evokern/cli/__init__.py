"""The command line: arguments in, one call, rendering out."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run `evokern`; the entry point of the console script."""
    try:
        _open_streams()
        from evokern.cli.app import run

        run()
    except KeyboardInterrupt:  # while the commands are still being imported; afterwards each says more
        sys.exit(130)
    except (MemoryError, ImportError) as error:  # likewise: a library that finds no room is said to be missing
        from evokern.cli._environment import out_of_memory

        told = out_of_memory(error)
        if told is None:
            raise
        sys.exit(_said(told))


def _open_streams() -> None:
    """Make descriptors 0 to 2 be there, and refuse to work for nobody.

    Where the caller closed one, the next file that is opened takes its number: a database, which words for the terminal
    would then be written into.
    """
    deaf = sys.stdout is None
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115 (descriptors, open to the end)
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115
    if deaf:
        sys.exit(_said("stdout is closed, so the answer would be lost; send it somewhere, such as > /dev/null"))


def _said(text: str) -> int:
    print(f"evokern: {text}", file=sys.stderr)
    return 2
