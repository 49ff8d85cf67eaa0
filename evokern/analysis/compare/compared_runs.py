"""Runs to compare, named as in `old.db:attention-s512` or `best.cu`, and head-to-head timing of two programs."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evokern.analysis.compare.compare import ComparedRun, RunTiming
from evokern.errors import StudyError, UsageError
from evokern.files import is_file, read_text
from evokern.measurement.playoff import Playoff, Rules, play
from evokern.store import Reader, open_readonly
from evokern.study.trial import Trial

_TIME = re.compile(
    r"(?P<time>[\d.]+) µs(?P<predicted> predicted)?(, 95 % interval (?P<low>[\d.]+) to (?P<high>[\d.]+))?"
)


def compared_run(text: str) -> ComparedRun:
    """Return the run that a name refers to.

    Args:
        text: `FILE.db`, `FILE.db:STUDY`, or an exported `FILE.cu`.

    Raises:
        UsageError: the file or study does not exist, or has no measured trial.
    """
    path, study = split(text)
    if path.suffix == ".cu":
        return _exported(path)
    with open_readonly(path) as reader:
        return _studied(reader, text, study)


def split(text: str) -> tuple[Path, str | None]:
    """Split a run's name into file and study.

    Raises:
        UsageError: the file does not exist.
    """
    if is_file(Path(text)):
        return Path(text), None
    file, colon, study = text.rpartition(":")
    if colon and is_file(Path(file)):
        return Path(file), study
    raise UsageError(f"there is no file {file or text}; use FILE.db, FILE.db:STUDY or an exported FILE.cu")


def _studied(reader: Reader, label: str, name: str | None) -> ComparedRun:
    record = reader.study(name)
    best = reader.best(record)
    if best is None:
        raise StudyError(f"study {record.name} of {label} has no measured trial to compare; run `evokern search` first")
    sessions = reader.sessions(record)
    environment: dict[str, Any] = dict(sessions[-1].environment) if sessions else {}
    facts: dict[str, str] = {
        name: str(environment[name]) for name in ("driver", "driver_cuda", "compiler", "torch") if name in environment
    }
    facts |= {"evokern": record.evokern_version, "kernel code": record.kernel_digest[:12], "trial": str(best.number)}
    if record.timing_rule is not None:
        facts["timing rule"] = str(record.timing_rule)
    words = {problem: record.in_words(problem) for problem in record.problems if record.fields}
    return ComparedRun(label, record.kernel, record.device, record.predicted, _readings(best, record.problems),
                dict(best.config), facts, words)  # fmt: skip


def _readings(best: Trial, problems: tuple[str, ...]) -> dict[str, RunTiming]:
    timings = best.evaluation.timings
    if not timings and best.evaluation.time_us is not None and len(problems) == 1:
        return {problems[0]: RunTiming(best.evaluation.time_us)}
    return {
        problem: RunTiming(one.median_us, one.ci95_us, one.samples_us, one.clock_mhz)
        for problem, one in zip(problems, timings, strict=False)
    }


def _exported(path: Path) -> ComparedRun:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    comment = [line[2:].strip() for line in text.splitlines()[:200] if line.startswith("//")]
    facts = dict(line.split(": ", 1) for line in comment if ": " in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    time = _TIME.search(facts.get("time", ""))
    missing = [name for name in ("device", "time", "problem", "kernel") if name not in facts]
    if missing or time is None:
        raise UsageError(
            f"{path} is not a program exported by evokern: its first comment lacks {', '.join(missing) or 'a time'}"
        )
    interval = (float(time["low"]), float(time["high"])) if time["low"] else None
    parts = facts["problem"].split(", ")
    problem = ",".join(part.split("=")[1] if part.split("=")[1].isdigit() else part.strip() for part in parts)
    kept: dict[str, str] = {
        name: facts[name] for name in ("driver", "compiler", "evokern", "kernel", "trial") if name in facts
    }
    config = dict(line.split(" = ", 1) for line in comment[comment.index("configuration:") + 1 :] if " = " in line)
    return ComparedRun(
        str(path),
        facts["kernel"].split(",")[0],
        facts["device"].removesuffix(", simulated"),
        bool(time["predicted"]),
        {problem: RunTiming(float(time["time"]), interval)},
        config,
        kept,
        {problem: " ".join(parts)},
    )


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
