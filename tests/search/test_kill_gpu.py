"""A search on a GPU that is killed at random moments loses nothing, repeats nothing and leaves no process behind.

`EVOKERN_KILLS=20 pytest -m gpu tests/search/test_kill_gpu.py` kills twenty times instead of four.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from killed_search import ACTIONS, KilledSearch
from search_process import KILLS, marked, recorded, rows

from evokern.store import open_readonly
from evokern.study.trial import Outcome

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(90 + 30 * KILLS)]


def test_kills_lose_nothing_on_a_gpu(tmp_path: Path) -> None:
    """What was recorded before a kill stands unchanged after it, no configuration is measured twice, none runs on."""
    db, mark, draw = tmp_path / "killed.db", str(tmp_path), random.Random(3)
    command = [sys.executable, "-m", "evokern", "search", "attention-s512", "--device", "cuda:0", "--seed", "5"]
    command += ["--budget", f"{60 * KILLS}s", "--db", str(db)]
    known: dict[int, tuple[Any, ...]] = {}
    for kill in range(KILLS):
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"EVOKERN_TEST_MARK": mark},
        )
        deadline = time.monotonic() + 60
        while recorded(db) <= len(known) and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(2.0 * draw.random())
        process.kill()
        process.wait()
        deadline = time.monotonic() + 5
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert marked(mark) == []
        found = rows(db)
        assert len(found) > len(known), f"kill {kill} came before a trial"
        assert {number: found[number] for number in known} == known
        known = found
        print(f"kill {kill}: {len(known)} trials")
    configs = [config for _, config, *_ in known.values()]
    assert len(set(configs)) == len(configs)
    # Only what was in flight when a kill came may be without an outcome, and it keeps its number.
    assert max(known) < len(known) + 64


def test_parts_killed_on_a_gpu_blame_nobody(tmp_path: Path) -> None:
    """Each part is killed or stopped, no trial's worker twice: nothing is lost or changed, no candidate is blamed."""
    db, draw = tmp_path / "killed.db", random.Random(7)
    actions = [draw.choice(ACTIONS) for _ in range(max(KILLS, 5))]
    options = (
        f"attention-s512 --device cuda:0 --seed 5 --no-verify --quiet --trials {60 * (len(actions) + 1)} --db {db}"
    )
    killed = KilledSearch([sys.executable, "-m", "evokern", "search", *options.split()], db, "GpuWorker", seed=1)
    killed.run(actions)
    assert killed.done == actions
    assert killed.hit == Counter(actions), "an action met no process"
    with open_readonly(db) as reader:
        trials = list(reader.trials(reader.study()))
    assert [trial.number for trial in trials] == list(range(len(trials)))
    blamed = [trial for trial in trials if "worker process" in trial.evaluation.reason]
    assert [trial.evaluation.reason for trial in blamed] == []
    assert not any(trial.outcome is Outcome.LOST for trial in trials)


def test_a_trial_whose_worker_is_killed_twice_is_lost_on_a_gpu(tmp_path: Path) -> None:
    """Kill after kill ends in `lost`; the search goes on to its number of trials, and nobody else is blamed."""
    db = tmp_path / "twice.db"
    options = f"attention-s512 --device cuda:0 --seed 5 --no-verify --quiet --trials 600 --db {db}"
    twice = KilledSearch([sys.executable, "-m", "evokern", "search", *options.split()], db, "GpuWorker", seed=1)
    twice.kill_a_trial_twice("lost")
    with open_readonly(db) as reader:
        trials = list(reader.trials(reader.study()))
    assert sum(trial.outcome is Outcome.LOST for trial in trials) > 0
    assert sum(trial.outcome.evaluated for trial in trials) == 600
    others = [trial.evaluation.reason for trial in trials if trial.outcome is not Outcome.LOST]
    assert [reason for reason in others if "worker process" in reason] == []
