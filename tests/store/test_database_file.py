"""The database as a file: it may go, have other names, be another program's, or be read for hours."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from engine_helpers import go, small_table, study, tiny_table, trials_of
from stored_studies import reseal
from typer.testing import CliRunner

import evokern
from evokern.api import search
from evokern.cli.app import app
from evokern.device.recorded.table import TableDevice
from evokern.errors import StoreError
from evokern.search import Progress
from evokern.store import Store, add_proof, open_readonly
from evokern.store._files import LOG_BYTES
from evokern.store._lock import rescue
from evokern.store._optuna import storage_url


def interrupted_by(db: Path, what: Callable[[], object], trials: int = 16) -> evokern.SearchResult:
    """Search, and do something once ten trials are recorded."""
    left = [what]

    def on_progress(progress: Progress) -> None:
        if progress.trials >= 10 and left:
            left.pop()()

    return search(study(), db=db, device=TableDevice(small_table()), trials=trials, seed=1, on_progress=on_progress)


def sequence(db: Path) -> list[tuple[object, object]]:
    return [(trial.config, trial.outcome) for trial in trials_of(db)]


@pytest.mark.parametrize("how", ["removed", "removed with its log", "moved", "replaced"])
def test_a_database_that_goes_while_it_is_searched_is_written_beside(how: str, tmp_path: Path) -> None:
    """The search stops at the next commit; what it holds is whole beside its place, and goes on from there.

    The sequence is that of a search that nothing happened to. What stands in the file's place now is not touched.
    """
    db, other = tmp_path / "a.db", tmp_path / "other.db"
    go(other, tiny_table(), trials=3)
    theirs = other.read_bytes()

    def displace() -> None:
        if how == "moved":
            db.rename(tmp_path / "moved.db")
        elif how == "replaced":
            shutil.copy(other, tmp_path / "new.db")
            (tmp_path / "new.db").rename(db)
        else:
            for file in tmp_path.glob("a.db*" if how == "removed with its log" else "a.db"):
                file.unlink()

    with pytest.raises(StoreError, match=r"moved or replaced.* are in .*a\.db\.rescued") as told:
        interrupted_by(db, displace)
    rescued = tmp_path / "a.db.rescued"
    assert f"mv {rescued} {db}" in str(told.value)
    assert rescued.stat().st_mode & 0o777 == 0o600
    assert len(trials_of(rescued)) in range(10, 20)
    with open_readonly(rescued) as reader:
        assert [session.end_reason for session in reader.sessions(reader.study())] == ["failed"]
    assert not [file.name for file in tmp_path.glob("a.db-*")]  # SQLite would apply the log to another database
    if how == "replaced":
        with open_readonly(db) as reader:
            assert len(list(reader.trials(reader.study()))) == 3
        assert db.read_bytes() == theirs
    for suffix in ("", "-wal", "-shm"):
        Path(f"{db}{suffix}").unlink(missing_ok=True)
    rescued.rename(db)
    if how.startswith("removed"):
        go(db, trials=16, seed=1)
        go(tmp_path / "whole.db", trials=16, seed=1)
        assert sequence(db) == sequence(tmp_path / "whole.db")
    assert not Path(f"{db}.lock").exists()


def test_nobody_reads_a_replacement_with_the_log_of_the_former_file(tmp_path: Path) -> None:
    """Before the search notices, a reader in another process is refused: SQLite would apply the log to the new file."""
    db, other = tmp_path / "a.db", tmp_path / "other.db"
    go(other, tiny_table(), trials=3)
    theirs, told = other.read_bytes(), []

    def displace() -> None:
        shutil.copy(other, tmp_path / "new.db")
        (tmp_path / "new.db").rename(db)
        reading = f"from evokern.store import open_readonly; open_readonly({str(db)!r}).study()"
        told.append(subprocess.run([sys.executable, "-c", reading], capture_output=True, text=True, check=False).stderr)
        assert db.read_bytes() == theirs

    with pytest.raises(StoreError, match=r"moved or replaced"):
        interrupted_by(db, displace)
    assert "was replaced while a search used it" in told[0]
    with open_readonly(db) as reader:
        assert len(list(reader.trials(reader.study()))) == 3


def test_a_replacement_with_its_own_log_keeps_it(tmp_path: Path) -> None:
    """A database that is moved into place together with its log loses none of its trials."""
    db, other = tmp_path / "a.db", tmp_path / "other.db"
    go(other, tiny_table(), trials=3)

    def displace() -> None:
        with closing(sqlite3.connect(other)) as held:  # a second connection keeps the log from being folded in
            held.execute("PRAGMA wal_autocheckpoint=0")
            held.execute("UPDATE evokern_studies SET name = 'theirs'")
            held.commit()
            for suffix in ("", "-wal"):
                shutil.copy(f"{other}{suffix}", tmp_path / f"new.db{suffix}")
        for suffix in ("", "-wal"):
            (tmp_path / f"new.db{suffix}").rename(f"{db}{suffix}")

    with pytest.raises(StoreError, match=r"moved or replaced"):
        interrupted_by(db, displace)
    with closing(sqlite3.connect(db)) as connection:
        assert connection.execute("SELECT name FROM evokern_studies").fetchall() == [("theirs",)]


def test_a_folder_that_goes_leaves_the_results_elsewhere(tmp_path: Path) -> None:
    """Where the whole folder is gone they are in the folder for temporary files, which the message names."""
    folder = tmp_path / "runs"
    folder.mkdir()
    with pytest.raises(StoreError, match=r" are in .*a\.db\.rescued") as told:
        interrupted_by(folder / "a.db", lambda: shutil.rmtree(folder))
    rescued = Path(str(told.value).split("`mv ")[1].split(" ")[0])
    assert len(trials_of(rescued)) in range(10, 20)
    rescued.unlink()


def test_what_was_rescued_before_is_kept(tmp_path: Path) -> None:
    """A second rescue takes another name."""
    db = tmp_path / "a.db"
    for _ in range(2):
        with pytest.raises(StoreError):
            interrupted_by(db, db.unlink)
    assert all(len(trials_of(tmp_path / f"a.db.{name}")) >= 10 for name in ("rescued", "rescued.1"))


def test_another_search_s_lock_is_not_removed(tmp_path: Path) -> None:
    """A search whose files were removed does not remove the lock of the one that began after."""
    db = tmp_path / "a.db"
    first = Store(db)
    for file in tmp_path.iterdir():
        file.unlink()
    second = Store(tmp_path / "b.db")  # one process holds one path once
    (tmp_path / "b.db.lock").rename(tmp_path / "a.db.lock")
    first.close()
    assert (tmp_path / "a.db.lock").exists()
    second.close()


def test_two_names_of_one_file_are_refused(tmp_path: Path) -> None:
    """SQLite keeps log and locks by name, so that nobody may write, or read, a file with two: the remedy is a copy."""
    db, twin = tmp_path / "a.db", tmp_path / "twin.db"
    go(db, trials=3)
    held = db.read_bytes()
    twin.hardlink_to(db)
    for name in (db, twin):
        with pytest.raises(StoreError, match=r"2 hard links.*`cp "):
            Store(name)
        with pytest.raises(StoreError, match="hard links"):
            open_readonly(name)
        with pytest.raises(StoreError, match="hard links"):
            add_proof(name, None, "verify", 0, {})  # type: ignore[arg-type]
    assert db.read_bytes() == held
    remedy = f"cp {db} {db}.own && mv {db}.own {db}"
    assert subprocess.run(remedy, shell=True, check=True).returncode == 0
    Store(db).close()


def test_a_file_that_is_locked_under_another_name_is_refused(tmp_path: Path) -> None:
    """The lock is on the file itself: a mount or a link shows it elsewhere, and one search has it."""
    db = tmp_path / "a.db"
    go(db, trials=3)
    descriptor = os.open(db, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(StoreError, match=r"in use by another search.*under another name"):
        Store(db)
    os.close(descriptor)
    (tmp_path / "link.db").symlink_to(db)
    with Store(db), pytest.raises(StoreError, match="in use by another search in this process"):
        Store(tmp_path / "link.db")


@pytest.mark.parametrize("name", ["a?b.db", "a#b.db", "a%3Fb.db", "a b&c=1.db", "ä:@;'.db", "?mode=ro"])
def test_any_file_name_opens_that_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a URL would make of it: all tables are in the one file that was named, and Optuna finds them there."""
    monkeypatch.chdir(tmp_path)
    go(Path(name), tiny_table(), trials=3)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert len(trials_of(tmp_path / name)) == 3
    assert optuna.get_all_study_names(storage_url(tmp_path / name)) == ["small"]
    assert CliRunner().invoke(app, ["show", "--db", name]).exit_code == 0


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize("table", ["notes", "trials", "studies"])
def test_another_program_s_database_is_left_as_it_is(table: str, mode: str, tmp_path: Path) -> None:
    """It is refused before a byte of it changes; the message names its tables."""
    db = tmp_path / "theirs.db"
    connection = sqlite3.connect(db)
    connection.execute(f"PRAGMA journal_mode={mode}")
    connection.execute(f"CREATE TABLE {table} (x)")
    connection.commit()
    connection.close()
    before = db.read_bytes()
    with pytest.raises(StoreError, match=rf"another program's database.*{table}.*--db"):
        Store(db)
    assert db.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["theirs.db"]


