"""The store: what is written comes back, the file is safe to use, and every unusable file has a remedy."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from engine_helpers import small_table, tiny_table
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_studies import FIELDS, MEASURED, record, write_study

from evokern.declaration.genes import Config
from evokern.declaration.problem import ProblemField
from evokern.device import BaselineResult, StartReport
from evokern.errors import StoreError, StudyError
from evokern.samplers import TrialResult
from evokern.store import ALGEBRA, Store, StudyRecord, add_proof, dumps, fastest_baseline, interval_us, open_readonly
from evokern.store import _files as files
from evokern.store._schema import migrations
from evokern.store.records import evaluation_of, evaluation_row, trial_of
from evokern.study.trial import REQUIRED_EVIDENCE, Evaluation, Outcome, Proposal, Timing, Trial
from evokern.wording import missing_baseline_text, outcome_counts, verification_text

BASELINES = (
    BaselineResult("math", (Timing(103.0, (102.0, 104.0), (103.0,)),)),
    BaselineResult("cudnn", (Timing(9.2, (9.1, 9.3), (9.2,)),)),
    BaselineResult("broken", error="wrong answer"),
)


def fill(store: Store, outcomes: list[Evaluation]) -> StudyRecord:
    """Write one study whose trials end as listed."""
    table = tiny_table()
    space = table.space()
    study = store.create(record(), {"kernel.cu": "__global__ void k() {}"})
    session = store.session(study, space)
    session.write_start_report(StartReport(BASELINES, {"driver": "580.95"}, ("a foreign load",)))
    cells = [config for config in space.grid() if space.feasible(config)]
    for number, evaluation in enumerate(outcomes):
        proposal = Proposal(cells[number], {"operator": "draw"}, {"rows": 2, "warps": 1})
        session.propose(number, proposal, 1.0 + number)
        trial = Trial(number, proposal, evaluation, 2.0 + number)
        session.record(trial, 2.0 + number)
        session.write_result(TrialResult.of(trial))
    session.ended(2.0 + len(outcomes), "trials")
    return study


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    """Study, session, trial with all its samples, sources: reading gives what was written, without the kernel."""
    db = tmp_path / "a.db"
    with Store(db) as store:
        study = fill(store, [MEASURED])
    with open_readonly(db) as reader:
        assert reader.study("small") == study
        assert reader.study(None) == study
        session = reader.sessions(study)[0]
        assert (session.baselines, session.notes, session.end_reason) == (BASELINES, ("a foreign load",), "trials")
        assert session.environment == {"driver": "580.95"}
        found = reader.trial(study, 0)
        assert found.trial.evaluation == MEASURED
        assert found.trial.proposal.rejections == {"rows": 2, "warps": 1}
        assert [trial.evaluation for trial in reader.trials(study, samples=True)] == [MEASURED]
        assert reader.source("d1") == {"kernel.cu": "__global__ void k() {}"}


def test_a_problem_scaled_down_is_named_beside_what_ran_of_the_study_s_own(tmp_path: Path) -> None:
    """What a simulated candidate was judged at is told with its verification, until one says more itself."""
    own = {"4096": {"blocks": 0, "of": 64, "judged": False, "covered": False, "coverage": {}, "scaled": "256"}}
    db = tmp_path / "a.db"
    with Store(db) as store:
        study = fill(store, [replace(MEASURED, evidence={"own_problem": own})])
    predicted = replace(study, predicted=True, fields=(ProblemField("N"),))
    with open_readonly(db) as reader:
        found = reader.verification(predicted, reader.trial(study, 0).trial).as_dict()
    assert found["verified_scaled"] == ["N=256"]
    told = verification_text(found)
    assert told.startswith(f"not verified: {found['verified_reason']} (so far, 0 % of its blocks ran")
    assert told.endswith(" scaled down to N=256)")
    add_proof(db, study, "verify", 0, {"stages": {"own problem": {
        "state": "passed", "detail": "all 64 blocks ran", "share": 1.0, "covered": True,
    }}})  # fmt: skip
    with open_readonly(db) as reader:
        found = reader.verification(predicted, reader.trial(study, 0).trial).as_dict()
    assert (found["verified"], found["verified_scaled"]) == (True, [])
    assert "scaled down" not in verification_text(found)


def test_the_latest_comparison_in_exact_arithmetic_counts(tmp_path: Path) -> None:
    """A trial has that of its search, then that of `verify` or `prove`; older databases have none."""
    outputs = {"y": {"verdict": "same", "reference": "equal"}, "s": {"verdict": "same", "reference": "no rule"}}
    facts = {"outputs": outputs, "problems": ["64"], "unfinished": {"4096": "it was stopped"}}
    db = tmp_path / "a.db"
    with Store(db) as store:
        study = fill(store, [replace(MEASURED, evidence={"algebra": facts}), MEASURED,
                             replace(MEASURED, evidence={"algebra": {"outputs": 3}})])  # fmt: skip
    texts = []
    for kind, result in (
        (None, {}),
        ("verify", {"stages": {"algebra": {"state": "skipped", "detail": "y is not comparable"}}}),
        (ALGEBRA, {"detail": "y is the same", **facts}),
    ):
        if kind is not None:
            add_proof(db, study, kind, 0, result)
        with open_readonly(db) as reader:
            texts.append([reader.verification(study, trial).algebra for trial in reader.trials(study)])
    assert texts[0][0] == (
        "y is the same expression as the default candidate's, which equals the reference; s is the same expression as "
        "the default candidate's, which is not compared with the reference: no rule; at 64; at 4096, it was stopped; "
        "not covered: roundings, overflow, races and other problems (docs/proof.md)"
    )
    assert [one[0] for one in texts[1:]] == ["y is not comparable", "y is the same"]
    assert all(one[1:] == ["not compared", "not compared"] for one in texts)


def test_a_study_keeps_the_names_of_its_problems_fields(tmp_path: Path) -> None:
    """What people read of a problem comes from the file alone; a study from before the names has its keys."""
    db, problems = tmp_path / "a.db", ("2,8,512,64,0", "2,8,512,128,1")
    with Store(db) as store:
        store.create(record("named", fields=FIELDS, problems=problems), {})
        store.create(record("bare", problems=problems), {})
    with open_readonly(db) as reader:
        named, bare = reader.study("named"), reader.study("bare")
    assert (named.fields, named.problems) == (FIELDS, problems)
    assert named.problems_in_words() == "B=2 H=8 S=512 D=64 and B=2 H=8 S=512 D=128 causal=1"
    assert named.in_words(problems[0], every=True) == "B=2 H=8 S=512 D=64 causal=0"
    assert named.meanings(problems[1])[3:] == (("D", 128, "head dimension"), ("causal", 1, "hide keys"))
    assert (bare.problems_in_words(), bare.meanings(problems[0])) == (" and ".join(problems), ())
    assert [named.problem_index(text) for text in ("1", problems[1], "D=128 causal=1 B=2 H=8 S=512")] == [1, 1, 1]
    assert [bare.problem_index(text) for text in ("1", problems[1])] == [1, 1]
    for study, text in ((named, "B=2 H=8 S=512 D=64 causal=1"), (named, "2"), (bare, "B=2")):
        with pytest.raises(StudyError, match=rf"has no problem {text}; .*0 \("):
            study.problem_index(text)


def test_summary_is_the_object_that_show_prints(tmp_path: Path) -> None:
    """`show --json`: these keys, in this order, with counts, the fastest right baseline, and the champion."""
    crashed = Evaluation(Outcome.CRASHED, evidence={"error": "CUDA_ERROR_ILLEGAL_ADDRESS"})
    with Store(tmp_path / "a.db") as store:
        study = fill(store, [crashed, MEASURED, crashed])
    with open_readonly(tmp_path / "a.db") as reader:
        summary = reader.summary(study)
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
    ]
    assert list(summary) == keys
    assert (summary["study"], summary["device"], summary["predicted"]) == ("small", "NVIDIA H200", False)
    assert summary["trials"] == 3
    assert summary["outcomes"] == {outcome.value: 0 for outcome in Outcome} | {"crashed": 2, "measured": 1}
    assert summary["rejections"] == {"rows": 6, "warps": 3}
    assert (summary["elapsed_s"], summary["budget_s"]) == (5.0, 60.0)
    assert summary["baseline"] == {"name": "cudnn", "time_us": 9.2}
    best = summary["best"]
    assert list(best) == ["trial", "time_us", "ci95_us", "speedup", "speedup_ci95", "in_turn", "config"]
    assert (best["trial"], best["time_us"], best["speedup"]) == (1, 5.5, pytest.approx(9.2 / 5.5))
    assert best["ci95_us"] == pytest.approx([5.4, 5.6])
    assert (best["speedup_ci95"], best["in_turn"]) == (None, None)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_slow_trials_are_told_apart(tmp_path: Path) -> None:
    """Who was given up before the gate judged it is no candidate that passed it and lost the race."""
    timing = Timing(9.5, (9.4, 9.6), (9.4, 9.5, 9.6))
    raced = Evaluation(Outcome.SLOW, 9.5, (timing,), evidence={"elite_us": 5.5})
    screened = Evaluation(Outcome.SLOW, evidence={"elite_us": 5.5, "limit_us": 12.1, "unproved": True})
    predicted = Evaluation(Outcome.SLOW, 20.0, evidence={"elite_us": 5.5, "predicted_us": 20.0})
    with Store(tmp_path / "a.db") as store:
        study = fill(store, [MEASURED, raced, screened, predicted])
    with open_readonly(tmp_path / "a.db") as reader:
        summary = reader.summary(study)
    assert (summary["outcomes"]["slow"], summary["slow"]) == (3, {"raced_out": 1, "screened": 2})
    assert outcome_counts(summary) == "3 slow (2 screened, 1 raced out), 1 measured"
    summary |= {"slow": {"raced_out": 3, "screened": 0}}
    assert outcome_counts(summary) == "3 slow (all raced out), 1 measured"
    assert outcome_counts(summary | {"predicted": True}) == "3 slow, 1 measured"


def test_a_study_without_results_has_a_summary(tmp_path: Path) -> None:
    """Nothing measured yet: no champion, no crash."""
    with Store(tmp_path / "a.db") as store:
        study = store.create(record(), {})
    with open_readonly(tmp_path / "a.db") as reader:
        assert (reader.summary(study)["best"], reader.summary(study)["baseline"]) == (None, None)
        with pytest.raises(StudyError, match="no trials yet"):
            reader.trial(study, 0)


@settings(max_examples=60)
@given(
    outcome=st.sampled_from(list(Outcome)),
    time_us=st.floats(0.1, 1e6),
    samples=st.lists(st.floats(0.1, 1e6), max_size=5),
    error=st.floats(allow_nan=True, allow_infinity=True),
    text=st.text(max_size=30),
)
def test_every_evaluation_survives_its_row(
    outcome: Outcome, time_us: float, samples: list[float], error: float, text: str
) -> None:
    """Any outcome, any evidence: its row gives it back; NaN and infinities become texts, so that JSON stays strict."""
    evidence = dict.fromkeys(REQUIRED_EVIDENCE[outcome], 1.0) | {"error": text, "worst": error}
    timings = (Timing(time_us, (time_us, time_us), tuple(samples)),) if samples else ()
    evaluation = Evaluation(outcome, time_us, timings, fingerprint=text, evidence=evidence, gate={"worst": [error]})
    row = evaluation_row(evaluation)
    back = evaluation_of(row, {0: samples})
    finite = error == error and abs(error) != float("inf")
    assert back.evidence["worst"] == (error if finite else str(error))
    assert (back.outcome, back.time_us, back.timings, back.fingerprint) == (outcome, time_us, timings, text)
    json.loads(row["gate"], parse_constant=lambda name: pytest.fail(f"{name} is no strict JSON"))


def test_an_interval_over_several_problems_is_relative(tmp_path: Path) -> None:
    """Over two problems the interval is the objective times the geometric mean of the relative ends."""
    timings = (Timing(4.0, (3.6, 4.4), (4.0,)), Timing(9.0, (8.1, 9.9), (9.0,)))
    assert interval_us(Evaluation(Outcome.MEASURED, 6.0, timings)) == pytest.approx((5.4, 6.6))
    assert fastest_baseline((BaselineResult("two", timings),)) == ("two", pytest.approx(6.0))


def test_an_interrupted_trial_is_proposed_and_not_recorded(tmp_path: Path) -> None:
    """A trial stands in both tables before it is evaluated; readers show it only when it is recorded."""
    table = tiny_table()
    space = table.space()
    with Store(tmp_path / "a.db") as store:
        study = store.create(record(), {})
        session = store.session(study, space)
        session.propose(0, Proposal(space.default(), {"operator": "draw"}), 0.5)
    with Store(tmp_path / "a.db") as store:
        again = store.session(study, space)
        assert again.recorded_trials() == ([Proposal(space.default(), {"operator": "draw"})], [])
        assert again.before_s == 0.0
    with open_readonly(tmp_path / "a.db") as reader:
        assert list(reader.trials(study)) == []
        with pytest.raises(StudyError, match="trial 0 of study small has no result yet"):
            reader.trial(study, 0)
    assert optuna.load_study(study_name="small", storage=f"sqlite:///{tmp_path}/a.db").trials[0].state.name == "RUNNING"


def test_adopting_mends_what_an_interruption_left_half_written(tmp_path: Path) -> None:
    """Optuna's half missing (trial, parameters or end) is written on resume; doing it twice changes nothing."""
    table = tiny_table()
    space = table.space()
    db = tmp_path / "a.db"
    with Store(db) as store:
        study = fill(store, [MEASURED] * 3)
    with sqlite3.connect(db) as connection:
        connection.execute("DELETE FROM trial_values WHERE trial_id = 3")
        connection.execute("UPDATE trials SET state = 'RUNNING', datetime_complete = NULL WHERE trial_id = 3")
        connection.execute("DELETE FROM trial_params WHERE trial_id = 3 AND param_name = 'TILE'")
    connection.close()
    for _ in range(2):
        with Store(db) as store:
            session = store.session(study, space)
            proposals, trials = session.recorded_trials()
            session.complete_optuna_rows(proposals, [TrialResult.of(trial) for trial in trials])
        found = optuna.load_study(study_name="small", storage=f"sqlite:///{db}").get_trials()
        assert [trial.state.name for trial in found] == ["COMPLETE"] * 3
        assert [trial.params for trial in found] == [dict(trial.config) for trial in trials]


