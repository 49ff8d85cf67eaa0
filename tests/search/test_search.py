"""The search: sessions, budgets, identity, progress; nothing that a candidate does ends it."""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import go, small_table, study, tiny_table, trials_of
from instant_devices import InstantH200
from stored_studies import reseal

import evokern
from evokern.api import resume, search
from evokern.device import Request, Task
from evokern.device.recorded.table import TableDevice, measured
from evokern.errors import DeviceError, InternalError, KernelError, StoreError, StudyError
from evokern.measurement.timing import FIRST_TIMING_RULE, TIMING_RULE
from evokern.samplers import TrialSchedule
from evokern.samplers.contract import INITIAL_IN_FLIGHT, ramp_for
from evokern.samplers.sampler_process import SamplerProcess
from evokern.search import Progress, SessionRequest, identity
from evokern.search._find import find
from evokern.search._warm import schedule_of
from evokern.search.identity import settings_of, study_of
from evokern.store import StudyRecord, open_readonly
from evokern.study.discovery import find_study
from evokern.study.settings import SamplerSettings, Study, TimingSettings
from evokern.study.trial import Evaluation, Outcome


def test_the_package_is_the_api(tmp_path: Path) -> None:
    """`evokern.search(...)` searches, whatever was imported from the package of that name before."""
    assert evokern.search is search
    found = evokern.search(study(), db=tmp_path / "a.db", device=TableDevice(tiny_table()))
    assert isinstance(found, evokern.SearchResult)
    assert (found.end, found.study, found.summary["trials"]) == ("exhausted", "small", 24)
    assert found.best is not None
    assert found.speedup == pytest.approx(8.0 / found.best.evaluation.time_us)
    assert not found.interrupted


def test_few_are_in_flight_while_few_results_are_known() -> None:
    """Trials in flight: 4 at first, later one in five of the trials before, never more than asked for."""
    schedule = TrialSchedule(51)
    assert [4, 4, 5, 10, 51, 51] == [schedule(number) for number in (0, 24, 25, 50, 255, 5000)]
    assert [3, 3] == [TrialSchedule(3)(number) for number in (0, 5000)]
    assert [40, 40] == [TrialSchedule.constant(40)(number) for number in (0, 5000)]
    seen = [number - schedule(number) for number in range(2000)]
    assert sorted(seen) == seen  # a result that was shown stays shown


class TwoAtOnce(TableDevice):
    """A recording that claims two GPUs."""

    at_once = 2


def test_a_study_keeps_its_schedule(tmp_path: Path) -> None:
    """How many are in flight is fixed when a study begins; from before there was a ramp it is the window throughout."""
    go(tmp_path / "a.db", tiny_table(), device=TableDevice(tiny_table(), window=51), trials=4)
    with open_readonly(tmp_path / "a.db") as reader:
        record = reader.study(None)
    assert 51 == record.window
    assert TrialSchedule(51) == schedule_of(record)
    go(tmp_path / "r.db", tiny_table(), device=TableDevice(tiny_table(), window=51), trials=4, sampler="random")
    with open_readonly(tmp_path / "r.db") as reader:
        assert TrialSchedule.constant(51) == schedule_of(reader.study(None))  # nothing to learn, nothing to wait for
    assert (4, 5) == ramp_for(1) == record.ramp
    assert [(8, 4), (16, 4), (16, 4)] == [ramp_for(gpus) for gpus in (2, 4, 16)]
    for most, ramp in (
        (None, ramp_for(2)),
        (51, ramp_for(1)),
    ):  # with the most named, the number of GPUs changes nothing
        go(
            tmp_path / f"{most}.db",
            tiny_table(),
            device=TwoAtOnce(tiny_table(), window=102),
            trials=4,
            max_in_flight=most,
        )
        with open_readonly(tmp_path / f"{most}.db") as reader:
            assert (most or 102, ramp) == (reader.study(None).window, reader.study(None).ramp)
    before = StudyRecord.of({**record.row(), "sampler": json.dumps({"name": "tpe", "options": {}})})
    assert TrialSchedule.constant(51) == schedule_of(before)
    assert 1 == before.sampler_version


