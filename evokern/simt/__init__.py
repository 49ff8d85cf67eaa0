"""The PTX machine: runs CUDA kernels on a CPU and checks and counts every access.

Other packages import from here, and the model of execution times from `evokern.simt.time_model`.
"""

from evokern.ptx.syntax import Entry, Param
from evokern.simt.arguments import changed_variables, place_data, restore_variables
from evokern.simt.arrays import Array
from evokern.simt.clusters.layout import Cluster, cluster_numbers, cluster_of, members_of
from evokern.simt.control_flow.loops import ANY_PARAMETER, ROUNDS, LoopRounds
from evokern.simt.control_flow.paths import NO_PATHS, Paths, few_rounds
from evokern.simt.counters import Counters
from evokern.simt.launch import launch, launch_many
from evokern.simt.launch_run import BATCH_LANES, LaunchResult
from evokern.simt.memory.access_record import Footprint, WriteRecord, recording
from evokern.simt.memory.buffers import MEMORY_LIMIT, Buffer, Memory
from evokern.simt.module import Module, parse
from evokern.simt.numerics.encoding import encode
from evokern.simt.sanitizer.findings import ENDLESS, ERROR, FATAL, UNFINISHED, WARNING, Access, Finding
from evokern.simt.sanitizer.hang import OUTSIDE, REPEATS
from evokern.simt.settings import LEAST_WARPS, LaunchOptions, LaunchSpec

__all__ = [
    "ANY_PARAMETER", "BATCH_LANES", "ENDLESS", "ERROR", "FATAL", "LEAST_WARPS", "MEMORY_LIMIT", "NO_PATHS", "OUTSIDE",
    "REPEATS", "ROUNDS", "UNFINISHED", "WARNING", "Access", "Array", "Buffer", "Cluster", "Counters", "Entry",
    "Finding", "Footprint", "LaunchOptions", "LaunchResult", "LaunchSpec", "LoopRounds", "Memory", "Module", "Param",
    "Paths", "WriteRecord", "changed_variables", "cluster_numbers", "cluster_of", "encode", "few_rounds", "launch",
    "launch_many", "members_of", "parse", "place_data", "recording", "restore_variables",
]  # fmt: skip
