"""Is the new one slower? Two studies, or two exported programs, for a pull request or a new driver.

From stored samples each problem is judged alone: slower means that the ratio of medians is above the threshold *and*
that a one-sided Mann-Whitney test (Ann. Math. Statist. 18 (1947), 50) says that it is no accident, at a level shared
out over the problems (Bonferroni). Where both can run side by side (`paired`), the playoff's test is used instead,
which needs no assumption about two different days.
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
"""Samples of each run with which the test can reach a level of 0.01 (1 of 252 orders is the most extreme)."""


@dataclass(frozen=True)
class Reading:
    """One run's time at one problem."""

    time_us: float
    """Median, or predicted time, µs."""
    ci95_us: tuple[float, float] | None = None
    """95 % interval of the median, where one is known."""
    samples_us: tuple[float, ...] = ()
    """Samples, where they were kept."""
    clock_mhz: float | None = None
    """SM clock while sampling."""


@dataclass(frozen=True)
class ComparedRun:
    """A run that is compared: a champion of a study, or an exported program."""

    label: str
    """What the user named."""
    kernel: str
    """Name of the kernel."""
    device: str
    """Model of the chip."""
    predicted: bool
    """Whether times are predicted."""
    readings: Mapping[str, Reading]
    """Problem → time."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The candidate's choices."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Versions and the like, for the eye."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Problem → what people read of it, where its fields' names are known."""


Change = Literal["same", "faster", "slower"]


@dataclass(frozen=True)
class ProblemComparison:
    """The comparison at one problem."""

    problem: str
    """The problem; `all` where several were paired as one."""
    old_us: float
    """Old time, µs."""
    new_us: float
    """New time, µs."""
    ratio: float
    """New over old."""
    ratio_ci95: tuple[float, float] | None
    """95 % interval of the ratio, where there are samples."""
    chance: float | None
    """Probability of so large a difference in this direction between equals; None where it was not tested."""
    delta: float | None
    """Cliff's delta of the new samples against the old ones: 1 when each new one is faster."""
    verdict: Change
    """What it means at the threshold and level."""


@dataclass(frozen=True)
class Comparison:
    """What came of it."""

    old: ComparedRun
    """The old run."""
    new: ComparedRun
    """The new run."""
    lines: tuple[ProblemComparison, ...]
    """One per problem."""
    method: str
    """How it was decided, in words."""
    threshold: float
    """Share by which slower is too slow."""
    level: float
    """Probability of a false alarm."""
    remarks: tuple[str, ...] = ()
    """What the user should know."""

    def in_words(self, line: ProblemComparison) -> str:
        """Return what people read of a line's problem."""
        return in_words(line.problem, self.new, self.old)

    @property
    def verdict(self) -> Change:
        """`slower` when any problem is."""
        verdicts = {line.verdict for line in self.lines}
        return "slower" if "slower" in verdicts else "faster" if "faster" in verdicts else "same"

    @property
    def ratio(self) -> float:
        """Geometric mean of new over old."""
        return geometric_mean([line.ratio for line in self.lines])

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
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
    """Compare two runs from what was stored of them.

    Args:
        old: the run that sets the standard.
        new: the run that must not be slower.
        threshold: share by which slower is too slow.
        level: probability of a false alarm, over all problems.

    Raises:
        UsageError: they cannot be compared: other kernels, chips or problems, or one is predicted.
    """
    problems, remarks = comparable(old, new)
    lines = [_line(name, old, new, threshold, level / len(problems)) for name in problems]
    bare = not old.predicted and any(line.chance is None for line in lines)
    method = "predicted times, which have no noise" if old.predicted else "stored samples, Mann-Whitney test"
    if bare:
        method = "95 % intervals of stored medians: different where they do not overlap"
    return Comparison(old, new, tuple(lines), method, threshold, level, tuple(remarks))


