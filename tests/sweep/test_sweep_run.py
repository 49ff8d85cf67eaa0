"""Sweeps on recordings and on devices that answer at once: slices, warm starts, interruptions, ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from instant_devices import InstantH200
from paths import DATA
from typer.testing import CliRunner

from evokern.api import search
from evokern.cli.app import app
from evokern.declaration.genes import Config
from evokern.device import Request
from evokern.device.recorded.table import measured
from evokern.errors import DeviceError, StoreError, StudyError
from evokern.search import Progress
from evokern.store import open_readonly
from evokern.study.trial import Evaluation, Outcome
from evokern.sweep import Journal, Sweep, SweepRequest, SweepResult, read_sweep, run_sweep, state_of, sweep_lock

RECORDED = f"""kernel = "recording"
problems = ["one", "two"]
device = "replay:{DATA}/table_small.json.gz"
sampler = "random"
trials = 72
"""
LIVE = f"""kernel = "{DATA}/kernels/scale_rows"
problems = ["4096,4096", "64,512", "64,256"]
device = "cuda:0"
trials = 12
"""
ONE, TWO = "recording-one-replay_table_small", "recording-two-replay_table_small"


class Gpu(InstantH200):
    """An H200 on which four warps are best, and more rows a block worse."""

    def evaluation(self, request: Request) -> Evaluation:
        config = request.config
        return measured(1.0 + abs(config.WARPS - 4) + 0.1 * config.ROWS_PER_BLOCK, config.key)


class FailingGpu(Gpu):
    """An H200 on which everything crashes."""

    def evaluation(self, request: Request) -> Evaluation:
        return Evaluation(Outcome.CRASHED, evidence={"error": "made up"})


def sweep_of(folder: Path, text: str = RECORDED) -> Sweep:
    path = folder / "sweep.toml"
    path.write_text(text)
    return read_sweep(path)


def ran(sweep: Sweep, folder: Path, told: list[str] | None = None, **asked: Any) -> SweepResult:
    return run_sweep(sweep, folder, SweepRequest(trust=True, **asked), (told if told is not None else []).append)


def configs(folder: Path, name: str) -> list[Config]:
    with open_readonly(folder / f"{name}.db") as reader:
        return [trial.config for trial in reader.trials(reader.study(name))]


def ends(folder: Path, name: str) -> list[str | None]:
    with open_readonly(folder / f"{name}.db") as reader:
        return [session.end_reason for session in reader.sessions(reader.study(name))]


def source(folder: Path, name: str) -> str | None:
    with open_readonly(folder / f"{name}.db") as reader:
        warm = reader.summary(reader.study(name))["warm_start"]
    return None if warm is None else str(warm["source"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two studies that nobody interrupted."""
    here = tmp_path_factory.mktemp("undisturbed")
    assert ran(sweep_of(here), here / "db").end == "done"
    return here / "db"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[InstantH200], None]:
    """Put a device in the place of every one that is opened."""

    def put(device: InstantH200) -> None:
        monkeypatch.setattr(import_module("evokern.search._find"), "open_device", lambda *_: device)

    return put


def test_a_study_in_slices_is_the_same_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its candidates are those of one search of it, `evo`'s too; each slice but the last ends paused."""
    monkeypatch.setattr("evokern.sweep.rule.FIRST_SLICE", 8)
    sweep = sweep_of(tmp_path, RECORDED.replace('"random"', '"evo"').replace(', "two"', "").replace("72", "36"))
    assert ran(sweep, tmp_path / "db").end == "done"
    search(sweep.studies[0].study, db=tmp_path / f"{ONE}.db")
    assert configs(tmp_path / "db", ONE) == configs(tmp_path, ONE)
    assert ends(tmp_path / "db", ONE) == ["paused", "paused", "trials"]


def test_slices_are_kept_with_what_came_of_them(undisturbed: Path) -> None:
    """Two for each study, at the trial numbers of the rule."""
    slices = Journal.of(undisturbed).slices
    assert [(one.study, one.first, one.last) for one in slices] == [
        (ONE, 0, 32), (ONE, 32, None), (TWO, 0, 32), (TWO, 32, None)
    ]  # fmt: skip
    assert all(one.seconds is not None and one.seconds > 0 and one.after_us for one in slices)


def test_whoever_watches_sees_each_study_and_how_all_stand(tmp_path: Path) -> None:
    """Every event of a study's search says how the studies stood when it began."""
    seen: list[Progress] = []
    run_sweep(sweep_of(tmp_path), tmp_path / "db", SweepRequest(trust=True), lambda text: None, seen.append)
    assert {one.study for one in seen} == {ONE, TWO}
    first, last = seen[0].sweep, seen[-1].sweep
    assert first.startswith("2 studies: 2 waiting")
    assert "1 finished, 1 begun" in last


