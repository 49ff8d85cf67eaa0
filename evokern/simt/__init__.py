"""The PTX machine: runs CUDA kernels on a CPU and checks and counts every access."""

from evokern.ptx.syntax import Entry, Param
from evokern.simt.arguments import changed_variables, restore_variables
from evokern.simt.counters import Counters
from evokern.simt.launch import launch, launch_many
from evokern.simt.launch_run import LaunchResult
from evokern.simt.memory.buffers import Buffer, Memory
from evokern.simt.module import Module, parse
from evokern.simt.sanitizer.findings import Access, Finding
from evokern.simt.settings import LaunchOptions, LaunchSpec

__all__ = [
    "Access",
    "Buffer",
    "Counters",
    "Entry",
    "Finding",
    "LaunchOptions",
    "LaunchResult",
    "LaunchSpec",
    "Memory",
    "Module",
    "Param",
    "changed_variables",
    "launch",
    "launch_many",
    "parse",
    "restore_variables",
]
