"""Search, resume, show and export as a user types them, on a recorded device."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from paths import DATA
from stored_studies import example_progress, reseal, write_study
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli._output import Output
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.cli.commands._trial import evidence_words, finding_lines, gate_lines, proposal_words
from evokern.cli.commands.show import slow_lines
from evokern.cli.panel import Watcher, line
from evokern.declaration.genes import Config
from evokern.device import BaselineResult, StartReport, Task
from evokern.device.recorded.table import TableDevice
from evokern.study.trial import Evaluation, Outcome, Proposal, Timing, Trial

TABLE = DATA / "table_small.json.gz"


def _invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a study of the small recording."""
    (tmp_path / "studies").mkdir()
    study = f'kernel = "recording"\nproblems = ["recorded"]\ndevice = "replay:{TABLE}"\n'
    (tmp_path / "studies" / "small.toml").write_text(study)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVOKERN_DB", raising=False)
    return tmp_path


def test_show_tells_why_nothing_was_measured(here: Path) -> None:
    """Without a measured trial `show` lists the commonest reasons of failure; the report names what there is."""
    _invoke("search", "small", "--trials", "40", "--sampler", "random")
    with sqlite3.connect("evokern.db") as db:
        db.execute("DELETE FROM evokern_trials WHERE outcome IN ('measured', 'duplicate')")
        kinds = dict(db.execute("SELECT outcome, count(*) FROM evokern_trials GROUP BY 1"))
    _, told, _ = _invoke("show")
    rows = [line.split() for line in told.partition("most common reasons")[2].splitlines()[2:]]
    assert {row[1] for row in rows} == set(kinds)
    assert sum(int(row[0]) for row in rows) == sum(kinds.values())
    assert _invoke("report", "-o", "r.html")[0] == 0
    assert all(kind in Path("r.html").read_text("utf-8") for kind in kinds)


def test_show_tells_why_candidates_failed_beside_the_best(here: Path) -> None:
    """Also where something was measured each failing outcome has its commonest reasons, at most three."""
    _invoke("search", "small", "--trials", "60", "--sampler", "random")
    outcomes = json.loads(_invoke("show", "--json")[1])["outcomes"]
    failed = {name for name, count in outcomes.items() if count} - {"measured", "duplicate", "slow"}
    _, told, _ = _invoke("show")
    rows = [line.split() for line in told.partition("most common reasons")[2].partition("\n\n")[0].splitlines()[2:]]
    kinds = [row[1] for row in rows]
    assert failed == set(kinds) != set()
    assert max(kinds.count(kind) for kind in kinds) <= 3


def test_show_explains_slow_trials() -> None:
    """One line counts the ways in which slow trials were stopped, and names the times to beat."""
    timing = Timing(6.0, (6.0, 6.0), (6.0,))
    slow = [
        Evaluation(Outcome.SLOW, evidence={"elite_us": 5.0}, timings=(timing,)),
        Evaluation(Outcome.SLOW, evidence={"elite_us": 5.5, "limit_us": 11.0, "unproved": True}),
        Evaluation(Outcome.SLOW, evidence={"elite_us": 5.5, "limit_us": 11.0}),
    ]
    (told,) = slow_lines([Trial(number, Proposal(Config({})), one) for number, one in enumerate(slow)])
    for part in ("1 screened by predicted time", "1 screened by first launches", "1 lost the race", "5.00 to 5.50 µs"):
        assert part in told
    assert "2 × that time" in told
    assert slow_lines([]) == []


def test_evidence_is_told_in_words() -> None:
    """Stored names and booleans of the evidence become labels and sentences."""
    own = {"blocks": 24196, "of": 65536, "judged": False, "covered": True, "coverage": {}, "scaled": "16"}
    words = evidence_words(
        {"own_problem": {"64": own}, "least_us": [852.8], "limit_bound": "dram", "floor_us": [852.8],
         "floor_bound": "dram", "flops": [268435456], "flops_gain": [1.0]},
        lambda problem: f"N={problem}",
    )  # fmt: skip
    assert words == {
        "full-size problem N=64": "24,196 of 65,536 blocks ran, results not compared; every output is covered; "
        "all blocks ran at the problem scaled down to N=16",
        "lower bound on time": "853 µs, limited by memory (DRAM)",
        "operations": "268,435,456",
    }


