"""On a GPU: several executors behind one search. Where there is one GPU, two of them take turns on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import live_bench
import pytest
from live_bench import Bench

from evokern.device import _executors, _gpus
from evokern.device._executors import GPU
from evokern.device.gpu import live
from evokern.device.gpu.lock import GpuLock
from evokern.device.gpu.profile import live_gpu
from evokern.errors import DeviceError
from evokern.study.trial import Outcome

pytestmark = pytest.mark.gpu


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A device of two executors on the first GPU, which take turns as a worker and its spare do."""
    gpu = live_gpu(0)
    other = replace(gpu, uuid="GPU-the-same-again")
    turns: list[Path] = []

    class SharedTurn(GpuLock):
        def __init__(self, uuid: str, name: str) -> None:
            super().__init__(uuid, name)
            turns.append(self.turn_lock)
            self.turn_lock = turns[0]

    def opened(_: str) -> live.LiveDevice:
        gpus = _gpus.LocalGpus([gpu, other])
        gpus._held[1].name = "cuda:1"
        return live.LiveDevice(gpus)

    monkeypatch.setattr(_gpus, "GpuLock", SharedTurn)
    monkeypatch.setattr(live_bench, "open_live", opened)
    with Bench("scale_rows", "4096,1024") as made:
        yield made


def test_both_measure_and_one_that_drifts_is_set_aside(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each answer names its GPU; references beyond 2 % of their first times set one aside."""
    assert any("on 2 GPUs; the baseline" in note for note in bench.report.notes), bench.report.notes
    gpus = bench.report.environment["gpus"]
    print(bench.report.notes, gpus)
    assert [one["reference_us"] > 0 for one in gpus] == [True, True]
    feasible = bench.feasible()
    found = bench.run(feasible[:20])
    named = [str(one.evidence.get(GPU)) for one in found]
    assert {named.count("cuda:0") > 3, named.count("cuda:1") > 3} == {True}, named
    measured = [number for number, one in enumerate(found) if one.outcome is Outcome.MEASURED]
    there = [number for number in measured if named[number] == "cuda:1"]
    executors = bench.device._executors
    assert executors is not None
    member = executors.checks[1]
    assert len(member.first_us) == 2
    assert set(member.unconfirmed) == set(there)
    member.first_us = [1.05 * first_us for first_us in member.first_us]
    monkeypatch.setattr(_executors, "CHECK_PERIOD_S", 0.0)
    again: dict[int, float] = {}
    end = time.monotonic() + 60
    while time.monotonic() < end and len(again) < len(there):
        bench.device.poll(0.2)
        again |= {number: float(one["time_us"]) for number, one in bench.device.remeasured().items()}
    print({number: (found[number].time_us, us) for number, us in again.items()})
    assert "cuda:1 is excluded: the baseline" in caplog.text
    assert sorted(again) == there
    assert all(us == pytest.approx(found[number].time_us, rel=0.1) for number, us in again.items())
    late = bench.run(feasible[20:26])
    assert {one.evidence[GPU] for one in late if GPU in one.evidence} == {"cuda:0"}


def test_a_gpu_that_is_not_there_is_named() -> None:
    """The message lists those that are."""
    with pytest.raises(DeviceError, match=r"no GPU cuda:99; this machine has cuda:0 \("):
        live.open_live("cuda:0,99")
