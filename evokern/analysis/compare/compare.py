"""Comparison of two studies or two exported programs, for example for a pull request or a new driver.

With stored samples, each problem is tested separately. A run is slower if the ratio of medians exceeds the threshold
*and* a one-sided Mann-Whitney test (Ann. Math. Statist. 18 (1947), 50) is significant. The level is divided by the
number of problems (Bonferroni). If both programs can run on this machine (`paired`), the playoff's test is used
instead; it does not depend on conditions that differ between two days.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from evokern.errors import UsageError
from evokern.escaping import in_markdown
from evokern.measurement.playoff import Playoff
from evokern.measurement.statistics import cliffs_delta, geometric_mean, median

_RESAMPLES = 4000
FEWEST_SAMPLES = 5
"""Minimum number of samples of each run for the test to reach a level of 0.01 (p is at least 1/252)."""


@dataclass(frozen=True)
class RunTiming:
    """Time of one run on one problem."""

    time_us: float
    """Median time or predicted time in µs."""
    ci95_us: tuple[float, float] | None = None
    """95 % confidence interval of the median, if known."""
    samples_us: tuple[float, ...] = ()
    """Stored samples in µs."""
    clock_mhz: float | None = None
    """SM clock during sampling in MHz, if known."""


@dataclass(frozen=True)
class ComparedRun:
    """One side of a comparison: a study's champion or an exported program."""

    label: str
    """Name of the run as given by the user."""
    kernel: str
    """Name of the kernel."""
    device: str
    """Chip model."""
    predicted: bool
    """Whether the times are predicted."""
    readings: Mapping[str, RunTiming]
    """Problem → time of the run."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The candidate's gene values."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Versions and other facts for display."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Problem → its readable form, if the names of its fields are known."""


Change = Literal["same", "faster", "slower"]


@dataclass(frozen=True)
class ProblemComparison:
    """Comparison of the times on one problem."""

    problem: str
    """The problem, or `all` for paired runs."""
    old_us: float
    """Baseline time in µs."""
    new_us: float
    """New time in µs."""
    ratio: float
    """New time divided by the baseline time."""
    ratio_ci95: tuple[float, float] | None
    """95 % confidence interval of the ratio, or None without samples."""
    chance: float | None
    """p-value of the one-sided test, or None if not tested."""
    delta: float | None
    """Cliff's delta of the new samples relative to the baseline's; 1 if every new sample is faster."""
    verdict: Change
    """Result for the given threshold and level."""


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison."""

    old: ComparedRun
    """The baseline run."""
    new: ComparedRun
    """The run under test."""
    lines: tuple[ProblemComparison, ...]
    """Comparisons, one for each problem."""
    method: str
    """Description of the method."""
    threshold: float
    """Largest acceptable slowdown, as a fraction."""
    level: float
    """Probability of a false alarm."""
    remarks: tuple[str, ...] = ()
    """Notes for the user."""

    def in_words(self, line: ProblemComparison) -> str:
        """Return the problem of a table line in readable form."""
        return readable_problem(line.problem, self.new, self.old)

    @property
    def verdict(self) -> Change:
        """Overall result: `slower` if any problem is slower, else `faster` if any problem is faster, else `same`."""
        verdicts = {line.verdict for line in self.lines}
        return "slower" if "slower" in verdicts else "faster" if "faster" in verdicts else "same"

    @property
    def ratio(self) -> float:
        """Geometric mean of the ratios new / old."""
        return geometric_mean([line.ratio for line in self.lines])

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-serialisable dictionary."""
        return {
            "verdict": self.verdict,
            "ratio": self.ratio,
            "threshold": self.threshold,
            "level": self.level,
            "method": self.method,
            "old": _run_table(self.old),
            "new": _run_table(self.new),
            "problems": [
                {**vars(line), "ratio_ci95": list(line.ratio_ci95) if line.ratio_ci95 else None} for line in self.lines
            ],
            "changed": changes(self.old, self.new),
            "remarks": list(self.remarks),
        }


