"""Crashes of a live search, explained while it runs: everywhere on a stand-in for the GPU, with `-m gpu` on one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import emulated_gpu
import pytest
from paths import DATA
from typer.testing import CliRunner

from evokern import api
from evokern.api import search
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.device import Answer
from evokern.device.opening import open_device
from evokern.search import Progress
from evokern.search import diagnosis as _diagnose
from evokern.store import open_readonly
from evokern.study.discovery import load_kernel
from evokern.study.settings import SamplerSettings, Study, TimingSettings
from evokern.study.trial import Outcome, Trial

FAULTY = DATA / "kernels" / "faulty"
FOUND = {
    "misaligned": ("CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned", "make_float2(result, result)"),
    "out_of_bounds": ("CUDA_ERROR_ILLEGAL_ADDRESS", "out_of_bounds", "y[i + (1ll << (32 + VARIANT))] = result"),
    "endless": (None, "instruction_limit", "while (flag[i]"),
}
"""Fault → what the GPU says of it, and what the simulated device: kind, and text of the line."""
PATIENCE_S = 200.0
"""Seconds that a whole test may wait for what it watches."""


class HoldsLast:
    """A device whose answer to the last trial waits for something, so that the search is still running by then."""

    def __init__(self, device: Any, last: int, until: Callable[[], bool]) -> None:
        self._device, self._last, self._until = device, last, until
        self._held: list[Answer] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Return the answers that are ready, the last trial's only once it may come."""
        answers = self._device.poll(timeout_s)
        self._held += [answer for answer in answers if answer.number == self._last]
        ready = [answer for answer in answers if answer.number != self._last]
        if self._held and self._until():
            ready, self._held = [*ready, *self._held], []
        elif not ready:
            time.sleep(min(timeout_s, 0.05))
        return ready


@pytest.fixture(
    params=[
        pytest.param(("emulated", ("misaligned", "out_of_bounds")), id="emulated"),
        pytest.param(("cuda:0", tuple(FOUND)), id="cuda:0", marks=pytest.mark.gpu),
    ]
)
def device(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """A device that says of a crash no more than its name, and the faults that it can be given."""
    name, faults = request.param
    opened = emulated_gpu.Device(monkeypatch, tmp_path / "turn") if name == "emulated" else open_device(name)
    yield opened, faults
    opened.close()


def trials_of(db: Path) -> list[Trial]:
    with open_readonly(db) as reader:
        return list(reader.trials(reader.study(None)))


@pytest.mark.thorough
def test_a_crash_is_explained_while_the_search_goes_on(
    device: tuple[Any, tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every crash of a pattern gets kind and line from one look at it, for which no trial waits; `show` tells them.

    No diagnosis begins before all other trials are recorded, so a search that waited for one would end without.
    """
    opened, faults = device
    notes, released, db = tmp_path / "notes", tmp_path / "released", tmp_path / "a.db"
    monkeypatch.setattr(api, "FACTORIES", replace(api.FACTORIES, diagnoser="worker_handlers:LateDiagnosis"))
    monkeypatch.setattr(_diagnose, "DEADLINE_S", PATIENCE_S)
    monkeypatch.setenv("DIAGNOSED", str(notes))
    monkeypatch.setenv("RELEASED", str(released))
    kernel, variants = load_kernel(FAULTY), (0, 1, 2)
    total = len(variants) * (len(faults) + 1)
    patience = time.monotonic() + PATIENCE_S
    undiagnosed: list[bool] = []

    def watch(progress: Progress) -> None:
        if progress.event == "trial" and progress.last_trial and progress.trials < total:
            undiagnosed.append("diagnosis" not in progress.last_trial.evaluation.evidence)
        if progress.trials == total - 1:
            released.touch()

    def explained() -> bool:
        failed = [trial for trial in trials_of(db) if trial.outcome in (Outcome.CRASHED, Outcome.HUNG)]
        return time.monotonic() > patience or all("diagnosed_trial" in t.evaluation.evidence for t in failed)

    study = Study(
        "faulty",
        str(FAULTY),
        ("3000",),
        genes={"FAULT": ("none", *faults), "VARIANT": variants},
        sampler=SamplerSettings("grid"),
        timing=TimingSettings(hang_s=1.0),
    )
    held = HoldsLast(opened, total - 1, explained)
    result = search(study, db=db, device=held, kernel=kernel, on_progress=watch)

    assert "exhausted" == result.end
    assert (total - 1) * [True] == undiagnosed
    trials = trials_of(db)
    assert total == len(trials)
    lines = (FAULTY / kernel.source).read_text(encoding="utf-8").splitlines()
    for fault in faults:
        error, kind, text = FOUND[fault]
        of_pattern = [trial for trial in trials if trial.config["FAULT"] == fault]
        outcome = Outcome.CRASHED if error else Outcome.HUNG
        assert len(variants) * [(outcome, error)] == [
            (trial.outcome, trial.evaluation.evidence.get("error")) for trial in of_pattern
        ]
        (looked_at,) = {trial.evaluation.evidence["diagnosed_trial"] for trial in of_pattern}
        assert looked_at in [trial.number for trial in of_pattern]
        for trial in of_pattern:
            finding = trial.evaluation.evidence["finding"]
            assert kind == finding["kind"]
            assert text in lines[finding["line"] - 1]
            told = CliRunner().invoke(app, ["show", "--trial", str(trial.number), "--db", str(db)])
            assert 0 == told.exit_code
            assert f"{kind.replace('_', ' ')} at kernel.cu:{finding['line']}\n" in told.stdout
            assert f"diagnosed trial: {looked_at}\n" in told.stdout
    assert len(faults) == len(notes.read_text(encoding="utf-8").splitlines())
    assert {Outcome.MEASURED} == {trial.outcome for trial in trials if trial.config["FAULT"] == "none"}
