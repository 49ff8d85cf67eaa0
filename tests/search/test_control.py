"""A control beside the sampler: every second trial, seen by nobody else, and a plain answer on who did better."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import go, small_table, study, tiny_table, trials_of
from stored_studies import reseal
from typer.testing import CliRunner

from evokern.analysis.control_verdict import control_verdict, cost_text
from evokern.api import resume
from evokern.cli.app import app
from evokern.cli.panel import line, panel
from evokern.device.recorded.table import Table, TableDevice
from evokern.errors import StudyError
from evokern.search import Progress
from evokern.store import open_readonly
from evokern.study.file import read_study
from evokern.study.settings import SamplerSettings
from evokern.study.trial import Outcome, Trial


def configs(trials: list[Trial], *, control: bool) -> list[Any]:
    return [trial.config for trial in trials if trial.control is control]


@pytest.mark.thorough
@pytest.mark.parametrize(("table", "sampler"), [(small_table(), "evo"), (tiny_table(), "evo"), (tiny_table(), "nsga2")])
def test_a_sampler_searches_as_if_it_were_alone(table: Table, sampler: str, tmp_path: Path) -> None:
    """Half of the trials are the sampler's: those of a search without a control at half the window, one by one.

    What the control proposed and found reaches it in no way, programs that the control timed first included.
    """
    go(tmp_path / "a.db", table, trials=80, sampler=sampler, control="random", max_in_flight=8)
    go(tmp_path / "b.db", table, trials=40, sampler=sampler, max_in_flight=4)
    both, alone = trials_of(tmp_path / "a.db"), trials_of(tmp_path / "b.db")
    mine = configs(both, control=False)
    assert min(len(mine), len(alone)) > 20
    assert all(one.config == other for one, other in zip(alone, mine, strict=False))
    assert [trial.control for trial in both] == [number % 2 == 1 for number in range(len(both))]
    copies = [(t.number, t.evaluation.evidence["duplicate_of"]) for t in both if t.outcome is Outcome.DUPLICATE]
    shared = [number for number, first in copies if number % 2 == 0 and first % 2]
    assert shared or table is small_table()


@pytest.mark.thorough
def test_the_control_is_random_search(tmp_path: Path) -> None:
    """The control's candidates do not depend on the sampler beside it, and come from another seed than the study's."""
    go(tmp_path / "a.db", trials=60, control="random")
    go(tmp_path / "b.db", trials=60, sampler="tpe", control="random")
    go(tmp_path / "c.db", trials=60, sampler="random")
    one, two = (configs(trials_of(tmp_path / name), control=True) for name in ("a.db", "b.db"))
    least = min(len(one), len(two))
    assert least > 20
    assert one[:least] == two[:least]
    assert one[:10] != [trial.config for trial in trials_of(tmp_path / "c.db")][:10]


@pytest.mark.thorough
@pytest.mark.parametrize("parts", [(1, 40), (7, 8, 20, 40)])
def test_sessions_and_workers_change_no_trial(parts: tuple[int, ...], tmp_path: Path) -> None:
    """However often it is resumed and however many workers answer, the trials of both arms are the same."""
    db, whole = tmp_path / "a.db", tmp_path / "whole.db"
    go(whole, trials=40, control="random", max_in_flight=5)
    go(db, trials=parts[0], control="random", max_in_flight=5)
    for trials in parts[1:]:
        resume(db=db, trials=trials, device=TableDevice(small_table(), workers=3, delay_s=0.001))
    one, other = trials_of(whole), trials_of(db)
    assert [(t.config, t.outcome, t.proposal) for t in one] == [(t.config, t.outcome, t.proposal) for t in other]


def test_parents_are_named_by_their_numbers_in_the_study(tmp_path: Path) -> None:
    """A child's parents are earlier trials of the sampler's own arm."""
    go(tmp_path / "a.db", trials=100, control="random")
    parents = [(t.number, p) for t in trials_of(tmp_path / "a.db") for p in t.proposal.info.get("parents", ())]
    assert parents
    assert all(parent < number and parent % 2 == 0 for number, parent in parents)


def test_a_space_is_exhausted_by_either_arm(tmp_path: Path) -> None:
    """The search ends when every feasible candidate has been tried, and the champion is the fastest of both arms."""
    table = tiny_table()
    found = go(tmp_path / "a.db", table, control="random")
    assert found.end == "exhausted"
    assert found.best is not None
    assert found.best.evaluation.time_us == min(a.time_us for a in table.answers.values() if a.time_us)


@pytest.mark.thorough
def test_show_tells_both_arms(tmp_path: Path) -> None:
    """`show` and `--json` give trials, best and the time to reach it for each arm; one trial says which arm drew it."""
    db = tmp_path / "a.db"
    found = go(db, trials=120, control="random")
    table = found.summary["control"]
    for arm, drawn in zip(table["arms"], (False, True), strict=True):
        mine = [t for t in trials_of(db) if t.control is drawn]
        timed = [t for t in mine if t.outcome in (Outcome.MEASURED, Outcome.DUPLICATE) and t.evaluation.time_us]
        best = min(timed, key=lambda t: (t.evaluation.time_us, t.number))
        assert (arm["control"], arm["trials"], arm["best_us"]) == (drawn, len(mine), best.evaluation.time_us)
        assert arm["best_after"]["trial"] == best.number
        assert arm["best_after"]["elapsed_s"] == pytest.approx(best.seconds)
    assert table["advantage"] == table["arms"][1]["best_us"] / table["arms"][0]["best_us"]
    text = CliRunner().invoke(app, ["show", "--db", str(db)]).output
    assert "control: evo beats random search" in text
    assert "random (control)" in text
    shown = CliRunner().invoke(app, ["show", "--json", "--db", str(db)]).output
    assert json.loads(shown)["control"] == table
    assert json.loads(CliRunner().invoke(app, ["show", "--trial", "3", "--json", "--db", str(db)]).output)["control"]
    assert "trial 3 (control)" in CliRunner().invoke(app, ["show", "--trial", "3", "--db", str(db)]).output


def test_the_panel_tells_both_arms(tmp_path: Path) -> None:
    """While it runs, panel and line give each arm's best and trials; without a control they say nothing of it."""
    events: list[Progress] = []
    go(tmp_path / "a.db", trials=40, control="random", on_progress=events.append)
    assert [(arm.sampler, arm.control) for arm in events[-1].arms] == [("evo", False), ("random", True)]
    assert sum(arm.trials for arm in events[-1].arms) == events[-1].trials
    assert "random (control)" in line(events[-1])
    assert "\ncontrol " in str(panel(events[-1]).renderable)  # type: ignore[union-attr]
    go(tmp_path / "b.db", trials=4, on_progress=events.append)
    assert "control" not in line(events[-1])