def compare(old: ComparedRun, new: ComparedRun, *, threshold: float = 0.03, level: float = 0.01) -> Comparison:
    """Compare the stored times of two runs.

    Args:
        old: baseline run.
        new: run to test.
        threshold: largest acceptable slowdown, as a fraction.
        level: probability of a false alarm, over all problems.

    Raises:
        UsageError: the runs have different kernels or chips, no common problem, or only one is predicted.
    """
    problems, remarks = comparable(old, new)
    lines = [_line(name, old, new, threshold, level / len(problems)) for name in problems]
    bare = not old.predicted and any(line.chance is None for line in lines)
    method = "predicted times, which have no noise" if old.predicted else "stored samples, Mann-Whitney test"
    if bare:
        method = "95 % intervals of stored medians; times differ if their intervals do not overlap"
    return Comparison(old, new, tuple(lines), method, threshold, level, tuple(remarks))


def compare_paired(old: ComparedRun, new: ComparedRun, played: Playoff, *, threshold: float = 0.03) -> Comparison:
    """Compare two runs from a playoff of candidate 0 (the baseline) and candidate 1 (the run under test)."""
    _, remarks = comparable(old, new)
    by_index = {one.index: one for one in played.finalists}
    ratio = by_index[1].time_us / by_index[0].time_us
    loser = next(one for one in played.finalists if one is not played.champion)
    inverse = loser.index == 0
    ratio = 1 / loser.ratio if inverse else loser.ratio
    low, high = loser.ratio_ci95
    interval = (1 / high, 1 / low) if inverse else (low, high)
    change: Change = "same"
    if played.decided and ratio > 1 + threshold:
        change = "slower"
    elif played.decided and ratio < 1 - threshold:
        change = "faster"
    delta = cliffs_delta(by_index[1].samples_us, by_index[0].samples_us)
    line = ProblemComparison("all", by_index[0].time_us, by_index[1].time_us, ratio, interval, None, delta, change)
    method = f"paired runs on this machine, {played.rounds} rounds, sequential test"
    return Comparison(old, new, (line,), method, threshold, played.rules.level, tuple(remarks))


def comparable(old: ComparedRun, new: ComparedRun) -> tuple[list[str], list[str]]:
    """Return the problems that both runs have in common, and notes for the user.

    Raises:
        UsageError: the runs cannot be compared; the message gives the difference.
    """
    each = f"{old.label}: {old.kernel} on {old.device}; {new.label}: {new.kernel} on {new.device}"
    if old.kernel != new.kernel:
        raise UsageError(f"the runs have different kernels, so their times are not comparable ({each})")
    if old.device != new.device:
        raise UsageError(
            f"the runs were timed on different chips ({each}); compare runs on one chip, or view each run with "
            "`evokern show`"
        )
    if old.predicted != new.predicted:
        raise UsageError(
            f"one run has predicted times and the other has measured times, so they are not comparable ({each})"
        )
    common = [name for name in old.readings if name in new.readings]
    if not common:
        shapes = [
            f"{run.label} has {' and '.join(readable_problem(name, run) for name in run.readings)}"
            for run in (old, new)
        ]
        raise UsageError(
            f"the runs have no problem in common: {', '.join(shapes)}; see each run's times with `evokern show`"
        )
    remarks = [
        f"skipped {readable_problem(name, run)}: only {run.label} has a time for it"
        for run, other in ((old, new), (new, old))
        for name in run.readings
        if name not in other.readings
    ]
    for name in common:
        clocks = old.readings[name].clock_mhz, new.readings[name].clock_mhz
        if clocks[0] and clocks[1] and abs(clocks[0] / clocks[1] - 1) > 0.03:
            shape = readable_problem(name, new, old)
            remarks.append(
                f"at {shape}, the SM clock was {clocks[0]:.0f} MHz in the old run "
                f"and {clocks[1]:.0f} MHz in the new run"
            )
    return common, remarks


def readable_problem(problem: str, *runs: ComparedRun) -> str:
    """Return the readable form of a problem from the first run that has one, or else the problem's key."""
    return next((run.words[problem] for run in runs if problem in run.words), problem)


def changes(old: ComparedRun, new: ComparedRun) -> dict[str, tuple[Any, Any]]:
    """Return the differing gene values and versions, as a map from name to (old value, new value)."""
    one, two = {**old.facts, **old.config}, {**new.facts, **new.config}
    return {name: (one.get(name), two.get(name)) for name in {**one, **two} if one.get(name) != two.get(name)}


