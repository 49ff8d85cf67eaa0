"""Bottleneck analysis of a candidate: its bound, the evidence, and the genes that could help.

The numbers come from Nsight Compute's counters on a GPU, or from the time model on a simulated chip. In both cases, a
kernel is bound by its busiest unit, or by latency if no unit is busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evokern.analysis.profile.subject import ProfileSubject
from evokern.declaration.genes import Config, Value
from evokern.declaration.space import Space
from evokern.simt.time_model import CAUSES
from evokern.study.trial import Outcome, Trial

BUSY_PERCENT = 60.0
"""Share of a unit's peak from which the unit bounds a kernel; below it, the kernel is latency-bound.
Nsight Compute's rule `SOLBottleneck` uses the same threshold."""
MOST_SUGGESTIONS = 5
"""Maximum number of suggested genes."""

ADVICE: Mapping[str, str] = {
    "memory-bound": "move fewer bytes through L2 and DRAM: use wider accesses, larger tiles, an order that reuses "
    "more data",
    "shared-memory-bound": "reduce shared-memory wavefronts: avoid bank conflicts, keep operands in registers",
    "latency-bound": "keep more work in flight: deeper pipelines, earlier loads, more warps, shorter dependency chains",
    "tensor-bound": "the tensor cores are saturated: use a cheaper number format or instruction, or skip work",
    "power-bound": "the power limit lowers the clock of repeated launches: multiply in a narrower format, or skip work",
    "launch-bound": "launch overhead dominates: use fewer launches, or a grid that starts and ends faster",
    "arithmetic-bound": "issue fewer instructions: cheaper functions, packed arithmetic, compile-time constants",
}
"""Bound → general advice."""

_WITHOUT = frozenset({"none", "off", "no", "scalar", "simt", "fma", "cuda_cores", "false"})
"""Gene values that disable the tensor cores."""


@dataclass(frozen=True)
class Suggestion:
    """A gene whose other values could relieve the bottleneck."""

    gene: str
    """Name of the gene."""
    doc: str
    """The gene's description from the kernel."""
    value: Value
    """The candidate's value."""
    untried: tuple[Value, ...]
    """Other values that no trial combined with the candidate's other genes."""
    tried: Mapping[Value, str]
    """Other value that was tried → its result relative to the candidate."""

    @property
    def text(self) -> str:
        """The suggestion in one line: values to try, the current value, and the results of tried values."""
        now = f"now {self.value}: {self.doc}" if self.doc else f"now {self.value}"
        outcomes = "; ".join(f"{value} was {what}" for value, what in self.tried.items())
        if not self.untried:
            return f"{self.gene} ({now}): all values were tried: {outcomes}"
        values = " or ".join(map(str, self.untried))
        return f"{self.gene} = {values} ({now})" + (f"; {outcomes}" if outcomes else "")


@dataclass(frozen=True)
class Bottleneck:
    """The bottleneck of a candidate."""

    bound: str
    """`memory-bound`, `shared-memory-bound`, `latency-bound`, `tensor-bound`, `launch-bound`, `arithmetic-bound`, or
    `unknown` if no counter is available."""
    evidence: tuple[str, ...]
    """Evidence for the bottleneck, one statement for each number."""
    shares: Mapping[str, float]
    """Bound → utilisation in percent, if known."""
    suggestions: tuple[Suggestion, ...] = ()
    """Genes that could help, those with untried values first."""
    undeclared: bool = False
    """Whether no gene of the kernel declares `relieves`."""

    @property
    def advice(self) -> str:
        """General advice for this bound, or an empty string."""
        return ADVICE.get(self.bound, "")

    def as_dict(self) -> dict[str, Any]:
        """Return the bottleneck as a JSON-serialisable dictionary."""
        return {
            "bound": self.bound,
            "evidence": list(self.evidence),
            "shares_percent": dict(self.shares),
            "advice": self.advice,
            "try": [
                {
                    "gene": one.gene,
                    "doc": one.doc,
                    "value": one.value,
                    "untried": list(one.untried),
                    "tried": {str(value): what for value, what in one.tried.items()},
                }
                for one in self.suggestions
            ],
        }


