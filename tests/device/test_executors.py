"""Several executors as one pool: who gets what, and what becomes of one that drifts or is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from evokern.device import _executors
from evokern.device._executors import GPU, Calibration, Executors, Reference
from evokern.errors import DeviceError
from evokern.study.trial import Evaluation, Outcome, Timing
from evokern.workers.jobs import JobResult
from evokern.workers.members import LocalMember, LocalMembers

DEPTH = 2


@dataclass
class Scripted:
    """A pool that answers when told to, each job by a function."""

    answer: Callable[[Any], Any]
    jobs: list[tuple[int, Any]] = field(default_factory=list)
    fault: DeviceError | None = None
    closed: bool = False
    connections: tuple[()] = ()

    @property
    def pending(self) -> int:
        return len(self.jobs)

    def submit(self, key: int, job: Any, deadline_s: float) -> None:
        self.jobs.append((key, job))

    def next_deadline(self) -> None:
        return None

    def grant(self, pause_s: float) -> None:
        """Nothing runs."""

    def close(self) -> None:
        self.closed = True
        self.jobs.clear()

    def advance(self, readable: object) -> list[JobResult]:
        if self.fault is not None and not self.closed:
            raise self.fault
        jobs, self.jobs = self.jobs[:1], self.jobs[1:]
        return [JobResult(key, "done", self.answer(job), 0.01) for key, job in jobs]


def measured(time_us: float) -> Evaluation:
    return Evaluation(Outcome.MEASURED, time_us, (Timing(time_us, (time_us, time_us), ()),))


class Rig:
    """Two executors whose times are known: a trial takes its number of µs × the factor of the executor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("evokern.device._executors.time.monotonic", lambda: self.now)
        self.factors = [1.0, 1.0]
        self.baseline = 1.0
        self.pools = [Scripted(lambda job, place=place: self.time(job, place)) for place in range(2)]  # type: ignore[misc]
        named = (LocalMember(f"cuda:{place}", pool) for place, pool in enumerate(self.pools))  # type: ignore[arg-type]
        self.members = LocalMembers([*named], DEPTH)
        self.executors = Executors(self.members)
        baseline = Reference("the baseline b", "baseline", lambda answer: answer)
        default = Reference("the default candidate", 200.0, lambda answer: answer.time_us)
        self.calibration = Calibration((baseline, default), 5.0, "proof")
        self.executors.compare_by(self.calibration, {0: [100.0, 200.0], 1: [100.5, 200.0]})

    def time(self, job: Any, place: int) -> Any:
        if job == "proof":
            return None
        if job == "baseline":
            return (100.0, 100.5)[place] * self.factors[place] * self.baseline
        return measured(job * self.factors[place])

    def run(self, numbers: range) -> dict[int, Evaluation]:
        for number in numbers:
            self.executors.submit(number, number + 1.0, 5.0)
        found: dict[int, Evaluation] = {}
        for _ in range(200):
            found |= {result.key: result.value for result in self.executors.advance(())}
            self.now += 0.1
        return found


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_work_goes_to_who_has_least_and_each_answer_names_its_gpu(rig: Rig) -> None:
    found = rig.run(range(40))
    named = [str(found[number].evidence[GPU]) for number in range(40)]
    assert sorted(set(named)) == ["cuda:0", "cuda:1"]
    assert 15 <= named.count("cuda:0") <= 25
    assert [found[number].time_us for number in range(40)] == [number + 1.0 for number in range(40)]


def test_two_gpus_that_differ_by_nature_are_no_drift(rig: Rig) -> None:
    rig.run(range(10))
    assert rig.executors.checks[1].unconfirmed
    rig.now += 2 * _executors.CHECK_PERIOD_S
    rig.run(range(0))
    assert rig.members.working == [0, 1]
    assert not rig.executors.checks[1].unconfirmed, "a good check forgets what was measured before it"


