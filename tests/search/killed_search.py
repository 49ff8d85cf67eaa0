"""A search in a process of its own whose parts are killed and stopped, one after the other, while it runs."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from search_process import marked, rows

FORKS = "evokern-forks"
"""What `ps` calls a fork server."""
ENDS_PARENT = {
    "kill parent": signal.SIGKILL,
    "kill group": signal.SIGKILL,
    "terminate parent": signal.SIGTERM,
    "hang up parent": signal.SIGHUP,
}
"""What ends the search, which is then begun again."""
PARTS = {
    "kill worker": (0, (signal.SIGKILL,)),
    "kill compile worker": (1, (signal.SIGKILL,)),
    "kill server": (2, (signal.SIGKILL,)),
    "terminate worker": (0, (signal.SIGTERM,)),
    "hang up worker": (0, (signal.SIGHUP,)),
    "terminate server": (2, (signal.SIGTERM,)),
    "stop worker": (0, (signal.SIGSTOP, signal.SIGCONT)),
    "stop compile worker": (1, (signal.SIGSTOP, signal.SIGCONT)),
    "stop server": (2, (signal.SIGSTOP, signal.SIGCONT)),
    "stop parent": (3, (signal.SIGSTOP, signal.SIGCONT)),
}
"""What a search survives: kind of process (executor, compile worker, fork server, parent), signals."""
ACTIONS = (*PARTS, *ENDS_PARENT, "kill starting server")
"""Everything that is done to a search."""
STOPPED_S = 0.3


@dataclass
class KilledSearch:
    """One study, searched by one process after the other."""

    command: Sequence[str]
    """What searches; run again, it goes on."""
    db: Path
    """Its database."""
    executor: str
    """What `ps` calls a process that evaluates."""
    environment: dict[str, str] = field(default_factory=dict)
    """Further variables."""
    seed: int = 0
    """Draws moments and victims."""
    done: list[str] = field(default_factory=list)
    """What was done."""
    hit: Counter[str] = field(default_factory=Counter)
    """Action → how often there was a process that it was done to."""

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = str(self.db)
        self._known: dict[int, tuple[object, ...]] = {}

    def run(self, actions: Sequence[str]) -> None:
        """Do one thing at a time, once every trial that the one before could meet is recorded; then let it end."""
        for action in actions:
            if action == "kill starting server":
                self._restart_killing_the_server()
            else:
                self._begin()
                if not self._settled():
                    break
                time.sleep(self._draw.uniform(0.0, 0.1))
                self._ends(action) if action in ENDS_PARENT else self._hits(action)
            self.done.append(action)
        self._begin()
        assert self._process is not None
        assert self._process.wait(600) == 0, f"after {self.done}"
        self._check_whole()
        self._check_nothing_left()

    def hit_until(self, action: str, outcome: str, every_s: float = 0.01) -> None:
        """Once a trial is recorded, do one thing again and again until one has an outcome, then let the search end."""
        self._begin()
        assert self._process is not None
        assert self._settled()
        while not any(row[2] == outcome for row in self.rows().values()):
            assert self._process.poll() is None, f"ended before one was {outcome}"
            for _ in range(5):
                self._hits(action)
                time.sleep(every_s)
        assert self._process.wait(600) == 0
        self._check_nothing_left()

    def kill_a_trial_twice(self, outcome: str) -> None:
        """Kill the worker that has a trial, then the fresh one that does it again; let the search end.

        For a GPU, whose workers take seconds to start, so that no other way meets the second one at work.
        """
        self._begin()
        assert self._process is not None
        while self._settled() and not any(row[2] == outcome for row in self.rows().values()):
            self._kill_worker_and_its_heir()
        assert any(row[2] == outcome for row in self.rows().values()), f"ended before one was {outcome}"
        assert self._process.wait(600) == 0
        self._check_nothing_left()

    def _kill_worker_and_its_heir(self, patience_s: float = 20.0) -> None:
        """Do so, unless nobody has taken a trial up in time.

        Who works holds the GPU's lock, but so does who starts; the trial goes to the first of those that started after
        the kill, and several may. So of these the first that has held the lock, given it back and holds it again.
        """
        before = self.processes(self.executor)
        end, seen, looked = time.monotonic() + patience_s, dict[int, int](), 0.0
        while not (at_work := next(filter(_holds_a_lock, before), None)) and time.monotonic() < end:
            time.sleep(0.001)
        if at_work is None:
            return
        os.kill(at_work, signal.SIGKILL)
        while time.monotonic() < end:
            if time.monotonic() - looked > 0.25:  # it takes milliseconds, and a lock is given back for little longer
                fresh, looked = set(self.processes(self.executor)).difference(before), time.monotonic()
            for pid in fresh:
                seen[pid] = seen.get(pid, 0) + (_holds_a_lock(pid) != bool(seen.get(pid, 0) % 2))
                if seen[pid] == 3:
                    os.kill(pid, signal.SIGKILL)
                    self.hit["kill worker twice"] += 1
                    return
            time.sleep(0.0002)

    def rows(self) -> dict[int, tuple[object, ...]]:
        """Return every recorded trial."""
        return rows(self.db)

    def processes(self, name: str) -> list[int]:
        """Return the processes of the search of a name."""
        found = []
        for pid in marked(self._mark):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == name[:15]:
                    found.append(pid)
        return found

    def _begin(self) -> None:
        if self._process is None or self._process.poll() is not None:
            paths = {"PYTHONPATH": os.pathsep.join(sys.path)}  # a program of the tests imports their helpers
            environment = os.environ | paths | self.environment | {"EVOKERN_TEST_MARK": self._mark}
            self._process = subprocess.Popen(self.command, env=environment, start_new_session=True)
            atexit.register(self._process.kill)  # an interrupted test would leave it searching, and holding its GPU

    def _settled(self) -> bool:
        """Wait until every trial proposed by now, and one more, is recorded; False where the search ended before."""
        assert self._process is not None
        proposed, end = sum(self._progress()) + 1, time.monotonic() + 300
        while self._process.poll() is None and time.monotonic() < end:
            if self._progress(proposed)[0] == proposed:
                return True
            time.sleep(0.05)
        assert time.monotonic() < end, "the search stands still"
        assert self._process.returncode == 0, f"after {self.done}"
        return False

    def _progress(self, below: int = 1 << 30) -> tuple[int, int]:
        """Return how many of the trials with smaller numbers are recorded, and how many are not yet."""
        if not self.db.exists():
            return 0, 0
        sql = "SELECT count(outcome), count(*) - count(outcome) FROM evokern_trials WHERE number < ?"
        with contextlib.closing(sqlite3.connect(self.db)) as connection, contextlib.suppress(sqlite3.OperationalError):
            recorded, begun = connection.execute(sql, [below]).fetchone()
            return int(recorded), int(begun)
        return 0, 0

    def _hits(self, action: str) -> None:
        assert self._process is not None
        kind, signals = PARTS[action]
        names = (self.executor, "CompileWorker", FORKS)
        end = time.monotonic() + 20
        while not (victims := [self._process.pid] if kind == 3 else self.processes(names[kind])):
            assert time.monotonic() < end, f"no {names[kind]} is there to {action}"
            if self._process.poll() is not None:
                return  # it ended by itself
            time.sleep(0.01)  # it is just being replaced
        victim = self._draw.choice(victims)
        self.hit[action] += 1
        for place, number in enumerate(signals):
            if place:
                time.sleep(STOPPED_S)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, number)

    def _ends(self, action: str) -> None:
        assert self._process is not None
        self.hit[action] += 1
        (os.killpg if action == "kill group" else os.kill)(self._process.pid, ENDS_PARENT[action])
        code = self._process.wait(60)
        ends = (130, 0) if ENDS_PARENT[action] is not signal.SIGKILL else (-signal.SIGKILL,)
        assert code in ends, f"exit code {code} after {[*self.done, action]}"
        self._check_nothing_left()
        self._check_whole()

    def _restart_killing_the_server(self) -> None:
        """End the search, begin it again, and kill its fork server while that starts."""
        self._begin()
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._check_nothing_left()
        self._begin()
        end = time.monotonic() + 60
        while not (servers := self.processes(FORKS)) and time.monotonic() < end:
            time.sleep(0.005)
        assert servers, "no fork server started"
        self.hit["kill starting server"] += 1
        for pid in servers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _check_whole(self) -> None:
        """What was recorded once stands as it was."""
        found = self.rows()
        assert {number: found.get(number) for number in self._known} == self._known, f"after {self.done}"
        self._known = found

    def _check_nothing_left(self) -> None:
        end = time.monotonic() + 5
        while (left := marked(self._mark)) and time.monotonic() < end:
            time.sleep(0.02)
        assert left == [], f"left behind after {self.done}"


def _holds_a_lock(pid: int) -> bool:
    """Tell whether a process holds a lock on a whole file (proc(5), locks)."""
    locks = (line.split() for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines())
    return any(words[1:2] == ["FLOCK"] and words[4] == str(pid) for words in locks)
