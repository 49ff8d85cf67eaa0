"""Packing of searched kernels as an installable Python package with an operator of `torch.library`."""

from evokern.pack.folder import Written, write_package
from evokern.pack.from_study import packed_study

__all__ = ["Written", "packed_study", "write_package"]
