"""Read the two runs to compare, named as in `old.db:attention-s512` or `best.cu`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from evokern.analysis.compare.compare import ComparedRun, RunTiming
from evokern.errors import StudyError, UsageError
from evokern.files import is_file, read_text
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