def test_a_crash_is_told_in_lines() -> None:
    """A finding names file and line, text, thread, memory and cause; a gate's report is words."""
    finding = {
        "kind": "out_of_bounds", "line": 17, "source": "y[i] = x;", "instruction": "st.global.f32 [%rd1], %f1",
        "block": [1, 0, 0], "thread": [5, 0, 0], "address": 4096, "allocation": "y", "offset": 1200, "other_line": 0,
        "count": 3, "hint": "An index runs past its array.",
    }  # fmt: skip
    told = "\n".join(finding_lines(finding, "kernel.cu"))
    for part in (
        "out of bounds at kernel.cu:17",
        "y[i] = x;",
        "block 1,0,0, thread 5,0,0",
        "y, byte 1,200",
        "An index",
    ):
        assert part in told
    worst = {"output": "y", "index": [7], "got": "nan", "expected": 1.5, "allowed": 1e-3, "over": "inf", "bad": 2}
    checks = {"guard_bytes": 0, "of_tolerance": {"normal": 0.25}}
    report = {"relative_error": 0.5, "tolerance_spent": 0.1, "worst": {**worst, "input_set": "normal"}}
    lines = list(gate_lines({"300": {**report, "input_sets": ["normal"], "runs": 2, "checks": checks}}))
    assert lines[0] == "gate on 300: 2 runs, inputs normal"
    assert "y[7]: nan, expected 1.5 within 0.001 (normal inputs), 2 elements" in lines[2]
    assert "{" not in "".join(lines)
    assert "of the tolerance" in lines[1] and "relative to the tolerance" in lines[3]
    bounded = {**report, "worst": {**worst, "input_set": "normal", "limit": "bound"}}
    lines = list(gate_lines({"300": {**bounded, "input_sets": ["normal"], "runs": 2, "checks": checks}}))
    assert "of its bound" in lines[1] and "relative to its bound" in lines[3]
    assert "tolerance" not in "".join(lines)


def test_a_niche_restart_is_told_by_its_name() -> None:
    """The stored word is another one than the glossary's; every other word of a proposal stays."""
    assert proposal_words({"turn": "excursion LOADS=scalar", "held": "LOADS"}) == {
        "turn": "niche restart LOADS=scalar",
        "held": "LOADS",
    }
    words = proposal_words({"turn": "restart", "operator": "immigrant", "parents": [3]})
    assert words == {"turn": "restart", "proposed by": "drawing from the whole space", "parent trials": [3]}
    assert proposal_words({"operator": "tpe"}) == {"proposed by": "tpe"}


def test_a_search_is_begun_resumed_and_shown(here: Path) -> None:
    """The same command goes on where it stopped and says so; `show` tells the same as the search did."""
    code, told, remarks = _invoke("search", "small", "--trials", "12", "--sampler", "random")
    assert code == 0
    assert "--trials N" in told
    assert re.search(r"^outcomes: .*\d+ measured", told, re.M)
    assert all(part in remarks.splitlines()[1] for part in ("recorded baseline 8.10 µs", "12 trials left"))
    code, told, remarks = _invoke("search", "small", "--trials", "15")
    assert (
        code,
        bool(re.search(r"^resuming: \d+ trials, best \d\.\d\d µs, .*3 trials left$", remarks, re.M)),
    ) == (
        0,
        True,
    )
    code, told, _ = _invoke("show", "--json")
    shown = json.loads(told)
    keys = [
        "study",
        "device",
        "predicted",
        "timing_rule",
        "trials",
        "outcomes",
        "slow",
        "rejections",
        "elapsed_s",
        "budget_s",
        "warm_start",
        "baseline",
        "best",
        "verified",
        "verified_reason",
        "verified_share",
        "verified_scaled",
        "algebra",
        "limit",
        "remeasured",
        "cost",
        "control",
        "damaged",
        "baselines",
        "rejected_baselines",
        "grid",
        "end",
        "hints",
    ]
    assert list(shown) == keys
    assert list(shown["best"]) == ["trial", "time_us", "ci95_us", "speedup", "speedup_ci95", "in_turn", "config"]
    assert shown["baseline"] == {"name": "recorded baseline", "time_us": 8.1}
    code, told, _ = _invoke("show", "small", "--top", "2")
    assert f"best: trial {shown['best']['trial']}, {shown['best']['time_us']:.2f} µs" in told
    code, told, _ = _invoke("show", "--trial", str(shown["best"]["trial"]), "--json")
    assert json.loads(told)["config"] == shown["best"]["config"]
    code, told, _ = _invoke("resume", "--trials", "17", "--json")
    assert (code, json.loads(told)["end"]) == (0, "trials")


