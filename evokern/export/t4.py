"""A study as a T4 file, the format in which auto-tuners exchange results (odgaard/TuningSchema, version 1.0.0).

T4 has no place for genes, their conditions and defaults, nor for outcomes as fine as ours: those stand under
`metadata.evokern` and in each result's `evokern`, which other readers pass over and `evokern replay` uses.
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
"""Version of the schema that is written."""
_INVALIDITY = {
    Outcome.WRONG: "correctness",
    Outcome.CRASHED: "runtime",
    Outcome.HUNG: "timeout",
    Outcome.OVER_RESOURCES: "runtime",
    Outcome.COMPILE_ERROR: "compile",
    Outcome.INFEASIBLE: "constraints",
}
"""Outcome → T4's `invalidity`; the others are `correct`."""
_NO_TIME = {"compile": "CompilationFailedConfig", "constraints": "InvalidConfig"}
"""`invalidity` → what stands for a time, as Kernel Tuner writes it; `RuntimeFailedConfig` for the others."""


def t4(reader: Reader, record: StudyRecord) -> dict[str, Any]:
    """Return a study as the object of a T4 file; times are in seconds but the objective, which is in ms.

    Args:
        reader: the open database.
        record: the study.

    Raises:
        StudyError: it has no trial.
    """
    # A lost trial is no result: nobody knows what its configuration would have given.
    trials = (trial for trial in reader.trials(record, samples=True) if trial.outcome is not Outcome.LOST)
    results = [_result(trial) for trial in trials]
    if not results:
        raise StudyError(f"study {record.name} has no finished trial to export; search it first")
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
    """Return the content of a JSON file; one whose name ends in `.gz` is compressed.

    Args:
        made: what `t4`, `t1` or `search_trace` returned.
        file: where it goes.
    """
    text = dumps(made).encode()
    return gzip.compress(text, mtime=0) if file.suffix == ".gz" else text


def _result(trial: Trial) -> dict[str, Any]:
    evaluation = trial.evaluation
    invalidity = _INVALIDITY.get(trial.outcome, "correct")
    time_ms: float | str | None = None if evaluation.time_us is None else evaluation.time_us / 1000
    if invalidity != "correct":
        time_ms = _NO_TIME.get(invalidity, "RuntimeFailedConfig")
    elif time_ms is None:
        # What racing stopped early has no time of its own; what was seen of it stands for it.
        seen = [timing.median_us for timing in evaluation.timings]
        time_ms = geometric_mean(seen) / 1000 if seen else 0.0
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