def bottleneck_from_times(terms_us: Mapping[str, float], time_us: float) -> Bottleneck:
    """Return a candidate's bottleneck from the components of its predicted time.

    Args:
        terms_us: resource → time in µs if only this resource limited the candidate.
        time_us: predicted time, µs.
    """
    largest = sorted(terms_us, key=lambda name: -terms_us[name])[:3]
    shares: dict[str, float] = {}
    for name, spent in terms_us.items():
        shares[CAUSES[name]] = max(shares.get(CAUSES[name], 0.0), 100 * spent / time_us)
    evidence = tuple(f"{name} alone would take {terms_us[name]:.2f} of {time_us:.2f} µs" for name in largest)
    return Bottleneck(CAUSES[largest[0]], evidence, shares)


def bottleneck_from_counters(values: Mapping[str, float | None], launch_us: float, time_us: float | None) -> Bottleneck:
    """Return a candidate's bottleneck from hardware counters.

    Args:
        values: counters by the keys of `evokern.analysis.profile.nsight.METRICS`, None if unknown.
        launch_us: time to start and drain its launches on this chip, µs.
        time_us: the candidate's time, µs, or None if unknown.
    """
    shares = {
        "memory-bound": _most(values.get("dram_percent"), values.get("l2_percent")),
        "shared-memory-bound": values.get("shared_percent"),
        "tensor-bound": values.get("tensor_percent"),
        "launch-bound": 100 * min(launch_us / time_us, 1.0) if time_us else None,
        "arithmetic-bound": values.get("sm_percent"),
    }
    known = {name: share for name, share in shares.items() if share is not None}
    if not set(known) - {"launch-bound"}:
        return Bottleneck("unknown", ("no utilisation counter could be read",), known)
    # SM throughput includes the tensor pipe and shared memory, so these take precedence if they are as busy.
    order = sorted(known, key=lambda name: (-known[name], name == "arithmetic-bound"))
    inner = [name for name in order if name != "arithmetic-bound" and known[name] >= 0.9 * known[order[0]]]
    first = inner[0] if inner else order[0]
    bound = first if known[first] >= BUSY_PERCENT else "latency-bound"
    return Bottleneck(bound, tuple(_evidence(bound, first, values, known, launch_us, time_us)), known)