def test_the_same_command_again_has_nothing_to_do(undisturbed: Path, tmp_path: Path) -> None:
    """Nothing is opened; more trials in the file go on."""
    sweep, before = sweep_of(tmp_path), ends(undisturbed, ONE)
    told: list[str] = []
    assert ("done", []) == (ran(sweep, undisturbed, told).end, told)
    assert ends(undisturbed, ONE) == before


def test_more_trials_go_on(tmp_path: Path) -> None:
    """A larger number in the file is no other setting."""
    short = RECORDED.replace("trials = 72", "trials = 3").replace(', "two"', "")
    ran(sweep_of(tmp_path, short), tmp_path / "db")
    result = ran(sweep_of(tmp_path, short.replace("trials = 3", "trials = 5")), tmp_path / "db")
    assert [one.trials for one in result.states] == [5]


def test_an_interrupted_sweep_goes_on_as_if_it_had_not_been(undisturbed: Path, tmp_path: Path) -> None:
    """Ctrl-C between two slices: what was decided is done, and the candidates are the same."""
    sweep, told = sweep_of(tmp_path), list[str]()

    def interrupting(text: str) -> None:
        told.append(text)
        if text.startswith(f"{TWO}: trials 0 to 32"):
            raise KeyboardInterrupt

    result = run_sweep(sweep, tmp_path / "db", SweepRequest(), interrupting)
    assert ("interrupted", "waiting") == (result.end, result.states[1].state)
    decided = Journal.of(tmp_path / "db").open_slice
    assert decided is not None
    assert (TWO, 32) == (decided.study, decided.last)
    assert ran(sweep, tmp_path / "db").end == "done"
    assert [configs(tmp_path / "db", name) for name in (ONE, TWO)] == [
        configs(undisturbed, name) for name in (ONE, TWO)
    ]
    assert [one.study for one in Journal.of(tmp_path / "db").slices] == [ONE, ONE, TWO, TWO]


