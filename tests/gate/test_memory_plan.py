"""What checking and timing takes of the device's memory is known before it is allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_gpu import worker

from evokern.compile.build import tensors_of
from evokern.errors import DeviceError
from evokern.exploits.suite import suite_kernel, suite_study
from evokern.gate import Gate
from evokern.gate import check as gate_check
from evokern.gate.bench import Bench
from evokern.gate.memory_plan import planned_bytes
from evokern.hardware.profiles import chip
from evokern.study.discovery import find_kernel
from evokern.study.settings import GateSettings, TimingSettings

CPU = torch.device("cpu")


def allocated(bench: Bench) -> int:
    """Return the bytes that a bench holds, guard zones apart."""
    matrices = [(bench._inputs, 2), (bench._scratch, 1)]
    found = sum(times * m.sets * sum(t.bytes for t in m.tensors.values()) for m, times in matrices)
    kept = bench._references._kept
    return found + (kept.memory.numel() * 8 if kept is not None else 0)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("name", "text"), [("rmsnorm", "64,128"), ("matmul", "64,48,32"), ("attention", "1,2,64,64")])
def test_the_plan_is_what_is_allocated(name: str, text: str, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs, their originals, answers and kept references of both benches, and a reference while it is computed."""
    if large:
        monkeypatch.setattr("evokern.gate.renewal.LARGE_ELEMENTS", 0)
    kernel, settings, timing = find_kernel(name), GateSettings(), TimingSettings()
    problem = kernel.problem(text)
    tensors = tensors_of(kernel, kernel.space.default(), problem)
    gate = Gate(kernel, problem, settings, CPU)
    benches = [gate.bench(tensors, settings.input_sets, settings.runs), gate.bench(tensors, ["normal"] * 4, 1)]
    wide = sum(8 * t.elements for t in tensors.values() if t.role != "workspace")
    assert planned_bytes(kernel, problem, tensors, settings, timing) == sum(map(allocated, benches)) + wide


def test_a_problem_that_does_not_fit_is_refused_before_the_first_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The message has the problem, what it takes, what is free, and what takes less."""
    kernel = suite_kernel()
    problems = [kernel.problem(text) for text in ("136,128,16", "9,20,18")]
    monkeypatch.setattr("emulated_gpu.Worker._free_bytes", lambda _: 10_000)
    with pytest.raises(
        DeviceError, match=r"at \w+=136 \w+=128 \w+=16.* takes .* GiB .*, all problems .* free\. Fewer gate\.input"
    ):
        worker(monkeypatch, kernel, problems, suite_study("gpu"), chip("l4"), tmp_path / "turn")


def test_buffers_of_other_candidates_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is short, buffers that wait for candidates with other workspaces go first."""
    kernel = find_kernel("rmsnorm")
    problem = kernel.problem("64,128")
    gate = Gate(kernel, problem, GateSettings(), CPU)
    tensors = tensors_of(kernel, kernel.space.default(), problem)
    first = gate.bench(tensors, ("normal",), 1)
    full = iter((True, False))

    def made(*arguments: Any, **named: Any) -> Bench:
        if next(full):
            raise torch.OutOfMemoryError("full")
        return Bench(*arguments, **named)

    monkeypatch.setattr(gate_check, "Bench", made)
    second = gate.bench(tensors, ("large",), 1)
    monkeypatch.undo()
    assert gate.bench(tensors, ("large",), 1) is second
    assert gate.bench(tensors, ("normal",), 1) is not first
