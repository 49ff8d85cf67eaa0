"""On a GPU whose memory is full: a candidate is tried once more without the buffers of those before it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evokern.compile.build import Target, build
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.device.gpu.jobs import Evaluate, GpuSettings
from evokern.device.gpu.profile import live_gpu
from evokern.device.gpu.worker import GpuWorker
from evokern.study.discovery import WorkerContext, find_kernel
from evokern.study.settings import GateSettings, TimingSettings
from evokern.study.trial import Evaluation, Outcome

pytestmark = pytest.mark.gpu


def filled() -> list[torch.Tensor]:
    """Take what torch can still get of the GPU's memory, in ever smaller pieces."""
    torch.cuda.empty_cache()
    held, size = [], 2**30
    while size >= 2**21:
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return held


def test_a_full_memory_is_no_fault_of_the_candidate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Buffers of another candidate make room in place; where others hold the memory nobody is blamed for it."""
    profile, kernel, turn = live_gpu(0).profile, find_kernel("matmul"), tmp_path / "turn"
    problem, default = kernel.problem("4096,4096,4096"), kernel.space.default()
    split = kernel.space.with_changes(default, {"SPLIT_K": 2})
    turn.touch()
    context = WorkerContext(kernel.folder, (problem,), profile)
    worker = GpuWorker(GpuSettings(context, GateSettings(), TimingSettings(), 0, turn, default))
    tries: list[bool] = []
    attempt = worker._attempt

    def counted(job: Evaluate, *, again: bool) -> tuple[Evaluation, bool]:
        tries.append(again)
        return attempt(job, again=again)

    monkeypatch.setattr(worker, "_attempt", counted)

    def evaluated(config: Config) -> Outcome:
        tries.clear()
        made = build(kernel, config, (problem,), Target(profile, None))
        assert isinstance(made, Built)
        found = worker.handle(Evaluate(config, made, None))
        assert isinstance(found, Evaluation), found
        assert found.outcome is Outcome.MEASURED, found.reason
        return found.outcome

    evaluated(split)
    evaluated(default)
    assert tries == [False]
    held = filled()
    evaluated(default)
    assert tries == [False, True]
    # What the other candidate's buffers took is free again; now somebody else has it.
    held += filled()
    with pytest.raises(MemoryError, match=r"^the GPU's memory is full: .*"):
        evaluated(default)
    assert tries == [False, True]
    held.clear()
    evaluated(default)
    assert tries == [False]
