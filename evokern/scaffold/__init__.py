"""Draft a kernel folder and a study from a `.cu` file; facts come from the file, and guesses are marked."""

from evokern.scaffold.write import Scaffold, Wanted, scaffold

__all__ = ["Scaffold", "Wanted", "scaffold"]
