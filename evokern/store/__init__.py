"""The SQLite database with Optuna's and evokern's tables: `Store` writes (one search at a time), `open_readonly` reads.

A search writes through a `Session`. `show`, `list`, `report` and `compare` read through a `Reader`, which needs neither
the kernel folder nor the study file.
"""

from __future__ import annotations

from evokern.store._files import DEFAULT_DB, db_option
from evokern.store._proofs import ALGEBRA, ProfileRecord, ProofRecord, add_profile, add_proof
from evokern.store._reader import Milestone, Reader, arms, bests, control_table, has_studies, open_readonly
from evokern.store._verification import OWN_PROBLEM, Verification, algebra_text, undecided, verification
from evokern.store.records import SessionRecord, StudyRecord, TrialRecord, dumps, fastest_baseline, interval_us
from evokern.store.studies import Store, database_of, open_recording, study_table
from evokern.store.writer import Session

__all__ = [
    "ALGEBRA", "DEFAULT_DB", "OWN_PROBLEM", "Milestone", "ProfileRecord", "ProofRecord", "Reader", "Session",
    "SessionRecord", "Store", "StudyRecord", "TrialRecord", "Verification", "add_profile", "add_proof",
    "algebra_text", "arms", "bests", "control_table", "database_of", "db_option", "dumps", "fastest_baseline",
    "has_studies", "interval_us", "open_readonly", "open_recording", "study_table", "undecided", "verification",
]  # fmt: skip
