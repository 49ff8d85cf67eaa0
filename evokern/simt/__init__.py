"""The PTX machine: executes CUDA kernels on a CPU, with every access checked and counted."""

from evokern.simt.counters import Counters
from evokern.simt.findings import Finding
from evokern.simt.launch import LaunchResult, launch, launch_many
from evokern.simt.memory import Buffer, Memory
from evokern.simt.module import Module, parse
from evokern.simt.syntax import Entry, Param

__all__ = [
    "Buffer",
    "Counters",
    "Entry",
    "Finding",
    "LaunchResult",
    "Memory",
    "Module",
    "Param",
    "launch",
    "launch_many",
    "parse",
]