def test_a_recording_is_asked_as_constraints_are() -> None:
    """A search that is played from a recorded space learns no list of what was recorded."""
    answers = {config: found for config, found in tiny_table().answers.items() if found.outcome is Outcome.MEASURED}
    table = replace(tiny_table(), answers=answers)
    target = find(study(), SessionRequest(device=TableDevice(table)))
    assert target.space.table is None
    assert [config for config in target.space.grid() if target.space.feasible(config)] == list(answers)


def test_a_study_of_other_rules_is_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier version of the sampler began is not silently continued by other rules."""
    db = tmp_path / "a.db"
    with monkeypatch.context() as earlier:
        earlier.setattr(identity, "VERSIONS", {})
        go(db, trials=4, sampler="evo")
    with pytest.raises(StudyError, match=r"sampler evo was version 1 .*, is version 7.*fresh=True.*allow_changes=True"):
        go(db, trials=8, sampler="evo")
    go(db, trials=8, sampler="evo", allow_changes=True)
    assert 8 == sum(trial.outcome.evaluated for trial in trials_of(db))
    go(db, trials=12, sampler="evo")  # from now on by these rules


def test_the_champion_is_the_least_time_measured(tmp_path: Path) -> None:
    """On a space searched to its end, the champion is the recording's optimum."""
    table = tiny_table()
    found = go(tmp_path / "a.db", table)
    times = [answer.time_us for answer in table.answers.values() if answer.time_us]
    assert found.summary["best"]["time_us"] == min(times)
    assert table.answers[found.best.config].time_us == min(times)  # type: ignore[union-attr]


@pytest.mark.thorough
@pytest.mark.parametrize("parts", [(30,), (1, 30), (7, 8, 20, 30)])
def test_trials_count_what_was_evaluated_over_all_sessions(parts: tuple[int, ...], tmp_path: Path) -> None:
    """`--trials N` is the study's total; infeasible and duplicate ones do not count; many sessions are as one."""
    db = tmp_path / "a.db"
    for trials in parts:
        go(db, trials=trials, max_in_flight=4, device=TableDevice(small_table(), workers=3, delay_s=0.001))
    found = trials_of(db)
    assert sum(trial.outcome.evaluated for trial in found) == 30
    whole = tmp_path / "whole.db"
    go(whole, trials=30, max_in_flight=4)
    assert [(t.config, t.outcome) for t in found] == [(t.config, t.outcome) for t in trials_of(whole)]


def test_the_grid_records_infeasible_cells_without_the_device(tmp_path: Path) -> None:
    """Each infeasible cell is a trial with its reason, and does not count towards the trials."""
    found = go(tmp_path / "a.db", tiny_table(), sampler="grid")
    assert found.summary["outcomes"]["infeasible"] == 12
    assert (found.summary["trials"], found.end) == (36, "exhausted")
    with open_readonly(tmp_path / "a.db") as reader:
        first = next(trial for trial in reader.trials(reader.study()) if trial.outcome is Outcome.INFEASIBLE)
    assert first.evaluation.reason == "rows: needs 32, has 16"


@pytest.mark.thorough
def test_all_failures_are_recorded_and_end_nothing(tmp_path: Path) -> None:
    """Crashing, hanging, wrong, greedy and uncompilable candidates are outcomes; every one is in the store."""
    db = tmp_path / "a.db"
    found = go(db, trials=400, sampler="random")
    outcomes = found.summary["outcomes"]
    assert found.end == "trials"
    for outcome in ("wrong", "crashed", "hung", "over_resources", "compile_error", "measured", "duplicate"):
        assert outcomes[outcome] > 0
    for trial in trials_of(db):
        recorded = small_table().answers[trial.config]
        if trial.outcome is not Outcome.DUPLICATE:
            assert (trial.outcome, trial.evaluation.evidence) == (recorded.outcome, recorded.evidence)


