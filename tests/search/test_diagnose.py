"""Crashes and hangs are explained beside the search: once per pattern, on every record of it, and nothing waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paths import DATA

import evokern
from evokern import api
from evokern.api import search
from evokern.device import Answer, Request, StartReport, Task
from evokern.device.recorded.table import measured
from evokern.hardware.profiles import chip
from evokern.search import Progress
from evokern.search import diagnosis as _diagnose
from evokern.store import open_readonly
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import SamplerSettings, Study
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial

FAULTY = DATA / "kernels" / "faulty"
KINDS = {
    "out_of_bounds": Evaluation(Outcome.CRASHED, evidence={"error": "CUDA_ERROR_ILLEGAL_ADDRESS"}),
    "misaligned": Evaluation(Outcome.CRASHED, evidence={"error": "CUDA_ERROR_MISALIGNED_ADDRESS"}),
    "endless": Evaluation(Outcome.HUNG, evidence={"limit_s": 2.0}),
    "wrong": Evaluation(Outcome.WRONG, evidence={"check": "outputs"}),
    "nan": Evaluation(Outcome.CRASHED, evidence={"error": "CUDA_ERROR_OUT_OF_MEMORY"}),
}


class FragileDevice:
    """Says of candidates of the faulty kernel what a GPU says; the last answer may wait for something."""

    identity, predicted, profile, window, at_once = "fragile", False, chip("l4"), 4, 1

    def __init__(self, diagnoses: bool = True, until: Callable[[], bool] = lambda: True) -> None:
        self.diagnoses, self.verifiable = diagnoses, False
        self._until = until
        self._asked: list[Request] = []

    def start(self, task: Task) -> StartReport:
        return StartReport()

    def submit(self, request: Request) -> None:
        self._asked.append(request)

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        if not self._asked or (len(self._asked) == 1 and not self._until()):
            time.sleep(min(timeout_s, 0.01))
            return []
        request = self._asked.pop(0)
        right = measured(5.0 + request.config.VARIANT)
        return [Answer(request.number, KINDS.get(str(request.config["FAULT"]), right))]

    def busy_s(self) -> float:
        return 0.0

    def close(self) -> None:
        self._asked.clear()


def study(*faults: str, variants: int = 3, sampler: str = "grid") -> Study:
    """A study of the faulty kernel, narrowed to some faults."""
    genes = {"FAULT": faults, "VARIANT": tuple(range(variants))}
    return Study("faulty", str(FAULTY), ("3000",), genes=genes, sampler=SamplerSettings(sampler))


def go(db: Path, wanted: Study, device: FragileDevice | None = None, **keywords: Any) -> evokern.SearchResult:
    return search(wanted, db=db, device=device or FragileDevice(), kernel=load_kernel(FAULTY), **keywords)


def trials_of(db: Path) -> list[Trial]:
    with open_readonly(db) as reader:
        return list(reader.trials(reader.study(None)))


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Let a handler that notes its jobs diagnose; returns where it does, by how it behaves."""

    def behave(how: str) -> Path:
        monkeypatch.setattr(api, "FACTORIES", replace(api.FACTORIES, diagnoser="worker_handlers:Diagnostician"))
        monkeypatch.setenv("DIAGNOSED", str(tmp_path / how))
        return tmp_path / how

    return behave


def jobs(notes: Path) -> list[str]:
    return notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []


@pytest.mark.thorough
def test_the_simulated_device_names_access_and_line(tmp_path: Path) -> None:
    """A crash and a hang end with kind, line and cause on the record and in the panel, one look per pattern."""
    db, seen = tmp_path / "a.db", list[Progress]()
    patience = time.monotonic() + 120

    def explained() -> bool:
        said = " ".join(seen[-1].last_failures) if seen else ""
        return ("misaligned at line" in said and "instruction limit at line" in said) or time.monotonic() > patience

    device = FragileDevice(until=explained)
    go(db, study("misaligned", "endless", "none", variants=2), device, on_progress=seen.append)
    found = {(t.config["FAULT"], t.config["VARIANT"]): t.evaluation for t in trials_of(db)}
    for fault, kind in (("misaligned", "misaligned"), ("endless", "instruction_limit")):
        for variant in (0, 1):
            evaluation = found[fault, variant]
            finding = evaluation.evidence["finding"]
            assert (kind, "300") == (finding["kind"], evaluation.evidence["finding_problem"])
            assert evaluation.reason == evaluation.evidence["diagnosis"]
            assert evaluation.reason.startswith(f"{kind.replace('_', ' ')} at line {finding['line']} (")
        assert 1 == len({found[fault, variant].evidence["diagnosed_trial"] for variant in (0, 1)})
    assert "CUDA_ERROR_MISALIGNED_ADDRESS" == found["misaligned", 0].evidence["error"]


