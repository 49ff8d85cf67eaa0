"""Why the champion wins: each of its choices taken back alone, and the greedy path that leads to it.

Taking a choice back says what it is worth beside all others; the path says in which order they would have been found,
each step being the single change that helps most. A change whose candidate cannot run, or is wrong, says so in its row:
that too is a reason for the choice. On a GPU every row is measured in rounds, in turn with the champion, as in a
playoff; on a simulated device times are predicted and have no interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evokern.analysis.candidates import TrialUnderTest, evaluate, started
from evokern.declaration.feasibility import check, narrowed
from evokern.declaration.genes import Config, Value
from evokern.device import Device
from evokern.device.contract import Interleaving
from evokern.errors import StudyError
from evokern.escaping import in_markdown
from evokern.measurement.playoff import effects
from evokern.measurement.statistics import geometric_mean
from evokern.study.trial import Evaluation, Outcome


@dataclass(frozen=True)
class Row:
    """One candidate of an ablation."""

    gene: str
    """The gene that was changed; empty for the champion and the default."""
    value: Value | None
    """Its value in this candidate."""
    instead_of: Value | None
    """Its value in the candidate that it is compared with."""
    config: Mapping[str, Value]
    """The candidate."""
    time_us: float | None
    """Its time, µs; None where it cannot be had."""
    ratio: float | None
    """Its time over that of the champion."""
    ratio_ci95: tuple[float, float] | None
    """95 % interval of the ratio; None for predictions."""
    gb_per_s: float | None
    """Bytes that the workload must move over the time, GB/s."""
    occupancy: float | None
    """Resident warps over the SM's limit, the lowest of its launches."""
    speedup: float | None
    """Baseline's time over this one's; None without a baseline."""
    note: str = ""
    """Why there is no time: the outcome and its reason."""


@dataclass(frozen=True)
class Ablation:
    """What an ablation found."""

    study: str
    """Name of the study."""
    trial: int
    """The trial taken apart."""
    device: str
    """Model of the device."""
    predicted: bool
    """Whether times are predicted."""
    champion: Row
    """The candidate itself."""
    alone: tuple[Row, ...]
    """Each choice back at the default, the one that costs most first."""
    path: tuple[Row, ...]
    """From the default to the champion, a change at a time; the default first."""
    baseline: str | None = None
    """Name of the baseline that speedups refer to."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


def ablate(
    subject: TrialUnderTest, device: Device, *, path: bool = True, on_step: Callable[[str], None] = lambda text: None
) -> Ablation:
    """Take a candidate's choices back one at a time, and find the greedy path to it.

    Args:
        subject: the study and the trial.
        device: where candidates are run; it is started and closed.
        path: look for the path too, which takes about half the square of the number of changed genes in candidates.
        on_step: called with what is done next.

    Raises:
        StudyError: the candidate is the default, or is wrong on this device.
        UsageError: device, compiler or kernel cannot work.
    """
    space = narrowed(subject.kernel.space, subject.study.genes)
    champion, default = subject.trial.config, space.default()
    genes = choices(subject)
    if not genes:
        raise StudyError(nothing(subject))
    with started(device, subject.task()) as report:
        runs = _Runs(subject, device)
        on_step(f"choices taken back alone, on {device.identity}: {len(genes)}")
        singles = {name: space.with_changes(champion, {name: default[name]}) for name in genes}
        runs.evaluate([champion, default, *singles.values()])
        if runs.time(champion) is None:
            raise StudyError(f"trial {subject.trial.number} does not pass here: {runs.note(champion)}")
        steps = _path(runs, space.with_changes, champion, default, genes, on_step) if path else []
        fastest = min(
            ((geometric_mean([t.median_us for t in b.timings]), b.name) for b in report.baselines if b.timings),
            default=None,
        )
        if isinstance(device, Interleaving):
            on_step("measuring every row in turn with the champion")
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


def choices(subject: TrialUnderTest) -> list[str]:
    """Return the genes in which a candidate differs from its study's default."""
    space = narrowed(subject.kernel.space, subject.study.genes)
    champion, default = subject.trial.config, space.default()
    return [gene.name for gene in space.genes if champion.get(gene.name) != default.get(gene.name)]


def nothing(subject: TrialUnderTest) -> str:
    """Return the sentence for a candidate without such a gene."""
    return f"trial {subject.trial.number} is the default candidate: there is no choice to take back"


def _path(
    runs: _Runs,
    change: Callable[[Config, Mapping[str, str | Value]], Config],
    champion: Config,
    default: Config,
    genes: Sequence[str],
    on_step: Callable[[str], None],
) -> list[tuple[str, Config]]:
    """Return the greedy path: at each step the change that gives the fastest candidate, as long as one can run."""
    here, left = default, list(genes)
    steps: list[tuple[str, Config]] = [("", default)]
    while left:
        on_step(f"path: step {len(steps)}, choices left: {len(left)}")
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
        # The rest works only together: no single change of it can run.
        steps.append(("", champion))
    return steps


class _Runs:
    """Evaluations by candidate, each asked for once."""

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
        self, device: Interleaving, fastest: tuple[float, str] | None, configs: Sequence[Config]
    ) -> tuple[float, str] | None:
        """Measure candidates in turn; returns the baseline's time as measured beside them."""
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

    def row(self, config: Config, gene: str, value: Value | None, instead_of: Value | None) -> Row:
        runs, subject = self.runs, self.runs.subject
        time_us = runs.time(config)
        if time_us is None:
            return Row(gene, value, instead_of, dict(config), None, None, None, None, None, None, runs.note(config))
        measured = runs.ratio(config)
        moved = geometric_mean([subject.kernel.workload.bytes(problem) for problem in subject.problems])
        return Row(
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
    head = [f"| change | {unit} | of champion | 95 % interval | GB/s | occupancy | speedup |", "|---|" + "---:|" * 6]
    lines = [f"### Ablation of trial {found.trial}, {in_markdown(f'{found.study} on {found.device}')}", "", *head]
    lines += ["| " + _cells(row, "the champion") + " |" for row in (found.champion, *found.alone)]
    if found.path:
        lines += ["", "From the default to the champion, a change at a time:", "", *head]
        lines += [
            "| " + _cells(row, "the default" if n == 0 else "all other choices together") + " |"
            for n, row in enumerate(found.path)
        ]
    return "\n".join(lines) + "\n"


def _cells(row: Row, unnamed: str) -> str:
    return " | ".join(map(in_markdown, cells(row, unnamed)))


def cells(row: Row, unnamed: str) -> list[str]:
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
