"""Studies written straight into a database: results of every kind without a search."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import numpy as np
from engine_helpers import small_table, tiny_table
from sqlite_utils import Database

from evokern.declaration.genes import Config
from evokern.declaration.problem import ProblemField
from evokern.device import BaselineResult, StartReport
from evokern.search import Progress
from evokern.store import Store, StudyRecord, add_proof
from evokern.store._integrity import seal_all
from evokern.study.trial import Evaluation, Outcome, Proposal, Resources, Timing, Trial

NASTY = "<script>alert('x')</script> & \"quoted\""
"""Text that would break a page that does not escape it."""
FIELDS = (
    *(ProblemField("B", doc="batch"), ProblemField("H", doc="heads"), ProblemField("S", doc="sequence length")),
    *(ProblemField("D", (64, 128), doc="head dimension"), ProblemField("causal", (0, 1), 0, doc="hide keys")),
)
"""Fields of a kernel whose problem is "2,8,512,64,0"."""
TIMING = Timing(5.5, (5.4, 5.6), (5.4, 5.5, 5.6), clock_mhz=1980.0, temperature_c=44.0)
MEASURED = Evaluation(
    Outcome.MEASURED,
    5.5,
    (TIMING,),
    (Resources(128, 0, 0, 0, 65536, 0.25),),
    "abc",
    {"foreign_load": False},
    {"relative_error": 1e-3},
    0.4,
    0.05,
)


def reseal(path: Path) -> None:
    """Let a change that a test made by SQL count as what was written: the rows get the digests of what they hold."""
    connection = sqlite3.connect(path)
    seal_all(Database(connection))
    connection.commit()
    connection.close()


def record(name: str = "small", **changes: object) -> StudyRecord:
    """Return a study's record, with changes to what it says."""
    table = tiny_table()
    values: dict[str, object] = {
        "uuid": "",
        "name": name,
        "kernel": "tiny",
        "kernel_digest": "d1",
        "genes": table.genes,
        "problems": ("2,8,512,64",),
        "device": "NVIDIA H200",
        "predicted": False,
        "settings": {"gate": {"runs": 2}},
        "sampler": "evo",
        "sampler_options": {"elites": 4},
        "seed": 7,
        "window": 8,
        "budget_s": 60.0,
    }
    return StudyRecord(**{**values, **changes})  # type: ignore[arg-type]


def _wrong(number: int) -> Evaluation:
    evidence = {"check": "tolerance", "message": f"o[0, {number}] is 3.5, expected 1.2; {NASTY}"}
    return Evaluation(Outcome.WRONG, evidence=evidence)


def _evaluation(rng: random.Random, number: int, time_us: float) -> Evaluation:
    kind = rng.random()
    if kind < 0.15:
        return _wrong(number)
    if kind < 0.2:
        return Evaluation(Outcome.COMPILE_ERROR, evidence={"log": f"kernel.cu({number}): error: {NASTY}"})
    if kind < 0.24:
        return Evaluation(Outcome.HUNG, evidence={"limit_s": 3.0})
    return measured_at(number, time_us)


def measured_at(number: int, time_us: float) -> Evaluation:
    """Return the evaluation of a trial whose samples lie around a time."""
    samples = tuple(float(x) for x in time_us * np.exp(np.random.default_rng(number).normal(0, 0.004, 20)))
    timing = Timing(float(np.median(samples)), (min(samples), max(samples)), samples, clock_mhz=1980.0)
    used = Resources(128, 0, 0, 0, 65536, 0.25)
    evidence = {"floor_us": [2.0], "floor_bound": "operations", "flops": [1.07e9], "bytes": [4.2e6]}
    return Evaluation(
        Outcome.MEASURED,
        timing.median_us,
        (timing,),
        (used,),
        f"f{number}",
        evidence,
        {"2,8,512,64": {"relative_error": 3e-4, "runs": 2}},
        0.4,
        0.05,
    )


