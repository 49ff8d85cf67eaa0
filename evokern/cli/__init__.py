"""The command line: arguments in, one call, rendering out."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `evokern`; the entry point of the console script."""
    try:
        from evokern.cli.app import run

        run()
    except KeyboardInterrupt:  # while the commands are still being imported; afterwards each says more
        sys.exit(130)
