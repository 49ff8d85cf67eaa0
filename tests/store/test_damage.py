"""A digest in each row: what changed on the disk is named by its row, left out by readers, refused by searches."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from engine_helpers import go, small_table
from sqlite_utils import Database
from stored_studies import add_proofs, record, reseal, write_study

from evokern.errors import StoreError
from evokern.samplers import Prior
from evokern.store import Store, add_proof, open_readonly
from evokern.store._integrity import COLUMN, SEALED, TABLES, digest_of, select


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with one study of twelve trials, a verification and an ablation."""
    found = tmp_path / "r.db"
    add_proofs(found, write_study(found, 12))
    return found


def _change(path: Path, sql: str, *values: object) -> None:
    with sqlite3.connect(path) as db:
        assert db.execute(sql, values).rowcount > 0
    db.close()


def _rows(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    db = Database(sqlite3.connect(path))
    for table in TABLES:
        for row in select(db, table):
            yield table, dict(row)
    db.close()


@pytest.mark.thorough
def test_every_row_that_is_written_has_its_digest(tmp_path: Path) -> None:
    """Whatever a search, a verification and a profile write, also in parts and again."""
    path = tmp_path / "r.db"
    add_proofs(path, write_study(path, 12, name="written"))
    go(path, trials=6)
    go(path, trials=9)
    go(path, trials=3, fresh=True)
    found = list(_rows(path))
    assert {"evokern_studies", "evokern_sessions", "evokern_trials", "evokern_samples", "evokern_proofs"} <= {
        table for table, _ in found
    }
    for table, row in found:
        assert row[COLUMN] == digest_of(row), (table, row)


def test_damage_is_told_in_one_line(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a damaged row says of itself makes no line of its own, which could say anything."""
    _change(path, "UPDATE evokern_trials SET uuid = 'a' || char(10) || 'PASS' WHERE number = 5")
    with caplog.at_level(logging.WARNING, "evokern"), open_readonly(path) as reader:
        assert reader.summary(reader.study())["damaged"]
    told = [message for message in caplog.messages if "trial 5" in message]
    assert told and not any("\n" in message for message in told)


def test_a_digest_is_of_what_the_columns_hold() -> None:
    """A column that a later version adds is NULL, and changes no digest; every other value does."""
    row = {"uuid": "a", "number": 3, "time_us": 1.5, "reason": None}
    assert digest_of(row) == digest_of({**row, "later": None, COLUMN: "x"})
    changes = ({"number": 4}, {"number": "3"}, {"reason": ""}, {"time_us": None}, {"uuid": "b"})
    assert len({digest_of(row), *(digest_of({**row, **change}) for change in changes)}) == 6


def test_a_damaged_trial_is_reported_and_skipped(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Readers go on without it: the next best is the champion, and the counts are of what is left."""
    with open_readonly(path) as reader:
        study = reader.study()
        best = reader.best(study)
        assert best is not None
        trials, outcomes = len(list(reader.trials(study))), reader.outcomes(study)
        assert reader.summary(study)["damaged"] == []
    _change(path, "UPDATE evokern_trials SET time_us = time_us / 2 WHERE number = ?", best.number)
    with caplog.at_level(logging.WARNING, "evokern"), open_readonly(path) as reader:
        summary = reader.summary(study)
        assert len(list(reader.trials(study))) == trials - 1
        assert summary["best"]["trial"] != best.number
        assert summary["outcomes"]["measured"] == outcomes["measured"] - 1
        (told,) = summary["damaged"]
        with pytest.raises(StoreError, match=f"trial {best.number}, row .* of evokern_trials is damaged"):
            reader.trial(study, best.number)
    assert told.startswith(f"trial {best.number}, row ")
    assert [told in message for message in caplog.messages] == [True], "once"


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("UPDATE evokern_trials SET study = 'x' || study WHERE number = 5", "trial 5, row"),
        ("UPDATE evokern_trials SET config = replace(config, ':', ';') WHERE number = 5", "trial 5, row"),
        ("DELETE FROM evokern_trials WHERE number = 5", "1 trial of study 'small' missing: 5"),
        ("UPDATE evokern_sessions SET baselines = replace(baselines, '9', '1')", "of evokern_sessions is damaged"),
        ("UPDATE evokern_proofs SET result = replace(result, 'passed', 'failed')", "of evokern_proofs is damaged"),
        ("UPDATE evokern_rejections SET count = count + 1", "count of 'ring_needs_lookahead' in evokern_rejections"),
        ("UPDATE evokern_samples SET samples_us = '[1.0]' WHERE rowid = 1", "samples of problem 0, trial"),
    ],
)
def test_each_kind_of_row_is_named(path: Path, sql: str, told: str) -> None:
    """A row that no longer says whose it is, one that is gone, and those beside the trials."""
    _change(path, sql)
    with open_readonly(path) as reader:
        study = reader.study()
        reader.summary(study)
        list(reader.trials(study, samples=True))
        assert any(told in one for one in reader.damaged), reader.damaged