def test_each_pattern_is_diagnosed_once(tmp_path: Path, notes: Callable[[str], Path]) -> None:
    """A pattern is an error's name and the outer genes; its first trial is looked at, and every trial of it is told."""
    db, told = tmp_path / "a.db", notes("told")
    crashing = ("out_of_bounds", "misaligned", "endless")
    go(db, study(*crashing, "wrong", "nan", "none"), FragileDevice(until=lambda: len(jobs(told)) == 3))
    assert ["endless 0 hung", "misaligned 0 crashed", "out_of_bounds 0 crashed"] == sorted(jobs(told))
    for trial in trials_of(db):
        fault = trial.config["FAULT"]
        said = f"{fault} at line 7" if fault in crashing else None
        assert said == trial.evaluation.evidence.get("diagnosis")
        assert said is None or (said, 7) == (trial.evaluation.reason, trial.evaluation.evidence["finding"]["line"])


def test_a_resumed_search_knows_what_was_diagnosed(tmp_path: Path, notes: Callable[[str], Path]) -> None:
    """What an earlier session found out is not asked again, and explains what crashes later."""
    db, told = tmp_path / "a.db", notes("told")
    device = FragileDevice(until=lambda: bool(jobs(told)))
    go(db, study("misaligned", variants=6), device, trials=2)
    assert [True, True] == ["diagnosis" in t.evaluation.evidence for t in trials_of(db)]
    go(db, study("misaligned", variants=6), trials=6)
    assert 6 * ["misaligned at line 7"] == [t.evaluation.reason for t in trials_of(db)]
    assert 1 == len(jobs(told))


@pytest.mark.thorough
def test_the_end_waits_a_moment_and_resuming_asks_again(tmp_path: Path, notes: Callable[[str], Path]) -> None:
    """The end of a search waits for a diagnosis under way; what it left open the next session finds out."""
    db = tmp_path / "a.db"
    slow = notes("slow")
    began = time.monotonic()
    go(db, study("misaligned", variants=4), FragileDevice(until=lambda: bool(jobs(slow))), trials=2)
    working = time.monotonic() - began
    assert [{"error"}] * 2 == [set(t.evaluation.evidence) for t in trials_of(db)]
    assert _diagnose.LAST_WAIT_S <= working
    told = notes("told")
    go(db, study("misaligned", variants=4), FragileDevice(until=lambda: bool(jobs(told))), trials=4)
    assert 4 * ["misaligned at line 7"] == [t.evaluation.reason for t in trials_of(db)]
    assert ["misaligned 0 crashed"] == jobs(told)


