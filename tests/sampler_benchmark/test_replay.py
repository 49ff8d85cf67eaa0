"""Replay: the same loop as a search, fractions of the optimum that mean what they say, and a score with known ends."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from engine_helpers import go, small_table, tiny_table
from kernel_tuner_files import kernel_tuner_cache, write_json
from paths import DATA
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.declaration.genes import Config, Parameter
from evokern.declaration.space import Space
from evokern.device.contract import Task
from evokern.device.recorded.table import Table, TableDevice, measured
from evokern.errors import StudyError, UsageError
from evokern.export.t4 import t4
from evokern.report.pages.compare_page import replay_page
from evokern.sampler_benchmark import Repeat, Settings, replay, results
from evokern.sampler_benchmark.results import Curve, one_repeat
from evokern.sampler_benchmark.score import half_width, random_fractions, recording_notes, score
from evokern.samplers import Sampler, make_sampler
from evokern.store import open_readonly, open_recording
from evokern.study.settings import Study
from evokern.study.trial import Evaluation, Outcome

SMALL = DATA / "table_small.json.gz"


def _invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def _ladder(failing: int = 0) -> Table:
    """20 configurations that take 1, 2, … µs, and some that crash."""
    genes = (Parameter("STEP", tuple(range(1, 21 + failing))),)
    answers = {Config({"STEP": step}): measured(float(step)) for step in range(1, 21)}
    crashed = Evaluation(Outcome.CRASHED, evidence={"error": "illegal address"})
    answers |= {Config({"STEP": step}): crashed for step in range(21, 21 + failing)}
    return Table("ladder", genes, answers, tiny_table().profile, seconds=dict.fromkeys(answers, 2.0))


@pytest.mark.thorough
def test_the_json_is_what_is_promised() -> None:
    """Space, trials, and per sampler repeats, mean, worst and deviation at each checkpoint, and a score."""
    code, text, _ = _invoke(
        "replay", str(SMALL), "--samplers", "random,nsga2", "--trials", "60", "--repeats", "2", "--json"
    )
    told = json.loads(text)
    assert code == 0
    assert (told["space"], told["trials"], list(told)) == (
        "table_small",
        60,
        ["space", "trials", "in_flight", "oracle", "samplers", "notes"],
    )
    assert [row["sampler"] for row in told["samplers"]] == ["random", "nsga2"]
    for row in told["samplers"]:
        assert list(row) == ["sampler", "repeats", "fraction_of_optimum", "worst", "sd", "score"]
        assert row["repeats"] == 2
        for key in ("fraction_of_optimum", "worst", "sd"):
            assert list(row[key]) == ["50", "60"]
        assert 0 < row["worst"]["60"] <= row["fraction_of_optimum"]["60"] <= 1
        assert row["fraction_of_optimum"]["50"] <= row["fraction_of_optimum"]["60"]


def test_a_fraction_is_the_optimum_over_the_best_of_unique_evaluations() -> None:
    """Each evaluation is another configuration; failures count, and the curve follows the best."""
    table, curve = _ladder(failing=5), Curve()
    found = one_repeat(table, Settings("ladder", 25), "random", 4, curve)
    assert len(set(curve.configs)) == len(curve.configs) == 25
    best: float | None = None
    for config, told in zip(curve.configs, found.best_us, strict=True):
        time_us = table.answers[config].time_us
        best = time_us if best is None else best if time_us is None else min(best, time_us)
        assert told == best
    assert found.best_us[-1] == table.optimum_us == 1.0


@pytest.mark.thorough
def test_known_machine_code_is_no_evaluation() -> None:
    """Duplicates cost nothing: what counts has machine code of its own, and none of it is infeasible."""
    table, curve = small_table(), Curve()
    one_repeat(table, Settings("small", 60), "evo", 1, curve)
    prints = [table.answers[config].fingerprint for config in curve.configs]
    known = [fingerprint for fingerprint in prints if fingerprint]
    assert len(known) == len(set(known))
    assert all(table.answers[config].outcome is not Outcome.INFEASIBLE for config in curve.configs)


@pytest.mark.thorough
def test_a_replay_is_the_same_again_side_by_side_or_not() -> None:
    """Seeds decide, not the number of jobs."""
    arguments = {"samplers": ("evo", "random"), "trials": 12, "repeats": 2, "seed": 5}
    one = replay(SMALL, **arguments, jobs=1)
    two = replay(SMALL, **arguments, jobs=2)
    assert one == two
    other = replay(SMALL, **{**arguments, "samplers": ("random",), "seed": 6})
    assert one.samplers[1].curves != other.samplers[0].curves


def test_the_clock_is_that_of_the_recording() -> None:
    """Evaluations take the seconds they were recorded with, and a budget in them ends a search."""
    table = _ladder()
    found = one_repeat(table, Settings("ladder", 20), "random", 1)
    assert (len(found.best_us), found.elapsed_s) == (20, 40.0)
    found = one_repeat(table, Settings("ladder", 20, window=1, budget_s=10.0), "random", 1)
    assert len(found.best_us) == 5


def test_samplers_ask_what_is_recorded_unless_they_are_handed_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay gives what a live study has: constraints to ask, few in flight at first; `--oracle` gives the list."""
    table = _ladder()
    assert [c for c in table.space().grid() if table.space().feasible(c)] == list(table.answers)
    assert re.findall(r"\d+", str(Settings("ladder").in_flight)) == ["4", "1", "5", "96"]
    given: list[Space] = []

    def spied(name: str, space: Space, *rest: object) -> Sampler:
        given.append(space)
        return make_sampler(name, space, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(results, "make_sampler", spied)
    for oracle in (False, True):
        one_repeat(table, Settings("ladder", 4, oracle=oracle), "evo", 1)
    assert [None, tuple(table.answers)] == [space.table for space in given]


def test_what_a_search_sought_out_is_a_list() -> None:
    """No constraint describes what one search tried of a large space: samplers have its list, and that is said."""
    table = replace(_ladder(), visited=len(_ladder().answers) - 1)
    assert tuple(table.answers) == table.space().table
    device = TableDevice(table)
    study = Study("s", kernel=table.name, problems=(table.name,))
    try:
        assert "the list of candidates" in device.start(Task(table.kernel(), (), study)).notes[0]
    finally:
        device.close()
    whole = replace(table, visited=table.combinations)
    assert not whole.is_partial_search
    assert whole.space().table is None


def test_a_budget_needs_a_recording_that_tells_the_time() -> None:
    """Without recorded durations a budget would be over at once, or never."""
    with pytest.raises(UsageError, match=r"contains no durations.*--budget"):
        replay(SMALL, samplers=("random",), trials=5, repeats=1, budget="1m")


def test_random_search_is_computed_as_it_would_be_found() -> None:
    """The expected curve agrees with random draws without replacement, failures included."""
    table, rng, rounds = _ladder(failing=6), random.Random(1), 4000
    expected = random_fractions(table, 12)
    sums = [0.0] * 12
    for _ in range(rounds):
        best = 0.0
        for index, config in enumerate(rng.sample(list(table.answers), 12)):
            time_us = table.answers[config].time_us
            best = max(best, 1.0 / time_us if time_us else 0.0)
            sums[index] += best
    assert expected == pytest.approx([total / rounds for total in sums], abs=0.02)
    assert random_fractions(_ladder(), 20)[-1] == pytest.approx(1.0)


@pytest.mark.slow
def test_the_score_has_its_ends_where_they_are_promised() -> None:
    """Random search is 0, the optimum at once 1, worse than random below 0."""
    expected = random_fractions(_ladder(failing=6), 15)
    assert score([expected], expected) == pytest.approx(0.0)
    assert score([[1.0] * 15], expected) == pytest.approx(1.0)
    assert score([[0.0] * 15], expected) < 0
    repeats = [one_repeat(_ladder(failing=6), Settings("ladder", 15), "random", seed).best_us for seed in range(200)]
    curves = [[1.0 / best if best else 0.0 for best in repeat] for repeat in repeats]
    assert score(curves, expected) == pytest.approx(0.0, abs=0.08)


def test_an_exhausted_space_keeps_what_it_has(tmp_path: Path) -> None:
    """More trials than configurations: the curve goes on at its end, and a note says so."""
    path = write_json(tmp_path / "toy.json", kernel_tuner_cache())
    found = replay(path, samplers=("random",), trials=60, repeats=1)
    assert found.samplers[0].at(60) == [1.0]
    assert found.notes[0] == "recording toy has only 14 configurations"
    assert ["scores are meaningless" in note for note in found.notes] == [False, True]
    assert not replay(SMALL, samplers=("random",), trials=5, repeats=1).notes


def test_intervals_are_students() -> None:
    """Half the width for 1, 2, 3: 4.303 standard errors; nothing for a single repeat."""
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert half_width([1.0]) == 0.0


def test_the_plot_is_one_file_with_every_sampler(tmp_path: Path) -> None:
    """Nothing is loaded from elsewhere; text that came from a file is escaped."""
    made = replay(SMALL, samplers=("evo", "random"), trials=12, repeats=2)
    page = replay_page(type(made)("<b>&", 12, made.optimum_us, made.samplers, made.random_curve))
    assert "&lt;b&gt;&amp;" in page
    assert not re.search(r"<script|https?://|src=|<b>", page)
    assert page.count("<polyline") == 3
    file = tmp_path / "out.html"
    code, text, _ = _invoke(
        *("replay", str(SMALL), "--samplers", "random", "--trials", "5", "--repeats", "1", "--plot", str(file), "-q")
    )
    assert (code, text.splitlines()[-1]) == (0, f"wrote {file}")
    assert file.read_text().startswith("<!doctype html>")


def test_progress_is_told_for_each_repeat() -> None:
    """Whoever waits sees which search ended, of how many."""
    seen: list[tuple[int, int, str]] = []

    def keep(done: int, total: int, repeat: Repeat) -> None:
        seen.append((done, total, repeat.sampler))

    replay(SMALL, samplers=("random", "grid"), trials=4, repeats=2, on_repeat=keep)
    assert seen == [(1, 4, "random"), (2, 4, "random"), (3, 4, "grid"), (4, 4, "grid")]


def test_progress_is_a_line_per_sampler() -> None:
    """Where many searches are quick, a line tells of all those of a sampler."""
    _, _, remarks = _invoke("replay", str(SMALL), "--samplers", "random,grid", "--trials", "4", "--repeats", "5")
    assert [text.partition(" is finished, best ")[0] for text in remarks.splitlines()] == [
        "5 of 10: random",
        "10 of 10: grid",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.json",), "there is no recording none.json; use a Kernel Tuner cache or T4 file"),
        (("none.db:some",), "there is no recording none.db:some, nor a database none.db"),
        ((".",), "cannot read recording .: Is a directory; use a Kernel Tuner cache"),
        ((str(SMALL), "--samplers", "evi"), "did you mean 'evo'"),
        ((str(SMALL), "--samplers", ","), "names no sampler"),
        ((str(SMALL), "--plot", "/nowhere/out.html"), "folder /nowhere does not exist"),
        ((str(SMALL), "--budget", "soon"), "'soon' is not a duration"),
    ],
)
def test_mistakes_are_named_before_anything_runs(arguments: tuple[str, ...], message: str) -> None:
    """One message, exit code 2, and no repeat was begun."""
    code, text, remarks = _invoke("replay", *arguments)
    assert (code, text, len(remarks.splitlines())) == (2, "", 1)
    assert message in remarks