def test_a_search_that_beats_nothing_says_so(here: Path) -> None:
    """A best that is slower than the baseline is told plainly, by the search and by `show`."""
    import gzip

    table = json.loads(gzip.decompress(TABLE.read_bytes()))
    (here / "slow.json").write_text(json.dumps({**table, "baseline_us": 0.5}))
    code, told, _ = _invoke("search", "small", "--trials", "5", "--device", "replay:slow.json", "--quiet")
    assert (code, "no candidate beat the baseline" in told) == (0, True)
    assert "no candidate beat the baseline" in _invoke("show")[1]


def test_quiet_and_json_keep_stdout_clean(here: Path) -> None:
    """`--quiet` leaves no remark; `--json` prints one object and nothing else."""
    assert _invoke("search", "small", "--trials", "3", "--quiet")[2] == ""
    code, told, remarks = _invoke("search", "small", "--trials", "4", "--json")
    assert (code, json.loads(told)["study"], remarks) == (0, "small", "")


def test_the_log_tells_every_trial(here: Path) -> None:
    """`--log FILE` gets each trial with its outcome, whatever is shown; each event is a line of JSON."""
    _invoke("search", "small", "--trials", "5", "--quiet", "--sampler", "random", "--log", "search.log")
    lines = [json.loads(line) for line in (here / "search.log").read_text().splitlines()]
    numbers = [line["trial"] for line in lines if line["event"] == "trial"]
    told = json.loads(_invoke("show", "--json")[1])
    assert told["trials"] == len(set(numbers)) == len(numbers)
    names = ("opening", "start", "trial", "end")
    assert [one for one in dict.fromkeys(line["event"] for line in lines) if one in names] == [*names]
    (end,) = (line for line in lines if line["event"] == "end")
    assert (end["study"], end["reason"], end["trials"]) == ("small", "trials", len(numbers))
    assert end["best_us"] == min(line["time_us"] for line in lines if line.get("outcome") == "measured")
    assert all(datetime.fromisoformat(line["time"]).tzinfo and line["level"] and line["message"] for line in lines)


def test_a_table_of_no_trials_is_refused(here: Path) -> None:
    """`show --top 0` is refused like every other count of nothing, instead of a header without a line below it."""
    _invoke("search", "small", "--trials", "3", "--quiet")
    code, said, told = _invoke("show", "--top", "0")
    assert (code, said) == (2, "")
    assert "Invalid value for '--top'" in told
    assert _invoke("show", "--top", "1")[0] == 0


