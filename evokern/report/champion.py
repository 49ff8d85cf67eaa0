"""Sections about the champion: its proof, why it wins, how near the limit it is, its source and surroundings.

Each takes the facts and returns HTML, or says what is missing and how to get it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from evokern.report.facts import Facts
from evokern.report.html import missing, nested, table
from evokern.report.plots import Axis, Plot, bars, number, span
from evokern.store import interval_us

_MARKS = {"passed": "good", "failed": "bad", "skipped": "dim"}


def headline(facts: Facts) -> str:
    """The champion in a few large numbers."""
    best, unit = facts.best.evaluation, facts.unit
    time_us = best.time_us or 0.0
    interval = interval_us(best)
    between = f"95 % interval {number(interval[0])} to {number(interval[1])}" if interval else ""
    tiles = [(f"{number(time_us)} {unit}", "champion", "" if facts.record.predicted else between)]
    if facts.baseline:
        name, took = facts.baseline
        tiles.append((f"{took / time_us:.2f}×", f"as fast as {name}", f"which takes {number(took)} {unit}"))
    else:
        tiles.append(("–", "no baseline", "none was measured, so no speedup is known"))
    if facts.limit:
        tiles.append((f"{100 * facts.limit.share:.0f} %", "of the speed of light", f"bound by {facts.limit.setter}"))
    spent = sum(session.elapsed_s for session in facts.sessions)
    price = facts.record.settings.get("cost_per_hour")
    cost = f", {price * spent / 3600:.2f} spent" if isinstance(price, int | float) else ""
    tiles.append((str(len(facts.trials)), "trials", f"in {spent / 60:.1f} min, {_sessions(len(facts.sessions))}{cost}"))
    told = "".join(
        f"<li><b>{escape(a)}</b><span>{escape(b)}</span><small>{escape(c)}</small></li>" for a, b, c in tiles
    )
    return f'<ul class="tiles">{told}</ul>'


def _sessions(count: int) -> str:
    return "one session" if count == 1 else f"{count} sessions"


def proof(facts: Facts) -> str:
    """Configuration of the champion, and what verification found."""
    best = facts.best
    rows = [
        (
            escape(gene.name),
            f"<b>{escape(str(best.config[gene.name]))}</b>",
            escape(str(gene.default)),
            escape(gene.doc),
        )
        for gene in facts.record.genes
    ]
    parts = [f"<p>Trial {best.number}; choices beside those of the default candidate:</p>"]
    parts.append(table(("gene", "champion", "default", "what it decides"), rows))
    gate = {**best.evaluation.gate}
    if gate:
        parts.append(f"<h3>Correctness gate</h3>{nested(gate)}")
    if facts.proof is None:
        parts.append(
            missing(
                "Not verified yet: <code>evokern verify --fuzz 5m</code> adds gate at full strength, "
                "sanitizer, playoff and fuzzing."
            )
        )
        return "".join(parts)
    result = facts.proof.result
    stages = [
        (
            f'<span class="{_MARKS[stage["state"]]}">{escape(stage["state"])}</span>',
            escape(name),
            escape(stage["detail"]),
        )
        for name, stage in result["stages"].items()
    ]
    parts.append(f"<h3>Verification of trial {facts.proof.trial}, {escape(facts.proof.created)}</h3>")
    parts.append(table(("", "part", "found"), stages))
    if result.get("playoff"):
        parts.append(_playoff(result["playoff"], facts.unit))
    return "".join(parts)


def _playoff(played: Mapping[str, Any], unit: str) -> str:
    rows = []
    for one in played["finalists"]:
        low, high = one["ratio_ci95"]
        between = "–" if played["predicted"] else f"{low:.3f} to {high:.3f}"
        rows.append(
            (
                escape(one["name"]),
                escape(one["standing"]),
                number(one["time_us"]),
                f"{one['ratio']:.3f}",
                between,
                f"{one['cliffs_delta']:+.2f}",
            )
        )
    how = "predicted times" if played["predicted"] else f"{played['rounds']} rounds, error budget {played['level']:g}"
    head = ("", "standing", unit, "of champion", "95 % interval", "Cliff's δ")
    return f"<h3>Playoff ({how})</h3>" + table(head, rows, numeric=4)


def ablation(facts: Facts) -> str:
    """Each choice of the champion taken back."""
    if facts.ablation is None:
        return missing("Not taken apart yet: <code>evokern ablate</code> measures each choice back at the default.")
    found = facts.ablation.result
    timed = [row for row in found["alone"] if row["time_us"]]
    made = bars(
        "Cost of taking each choice back",
        [
            (f"{row['gene']}={row['value']}", max(row["ratio"] - 1, 0.0), f"{100 * (row['ratio'] - 1):+.1f} %")
            for row in timed
        ],
    )
    for title, rows, unnamed in (
        ("Each choice back at the default, alone", [found["champion"], *found["alone"]], "the champion"),
        ("From the default to the champion, a change at a time", found["path"], "the default"),
    ):
        told = []
        for place, row in enumerate(rows):
            name = f"{row['gene']}={row['value']}" if row["gene"] else unnamed if place == 0 else "all others together"
            between = f"{row['ratio_ci95'][0]:.3f} to {row['ratio_ci95'][1]:.3f}" if row["ratio_ci95"] else "–"
            told.append(
                (
                    escape(name),
                    escape(row["note"]),
                    number(row["time_us"]) if row["time_us"] else "–",
                    f"{row['ratio']:.3f}" if row["ratio"] else "–",
                    between,
                    number(row["gb_per_s"]) if row["gb_per_s"] else "–",
                    f"{100 * row['occupancy']:.0f} %" if row["occupancy"] is not None else "–",
                    f"{row['speedup']:.2f}×" if row["speedup"] else "–",
                )
            )
        if told:
            head = ("choice", "", facts.unit, "of champion", "95 % interval", "GB/s", "occupancy", "speedup")
            made += f"<h3>{title}</h3>" + table(head, told, numeric=6)
    return f"<p>Trial {facts.ablation.trial}, {escape(facts.ablation.created)}.</p>" + made


def roofline(facts: Facts) -> str:
    """Operations a second against operations a byte, under the chip's theoretical peaks."""
    evidence, chip = facts.best.evaluation.evidence, facts.chip
    if chip is None or "flops" not in evidence:
        return missing("The trials carry no operation counts, or the chip's peak rates are not known.")
    flops, moved = sum(evidence["flops"]), sum(evidence["bytes"])
    intensity = flops / moved
    peak = chip.tensor_peak_flops_per_clock * chip.sms * chip.clock_mhz * 1e6
    plain = chip.fp32_flops_per_clock * chip.sms * chip.clock_mhz * 1e6
    ridge = peak / chip.dram_bytes_per_s
    reached = [
        (flops / (t.evaluation.time_us * 1e-6 * len(evidence["flops"])), t)
        for t in facts.measured
        if t.evaluation.time_us
    ]
    low_x, high_x = min(intensity, ridge) / 8, max(intensity, ridge) * 8
    low_y = min([rate for rate, _ in reached] + [chip.dram_bytes_per_s * low_x]) / 2 / 1e12
    plot = Plot(
        "Roofline",
        Axis("operations a byte of the workload", low_x, high_x, log=True),
        Axis("TFLOP/s", low_y, peak * 2 / 1e12, log=True),
    )
    plot.line([(low_x, chip.dram_bytes_per_s * low_x / 1e12), (ridge, peak / 1e12), (high_x, peak / 1e12)], "roof")
    cache = chip.l2_bytes_per_clock_per_sm * chip.sms * chip.clock_mhz * 1e6
    plot.line([(low_x, cache * low_x / 1e12), (peak / cache, peak / 1e12)], "cache")
    plot.level(plain / 1e12, "fp32 without tensor cores", "base")
    plot.points(
        [(intensity, rate / 1e12, f"trial {t.number}: {number(rate / 1e12)} TFLOP/s") for rate, t in reached], "dot"
    )
    champion = flops / ((facts.best.evaluation.time_us or 1.0) * 1e-6 * len(evidence["flops"]))
    plot.points([(intensity, champion / 1e12, f"champion: {number(champion / 1e12)} TFLOP/s")], "star", 6)
    plot.name("roof", "DRAM bandwidth and tensor-core peak")
    plot.name("cache", "L2 bandwidth")
    plot.name("star", "champion")
    bound = f" The model says {escape(str(evidence['bound']))}." if "bound" in evidence else ""
    return plot.svg() + f"<p>Peak rates of {escape(chip.model)} from its data sheet.{bound}</p>"