@pytest.mark.thorough
def test_duplicates_share_the_first_measurement(tmp_path: Path) -> None:
    """A duplicate names the trial with the same machine code and has its time."""
    db = tmp_path / "a.db"
    go(db, trials=300, sampler="random")
    by_number = {trial.number: trial for trial in trials_of(db)}
    copies = [trial for trial in by_number.values() if trial.outcome is Outcome.DUPLICATE]
    assert copies
    for copy in copies:
        first = by_number[copy.evaluation.evidence["duplicate_of"]]
        assert (first.outcome, first.evaluation.time_us) == (Outcome.MEASURED, copy.evaluation.time_us)
        assert first.evaluation.fingerprint == copy.evaluation.fingerprint


@pytest.mark.thorough
def test_racing_sees_visible_results_only(tmp_path: Path) -> None:
    """The time to race against comes from trials up to n - W, so slow trials are the same for any number of workers."""
    db, other = tmp_path / "a.db", tmp_path / "b.db"
    go(db, trials=80, device=TableDevice(small_table(), race=True))
    go(other, trials=80, device=TableDevice(small_table(), workers=4, delay_s=0.003, race=True))
    one, four = trials_of(db), trials_of(other)
    assert [(t.config, t.outcome) for t in one] == [(t.config, t.outcome) for t in four]
    slow = [t for t in one if t.outcome is Outcome.SLOW and "duplicate_of" not in t.evaluation.evidence]
    assert slow
    with open_readonly(db) as reader:
        schedule = schedule_of(reader.study())
    for trial in slow:
        seen = one[: trial.number - schedule(trial.number) + 1]
        best = min(t.evaluation.time_us for t in seen if t.outcome is Outcome.MEASURED)  # type: ignore[type-var]
        assert trial.evaluation.evidence["elite_us"] == pytest.approx(best)


@pytest.mark.thorough
def test_a_budget_spans_sessions_and_can_be_extended(tmp_path: Path) -> None:
    """`--budget` is the total; a used-up study does nothing more until it is extended."""
    db, each_s = tmp_path / "a.db", 0.25
    # A recording that knows how long things took is searched in that time, whatever else the machine does.
    table = replace(small_table(), seconds=dict.fromkeys(small_table().answers, each_s))
    first = go(db, table, budget="5s")
    again = go(db, table)
    more = go(db, table, extend=3.0)
    for found, budget_s in ((first, 5.0), (again, 5.0), (more, 8.0)):
        elapsed_s = found.summary["elapsed_s"]
        assert (found.end, found.summary["budget_s"]) == ("budget", budget_s)
        assert budget_s <= elapsed_s <= budget_s + INITIAL_IN_FLIGHT * each_s  # what was in flight may end
        assert found.summary["trials"] == elapsed_s / each_s
    assert again.summary["trials"] == first.summary["trials"]


@pytest.mark.thorough
def test_candidates_in_flight_at_the_end_of_a_budget_are_adopted(tmp_path: Path) -> None:
    """What a budget cuts off stands as running and is finished when the budget is extended."""
    db = tmp_path / "a.db"
    go(db, budget=0.5, device=TableDevice(small_table(), workers=8, delay_s=30.0))
    assert trials_of(db) == []
    go(db, budget=60, trials=12, device=TableDevice(small_table()))
    whole = tmp_path / "whole.db"
    go(whole, trials=12)
    assert [t.config for t in trials_of(db)] == [t.config for t in trials_of(whole)]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"budget": "2x"}, "2x"),
        ({"extend": "1h"}, "no budget to extend"),
        ({"trials": 0}, "at least 1"),
        ({"window": 0}, "1 to 1024"),
        ({"sampler": "ev"}, "did you mean 'evo'"),
        ({"study": study(sampler=SamplerSettings("tpe", {"gama": 3}))}, "gama"),
    ],
)
def test_mistakes_leave_nothing_behind(keywords: dict[str, Any], message: str, tmp_path: Path) -> None:
    """A wrong argument is one message and no study."""
    db = tmp_path / "a.db"
    with pytest.raises(StudyError, match=message):
        go(db, **keywords)
    if db.exists():
        with open_readonly(db) as reader:
            assert reader.studies() == []


