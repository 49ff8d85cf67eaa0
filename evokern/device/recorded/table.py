"""Recorded device: results come from a table, so a search needs neither a GPU nor a compiler.

A `Table` is a space with a result for each configuration. Small tables for tests of the engine are JSON (`table_of`);
`evokern.device.recorded.recording` converts recordings of other tools. Worker threads and random delays imitate the
order of a real device; the results do not depend on them.
"""

from __future__ import annotations

import hashlib
import queue
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from evokern.declaration.feasibility import Violation
from evokern.declaration.genes import Config, Gene, Value
from evokern.declaration.kernel import Kernel, Problem, ProblemField, Workload
from evokern.declaration.space import Space
from evokern.device.contract import Answer, BaselineResult, Request, StartReport, Task
from evokern.device.recorded.json_file import number_of, text_of
from evokern.errors import DeviceError
from evokern.hardware.profiles import Profile, chip
from evokern.study.trial import Evaluation, Outcome, Timing

FORMAT = "evokern-table/1"
"""Value of `format` in evokern's own table files."""
COUNTED = 200_000
"""Number of combinations up to which configurations that differ only in inactive genes count as one."""


@dataclass(frozen=True)
class Table:
    """Recorded space with the result of each configuration."""

    name: str
    """Name of the recording, for example `convolution-a100`."""
    genes: tuple[Gene, ...]
    """The genes, in the order of the configurations."""
    answers: Mapping[Config, Evaluation]
    """Configuration → result; an `infeasible` result names its constraint."""
    profile: Profile
    """The chip that was recorded."""
    baseline_us: float | None = None
    """Time of the code that the kernel would replace, in µs."""
    seconds: Mapping[Config, float] = field(default_factory=dict)
    """Configuration → seconds of its compile, check and benchmark, if they were recorded."""

    predicted: bool = False
    """Whether the recorded times are predictions of a simulated device."""
    recorded_kernel: str = ""
    """Name of the recorded kernel; empty if the recording does not name it."""
    visited: int | None = None
    """Distinct configurations that the recorded search tried, including infeasible ones; None without a search."""
    searched_by: str = ""
    """Sampler of that search."""
    left_out: tuple[str, ...] = ()
    """Configurations that were left out because their time is impossible, each with the time."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "genes", tuple(self.genes))
        known = [(gene.name, frozenset(gene.values)) for gene in self.genes]
        for config in self.answers:
            for name, values in known:
                if config.get(name) not in values:
                    raise DeviceError(
                        f"recording {self.name}: a result has {name} = {config.get(name)!r}, which is not a "
                        "declared value"
                    )
        if not any(answer.outcome is not Outcome.INFEASIBLE for answer in self.answers.values()):
            raise DeviceError(f"recording {self.name} has no feasible configuration")

    def space(self, *, listed: bool = False) -> Space:
        """Return the space of the recording.

        Feasibility is a predicate, like a live study's constraints. If the recording has infeasible configurations, the
        space contains them too. The recording of a partial search always provides its list of configurations. No
        constraint describes them, so a sampler would hardly find any without the list.

        Args:
            listed: provide the list of recorded configurations.
        """
        answers = self.answers
        if any(answer.outcome is Outcome.INFEASIBLE for answer in answers.values()):
            runs = frozenset(config for config, a in answers.items() if a.outcome is not Outcome.INFEASIBLE)
            return Space(self.genes, feasible=runs.__contains__)
        if listed or self.is_partial_search:
            return Space(self.genes, table=tuple(answers))
        return Space(self.genes, feasible=answers.__contains__)

    @property
    def is_partial_search(self) -> bool:
        """Whether the recording is a search over part of its space."""
        return self.visited is not None and self.visited < self.combinations

    @cached_property
    def combinations(self) -> int:
        """Number of configurations before constraints; in large spaces, values of inactive genes count as different."""
        space = Space(self.genes)
        return space.size if space.size > COUNTED else sum(1 for _ in space.grid())

    @property
    def optimum_us(self) -> float | None:
        """Shortest recorded time in µs; None if nothing was measured."""
        ran = (a.time_us for a in self.answers.values() if a.outcome is Outcome.MEASURED and a.time_us is not None)
        return min(ran, default=None)

    @property
    def timed(self) -> bool:
        """Whether evaluation times are recorded, so that a simulated clock can run."""
        return any(self.seconds.values())

    def violation(self, config: Config) -> Violation | None:
        """Return the reason why a configuration cannot run, or None."""
        answer = self.answers.get(config)
        if answer is None:
            return Violation("recorded", 1, 0, f"recording {self.name} does not contain this configuration")
        if answer.outcome is not Outcome.INFEASIBLE:
            return None
        e = answer.evidence
        return Violation(e["constraint"], e["needed"], e["available"], e["reason"])

    def kernel(self) -> Kernel:
        """Return a kernel with the recording's genes; it has no source and cannot be launched."""

        def nothing(*_: Any) -> Any:
            raise DeviceError(
                f"recording {self.name} has no source; it supports only searches over its recorded results"
            )

        workload = Workload(nothing, nothing, {}, lambda problem: 0.0, lambda problem: 0.0)
        shape = ProblemField("recorded", choices=(self.name,), default=self.name)
        return Kernel(self.name, self.genes, (shape,), nothing, workload)

    def digest(self) -> str:
        """Return the SHA-256 of genes and results, which a study stores."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        state = hashlib.sha256()
        for gene in self.genes:
            state.update(repr((gene.name, gene.values, gene.default, gene.layer)).encode())
        for config, answer in self.answers.items():
            state.update(f"{config.key}{answer.outcome}{answer.time_us}".encode())
        return state.hexdigest()


def table_of(table: Mapping[str, Any]) -> Table:
    """Return the table in the JSON of an evokern table file.

    The JSON is one object with `format`, `name`, `chip`, `baseline_us`, `genes` (name, values, default, layer, when),
    `constraints` (name → reason) and `rows`. A row is a list: the index of each gene's value, the outcome, and its
    details. The details are time in µs and fingerprint for `measured`; constraint, needed and available for
    `infeasible`; otherwise the text of the evidence.

    Raises:
        DeviceError: the format has another version.
    """
    if table["format"] != FORMAT:
        raise DeviceError(f"unknown format {table['format']!r}; known format: {FORMAT}")
    genes = tuple(
        Gene(g["name"], tuple(g["values"]), g["default"], "", g.get("when", {}), {}, g.get("layer", "parameter"))
        for g in table["genes"]
    )
    answers: dict[Config, Evaluation] = {}
    for number, row in enumerate(table["rows"]):
        where = f"row {number}"
        indices = row[: len(genes)]
        chosen = {gene.name: _indexed(where, gene, index) for gene, index in zip(genes, indices, strict=True)}
        config = Config(chosen)
        if config in answers:
            raise DeviceError(f"{where} repeats the configuration {chosen} of an earlier row; keep one of the two rows")
        answers[config] = _answer(where, row[len(genes) :], table["constraints"])
    baseline = table.get("baseline_us")
    baseline_us = None if baseline is None else number_of("baseline_us", baseline, zero=False)
    return Table(text_of("name", table["name"]), genes, answers, chip(text_of("chip", table["chip"])), baseline_us)


def _indexed(where: str, gene: Gene, index: Any) -> Value:
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(gene.values):
        raise DeviceError(f"{where}: {gene.name} has {len(gene.values)} values, so the index {index!r} is invalid")
    return gene.values[index]


def _answer(where: str, row: Sequence[Any], constraints: Mapping[str, str]) -> Evaluation:
    outcome = Outcome(row[0])
    evidence: dict[str, Any]
    match outcome:
        case Outcome.MEASURED:
            fingerprint = None if row[2] is None else text_of(f"{where}: its fingerprint", row[2])
            return measured(number_of(f"{where}: its time", row[1], zero=False), fingerprint)
        case Outcome.INFEASIBLE | Outcome.OVER_RESOURCES:
            evidence = {"constraint": row[1], "needed": row[2], "available": row[3], "reason": constraints[row[1]]}
            for key in ("needed", "available"):
                number_of(f"{where}: {key}", evidence[key])
        case Outcome.HUNG:
            evidence = {"limit_s": number_of(f"{where}: its limit", row[1])}
        case Outcome.WRONG:
            evidence = {"check": row[1]}
        case Outcome.COMPILE_ERROR:
            evidence = {"log": row[1]}
        case _:
            evidence = {"error": row[1]}
    return Evaluation(outcome, evidence=evidence)


def measured(time_us: float, fingerprint: str | None = None, samples_us: Sequence[float] = ()) -> Evaluation:
    """Return a measured evaluation; without samples its interval is the recorded time alone."""
    samples = tuple(samples_us) or (time_us,)
    timing = Timing(time_us, (time_us, time_us), samples)
    return Evaluation(Outcome.MEASURED, time_us, (timing,), fingerprint=fingerprint)


class TableDevice:
    """Device that looks up results in a table, with worker threads."""

    def __init__(
        self,
        table: Table,
        *,
        workers: int = 1,
        delay_s: float = 0.0,
        delay_seed: int = 0,
        window: int = 8,
        race: bool = False,
    ) -> None:
        """Create a device.

        Args:
            table: the recording.
            workers: number of concurrent look-ups.
            delay_s: mean of the random delay before each result, in seconds.
            delay_seed: seed of the delays.
            window: default maximum number of concurrent trials for a new study.
            race: stop candidates that are clearly slower than the elite, as a live device does.
        """
        self.table = table
        self._window = window
        self._workers = workers
        self._delay_s = delay_s
        self._delays = random.Random(delay_seed)
        self._requests: queue.SimpleQueue[tuple[Request, Evaluation, float] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._claimed: dict[str, tuple[int, Evaluation]] = {}
        self._races = race
        self._race = 0.0
        self._busy = 0.0
        self._simulated_s = 0.0
        self._costs: dict[int, float] = {}
        self._closing = False

    @property
    def identity(self) -> str:
        """Identity of the device: `replay:` and the name of the recording."""
        return f"replay:{self.table.name}"

    @property
    def predicted(self) -> bool:
        """Whether the recorded times are predictions."""
        return self.table.predicted

    @property
    def profile(self) -> Profile:
        """Profile of the chip on which the recording was made."""
        return self.table.profile

    @property
    def window(self) -> int:
        """Default maximum number of concurrent trials for a new study."""
        return self._window

    @property
    def at_once(self) -> int:
        """Always 1, because there is no GPU."""
        return 1

    @property
    def verifiable(self) -> bool:
        """Always False, because a recording has no programs."""
        return False

    @property
    def diagnoses(self) -> bool:
        """Always False, because there is no kernel to diagnose."""
        return False

    def start(self, task: Task) -> StartReport:
        """Start the worker threads."""
        self._claimed = dict(task.known)
        self._race = task.study.timing.race if self._races else 0.0
        for index in range(self._workers):
            thread = threading.Thread(target=self._work, name=f"table-{index}", daemon=True)
            thread.start()
            self._threads.append(thread)
        base = self.table.baseline_us
        timing = () if base is None else (Timing(base, (base, base), (base,)),)
        baselines = (BaselineResult("recorded baseline", timing),) if timing else ()
        notes: tuple[str, ...] = ()
        if self.table.space().table is not None:
            notes = (
                f"{self.table.name} records a search over part of its space, so the sampler gets the list of "
                "candidates",
            )
        environment = {
            "recording": self.table.name,
            "answers": len(self.table.answers),
            "chip": self.table.profile.model,
        }
        return StartReport(baselines, environment, notes)

    def submit(self, request: Request) -> None:
        """Accept one candidate; returns immediately."""
        # Duplicates and races are decided here in the order of the requests, independent of the threads.
        answer = self._shared_by_duplicates(request, self._raced(request, self._recorded(request.config)))
        self._costs[request.number] = self.table.seconds.get(request.config, 0.0)
        delay = self._delays.expovariate(1 / self._delay_s) if self._delay_s else 0.0
        self._requests.put((request, answer, delay))

    def _recorded(self, config: Config) -> Evaluation:
        answer = self.table.answers.get(config)
        if answer is None:
            raise DeviceError(f"recording {self.table.name} does not contain {dict(config)}")
        return answer

    def _raced(self, request: Request, answer: Evaluation) -> Evaluation:
        if not self._race or request.elite_us is None or answer.time_us is None:
            return answer
        if answer.time_us <= self._race * request.elite_us:
            return answer
        return replace(answer, outcome=Outcome.SLOW, evidence={"elite_us": request.elite_us})

    def _shared_by_duplicates(self, request: Request, answer: Evaluation) -> Evaluation:
        if answer.fingerprint is None:
            return answer
        first, known = self._claimed.setdefault(answer.fingerprint, (request.number, answer))
        if first == request.number:
            return answer
        evidence = {**known.evidence, "duplicate_of": first}
        if known.outcome is Outcome.MEASURED:
            return replace(known, outcome=Outcome.DUPLICATE, evidence=evidence)
        return replace(known, evidence=evidence)

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Return the results that are ready; wait at most `timeout_s` for the first."""
        ready: list[Answer] = []
        try:
            ready.append(self._answers.get(timeout=timeout_s) if timeout_s > 0 else self._answers.get_nowait())
            while True:
                ready.append(self._answers.get_nowait())
        except queue.Empty:
            self._simulated_s += sum(self._costs.pop(answer.number) for answer in ready)
            return ready

    def clock(self) -> float:
        """Return the recorded seconds of all results so far, as if candidates ran one at a time."""
        return self._simulated_s

    def busy_s(self) -> float:
        """Return the seconds of delay so far, averaged over the workers."""
        return self._busy / max(self._workers, 1)

    def close(self) -> None:
        """Stop the threads; can be called twice."""
        self._closing = True
        for _ in self._threads:
            self._requests.put(None)
        self._threads.clear()

    def _work(self) -> None:
        while (work := self._requests.get()) is not None and not self._closing:
            request, answer, delay = work
            if delay:
                time.sleep(delay)
                self._busy += delay
            self._answers.put(Answer(request.number, answer))


def problem_of(table: Table) -> Problem:
    """Return the single problem of a recording's kernel."""
    return Problem({"recorded": table.name})
