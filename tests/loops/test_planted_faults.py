"""Faults that show only from a second round, in a tail or at another size: what a search and its verification find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planted_faults import KINDS, Planted, planted

from evokern.analysis.verify.stages import ChampionWorker
from evokern.compile.build import Target, build
from evokern.compile.records import Built
from evokern.device.sim.jobs import SimSettings, Simulate
from evokern.device.sim.worker import SimWorker
from evokern.hardware.profiles import chip
from evokern.search.champion import VerifierSettings, VerifyJob
from evokern.store import undecided
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import Study, TimingSettings
from evokern.study.trial import Outcome

L4 = chip("l4")
PAIRS = 40
"""Number of pairs of a faulty kernel and its honest twin."""
FAST = (0, 6, 9, 14)
"""Pairs of the fast set: a second row, a second buffer, another size, and a tail."""


def verdict(folder: Path, case: Planted) -> str:
    """Return what is found in a kernel: by its trial in a search, or else by the verification of the champion."""
    kernel = load_kernel(folder)
    problems = (kernel.problem(case.problem),)
    study = Study("planted", kernel.name, (case.problem,), timing=replace(TimingSettings(), race=0.0))
    config, context = kernel.space.default(), WorkerContext(folder, problems, L4)
    worker = SimWorker(SimSettings(context, study.gate, study.timing, study.simulation, config, 5))
    built = build(kernel, config, problems, Target(L4, None))
    assert isinstance(built, Built), built
    trial = worker.handle(Simulate(config, built, None, None))
    assert trial is not None
    if trial.outcome is not Outcome.MEASURED:
        return f"trial: {trial.outcome.value}: {trial.reason}"
    found = ChampionWorker(VerifierSettings(context, study, 5, True)).handle(VerifyJob(0, config, 20.0))
    failed = [f"{name}: {stage['detail']}" for name, stage in found["stages"].items() if stage["state"] == "failed"]
    return failed[0] if failed else undecided(found["stages"])


def test_each_kind_has_its_pairs() -> None:
    """A source differs from its twin, and each number of a kind has its own sizes."""
    cases = [planted(number) for number in range(PAIRS)]
    assert len({case.kind for case in cases}) == len(KINDS)
    assert len({(case.source, case.problem) for case in cases}) == PAIRS
    assert all("@<" in case.source + case.grid for case in cases)


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in range(PAIRS)]
)
def test_a_fault_is_found_and_its_twin_is_verified(number: int, tmp_path: Path) -> None:
    case = planted(number)
    assert verdict(case.write(tmp_path / "faulty", faulty=True), case)
    assert verdict(case.write(tmp_path / "honest", faulty=False), case) == ""