def killed(sweep: Sweep, folder: Path, beginning: str, signal_number: int) -> int:
    """Run a sweep in a forked process, which gets a signal after it told a line; return its wait status."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = run_sweep(sweep, folder, SweepRequest(), lambda text: os.write(writer, f"{text}\n".encode()))
            os._exit(130 if result.end == "interrupted" else 0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as lines:
        for line in lines:
            if line.startswith(beginning):
                break
        os.kill(child, signal_number)
        lines.read()
    return os.waitpid(child, 0)[1]


def test_a_killed_sweep_goes_on_as_if_it_had_not_been(undisturbed: Path, tmp_path: Path) -> None:
    """Kill -9 and SIGTERM in the middle of slices lose nothing; the folder is free for the next run."""
    sweep, folder = sweep_of(tmp_path), tmp_path / "db"
    assert os.WTERMSIG(killed(sweep, folder, f"{ONE}: trials 0", signal.SIGKILL)) == signal.SIGKILL
    assert os.WTERMSIG(killed(sweep, folder, f"{ONE}: begun", signal.SIGKILL)) == signal.SIGKILL
    assert os.WEXITSTATUS(killed(sweep, folder, f"{ONE}: trials", signal.SIGTERM)) == 130
    assert os.WTERMSIG(killed(sweep, folder, f"{TWO}: trials", signal.SIGKILL)) == signal.SIGKILL
    assert ran(sweep, folder).end == "done"
    assert [configs(folder, name) for name in (ONE, TWO)] == [configs(undisturbed, name) for name in (ONE, TWO)]


def test_a_database_that_was_only_begun_is_no_obstacle(tmp_path: Path) -> None:
    """A sweep that is killed while it makes a file finds one without tables."""
    sweep = sweep_of(tmp_path, RECORDED.replace("trials = 72", "trials = 2").replace(', "two"', ""))
    (tmp_path / "db").mkdir()
    connection = sqlite3.connect(sweep.studies[0].database(tmp_path / "db"))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert state_of(sweep.studies[0], tmp_path / "db").state == "waiting"
    assert ran(sweep, tmp_path / "db").states[0].state == "finished"


def test_a_study_begins_with_the_nearest_one_of_another_file(
    tmp_path: Path, gpu: Callable[[InstantH200], None]
) -> None:
    """It is copied when the study begins: without the other file it goes on with what it has."""
    gpu(Gpu())
    sweep, told = sweep_of(tmp_path, LIVE), list[str]()
    far, near, new = (one.name for one in sweep.studies)
    ran(sweep, tmp_path / "db", told)
    assert source(tmp_path / "db", far) is None
    assert source(tmp_path / "db", near) == f"{tmp_path}/db/{far}.db:{far}"
    assert source(tmp_path / "db", new) == f"{tmp_path}/db/{near}.db:{near}"
    assert any(line.startswith(f"{new}: warm start from study {near} (ROWS=64 COLS=512") for line in told)
    (tmp_path / "db" / f"{near}.db").unlink()
    ran(sweep_of(tmp_path, LIVE.replace("trials = 12", "trials = 14").replace(', "64,512"', "")), tmp_path / "db")
    assert source(tmp_path / "db", new) == f"{tmp_path}/db/{near}.db:{near}"
    assert len(configs(tmp_path / "db", new)) >= 14


def test_whoever_wants_none_gets_none(tmp_path: Path, gpu: Callable[[InstantH200], None]) -> None:
    """`--warm-start none` begins each study cold, and goes on with them."""
    gpu(Gpu())
    sweep = sweep_of(tmp_path, LIVE)
    for _ in range(2):
        ran(sweep, tmp_path / "db", warm_start="none")
    assert [source(tmp_path / "db", one.name) for one in sweep.studies] == [None, None, None]


def test_a_study_that_finds_nothing_right_is_finished(tmp_path: Path, gpu: Callable[[InstantH200], None]) -> None:
    """It is told so, and the others begin without it."""
    gpu(FailingGpu())
    sweep, told = sweep_of(tmp_path, LIVE.replace(', "64,256"', "")), list[str]()
    result = ran(sweep, tmp_path / "db", told)
    assert [(one.state, one.failed) for one in result.states] == [("finished", True)] * 2
    assert any(", no correct candidate" in line for line in told)
    done = CliRunner().invoke(app, ["sweep", "run", str(sweep.path), "--db", str(tmp_path / "db")])
    assert (1, True) == (done.exit_code, "every candidate failed" in done.stdout)


def test_a_study_that_cannot_go_on_keeps_none_of_the_others(tmp_path: Path, gpu: Callable[[InstantH200], None]) -> None:
    """Each is told with its reason, once."""
    gpu(Gpu(start=DeviceError("the GPU fell off the bus")))
    result = ran(sweep_of(tmp_path, LIVE), tmp_path / "db")
    assert list(result.refused.values()) == ["the GPU fell off the bus"] * 3


def test_a_study_that_changed_is_told_what_a_sweep_can_do(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep has no `--fresh`: its way to begin anew is another folder, whatever name the old study would get."""
    folder = shutil.copytree(undisturbed, tmp_path / "db")
    monkeypatch.setattr(import_module("evokern.search.identity"), "VERSIONS", {"random": 2})
    result = ran(sweep_of(tmp_path, RECORDED.replace("trials = 72", "trials = 76")), folder)
    assert sorted(result.refused) == [ONE, TWO]
    for told in result.refused.values():
        assert "is version 2. To start over, choose another folder with --db; " in told and "`--allow-changes`" in told


def test_a_sweep_s_budget_ends_it_and_a_larger_one_goes_on(undisturbed: Path, tmp_path: Path) -> None:
    """Time pauses in the middle of a slice, which stays decided; the candidates are the same."""
    sweep, folder = sweep_of(tmp_path, RECORDED.replace(', "two"', "")), tmp_path / "db"
    result = ran(sweep, folder, budget=0.05)
    assert ("budget", "begun") == (result.end, result.states[0].state)
    decided = Journal.of(folder).open_slice
    assert decided is not None
    assert (ONE, 32) == (decided.study, decided.last)
    assert ran(sweep, folder, budget="10m").end == "done"
    assert configs(folder, ONE) == configs(undisturbed, ONE)


def test_a_folder_is_one_sweep_s(tmp_path: Path) -> None:
    """The second is told who has it."""
    sweep = sweep_of(tmp_path)
    with sweep_lock(tmp_path / "db"), pytest.raises(StoreError, match=rf"in use by `.*\(process {os.getpid()} on "):
        ran(sweep, tmp_path / "db")


def test_other_settings_are_refused(undisturbed: Path, tmp_path: Path) -> None:
    """The message says which; nothing is changed."""
    sweep = sweep_of(tmp_path, f"{RECORDED}seed = 4\n")
    settings = r"contains study .* with different settings \(seed was 0, is 4\); restore them in "
    with pytest.raises(StudyError, match=settings):
        ran(sweep, undisturbed)