def timing(facts: Facts) -> str:
    """Samples of the champion and the baseline."""
    ours = facts.best.evaluation.timings[0].samples_us if facts.best.evaluation.timings else ()
    theirs = facts.baseline_timing.samples_us if facts.baseline_timing else ()
    if facts.record.predicted or len(ours) < 2:
        times = sorted(t.evaluation.time_us or 0.0 for t in facts.measured)
        shown = [t for t in times if t <= 6 * times[0]]
        plot = Plot("Measured trials by rank", Axis("rank", 1, max(len(shown), 2)), Axis(facts.unit, *span(shown)))
        plot.points([(n + 1, t, f"rank {n + 1}: {number(t)}") for n, t in enumerate(shown)], "dot")
        return missing("A predicted time has no distribution; the trials' times by rank instead.") + plot.svg()
    everything = [*ours, *theirs]
    plot = Plot(
        "Samples in the order taken",
        Axis("sample", 0, max(len(ours), len(theirs))),
        Axis("µs a call", *span(everything)),
    )
    plot.points([(n + 1, t, f"champion, sample {n + 1}: {t:.3f} µs") for n, t in enumerate(ours)], "star", 4)
    plot.name("star", "champion")
    if theirs:
        plot.points([(n + 1, t, f"baseline, sample {n + 1}: {t:.3f} µs") for n, t in enumerate(theirs)], "base-dot", 4)
        plot.name("base-dot", f"baseline {facts.baseline[0]}" if facts.baseline else "baseline")
    return plot.svg()


