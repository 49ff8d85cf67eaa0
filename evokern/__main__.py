"""Run the command line with `python -m evokern`."""

from evokern.cli import main

main()
