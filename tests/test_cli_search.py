"""Search, resume, show and export as a user types them, on a recorded device."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.cli.panel import line, panel
from evokern.search import Progress
from evokern.space import Config
from evokern.trial import Evaluation, Outcome, Timing, Trial

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "data" / "table_small.json.gz"


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
    rows = [line.split() for line in told.partition("commonest reasons")[2].splitlines()[2:]]
    assert {row[1] for row in rows} == set(kinds)
    assert sum(int(row[0]) for row in rows) == sum(kinds.values())
    code, _, remarks = _invoke("report", "-o", "r.html")
    assert (code, "no measured trial" in remarks, "`evokern show small`" in remarks) == (2, True, True)


def test_a_search_is_begun_resumed_and_shown(here: Path) -> None:
    """The same command goes on where it stopped and says so; `show` tells the same as the search did."""
    code, told, remarks = _invoke("search", "small", "--trials", "12", "--sampler", "random")
    assert code == 0
    assert "the trials are done" in told
    assert remarks.splitlines()[1] == "searching: baseline recorded baseline 8.10 µs, no budget, 12 trials left"
    code, told, remarks = _invoke("search", "small", "--trials", "15")
    assert (
        code,
        bool(re.search(r"^resuming: \d+ trials, best \d\.\d\d µs, no budget, 3 trials left$", remarks, re.M)),
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
        "trials",
        "outcomes",
        "rejections",
        "elapsed_s",
        "budget_s",
        "baseline",
        "best",
        "limit",
        "cost",
        "control",
    ]
    assert list(shown) == keys
    assert list(shown["best"]) == ["trial", "time_us", "ci95_us", "speedup", "config"]
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
    assert (code, "nothing beat the baseline" in told) == (0, True)
    assert "nothing beat the baseline" in _invoke("show")[1]


def test_quiet_and_json_keep_stdout_clean(here: Path) -> None:
    """`--quiet` leaves no remark; `--json` prints one object and nothing else."""
    assert _invoke("search", "small", "--trials", "3", "--quiet")[2] == ""
    code, told, remarks = _invoke("search", "small", "--trials", "4", "--json")
    assert (code, json.loads(told)["study"], remarks) == (0, "small", "")


def test_the_log_tells_every_trial(here: Path) -> None:
    """`--log FILE` gets each trial with its outcome, whatever is shown."""
    _invoke("search", "small", "--trials", "5", "--quiet", "--sampler", "random", "--log", "search.log")
    numbers = re.findall(r"DEBUG evokern: trial (\d+) \w+: ", (here / "search.log").read_text())
    assert json.loads(_invoke("show", "--json")[1])["trials"] == len(set(numbers)) == len(numbers)


def test_fresh_keeps_the_old_study(here: Path) -> None:
    """`--fresh` begins anew, names the old study NAME.1 and says so."""
    _invoke("search", "small", "--trials", "3", "--quiet")
    code, _, remarks = _invoke("search", "small", "--trials", "2", "--fresh")
    assert (code, "the earlier study is now small.1" in remarks) == (0, True)
    assert _invoke("show", "small.1", "--json")[0] == 0


def test_a_recording_cannot_be_exported(here: Path) -> None:
    """A study of a recording has no source, and export says so."""
    _invoke("search", "small", "--trials", "3", "--quiet")
    code, _, told = _invoke("export", "small")
    assert (code, told) == (2, "evokern: study small was played from a recording, which has no source to export\n")
    assert not (here / "best.cu").exists()


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
    assert (process.returncode, "interrupted; nothing is lost" in out) == (130, True)
    assert _invoke("show", "--json")[0] == 0


def test_a_terminal_gets_a_live_panel(here: Path) -> None:
    """On a terminal the search draws a panel with what the issue of a search depends on, and leaves its result."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "evokern", "search", "small", "--trials", "400", "--sampler", "random"]
    environment = {**os.environ, "COLUMNS": "110", "LINES": "40", "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=follower, stderr=follower, cwd=here, env=environment)
    os.close(follower)
    text = b""
    while select.select([leader], [], [], 30)[0]:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        text += chunk
    os.close(leader)
    assert process.wait(timeout=30) == 0
    drawn = text.decode(errors="replace")
    assert all(word in drawn for word in ("elapsed", "baseline", "outcomes", "champion", "trials a minute"))
    assert "the trials are done" in drawn


def _progress() -> Progress:
    evaluation = Evaluation(Outcome.MEASURED, 5.0, (Timing(5.0, (4.9, 5.1), (5.0,)),))
    return Progress(
        event="trial",
        study="s",
        device="NVIDIA H200",
        elapsed_s=75,
        budget_s=150,
        trials=12,
        outcomes={"measured": 9, "wrong": 3},
        rejections={"shared_memory_per_block": 44},
        baseline=("SDPA", 9.0),
        best=Trial(4, Config({"TILE": 64}), evaluation),
        trials_per_minute=811.0,
        busy_share=0.62,
        last_failures=("trial 11 wrong: output",),
    )


def test_the_line_tells_what_matters() -> None:
    """One line: time, trials, best and speedup, rate, busy share, outcomes."""
    expected = (
        "1 min of 2 min, 12 trials | best 5.00 µs (trial 4), 1.80× the baseline | 811 trials/min | device busy 62 % "
        "| 9 measured, 3 wrong"
    )
    assert expected == line(_progress())


def test_predicted_times_are_labelled() -> None:
    """Times of a simulated device never look measured."""
    from dataclasses import replace

    assert "5.00 µs predicted (trial 4)" in line(replace(_progress(), predicted=True))


def test_the_panel_tells_more() -> None:
    """The panel adds what was turned away, the champion's genes and the last failures."""
    from rich.console import Console

    console = Console(width=100, record=True, file=io.StringIO())
    console.print(panel(_progress()))
    text = console.export_text()
    for told in ("44 shared_memory_per_block", "TILE=64", "trial 11 wrong: output", "62 %", "SDPA 9.00 µs"):
        assert told in text