def test_fresh_begins_anew_and_keeps_the_old(tmp_path: Path) -> None:
    """`--fresh` renames the old study NAME.1 and says so."""
    db = tmp_path / "a.db"
    events: list[Progress] = []
    go(db, trials=5)
    go(db, trials=9, fresh=True, seed=2, on_progress=events.append)
    assert {event.set_aside for event in events} == {"small.1"}
    assert (len(trials_of(db, "small.1")), len(trials_of(db, "small"))) == (5, 9)
    go(db, trials=3, fresh=True, study=study("other"))
    assert (len(trials_of(db, "other")), len(trials_of(db))) == (3, 3)


def test_resume_needs_no_study_file(tmp_path: Path) -> None:
    """`evokern resume` goes on from what the database keeps, with the budget or trials it is given."""
    db = tmp_path / "a.db"
    go(db, trials=5, seed=9)
    found = resume(db=db, device=TableDevice(small_table()), trials=12)
    assert found.summary["trials"] >= 12
    whole = tmp_path / "whole.db"
    go(whole, trials=12, seed=9)
    assert [t.config for t in trials_of(db)] == [t.config for t in trials_of(whole)]


def test_progress_tells_the_whole_story(tmp_path: Path) -> None:
    """opening, start, one event per trial, end; counts, champion, speedup and the last failures with their reasons."""
    db = tmp_path / "a.db"
    go(db, trials=20, sampler="random")
    events: list[Progress] = []
    found = go(db, trials=120, sampler="random", on_progress=events.append)
    kinds = [event.event for event in events if event.event != "idle"]
    assert kinds == ["opening", "start", *["trial"] * (events[-1].trials - events[0].resumed), "end"]
    assert events[0].resumed == events[0].trials == events[1].trials >= 20
    assert events[0].best is not None
    last = events[-1]
    assert (last.evaluated, last.trials_limit, last.in_flight, last.end) == (120, 120, 0, "trials")
    assert last.outcomes == {name: count for name, count in found.summary["outcomes"].items() if count}
    assert last.rejections == found.summary["rejections"]
    assert last.baseline == ("recorded baseline", 8.1)
    assert last.speedup == pytest.approx(found.speedup)
    assert last.trials_per_minute > 0
    assert 0 <= last.busy_share <= 1
    assert any("crashed: CUDA_ERROR_MISALIGNED_ADDRESS" in text for event in events for text in event.last_failures)


# Identity: the same study, or a message that says what changed.


def test_another_device_is_refused(tmp_path: Path) -> None:
    """Times of two devices do not mix; the message names both and the remedies."""
    db = tmp_path / "a.db"
    go(db, trials=5)
    with pytest.raises(DeviceError, match=r"replay:table_small.*replay:tiny.*fresh=True"):
        go(db, tiny_table(), allow_changes=True)
    assert len(trials_of(db)) == 5


def test_changed_settings_are_named_and_may_be_let_pass(tmp_path: Path) -> None:
    """What the study's file says must not change unnoticed; `--go-on` continues with the new settings."""
    db = tmp_path / "a.db"
    go(db, trials=5)
    changed = study(timing=TimingSettings(race=1.3), seed=4)
    with pytest.raises(StudyError, match=r"seed was 0, is 4; timing.race was 1.1.*fresh=True.*allow_changes=True"):
        go(db, trials=8, study=changed)
    go(db, trials=8, study=changed, allow_changes=True)
    with open_readonly(db) as reader:
        record = reader.study()
    assert (record.seed, record.settings["timing"]["race"]) == (4, 1.3)
    go(db, trials=9, study=changed)


def test_budget_and_trials_may_change_freely(tmp_path: Path) -> None:
    """Limits are no part of a study's identity."""
    db = tmp_path / "a.db"
    go(db, study=study(trials=5, budget_s=100.0, cost_per_hour=2.0))
    go(db, study=study(trials=7, budget_s=200.0))
    with open_readonly(db) as reader:
        assert (reader.study().trials_limit, reader.study().budget_s) == (5, 100.0)
    go(db, study=study(), trials=7)
    assert sum(trial.outcome.evaluated for trial in trials_of(db)) == 7
    told: set[str] = set()
    for budget in ("3m", "50s"):
        go(db, study=study(), trials=7, budget=budget, on_progress=lambda progress: told.update(progress.notes))
    (shorter,) = {note for note in told if note.startswith("the budget is")}
    assert "50 s" in shorter and "3 min" in shorter and "all earlier sessions" in shorter