def test_a_damaged_study_hides_no_other(path: Path) -> None:
    """It is refused by name; what was asked for by another name is read; without a name nobody guesses."""
    write_study(path, 3, name="other")
    _change(path, "UPDATE evokern_studies SET kernel = 'tinz' WHERE name = 'other'")
    with open_readonly(path) as reader:
        assert [study.name for study in reader.studies()] == ["small"]
        assert reader.study("small").kernel == "tiny"
        for name in ("other", None):
            with pytest.raises(StoreError, match=r"study 'other', row .* is damaged.*: small"):
                reader.study(name)


def test_a_session_that_names_another_study_changes_no_default_in_silence(path: Path) -> None:
    """Which study was searched last is what its sessions say; one that is damaged is told of."""
    write_study(path, 3, name="other")
    _change(path, "UPDATE evokern_sessions SET study = 'x' || study WHERE rowid = 2")
    with open_readonly(path) as reader:
        assert [study.name for study in reader.studies()] == ["small", "other"]
        assert "of evokern_sessions is damaged" in reader.damaged[0]


def test_damaged_source_is_shown_to_nobody_as_code(path: Path) -> None:
    """What would be built has to be whole; a page about the study does without."""
    _change(path, "UPDATE evokern_sources SET text = text || ' '")
    with open_readonly(path) as reader:
        digest = reader.study().kernel_digest
        with pytest.raises(StoreError, match=r"source 'kernel.cu' of evokern_sources is damaged"):
            reader.source(digest)
        assert reader.source(digest, shown=True) == {}


@pytest.mark.parametrize("how", ["text = text || ' '", f"text = text || ' ', {COLUMN} = NULL"])
def test_nobody_knows_what_was_verified_where_its_source_was_edited(path: Path, how: str) -> None:
    """The proof was of another text than the file shows: `show` says so, and the row is told of."""
    with open_readonly(path) as reader:
        study = reader.study()
        best = reader.best(study)
    assert best is not None
    own = {"state": "passed", "detail": "right", "share": 1.0, "covered": True}
    add_proof(path, study, "verify", best.number, {"stages": {"own problem": own}, "playoff": None})
    with open_readonly(path) as reader:
        summary = reader.summary(study)
        assert (summary["verified"], summary["damaged"]) == (True, [])
    _change(path, f"UPDATE evokern_sources SET {how} WHERE file = 'kernel.cu'")
    with open_readonly(path) as reader:
        summary = reader.summary(reader.study())
    assert summary["verified"] is None
    assert "source 'kernel.cu' of the verified trial is damaged" in summary["verified_reason"]
    assert "source 'kernel.cu' of evokern_sources is damaged" in summary["damaged"][0]


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("UPDATE evokern_trials SET time_us = 1.0 WHERE time_us > 0 AND number = 2", "trial 2, row .* is damaged"),
        ("DELETE FROM evokern_trials WHERE number = 1", "trial 1 of study small is missing"),
        ("UPDATE evokern_studies SET name = 'smalk'", "study 'smalk', row .* is damaged"),
        ("UPDATE evokern_studies SET seed = 8", "study 'small', row .* is damaged"),
    ],
)
def test_a_search_rejects_a_damaged_database(tmp_path: Path, sql: str, told: str) -> None:
    """Nor does it begin a study anew whose name is what changed."""
    path = tmp_path / "r.db"
    go(path, trials=4)
    if "number = 2" in sql:
        _change(path, "UPDATE evokern_trials SET time_us = 5.0, outcome = 'measured' WHERE number = 2")
        reseal(path)
    _change(path, sql)
    before = [row for _, row in _rows(path)]
    with pytest.raises(StoreError, match=told):
        go(path, trials=6)
    trials = [row for row in before if "config" in row]
    assert trials == [row for _, row in _rows(path) if "config" in row]


def test_writing_hides_no_damage(path: Path) -> None:
    """A row that is damaged gets no new digest by a change of another column."""
    _change(path, "UPDATE evokern_studies SET kernel = 'tinz'")
    with Store(path) as store, pytest.raises(StoreError, match="is damaged"):
        store.rename_old_study("small")


def test_a_row_without_its_digest_is_damaged(path: Path) -> None:
    """Where every row has had one, NULL is no way round: readers leave the row out, a search refuses it."""
    _change(path, f"UPDATE evokern_trials SET seconds = 7, {COLUMN} = NULL WHERE number = 2")
    _change(path, f"UPDATE evokern_sources SET text = text || ' ', {COLUMN} = NULL WHERE file = 'kernel.cu'")
    with open_readonly(path) as reader:
        study = reader.study()
        assert 2 not in {trial.number for trial in reader.trials(study)}
        assert 2 not in {trial.number for _, trial in reader.trials_since(study, 0)[0]}
        assert reader.damaged[0].startswith("trial 2, row ")
        with pytest.raises(StoreError, match=r"source 'kernel.cu' of evokern_sources is damaged"):
            reader.source(study.kernel_digest)
    with Store(path) as store:
        found = store.study("small")
        assert found is not None
        with pytest.raises(StoreError, match="trial 2, row"):
            store.session(found, small_table().space()).recorded_trials()


