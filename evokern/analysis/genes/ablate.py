"""Ablation of a champion: reset each changed gene alone, and find a greedy path from the default to the champion.

Resetting a gene shows its gain in combination with all others. Each step of the path is the single change with the
largest gain. If a candidate cannot run or is wrong, its row gives the reason. On a GPU, all rows and the champion are
measured in interleaved rounds, as in a playoff. On a simulated device, times are predicted and have no interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evokern.analysis.candidates import TrialUnderTest, evaluate, running_device
from evokern.declaration.feasibility import check, narrowed
from evokern.declaration.genes import Config, Value
from evokern.device import Device
from evokern.device.contract import MeasuresRounds
from evokern.errors import StudyError
from evokern.escaping import in_markdown
from evokern.measurement.playoff import effects
from evokern.measurement.statistics import geometric_mean
from evokern.study.trial import Evaluation, Outcome


@dataclass(frozen=True)
class AblationRow:
    """One candidate of an ablation."""

    gene: str
    """The changed gene; empty for the champion and the default."""
    value: Value | None
    """The gene's value in this candidate."""
    instead_of: Value | None
    """The gene's value in the reference candidate."""
    config: Mapping[str, Value]
    """Configuration of the candidate."""
    time_us: float | None
    """Time in µs, or None if unavailable."""
    ratio: float | None
    """Time divided by the champion's time."""
    ratio_ci95: tuple[float, float] | None
    """95 % confidence interval of the ratio, or None for predictions."""
    gb_per_s: float | None
    """Bytes of the workload divided by the time, in GB/s."""
    occupancy: float | None
    """Resident warps divided by the SM's limit; the lowest value of all launches."""
    speedup: float | None
    """Baseline's time divided by the candidate's time, or None without a baseline."""
    note: str = ""
    """Outcome and reason if the candidate has no time."""


@dataclass(frozen=True)
class Ablation:
    """Result of an ablation."""

    study: str
    """Name of the study."""
    trial: int
    """Number of the analysed trial."""
    device: str
    """Device model."""
    predicted: bool
    """Whether times are predicted."""
    champion: AblationRow
    """The analysed candidate."""
    alone: tuple[AblationRow, ...]
    """Candidates in which one gene is reset to its default, largest slowdown first."""
    path: tuple[AblationRow, ...]
    """Path from the default to the champion, one change per step."""
    baseline: str | None = None
    """Name of the baseline of the speedups."""

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-serialisable dictionary."""
        return asdict(self)


def ablate(
    subject: TrialUnderTest, device: Device, *, path: bool = True, on_step: Callable[[str], None] = lambda text: None
) -> Ablation:
    """Reset a candidate's changed genes one at a time, and find the greedy path to the candidate.

    Args:
        subject: the study and the trial.
        device: device for the candidates; started and closed here.
        path: whether to find the path, which needs about n²/2 candidates for n changed genes.
        on_step: called with a description of the next step.

    Raises:
        StudyError: the candidate is the default, or is wrong on this device.
        UsageError: the device, compiler or kernel does not work.
    """
    space = narrowed(subject.kernel.space, subject.study.genes)
    champion, default = subject.trial.config, space.default()
    genes = changed_genes(subject)
    if not genes:
        raise StudyError(no_changes_message(subject))
    with running_device(device, subject.task()) as report:
        runs = _Runs(subject, device)
        on_step(f"resetting the changed genes one at a time on {device.identity}: {len(genes)} in total")
        singles = {name: space.with_changes(champion, {name: default[name]}) for name in genes}
        runs.evaluate([champion, default, *singles.values()])
        if runs.time(champion) is None:
            raise StudyError(f"trial {subject.trial.number} fails on this device: {runs.note(champion)}")
        steps = _path(runs, space.with_changes, champion, default, genes, on_step) if path else []
        fastest = min(
            ((geometric_mean([t.median_us for t in b.timings]), b.name) for b in report.baselines if b.timings),
            default=None,
        )
        if isinstance(device, MeasuresRounds):
            on_step("measuring all variants and the champion in interleaved rounds")
            fastest = runs.measure(device, fastest, [champion, *singles.values(), *(config for _, config in steps)])
    table = _Table(runs, champion, fastest[0] if fastest else None)
    alone = [
        table.row(singles[name], name, default[name], champion[name]) for name in genes if singles[name] != champion
    ]
    alone.sort(key=lambda row: -(row.ratio or float("inf")))
    walked = [
        table.row(config, name, config.get(name) if name else None, default.get(name) if name else None)
        for name, config in steps
    ]
    return Ablation(
        subject.record.name, subject.trial.number, device.identity, device.predicted,
        table.row(champion, "", None, None), tuple(alone), tuple(walked), fastest[1] if fastest else None,
    )  # fmt: skip


def changed_genes(subject: TrialUnderTest) -> list[str]:
    """Return the genes that differ from the study's default candidate."""
    space = narrowed(subject.kernel.space, subject.study.genes)
    champion, default = subject.trial.config, space.default()
    return [gene.name for gene in space.genes if champion.get(gene.name) != default.get(gene.name)]


def no_changes_message(subject: TrialUnderTest) -> str:
    """Return the message for a candidate without changed genes."""
    return f"trial {subject.trial.number} is the default candidate, so there is no changed gene to reset"


