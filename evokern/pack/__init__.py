"""Packing of searched kernels as an installable Python package with an operator for torch."""

from evokern.pack.folder import Written, write_package
from evokern.pack.from_study import packed_study
from evokern.pack.from_sweep import packed_sweep
from evokern.pack.selection import PackRequest

__all__ = ["PackRequest", "Written", "packed_study", "packed_sweep", "write_package"]
