"""The command line: arguments in, one call, rendering out."""

from __future__ import annotations


def main() -> None:
    """Run `evokern`; the entry point of the console script."""
    from evokern.cli.app import run

    run()
