"""A kernel folder and a study from a `.cu` file: what the file tells is taken, the rest is guessed and marked."""

from evokern.scaffold.write import Scaffold, scaffold

__all__ = ["Scaffold", "scaffold"]