def _arm(name: str, best_us: float | None, evaluated: int) -> dict[str, Any]:
    reached = {"trial": 1, "evaluated": evaluated, "elapsed_s": 1.0}
    return {"sampler": name, "best_us": best_us, "evaluated": 50, "best_after": reached, "matched_after": reached}


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (5.0, 6.0, "evo beats random search: 5.0 µs is 1.20× as fast as the best of"),
        (6.0, 5.0, "evo does not beat random search: random search found 5.0 µs, evo 6.0 µs"),
        (5.0, 5.04, "a tie: evo found 5.0 µs, random search 5.04 µs"),
        (None, 5.0, "no measured trial from evo"),
        (5.0, None, "evo is ahead: none of the 50 random trials was timed to the end"),
    ],
)
def test_the_verdict_is_plain(ours: float | None, theirs: float | None, words: str) -> None:
    """Better, worse, within the margin of equivalence, or not to be said; a control that found nothing lost."""
    ratio = theirs / ours if ours and theirs else None
    control = {"arms": [_arm("evo", ours, 7), _arm("random", theirs, 40)], "advantage": ratio}
    assert words in control_verdict(control, "µs", str)


def test_a_control_is_fixed_when_a_study_begins(tmp_path: Path) -> None:
    """Another control than the study began with is refused, whatever `--go-on` says; the unsaid one stays."""
    go(tmp_path / "a.db", trials=5)
    with pytest.raises(StudyError, match=r"small .*without a control.*with a random control.*fresh=True"):
        go(tmp_path / "a.db", trials=8, control="random", allow_changes=True)
    go(tmp_path / "b.db", trials=6, control="random")
    with pytest.raises(StudyError, match=r"with a random control.*without a control"):
        go(tmp_path / "b.db", trials=8, control="none")
    go(tmp_path / "b.db", trials=8)
    assert sum(trial.control for trial in trials_of(tmp_path / "b.db")) == 4


