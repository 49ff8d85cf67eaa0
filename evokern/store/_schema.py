"""Our tables, beside Optuna's in the same file, and how older files are brought up to date.

A migration that has shipped is never edited: a change is a new one at the end, with a small old database kept as a
test fixture. Rows carry their own UUIDs, because Optuna hands out a deleted study's id again; nothing refers to
Optuna's tables.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sqlite_utils import Database, Migrations

from evokern.errors import StoreError
from evokern.store._integrity import COLUMN, TABLES, UNREADABLE, change_rows, seal_the_rest, select, sound
from evokern.store.records import SessionRecord, fastest_baseline

migrations = Migrations("evokern")
"""Every change of our tables, in order."""
READABLE = "trials_readable"
"""View of the trials for people."""
# Genes whose value is not the default's, in the order of their declaration; a text that is no JSON, as damage may leave
# one, is shown as no change instead of ending the whole query.
_READABLE_SQL = """
SELECT
    s.name AS study,
    t.number AS trial,
    CASE WHEN t.time_us >= 0.1 THEN round(t.time_us, 3) ELSE t.time_us END AS time_us,
    CASE s.predicted WHEN 1 THEN 'predicted' ELSE 'measured' END AS time_is,
    round((
        SELECT e.baseline_us FROM evokern_sessions e
        WHERE e.study = s.uuid AND e.baseline_us IS NOT NULL ORDER BY e.rowid DESC LIMIT 1
    ) / t.time_us, 2) AS speedup,
    CASE WHEN json_valid(t.config) AND json_valid(s.genes) THEN coalesce((
        SELECT group_concat(part, ' ') FROM (
            SELECT
                c.key || '=' || CASE c.type WHEN 'true' THEN 'True' WHEN 'false' THEN 'False' ELSE c.value END AS part
            FROM json_each(s.genes) g JOIN json_each(t.config) c ON c.key = json_extract(g.value, '$.name')
            WHERE c.value IS NOT json_extract(g.value, '$.default')
            ORDER BY g.key
        )
    ), 'the default candidate') END AS changed_genes,
    t.outcome AS outcome,
    CASE WHEN t.outcome <> 'measured' THEN substr(t.reason, 1, 160) END AS reason
FROM evokern_trials t JOIN evokern_studies s ON s.uuid = t.study
WHERE t.outcome IS NOT NULL
"""


@migrations()
def m001_first_tables(db: Database) -> None:
    """Studies, their sessions, trials, samples, rejections, and the sources that were searched."""
    db.create_table(
        "evokern_studies",
        {
            "uuid": str,
            "name": str,  # also the name of Optuna's study
            "kernel": str,
            "kernel_digest": str,
            "genes": str,  # JSON: name, values, default, doc, layer, when
            "problems": str,  # JSON: list of texts
            "device": str,  # model
            "predicted": int,
            "settings": str,  # JSON: what the study file said, budgets apart
            "sampler": str,  # JSON: name, options
            "seed": int,
            "window": int,
            "budget_s": float,
            "trials_limit": int,
            "created": str,
            "evokern_version": str,
        },
        pk="uuid",
        not_null={"name", "kernel", "kernel_digest", "device", "predicted", "seed", "window", "created"},
        strict=True,
    ).create_index(["name"], unique=True)
    db.create_table(
        "evokern_sessions",
        {
            "uuid": str,
            "study": str,
            "started": str,
            "ended": str,
            "end_reason": str,
            "elapsed_s": float,
            "environment": str,  # JSON: driver, compiler, clocks, versions
            "baselines": str,  # JSON: name, times, error
            "notes": str,  # JSON: list of texts
            "command": str,
            "host": str,
            "pid": int,
            "evokern_version": str,
        },
        pk="uuid",
        not_null={"study", "started", "elapsed_s"},
        strict=True,
    ).create_index(["study"])
    db.create_table(
        "evokern_trials",
        {
            "uuid": str,
            "study": str,
            "number": int,
            "config": str,  # JSON
            "outcome": str,  # null while in flight
            "time_us": float,
            "ci95_low_us": float,
            "ci95_high_us": float,
            "reason": str,
            "fingerprint": str,
            "registers": int,
            "spill_bytes": int,
            "shared_bytes": int,
            "occupancy": float,
            "timings": str,  # JSON, samples apart
            "resources": str,  # JSON
            "evidence": str,  # JSON
            "gate": str,  # JSON
            "compile_s": float,
            "device_s": float,
            "clock_mhz": float,
            "proposal": str,  # JSON: what the sampler said of it
            "leavings": str,  # JSON: what the sampler left on its view of the study
            "rejections": str,  # JSON: constraint -> proposals turned away before this one
            "kernel_digest": str,
            "session": str,
            "proposed_s": float,  # study time
            "seconds": float,  # study time
        },
        pk="uuid",
        not_null={"study", "number", "config", "kernel_digest", "proposed_s"},
        strict=True,
    ).create_index(["study", "number"], unique=True)
    db.create_table(
        "evokern_samples",
        {"trial": str, "problem": int, "samples_us": str},  # JSON: list of µs a call, in the order taken
        pk=("trial", "problem"),
        strict=True,
    )
    db.create_table(
        "evokern_rejections",
        {"study": str, "constraint_name": str, "count": int},
        pk=("study", "constraint_name"),
        strict=True,
    )
    db.create_table("evokern_sources", {"digest": str, "file": str, "text": str}, pk=("digest", "file"), strict=True)


@migrations()
def m002_proofs(db: Database) -> None:
    """What verification and ablation found of a study's trials."""
    columns = {"uuid": str, "study": str, "kind": str, "trial": int, "created": str, "result": str}  # result: JSON
    db.create_table(
        "evokern_proofs", columns, pk="uuid", not_null={"study", "kind", "trial", "created", "result"}, strict=True
    ).create_index(["study", "kind"])