@pytest.mark.thorough
@pytest.mark.parametrize(("keyword", "value"), [("seed", 3), ("sampler", "tpe"), ("window", 5)])
def test_overrides_stay_with_the_study(keyword: str, value: Any, tmp_path: Path) -> None:
    """A study begun with `--seed 3` goes on with it unsaid, and says so when another is asked for."""
    db = tmp_path / "a.db"
    go(db, trials=5, **{keyword: value})
    go(db, trials=6)
    go(db, trials=7, **{keyword: value})
    with open_readonly(db) as reader:
        assert getattr(reader.study(), keyword) == value
    other = "random" if keyword == "sampler" else value + 1
    with pytest.raises(StudyError, match=f"{keyword} was {value!r}, is {other!r}"):
        go(db, trials=8, **{keyword: other})


def test_a_recording_is_searched_as_it_is(tmp_path: Path) -> None:
    """Narrowed genes or limits would be ignored there, so they are refused."""
    for narrowed in (study(genes={"TILE_M": (16,)}), study(limits={"chip": "l4"})):
        with pytest.raises(StudyError, match="restricts genes or limits"):
            go(tmp_path / "a.db", study=narrowed)


@pytest.mark.thorough
@pytest.mark.parametrize("limits", [{"trials": 5}, {"budget": "1s"}])
def test_a_study_that_is_used_up_opens_no_device(limits: dict[str, Any], tmp_path: Path) -> None:
    """Nothing to do is found out before baselines are measured; the champion is reported all the same."""
    db = tmp_path / "a.db"
    go(db, device=TableDevice(small_table(), delay_s=0.1), **limits)
    device = TableDevice(small_table())
    device.start = lambda task: pytest.fail("opened")  # type: ignore[method-assign]
    events: list[Progress] = []
    again = go(db, device=device, on_progress=events.append)
    assert again.end == next(iter(limits))
    assert again.best is not None
    assert [event.event for event in events] == ["end"]
    assert events[0].best is not None


# A kernel folder and a device of our own: what recordings do not show.

KERNEL = """
from evokern import Kernel, Launch, AtMost, Constraint, Parameter, ProblemField, Workload

kernel = Kernel(
    name="toy",
    genes=(Parameter("THREADS", (32, 64, 128, 256), default=64), Parameter("UNROLL", (1, 2, 4))),
    fields=(ProblemField("N"), ProblemField("dtype", choices=("f16", "f32"), default="f32")),
    launches=lambda c, p: [Launch("toy", (p.N // c.THREADS, 1, 1), (c.THREADS, 1, 1), ())],
    workload=Workload(lambda p, c: {}, lambda p, i: {}, {}, lambda p: 1.0, lambda p: 1.0),
    constraints=(Constraint("whole_blocks", lambda c, p: AtMost(p.N % c.THREADS, 0), "the grid covers N exactly"),),
)
"""


class FakeDevice(InstantH200):
    """Its times are made by the genes."""

    def evaluation(self, request: Request) -> Evaluation:
        return measured(1.0 + 64 / request.config.THREADS + request.config.UNROLL)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    folder = tmp_path / "kernels" / "toy"
    folder.mkdir(parents=True)
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "kernel.cu").write_text("__global__ void toy() {}\n")
    monkeypatch.chdir(tmp_path)
    return Study(name="toy", kernel="toy", problems=("192",), dtype="f16")


def test_a_kernel_folder_is_searched_and_kept(toy: Study, tmp_path: Path) -> None:
    """Problems get the study's dtype, infeasible candidates never reach the device, the source stands in the store."""
    device = FakeDevice()
    found = search(toy, device=device)
    assert (found.end, found.summary["trials"]) == ("exhausted", 6)
    assert {problem.key for problem in device.tasks[0].problems} == {"192,dtype=f16"}
    assert {request.config.THREADS for request in device.requests} == {32, 64}
    assert device.closed >= 1
    with open_readonly("evokern.db") as reader:
        record = reader.study()
        assert (record.kernel, record.problems, record.device) == ("toy", ("192,dtype=f16",), "NVIDIA H200")
        assert reader.source(record.kernel_digest)["kernel.cu"] == "__global__ void toy() {}\n"
        assert record.problems_in_words(every=True) == "N=192 dtype=f16"


