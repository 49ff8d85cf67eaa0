"""Sections about where the champion comes from: its source with the choices marked, and its surroundings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from evokern.report.facts import Facts
from evokern.report.space import slow_meaning
from evokern.report.tables import TextTable, flattened
from evokern.store import StudyRecord
from evokern.wording import warm_start_text

WORDS = (
    ("gene", "one choice of the kernel: a number (tile, warps) or a code path"),
    (
        "problem",
        "sizes and options of one call, by the names of the kernel's fields; those at their default are left out. The "
        "study's own problem is the one that is searched for; small shapes are checked beside it",
    ),
    ("trial", "one candidate, a value for every gene, and what became of it"),
    ("default candidate", "every gene at its default: what the kernel's author would have written"),
    ("champion", "the fastest trial that passed the gate; after a playoff its winner"),
    ("elite", "a trial among the fastest when another one raced against it, or the fastest with a code path"),
    (
        "gate",
        "the checks that every candidate must pass: answers against a float64 reference on several kinds of inputs, "
        "guard zones around buffers, inputs unchanged; on a GPU equal answers of two runs, "
        "and calls repeated on other inputs",
    ),
    ("wrong", "it failed a check of the gate; tolerance: an element was off by more than the kernel allows"),
    ("margin", "wrong although this draw passed: its errors came so near the tolerance that other inputs would fail"),
    ("same program", "its machine code is that of an earlier trial, whose time it shares"),
    ("control", "every second trial drawn at random, which shows whether the sampler was better than chance"),
    (
        "verified",
        "sanitizer, fuzzing and a run of the study's own problem passed; on a GPU also the gate once more, with new "
        "inputs and more runs, and a playoff against the next best, which predicted times have no use for",
    ),
    ("playoff", "the fastest trials (finalists) measured again in turn: which one is really the fastest"),
    ("locked, barred", "only one of a gene's values works; a barred value never does"),
)
"""Words of the page that are the tool's own, as its glossary explains them."""


@dataclass(frozen=True)
class MarkedFile:
    """A file of the kernel with the champion's choices."""

    name: str
    """Its name."""
    opened: bool
    """Whether the page shows it unfolded."""
    lines: tuple[tuple[str, str], ...]
    """Each line, and the genes that it names with the champion's values."""


def source(facts: Facts) -> dict[str, Any]:
    """Return the champion's source, with the values of the genes that decide its lines."""
    names = [gene.name for gene in facts.record.genes]
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")(?=\b|_)") if names else None
    config = facts.best.config if facts.best else {}
    files = []
    for file, text in facts.sources.items():
        if not file.endswith((".cu", ".cuh", ".h")) or file == "reference.h":
            continue
        lines = []
        for line in text.splitlines():
            # A gene that a comment names decides nothing there.
            used = dict.fromkeys(pattern.findall(line.partition("//")[0])) if pattern else {}
            choices = ", ".join(f"{name}={config[name]}" for name in used if name in config)
            lines.append((line or " ", choices))
        files.append(MarkedFile(file, file.endswith(".cu"), tuple(lines)))
    return {
        "about": "the kernel as it was searched, with the champion's choices at the lines they decide",
        "files": files,
    }


def words(facts: Facts) -> dict[str, Any]:
    """Return what the page's words mean."""
    unit = "a time model's, not a clock's" if facts.record.predicted else "a clock's, the median of samples"
    return {
        "about": "gene, champion, gate, elite, control, playoff …",
        "words": [*WORDS, ("slow", slow_meaning(facts)), ("µs", f"of one call; {unit}")],
    }


def _columns(record: StudyRecord) -> list[str]:
    one = len(record.problems) == 1
    return ["value"] if one else [f"problem {number}" for number in range(1, len(record.problems) + 1)]


def _fields(record: StudyRecord) -> list[tuple[str, ...]]:
    """Return each field of the study's problems: its name, its value at each of them, what it means."""
    by_problem = [record.meanings(problem) for problem in record.problems]
    return [(same[0][0], *(str(value) for _, value, _ in same), same[0][2]) for same in zip(*by_problem, strict=False)]


def environment(facts: Facts) -> dict[str, Any]:
    """Return versions, clocks, notes, settings."""
    sessions = []
    for place, session in enumerate(facts.sessions, 1):
        told = {
            "started": session.started,
            "ended": session.end_reason or "not properly",
            "minutes": f"{session.elapsed_s / 60:.1f}",
            **session.environment,
        }
        sessions += [(str(place), name, value) for name, value in flattened(told).rows if value]
        sessions += [(str(place), "note", note) for note in session.notes]
    record = facts.record
    about = {
        "kernel": f"{record.kernel}, code {facts.best_digest[:12]}",
        "problems": record.problems_in_words(every=True),
        "device": record.device,
        "sampler": f"{record.sampler} {dict(record.sampler_options) or ''}",
        "control": record.control,
        "seed, most in flight": f"{record.seed}, {record.window}",
        "begun": record.created,
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