def _line(problem: str, before: ComparedRun, now: ComparedRun, threshold: float, level: float) -> ProblemComparison:
    old, new = before.readings[problem], now.readings[problem]
    ratio = new.time_us / old.time_us
    interval, chance, delta = None, None, None
    if before.predicted:
        certain = True
    elif min(len(old.samples_us), len(new.samples_us)) >= FEWEST_SAMPLES:
        ratio, interval = _ratio(old.samples_us, new.samples_us)
        chance = _p_value(old.samples_us, new.samples_us, ratio)
        delta = cliffs_delta(new.samples_us, old.samples_us)
        certain = chance < level
    else:
        if old.ci95_us is None or new.ci95_us is None:
            shape = readable_problem(problem, now, before)
            raise UsageError(
                f"at {shape}, one run has neither samples nor a confidence interval; measure both runs again"
            )
        certain = old.ci95_us[1] < new.ci95_us[0] or new.ci95_us[1] < old.ci95_us[0]
    change: Change = "same"
    if certain and ratio > 1 + threshold:
        change = "slower"
    elif certain and ratio < 1 - threshold:
        change = "faster"
    return ProblemComparison(problem, old.time_us, new.time_us, ratio, interval, chance, delta, change)


def _ratio(old: Sequence[float], new: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the ratio of medians and its 95 % bootstrap interval."""
    import numpy as np

    rng = np.random.default_rng(0)  # fixed, so that results are reproducible
    drawn = [np.median(rng.choice(np.asarray(samples), (_RESAMPLES, len(samples))), axis=1) for samples in (old, new)]
    low, high = np.quantile(drawn[1] / drawn[0], [0.025, 0.975])
    return median(new) / median(old), (float(low), float(high))


def _p_value(old: Sequence[float], new: Sequence[float], ratio: float) -> float:
    from scipy.stats import mannwhitneyu

    if math.isclose(ratio, 1.0, abs_tol=1e-12):
        return 0.5
    return float(mannwhitneyu(new, old, alternative="greater" if ratio > 1 else "less").pvalue)


def _run_table(run: ComparedRun) -> dict[str, Any]:
    return {
        "label": run.label,
        "kernel": run.kernel,
        "device": run.device,
        "predicted": run.predicted,
        "config": dict(run.config),
        "facts": dict(run.facts),
    }


def markdown(found: Comparison) -> str:
    """Return the comparison as Markdown for a pull request comment."""
    heads = {"slower": "🔴 slower", "faster": "🟢 faster", "same": "⚪ no relevant difference"}
    unit = "predicted µs" if found.old.predicted else "µs"
    lines = [
        f"### evokern: {in_markdown(f'{found.new.kernel} on {found.new.device}')}: {heads[found.verdict]}",
        "",
        f"| problem | old {unit} | new {unit} | new / old | 95 % interval | verdict |",
        "|---|---:|---:|---:|---|---|",
    ]
    for line in found.lines:
        interval = f"{line.ratio_ci95[0]:.3f} to {line.ratio_ci95[1]:.3f}" if line.ratio_ci95 else "–"
        times = f"{line.old_us:.3f} | {line.new_us:.3f} | {line.ratio:.3f}"
        lines.append(f"| {in_markdown(found.in_words(line))} | {times} | {interval} | {line.verdict} |")
    lines += [
        "",
        f"Slower means a significant difference (level {found.level:g}) above {100 * found.threshold:g} %. "
        f"Method: {found.method}.",
    ]
    changed = changes(found.old, found.new)
    if changed:
        lines += ["", "| | old | new |", "|---|---|---|"]
        lines += [f"| {in_markdown(name)} | {_cell(pair[0])} | {_cell(pair[1])} |" for name, pair in changed.items()]
    lines += ["", *(f"- {in_markdown(remark)}" for remark in found.remarks)] if found.remarks else []
    return "\n".join(lines).rstrip() + "\n"


def _cell(value: Any) -> str:
    return "–" if value is None else in_markdown(str(value))