def compare_paired(old: ComparedRun, new: ComparedRun, played: Playoff, *, threshold: float = 0.03) -> Comparison:
    """Compare two runs from a playoff in which candidate 0 is the old one and 1 the new one."""
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
    """Return the problems that both runs have, and remarks.

    Raises:
        UsageError: there is nothing to compare; the message says what differs.
    """
    each = f"{old.label}: {old.kernel} on {old.device}; {new.label}: {new.kernel} on {new.device}"
    if old.kernel != new.kernel:
        raise UsageError(f"these are different kernels, whose times say nothing about each other ({each})")
    if old.device != new.device:
        raise UsageError(
            f"these were timed on different chips ({each}); compare on one chip, `evokern show` tells each one's times"
        )
    if old.predicted != new.predicted:
        raise UsageError(f"one of these was predicted and the other measured; times of the two do not mix ({each})")
    common = [name for name in old.readings if name in new.readings]
    if not common:
        shapes = [f"{run.label} has {' and '.join(in_words(name, run) for name in run.readings)}" for run in (old, new)]
        raise UsageError(
            f"there is no problem that both were timed at: {', '.join(shapes)}; `evokern show` tells each one's times"
        )
    remarks = [
        f"only {run.label} was timed at {in_words(name, run)}: left out"
        for run, other in ((old, new), (new, old))
        for name in run.readings
        if name not in other.readings
    ]
    for name in common:
        clocks = old.readings[name].clock_mhz, new.readings[name].clock_mhz
        if clocks[0] and clocks[1] and abs(clocks[0] / clocks[1] - 1) > 0.03:
            told = in_words(name, new, old)
            remarks.append(f"at {told} the SM clock was {clocks[0]:.0f} MHz then and {clocks[1]:.0f} MHz now")
    return common, remarks


def in_words(problem: str, *runs: ComparedRun) -> str:
    """Return what people read of a problem, by the first of the runs that knows it; else its key."""
    return next((run.words[problem] for run in runs if problem in run.words), problem)


def changes(old: ComparedRun, new: ComparedRun) -> dict[str, tuple[Any, Any]]:
    """Return what is not the same in both runs: choices and versions, name → (old, new)."""
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
        chance = _chance(old.samples_us, new.samples_us, ratio)
        delta = cliffs_delta(new.samples_us, old.samples_us)
        certain = chance < level
    else:
        if old.ci95_us is None or new.ci95_us is None:
            told = in_words(problem, now, before)
            raise UsageError(f"at {told} neither samples nor an interval are known of one run: nothing to test with")
        certain = old.ci95_us[1] < new.ci95_us[0] or new.ci95_us[1] < old.ci95_us[0]
    change: Change = "same"
    if certain and ratio > 1 + threshold:
        change = "slower"
    elif certain and ratio < 1 - threshold:
        change = "faster"
    return ProblemComparison(problem, old.time_us, new.time_us, ratio, interval, chance, delta, change)


def _ratio(old: Sequence[float], new: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the ratio of medians with its 95 % bootstrap interval."""
    import numpy as np

    rng = np.random.default_rng(0)  # a fixed seed: the same samples give the same interval
    drawn = [np.median(rng.choice(np.asarray(samples), (_RESAMPLES, len(samples))), axis=1) for samples in (old, new)]
    low, high = np.quantile(drawn[1] / drawn[0], [0.025, 0.975])
    return median(new) / median(old), (float(low), float(high))


def _chance(old: Sequence[float], new: Sequence[float], ratio: float) -> float:
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
    """Return the comparison as Markdown, for a comment on a pull request."""
    heads = {"slower": "🔴 slower", "faster": "🟢 faster", "same": "⚪ no difference that matters"}
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
        f"Slower means more than {100 * found.threshold:g} % and significant at {found.level:g}; {found.method}.",
    ]
    changed = changes(found.old, found.new)
    if changed:
        lines += ["", "| | old | new |", "|---|---|---|"]
        lines += [f"| {in_markdown(name)} | {_cell(pair[0])} | {_cell(pair[1])} |" for name, pair in changed.items()]
    lines += ["", *(f"- {in_markdown(remark)}" for remark in found.remarks)] if found.remarks else []
    return "\n".join(lines).rstrip() + "\n"


def _cell(value: Any) -> str:
    return "–" if value is None else in_markdown(str(value))
