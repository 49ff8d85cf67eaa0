"""compute-sanitizer and Nsight Compute around `gpu_launcher`: what they are asked, and how their words are read."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from gpu_launcher import Job, launch_all
from simt_tools import Defect

from evokern import simt
from evokern.analysis.profile.nsight import ProfilerSettings, find_ncu, options, read
from evokern.compile.nvrtc import compile_program
from evokern.compile.records import Program

CUDA = Path("/usr/local/cuda/bin")


def find_tool(name: str) -> str | None:
    """Return the path of a CUDA tool on PATH or in the toolkit's usual place, None where there is none."""
    return shutil.which(name) or shutil.which(name, path=str(CUDA))


# ---------------------------------------------------------------------------------------------------------- sanitizer


@dataclass(frozen=True)
class Complaint:
    """One error that compute-sanitizer reports."""

    text: str
    """Its first line."""
    places: tuple[tuple[str, int], ...]
    """(file, line) of everything it names in device code, in order."""

    @property
    def lines(self) -> tuple[int, ...]:
        """The lines alone."""
        return tuple(line for _, line in self.places)


_FIRST = re.compile(
    r"========= (?!COMPUTE-SANITIZER|\w+ SUMMARY|Program hit|Target application|Error: process|This tool)(\S.*)"
)
_PLACE = re.compile(r" in (?:.*/)?([\w.]+\.cuh?):(\d+)")


def complaints(text: str) -> list[Complaint]:
    """Return the errors in compute-sanitizer's output; places on further lines belong to the error above them."""
    found: list[tuple[str, list[tuple[str, int]]]] = []
    for line in text.splitlines():
        if not line.startswith("========="):
            continue
        first = _FIRST.match(line)
        if first is not None:
            found.append((first[1], []))
        if found:
            found[-1][1].extend((match[1], int(match[2])) for match in _PLACE.finditer(line))
    return [Complaint(text, tuple(dict.fromkeys(places))) for text, places in found]


def sanitize(tool: str, jobs: Sequence[Job], folder: Path, timeout: float = 120) -> tuple[list[Complaint], str]:
    """Run jobs under one tool of compute-sanitizer; return what it complains about and its whole output."""
    program = find_tool("compute-sanitizer")
    assert program is not None
    options = ("--tool", tool, "--print-limit", "20", "--report-api-errors", "no", "--show-backtrace", "no")
    extra = ("--racecheck-report", "all") if tool == "racecheck" else ()
    _, text = launch_all(jobs, folder, program, *options, *extra, timeout=timeout)
    return complaints(text), text


# ------------------------------------------------------------------------------------------------------------ defects


@lru_cache(maxsize=128)
def defect_job(name: str, source: str, defect: Defect, fixed: bool, architecture: str) -> Job:
    """Return a seeded defect, or its clean twin, as a job whose line information names it."""
    options = ("-DFIXED",) if fixed else ()
    architecture += "a" if defect.architecture.endswith("a") else ""
    program = compile_program(source, f"{name}.cu", {}, options, ["kernel"], architecture, line_info=True)
    assert isinstance(program, Program), program
    arguments = defect.arguments(simt.Memory())
    raw = {n for n, a in enumerate(arguments) if isinstance(a, simt.Buffer) and not a.initialised}
    given = tuple(a.read() if isinstance(a, simt.Buffer) else a for a in arguments)
    return Job(
        name, program.cubin, program.lowered["kernel"], defect.grid, defect.block, given,  # type: ignore[arg-type]
        shared=defect.shared, raw=frozenset(raw), keep=False,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------ Nsight Compute


def measured(
    jobs: Sequence[Job], metrics: Sequence[str], folder: Path, timeout: float = 120
) -> list[Mapping[str, float]]:
    """Run jobs under Nsight Compute; return the metrics of each launch, in order.

    Raises:
        RuntimeError: the profiler may not read the hardware's counters, or did not run.
    """
    program = find_ncu()
    assert program is not None
    _, text = launch_all(jobs, folder, program, *options(metrics, ProfilerSettings(flush=True)), timeout=timeout)
    rows = read(text, metrics)
    if not rows:
        raise RuntimeError("\n".join(text.splitlines()[-12:]))
    return [{name: np.nan if value is None else value for name, value in row.values.items()} for row in rows]
