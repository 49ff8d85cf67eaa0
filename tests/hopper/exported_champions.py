"""Fast candidates with tensor maps, mbarrier rings or clusters as programs: exported, built, run, and sanitized.

    python tests/hopper/exported_champions.py [--kernel NAME ...] [--seconds 40] [--build]

Each candidate (`CHAMPIONS`) is exported and built with nvcc in parallel. On a GPU, its program then runs and compares
the results with the reference. It runs again for a small shape under memcheck, racecheck and synccheck. `--seconds`
limits each of these runs; with `--build`, nothing runs. Prints a line for each program; exit code 1 if one of them
fails, or if a tool reports an error. A run that did not end in time is named, but does not count as an error.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import hopper_paths  # noqa: F401 (finds the helpers)
from gpu_tools import complaints, find_tool
from paths import KERNELS

from evokern.declaration.feasibility import check
from evokern.declaration.genes import Value
from evokern.export.banner import Provenance, build_target
from evokern.export.standalone import standalone_program
from evokern.hardware.profiles import chip
from evokern.study.discovery import load_kernel

CHIP = "h200"
TOOLS = ("memcheck", "racecheck", "synccheck")


@dataclass(frozen=True)
class Champion:
    """A candidate, the problem at which it is fast, and a shape that a sanitizer runs in seconds."""

    kernel: str
    problem: str
    small: str
    genes: Mapping[str, Value]


RING: Mapping[str, Value] = {
    "PATH": "bulk", "Q_LOCATION": "shared", "ROW_SUM": "add", "RESCALE": "restart", "SCHEDULE": "persistent",
}  # fmt: skip
FEW_ROWS: Mapping[str, Value] = {"GROUPS": 1, "TILE_N": 64, "TURNS": "free", "MIN_BLOCKS": 3, "GRID_BLOCKS": 396}
CHAMPIONS = (
    Champion("matmul", "4096,4096,4096", "512,512,256",
             {"PATH": "bulk", "TILE_N": 256, "STAGES": 3, "GRID_BLOCKS": 132, "CLUSTER_M": 2}),
    Champion("matmul", "4096,4096,256", "512,512,256",
             {"PATH": "bulk", "CONSUMER_M": 128, "STAGES": 5, "SCHEDULE": "alternating", "GRID_BLOCKS": 132}),
    Champion("matmul", "3072,768,3072", "264,392,328", {"PATH": "bulk", "TILE_N": 192, "STAGES": 4}),
    Champion("matmul", "200,5120,13824", "200,392,712",
             {"PATH": "bulk", "TILE_N": 192, "STAGES": 5, "SPLITS": 2, "MERGE_PARTS": "cluster", "CLUSTER_M": 2}),
    Champion("matmul", "200,5120,13824", "200,392,712",
             {"PATH": "bulk", "CONSUMER_M": 128, "STAGES": 4, "SPLITS": 3}),
    Champion("attention", "1,40,6000,128", "1,1,6000,128,0", {**RING, "TILE_N": 144}),
    Champion("attention", "2,24,1500,128,causal=1", "1,2,1500,128,1",
             {**RING, "GROUPS": 3, "TILE_N": 64, "STAGES": 4, "GRID_ORDER": "heads_fast"}),
    Champion("attention", "4,16,4096,64", "1,1,4096,64,0", {**RING, "GROUPS": 3, "TILE_N": 128}),
    Champion("attention", "2,32,900,64,causal=1", "1,2,900,64,1", {**RING, **FEW_ROWS, "GRID_ORDER": "heads_fast"}),
    Champion("attention", "16,16,512,128", "1,2,512,128,0", {**RING, "SCHEDULE": "one_task"}),
    Champion("rmsnorm", "2,65536", "2,65536", {"ROW_SUM": "cluster", "BLOCKS_PER_ROW": 8, "THREADS_PER_ROW": 1024}),
    Champion("rmsnorm", "16,16384", "4,16384", {"ROW_SUM": "cluster", "BLOCKS_PER_ROW": 4, "ROW_STORAGE": "shared"}),
)  # fmt: skip


def built(job: tuple[Champion, Path]) -> tuple[Path | None, str]:
    """Export and build a candidate; return the program, or the reason why there is none."""
    one, path = job
    kernel, profile = load_kernel(KERNELS / one.kernel), chip(CHIP)
    problem = kernel.problem(one.problem)
    config = kernel.space.canonical({**kernel.space.default(), **one.genes})
    if violation := check(kernel, config, [problem], profile):
        return None, f"infeasible: {violation}"
    made = standalone_program(kernel, config, problem, profile, Provenance(), file_name=path.with_suffix(".cu").name)
    path.with_suffix(".cu").write_text(made.text, encoding="utf-8")
    target = [build_target(made.target), *made.options, "-lineinfo"]
    command = [str(find_tool("nvcc")), "-std=c++17", *target, "-o", str(path), str(path.with_suffix(".cu"))]
    ran = subprocess.run(command, capture_output=True, text=True)
    return (path, "built") if ran.returncode == 0 else (None, f"nvcc: {ran.stderr[:300]}")


def finished(command: list[str], seconds: float) -> tuple[int | None, str]:
    """Return the exit code and the output of a command; None if it did not end in time."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        return None, (late.stdout or b"").decode(errors="replace")
    return ran.returncode, ran.stdout + ran.stderr


