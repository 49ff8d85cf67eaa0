"""Sections about where the champion comes from: its source with the choices marked, and its surroundings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from evokern.report.facts import Facts
from evokern.report.tables import TextTable, flattened


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


def environment(facts: Facts) -> dict[str, Any]:
    """Return versions, clocks, notes, settings."""
    sessions = []
    for place, session in enumerate(facts.sessions, 1):
        for name, value in {
            "started": session.started,
            "ended": session.end_reason or "not properly",
            "minutes": f"{session.elapsed_s / 60:.1f}",
            **session.environment,
        }.items():
            sessions.append((str(place), str(name), str(value)))
        sessions += [(str(place), "note", note) for note in session.notes]
    record = facts.record
    about = {
        "kernel": f"{record.kernel}, code {facts.best_digest[:12]}",
        "problems": " and ".join(record.problems),
        "device": record.device,
        "sampler": f"{record.sampler} {dict(record.sampler_options) or ''}",
        "control": record.control,
        "seed, most in flight": f"{record.seed}, {record.window}",
        "begun": record.created,
        "evokern": record.evokern_version,
    }
    if record.timing_rule is not None:
        about["timing rule"] = str(record.timing_rule)
    settings = {
        key: record.settings[key] for key in ("gate", "timing", "simulation", "limits") if key in record.settings
    }
    return {
        "about": "versions, clocks, settings, sessions and their notes",
        "study": TextTable(("", ""), [(name, str(value)) for name, value in about.items()]),
        "settings": flattened(settings),
        "sessions": TextTable(("session", "", ""), sessions),
    }