def test_controls_that_say_nothing_are_refused(tmp_path: Path) -> None:
    """Random beside random, what is no control, and what is no price."""
    for keywords, message in (
        ({"sampler": "random", "control": "random"}, "control and sampler are both"),
        ({"control": "tpe"}, "control = 'tpe'"),
        ({"cost_per_hour": -1.0}, "cost_per_hour = -1"),
    ):
        with pytest.raises(StudyError, match=message):
            go(tmp_path / "a.db", **keywords)  # type: ignore[arg-type]
    with pytest.raises(StudyError, match="control and sampler are both"):
        study(sampler=SamplerSettings("random"), control="random")
    path = tmp_path / "mine.toml"
    path.write_text('kernel = "a"\nproblems = "1"\ncontrol = "random"\ncost_per_hour = nan\n')
    with pytest.raises(StudyError, match="cost_per_hour = nan"):
        read_study(path)


def test_what_a_search_cost_is_told(tmp_path: Path) -> None:
    """Price of an hour times the study's hours, from file or command line, changed at any time."""
    db = tmp_path / "a.db"
    slow = TableDevice(small_table(), delay_s=0.02)
    assert go(db, trials=3).summary["cost"] is None
    found = go(db, study=study(cost_per_hour=7200.0, cost_unit="EUR"), trials=12, device=slow).summary
    assert found["cost"] == {"total": pytest.approx(2 * found["elapsed_s"]), "per_hour": 7200.0, "unit": "EUR"}
    assert found["cost"]["total"] > 0.2
    again = resume(db=db, trials=12, cost_per_hour=3600.0, device=TableDevice(small_table()))
    assert again.summary["cost"]["per_hour"] == 3600.0
    assert again.summary["cost"]["unit"] == "EUR"
    text = CliRunner().invoke(app, ["show", "--db", str(db)]).output
    assert f"cost: {cost_text(again.summary['cost'])}" in text
    assert "EUR (3600.00 EUR per hour)" in text


def test_files_from_before_controls_are_read_and_searched_on(tmp_path: Path) -> None:
    """A database without the columns is shown as it is, and gets them when it is searched on."""
    db, whole = tmp_path / "old.db", tmp_path / "whole.db"
    go(db, trials=6)
    with sqlite3.connect(db) as old:
        old.execute("ALTER TABLE evokern_trials DROP COLUMN control")
        for column in ("control", "cost_per_hour", "cost_unit"):
            old.execute(f"ALTER TABLE evokern_studies DROP COLUMN {column}")
        old.execute("UPDATE evokern_studies SET settings = json_remove(settings, '$.control')")
        old.execute("DELETE FROM _sqlite_migrations WHERE name = 'm003_control_and_price'")
    reseal(db)
    with open_readonly(db) as reader:
        summary = reader.summary(reader.study())
    assert (summary["control"], summary["cost"]) == (None, None)
    go(db, trials=12)
    go(whole, trials=12)
    assert [t.config for t in trials_of(db)] == [t.config for t in trials_of(whole)]
