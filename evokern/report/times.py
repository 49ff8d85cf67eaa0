"""Sections about the champion's time: the roofline, and its samples compared with the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from evokern.measurement.roofline import Rates
from evokern.measurement.statistics import median
from evokern.report.facts import Facts
from evokern.report.plots import Axis, Plot, number, span
from evokern.report.tables import TextTable
from evokern.study.trial import Timing
from evokern.wording import microseconds


@dataclass(frozen=True)
class Roofs:
    """Work of a call, and the peak rates that limit its speed."""

    flops: float
    """Number of operations of a call; with several problems, their mean."""
    intensity: float
    """Number of operations per byte of the workload."""
    peak: float
    """Data-sheet peak of the tensor cores in FLOP/s."""
    plain: float
    """Data-sheet fp32 peak without tensor cores in FLOP/s."""
    dram: float
    """Data-sheet DRAM bandwidth in bytes/s."""
    l2: float
    """Data-sheet L2 bandwidth in bytes/s."""
    measured: Rates | None
    """Rates measured on the GPU by a session, or None."""

    def rate(self, time_us: float) -> float:
        """Return the FLOP/s of a call that takes a given time."""
        return self.flops / (time_us * 1e-6)


def roofs(facts: Facts) -> Roofs | None:
    """Return the champion's work and the chip's rates, or None if either is unknown."""
    evidence, chip = facts.best.evaluation.evidence if facts.best else {}, facts.chip
    flops, moved = evidence.get("flops", ()), evidence.get("bytes", ())
    if chip is None or not sum(flops) or not sum(moved):
        return None
    cycles = chip.sms * chip.clock_mhz * 1e6
    return Roofs(
        flops=sum(flops) / len(flops),
        intensity=sum(flops) / sum(moved),
        peak=chip.tensor_peak_flops_per_clock * cycles,
        plain=chip.fp32_flops_per_clock * cycles,
        dram=chip.dram_bytes_per_s,
        l2=chip.l2_bytes_per_clock_per_sm * cycles,
        measured=facts.limit.rates if facts.limit else None,
    )


def roofline(facts: Facts) -> dict[str, Any]:
    """Return the section with the roofline plot: operations per second over operations per byte."""
    about = "performance of the trials compared with the chip's peak rates"
    best, chip, found = facts.best, facts.chip, roofs(facts)
    if best is None or chip is None or found is None:
        return {"about": f"{about}: not available", "plot": None}
    evidence = best.evaluation.evidence
    intensity, peak, cache = found.intensity, found.peak, found.l2
    ridge = peak / found.dram
    reached = [(found.rate(t.evaluation.time_us), t) for t in facts.measured if t.evaluation.time_us]
    low_x, high_x = min(intensity, peak / cache) / 4, max(intensity, ridge) * 4
    low_y = min([rate for rate, _ in reached] + [found.dram * low_x]) / 2 / 1e12
    plot = Plot(
        "Roofline",
        Axis("operations per byte of the workload (FLOP/B)", low_x, high_x, log=True),
        Axis(f"{'predicted ' * facts.record.predicted}TFLOP/s", low_y, peak * 2 / 1e12, log=True),
    )
    plot.line([(low_x, found.dram * low_x / 1e12), (ridge, peak / 1e12), (high_x, peak / 1e12)], "roof")
    plot.line([(low_x, cache * low_x / 1e12), (peak / cache, peak / 1e12)], "cache")
    if found.measured is not None:
        top, bandwidth = found.measured.matrix_flops_per_s, found.measured.dram_bytes_per_s
        corner = top / bandwidth
        plot.line([(low_x, bandwidth * low_x / 1e12), (corner, top / 1e12), (high_x, top / 1e12)], "peak")
        plot.name("peak", f"measured: copy {number(bandwidth / 1e12)} TB/s, matrix {number(top / 1e12)} TFLOP/s")
    plot.level(found.plain / 1e12, "fp32 without tensor cores", "base")
    plot.points(
        [(intensity, rate / 1e12, f"trial {t.number}: {number(rate / 1e12)} TFLOP/s") for rate, t in reached], "dot"
    )
    champion = found.rate(best.evaluation.time_us or 1.0)
    plot.points([(intensity, champion / 1e12, f"champion: {number(champion / 1e12)} TFLOP/s")], "star", 6)
    plot.name("roof", f"DRAM bandwidth and tensor-core peak, {number(peak / 1e12)} TFLOP/s")
    plot.name("cache", f"L2 bandwidth, {number(cache / 1e12)} TB/s")
    plot.name("star point", "champion")
    plot.name("dot point", "other trials")
    return {
        "about": about,
        "plot": plot,
        "chip": chip.model,
        "measured": found.measured is not None,
        "bound": str(evidence["bound"]) if "bound" in evidence else "",
    }


def timing(facts: Facts) -> dict[str, Any]:
    """Return the section with the distributions of the champion's and the baseline's samples."""
    about = "distribution and drift of the champion's samples"
    ours = facts.best.evaluation.timings[0] if facts.best and facts.best.evaluation.timings else None
    if facts.record.predicted or ours is None or len(ours.samples_us) < 2:
        why = "A predicted time has no distribution" if facts.record.predicted else "The champion has no samples"
        return {"about": f"{about}: no samples", "why": why}
    series = [("champion", "own", "star", ours)]
    theirs = facts.baseline_timing
    if facts.baseline and theirs is not None and len(theirs.samples_us) > 1:
        series.append((f"baseline {facts.baseline[0]}", "base-line", "base-dot", theirs))
    head = ("", "samples", "median", "95 % interval", "5 to 95 %", "minimum", "maximum", "SM clock", "throttled")
    return {
        "about": about,
        "why": "",
        "problem": facts.record.in_words(facts.record.problems[0]) if len(facts.record.problems) > 1 else "",
        "plots": [sample_shares([(name, line, one.samples_us) for name, line, _, one in series]), _drift(series)],
        "samples": TextTable(head, [_row(name, timing) for name, _, _, timing in series], range(1, 8)),
    }


_Series = tuple[str, str, str, Timing]


def sample_shares(series: Sequence[tuple[str, str, Sequence[float]]]) -> Plot:
    """Return the cumulative distribution of samples.

    Args:
        series: Name, CSS class of the line, and samples in µs.
    """
    everything = [sample for *_, samples in series for sample in samples]
    low, high = span(everything, log=True)
    plot = Plot("Cumulative share of the samples", Axis("µs per call", low, high, log=True), Axis("share", 0, 1))
    for name, line, samples in series:
        ordered = sorted(samples)
        plot.steps([(ordered[0], 0.0), *((t, (n + 1) / len(ordered)) for n, t in enumerate(ordered))], line)
        plot.name(line, name)
    return plot


def _drift(series: Sequence[_Series]) -> Plot:
    """Return a plot of each sample relative to its median, in measurement order."""
    deviations = {
        name: [100 * (sample / timing.median_us - 1) for sample in timing.samples_us] for name, *_, timing in series
    }
    everything = [value for values in deviations.values() for value in values]
    most = max(len(values) for values in deviations.values())
    plot = Plot(
        "Deviation of the samples from their median, in measurement order",
        Axis("sample", 0, most + 1),
        Axis("deviation, %", *span([*everything, 0.0])),
    )
    for name, _, dot, timing in series:
        points = [
            (n + 1, value, f"{name}, sample {n + 1}: {sample:.3f} µs")
            for n, (value, sample) in enumerate(zip(deviations[name], timing.samples_us, strict=True))
        ]
        plot.points(points, dot, 3)
        plot.name(f"{dot} point", name)
    return plot


def _row(name: str, timing: Timing) -> tuple[str, ...]:
    samples = sorted(timing.samples_us)
    low, high = timing.ci95_us
    *_, last = twentieths = quantiles(samples, n=20, method="inclusive")
    return (
        name,
        str(len(samples)),
        microseconds(median(samples)),
        f"{microseconds(low)} to {microseconds(high)}",
        f"{microseconds(twentieths[0])} to {microseconds(last)}",
        microseconds(samples[0]),
        microseconds(samples[-1]),
        f"{timing.clock_mhz:.0f} MHz" if timing.clock_mhz else "–",
        timing.throttle or "no",
    )
