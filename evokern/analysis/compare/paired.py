"""Head-to-head comparison of two exported programs in interleaved runs on this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from evokern.errors import UsageError
from evokern.files import read_text
from evokern.measurement.playoff import Playoff, Rules, play

RULES = Rules(samples=1)
"""Playoff rules: each program runs once per round, because it prints the median of its own samples."""
BUILD_S, RUN_S = 300, 120

_PRINTED_TIME = re.compile(r"^time: ([\d.]+) us", re.MULTILINE)

Run = Callable[[Path], float]
"""Function that runs a program and returns its time in µs."""


def pairing_obstacle(device: str) -> str | None:
    """Return why this machine cannot compare programs for a chip model head-to-head, or None if it can."""
    from evokern.hardware.driver import probe

    if device.startswith("sim:"):
        return "their times are predicted"
    models = [gpu.model for gpu in probe().gpus]
    if device not in models:
        return f"this machine has no {device}"
    if shutil.which("nvcc") is None:
        return "nvcc, needed to build exported programs, is not on the PATH"
    return None


def pair(sources: Sequence[Path], *, level: float = 0.01) -> Playoff:
    """Build exported programs and run them in interleaved rounds.

    Args:
        sources: source files of the programs.
        level: probability of declaring equal programs different.

    Raises:
        UsageError: a program does not build or fails its own check.
    """
    with tempfile.TemporaryDirectory(prefix="evokern-") as scratch:
        binaries = [build(source, Path(scratch) / f"side{n}") for n, source in enumerate(sources)]
        return pair_programs(binaries, run, replace(RULES, level=level))


def pair_programs(binaries: Sequence[Path], run: Run, rules: Rules = RULES) -> Playoff:
    """Run programs in interleaved rounds, in alternating order, until the playoff is decided."""
    turn = 0

    def measure(alive: Sequence[int], samples: int) -> list[list[float]]:
        nonlocal turn
        turn += 1
        order = list(alive) if turn % 2 else list(alive)[::-1]
        times = {index: [run(binaries[index]) for _ in range(samples)] for index in order}
        return [times[index] for index in alive]

    return play(measure, len(binaries), rules)


def build(source: Path, binary: Path) -> Path:
    """Build an exported program with the nvcc options in its first comment.

    Raises:
        UsageError: nvcc fails.
    """
    text = read_text(source, "replace")
    line = next((part[2:].split() for part in text.splitlines()[:40] if part.startswith("//") and "nvcc " in part), [])
    options = [word for word in line[1:] if word.startswith("-") and word != "-o"]
    done = subprocess.run(["nvcc", *options, str(source), "-o", str(binary)], capture_output=True, text=True,
                          timeout=BUILD_S, check=False)  # fmt: skip
    if done.returncode:
        messages = (done.stderr or done.stdout).strip()[-800:].splitlines()
        raise UsageError(f"nvcc failed to build {source}: {' / '.join(messages)}")
    return binary


def run(binary: Path) -> float:
    """Run a program on its default problem and return the printed time in µs.

    Raises:
        UsageError: the program fails its check or prints no time.
    """
    done = subprocess.run([str(binary)], capture_output=True, text=True, timeout=RUN_S, check=False)
    printed = _PRINTED_TIME.search(done.stdout)
    if done.returncode or printed is None:
        last = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise UsageError(f"{binary.name} exited with status {done.returncode}: {' / '.join(last)}")
    return float(printed[1])