class HashedDevice(InstantH200):
    """GPUs whose times look like nothing."""

    def __init__(self, gpus: int) -> None:
        super().__init__()
        self.at_once = gpus

    def evaluation(self, request: Request) -> Evaluation:
        return measured(1.0 + zlib.crc32(request.config.key.encode()) % 1000 / 500)


@pytest.mark.parametrize("how", ["cold", "warm", "beside a control"])
def test_a_sampler_beside_several_gpus_proposes_the_same(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a process of its own there; what it proposes and what they race against stays, interrupted or not."""
    processes: list[int] = []
    ahead: list[int] = []
    start, prepare = SamplerProcess.start, SamplerProcess.prepare

    def noted(self: SamplerProcess) -> None:
        start(self)
        processes.extend(self.processes)

    monkeypatch.setattr(SamplerProcess, "start", noted)
    monkeypatch.setattr(SamplerProcess, "prepare", lambda *asked: ahead.append(asked[2]) or prepare(*asked))
    options: dict[str, Any] = {"control": "random"} if how == "beside a control" else {"warm_start": "none"}
    if how == "warm":
        search(find_study("rmsnorm-long"), db=tmp_path / "other.db", device=HashedDevice(1), trials=12, verify=False)
        options = {"warm_start": f"{tmp_path / 'other.db'}:rmsnorm-long"}
    asked: list[Any] = []
    for gpus, stops in ((1, (30,)), (2, (15, 30))):
        asked.append([])
        for trials in stops:
            device = HashedDevice(gpus)
            db = tmp_path / f"{gpus}.db"
            search(find_study("rmsnorm-short"), db=db, device=device, trials=trials, max_in_flight=6, seed=5,
                   verify=False, **options)  # fmt: skip
            asked[-1] += [(request.number, request.config, request.elite_us) for request in device.requests]
        assert bool(processes) == bool(ahead) == (gpus > 1)
    assert asked[0] == asked[1]
    assert len({elite for _, _, elite in asked[0]}) > 2
    assert len(ahead) > 1.5 * len(set(ahead))  # once ahead, and once when the proposal is due
    until = time.monotonic() + 10  # a process that was told to end is there for a moment
    while any(Path(f"/proc/{process}/exe").exists() for process in processes):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_same_problems_may_be_written_in_another_way(toy: Study) -> None:
    """Names instead of values are no change of a study's file; other problems are."""
    search(toy, device=FakeDevice(), trials=3)
    named = replace(toy, problems=("dtype=f16 N=192",))
    assert search(named, device=FakeDevice(), trials=4).summary["trials"] == 4
    with pytest.raises(StudyError, match=r"problems was \['192'\], is \['N=384'\]|problems was .*N=192.*N=384"):
        search(replace(toy, problems=("N=384",)), device=FakeDevice(), trials=5)


def test_a_study_from_before_the_names_gets_them_when_it_goes_on(toy: Study) -> None:
    """A file whose studies have no fields of problems tells keys, until a search goes on with one."""
    search(toy, device=FakeDevice(), trials=3)
    with sqlite3.connect("evokern.db") as db:
        db.execute("UPDATE evokern_studies SET problem_fields = NULL")
    reseal(Path("evokern.db"))
    with open_readonly("evokern.db") as reader:
        assert reader.study().problems_in_words() == "192,dtype=f16"
    search(toy, device=FakeDevice(), trials=4)
    with open_readonly("evokern.db") as reader:
        assert reader.study().problems_in_words() == "N=192 dtype=f16"


def test_changed_code_is_named_and_may_be_let_pass(toy: Study, tmp_path: Path) -> None:
    """A kernel edited since the study began is noticed by file; `--go-on` keeps each trial's own source."""
    search(toy, device=FakeDevice(), trials=3, seed=7)
    (tmp_path / "kernels" / "toy" / "kernel.cu").write_text("__global__ void toy() { /* better */ }\n")
    with pytest.raises(StudyError, match=r"kernel code \(kernel.cu\).*allow_changes=True"):
        search(toy, device=FakeDevice(), trials=5)
    search(toy, device=FakeDevice(), trials=5, allow_changes=True)
    with open_readonly("evokern.db") as reader:
        study = reader.study()
        assert study.seed == 7
        first, last = reader.trial(study, 0), reader.trial(study, 4)
        assert "better" not in reader.source(first.kernel_digest)["kernel.cu"]
        assert "better" in reader.source(last.kernel_digest)["kernel.cu"]


def test_changed_genes_need_a_fresh_study(toy: Study, tmp_path: Path) -> None:
    """Old configurations mean nothing in another space: `--go-on` does not help, and the message says what changed."""
    search(toy, device=FakeDevice(), trials=3)
    path = tmp_path / "kernels" / "toy" / "kernel.py"
    path.write_text(KERNEL.replace('"UNROLL", (1, 2, 4)', '"UNROLL", (1, 2, 4, 8)'))
    with pytest.raises(StudyError, match=r"UNROLL was \[1, 2, 4\], is \[1, 2, 4, 8\].*fresh=True"):
        search(toy, device=FakeDevice(), allow_changes=True)
    assert search(toy, device=FakeDevice(), fresh=True).end == "exhausted"


class TimingDevice(FakeDevice):
    """One whose times a clock gives."""

    verifiable = True


def test_times_of_two_rules_do_not_mix(toy: Study) -> None:
    """A study keeps the rule by which it is timed; one of another rule is refused, with what to type instead."""
    search(toy, device=TimingDevice(), trials=3, verify=False)
    with open_readonly("evokern.db") as reader:
        assert reader.summary(reader.study())["timing_rule"] == reader.study().timing_rule == TIMING_RULE
    search(toy, device=TimingDevice(), trials=4, verify=False)
    for stored, rule in ((None, FIRST_TIMING_RULE), (TIMING_RULE + 1, TIMING_RULE + 1)):
        with sqlite3.connect("evokern.db") as db:
            db.execute("UPDATE evokern_studies SET timing_rule = ?", [stored])
        reseal(Path("evokern.db"))
        pattern = rf"timing rule {rule}, but this evokern uses timing rule {TIMING_RULE}.*warm_start='evokern.db:toy'`"
        for allowed in (False, True):
            with pytest.raises(StudyError, match=pattern):
                search(toy, device=TimingDevice(), trials=5, allow_changes=allowed, verify=False)
    begun = search(toy, device=TimingDevice(), trials=5, fresh=True, warm_start="evokern.db:toy", verify=False)
    assert begun.summary["trials"] == 5
    with sqlite3.connect("evokern.db") as db:
        assert db.execute("SELECT source FROM evokern_priors").fetchall() == [("evokern.db:toy",)]
    with open_readonly("evokern.db") as reader:
        assert (reader.study("toy").timing_rule, reader.study("toy.1").timing_rule) == (TIMING_RULE, TIMING_RULE + 1)


def test_where_no_clock_gives_times_no_rule_is_kept(toy: Study) -> None:
    """Recorded and simulated devices do not care which rule a study names."""
    search(toy, device=FakeDevice(), trials=2)
    with sqlite3.connect("evokern.db") as db:
        assert db.execute("SELECT timing_rule FROM evokern_studies").fetchall() == [(None,)]
        db.execute("UPDATE evokern_studies SET timing_rule = 9")
    reseal(Path("evokern.db"))
    assert search(toy, device=FakeDevice(), trials=3).summary["trials"] == 3


def test_resuming_tells_the_device_what_is_known(toy: Study) -> None:
    """Fingerprints of earlier sessions are handed to the device, so that no machine code is timed twice."""
    table = tiny_table()
    db = Path("known.db")
    go(db, table, trials=5)
    device = TableDevice(table)
    tasks: list[Task] = []
    start = device.start
    device.start = lambda task: (tasks.append(task), start(task))[1]  # type: ignore[method-assign]
    go(db, table, trials=6, device=device)
    assert {number for number, _ in tasks[0].known.values()} == {0, 1, 2, 3, 4}


def test_what_hopeless_candidates_lose_against_is_measured_once(toy: Study) -> None:
    """The first session that measures the default candidate's launches binds all later ones, another figure or none."""
    told = []
    for trials, reported in enumerate(({}, {"default_us": (3000.0,)}, {"default_us": (2.0,)}, {}), start=1):
        device = FakeDevice()
        device.environment = dict(reported)
        search(toy, db="toy.db", device=device, trials=2 * trials)
        told += [task.default_us for task in device.tasks]
    assert told == [(), (), (3000.0,), (3000.0,)]


def test_a_device_that_does_not_start_binds_nothing(toy: Study) -> None:
    """A first attempt that failed leaves no settings behind that a second could disagree with."""
    with pytest.raises(KernelError, match="reference raised"):
        search(toy, device=FakeDevice(start=KernelError("reference raised")), seed=1)
    assert search(toy, device=FakeDevice(), seed=2, trials=3).end == "trials"
    with open_readonly("evokern.db") as reader:
        assert [session.end_reason for session in reader.sessions(reader.study())] == ["failed", "trials"]
        assert reader.study().seed == 2


def test_a_broken_device_loses_nothing(toy: Study) -> None:
    """When evokern itself breaks, what is recorded stays, the device is closed, and the search can be resumed."""
    device = FakeDevice(submit=InternalError("broken"))
    with pytest.raises(InternalError, match="broken"):
        search(toy, device=device)
    assert device.closed >= 1
    assert search(toy, device=FakeDevice()).summary["trials"] == 6


def test_a_constraint_that_raises_is_the_kernels_mistake(toy: Study, tmp_path: Path) -> None:
    """One message with constraint, error and candidate."""
    path = tmp_path / "kernels" / "toy" / "kernel.py"
    path.write_text(KERNEL.replace("AtMost(p.N % c.THREADS, 0)", "AtMost(p.N % (c.THREADS - 64), 0)"))
    with pytest.raises(KernelError, match="constraint whole_blocks raised ZeroDivisionError"):
        search(toy, device=FakeDevice())


def test_an_unknown_dtype_field_is_said(toy: Study, tmp_path: Path) -> None:
    """A study's dtype needs a kernel that has one."""
    path = tmp_path / "kernels" / "toy" / "kernel.py"
    path.write_text(KERNEL.replace(' ProblemField("dtype", choices=("f16", "f32"), default="f32")', ""))
    with pytest.raises(StudyError, match="no such field"):
        search(toy, device=FakeDevice())


def test_settings_survive_the_database(toy: Study) -> None:
    """A study rebuilt from its record says what its file said."""
    given = Study(
        name="mine",
        kernel="toy",
        problems=("192", {"N": 384}),
        dtype="f16",
        limits={"chip": "l4", "registers_per_thread": 128},
        genes={"THREADS": (32, 64)},
        sampler=SamplerSettings("tpe", {"n_startup_trials": 4}),
        window=3,
    )
    search(given, device=FakeDevice(), trials=2)
    with open_readonly("evokern.db") as reader:
        rebuilt = study_of(reader.study())
    assert settings_of(rebuilt) == settings_of(given)
    assert resume(device=FakeDevice(), trials=4).summary["trials"] == 4


@pytest.mark.parametrize("settings", [{}, {"problems": 3}, None])
def test_settings_that_cannot_be_read_are_told(settings: dict[str, Any] | None, toy: Study) -> None:
    """A database whose study lost its settings is not resumed: the message says what does go on."""
    search(toy, device=FakeDevice(), trials=2)
    with open_readonly("evokern.db") as reader:
        record = reader.study()
    whole = dict(record.settings)
    damaged = settings if settings != {"problems": 3} else whole | settings
    with pytest.raises(StoreError, match=r"settings of study 'toy' are damaged.*FILE\.toml"):
        study_of(replace(record, settings=damaged))  # type: ignore[arg-type]