def test_the_last_wait_is_bounded(notes: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """`finish` returns after its time, or at once when the user wants to stop."""
    notes("slow")
    kernel = load_kernel(FAULTY)
    context = WorkerContext(FAULTY, (kernel.problem("3000"),), chip("l4"))
    diagnoses = _diagnose.Diagnoses(api.FACTORIES.diagnoser, context, kernel.genes, lambda trials: None)
    try:
        config = kernel.space.with_changes(kernel.space.default(), {"FAULT": "misaligned"})
        diagnoses.observe(Trial(0, Proposal(config), KINDS["misaligned"]))
        began = time.monotonic()
        diagnoses.finish(lambda: True)
        assert time.monotonic() - began < 1.0
        monkeypatch.setattr(_diagnose, "LAST_WAIT_S", 0.5)
        diagnoses.finish(lambda: False)
        assert 0.5 <= time.monotonic() - began < 2.0
    finally:
        diagnoses.close()


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "why"), [("broken", "no kernel here"), ("deadly", "killed by SIGKILL")])
def test_a_diagnosis_that_fails_ends_nothing(how: str, why: str, tmp_path: Path, notes: Callable[[str], Path]) -> None:
    """A worker that cannot start or dies leaves its reason on the record, and the search goes on."""
    db = tmp_path / "a.db"
    notes(how)
    patience = time.monotonic() + 60

    def noted() -> bool:
        return any("undiagnosed" in t.evaluation.evidence for t in trials_of(db)) or time.monotonic() > patience

    found = go(db, study("none", "misaligned"), FragileDevice(until=noted))
    assert "exhausted" == found.end
    crashed = [t.evaluation for t in trials_of(db) if t.outcome is Outcome.CRASHED]
    assert 3 * [True] == [why in evaluation.evidence["undiagnosed"] for evaluation in crashed]
    assert 3 * ["CUDA_ERROR_MISALIGNED_ADDRESS"] == [evaluation.reason for evaluation in crashed]


@pytest.mark.thorough
def test_proposals_do_not_depend_on_diagnoses(tmp_path: Path, notes: Callable[[str], Path]) -> None:
    """With and without diagnoses, in one session or two, evo proposes the same sequence."""
    told = notes("told")
    wanted = study("none", "misaligned", "out_of_bounds", "endless", variants=5, sampler="evo")
    go(tmp_path / "without.db", wanted, FragileDevice(diagnoses=False))
    go(tmp_path / "with.db", wanted, FragileDevice(until=lambda: len(jobs(told)) > 2))
    go(tmp_path / "two.db", wanted, trials=9)
    go(tmp_path / "two.db", wanted, trials=20)
    first, *others = ([t.config for t in trials_of(tmp_path / f"{n}.db")] for n in ("without", "with", "two"))
    assert 20 == len(first)
    assert [first, first] == others


def test_a_device_that_explains_itself_is_left_alone(tmp_path: Path, notes: Callable[[str], Path]) -> None:
    """Where a device does not ask for it, nothing is diagnosed."""
    told = notes("told")
    go(tmp_path / "a.db", study("misaligned"), FragileDevice(diagnoses=False))
    assert [] == jobs(told)
    assert {"CUDA_ERROR_MISALIGNED_ADDRESS"} == {t.evaluation.reason for t in trials_of(tmp_path / "a.db")}


def test_a_simulated_crash_has_its_line() -> None:
    """A candidate that ends on a simulated device names line and text; a second of its pattern is not run again."""
    from evokern.compile.build import Target, build
    from evokern.compile.records import Built
    from evokern.device.sim.jobs import SimSettings, Simulate
    from evokern.device.sim.worker import SimWorker

    kernel, wanted, l4 = load_kernel(FAULTY), study("none"), chip("l4")
    problems = (kernel.problem("3000"),)
    worker = SimWorker(
        SimSettings(
            WorkerContext(FAULTY, problems, l4), wanted.gate, wanted.timing, wanted.simulation, kernel.space.default()
        )
    )
    found = []
    for variant in (0, 1):
        config = kernel.space.with_changes(kernel.space.default(), {"FAULT": "out_of_bounds", "VARIANT": variant})
        built = build(kernel, config, problems, Target(l4, None))
        assert isinstance(built, Built)
        evaluation = worker.handle(Simulate(config, built, None))
        assert evaluation is not None
        found.append(evaluation)
    lines = (FAULTY / kernel.source).read_text(encoding="utf-8").splitlines()
    for evaluation in found:
        finding = evaluation.evidence["finding"]
        assert (Outcome.CRASHED, "out_of_bounds") == (evaluation.outcome, finding["kind"])
        assert lines[finding["line"] - 1].strip() == finding["source"] != ""
        assert f"line {finding['line']}: {finding['source']}" in evaluation.reason
    assert [False, True] == ["line_from" in evaluation.evidence for evaluation in found]
