"""Schema of the evokern tables, and the migrations that upgrade older files.

Never edit a released migration: add a new one at the end, with a small old database as a test fixture. Optuna's tables
are in the same file. Rows have their own UUIDs, because Optuna reuses the ids of deleted studies; no row refers to
Optuna's tables.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sqlite_utils import Database, Migrations

from evokern.errors import StoreError
from evokern.store._integrity import COLUMN, TABLES, UNREADABLE, change_rows, is_intact, seal_missing, select
from evokern.store.records import SessionRecord, fastest_baseline

migrations = Migrations("evokern")
"""All migrations of the evokern tables, in order."""
READABLE = "trials_readable"
"""Name of the view that shows trials in readable columns."""
# `changed_genes` lists genes with a non-default value in declaration order. It is NULL if damage made the JSON invalid,
# because an error would end the whole query.
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
    """Create the tables of studies, sessions, trials, samples, rejections and sources."""
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
            "settings": str,  # JSON: settings of the study file, without budgets
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
            "timings": str,  # JSON, without samples
            "resources": str,  # JSON
            "evidence": str,  # JSON
            "gate": str,  # JSON
            "compile_s": float,
            "device_s": float,
            "clock_mhz": float,
            "proposal": str,  # JSON: the sampler's information about the proposal
            "leavings": str,  # JSON: state of the sampler
            "rejections": str,  # JSON: constraint -> proposals rejected before this one
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
        {"trial": str, "problem": int, "samples_us": str},  # JSON: list of µs per call, in the order measured
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
    """Add the results of verification and ablation."""
    columns = {"uuid": str, "study": str, "kind": str, "trial": int, "created": str, "result": str}  # result: JSON
    db.create_table(
        "evokern_proofs", columns, pk="uuid", not_null={"study", "kind", "trial", "created", "result"}, strict=True
    ).create_index(["study", "kind"])


@migrations()
def m002_priors(db: Database) -> None:
    """Add the warm start of a study."""
    db.create_table(
        "evokern_priors",
        {
            "study": str,
            "source": str,  # value of `--warm-start`
            "used": str,  # JSON: genes that source and study share
            "ignored": str,  # JSON: genes that only the source or only the study has
            "entries": str,  # JSON: list of (index of each gene's value, log(time))
        },
        pk="study",
        not_null={"source", "used", "ignored", "entries"},
        strict=True,
    )


@migrations()
def m003_control_and_price(db: Database) -> None:
    """Add the control of a study and the price of a device hour."""
    db.table("evokern_trials").add_column("control", int)  # 1 if the control proposed the trial
    studies = db.table("evokern_studies")
    studies.add_column("control", str)  # name of the control's sampler
    studies.add_column("cost_per_hour", float)
    studies.add_column("cost_unit", str)


@migrations()
def m004_profiles(db: Database) -> None:
    """Add the results of `evokern profile`."""
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
    """Add the secret seed that selects the blocks to check; NULL in studies started without one."""
    db.table("evokern_studies").add_column("secret", int)


@migrations()
def m006_row_digests(db: Database) -> None:
    """Add a digest of each row; NULL in older rows, which are accepted unchecked."""
    for table in TABLES:
        db.table(table).add_column(COLUMN, str)


@migrations()
def m007_every_row_sealed(db: Database) -> None:
    """Set the missing digests; afterwards, a row without a digest is damaged."""
    seal_missing(db)


@migrations()
def m008_timing_rule(db: Database) -> None:
    """Add the version of the timing rule; it is NULL in older studies and if no clock measured the times."""
    db.table("evokern_studies").add_column("timing_rule", int)


@migrations()
def m009_spans(db: Database) -> None:
    """Add when and by which worker a trial was compiled, checked and timed; NULL if this was not recorded."""
    db.table("evokern_trials").add_column("spans", str)  # JSON: list of (phase, study time, seconds, worker)


@migrations()
def m010_readable_trials(db: Database) -> None:
    """Add the view `trials_readable` and the baseline time of each session."""
    db.table("evokern_sessions").add_column("baseline_us", float)
    for row in list(select(db, "evokern_sessions")):
        with suppress(*UNREADABLE):  # readers report a damaged session
            fastest = fastest_baseline(SessionRecord.of(row).baselines)
            if fastest is not None and is_intact(row):
                change_rows(db, Path(), "evokern_sessions", "uuid = ?", "baseline_us = ?", [fastest[1], row["uuid"]])
    db.create_view(READABLE, _READABLE_SQL, ignore=True)  # keep a user's own view of that name


@migrations()
def m011_problem_fields(db: Database) -> None:
    """Add the fields of the kernel's problems, which give names to a problem's values; NULL in older studies."""
    db.table("evokern_studies").add_column("problem_fields", str)  # JSON: list of `ProblemField` declarations


def known_migrations() -> set[str]:
    """Return the names of the migrations in this version."""
    return {migration.name for migration in migrations._migrations}


def refuse_newer(db: Database, path: object) -> None:
    """Reject a file that a newer evokern wrote.

    Raises:
        StoreError: if the file has migrations that this version does not know.
    """
    unknown = [applied.name for applied in migrations.applied(db) if applied.name not in known_migrations()]
    if unknown:
        raise StoreError(
            f"{path} was written by a newer evokern (unknown migrations: {', '.join(unknown)}); "
            "upgrade evokern or choose another file with --db"
        )
