"""Export of a study's trials as a T4 file.

T4 is a format for results of auto-tuners (odgaard/TuningSchema, version 1.0.0). It does not support genes with
conditions and defaults, or evokern's detailed outcomes. They are stored under `metadata.evokern` and in each result's
`evokern`, which other readers ignore and `evokern replay` uses.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evokern.errors import StudyError
from evokern.measurement.statistics import geometric_mean
from evokern.store import Reader, StudyRecord, dumps
from evokern.store.records import gene_table
from evokern.study.trial import Outcome, Trial
from evokern.version import __version__

SCHEMA = "1.0.0"
"""Version of the schema."""
_INVALIDITY = {
    Outcome.WRONG: "correctness",
    Outcome.CRASHED: "runtime",
    Outcome.HUNG: "timeout",
    Outcome.OVER_RESOURCES: "runtime",
    Outcome.COMPILE_ERROR: "compile",
    Outcome.INFEASIBLE: "constraints",
}
"""Outcome → T4's `invalidity`; other outcomes are `correct`."""
_NO_TIME = {"compile": "CompilationFailedConfig", "constraints": "InvalidConfig"}
"""`invalidity` → placeholder for the time, as in Kernel Tuner; others use `RuntimeFailedConfig`."""


def t4(reader: Reader, record: StudyRecord) -> dict[str, Any]:
    """Return the JSON object of a T4 file with a study's results; times are in seconds, the objective in ms.

    Args:
        reader: the open database.
        record: the study.

    Raises:
        StudyError: the study has no finished trial.
    """
    # Lost trials have no result.
    trials = (trial for trial in reader.trials(record, samples=True) if trial.outcome is not Outcome.LOST)
    results = [_result(trial) for trial in trials]
    if not results:
        raise StudyError(f"study {record.name} has no finished trial to export; run `evokern search` first")
    baseline = reader.baseline(record)
    genes = [gene_table(gene) for gene in record.genes]
    own = {
        "version": __version__,
        "study": record.name,
        "kernel": record.kernel,
        "kernel_digest": record.kernel_digest,
        "problems": record.problems,
        "device": record.device,
        "predicted": record.predicted,
        "sampler": record.sampler,
        "baseline_us": baseline[1] if baseline else None,
        "genes": genes,
    }
    return {"schema_version": SCHEMA, "metadata": {"timeunit": "seconds", "evokern": own}, "results": results}


def json_bytes(made: Mapping[str, Any], file: Path) -> bytes:
    """Return the content of a JSON file, compressed if its name ends in `.gz`.

    Args:
        made: result of `t4`, `t1` or `search_trace`.
        file: path of the file.
    """
    text = dumps(made).encode()
    return gzip.compress(text, mtime=0) if file.suffix == ".gz" else text


def objective_ms(trial: Trial) -> float | str:
    """Return the time of a trial in ms, or Kernel Tuner's placeholder for a failed configuration."""
    evaluation, invalidity = trial.evaluation, _INVALIDITY.get(trial.outcome, "correct")
    if invalidity != "correct":
        return _NO_TIME.get(invalidity, "RuntimeFailedConfig")
    if evaluation.time_us is not None:
        return evaluation.time_us / 1000
    # A trial that racing stopped early has only partial times; use them.
    seen = [timing.median_us for timing in evaluation.timings]
    return geometric_mean(seen) / 1000 if seen else 0.0


def _result(trial: Trial) -> dict[str, Any]:
    evaluation = trial.evaluation
    invalidity = _INVALIDITY.get(trial.outcome, "correct")
    time_ms = objective_ms(trial)
    one_problem = len(evaluation.timings) == 1
    times = {
        "compilation": evaluation.compile_s,
        "benchmark": evaluation.device_s,
        "framework": 0.0,
        "search_algorithm": 0.0,
        "validation": 0.0,
        "runtimes": [sample * 1e-6 for sample in evaluation.timings[0].samples_us] if one_problem else [],
    }
    own = {
        "trial": trial.number,
        "outcome": trial.outcome.value,
        "fingerprint": evaluation.fingerprint,
        "evidence": dict(evaluation.evidence),
    }
    return {
        "configuration": dict(trial.config),
        "objectives": ["time"],
        "times": times,
        "invalidity": invalidity,
        "correctness": 0 if trial.outcome is Outcome.WRONG else 1,
        "measurements": [{"name": "time", "value": time_ms, "unit": "ms"}],
        "evokern": own,
    }