def test_one_that_drifts_is_set_aside_and_its_trials_are_measured_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """Named, with both times; what it answered stays, and the other one goes on with all the work."""
    first = rig.run(range(10))
    there = [number for number, one in first.items() if one.evidence[GPU] == "cuda:1"]
    rig.factors[1] = 1.04
    late = rig.run(range(10, 20))
    there += [number for number, one in late.items() if one.evidence[GPU] == "cuda:1"]
    rig.now += 2 * _executors.CHECK_PERIOD_S
    rig.run(range(0))
    assert (rig.members.working, rig.executors.states) == ([0], ["", "set aside"])
    told = caplog.text
    assert re.search(r"cuda:1 is excluded: the baseline b took 104.5 µs \(.*100.5 µs\)", told)
    assert re.search(r"the default candidate took 208 µs \(.*200 µs\)", told)
    again = rig.executors.remeasured()
    assert sorted(again) == sorted(there)
    assert all(one["gpu"] == "cuda:0" and one["time_us"] == number + 1.0 for number, one in again.items())
    assert "cuda:1 was excluded" in again[there[0]]["because"]
    assert {one.evidence[GPU] for one in rig.run(range(20, 30)).values()} == {"cuda:0"}
    assert not rig.executors.remeasured()


def test_one_time_beyond_the_bound_is_asked_again_before_anything_is_done(rig: Rig) -> None:
    rig.factors[1] = 1.04
    rig.now += 2 * _executors.CHECK_PERIOD_S
    rig.executors.advance(())  # both are asked
    rig.executors.advance(())  # both answer, and the second one is asked for the other reference
    (beyond,) = rig.executors.checks[1].beyond
    assert re.fullmatch(r"the baseline b took 104.5 µs .*100.5 µs.*", beyond)
    rig.factors[1] = 1.0
    rig.run(range(4))
    assert len(rig.members.working) == 2
    assert not rig.executors.checks[1].beyond


def test_a_baseline_that_alone_takes_longer_is_no_drift_of_the_gpu(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """A library may choose otherwise a minute later, time after time; candidates take as long as before."""
    rig.baseline = 1.06
    for start in range(0, 40, 10):
        rig.run(range(start, start + 10))
        rig.now += 2 * _executors.CHECK_PERIOD_S
    rig.run(range(0))
    assert (rig.members.working, rig.executors.states, caplog.text) == ([0, 1], ["", ""], "")
    assert not rig.executors.checks[1].unconfirmed


def test_when_all_drift_alike_one_goes_on(rig: Rig) -> None:
    rig.factors[:] = [1.05, 1.05]
    rig.now += 2 * _executors.CHECK_PERIOD_S
    rig.run(range(4))
    assert len(rig.members.working) == 1
    assert len(rig.run(range(4, 12))) == 8


def test_a_gpu_that_is_lost_leaves_its_work_to_the_others(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.executors.submit(0, 1.0, 5.0)
    rig.executors.submit(1, 2.0, 5.0)
    rig.pools[1].fault = DeviceError("a worker process died while it started")
    found = rig.run(range(2, 8))
    assert sorted(found) == list(range(8))
    assert {one.evidence[GPU] for one in found.values()} == {"cuda:0"}
    assert rig.executors.states == ["", "lost"]
    assert "cuda:1 is lost: a worker process died while it started" in caplog.text
    rig.pools[0].fault = DeviceError("no memory")
    with pytest.raises(DeviceError, match="no memory"):
        rig.executors.advance(())


def test_one_that_joins_later_works_when_it_is_proved_and_compared(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Until then no trial is its; afterwards its drift counts from its own first time."""
    caplog.set_level("INFO", "evokern")
    rig.executors.compare_by(rig.calibration, {0: [100.0, 200.0]})
    assert rig.pools[1].jobs == [(-1001, "proof")]
    rig.factors[1] = 1.5
    found = rig.run(range(20))
    assert "cuda:1 joins: the baseline b takes 150.8 µs" in caplog.text
    assert rig.executors.checks[1].first_us == [150.75, 300.0]
    assert found[0].evidence[GPU] == found[1].evidence[GPU] == "cuda:0"
    assert {one.evidence[GPU] for one in rig.run(range(20, 30)).values()} == {"cuda:0", "cuda:1"}


def test_a_check_of_one_that_is_lost_ends(rig: Rig) -> None:
    """What only it could do is answered as lost, so that nobody waits for it."""
    rig.members.submit(-5, "reference", 5.0, only=1)
    rig.pools[1].fault = DeviceError("gone")
    found = [*rig.members.advance(()), *rig.members.advance(())]
    assert [(one.key, one.status, one.value) for one in found if one.key == -5] == [
        (-5, "lost", "cuda:1 is lost: gone")
    ]