def test_opening_for_writing_seals_rows_of_before(path: Path) -> None:
    """They count as they stand before, and changed after it they are damaged."""
    _unseal(path)
    _change(path, "UPDATE evokern_trials SET seconds = 7 WHERE number = 2")
    with Store(path):
        pass
    assert all(row[COLUMN] == digest_of(row) for _, row in _rows(path))
    with open_readonly(path) as reader:
        assert {trial.number: trial for trial in reader.trials(reader.study())}[2].seconds == 7
    _change(path, "UPDATE evokern_trials SET seconds = 8 WHERE number = 2")
    with open_readonly(path) as reader:
        assert 2 not in {trial.number for trial in reader.trials(reader.study())}


def _unseal(path: Path) -> None:
    """Make a file as a version wrote it that had no digests yet, with their column."""
    for table in TABLES:
        with sqlite3.connect(path) as db:
            db.execute(f"UPDATE {table} SET {COLUMN} = NULL")
        db.close()
    _change(path, "DELETE FROM _sqlite_migrations WHERE name = ?", SEALED)


def test_rows_of_before_the_digests_count_as_they_stand(path: Path) -> None:
    """Those of earlier versions, whatever they say; what cannot be read is left out."""
    _unseal(path)
    _change(path, f"UPDATE evokern_trials SET seconds = 7, {COLUMN} = NULL WHERE number = 2")
    _change(path, f"UPDATE evokern_trials SET evidence = '[', {COLUMN} = NULL WHERE number = 3")
    _change(path, f"UPDATE evokern_trials SET gate = '[0.5]', {COLUMN} = NULL WHERE number = 5")
    with open_readonly(path) as reader:
        study = reader.study()
        trials = {trial.number: trial for trial in reader.trials(study)}
        assert trials[2].seconds == 7
        assert not {3, 5} & set(trials)
        (broken, mistaken) = reader.damaged
        assert "it cannot be read (Expecting value: line 1 column 2 (char 1)" in broken
        assert "it cannot be read (expected a dict, found a list)" in mistaken


def test_text_that_is_no_text_is_damage(path: Path) -> None:
    """Bytes that are no UTF-8 stop no reader."""
    _change(path, "UPDATE evokern_trials SET reason = CAST(x'ff41' AS TEXT) WHERE number = 4")
    with open_readonly(path) as reader:
        assert len(list(reader.trials(reader.study()))) == 11
        assert "trial 4, row" in reader.damaged[0]


def test_a_page_of_nothing_is_found_before_it_is_read(path: Path) -> None:
    """SQLite looks through a file of usual size first: rows that a damaged page lost would be missed by nobody."""
    with sqlite3.connect(path) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'evokern_rejections'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    db.close()
    data = bytearray(path.read_bytes())
    data[(page - 1) * size + 3 : (page - 1) * size + 5] = b"\x00\x63"
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"is corrupt.*\.recover"):
        open_readonly(path)


def test_a_study_is_kept_with_its_digest(tmp_path: Path) -> None:
    """A record comes back as it went in."""
    with Store(tmp_path / "r.db") as store:
        made = store.create(record(), {"kernel.cu": "x"})
        assert store.study("small") == made


@pytest.mark.parametrize("name", [b"proposed_s", b"leavings"])
def test_a_name_that_is_no_text_is_damage(path: Path, name: bytes) -> None:
    """A column whose name is no UTF-8 any more stops readers and writers with the remedy."""
    path.write_bytes(path.read_bytes().replace(name, name[:3] + b"\xff" + name[4:]))
    with pytest.raises(StoreError, match=r"restore a backup|cannot be used|\.recover"), Store(path) as store:
        store.session(record(), small_table().space()).recorded_trials()


@pytest.mark.parametrize("table", ["evokern_rejections", "evokern_proofs", "evokern_sessions"])
def test_a_row_that_no_longer_says_whose_it_is_is_told(table: str, tmp_path: Path) -> None:
    """It is not that study's any more by its text: what would be missing from an answer is named all the same."""
    study = write_study(tmp_path / "r.db", 12)
    add_proofs(tmp_path / "r.db", study)
    with closing(sqlite3.connect(tmp_path / "r.db")) as database, database:
        database.execute(f"UPDATE {table} SET study = 'x' || study WHERE rowid = (SELECT min(rowid) FROM {table})")
    with open_readonly(tmp_path / "r.db") as reader:
        reader.sessions(study)
        reader.rejections(study)
        for kind in ("verify", "ablate"):
            reader.proofs(study, kind)
        assert len(reader.damaged) == 1
        assert "changed on disk" in reader.damaged[0]


def test_a_warm_start_that_no_longer_says_whose_it_is_is_not_left_out(tmp_path: Path) -> None:
    """The study would go on as if it had begun without one."""
    study = write_study(tmp_path / "r.db", 4)
    config = small_table().space().default()
    with Store(tmp_path / "r.db") as store:
        store.write_prior(study, Prior(((config, 1.0),), "sim"))
        assert store.prior(study) is not None
    _change(tmp_path / "r.db", "UPDATE evokern_priors SET study = 'x' || study")
    with Store(tmp_path / "r.db") as store, pytest.raises(StoreError, match="evokern_priors is damaged"):
        store.prior(study)