def test_tables_of_another_version_of_optuna_get_none_of_ours(tmp_path: Path) -> None:
    """They are refused before ours are made beside them."""
    db = tmp_path / "a.db"
    optuna.create_study(study_name="theirs", storage=f"sqlite:///{db}")
    connection = sqlite3.connect(db)
    connection.execute("UPDATE alembic_version SET version_num = 'v9.0.0.a'")
    connection.commit()
    tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
    with pytest.raises(StoreError, match=r"another Optuna version \(v9\.0\.0\.a"):
        Store(db)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == tables
    connection.close()


def log_bytes(db: Path) -> int:
    log = Path(f"{db}-wal")
    return log.stat().st_size if log.exists() else 0


@pytest.mark.thorough
def test_a_long_reader_that_ends_leaves_no_large_log(tmp_path: Path) -> None:
    """While it reads, the log grows; once it has ended, the next commits fold it in and cut the file."""
    db = tmp_path / "a.db"
    go(db, trials=3, seed=1)
    reader = sqlite3.connect(db, check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM evokern_trials").fetchone()
    sizes: list[int] = []

    def on_progress(progress: Progress) -> None:
        sizes.append(log_bytes(db))
        if progress.trials >= 100:
            reader.close()

    search(study(), db=db, device=TableDevice(small_table()), trials=130, seed=1, on_progress=on_progress)
    assert max(sizes) > LOG_BYTES >= sizes[-1]
    assert log_bytes(db) == 0


READER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1])
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM evokern_trials").fetchone()
print("reading", flush=True)
time.sleep(600)
"""


@pytest.mark.thorough
def test_a_reader_that_outlasts_a_search_is_told_of(tmp_path: Path) -> None:
    """It cannot keep the search from ending: a note says what stays in the log; the next one to write folds it in."""
    db = tmp_path / "a.db"
    go(db, trials=3, seed=1)
    reader = subprocess.Popen([sys.executable, "-c", READER, str(db)], stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "reading\n"
    notes: list[str] = []
    search(
        study(), db=db, device=TableDevice(small_table()), trials=15, seed=1,
        on_progress=lambda progress: notes.extend(note for note in progress.notes if note not in notes),
    )  # fmt: skip
    assert [
        note
        for note in notes
        if "another program is reading" in note and f"MB of results are still in {db}-wal" in note
    ]
    assert log_bytes(db) > 0
    assert len(trials_of(db)) >= 15
    reader.kill()
    reader.wait()
    assert log_bytes(db) > 0
    Store(db).close()
    assert log_bytes(db) == 0


def test_readers_that_close_at_once_leave_no_file(tmp_path: Path) -> None:
    """The last one removes what SQLite keeps beside a database, though several close in the same microseconds."""
    go(tmp_path / "a.db", tiny_table(), trials=3)
    readers = 6
    draw = random.Random(1)

    def read(wait_s: float) -> None:
        with open_readonly(tmp_path / "a.db") as reader:
            reader.studies()
            together.wait()
            end = time.perf_counter() + wait_s
            while time.perf_counter() < end:
                pass

    for _ in range(150):
        together = threading.Barrier(readers)
        threads = [threading.Thread(target=read, args=[draw.uniform(0.0, 2e-4)]) for _ in range(readers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [one.name for one in tmp_path.iterdir()] == ["a.db"]


def test_a_session_that_was_killed_is_told_of(tmp_path: Path) -> None:
    """The next one says when it began, and how many trials it runs again; a session that ended is not worth a word."""
    db = tmp_path / "a.db"
    go(db, trials=5, seed=1)
    told: list[str] = []

    def on_progress(progress: Progress) -> None:
        told.extend(note for note in progress.notes if note not in told)

    search(study(), db=db, device=TableDevice(small_table()), trials=7, seed=1, on_progress=on_progress)
    assert told == []
    with sqlite3.connect(db) as connection:
        connection.execute("UPDATE evokern_sessions SET ended = NULL, end_reason = NULL")
        connection.execute("UPDATE evokern_trials SET outcome = NULL WHERE number > 4")
    connection.close()
    reseal(db)
    search(study(), db=db, device=TableDevice(small_table()), trials=9, seed=1, on_progress=on_progress)
    assert len(told) == 1
    assert "killed" in told[0]
    assert "in flight" in told[0] or "in-flight" in told[0]


def test_a_rescued_file_follows_no_link(tmp_path: Path) -> None:
    """Where somebody put a link of that name, one that leads nowhere too, the next name is taken."""
    gone = tmp_path / "a.db"
    (tmp_path / "a.db.rescued").symlink_to(tmp_path / "elsewhere")
    with closing(sqlite3.connect(":memory:")) as held:
        held.execute("CREATE TABLE t (x)")
        assert rescue(held, gone) == tmp_path / "a.db.rescued.1"
    assert not (tmp_path / "elsewhere").exists()
