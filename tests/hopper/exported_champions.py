"""Fast candidates with tensor maps, mbarrier rings or clusters as programs: exported, built, run, and sanitized.

    python tests/hopper/exported_champions.py [--kernel NAME ...] [--only NUMBER ...] [--seconds 40] [--build]

Each candidate (`CHAMPIONS`) is exported and built with nvcc in parallel. On a GPU, its program runs as soon as it is
built, one program at a time, and compares the results with the reference. The programs then run again for small shapes
under memcheck, racecheck and synccheck, in parallel. `--seconds` limits each of these runs; with `--build`, nothing
runs. Prints a line for each build and run; exit code 1 if one of them fails, or if a tool reports an error. A run that
did not end in time is named, but does not count as an error.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before the import of torch: one process for each core, so one thread for each

import hopper_paths  # noqa: F401 (finds the helpers)
import torch  # noqa: F401 (once, and not in each process)
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


def built(job: tuple[Champion, Path]) -> str:
    """Export and build a candidate as a program; return the reason if there is none."""
    one, path = job
    kernel, profile = load_kernel(KERNELS / one.kernel), chip(CHIP)
    problem = kernel.problem(one.problem)
    config = kernel.space.canonical({**kernel.space.default(), **one.genes})
    if violation := check(kernel, config, [problem], profile):
        return f"infeasible: {violation}"
    made = standalone_program(kernel, config, problem, profile, Provenance(), file_name=path.with_suffix(".cu").name)
    path.with_suffix(".cu").write_text(made.text, encoding="utf-8")
    target = [build_target(made.target), *made.options, "-lineinfo"]
    command = [str(find_tool("nvcc")), "-std=c++17", *target, "-o", str(path), str(path.with_suffix(".cu"))]
    ran = subprocess.run(command, capture_output=True, text=True)
    return "" if ran.returncode == 0 else f"nvcc: {ran.stderr[:300]}"


def finished(command: list[str], seconds: float) -> tuple[int | None, str]:
    """Return the exit code and the output of a command; None if it did not end in time."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        return None, (late.stdout or b"").decode(errors="replace")
    return ran.returncode, ran.stdout + ran.stderr


def plain(program: Path, seconds: float) -> tuple[bool, str]:
    """Run a program; return whether its results are right, and its time or its last lines."""
    code, text = finished([str(program)], seconds)
    if code == 0 and "PASS" in text:
        return True, f"PASS, {next(line for line in text.splitlines() if line.startswith('time:'))}"
    return False, f"exit code {code}: {text.strip()[-300:]}"


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
    """Export, build, run and sanitize the candidates that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", nargs="*", default=["attention", "matmul", "rmsnorm"])
    parser.add_argument("--only", nargs="*", type=int, metavar="NUMBER", help="candidates by their numbers, from 0")
    parser.add_argument("--seconds", type=float, default=40.0, help="for each run of a program")
    parser.add_argument("--build", action="store_true", help="only export and build")
    arguments = parser.parse_args()
    wanted = range(len(CHAMPIONS)) if arguments.only is None else arguments.only
    chosen = {at: CHAMPIONS[at] for at in wanted if CHAMPIONS[at].kernel in arguments.kernel}
    began, cores, failed = time.monotonic(), len(os.sched_getaffinity(0)), 0

    def report(at: int, good: bool, text: str) -> None:
        nonlocal failed
        failed += not good
        seconds, one = time.monotonic() - began, CHAMPIONS[at]
        print(f"{seconds:5.0f} s {'ok' if good else 'FAILED'}: {at} {one.kernel} {one.problem}: {text}", flush=True)

    for at, one in chosen.items():
        print(f"{at}: {one.kernel} {' '.join(f'{gene}={value}' for gene, value in one.genes.items())}", flush=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores) as threads:
        paths = {at: Path(folder) / f"{one.kernel}_{at}" for at, one in chosen.items()}
        runs = []
        with ProcessPoolExecutor(cores) as processes:
            builds = {processes.submit(built, (one, paths[at])): at for at, one in chosen.items()}
            for done in as_completed(builds):
                at, reason = builds[done], done.result()
                report(at, not reason, reason or "built")
                if not reason and not arguments.build:
                    runs.append(at)
                    report(at, *plain(paths[at], arguments.seconds))  # one at a time, because programs print times
        tools = {
            threads.submit(sanitized, paths[at], chosen[at].small, tool, arguments.seconds): at
            for tool in TOOLS
            for at in runs
        }
        for one_run in as_completed(tools):
            report(tools[one_run], *one_run.result())
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