def test_what_is_written_together_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """Steps that fail half-way leave neither our rows nor Optuna's; those before them stay."""
    table = tiny_table()
    space = table.space()
    cells = [config for config in space.grid() if space.feasible(config)]
    with Store(tmp_path / "a.db") as store:
        study = store.create(record(), {})
        session = store.session(study, space)
        session.propose(0, Proposal(cells[0]), 0.5)
        with pytest.raises(ZeroDivisionError), session.transaction():
            trial = Trial(0, Proposal(cells[0]), MEASURED)
            session.record(trial, 1.0)
            session.write_result(TrialResult.of(trial))
            session.propose(1, Proposal(cells[1], rejections={"rows": 3}), 1.0)
            raise ZeroDivisionError
    with Store(tmp_path / "a.db") as store:
        session = store.session(study, space)
        session.propose(1, Proposal(cells[2]), 1.5)
        assert session.recorded_trials() == ([Proposal(cells[0]), Proposal(cells[2])], [])
    trials = optuna.load_study(study_name="small", storage=f"sqlite:///{tmp_path}/a.db").get_trials()
    assert [(t.number, t.params, t.state.name) for t in trials] == [
        (0, dict(cells[0]), "RUNNING"),
        (1, dict(cells[2]), "RUNNING"),
    ]


