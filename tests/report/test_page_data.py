"""What the page's script is given: small, true to the database, whatever that holds."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from search_process import marked
from stored_studies import NASTY, multiplied, reseal, write_study
from typer.testing import CliRunner

from evokern.analysis.genes.importance import ForestFit, Forests, forest_process
from evokern.cli.app import app
from evokern.declaration.genes import Config
from evokern.measurement.roofline import RooflineBound
from evokern.report import gather, page
from evokern.report.champion import proof
from evokern.report.facts import elites, fastest
from evokern.report.first_screen import first_screen
from evokern.report.genes import matrix
from evokern.report.page_data import COLUMNS, MOST_SAMPLES, page_data, rows_of, thinned
from evokern.report.plot_marks import MARKS, mark_of
from evokern.report.plots import interval_text
from evokern.report.search_sections import tied
from evokern.store import add_proof, open_readonly
from evokern.study.trial import Outcome
from evokern.wording import microseconds


def data_of(text: str) -> dict[str, Any]:
    """Return the data of a page as a browser would read them."""
    found: list[str] = []

    class Reader(HTMLParser):
        inside = False

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.inside = tag == "script" and ("id", "data") in attrs

        def handle_data(self, data: str) -> None:
            if self.inside:
                found.append(data)

        def handle_endtag(self, tag: str) -> None:
            self.inside = False

    Reader().feed(text)
    return dict(json.loads("".join(found)))


def test_rows_are_the_trials(tmp_path: Path) -> None:
    """Each row says what its trial was: outcome, time, genes, reason, resources."""
    write_study(tmp_path / "r.db", 40, control="random")
    with open_readonly(tmp_path / "r.db") as reader:
        facts = gather(reader, None)
        data = page_data(facts, rows_of(facts))
        assert data_of(page(reader))["rows"] == data["rows"]
    for trial, row in zip(facts.trials, data["rows"], strict=True):
        told = dict(zip(COLUMNS, row, strict=True))
        assert data["outcomes"][told["outcome"]] == trial.outcome.value.replace("_", " ")
        assert told["us"] == (
            None if trial.evaluation.time_us is None else pytest.approx(trial.evaluation.time_us, rel=1e-5)
        )
        assert [gene["values"][at] for gene, at in zip(data["genes"], told["genes"], strict=True)] == [
            str(trial.config[gene.name]) for gene in facts.record.genes
        ]
        if trial.outcome is Outcome.WRONG:
            assert NASTY in data["texts"][told["reason"]]
            assert data["texts"][told["constraint"]] == "tolerance"
    fast = fastest(facts.trials, 50)
    assert set(data["differences"]) == {str(n) for n in {*fast, *elites(facts)}} - {str(fast[0])}
    assert set(data["samples"]) == {str(number) for number in fast}


def test_a_large_study_s_model_comes_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the model that this process would fit, to the last digit; the process is gone with the answer."""
    write_study(tmp_path / "r.db", 60)
    fitted: list[Forests] = []
    here = Forests.fit

    def fit(forests: Forests) -> list[ForestFit]:
        fitted.append(forests)
        return here(forests)

    monkeypatch.setattr(Forests, "fit", fit)
    monkeypatch.setenv("EVOKERN_TEST_MARK", str(tmp_path))
    with open_readonly(tmp_path / "r.db") as reader:
        mine = gather(reader, None).learned
        assert len(fitted) == 1
        with forest_process(reader.path) as none:
            assert none is None  # a small one's own process would take longer to start
        monkeypatch.setattr("evokern.analysis.genes.importance.MANY_BYTES", 0)
        with forest_process(reader.path) as forests:
            assert gather(reader, None, forests=forests).learned == mine
    assert len(fitted) == 1
    assert mine.effects
    deadline = time.monotonic() + 30  # a process that was told to end takes a moment on a busy machine
    while marked(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert marked(str(tmp_path)) == []


def test_every_outcome_has_a_mark_of_its_own_shape() -> None:
    """No two marks have one shape, so that they are told apart without their colours."""
    assert [mark_of(outcome) for outcome in Outcome]
    assert len({mark.path for mark in MARKS}) == len(MARKS)


def test_samples_are_thinned_evenly_and_say_how_many_there_were() -> None:
    """Count, median, deviations in ten thousandths."""
    assert thinned([10.0, 10.01, 9.99]) == [3, 10.0, [0, 10, -10]]
    count, _, kept = thinned([float(n) for n in range(1, 101)])
    assert (count, len(kept)) == (100, MOST_SAMPLES)


def test_ties_are_grouped_and_digits_suffice(tmp_path: Path) -> None:
    """Times within a tenth of a per cent stand together; ends of an interval are told apart, or not told."""
    write_study(tmp_path / "r.db", 50)
    multiplied(tmp_path / "r.db", 3)
    with open_readonly(tmp_path / "r.db") as reader:
        groups = tied(gather(reader, None).measured)
    assert [len(group) for group in groups[:3]] == [3, 3, 3]
    assert (interval_text(5.311, 5.312), interval_text(5.2, 5.4), interval_text(5.0, 5.0)) == (
        "5.311 to 5.312",
        "5.20 to 5.40",
        "",
    )


def test_what_a_choice_is_worth_is_that_of_the_champion(tmp_path: Path) -> None:
    """An ablation of another trial says nothing of the champion; one of it orders its choices by their worth."""
    study = write_study(tmp_path / "r.db", 60)
    with open_readonly(tmp_path / "r.db") as reader:
        best = reader.best(study)
        assert best is not None
        assert not first_screen(gather(reader, None))["variant"]["ablated"]
    changed = [gene for gene in study.genes if best.config[gene.name] != gene.default]
    assert len(changed) >= 2
    row = {"value": 1, "config": {}, "time_us": 5.0, "note": "", "ratio_ci95": [1.1, 1.3]}
    row |= {"instead_of": None, "gb_per_s": None, "occupancy": None, "speedup": None}
    alone = [{**row, "gene": gene.name, "ratio": 1.2 + place} for place, gene in enumerate(changed)]
    for trial, ablated in ((best.number + 1, False), (best.number, True)):
        add_proof(
            tmp_path / "r.db",
            study,
            "ablate",
            trial,
            {"champion": {**row, "gene": "", "ratio": 1.0}, "alone": alone, "path": []},
        )
        with open_readonly(tmp_path / "r.db") as reader:
            variant = first_screen(gather(reader, None))["variant"]
        assert variant["ablated"] is ablated
    told = [one["worth"] for one in [*variant["shown"], *variant["more"]]]
    assert told[-1] == "+20.0 % [+10.0, +30.0]"
    assert len(told) == len(changed)


def test_the_first_screen_tells_the_default_s_time_and_how_the_search_went_on(tmp_path: Path) -> None:
    """The default candidate's time stands beside the champion's; when the best came, and what came of the rest."""
    write_study(tmp_path / "r.db", 60)
    with open_readonly(tmp_path / "r.db") as reader:
        facts = gather(reader, None)
    first = first_screen(facts)
    assert "default candidate" not in [bar.name for bar in first["speed"]["bars"]]  # it was not among them
    assert first["speed"]["slower"] is False
    default = Config({gene.name: gene.default for gene in facts.record.genes})
    slowest = max(facts.measured, key=lambda trial: trial.evaluation.time_us or 0.0)
    renamed = replace(slowest, proposal=replace(slowest.proposal, config=default))
    trials = tuple(renamed if trial is slowest else trial for trial in facts.trials)
    told = first_screen(replace(facts, trials=trials, baseline=("sdpa", 1.0)))["speed"]
    bars = {bar.name: bar.words for bar in told["bars"]}
    assert bars["default candidate"] == f"{microseconds(slowest.evaluation.time_us or 0.0)} µs"
    assert told["slower"] is True

    evaluated = [trial for trial in facts.trials if trial.outcome.evaluated]
    assert facts.best is not None
    place = [trial.number for trial in evaluated].index(facts.best.number) + 1
    nth = re.search(
        rf"trial {facts.best.number} \(its (\d+)\w\w of {len(evaluated)} evaluated trials\)", first["progress"]
    )
    assert nth is not None
    assert int(nth[1]) == place
    cut = replace(facts, curves={"evo": facts.trials[:4]})
    assert first_screen(cut)["progress"] == ""


def test_what_an_ablation_found_faster_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A champion that is faster without one of its choices is no end of a search: the first screen names them."""
    study = write_study(tmp_path / "r.db", 60)
    with open_readonly(tmp_path / "r.db") as reader:
        best = reader.best(study)
    assert best is not None
    one, two, *_ = (gene for gene in study.genes if best.config[gene.name] != gene.default)
    row = {"config": {}, "note": "", "ratio_ci95": None, "instead_of": None, "gb_per_s": None}
    row |= {"occupancy": None, "speedup": None}
    alone = [
        {**row, "gene": one.name, "value": one.default, "time_us": 4.5, "ratio": 0.9},
        {**row, "gene": two.name, "value": two.default, "time_us": 4.99, "ratio": 0.999},
    ]
    champion = {**row, "gene": "", "value": None, "time_us": 5.0, "ratio": 1.0}
    found = {"champion": champion, "alone": alone, "path": []}
    add_proof(tmp_path / "r.db", study, "ablate", best.number, found)
    with open_readonly(tmp_path / "r.db") as reader:
        told = first_screen(gather(reader, None))["variant"]["faster"]
        assert told.startswith("Faster")
        assert told.endswith(f" not verified: {one.name}={one.default} (4.50 µs)")
        assert f"{one.name}={one.default} (4.50" in page(reader)
        monkeypatch.setattr(sys.modules[first_screen.__module__], "CHOICES", 1)
        variant = first_screen(gather(reader, None))["variant"]
    # On the way from the default may stand something faster still.
    way = [champion | {"ratio": 1.3}, alone[0] | {"time_us": 5.2, "ratio": 1.04}]
    way += [{**row, "gene": two.name, "value": two.default, "time_us": 4.0, "ratio": 0.8}, champion]
    add_proof(tmp_path / "r.db", study, "ablate", best.number, found | {"path": way})
    with open_readonly(tmp_path / "r.db") as reader:
        told = first_screen(gather(reader, None))["variant"]["faster"]
    changes = f"{one.name}={one.default}, {two.name}={two.default}"
    assert told.startswith("Faster")
    assert told.endswith(f" not verified: the default with {changes} (4.00 µs)")
    # What is as fast with fewer changes is the better program.
    changed = sum(best.config[gene.name] != gene.default for gene in study.genes)
    assert changed > 1
    way = [champion | {"ratio": 1.3}, alone[1] | {"time_us": 5.04, "ratio": 1.008}, alone[1], champion]
    add_proof(tmp_path / "r.db", study, "ablate", best.number, found | {"path": way, "alone": alone[1:]})
    with open_readonly(tmp_path / "r.db") as reader:
        told = first_screen(gather(reader, None))["variant"]["faster"]
    assert told.startswith(f"As fast with 1 of the {changed} changes")
    assert told.endswith(f" not verified: the default with {two.name}={two.default} (5.04 µs)")
    way[0] = champion | {"time_us": 5.01, "ratio": 1.002}
    add_proof(tmp_path / "r.db", study, "ablate", best.number, found | {"path": way, "alone": alone[1:]})
    with open_readonly(tmp_path / "r.db") as reader:
        assert first_screen(gather(reader, None))["variant"]["faster"] == "As fast: the default (5.01 µs)"
    assert [row["gene"] for row in variant["shown"]] == [one.name], "it is worth least, and not folded away"
    assert one.name not in [row["gene"] for row in variant["more"]]


def test_trials_that_are_as_fast_as_the_champion_are_counted(tmp_path: Path) -> None:
    """Those within a tie, so that nobody takes the first of many for the only one; refuted ones do not count."""
    write_study(tmp_path / "r.db", 60)
    with open_readonly(tmp_path / "r.db") as reader:
        facts = gather(reader, None)
    assert facts.best is not None
    best_us = facts.best.evaluation.time_us or 0.0
    others = [t for t in facts.measured if t.number != facts.best.number]
    assert len(others) > 3
    factors = (1.002, 1.0099, 1.02, 0.5)
    changed = {
        t.number: replace(t, evaluation=replace(t.evaluation, time_us=best_us * factor))
        for t, factor in zip(others, [*factors, *[3.0] * len(others)], strict=False)
    }
    told = replace(facts, trials=tuple(changed.get(t.number, t) for t in facts.trials))
    assert first_screen(told)["speed"]["near"].startswith("2 other trials within 1 % ")
    refuted = replace(told, refuted={others[0].number: "fuzz: off"})
    assert first_screen(refuted)["speed"]["near"].startswith("1 other trial within 1 % ")
    # After a playoff times of the search are compared with the search's time of the champion.
    played = replace(facts.best.evaluation, time_us=2 * best_us, evidence={"search_time_us": best_us})
    elsewhere = replace(told, best=replace(facts.best, evaluation=played))
    assert first_screen(elsewhere)["speed"]["near"].startswith("2 other trials within 1 % ")
    alone = {number: replace(t, evaluation=replace(t.evaluation, time_us=9e3)) for number, t in changed.items()}
    told = replace(facts, trials=tuple(alone.get(t.number, t) for t in facts.trials))
    assert first_screen(told)["speed"]["near"] == ""


def test_the_speed_card_tells_limit_from_bound_and_what_the_control_timed(tmp_path: Path) -> None:
    """What sets the chip's limit and what bounds the champion are two things; the control's share was really timed."""
    write_study(tmp_path / "r.db", 60, control="random")
    with open_readonly(tmp_path / "r.db") as reader:
        facts = gather(reader, None)
    assert facts.best is not None
    evidence = {**facts.best.evaluation.evidence, "bound": "latency-bound"}
    best = replace(facts.best, evaluation=replace(facts.best.evaluation, evidence=evidence))
    first = first_screen(replace(facts, best=best, limit=RooflineBound(1.0, 0.2, "operations", None, "f16")))
    assert first["speed"]["limit"].startswith("20 % of the roofline bound")
    assert "compute (f16) at " in first["speed"]["limit"]
    assert first["speed"]["bound"] == "latency-bound"
    drawn = [trial for trial in facts.trials if trial.control]
    timed = sum(trial.outcome is Outcome.MEASURED for trial in drawn)
    assert first["control"] == f"{timed} of {len(drawn)} random trials were timed", "the default was not among them"
    config = Config({gene.name: gene.default for gene in facts.record.genes})
    own = next(trial for trial in facts.measured if not trial.control)
    default = replace(own, proposal=replace(own.proposal, config=config))
    trials = tuple(default if trial is own else trial for trial in facts.trials)
    told = first_screen(replace(facts, trials=trials))["control"]
    assert "default candidate" in told
    assert told.endswith(f" {microseconds(own.evaluation.time_us or 0.0)} µs")


def test_values_that_were_never_right_are_hatched(tmp_path: Path) -> None:
    """A cell says how often its value was tried in vain; one that was not tried is no failure."""
    write_study(tmp_path / "r.db", 30, only_wrong=True)
    with open_readonly(tmp_path / "r.db") as reader:
        facts = gather(reader, None)
    tried = {(name, one.value): one.tried for name, values in facts.values.items() for one in values}
    (name, value), count = next((key, count) for key, count in tried.items() if count > 1)
    cells = {(gene, cell.text): cell for gene, row in matrix(facts)["genes"] for cell in row}
    cell = cells[name, str(value)]
    assert (cell.note, cell.kind) == (f"0/{count} correct", "none")
    assert cell.tip.startswith(f"{count} trials: 0 of {count} checked")
    untried = next(key for key, tried_of in tried.items() if not tried_of) if 0 in tried.values() else None
    assert untried is None or cells[untried[0], str(untried[1])].link == ""


def test_the_gate_s_figures_are_words(tmp_path: Path) -> None:
    """What the gate measured has names that a reader knows; what has none keeps its own, and nothing is left out."""
    write_study(tmp_path / "r.db", 20)
    worst = {"output": "o", "index": [1, 7], "got": 0.5, "expected": 0.25, "allowed": 1e-3, "input_set": "equal_rows"}
    checks = {"guard_bytes": 0, "of_tolerance": {"equal_rows": 0.25}, "new_check": 3}
    timed = {"calls": 44, "drawn": [1], "changed": ["q"], "kept": 6144, "replays": 12}
    report = {"relative_error": 1e-4, "runs": 2, "worst": worst, "checks": checks, "timed_calls": timed, "other": 5}
    with open_readonly(tmp_path / "r.db") as reader:
        facts = gather(reader, None)
    assert facts.best is not None
    bounded = {**report, "tolerance_spent": 0.5, "worst": worst | {"limit": "bound"}}
    best = replace(facts.best, evaluation=replace(facts.best.evaluation, gate={"2,8": bounded}))
    ((_, table),) = proof(replace(facts, best=best))["gate"]
    assert {"root-mean-square error ÷ bound", "largest error ÷ bound, equal rows inputs", "element closest to its bound"
            } <= set(dict(table.rows))  # fmt: skip
    infinite = {"worst": worst | {"got": "inf", "expected": "inf", "allowed": float("inf")}}
    damaged = (0.5, {"checks": 3.0}, {"checks": {"of_tolerance": [2]}}, {"worst": {"index": "x"}, "timed_calls": 3})
    odd_ones = (*damaged, {"checks": None}, infinite)
    for found, odd in ((report, False), *((one, True) for one in odd_ones)):
        best = replace(facts.best, evaluation=replace(facts.best.evaluation, gate={"2,8": found}))
        ((problem, table),) = proof(replace(facts, best=best))["gate"]
        assert problem == "2,8"
        assert odd or dict(table.rows) == {
            "relative error": "0.0001",
            "runs per input": "2",
            "largest error ÷ tolerance, equal rows inputs": "0.25",
            "bytes changed outside the buffers": "0",
            "new check": "3",
            "element closest to its tolerance": "o[1, 7] is 0.5, expected 0.25 within 0.001 (equal rows inputs)",
            "changes between timed calls": "changed in one of 44 graph calls: q; 6144 elements compared",
            "other": "5",
        }


@pytest.mark.parametrize("trials", [0, 20])
def test_without_a_measured_trial_the_page_says_so(trials: int, tmp_path: Path) -> None:
    """No trial, or only wrong ones: a page, which says that there is no champion."""
    write_study(tmp_path / "r.db", trials, only_wrong=True)
    done = CliRunner().invoke(app, ["report", "--db", str(tmp_path / "r.db"), "-o", str(tmp_path / "r.html")])
    assert done.exit_code == 0, done.stderr
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "No trial has been measured, so there is no champion." in text
    assert len(data_of(text)["rows"]) == trials


@pytest.mark.parametrize("name", ["first_tables", "with_proofs_and_priors", "with_secret"])
def test_a_database_of_an_older_schema_is_reported_on(name: str, tmp_path: Path) -> None:
    """Its page has its trials, and the file stays as it is."""
    path = tmp_path / "old.db"
    path.write_bytes(gzip.decompress((ROOT / "tests" / "data" / "databases" / f"{name}.db.gz").read_bytes()))
    before = path.read_bytes()
    with open_readonly(path) as reader:
        study = reader.study()
        rows = data_of(page(reader))["rows"]
        assert [row[0] for row in rows] == [trial.number for trial in reader.trials(study)]
    assert len(rows) > 0
    assert path.read_bytes() == before


def test_names_that_hold_markup_stay_names(tmp_path: Path) -> None:
    """A script's end, a comment's begin and quotes in names and values come back as they were."""
    name = "</script><!--<script>'\"&\u2028"
    path = tmp_path / "r.db"
    write_study(path, 5)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE evokern_studies SET name = ?", [name])
    reseal(path)
    with open_readonly(path) as reader:
        text = page(reader)
    assert data_of(text)["study"] == name
    assert text.count("</script>") == 2
    assert "<!--" not in text


@pytest.mark.thorough
def test_five_thousand_trials_make_a_page_of_three_megabytes(tmp_path: Path) -> None:
    """At most 3 MB with 5,000 trials; the processor's time for making it is bounded (3 s of an idle core)."""
    text, spent = _made(tmp_path / "r.db", 100)
    assert len(data_of(text)["rows"]) == 5000
    assert len(text.encode()) <= 3e6
    assert spent <= 6, "twice what it takes where nothing else runs"


@pytest.mark.slow
def test_twenty_thousand_trials_make_a_page(tmp_path: Path) -> None:
    """Whole, and within a minute."""
    text, spent = _made(tmp_path / "r.db", 400)
    assert len(data_of(text)["rows"]) == 20_000
    assert spent <= 60


def _made(path: Path, copies: int) -> tuple[str, float]:
    """Return the page of a study of 50 trials multiplied, and the processor's time that it took, seconds."""
    write_study(path, 50)
    multiplied(path, copies)
    began = time.process_time()
    with open_readonly(path) as reader:
        text = page(reader)
    return text, time.process_time() - began
