"""What the tests of samplers, store and search share: the small recording, and searches over it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from paths import DATA

import evokern
from evokern.api import search
from evokern.declaration.genes import Config, Gene, Mutation, Parameter
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.space import Space
from evokern.device.recorded.recording import read_recording
from evokern.device.recorded.table import Table, TableDevice, measured
from evokern.gate.comparison import allowed_error, error_over_tolerance, tolerances
from evokern.gate.references import answers_of
from evokern.hardware.profiles import chip
from evokern.samplers import History, TrialSchedule, make_sampler
from evokern.search.loop import Limits, Loop, NullRecorder
from evokern.store import open_readonly
from evokern.study.settings import SamplerSettings, Study
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial


@cache
def small_table() -> Table:
    """The made-up recording: 4,320 configurations, half of them infeasible."""
    return read_recording(DATA / "table_small.json.gz")


@cache
def tiny_table() -> Table:
    """36 distinct configurations, 24 of them feasible, with a conditional gene and a gene of one value."""
    genes: tuple[Gene, ...] = (
        Mutation("LOADS", ("scalar", "async")),
        Parameter("TILE", (16, 32, 64), default=32),
        Parameter("WARPS", (2, 4, 8), default=4),
        Parameter("STAGES", (1, 2, 3), default=1, when={"LOADS": ("async",)}),
        Parameter("WIDTH", (16,)),
    )
    answers = {}
    for index, config in enumerate(Space(genes).grid()):
        if config.TILE < 8 * config.WARPS:
            evidence = {"constraint": "rows", "needed": 8 * config.WARPS, "available": config.TILE, "reason": "rows"}
            answers[config] = Evaluation(Outcome.INFEASIBLE, evidence=evidence)
        else:
            answers[config] = measured(5.0 + (index * 7 % 36) / 10, f"code{index}")
    return Table("tiny", genes, answers, chip("l4"), baseline_us=8.0)


def study(name: str = "small", **changes: Any) -> Study:
    """A study of a recording."""
    return Study(name=name, kernel="recording", problems=("recorded",), **changes)


def loop_over(
    table: Table,
    sampler: str,
    *,
    seed: int = 1,
    window: int = 8,
    trials: int | None = None,
    workers: int = 1,
    delay_s: float = 0.0,
    delay_seed: int = 0,
    options: Mapping[str, Any] | None = None,
    earlier: tuple[list[Proposal], list[Trial]] = ([], []),
    race: bool = False,
) -> tuple[list[Trial], str, Loop]:
    """Search a recording without a store; returns its trials in number order, why it ended, and the loop."""
    trials_seen: dict[int, Trial] = {trial.number: trial for trial in earlier[1]}

    class Kept(NullRecorder):
        def record(self, trial: Trial, elapsed_s: float) -> None:
            trials_seen[trial.number] = trial

    space = table.space()

    def explain(config: Config) -> str:
        violation = table.violation(config)
        assert violation is not None
        return violation.constraint

    device = TableDevice(table, workers=workers, delay_s=delay_s, delay_seed=delay_seed, race=race)
    known = {
        t.evaluation.fingerprint: (t.number, t.evaluation)
        for t in trials_seen.values()
        if t.evaluation.fingerprint and t.outcome is not Outcome.DUPLICATE
    }
    from evokern.device import Task

    device.start(Task(table.kernel(), (), study(), known))
    loop = Loop(
        History(space),
        make_sampler(sampler, space, options or {}, seed, window, explain),
        device,
        Kept(),
        Limits(TrialSchedule.constant(window), trials=trials),
        table.violation,
    )
    try:
        loop.restore(*earlier)
        end = loop.run()
    finally:
        device.close()
    return [trials_seen[number] for number in sorted(trials_seen)], end, loop


def go(db: Path, table: Table | None = None, **keywords: Any) -> evokern.SearchResult:
    """Search a recording."""
    found = keywords.pop("study", study())
    device = keywords.pop("device", None) or TableDevice(table or small_table())
    return search(found, db=db, device=device, **keywords)


def trials_of(db: Path, name: str | None = None) -> list[Trial]:
    """Return the trials of a study, or of the only one."""
    with open_readonly(db) as reader:
        return list(reader.trials(reader.study(name)))


def sampler_settings(name: str, **options: Any) -> SamplerSettings:
    return SamplerSettings(name, options)


def share_of_allowed(
    kernel: Kernel, problem: Problem, inputs: Mapping[str, torch.Tensor], output: str, got: torch.Tensor
) -> torch.Tensor:
    """Return each element's error over the error that the default candidate may have."""
    tensors = kernel.workload.buffers(problem, kernel.space.default())
    limits = tolerances(kernel, None, None)
    answers = answers_of(kernel, problem, tensors, limits, inputs, exact=False)
    allowed = allowed_error(limits[output].for_tensor(tensors[output]), answers[output], answers.errors.get(output))
    return error_over_tolerance(got.double(), answers[output], allowed)