def test_tables_of_another_optuna_are_refused(tmp_path: Path) -> None:
    """Rows are not written into tables that Optuna has changed since; the message names the way on."""
    db = tmp_path / "a.db"
    with Store(db) as store:
        fill(store, [MEASURED])
    with sqlite3.connect(db) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v3.0.0.d'")
    connection.close()
    with pytest.raises(StoreError, match=r"another Optuna version.*optuna storage upgrade"):
        Store(db)


def test_fresh_sets_the_old_study_aside_in_both_tables(tmp_path: Path) -> None:
    """`--fresh` renames NAME to NAME.1, then NAME.2, here and in Optuna's tables; nothing is deleted."""
    db = tmp_path / "a.db"
    with Store(db) as store:
        fill(store, [MEASURED])
        assert store.rename_old_study("small") == "small.1"
        fill(store, [])
        assert store.rename_old_study("small") == "small.2"
    with open_readonly(db) as reader:
        assert [study.name for study in reader.studies()] == ["small.2", "small.1"]
        assert reader.summary(reader.study("small.1"))["trials"] == 1
    assert optuna.get_all_study_names(f"sqlite:///{db}") == ["small.1", "small.2"]


def test_the_log_is_folded_in_at_exit(tmp_path: Path) -> None:
    """After closing there is one file, which can be copied away; it remains in write-ahead mode."""
    with Store(tmp_path / "a.db") as store:
        fill(store, [MEASURED])
        assert (tmp_path / "a.db-wal").stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]
    with open_readonly(tmp_path / "a.db") as reader:
        reader.summary(reader.study())
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_every_write_is_durable(tmp_path: Path) -> None:
    """The connection that writes: write-ahead log, synchronous=FULL, a timeout of at least 30 s."""
    with Store(tmp_path / "a.db") as store:
        execute = store.db.conn.execute
        assert execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert execute("PRAGMA synchronous").fetchone() == (2,)
        assert execute("PRAGMA busy_timeout").fetchone()[0] >= 30_000