def write_study(path: Path, trials: int, *, only_wrong: bool = False, **changes: object) -> StudyRecord:
    """Write a study of so many trials, with baselines, notes and text that would break a page.

    Args:
        path: the database.
        trials: how many.
        only_wrong: every one of them gave wrong answers.
        changes: to what the study's record says.
    """
    table, rng = small_table(), random.Random(1)
    space = table.space()
    names = {"genes": table.genes, "problems": ("2,8,512,64",), **changes}
    with Store(path) as store:
        code = f"// {NASTY}\n__global__ void k() {{ int a = {table.genes[0].name}; }}\n"
        study = store.create(record(**names), {"kernel.cu": code})
        session = store.session(study, space)
        samples = tuple(9.2 + 0.01 * n for n in range(20))
        baseline = BaselineResult("sdpa <math>", (Timing(9.3, (9.2, 9.4), samples),))
        session.write_start_report(StartReport((baseline,), {"driver": f"580 {NASTY}"}, (f"note {NASTY}",)))
        cells = [config for config in space.grid() if space.feasible(config)]
        rng.shuffle(cells)
        for index, config in enumerate((cells * 2)[:trials]):
            evaluation = _wrong(index) if only_wrong else _evaluation(rng, index, 5.0 + 6 * rng.random())
            drawn = study.control != "none" and index % 2 == 1
            proposal = Proposal(config, {}, {"ring_needs_lookahead": 2}, control=drawn)
            session.propose(index, proposal, float(index))
            session.record(Trial(index, proposal, evaluation, index + 0.5), index + 0.5)
        session.ended(float(trials), "trials")
    return study


def multiplied(path: Path, copies: int) -> None:
    """Copy the trials and samples of a study of 50 trials so often: a transaction for each trial takes half a minute.

    Args:
        path: the database.
        copies: how often each trial is in it then, a hundredth of a per cent slower each time.
    """
    changed = {
        "evokern_trials": {
            "uuid": "uuid || :n",
            "number": "number + 50 * :n",
            "seconds": "seconds + 50 * :n",
            "time_us": "time_us * (1 + 1e-4 * :n)",
        },
        "evokern_samples": {"trial": "trial || :n"},
    }
    with sqlite3.connect(path) as db:
        for table, changes in changed.items():
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            chosen = ", ".join((changes | {"row_digest": "NULL"}).get(column, column) for column in columns)
            first = "number < 50" if table == "evokern_trials" else "length(trial) = 36"
            for n in range(1, copies):
                db.execute(f"INSERT INTO {table} SELECT {chosen} FROM {table} WHERE {first}", {"n": n})
    reseal(path)


def add_proofs(path: Path, study: StudyRecord) -> None:
    """Keep a verification and an ablation with a study, as the commands would."""
    row = {
        "gene": "",
        "value": None,
        "instead_of": None,
        "config": {},
        "time_us": 5.0,
        "ratio": 1.0,
        "note": "",
        "ratio_ci95": None,
        "gb_per_s": 800.0,
        "occupancy": 0.25,
        "speedup": 1.8,
    }
    away = {**row, "gene": "STAGES", "value": 1, "time_us": None, "ratio": None, "note": f"wrong: {NASTY}"}
    add_proof(
        path, study, "ablate", 3, {"champion": row, "alone": [{**row, "gene": "A", "ratio": 1.2}, away], "path": []}
    )
    stage = {"state": "passed", "detail": f"right {NASTY}"}
    add_proof(path, study, "verify", 3, {"stages": {"gate": stage}, "playoff": None})


def example_progress() -> Progress:
    """Return what a search tells after its twelfth trial."""
    evaluation = Evaluation(Outcome.MEASURED, 5.0, (Timing(5.0, (4.9, 5.1), (5.0,)),))
    return Progress(
        event="trial",
        study="s",
        device="NVIDIA H200",
        elapsed_s=75,
        budget_s=150,
        trials=12,
        outcomes={"measured": 9, "wrong": 3},
        rejections={"shared_memory_per_block": 44},
        baseline=("SDPA", 9.0),
        best=Trial(4, Proposal(Config({"TILE": 64})), evaluation),
        trials_per_minute=811.0,
        busy_share=0.62,
        last_failures=("trial 11 wrong: output",),
    )
