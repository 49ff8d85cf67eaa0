"""A search that is killed at random moments, again and again, loses nothing and ends as if it had not been.

`EVOKERN_KILLS=50 pytest tests/search/test_kill.py` kills fifty times instead of a few.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import optuna
import pytest
import search_process
from engine_helpers import small_table
from search_process import KILLS, ended, marked, recorded, without_progress

from evokern.samplers import TrialResult
from evokern.samplers.optuna_view import state_of
from evokern.store import open_readonly

TRIALS = 40 if KILLS <= 10 else 400
PROGRAM = Path(search_process.__file__)


def run(*arguments: object) -> list[dict[str, Any]]:
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 30 * KILLS, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@cache
def uninterrupted(sampler: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return ended(Path(folder) / "once.db", 1, TRIALS, sampler)


@pytest.mark.thorough
@pytest.mark.timeout(120 + 60 * KILLS)
@pytest.mark.parametrize(
    ("sampler", "workers"),
    [
        pytest.param("evo", 1, marks=pytest.mark.slow),
        pytest.param("evo", 4, marks=pytest.mark.slow),
        pytest.param("tpe", 4, marks=pytest.mark.slow),
        ("evo+random", 4),
    ],
)
def test_kills_lose_nothing_and_change_nothing(sampler: str, workers: int, tmp_path: Path) -> None:
    """After each kill the database is whole and every reported trial is in it, as it was; no process is left behind.

    The sequence of candidates, their outcomes and the champion are those of the uninterrupted search.
    """
    db = tmp_path / "killed.db"
    kills, end = run(db, workers, TRIALS, sampler, "kills", KILLS)
    whole = uninterrupted(sampler)
    assert kills["lost"] == 0
    assert kills["changed"] == 0
    assert kills["kills"] > 0
    assert end["sequence"] == whole["sequence"]
    assert end["summary"]["best"] == whole["summary"]["best"]
    assert found_by_arm(end) == found_by_arm(whole)
    if not sampler.startswith("evo"):  # it counts each configuration that is turned away once a session
        assert end["summary"]["rejections"] == whole["summary"]["rejections"]
    assert not Path(f"{db}-wal").exists()
    assert not Path(f"{db}.lock").exists()
    check_optunas_tables(db)


def found_by_arm(end: dict[str, Any]) -> list[tuple[Any, ...]] | None:
    """What sampler and control found, without how long it took."""
    control = end["summary"]["control"]
    return control and [(arm["trials"], arm["evaluated"], arm["best_us"]) for arm in control["arms"]]


def check_optunas_tables(db: Path) -> None:
    """Optuna reads the same trials from its own tables: parameters, states, values, constraints."""
    loaded = optuna.load_study(study_name="small", storage=f"sqlite:///{db}").get_trials()
    with open_readonly(db) as reader:
        trials = list(reader.trials(reader.study()))
    assert len(trials) == len(loaded)
    for ours, theirs in zip(trials, loaded, strict=True):
        result = TrialResult.of(ours)
        assert dict(ours.config) == theirs.params
        assert state_of(result) == theirs.state
        assert result.value == theirs.value
        assert dict(result.constraints) == theirs.constraints
        assert list(small_table().genes[0].values) == list(theirs.distributions["LOADS"].choices)  # type: ignore[attr-defined]


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_ends_a_search_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, SIGTERM and SIGHUP end a search between two steps: what is recorded is kept, the log is folded in.

    A search is hung up in every run of the tests by `test_parts_that_die_change_nothing`; here by hand.
    """
    db = tmp_path / "signalled.db"
    command = [sys.executable, str(PROGRAM), str(db), "2", "4000", "random", "once"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not recorded(db) and time.monotonic() < deadline:
        time.sleep(0.05)
    asked = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert time.monotonic() - asked < 10
    summary = json.loads(out)["summary"]
    with open_readonly(db) as reader:
        study = reader.study()
        assert reader.sessions(study)[-1].end_reason == "interrupted"
        assert summary["trials"] == len(list(reader.trials(study))) > 0
    assert not Path(f"{db}-wal").exists()
    assert not Path(f"{db}.lock").exists()


@pytest.mark.thorough
def test_ctrl_c_while_the_device_opens(tmp_path: Path) -> None:
    """Exit code 130, a session that says so, one file, and no process: whatever was starting is gone."""
    db, mark = tmp_path / "opening.db", f"{tmp_path}"
    command = [sys.executable, "-m", "evokern", "search", "attention-s512", "--device", "sim:l4", "--db", str(db)]
    environment = os.environ | {"EVOKERN_CACHE": "off", "EVOKERN_TEST_MARK": mark}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    assert next(without_progress(process.stderr)) == "attention-s512 on sim:l4\n"
    assert len(marked(mark)) > 1
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert marked(mark) == []
    assert [path.name for path in tmp_path.iterdir()] == ["opening.db"]
    with open_readonly(db) as reader:
        assert [session.end_reason for session in reader.sessions(reader.study())] == ["interrupted"]
