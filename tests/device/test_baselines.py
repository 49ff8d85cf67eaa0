"""What a baseline gets, and when it is prepared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from evokern.declaration.kernel import Baseline, Inputs, Problem
from evokern.device.contract import BaselineResult
from evokern.device.gpu import baselines as _baselines
from evokern.device.gpu import worker as _worker
from evokern.device.gpu.baselines import BaselineRunner, baseline_call
from evokern.gate.check import Call, RunFailed
from evokern.study.trial import Outcome
from evokern.workers.process import Retire


def _doubling(prepared: list[Inputs]) -> Baseline:
    """A baseline that starts from halves, and notes each time that they are made."""

    def prepare(problem: Problem, inputs: Inputs) -> Inputs:
        prepared.append({"x": inputs["x"].half()})
        return prepared[-1]

    return Baseline("twice", lambda problem, inputs: {"y": (2 * inputs["x"]).float()}, prepare)


def test_what_is_timed_starts_from_prepared_inputs() -> None:
    """Inputs are prepared once, before the first timed call, however often that runs."""
    prepared: list[Inputs] = []
    call = baseline_call(_doubling(prepared), Problem({"N": 4}), {"x": torch.ones(4), "y": torch.empty(4)})
    assert len(prepared) == 1
    call()
    call()
    assert len(prepared) == 1


def test_the_check_prepares_the_inputs_of_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that the gate judges follows the inputs of its own call, never those of an earlier one."""
    monkeypatch.setattr(_baselines, "finish", lambda *limits: None)
    prepared: list[Inputs] = []
    runner = BaselineRunner(_doubling(prepared), Problem({"N": 4}), hang_s=1.0)
    calls = [Call((), {"x": torch.full((4,), float(n)), "y": torch.empty(4)}) for n in (1, 2)]
    runner.run(calls)
    calls[0].arguments["x"].fill_(8.0)
    runner.run(calls)
    assert [call.arguments["y"].tolist() for call in calls] == [[16.0] * 4, [4.0] * 4]
    assert all(inputs["x"].dtype == torch.float16 for inputs in prepared)


def test_without_preparation_the_inputs_are_the_workloads_own() -> None:
    """Most baselines take what the kernel takes."""
    inputs = {"x": torch.ones(2)}
    assert Baseline("same", lambda p, t: t).given(Problem({"N": 2}), inputs) is inputs


def test_a_view_of_an_input_is_copied_when_timed() -> None:
    """A transpose that moves no data would take no time, but the kernel that it is compared with writes its output."""
    baseline, x = Baseline("transpose", lambda problem, inputs: {"y": inputs["x"].t()}), torch.ones(2, 3)
    made = baseline_call(baseline, Problem({"N": 2}), {"x": x, "y": torch.empty(3, 2)})()["y"]
    assert made.is_contiguous() and made.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "raised, told",
    [
        (ImportError("no symbol\nin lib.so"), "ImportError: no symbol"),
        (AssertionError(), "AssertionError: AssertionError"),
        (SystemExit(3), "SystemExit: 3"),
        (RunFailed(Outcome.HUNG, {"error": "too long"}), "hung: too long"),
    ],
)
@pytest.mark.parametrize("broken", [None, "illegal address"])
def test_a_baseline_that_fails_is_rejected_with_its_reason(
    raised: BaseException, told: str, broken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any failure of a library is its result; a worker whose GPU context is broken or busy is replaced."""

    def workload(*asked: object) -> None:
        raise raised

    monkeypatch.setattr(_worker, "context_error", lambda: broken)
    baselines = (Baseline("library", lambda problem, inputs: {}),)
    worker = SimpleNamespace(
        _kernel=SimpleNamespace(workload=SimpleNamespace(baselines=baselines)), _gates={None: None},
        _runs=SimpleNamespace(workload=workload), _settings=SimpleNamespace(warm_config=None),
    )  # fmt: skip
    try:
        found, retired = _worker.GpuWorker._baseline(cast(Any, worker), 0), False
    except Retire as last:
        found, retired = last.value, True
    assert (found, retired) == (BaselineResult("library", error=told), bool(broken) or "hung" in told)