def _path(
    runs: _Runs,
    change: Callable[[Config, Mapping[str, str | Value]], Config],
    champion: Config,
    default: Config,
    genes: Sequence[str],
    on_step: Callable[[str], None],
) -> list[tuple[str, Config]]:
    """Return the greedy path: each step is the change with the fastest feasible candidate."""
    here, left = default, list(genes)
    steps: list[tuple[str, Config]] = [("", default)]
    while left:
        on_step(f"path: step {len(steps)}, changes left: {len(left)}")
        options = {name: change(here, {name: champion[name]}) for name in left}
        moved = {name: config for name, config in options.items() if config != here}
        runs.evaluate(list(moved.values()))
        timed = {name: runs.time(config) for name, config in moved.items()}
        right = {name: time for name, time in timed.items() if time is not None}
        if not right:
            break
        best = min(right, key=lambda name: right[name])
        here = options[best]
        steps.append((best, here))
        left = [name for name in left if name != best and here.get(name) != champion.get(name)]
    if steps[-1][1] != champion:
        # No single remaining change can run, so the last step applies all of them.
        steps.append(("", champion))
    return steps


class _Runs:
    """Evaluations of candidates, cached by candidate."""

    def __init__(self, subject: TrialUnderTest, device: Device) -> None:
        self.subject, self._device = subject, device
        self._known: dict[Config, Evaluation] = {}
        self._measured: dict[Config, tuple[float, float, tuple[float, float]]] = {}
        self._violations: dict[Config, str] = {}

    def evaluate(self, configs: Sequence[Config]) -> None:
        new = [config for config in dict.fromkeys(configs) if config not in self._known]
        feasible = []
        for config in new:
            if config in self._violations:
                continue
            violation = check(self.subject.kernel, config, self.subject.problems, self._device.profile)
            if violation is None:
                feasible.append(config)
            else:
                self._violations[config] = f"infeasible: {violation}"
        self._known |= dict(zip(feasible, evaluate(self._device, feasible), strict=True))

    def time(self, config: Config) -> float | None:
        if config in self._measured:
            return self._measured[config][0]
        found = self._known.get(config)
        right = found is not None and found.outcome in (Outcome.MEASURED, Outcome.DUPLICATE)
        return found.time_us if found is not None and right else None

    def ratio(self, config: Config) -> tuple[float, tuple[float, float]] | None:
        return self._measured[config][1:] if config in self._measured else None

    def note(self, config: Config) -> str:
        if config in self._violations:
            return self._violations[config]
        found = self._known[config]
        return f"{found.outcome.value}: {found.reason}"

    def occupancy(self, config: Config) -> float | None:
        found = self._known.get(config)
        return min((used.occupancy for used in found.resources), default=None) if found else None

    def measure(
        self, device: MeasuresRounds, fastest: tuple[float, str] | None, configs: Sequence[Config]
    ) -> tuple[float, str] | None:
        """Measure candidates and baseline in interleaved rounds; return the baseline's time and name."""
        timed = [config for config in dict.fromkeys(configs) if self.time(config) is not None]
        entrants: list[Config | str] = [*timed, *([fastest[1]] if fastest else [])]
        found = effects(device.rounds(self.subject.task(), entrants), len(entrants))
        for config, effect in zip(timed, found, strict=False):
            self._measured[config] = (effect.time_us, effect.ratio, effect.ratio_ci95)
        return (found[-1].time_us, fastest[1]) if fastest else None


@dataclass(frozen=True)
class _Table:
    runs: _Runs
    champion: Config
    baseline_us: float | None

    def row(self, config: Config, gene: str, value: Value | None, instead_of: Value | None) -> AblationRow:
        runs, subject = self.runs, self.runs.subject
        time_us = runs.time(config)
        if time_us is None:
            return AblationRow(
                gene, value, instead_of, dict(config), None, None, None, None, None, None, runs.note(config)
            )
        measured = runs.ratio(config)
        moved = geometric_mean([subject.kernel.workload.bytes(problem) for problem in subject.problems])
        return AblationRow(
            gene, value, instead_of, dict(config), time_us,
            measured[0] if measured else time_us / (runs.time(self.champion) or time_us),
            measured[1] if measured else None,
            moved / time_us / 1e3,
            runs.occupancy(config),
            self.baseline_us / time_us if self.baseline_us else None,
        )  # fmt: skip


def markdown(found: Ablation) -> str:
    """Return the ablation as Markdown tables."""
    unit = "predicted µs" if found.predicted else "µs"
    head = [f"| change | {unit} | ÷ champion | 95 % interval | GB/s | occupancy | speedup |", "|---|" + "---:|" * 6]
    lines = [f"### Ablation of trial {found.trial}, {in_markdown(f'{found.study} on {found.device}')}", "", *head]
    lines += ["| " + _cells(row, "the champion") + " |" for row in (found.champion, *found.alone)]
    if found.path:
        lines += ["", "From the default to the champion, one change per row:", "", *head]
        lines += [
            "| " + _cells(row, "the default" if n == 0 else "all other changes together") + " |"
            for n, row in enumerate(found.path)
        ]
    return "\n".join(lines) + "\n"


def _cells(row: AblationRow, unnamed: str) -> str:
    return " | ".join(map(in_markdown, cells(row, unnamed)))


def cells(row: AblationRow, unnamed: str) -> list[str]:
    """Return a row's texts: change, time, ratio, interval, bandwidth, occupancy, speedup."""
    change = f"{row.gene}={row.value} (not {row.instead_of})" if row.gene else unnamed
    if row.time_us is None:
        return [f"{change}: {row.note}", *["-"] * 6]
    return [
        change,
        f"{row.time_us:.3f}",
        f"{row.ratio:.3f}" if row.ratio else "-",
        f"{row.ratio_ci95[0]:.3f} to {row.ratio_ci95[1]:.3f}" if row.ratio_ci95 else "-",
        f"{row.gb_per_s:.0f}" if row.gb_per_s else "-",
        f"{100 * row.occupancy:.0f} %" if row.occupancy is not None else "-",
        f"{row.speedup:.2f}×" if row.speedup else "-",
    ]