@migrations()
def m002_priors(db: Database) -> None:
    """The warm start that a study began with."""
    db.create_table(
        "evokern_priors",
        {
            "study": str,
            "source": str,  # what `--warm-start` named
            "used": str,  # JSON: genes that source and study share
            "ignored": str,  # JSON: genes that only one of them has
            "entries": str,  # JSON: list of index of each gene's value, log(time)
        },
        pk="study",
        not_null={"source", "used", "ignored", "entries"},
        strict=True,
    )


@migrations()
def m003_control_and_price(db: Database) -> None:
    """Which trials a study's control drew, and what an hour of the device costs."""
    db.table("evokern_trials").add_column("control", int)  # 1 where the control drew it
    studies = db.table("evokern_studies")
    studies.add_column("control", str)  # name of the control's sampler
    studies.add_column("cost_per_hour", float)
    studies.add_column("cost_unit", str)


@migrations()
def m004_profiles(db: Database) -> None:
    """What `profile` found of a study's trials."""
    columns = {
        "uuid": str,
        "study": str,
        "trial": int,
        "problem": str,
        "source": str,  # ncu, or simulated
        "device": str,  # model
        "created": str,
        "result": str,  # JSON: counters, launches, verdict
    }
    db.create_table("evokern_profiles", columns, pk="uuid", not_null=set(columns) - {"uuid"}, strict=True).create_index(
        ["study", "trial"]
    )


@migrations()
def m005_secret(db: Database) -> None:
    """What draws the blocks that are judged; null in studies that began without one."""
    db.table("evokern_studies").add_column("secret", int)


@migrations()
def m006_row_digests(db: Database) -> None:
    """What each row held when it was written; null in rows from before, which count as they stand."""
    for table in TABLES:
        db.table(table).add_column(COLUMN, str)


@migrations()
def m007_every_row_sealed(db: Database) -> None:
    """A digest in the rows from before there were any: from here on a row without one is damaged."""
    seal_the_rest(db)


@migrations()
def m008_timing_rule(db: Database) -> None:
    """Which rule times came about by; null where no clock gave them, and in studies from before there was a number."""
    db.table("evokern_studies").add_column("timing_rule", int)


@migrations()
def m009_spans(db: Database) -> None:
    """When a trial was compiled, checked and timed, and by which worker; null where nobody took the time."""
    db.table("evokern_trials").add_column("spans", str)  # JSON: list of phase, study time, seconds, worker


@migrations()
def m010_readable_trials(db: Database) -> None:
    """The view `trials_readable`, and with each session the time that its speedups are against."""
    db.table("evokern_sessions").add_column("baseline_us", float)
    for row in list(select(db, "evokern_sessions")):
        with suppress(*UNREADABLE):  # a damaged one is told of by whoever reads it
            fastest = fastest_baseline(SessionRecord.of(row).baselines)
            if fastest is not None and sound(row):
                change_rows(db, Path(), "evokern_sessions", "uuid = ?", "baseline_us = ?", [fastest[1], row["uuid"]])
    db.create_view(READABLE, _READABLE_SQL, ignore=True)  # whoever made one of that name keeps it


@migrations()
def m011_problem_fields(db: Database) -> None:
    """The fields of the kernel's problems, which tell what a problem's values mean; null in studies from before."""
    db.table("evokern_studies").add_column("problem_fields", str)  # JSON: what each `ProblemField` declares


def known_migrations() -> set[str]:
    """Return the names of the migrations that this version knows."""
    return {migration.name for migration in migrations._migrations}


def refuse_newer(db: Database, path: object) -> None:
    """Refuse a file that a newer evokern wrote.

    Raises:
        StoreError: the file has migrations that this version does not know.
    """
    unknown = [applied.name for applied in migrations.applied(db) if applied.name not in known_migrations()]
    if unknown:
        raise StoreError(
            f"{path} was written by a newer evokern (its tables have {', '.join(unknown)}); "
            "upgrade evokern, or name another file with --db"
        )