def test_numbers_out_of_range_are_refused() -> None:
    """The library says so too."""
    for changes in ({"repeats": 0}, {"trials": 0}, {"jobs": 0}, {"window": 0}):
        with pytest.raises(UsageError, match=r"; use (at least|a number)"):
            replay(SMALL, **{"samplers": ("random",), "trials": 3, "repeats": 1, **changes})
    with pytest.raises(StudyError, match="no sampler"):
        replay(SMALL, samplers=("evi",), trials=3, repeats=1)


@pytest.mark.thorough
def test_a_recorded_search_says_what_its_scores_are_worth(tmp_path: Path) -> None:
    """What a search visited is no space to compare samplers on, and ties are decided by chance: both are said.

    That holds for a database and for its T4 export; a table that covers its space, and a search that did, have no note.
    """
    db = tmp_path / "runs.db"
    name = go(db, trials=101, sampler="random").study
    told = replay(f"{db}:{name}", samplers=("random",), trials=20, repeats=1)
    assert re.match(rf"{name} .* visited by one search by random: 1\d\d of [\d,]+\.", told.notes[0])
    assert "--sampler grid" in told.notes[0]
    with open_readonly(db) as reader:
        content = t4(reader, reader.study())
    file = write_json(tmp_path / "s.json", content)
    assert replay(file, samplers=("random",), trials=20, repeats=1).notes[0] == told.notes[0]
    whole = tmp_path / "whole.db"
    name = go(whole, tiny_table(), sampler="grid").study
    assert not [note for note in recording_notes(open_recording(f"{whole}:{name}")) if "visited" in note]
    assert recording_notes(_ladder()) == []


def test_ties_at_the_best_are_told() -> None:
    """Where a third of what was measured is as good as the best, that is said with its numbers."""
    genes = (Parameter("STEP", tuple(range(1, 31))),)
    answers = {Config({"STEP": step}): measured(5.0 if step <= 10 else float(step)) for step in range(1, 31)}
    (told,) = recording_notes(Table("flat", genes, answers, tiny_table().profile))
    assert told.startswith("10 of 30 ")
    assert "(33 %)" in told
    assert "within 1 % of the best" in told