def test_datasette_and_sqlite_utils_can_read_it(tmp_path: Path) -> None:
    """Strict tables of plain columns: configuration and evidence are JSON that SQL can look into."""
    with Store(tmp_path / "a.db") as store:
        fill(store, [MEASURED])
    with sqlite3.connect(tmp_path / "a.db") as connection:
        sql = "SELECT json_extract(config, '$.TILE'), time_us, registers, shared_bytes FROM evokern_trials"
        assert connection.execute(sql).fetchone() == (16, 5.5, 128, 65536)
        schemas = connection.execute("SELECT sql FROM sqlite_master WHERE name LIKE 'evokern_%' AND type = 'table'")
        assert all(text.rstrip().endswith("STRICT") for (text,) in schemas)


def test_reading_does_not_wait_for_optuna_or_the_kernel() -> None:
    """What reads a database imports neither Optuna, SQLAlchemy, torch nor CuPy."""
    code = (
        "import sys, evokern.store; print([m for m in ('optuna', 'sqlalchemy', 'torch', 'cupy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Unusable files: each one StoreError that names the file and the remedy, nothing changed.


@pytest.mark.thorough
def test_a_file_in_use_says_by_whom(tmp_path: Path) -> None:
    """Another process's search is named with its command, process and host; a dead one's lock is taken over."""
    db = tmp_path / "a.db"
    code = f"import time; from evokern.store import Store; s = Store({str(db)!r}); print('open', flush=True)"
    code += "; time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match=rf"in use by .*process {other.pid} .*--db"):
            Store(db)
    finally:
        other.kill()
        other.wait()
    assert (tmp_path / "a.db.lock").exists()
    Store(db).close()
    assert not (tmp_path / "a.db.lock").exists()


def test_one_process_cannot_search_a_file_twice(tmp_path: Path) -> None:
    """The system's lock does not keep a process from itself, so the store does."""
    with Store(tmp_path / "a.db"), pytest.raises(StoreError, match="in use by another search in this process"):
        Store(tmp_path / "a.db")
    Store(tmp_path / "a.db").close()


@pytest.mark.thorough
def test_a_database_made_in_vain_is_removed(tmp_path: Path) -> None:
    """A file made for what failed before a study stood in it is removed; one that was there or has a study stays."""

    def fails(db: Path, *, studies: bool) -> None:
        with pytest.raises(RuntimeError, match="vain"), Store(db) as store:
            if studies:
                fill(store, [MEASURED])
            raise RuntimeError("in vain")

    fails(tmp_path / "empty.db", studies=False)
    fails(tmp_path / "full.db", studies=True)
    Store(tmp_path / "earlier.db").close()
    fails(tmp_path / "earlier.db", studies=False)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["earlier.db", "full.db"]


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """Readers and writers refuse a file with migrations they do not know, and leave it as it is."""
    db = tmp_path / "a.db"
    Store(db).close()
    with sqlite3.connect(db) as connection:
        connection.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES (?, ?, ?)",
            [migrations.name, "m999_from_the_future", "2030"],
        )
    connection.close()
    before = db.read_bytes()
    for use in (Store, open_readonly):
        with pytest.raises(StoreError, match=r"newer evokern .*m999_from_the_future.*upgrade evokern"):
            use(db)
    assert db.read_bytes() == before


