"""A search any part of which is killed or stopped, again and again, ends as if nothing had been.

`EVOKERN_KILLS=100 pytest -m slow tests/search/test_kill_parts.py` kills a hundred times, on a recording and on a
simulated chip.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import worker_search
from columns_kernel import copying
from engine_helpers import go, small_table
from killed_search import ACTIONS, KilledSearch
from search_process import KILLS, rows

from evokern.study.trial import Outcome

SHORT = ("kill worker", "kill compile worker", "kill server", "hang up parent")
"""What is done where nobody waits for more: a search begins in two seconds."""
PROGRAM = Path(worker_search.__file__)


def sequence(db: Path) -> list[tuple[object, object]]:
    """Return what was tried, and what became of it."""
    return [(config, outcome) for _, (_, config, outcome, _) in sorted(rows(db).items())]


def shuffled(kills: int) -> list[str]:
    """Return so many actions, every kind as often as the others, in an order drawn once."""
    draw = random.Random(7)

    def endless() -> list[str]:
        return draw.sample(ACTIONS, len(ACTIONS))

    return list(islice((action for _ in range(kills) for action in endless()), kills))


def on_recording(db: Path, trials: int, seed: int = 0) -> KilledSearch:
    """Return a search of the small recording through worker processes."""
    return KilledSearch([sys.executable, str(PROGRAM), str(db), str(trials)], db, "TableWorker", seed=seed)


def undisturbed(folder: Path, trials: int) -> Path:
    """Search the same in this process, and do nothing to it; returns the database."""
    db = folder / "whole.db"
    go(db, device=worker_search.WorkerDevice(), trials=trials, sampler="evo", seed=11)
    return db


def check(killed: KilledSearch, whole: Path, actions: int) -> None:
    """The sequence is the undisturbed one: nothing lost, nothing twice, nobody blamed.

    `KilledSearch` looks each time that no process outlives its parent by 5 s and that what was recorded stands.
    """
    assert len(killed.done) == actions, "the search was over too soon"
    assert killed.hit == Counter(killed.done), "an action met no process"
    found = sequence(killed.db)
    assert list(rows(killed.db)) == list(range(len(found))), "a number is missing"
    assert found == sequence(whole)
    assert "lost" not in {outcome for _, outcome in found}


@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_parts_that_die_change_nothing(tmp_path: Path) -> None:
    """Worker, compile worker and fork server killed, the parent hung up: the same sequence."""
    trials = 96  # twice what it takes to do all, so that the search is not just ending when the last is done
    killed = on_recording(tmp_path / "killed.db", trials)
    killed.run(SHORT)
    check(killed, undisturbed(tmp_path, trials), len(SHORT))


@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_a_worker_killed_twice_loses_its_trial_and_nothing_else(tmp_path: Path) -> None:
    """Kill after kill ends in `lost`; the search goes on, and every other trial has the answer that it deserves."""
    trials = 100
    killed = on_recording(tmp_path / "killed.db", trials)
    killed.environment = {"EVOKERN_TEST_STEP_S": "0.04"}  # so that kills meet it on a machine that is slow, too
    killed.hit_until("kill worker", "lost")
    found = list(killed.rows().values())
    answers = {config.key: answer.outcome for config, answer in small_table().answers.items()}
    assert sum(outcome == "lost" for _, _, outcome, _ in found) > 0
    assert all(outcome in ("lost", "duplicate", answers[config]) for _, config, outcome, _ in found)
    assert sum(Outcome(outcome).evaluated for _, _, outcome, _ in found) == trials


@pytest.mark.slow
@pytest.mark.timeout(300 + 30 * KILLS)
def test_a_recording_through_workers_survives_everything(tmp_path: Path) -> None:
    """Every kind of death and stop, many times."""
    actions = shuffled(max(KILLS, len(ACTIONS)))
    trials = 40 + 12 * len(actions)
    killed = on_recording(tmp_path / "killed.db", trials, seed=1)
    killed.run(actions)
    check(killed, undisturbed(tmp_path, trials), len(actions))
    assert set(killed.hit) == set(ACTIONS), "every kind of death and stop took place"


GENES = """
    Parameter("STRIDE", tuple(range(1, 17)), default=1),
    Parameter("OFFSET", tuple(range(16)), default=0),
    Parameter("TURNS", (1, 2, 3, 4), default=1),
"""
KERNEL = copying("ladder", GENES)
SOURCE = """
#if !defined(STRIDE) || !defined(OFFSET) || !defined(TURNS)
#error "STRIDE, OFFSET and TURNS must be defined"
#endif
extern "C" __global__ void copy(const float* x, float* y) {
  __shared__ float tile[32 * STRIDE + OFFSET];
  const int i = blockIdx.x * 32 + threadIdx.x;
  for (int turn = 0; turn < TURNS; ++turn) {
    tile[threadIdx.x * STRIDE + OFFSET] = turn + 1 < TURNS ? 0.0f : x[i];
    __syncthreads();
  }
  y[i] = STRIDE == 5 ? 0.0f : tile[threadIdx.x * STRIDE + OFFSET];
}
"""


def on_chip(folder: Path, trials: int, seed: int = 0) -> KilledSearch:
    """Return a search of a small kernel on a simulated chip, compiled anew."""
    kernel = folder / "kernels" / "ladder"
    kernel.mkdir(parents=True)
    (kernel / "kernel.py").write_text(KERNEL)
    (kernel / "kernel.cu").write_text(SOURCE)
    (kernel / "reference.h").write_text("")
    (folder / "ladder.toml").write_text(f'kernel = "{kernel}"\nproblems = ["1024"]\n')
    db = folder / "a.db"
    options = f"--device sim:l4 --trust --trials {trials} --window 4 --seed 3 --no-verify --quiet"
    command = [sys.executable, "-m", "evokern", "search", str(folder / "ladder.toml"), *options.split()]
    command += ["--db", str(db)]
    return KilledSearch(command, db, "SimWorker", {"EVOKERN_CACHE": "off"}, seed)


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * KILLS)
def test_a_simulated_chip_survives_everything(tmp_path: Path) -> None:
    """As on a recording, with the real compiler and simulator."""
    actions = shuffled(max(KILLS, len(ACTIONS)))
    trials = 20 + 8 * len(actions)
    whole = on_chip(tmp_path / "whole", trials)
    whole.run(())
    killed = on_chip(tmp_path / "killed", trials, seed=1)
    killed.run(actions)
    check(killed, whole.db, len(actions))
    assert set(killed.hit) == set(ACTIONS), "every kind of death and stop took place"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_simulated_chip_loses_what_is_killed_twice(tmp_path: Path) -> None:
    """The real simulator is killed until a trial is lost: the search goes on, and no other trial is blamed."""
    whole = on_chip(tmp_path / "whole", 60)
    whole.run(())
    twice = on_chip(tmp_path / "twice", 60)
    twice.hit_until("kill worker", "lost", 0.25)
    known = {config: outcome for _, config, outcome, _ in rows(whole.db).values()}
    found = [(config, outcome) for _, config, outcome, _ in twice.rows().values()]
    assert sum(Outcome(outcome).evaluated for _, outcome in found) == 60
    assert {outcome for _, outcome in found} <= {"lost", *known.values()}
    assert all(outcome in ("lost", known.get(config, outcome)) for config, outcome in found)