def test_fresh_keeps_the_old_study(here: Path) -> None:
    """`--fresh` begins anew, names the old study NAME.1 and says so."""
    _invoke("search", "small", "--trials", "3", "--quiet")
    code, _, remarks = _invoke("search", "small", "--trials", "2", "--fresh")
    assert (code, "the earlier study is now small.1" in remarks) == (0, True)
    assert _invoke("show", "small.1", "--json")[0] == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--sampler", "evoo"), "did you mean 'evo'?"),
        (("--control", "rando"), "did you mean 'random'?"),
        (("--control", "random", "--sampler", "random"), "control"),
        (("--warm-start", "absent.json"), "absent.json"),
        (("--extend", "5m"), "no budget to extend"),
        (("--device", "sim:l5"), "'l5'"),
    ],
)
def test_a_refused_search_changes_nothing(here: Path, asked: tuple[str, ...], told: str) -> None:
    """What cannot be searched as asked renames no study that is there, whether it begins anew or goes on."""
    _invoke("search", "small", "--trials", "3", "--quiet")
    before = json.loads(_invoke("show", "small", "--json")[1])
    for fresh in ((), ("--fresh",)):
        code, _, remarks = _invoke("search", "small", *fresh, *asked)
        assert (code, told in remarks or "--fresh" in remarks) == (2, True)
        assert "the earlier study is now" not in remarks
    assert json.loads(_invoke("show", "small", "--json")[1]) == before
    assert _invoke("show", "small.1")[0] == 2


def test_a_misspelt_sampler_is_named_before_what_changed(here: Path) -> None:
    """On a study that exists already a sampler that does not is no reason to begin anew, and it makes no database."""
    _invoke("search", "small", "--sampler", "evoo")
    assert not (here / "evokern.db").exists()
    _invoke("search", "small", "--trials", "3", "--quiet")
    code, _, told = _invoke("search", "small", "--sampler", "evoo")
    assert (code, "did you mean 'evo'" in told, "--fresh" in told) == (2, True, False)


