"""Is this commit slower than an older one? Searches with the code of both, and runs both champions alternately.

    git archive COMMIT evokern kernels pyproject.toml | tar x -C OLD
    python tests/scripts/commits_compared.py OLD "attention B=2 H=8 S=512 D=64" "matmul M=64 N=4096 K=4096" ...
        [--budget 20s] [--trials N] [--rounds 7] [--seed 0] [--device cuda:0]

For each problem, both commits search with the same budget, the same seed and an empty compile cache. The champions are
exported and built while the next searches run. At the end, both programs of a problem run alternately, `--rounds` times
each. A program also checks its results, and older programs need up to a minute for that, so 3 rounds may have to do.
The absolute folders of PYTHONPATH follow a commit's own tree, so that packages are found there. Prints a line for each
search, then the median times and the ratio of the times. On a simulated device (`--device sim:h200`), no program runs.
Exit code 1 if a step or a program fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import helpers_path  # noqa: F401 (finds the helpers)
from paths import ROOT

BUILD = "build and run: "
"""What `export` prints before the build line and the run line."""
TIME = re.compile(r"^time: ([0-9.]+) us (?:a|per) call", re.MULTILINE)
"""The time in the output of a program; older programs print "us a call"."""


class CommandError(Exception):
    """A command failed; the text says which one, and contains its last lines."""


class Commit:
    """The code of a commit, with a folder for its database, its compile cache and its programs."""

    def __init__(self, name: str, tree: Path, folder: Path) -> None:
        self.name, self._tree, self._folder = name, tree, folder
        folder.mkdir()

    def _output(self, command: Sequence[str | Path], **variables: str) -> str:
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        places = [str(self._tree), *(place for place in given if Path(place).is_absolute())]
        own = {"PYTHONPATH": os.pathsep.join(places), "EVOKERN_CACHE": str(self._folder / "cache")}
        environment = os.environ | own | variables
        ran = subprocess.run(command, cwd=self._folder, env=environment, capture_output=True, text=True)
        if ran.returncode:
            text = f"{ran.stdout}\n{ran.stderr}".strip()[-600:]
            raise CommandError(f"{self.name}: {shlex.join(map(str, command))} ended with {ran.returncode}: {text}")
        return ran.stdout

    def search(self, study: str, kernel: str, problem: str, options: Sequence[str]) -> None:
        """Search at a problem."""
        file = self._folder / f"{study}.toml"
        source = self._tree / "kernels" / kernel
        file.write_text(f'# Asks: which commit is faster?\nkernel = "{source}"\nproblems = ["{problem}"]\n')
        fixed = ["--db", "runs.db", "--warm-start", "none", "--no-verify", "--trust", "--quiet"]
        self._output([sys.executable, "-m", "evokern", "search", file, *options, *fixed])

    def build(self, study: str) -> Path:
        """Export a champion and build its program; return the program."""
        command = [sys.executable, "-m", "evokern", "export", study, "--db", "runs.db", "-o", f"{study}.cu", "--force"]
        # `export` builds and runs the program if it finds nvcc and a GPU, but this script builds and runs it anyway.
        folders = os.environ["PATH"].split(os.pathsep)
        without_nvcc = os.pathsep.join(folder for folder in folders if not (Path(folder) / "nvcc").exists())
        variables = {"PATH": without_nvcc, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        printed = self._output([*command, "--trust"], **variables)
        line = printed[printed.index(BUILD) + len(BUILD) : printed.rindex(" && ")]
        self._output(shlex.split(line))
        return self._folder / study

    def run(self, program: Path) -> float:
        """Run a program, which also checks its results; return the time of a call in µs."""
        found = TIME.search(self._output([program]))
        if found is None:
            raise CommandError(f"{self.name}: {program} printed no time")
        return float(found[1])


def searched(text: str, study: str, commits: Sequence[Commit], given: argparse.Namespace) -> None:
    """Search with both commits at a problem."""
    kernel, problem = text.split(maxsplit=1)
    options = ["--budget", given.budget, "--device", given.device, "--seed", str(given.seed)]
    options += ["--trials", str(given.trials)] if given.trials else []
    for commit in commits:
        began = time.monotonic()
        commit.search(study, kernel, problem, options)
        print(f"  {text}: {commit.name} searched for {time.monotonic() - began:.0f} s", flush=True)


def compared(text: str, commits: Sequence[Commit], programs: Sequence[Path], rounds: int) -> str:
    """Run the champions of both commits at a problem alternately; return the line of the result."""
    pairs = [*zip(commits, programs, strict=True)]
    times = [[commit.run(program) for commit, program in pairs] for _ in range(rounds)]
    old, new = (statistics.median(of_one) for of_one in zip(*times, strict=True))
    return f"{text}: old {old:.3f} us, new {new:.3f} us, new / old {new / old:.3f}"


def main() -> int:
    """Compare the commits at each problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="folder with evokern and kernels of the older commit")
    parser.add_argument("problems", nargs="+", metavar="KERNEL PROBLEM")
    parser.add_argument("--budget", default="20s", help="for each search")
    parser.add_argument("--trials", type=int, help="most trials of each search")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda:0", help="for the searches; programs run on the first GPU")
    given = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as threads:
        trees = {"old": given.old.resolve(), "new": ROOT}
        commits = [Commit(name, tree, Path(folder) / name) for name, tree in trees.items()]
        building: dict[str, list[Future[Path]]] = {}
        for at, text in enumerate(given.problems):
            try:
                searched(text, f"problem-{at}", commits, given)
                building[text] = [threads.submit(commit.build, f"problem-{at}") for commit in commits]
            except CommandError as error:
                failed += 1
                print(f"{text}: {error}", flush=True)
        for text, programs in building.items():
            try:
                built = [program.result() for program in programs]
                simulated = given.device.startswith("sim:")
                print(f"{text}: both built" if simulated else compared(text, commits, built, given.rounds), flush=True)
            except CommandError as error:
                failed += 1
                print(f"{text}: {error}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
