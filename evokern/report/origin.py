"""Sections about the champion's origin: its annotated source, the environment, and the glossary."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from evokern.report.facts import Facts
from evokern.report.search_sections import slow_meaning
from evokern.report.tables import TextTable, flattened
from evokern.store import StudyRecord
from evokern.wording import warm_start_text

WORDS = (
    ("gene", "one choice in the kernel: a number (tile, warps) or a code path"),
    (
        "problem",
        "sizes and options of one call, as fields of the kernel; fields at their default are omitted. The search "
        "optimises the study's full-size problem; correctness is also checked on small shapes",
    ),
    ("trial", "one candidate (a value for every gene) and its outcome"),
    ("default candidate", "the candidate with every gene at its default, as the kernel's author would write it"),
    ("champion", "the fastest trial that passed the gate, or the winner of the playoff"),
    ("elite", "one of the fastest trials that others raced against, or the fastest trial with a code path"),
    (
        "gate",
        "the correctness checks that every candidate must pass: results compared with a float64 reference on several "
        "kinds of inputs, intact guard zones around buffers, and unchanged inputs; on a GPU also equal results of two "
        "runs and repeated calls with other inputs",
    ),
    ("wrong", "failed a check of the gate; “tolerance”: the error of an element exceeds what the kernel allows"),
    ("margin", "rejected although these inputs passed, because other inputs would exceed the tolerance"),
    ("duplicate", "same machine code as an earlier trial, and therefore the same time"),
    ("control", "random search for every second trial, which shows whether the sampler beats chance"),
    (
        "verified",
        "passed the sanitizer, fuzzing and a run of the full-size problem; on a GPU also the gate with new inputs and "
        "more runs, and a playoff against the next-fastest trials; predicted times need no playoff",
    ),
    ("playoff", "interleaved measurements of the fastest trials (finalists) to find the fastest one"),
    ("locked, barred", "locked: only one value of a gene works; barred: a value never works"),
)
"""Terms of the page and their meanings, as in the glossary."""


@dataclass(frozen=True)
class MarkedFile:
    """A source file of the kernel, annotated with the champion's choices."""

    name: str
    """Name of the file."""
    opened: bool
    """Whether the page shows the file expanded."""
    lines: tuple[tuple[str, str], ...]
    """Lines of the file, each with the genes that it uses and the champion's values."""


def source(facts: Facts) -> dict[str, Any]:
    """Return the section with the champion's source and the values of the genes that each line uses."""
    names = [gene.name for gene in facts.record.genes]
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")(?=\b|_)") if names else None
    config = facts.best.config if facts.best else {}
    files = []
    for file, text in facts.sources.items():
        if not file.endswith((".cu", ".cuh", ".h")) or file == "reference.h":
            continue
        lines = []
        for line in text.splitlines():
            # Ignore gene names in comments.
            used = dict.fromkeys(pattern.findall(line.partition("//")[0])) if pattern else {}
            choices = ", ".join(f"{name}={config[name]}" for name in used if name in config)
            lines.append((line or " ", choices))
        files.append(MarkedFile(file, file.endswith(".cu"), tuple(lines)))
    return {
        "about": "source of the kernel, with the champion's choices next to the lines that use them",
        "files": files,
    }


def words(facts: Facts) -> dict[str, Any]:
    """Return the glossary of the page."""
    unit = "predicted by a time model" if facts.record.predicted else "measured, the median of the samples"
    return {
        "about": "gene, champion, gate, elite, control, playoff …",
        "words": [*WORDS, ("slow", slow_meaning(facts)), ("µs", f"time of one call: {unit}")],
    }


def _columns(record: StudyRecord) -> list[str]:
    one = len(record.problems) == 1
    return ["value"] if one else [f"problem {number}" for number in range(1, len(record.problems) + 1)]


def _fields(record: StudyRecord) -> list[tuple[str, ...]]:
    """Return each field of the study's problems: name, value in each problem, and meaning."""
    by_problem = [record.meanings(problem) for problem in record.problems]
    return [(same[0][0], *(str(value) for _, value, _ in same), same[0][2]) for same in zip(*by_problem, strict=False)]


def environment(facts: Facts) -> dict[str, Any]:
    """Return the section with the versions, clocks, notes and settings of the study."""
    sessions = []
    for place, session in enumerate(facts.sessions, 1):
        summary = {
            "started": session.started,
            "ended": session.end_reason or "not yet, or killed",
            "minutes": f"{session.elapsed_s / 60:.1f}",
            **session.environment,
        }
        sessions += [(str(place), name, value) for name, value in flattened(summary).rows if value]
        sessions += [(str(place), "note", note) for note in session.notes]
    record = facts.record
    about = {
        "kernel": f"{record.kernel}, code {facts.best_digest[:12]}",
        "problems": record.problems_in_words(every=True),
        "device": record.device,
        "sampler": f"{record.sampler} {dict(record.sampler_options) or ''}",
        "control": record.control,
        "seed, maximum in flight": f"{record.seed}, {record.window}",
        "started": record.created,
        "evokern": record.evokern_version,
    }
    if facts.warm_start:
        about["warm start"] = warm_start_text(facts.warm_start)
    if record.timing_rule is not None:
        about["timing rule"] = str(record.timing_rule)
    settings = {
        key: record.settings[key] for key in ("gate", "timing", "simulation", "limits") if key in record.settings
    }
    return {
        "about": "versions, clocks, settings, sessions and their notes",
        "study": TextTable(("", ""), [(name, str(value)) for name, value in about.items()]),
        "fields": TextTable(("field", *_columns(record), "meaning"), _fields(record)),
        "settings": flattened(settings),
        "sessions": TextTable(("session", "", ""), sessions),
    }