def test_evaluated_trials_are_counted_apart(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--trials` counts what was evaluated, and so does what is said; duplicates and infeasible ones are apart."""
    from dataclasses import replace
    from itertools import count

    from evokern.device.recorded.table import TableDevice, measured

    met = count()
    monkeypatch.setattr(TableDevice, "_recorded", lambda self, config: measured(5.0, f"code {next(met) // 2}"))
    _, said, _ = _invoke("search", "small", "--trials", "9", "--sampler", "random")
    outcomes = json.loads(_invoke("show", "--json")[1])["outcomes"]
    others = outcomes["duplicate"] + outcomes["infeasible"]
    assert others > 0
    assert said.startswith(f"small: 9 trials evaluated (and {others} duplicate or infeasible); ")
    ended = {"measured": 9, "duplicate": 1, "infeasible": 2, "lost": 1}
    assert ", 9 of 20 trials evaluated (and 3 duplicate or infeasible, 1 lost) |" in line(
        replace(example_progress(), evaluated=9, trials_limit=20, outcomes=ended)
    )
    assert ", 9 trials evaluated (and 3 duplicate or infeasible, 1 lost) (limit 6; " in line(
        replace(example_progress(), evaluated=9, trials_limit=6, outcomes=ended)
    )


@pytest.mark.thorough
def test_more_time_does_not_help_where_the_trials_are_done(here: Path) -> None:
    """`--extend` on a study that its trials end names the option that goes on."""
    _invoke("search", "small", "--trials", "3", "--quiet")
    code, _, told = _invoke("resume", "--extend", "20s")
    assert (code, "--trials N" in told) == (2, True)
    _invoke("resume", "--budget", "1h", "--quiet")
    code, said, _ = _invoke("resume", "--extend", "20s")
    assert (code, "more time has no effect" in said, "--trials N" in said) == (0, True, True)


@pytest.mark.thorough
def test_a_search_in_which_all_failed_ends_with_1(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing was measured the answer is no: exit code 1, and the commonest reasons are said."""
    wrong = Evaluation(Outcome.WRONG, evidence={"check": "y differs from the reference"})
    monkeypatch.setattr(TableDevice, "_recorded", lambda self, config: wrong)
    code, said, _ = _invoke("search", "small", "--trials", "4", "--sampler", "random")
    assert code == 1
    assert "no candidate was measured" in said
    assert "4 wrong: y differs from the reference" in said
    assert _invoke("search", "small", "--json")[0] == 1


def test_a_budget_that_ends_before_the_first_candidate_is_told(here: Path) -> None:
    """Nothing failed where nothing was tried: what took the time is said, and how to go on."""
    code, said, _ = _invoke("search", "small", "--budget", "0.0001s")
    assert code == 1
    assert "0 trials evaluated; the budget is used up" in said
    assert "no trial was run" in said and "--budget" in said


def test_a_budget_that_ends_before_any_candidate_does_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where candidates were begun and none ended, the start is not blamed for all of the time."""
    monkeypatch.setattr(TableDevice, "poll", lambda self, timeout_s: time.sleep(0.05) or ())
    code, said, _ = _invoke("search", "small", "--budget", "0.3s")
    assert code == 1
    assert "no candidate finished in the remaining" in said and "--budget" in said
    assert "no trial was run" not in said


def test_a_folder_is_no_database(here: Path) -> None:
    """Reading commands say of a folder what a search says of it."""
    told = [_invoke(command, "small", "--db", "studies")[2] for command in ("show", "search")]
    assert all("studies is a folder" in remarks and "--db" in remarks for remarks in told)


def test_a_recording_cannot_be_exported(here: Path) -> None:
    """A study of a recording has no source, and export says so."""
    _invoke("search", "small", "--trials", "3", "--quiet")
    code, _, told = _invoke("export", "small")
    assert (code, "study small" in told, "recording" in told, told.count("\n")) == (2, True, True, 1)
    assert not (here / "best.cu").exists()


@pytest.mark.thorough
def test_an_interrupted_search_ends_with_130(here: Path) -> None:
    """Ctrl-C ends a search in order, with exit code 130 and the way on; what was recorded stays."""
    import signal
    import time

    command = [sys.executable, "-m", "evokern", "search", "small", "--budget", "1h", "--sampler", "random"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=here)
    assert process.stderr is not None
    for told in process.stderr:
        if told.startswith("searching"):
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in out and "`evokern resume small --db evokern.db`" in out
    assert _invoke("show", "--json")[0] == 0


def test_show_lists_what_turned_proposals_away(tmp_path: Path) -> None:
    """A table with counts, most first, with and without a champion; `--json` has the counts as before."""
    from evokern.store import Store

    path = tmp_path / "r.db"
    record = write_study(path, 20)
    with Store(path) as store, store.transaction():
        values = [record.uuid, "registers", 60]
        store.db.execute("INSERT INTO evokern_rejections (study, constraint_name, count) VALUES (?, ?, ?)", values)
    reseal(path)
    told = _invoke("show", "--db", str(path))[1]
    table = told.partition("100 proposals rejected before compilation")[2].splitlines()[1:4]
    assert [line.split() for line in table] == [
        ["proposals", "share", "constraint"],
        ["60", "60", "%", "registers"],
        ["40", "40", "%", "ring_needs_lookahead"],
    ]
    summary = json.loads(_invoke("show", "--json", "--db", str(path))[1])
    assert summary["rejections"] == {"registers": 60, "ring_needs_lookahead": 40}
    with Store(path) as store, store.transaction():
        values = [record.uuid, "compute_capability", 100]
        store.db.execute("INSERT INTO evokern_rejections (study, constraint_name, count) VALUES (?, ?, ?)", values)
    reseal(path)
    table = _invoke("show", "--db", str(path))[1].partition("200 proposals rejected")[2].splitlines()[2:5]
    assert [line.split("  ")[-1] for line in table] == [
        "the device lacks instructions or features", "constraint of kernel.py", "constraint of kernel.py"
    ]  # fmt: skip
    with Store(path) as store, store.transaction():
        store.db.execute("DELETE FROM evokern_rejections WHERE constraint_name = 'compute_capability'")
    reseal(path)
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM evokern_trials WHERE outcome = 'measured'")
    assert "60 %  registers" in _invoke("show", "--db", str(path))[1]
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM evokern_rejections")
    assert "proposals rejected" not in _invoke("show", "--db", str(path))[1]


def test_the_line_tells_what_matters() -> None:
    """One line: time, trials, best and speedup, rate, busy share, outcomes if there are any."""
    from dataclasses import replace

    expected = (
        "1 min 15 s of 2 min 30 s, 12 trials | best 5.00 µs (trial 4), 1.80× speedup | 811 trials/min | "
        "device busy 62 % | 9 measured, 3 wrong"
    )
    assert expected == line(example_progress())
    assert line(replace(example_progress(), outcomes={"measured": 0})).endswith("device busy 62 %")
    assert "busy" not in line(replace(example_progress(), busy_share=0.004))
    assert "simulator busy 62 %" in line(replace(example_progress(), predicted=True))


def test_lines_tell_the_last_failure_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no terminal a failure's reason follows a line of progress, but each one only once."""
    from dataclasses import replace

    now = [0.0]
    monkeypatch.setattr("evokern.cli.panel.time.monotonic", lambda: now[0])
    monkeypatch.setattr("sys.stderr", stream := io.StringIO())
    watcher, first = Watcher(Output()), replace(example_progress(), event="trial")
    for second, failure in ((0, "trial 11 wrong: output"), (30, "trial 11 wrong: output"), (32, "a"), (60, "b" * 999)):
        now[0] = float(second)
        watcher(replace(first, last_failures=(failure,)))
    told = [text for text in stream.getvalue().splitlines() if text.startswith("  last failure")]
    assert told[0] == "  last failure: trial 11 wrong: output"
    assert (len(told), told[1].startswith("  last failure: bbb"), len(told[1]) < 200) == (2, True, True)


def test_steps_of_the_start_are_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that takes a minute says what it is at, each step once."""
    from dataclasses import replace

    from evokern.device.contract import StartStep

    monkeypatch.setattr("sys.stderr", stream := io.StringIO())
    watcher, opening = Watcher(Output()), replace(example_progress(), event="opening")
    for step in (None, StartStep("compiling the default candidate", 0, 3), StartStep("baseline 1 of 2: torch", 1, 3)):
        watcher(replace(opening, step=step))
    assert stream.getvalue().splitlines() == [
        "s on NVIDIA H200", "compiling the default candidate …", "baseline 1 of 2: torch …",
    ]  # fmt: skip


def test_predicted_times_are_labelled() -> None:
    """Times of a simulated device never look measured."""
    from dataclasses import replace

    assert "5.00 µs predicted (trial 4)" in line(replace(example_progress(), predicted=True))


def test_a_predicted_trial_is_labelled(tmp_path: Path) -> None:
    """The first line of a trial says that its time is predicted, though its outcome is the one of measured trials."""
    write_study(tmp_path / "p.db", 3, predicted=True)
    told = _invoke("show", "--trial", "0", "--db", str(tmp_path / "p.db"))[1].splitlines()[0]
    assert re.search(r": measured, \d+\.\d+ µs predicted$", told)


def test_rejected_baselines_are_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A baseline that the gate rejected is named with the check, by the search, `show`, `--json` and the report."""
    error = "wrong (check tolerance, largest error 3 × the tolerance): y[0] is 4, expected 1"
    start = TableDevice.start

    def rejected(self: TableDevice, task: Task) -> StartReport:
        return replace(start(self, task), baselines=(BaselineResult("cudnn", error=error),))

    monkeypatch.setattr(TableDevice, "start", rejected)
    code, said, _ = _invoke("search", "small", "--trials", "3")
    assert code == 0 and f"baseline cudnn was rejected: {error}, so no speedup is known" in said
    assert f"baseline cudnn was rejected: {error}" in _invoke("show")[1]
    assert "baseline: not measured" not in _invoke("show")[1]
    assert json.loads(_invoke("show", "--json")[1])["rejected_baselines"] == {"cudnn": error}
    assert _invoke("report", "-o", "page.html")[0] == 0
    assert "cudnn was rejected" in (here / "page.html").read_text()
