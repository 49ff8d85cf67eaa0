"""What checking and timing takes of the device's memory is known before it is allocated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_gpu import Candidate, Worker, evaluated, worker

from evokern.compile.build import Target, build, tensors_of
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Problem
from evokern.device._gpus import HeldGpu
from evokern.device.gpu.jobs import FREE, HELD, PEAK, Evaluate
from evokern.errors import DeviceError
from evokern.exploits.suite import suite_kernel, suite_study
from evokern.gate import Gate, RunFailed
from evokern.gate import check as gate_check
from evokern.gate.buffer_set import BufferSet, planned_bytes
from evokern.hardware.profiles import chip
from evokern.study.discovery import WorkerContext, find_kernel
from evokern.study.settings import GateSettings, TimingSettings
from evokern.study.trial import Outcome

CPU = torch.device("cpu")


def allocated(bench: BufferSet) -> int:
    """Return the bytes that a bench holds, guard zones apart."""
    matrices = [(bench._inputs, 2), (bench._scratch, 1)]
    found = sum(times * m.sets * sum(t.bytes for t in m.tensors.values()) for m, times in matrices)
    stored = (bench._references._kept, bench._references._kept_magnitudes)
    return found + sum(one.memory.numel() * 8 for one in stored if one is not None)


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
    benches = [gate.bench(tensors, gate.kinds(tensors), settings.runs), gate.bench(tensors, ["normal"] * 4, 1)]
    for bench in benches:  # magnitudes of bounds are stored with the first references
        bench.refresh()
        bench.verify()
    wide = sum(8 * t.elements for t in tensors.values() if t.role != "workspace")
    planned, held = planned_bytes(kernel, problem, tensors, settings, timing), sum(map(allocated, benches)) + wide
    # A magnitude may have one value for several elements, but the plan counts one for each.
    broadcast = sum(
        bench.sets * 2 * 3 * t.elements for bench in benches for t in tensors.values() if len(t.factors) > 1
    )
    assert held <= planned <= held + broadcast


def test_a_problem_that_does_not_fit_is_refused_before_the_first_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The message has the problem, what it takes, what is free, and what takes less."""
    kernel = suite_kernel()
    problems = [kernel.problem(text) for text in ("136,128,16", "9,20,18")]
    monkeypatch.setattr("emulated_gpu.Worker._free_bytes", lambda _: 10_000)
    with pytest.raises(
        DeviceError, match=r"at \w+=136 \w+=128 \w+=16 needs .* GiB .* for all problems.* free\. .*gate\.input_sets"
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

    def made(*arguments: Any, **named: Any) -> BufferSet:
        if next(full):
            raise torch.OutOfMemoryError("full")
        return BufferSet(*arguments, **named)

    monkeypatch.setattr(gate_check, "BufferSet", made)
    second = gate.bench(tensors, ("large",), 1)
    monkeypatch.undo()
    assert gate.bench(tensors, ("large",), 1) is second
    assert gate.bench(tensors, ("normal",), 1) is not first


def worker_at_work(patch: pytest.MonkeyPatch, folder: Path) -> tuple[Worker, Problem, Config, Built]:
    """Return a worker, its problem, and a candidate with its programs."""
    kernel, l4 = suite_kernel(), chip("l4")
    problem, config = kernel.problem("24,20,18"), kernel.space.default()
    built = build(kernel, config, [problem], Target(l4, None))
    assert isinstance(built, Built)
    return worker(patch, kernel, [problem], suite_study("gpu"), l4, folder / "turn"), problem, config, built


@pytest.mark.parametrize("whole", [2**33, 2**30 + 50_000], ids=["ours", "its own"])
def test_who_is_the_cause_of_a_full_memory(whole: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A candidate is blamed for buffers that the whole GPU has no room for; else it is asked once more elsewhere."""
    made, problem, config, built = worker_at_work(monkeypatch, tmp_path)

    def full(*_: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.\nmore")

    monkeypatch.setattr(gate_check, "judge", full)
    monkeypatch.setattr(made, "_total_bytes", lambda: whole)
    if whole == 2**33:
        with pytest.raises(MemoryError, match=r"^the GPU's memory is full: CUDA out of memory\. Tried .* GiB\.$"):
            made.handle(Evaluate(config, built, None))
        return
    found = evaluated(made, config, built)
    assert (found.outcome, found.evidence["constraint"]) == (Outcome.OVER_RESOURCES, "gpu_memory")
    assert found.reason == f"gpu_memory: needs {found.evidence['needed']:g}, has {found.evidence['available']:g}"
    large = replace(found, evidence={**found.evidence, "needed": 85 << 30, "available": 79 << 30})
    assert large.reason == "gpu_memory: needs 85 GiB, has 79 GiB"
    monkeypatch.undo()
    assert not made._gates[problem]._benches


@pytest.mark.parametrize("times", [1, 2])
def test_a_candidate_is_tried_once_more_without_the_buffers_of_those_before_it(
    times: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What torch or the driver lacked at first it may have then; what the driver lacks again is the candidate's."""
    made, problem, config, built = worker_at_work(monkeypatch, tmp_path)
    before, left = list(made._gates[problem]._benches.values()), iter(range(times))
    prepare = Candidate.prepare

    def prepared(self: Candidate, *arguments: Any) -> Any:
        if next(left, None) is not None:
            raise RunFailed(Outcome.CRASHED, {"error": "CUDA_ERROR_OUT_OF_MEMORY"})
        return prepare(self, *arguments)

    monkeypatch.setattr(Candidate, "prepare", prepared)
    found = evaluated(made, config, built)
    assert found.outcome is (Outcome.MEASURED if times == 1 else Outcome.CRASHED)
    assert not any(bench in before for bench in made._gates[problem]._benches.values())


def test_a_worker_that_starts_without_room_says_what_takes_less(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a reference needs is known once it was computed."""
    kernel = suite_kernel()
    problem = kernel.problem("24,20,18")

    def full(*_: Any) -> dict[str, torch.Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")

    short = replace(kernel, workload=replace(kernel.workload, reference=full))
    monkeypatch.setattr(WorkerContext, "kernel", lambda _: short)
    with pytest.raises(DeviceError, match=r"M=24 N=20 K=18 needs more .* Tried to allocate 8.00 GiB\..* in parts"):
        worker(monkeypatch, short, [problem], suite_study("gpu"), chip("l4"), tmp_path / "turn")


@pytest.mark.parametrize(("free_gib", "spares"), [(71, 2), (40, 1), (30, 0), (5, 0)])
def test_spares_leave_room_for_the_reference_of_one_worker(free_gib: int, spares: int) -> None:
    """One that holds 9 GiB and held 35 for a while: they take turns at what they need for a while."""
    held = HeldGpu.__new__(HeldGpu)
    assert held.spares({HELD: 9 << 30, PEAK: 35 << 30, FREE: free_gib << 30}) == spares