def source(facts: Facts) -> str:
    """The champion's source, lines that a gene decides marked with the value."""
    names = [gene.name for gene in facts.record.genes]
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")(?=\b|_)") if names else None
    parts = []
    for file, text in facts.sources.items():
        if not file.endswith((".cu", ".cuh")):
            continue
        lines = []
        for line in text.splitlines():
            used = dict.fromkeys(pattern.findall(line)) if pattern else {}
            said = ", ".join(f"{name}={facts.best.config[name]}" for name in used if name in facts.best.config)
            mark = f'<em title="{escape(said, quote=True)}">' if said else ""
            note = f"</em><small>{escape(said)}</small>" if said else ""
            lines.append(f"<li>{mark}{escape(line) or ' '}{note}</li>")
        opened = " open" if file.endswith(".cu") else ""
        parts.append(
            f"<details{opened}><summary>{escape(file)}, {len(lines)} lines</summary>"
            f'<pre class="wide" tabindex="0"><ol>{"".join(lines)}</ol></pre></details>'
        )
    if not parts:
        return missing("The database keeps no source of this study.")
    return "<p>Lines that a choice decides are marked, with the champion's value at their end.</p>" + "".join(parts)


def environment(facts: Facts) -> str:
    """Versions, clocks, notes, settings."""
    rows = []
    for number_, session in enumerate(facts.sessions, 1):
        for name, value in {
            "started": session.started,
            "ended": session.end_reason or "not properly",
            "minutes": f"{session.elapsed_s / 60:.1f}",
            **session.environment,
        }.items():
            rows.append((str(number_), escape(str(name)), escape(str(value))))
        rows += [(str(number_), "note", escape(note)) for note in session.notes]
    record = facts.record
    about = {
        "kernel": f"{record.kernel}, code {facts.best_digest[:12]}",
        "problems": " and ".join(record.problems),
        "device": record.device,
        "sampler": f"{record.sampler} {dict(record.sampler_options) or ''}",
        "seed, window": f"{record.seed}, {record.window}",
        "begun": record.created,
        "evokern": record.evokern_version,
    }
    settings = {
        key: record.settings[key] for key in ("gate", "timing", "simulation", "limits") if key in record.settings
    }
    return (
        table(("study", ""), [(escape(k), escape(str(v))) for k, v in about.items()])
        + f"<h3>Settings</h3>{nested(settings)}<h3>Sessions</h3>"
        + table(("session", "", ""), rows)
    )