def test_the_command_line_runs_shows_and_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each slice and study, totals at the end; JSON has name, state, best and proof of each."""
    monkeypatch.chdir(tmp_path)
    sweep_of(tmp_path, RECORDED.replace("trials = 72", "trials = 3"))
    done = CliRunner().invoke(app, ["sweep", "run", "sweep.toml"])
    assert done.exit_code == 0
    assert (
        f"{ONE}: trials 0 to 3 (the study has had fewer than two slices)\n{ONE}: finished: 3 trials, best "
        in done.stderr
    )
    assert "2 studies: 2 finished; 6 trials in " in done.stdout
    shown = CliRunner().invoke(app, ["sweep", "show", "sweep.toml", "--json"])
    studies = json.loads(shown.stdout)["studies"]
    keys = ("name", "state", "trials", "verified", "problem")
    assert [[one[key] for key in keys] for one in studies] == [
        [ONE, "finished", 3, None, "one"], [TWO, "finished", 3, None, "two"]
    ]  # fmt: skip
    assert all(one["best_us"] > 0 for one in studies)
    assert "2 studies: 2 finished" in CliRunner().invoke(app, ["sweep", "show", "sweep.toml"]).stdout


def test_the_report_has_every_study_and_slice(undisturbed: Path, tmp_path: Path) -> None:
    """One page that runs and loads nothing; names of files are text in it."""
    sweep, page = sweep_of(tmp_path), tmp_path / "sweep.html"
    words = ["sweep", "report", str(sweep.path), "-o", str(page), "--db", str(undisturbed)]
    done = CliRunner().invoke(app, words)
    assert (0, f"wrote {page}: 2 studies, ") == (done.exit_code, done.stdout[: len(f"wrote {page}: 2 studies, ")])
    text = page.read_text()
    assert [text.count(f"<td>{name}</td>") for name in (ONE, TWO)] == [3, 3]
    assert "0 to 32" in text
    assert "<script" not in text


def test_show_takes_the_folder_of_a_sweep(undisturbed: Path, tmp_path: Path) -> None:
    """It lists the studies, shows one by its name, and names the nearest where there is none."""
    db = ["--db", str(undisturbed)]
    listed = CliRunner().invoke(app, ["show", *db])
    assert [line.partition(":")[0] for line in listed.stdout.splitlines()] == [ONE, TWO]
    rows = json.loads(CliRunner().invoke(app, ["show", *db, "--json"]).stdout)["studies"]
    assert [(row["study"], row["trials"] >= 72) for row in rows] == [(ONE, True), (TWO, True)]
    assert f"{TWO}: kernel " in CliRunner().invoke(app, ["show", TWO, *db]).stdout
    absent = CliRunner().invoke(app, ["show", ONE.replace("one", "oen"), *db])
    assert (2, True) == (absent.exit_code, f"did you mean '{ONE}'?" in absent.stderr)
    assert CliRunner().invoke(app, ["show", "--db", str(tmp_path)]).exit_code == 2


SIMULATED = f"""kernel = "{DATA}/kernels/scale_rows"
problems = ["64,256"]
device = "sim:l4"
trials = 1
"""


@pytest.mark.thorough
def test_a_champion_that_nobody_verified_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that was killed before goes on with that alone, and writes the program."""
    monkeypatch.chdir(DATA)
    sweep, told = sweep_of(tmp_path, SIMULATED), list[str]()
    (tmp_path / "db").mkdir()
    (planned,) = sweep.studies
    search(planned.study, db=planned.database(tmp_path / "db"), verify=False, trust=True)
    assert state_of(planned, tmp_path / "db").state == "unverified"
    result = run_sweep(sweep, tmp_path / "db", SweepRequest(trust=True, verify=False), told.append)
    assert (result.end, result.states[0].state, told) == ("done", "unverified", [])
    result = ran(sweep, tmp_path / "db", told)
    assert ("finished", True) == (result.states[0].state, result.states[0].verified)
    assert not any("trials 0" in line for line in told)
    done = CliRunner().invoke(app, ["sweep", "export", str(sweep.path), "-o", str(tmp_path / "out"), "--db",
                                    str(tmp_path / "db")])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert planned.name in (tmp_path / "out" / f"{planned.name}.cu").read_text()


@pytest.mark.thorough
def test_a_recording_has_nothing_to_export(undisturbed: Path, tmp_path: Path) -> None:
    """Each study says why; the exit code is 1."""
    sweep = sweep_of(tmp_path)
    words = ["sweep", "export", str(sweep.path), "-o", str(tmp_path / "out"), "--db", str(undisturbed)]
    done = CliRunner().invoke(app, words)
    assert (1, 2) == (done.exit_code, done.stderr.count("replayed from a recording"))