def _most(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


_UNITS: Mapping[str, str] = {
    "memory-bound": "memory",
    "shared-memory-bound": "shared memory",
    "tensor-bound": "the tensor pipe",
    "launch-bound": "the launch",
    "arithmetic-bound": "the SMs' instruction pipes",
}


def _evidence(
    bound: str,
    busiest: str,
    values: Mapping[str, float | None],
    shares: Mapping[str, float],
    launch_us: float,
    time_us: float | None,
) -> list[str]:
    """Return the evidence for a bound, most important first."""
    get = values.get
    if bound == "memory-bound":
        return _known(("DRAM is at {:.0f} % of its peak", get("dram_percent")),
                      ("L2 is at {:.0f} % of its peak", get("l2_percent")),
                      ("the L2 hit rate is {:.0f} %", get("l2_hit_percent")))  # fmt: skip
    if bound == "shared-memory-bound":
        return [*_known(("the shared-memory pipe is busy {:.0f} % of the time", get("shared_percent"))),
                *_conflicts(values)]  # fmt: skip
    if bound == "launch-bound":
        took = time_us or 0.0
        return [f"starting and draining the grid takes about {min(launch_us, took):.1f} of {took:.2f} µs"]
    if bound == "tensor-bound":
        return _known(("the tensor pipe is busy {:.0f} % of the time", get("tensor_percent")))
    if bound == "arithmetic-bound":
        return _known(("the SMs' instruction pipes are busy {:.0f} % of the time", get("sm_percent")),
                      ("the tensor pipe {:.0f} %", get("tensor_percent")),
                      ("{:.0f} % of the issue slots are used", get("issue_percent")))  # fmt: skip
    evidence = [f"no unit is busy; the busiest, {_UNITS[busiest]}, reaches {shares[busiest]:.0f} % of its peak"]
    evidence += _known(("a warp issues one instruction every {:.1f} cycles", get("warp_cycles")))
    evidence += [line for _, line in _stalls(values)]
    return [*evidence, *_conflicts(values), *_known(("{:.0f} % of the SM's warp slots are occupied",
                                                 get("warps_percent")))]  # fmt: skip


def _known(*pairs: tuple[str, float | None]) -> list[str]:
    return [text.format(value) for text, value in pairs if value is not None]


def _stalls(values: Mapping[str, float | None]) -> list[tuple[str, str]]:
    """Return the stall reasons, longest first, as pairs of counter key and description."""
    causes = {
        "long_scoreboard": "{:.1f} stall cycles per instruction on global or local memory (long scoreboard)",
        "short_scoreboard": "{:.1f} stall cycles per instruction on shared memory or special units (short scoreboard)",
        "mio_throttle": "{:.1f} stall cycles per instruction on the queue to shared memory (MIO)",
        "barrier": "{:.1f} stall cycles per instruction at barriers",
    }
    found = [(values[key] or 0.0, key, text) for key, text in causes.items() if values.get(key) is not None]
    return [(key, text.format(cycles)) for cycles, key, text in sorted(found, reverse=True) if cycles >= 0.05]


def _conflicts(values: Mapping[str, float | None]) -> list[str]:
    loads, stores, all_ = (values.get(key) for key in ("load_conflicts", "store_conflicts", "shared_wavefronts"))
    if loads is None or stores is None:
        return []
    if loads + stores == 0:
        return ["no bank conflicts"]
    of = f" of {all_:,.0f} wavefronts" if all_ else ""
    return [f"bank conflicts add {loads:,.0f} wavefronts to loads and {stores:,.0f} to stores{of}"]


def with_suggestions(
    bottleneck: Bottleneck, subject: ProfileSubject, values: Mapping[str, float | None] | None = None
) -> Bottleneck:
    """Return a bottleneck with suggestions: genes that the kernel declares to relieve it.

    If a latency-bound candidate stalls on shared memory, genes that relieve shared memory are included.

    Args:
        bottleneck: the candidate's bottleneck.
        subject: the candidate with its study's trials.
        values: hardware counters, if any.
    """
    config, record = subject.config, subject.record
    causes = ["tensor" if bottleneck.bound == "power-bound" else bottleneck.bound.removesuffix("-bound")]
    waits = [key for key, _ in _stalls(values or {})] if bottleneck.bound == "latency-bound" else []
    if waits and waits[0] in ("short_scoreboard", "mio_throttle"):
        causes.append("shared-memory")
    relieves = {gene.name: gene.relieves for gene in subject.kernel.genes}  # not part of a stored study
    space = Space(record.genes if record else subject.kernel.genes)
    single_changes = _single_changes(space, config, subject.history)
    time_us = subject.trial.evaluation.time_us if subject.trial else None
    found: list[tuple[int, Suggestion]] = []
    for gene in space.genes:
        weight = sum(relieves[gene.name].get(cause, 0) for cause in causes)
        if not weight or not space.active(gene, config):
            continue
        tried = {
            value: single_changes[gene.name, value] for value in gene.values if (gene.name, value) in single_changes
        }
        others = [value for value in gene.values if value != config[gene.name] and value not in tried]
        # Skip infeasible values, and values that avoid the saturated tensor cores.
        others = [value for value in others if not (bottleneck.bound == "tensor-bound" and _avoids_tensor_cores(value))]
        untried = tuple(v for v in others if subject.feasible(space.canonical({**config, gene.name: v})))
        if untried or tried:
            outcomes = {value: _outcome_text(trial, time_us) for value, trial in tried.items()}
            found.append((weight, Suggestion(gene.name, gene.doc, config[gene.name], untried, outcomes)))
    found.sort(key=lambda pair: (not pair[1].untried, -pair[0]))
    suggestions = tuple(suggestion for _, suggestion in found[:MOST_SUGGESTIONS])
    return replace(bottleneck, suggestions=suggestions, undeclared=not any(relieves.values()))


def _avoids_tensor_cores(value: Value) -> bool:
    """Return whether a value computes without the tensor cores, which is slower even if they are saturated."""
    return str(value).lower() in _WITHOUT


def _single_changes(space: Space, config: Config, trials: Sequence[Trial]) -> dict[tuple[str, Value], Trial]:
    """Return the trials that differ from the candidate in one gene, as (gene, other value) → trial."""
    found: dict[tuple[str, Value], Trial] = {}
    for trial in (t for t in trials if t.outcome is not Outcome.LOST):
        changed = [name for name in config if trial.config.get(name) != config[name]]
        # Changing a gene may activate or deactivate other genes, which then differ as well.
        for name in changed:
            if name in trial.config and space.canonical({**config, name: trial.config[name]}) == trial.config:
                found[name, trial.config[name]] = trial
    return found


def _outcome_text(trial: Trial, time_us: float | None) -> str:
    took = trial.evaluation.time_us
    if trial.outcome in (Outcome.MEASURED, Outcome.DUPLICATE, Outcome.SLOW) and took and time_us:
        return f"{100 * (took / time_us - 1):+.1f} % (trial {trial.number})"
    return f"{trial.outcome.value.replace('_', ' ')} (trial {trial.number})"
