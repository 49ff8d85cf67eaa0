"""A search in a process of its own, to be killed: `python search_process.py DB WORKERS TRIALS SAMPLER MODE ARGUMENT`.

SAMPLER is a sampler's name, `evo+random` with a control beside it.
MODE `once` searches to the end and prints the summary. MODE `kills` forks one search after another and kills each at
a random moment, ARGUMENT times, then lets the last one end; it prints one JSON object with what it saw. Forking spares
each search the imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from engine_helpers import small_table, study

from evokern.api import search
from evokern.device.recorded.table import TableDevice
from evokern.errors import UsageError
from evokern.search import Progress
from evokern.store import Store, open_readonly

SEED = 11
KILLS = int(os.environ.get("EVOKERN_KILLS", "4"))
"""How often a test kills a search."""


def without_progress(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines that are not progress: a command on a busy machine states that it still works."""
    return (line for line in lines if not re.fullmatch(r".* … \(\d+ s\)\n?", line))


def one_search(db: Path, workers: int, trials: int, sampler: str, delay_s: float, report: int | None = None) -> Any:
    """Search; write the number of each trial to `report` once it is said to be recorded."""

    def on_progress(progress: Progress) -> None:
        if report is not None and progress.event == "trial" and progress.last_trial is not None:
            os.write(report, f"{progress.last_trial.number}\n".encode())

    name, _, control = sampler.partition("+")
    device = TableDevice(small_table(), workers=workers, delay_s=delay_s, delay_seed=os.getpid())
    found = search(
        study(control=control or "none"),
        db=db,
        device=device,
        trials=trials,
        sampler=name,
        seed=SEED,
        on_progress=on_progress,
    )
    return found.summary


def rows(db: Path) -> dict[int, tuple[Any, ...]]:
    """Return every recorded trial: number → identity, configuration, outcome, time."""
    if not db.exists():
        return {}
    connection = sqlite3.connect(db)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        sql = "SELECT number, uuid, config, outcome, time_us FROM evokern_trials WHERE outcome IS NOT NULL"
        return {number: tuple(rest) for number, *rest in connection.execute(sql)}
    except sqlite3.OperationalError:  # killed before the tables were there
        return {}
    finally:
        connection.close()


def recorded(db: Path) -> int:
    """Return how many trials a database holds; none where it is not there yet."""
    try:
        with open_readonly(db) as reader:
            return sum(reader.outcomes(reader.study()).values())
    except UsageError:
        return 0


def marked(mark: str) -> list[int]:
    """Return the processes whose environment has a mark, and which have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def alive(group: int) -> list[int]:
    """Return the processes of a process group that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def killed_search(
    db: Path, workers: int, trials: int, sampler: str, after_s: float, *, running: bool
) -> tuple[bool, set[int]]:
    """Search in a forked process, killed after some seconds; returns whether it was, and the trials it reported.

    The seconds count from its first recorded trial where `running`, else from its start.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setpgid(0, 0)
        try:
            one_search(db, workers, trials, sampler, 0.004, writer)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    if running:
        select.select([reader], [], [], 30)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    reported = b""
    while chunk := os.read(reader, 65536):
        reported += chunk
    os.close(reader)
    deadline = time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(child), f"processes left behind: {alive(child)}"
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the search failed"
    return os.WIFSIGNALED(status), {int(number) for number in reported.split(b"\n")[:-1]}


def ended(db: Path, workers: int, trials: int, sampler: str) -> Any:
    """Search to the end, and return what came of it as JSON has it."""
    summary = one_search(db, workers, trials, sampler, 0.0)
    with open_readonly(db) as reader:
        sequence = [[trial.number, trial.config.key, trial.outcome] for trial in reader.trials(reader.study())]
        sessions = len(reader.sessions(reader.study()))
    return json.loads(json.dumps({"summary": summary, "sequence": sequence, "sessions": sessions}))


def main() -> None:
    db, workers, trials, sampler, mode = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6]
    kills = 0
    if mode == "kills":
        with tempfile.TemporaryDirectory() as scratch:
            Store(Path(scratch) / "imports.db").close()  # what opening imports, once for all forks
        rng, before, lost, changed = random.Random(workers), rows(db), 0, 0
        for _ in range(int(sys.argv[6])):
            running = rng.random() < 0.8
            after_s = rng.uniform(0.0, 0.15 if running else 1.0)
            was_killed, reported = killed_search(db, workers, trials, sampler, after_s, running=running)
            kills += was_killed
            after = rows(db)
            lost += len((reported | set(before)) - set(after))
            changed += sum(after.get(number) != row for number, row in before.items())
            before = after
        print(json.dumps({"kills": kills, "lost": lost, "changed": changed, "recorded": len(before)}))
    print(json.dumps(ended(db, workers, trials, sampler)))


if __name__ == "__main__":
    main()
