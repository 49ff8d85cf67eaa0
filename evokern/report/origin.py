"""Sections about where the champion comes from: its source with the choices marked, and its surroundings."""

from __future__ import annotations

import re
from html import escape

from evokern.report.facts import Facts
from evokern.report.html import missing, nested, table


def source(facts: Facts) -> str:
    """The champion's source, lines that a gene decides marked with the value."""
    names = [gene.name for gene in facts.record.genes]
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")(?=\b|_)") if names else None
    parts = []
    for file, text in facts.sources.items():
        if not file.endswith((".cu", ".cuh", ".h")) or file == "reference.h":
            continue
        lines = []
        for line in text.splitlines():
            # A gene that a comment names decides nothing there.
            used = dict.fromkeys(pattern.findall(line.partition("//")[0])) if pattern else {}
            said = ", ".join(f"{name}={facts.best.config[name]}" for name in used if name in facts.best.config)
            mark = f'<em title="{escape(said, quote=True)}">' if said else ""
            note = f"</em><small>{escape(said)}</small>" if said else ""
            lines.append(f"<li>{mark}{escape(line) or ' '}{note}</li>")
        opened = " open" if file.endswith(".cu") else ""
        parts.append(
            f"<details{opened}><summary>{escape(file)}, {len(lines)} lines</summary>"
            f'<pre class="wide"><ol>{"".join(lines)}</ol></pre></details>'
        )
    if not parts:
        return missing("The database keeps no source of this study.")
    return "<p>Lines that a choice decides are marked, with the champion's value at their end.</p>" + "".join(parts)


def environment(facts: Facts) -> str:
    """Versions, clocks, notes, settings."""
    rows = []
    for place, session in enumerate(facts.sessions, 1):
        for name, value in {
            "started": session.started,
            "ended": session.end_reason or "not properly",
            "minutes": f"{session.elapsed_s / 60:.1f}",
            **session.environment,
        }.items():
            rows.append((str(place), escape(str(name)), escape(str(value))))
        rows += [(str(place), "note", escape(note)) for note in session.notes]
    record = facts.record
    about = {
        "kernel": f"{record.kernel}, code {facts.best_digest[:12]}",
        "problems": " and ".join(record.problems),
        "device": record.device,
        "sampler": f"{record.sampler} {dict(record.sampler_options) or ''}",
        "control": record.control,
        "seed, window": f"{record.seed}, {record.window}",
        "begun": record.created,
        "evokern": record.evokern_version,
    }
    settings = {
        key: record.settings[key] for key in ("gate", "timing", "simulation", "limits") if key in record.settings
    }
    return (
        table(("", ""), [(escape(k), escape(str(v))) for k, v in about.items()])
        + f"<h3>Settings</h3>{nested(settings)}<h3>Sessions</h3>"
        + table(("session", "", ""), rows)
    )