@pytest.mark.parametrize("damage", ["text", "truncated", "overwritten"])
def test_a_corrupt_file_is_refused(damage: str, tmp_path: Path) -> None:
    """A file that is no database, or a damaged one, is refused with how to save what can be saved."""
    db = tmp_path / "a.db"
    with Store(db) as store:
        fill(store, [MEASURED] * 20)
    raw = db.read_bytes()
    spoilt = {"text": b"not a database " * 100, "truncated": raw[: len(raw) // 2]}
    db.write_bytes(spoilt.get(damage, raw[:8192] + b"\xff" * 16384 + raw[24576:]))
    with pytest.raises(StoreError, match=r"corrupt.*\.recover"):
        Store(db)
    assert not (tmp_path / "a.db.lock").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write read-only files")
def test_read_only_places_are_refused_for_writing_and_fine_for_reading(tmp_path: Path) -> None:
    """A read-only file or folder: searching names the remedy, reading works."""
    db = tmp_path / "a.db"
    with Store(db) as store:
        fill(store, [MEASURED])
    for path, mode in ((db, 0o444), (tmp_path, 0o555)):
        path.chmod(mode)
        with pytest.raises(StoreError, match=r"read-only.*--db"):
            Store(db)
        with open_readonly(db) as reader:
            assert reader.summary(reader.study())["trials"] == 1
    tmp_path.chmod(0o755)


def test_read_only_is_recognised_for_every_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with the system's answer in place of the file's mode."""
    db = tmp_path / "a.db"
    with Store(db) as store:
        fill(store, [MEASURED])
    monkeypatch.setattr(files.os, "access", lambda path, mode: False)
    with pytest.raises(StoreError, match=r"read-only.*--db"):
        Store(db)
    with open_readonly(db) as reader:
        assert reader.summary(reader.study())["trials"] == 1


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's locks do not hold there; the message names the file system and what to do."""
    monkeypatch.setattr(files, "file_system", lambda path: "nfs4")
    with pytest.raises(StoreError, match=r"network file system \(nfs4\).*local disk"):
        Store(tmp_path / "a.db")


def test_the_file_system_of_a_path_is_found() -> None:
    """The longest mount point that is a parent counts; /proc is a well-known one."""
    assert files.file_system(Path("/proc/self")) == "proc"


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    """Running out of space ends the search with a remedy; what was recorded before stays and the file is sound."""
    db = tmp_path / "a.db"
    table = small_table()
    with Store(db) as store:
        study = fill(store, [MEASURED])
        session = store.session(study, tiny_table().space())
        pages = store.db.conn.execute("PRAGMA page_count").fetchone()[0]
        store.db.conn.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match=r"a\.db is full.*free space.*same command"):
            for number, config in enumerate(table.answers, start=1):
                session.propose(number, Proposal(config, {"text": "x" * 4000}), 1.0)
    with open_readonly(db) as reader:
        assert reader.summary(study)["trials"] == 1
    with sqlite3.connect(db) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_lock_of_another_program_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that keeps a write transaction open is waited for, then named as the trouble."""
    db = tmp_path / "a.db"
    Store(db).close()
    monkeypatch.setattr(files, "TIMEOUT_S", 0.2)
    with Store(db) as store:
        blocker = sqlite3.connect(db, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"locked by another program.*close "):
            store.create(record(), {})
        blocker.close()


@pytest.mark.parametrize("use", [Store, open_readonly])
def test_places_that_cannot_be(use: type, tmp_path: Path) -> None:
    """A folder, and a file in a folder that is missing: said at once, nothing created."""
    with pytest.raises(StoreError):
        use(tmp_path)
    with pytest.raises(StoreError):
        use(tmp_path / "no" / "a.db")
    assert list(tmp_path.iterdir()) == []


def test_reading_another_programs_database_advises_no_search_on_it(tmp_path: Path) -> None:
    """A search refuses it, too."""
    db = tmp_path / "a.db"
    with sqlite3.connect(db) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    with pytest.raises(StoreError, match=r"another program's database.*theirs.*--db"):
        open_readonly(db)


def test_a_database_of_optunas_alone_is_no_results_yet(tmp_path: Path) -> None:
    """Reading says that no study of ours is in it; writing adds our tables beside Optuna's."""
    db = tmp_path / "a.db"
    optuna.create_study(study_name="theirs", storage=f"sqlite:///{db}")
    with pytest.raises(StoreError, match="contains no evokern study"):
        open_readonly(db)
    with Store(db) as store:
        fill(store, [MEASURED])
    assert sorted(optuna.get_all_study_names(f"sqlite:///{db}")) == ["small", "theirs"]


def test_an_unknown_study_names_the_nearest(tmp_path: Path) -> None:
    """`show attenton` on a file with `attention-s512` says which there are."""
    with Store(tmp_path / "a.db") as store:
        store.create(record("attention-s512"), {})
    with open_readonly(tmp_path / "a.db") as reader, pytest.raises(StudyError, match="did you mean 'attention-s512'"):
        reader.study("attention-s51")


def test_json_of_odd_values() -> None:
    """Numbers of numpy, sets and configurations become plain JSON."""
    import numpy as np

    assert dumps({"a": np.int64(3), "b": np.float32(0.5), "c": (1, 2), "d": Config({"T": 1})}) == (
        '{"a":3,"b":0.5,"c":[1,2],"d":{"T":1}}'
    )


def test_trials_of_rows_need_no_space() -> None:
    """A row becomes a trial without the kernel that declared its genes."""
    row = evaluation_row(MEASURED) | {"number": 4, "config": '{"X":1}', "proposal": None, "seconds": 2.5}
    assert trial_of(row).config == Config({"X": 1})
    assert trial_of(row).seconds == 2.5


@pytest.mark.thorough
@pytest.mark.parametrize("reason", ["trials", "budget", "interrupted", "failed"])
def test_an_ended_session_leaves_no_trial_running(tmp_path: Path, reason: str) -> None:
    """Optuna's tables then have the end of all that is recorded, also behind a gap; what is not recorded waits.

    A session that takes it up makes it run again, and the objective has its name in all of them.
    """
    table, db = tiny_table(), tmp_path / "a.db"
    space = table.space()
    cells = [config for config in space.grid() if space.feasible(config)]
    with Store(db) as store:
        study = store.create(record(), {})
        session = store.session(study, space)
        for number in range(3):
            session.propose(number, Proposal(cells[number]), 0.5)
        session.record(Trial(2, Proposal(cells[2]), MEASURED), 1.0)
        session.ended(1.0, reason)
    found = optuna.load_study(study_name="small", storage=f"sqlite:///{db}")
    assert [trial.state.name for trial in found.trials] == ["WAITING", "WAITING", "COMPLETE"]
    assert found.metric_names == ["log(time in µs)"]
    with Store(db) as store:
        session = store.session(study, space)
        proposals, trials = session.recorded_trials()
        session.complete_optuna_rows(proposals, [])
        assert [trial.number for trial in trials] == [2]
        again = optuna.load_study(study_name="small", storage=f"sqlite:///{db}")
        assert [trial.state.name for trial in again.trials] == ["RUNNING", "RUNNING", "COMPLETE"]
        for number in (0, 1):
            trial = Trial(number, proposals[number], MEASURED)
            session.record(trial, 1.0)
            session.write_result(TrialResult.of(trial))
        session.ended(1.0, "trials")
    again = optuna.load_study(study_name="small", storage=f"sqlite:///{db}")
    assert [(trial.state.name, trial.value) for trial in again.trials] == 3 * [("COMPLETE", math.log(5.5))]


def test_trials_and_how_they_stand_are_read_in_one_pass(tmp_path: Path) -> None:
    """The champion after the trials costs no second look through all rows; a change in between is seen."""
    study = write_study(tmp_path / "r.db", 20)
    asked: list[str] = []
    with open_readonly(tmp_path / "r.db") as reader:
        expected = reader.best(study), reader.outcomes(study), list(reader.trials(study, samples=True))
    with open_readonly(tmp_path / "r.db") as reader:
        reader._db.conn.set_trace_callback(asked.append)
        trials = list(reader.trials(study, samples=True))
        assert (reader.best(study), reader.outcomes(study), trials) == expected
        whole = [one for one in asked if "FROM evokern_trials" in one and ("WHERE 1" in one or "outcome IS NOT" in one)]
        assert len(whole) == 1, whole
        with Store(tmp_path / "r.db") as store:
            store.rename_old_study("small")
        write_study(tmp_path / "r.db", 3)
        assert len(list(reader.trials(reader.study("small")))) == 3
        assert sum(reader.outcomes(reader.study("small")).values()) == 3


def test_a_tie_is_no_reason_to_prefer_what_nobody_proved(tmp_path: Path) -> None:
    """Of a playoff's champion and its ties the verified one stays champion; one that is really slower does not."""
    path = tmp_path / "r.db"
    study = write_study(path, trials=12)
    with open_readonly(path) as reader:
        measured = [one for one in reader.trials(study) if one.outcome is Outcome.MEASURED]
    first, second, third = (one.number for one in sorted(measured, key=lambda one: one.evaluation.time_us or 0.0)[:3])

    def champion(asked: int, *places: tuple[int, str], passed: bool = True) -> int | None:
        finalists = [
            {"name": f"trial {number}", "standing": standing, "time_us": 5.0 + 0.001 * place, "ci95_us": (4.9, 5.1)}
            for place, (number, standing) in enumerate(places)
        ]
        stages = {"gate": {"state": "passed" if passed else "failed", "detail": "told"}}
        add_proof(path, study, "verify", asked, {"stages": stages, "playoff": {"finalists": finalists, "rounds": 8}})
        with open_readonly(path) as reader:
            best = reader.best(study)
        return best.number if best else None

    assert champion(first, (second, "champion"), (first, "tie"), (third, "tie")) == first
    assert champion(first, (second, "champion"), (first, "slower"), (third, "tie")) == second
    assert champion(third, (second, "champion"), (third, "tie"), (first, "slower")) == third
    assert champion(first, (second, "champion"), (first, "tie"), passed=False) == second


def test_rejected_baselines_are_named(tmp_path: Path) -> None:
    """A baseline that failed is named with its error, in the summary and in the texts that say why there is no time."""
    error = "wrong (check tolerance, largest error 3 × the tolerance): y[0] is 4, expected 1"
    with Store(tmp_path / "a.db") as store:
        study = fill(store, [MEASURED])
        session = store.session(study, tiny_table().space())
        session.write_start_report(StartReport((BaselineResult("cudnn", error=error),)))
        session.ended(1.0, "trials")
    with open_readonly(tmp_path / "a.db") as reader:
        summary = reader.summary(study)
    assert summary["rejected_baselines"] == {"cudnn": error}
    assert missing_baseline_text(summary["rejected_baselines"]) == f"baseline cudnn was rejected: {error}"
    assert missing_baseline_text({}) == "no baseline was measured"