def sanitized(program: Path, shape: str, tool: str, seconds: float) -> tuple[bool, str]:
    """Run a program for a small shape under a tool; return whether it is not faulty, and a text."""
    command = [str(find_tool("compute-sanitizer")), "--tool", tool, "--print-limit", "3", "--error-exitcode", "9"]
    code, text = finished([*command, str(program), "--check", shape], seconds)
    found = complaints(text)
    if code is None:
        return not found, f"{tool} did not end in {seconds:g} s"
    good = code == 0 and not found and "PASS" in text
    return good, f"{tool} clean" if good else f"{tool} exit code {code}: {text.strip()[-400:]}"


def main() -> int:
    """Export, build, run and sanitize the candidates of the kernels that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", nargs="*", default=["attention", "matmul", "rmsnorm"])
    parser.add_argument("--seconds", type=float, default=40.0, help="for each run of a program")
    parser.add_argument("--build", action="store_true", help="only export and build")
    arguments = parser.parse_args()
    chosen = [one for one in CHAMPIONS if one.kernel in arguments.kernel]
    cores, failed = len(os.sched_getaffinity(0)), 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores) as threads:
        paths = [Path(folder) / f"{one.kernel}_{at}" for at, one in enumerate(chosen)]
        with ProcessPoolExecutor(cores) as processes:
            programs = list(processes.map(built, zip(chosen, paths, strict=True)))
        texts: list[list[str]] = [[reason] for _, reason in programs]
        good = [program is not None for program, _ in programs]
        runs = [] if arguments.build else [(at, program) for at, (program, _) in enumerate(programs) if program]
        for at, program in runs:  # one after another, because they are timed
            code, text = finished([str(program)], arguments.seconds)
            good[at] &= code == 0 and "PASS" in text
            texts[at].append("PASS" if good[at] else f"exit code {code}: {text.strip()[-300:]}")
        jobs = [(at, program, tool) for tool in TOOLS for at, program in runs]
        answers = threads.map(lambda job: sanitized(job[1], chosen[job[0]].small, job[2], arguments.seconds), jobs)
        for (at, _, _), (clean, text) in zip(jobs, answers, strict=True):
            good[at] &= clean
            texts[at].append(text)
    for one, told, right in zip(chosen, texts, good, strict=True):
        failed += not right
        genes = " ".join(f"{gene}={value}" for gene, value in one.genes.items())
        print(f"{'ok' if right else 'FAILED'}: {one.kernel} {one.problem} {genes}: {'; '.join(told)}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
