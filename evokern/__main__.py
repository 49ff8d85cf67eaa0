"""`python -m evokern` is `evokern`."""

from evokern.cli import main

main()
