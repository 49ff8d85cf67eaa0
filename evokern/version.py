"""Version of the package, in a separate module, so that a reader of the version imports nothing else."""

__version__ = "0.3.0"
