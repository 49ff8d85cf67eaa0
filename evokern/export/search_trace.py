"""Export of a search as a trace of its workers, in Chrome's "Trace Event Format" (JSON object form), for Perfetto.

The trace has complete events `X`, asynchronous events `b` and `e`, instants `i`, counters `C` and metadata `M`. Times
are in µs since the start of the study, over all its sessions. All spans were measured. Trials of old studies and of
recordings have no spans on a worker's track, only the time in flight from proposal to record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from evokern.errors import StudyError
from evokern.store import Reader, SessionRecord, StudyRecord
from evokern.study.trial import Outcome, Span, Trial
from evokern.version import __version__
from evokern.wording import changed_genes_text, count_noun, microseconds

SEARCH = 0
"""Thread id of the track with sessions and champions; the workers' ids follow."""
_PID = 1
_MOST_REASON = 400


def search_trace(reader: Reader, record: StudyRecord) -> dict[str, Any]:
    """Return the JSON object of a study's trace file.

    Args:
        reader: the open database.
        record: the study.

    Returns:
        `traceEvents`, `displayTimeUnit`, and `otherData` with facts about the study, the numbers of trials and spans,
        and a note on missing spans.

    Raises:
        StudyError: the study has no trial.
    """
    trials = list(reader.trials(record))
    if not trials:
        raise StudyError(f"study {record.name} has no trial yet to trace; run `evokern search` first")
    proposed = reader.proposed_s(record)
    workers = _workers(trials)
    events = [
        _named("process_name", SEARCH, f"{record.name} on {record.device}"),
        _named("thread_name", SEARCH, "search"),
        *(_named("thread_name", tid, name) for name, tid in workers.items()),
        *({"ph": "M", "pid": _PID, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}
          for tid in (SEARCH, *workers.values())),
        *_sessions(reader.sessions(record)),
        *_champions(record, trials),
    ]  # fmt: skip
    spans = 0
    for trial in trials:
        args = _args(record, trial)
        begin = proposed.get(trial.number)
        if begin is not None:
            events += _in_flight(trial, begin, args)
        for span in trial.evaluation.spans:
            events.append(_span(trial, span, workers[span.worker], args))
            spans += 1
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "study": record.name,
            "device": record.device,
            "times": "predicted" if record.predicted else "measured",
            "evokern": __version__,
            "trials": len(trials),
            "spans": spans,
            "missing": _missing(trials),
        },
    }


def _workers(trials: Sequence[Trial]) -> dict[str, int]:
    """Return worker → thread id, sorted by kind and number."""
    names = {span.worker for trial in trials for span in trial.evaluation.spans}
    return {name: tid for tid, name in enumerate(sorted(names, key=_kind_and_number), SEARCH + 1)}


def _kind_and_number(worker: str) -> tuple[str, int, str]:
    kind, _, number = worker.rpartition(" ")
    return kind, int(number) if number.isdecimal() else 0, worker


def _named(what: str, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": _PID, "tid": tid, "name": what, "args": {"name": name}}


def _args(record: StudyRecord, trial: Trial) -> dict[str, Any]:
    evaluation = trial.evaluation
    found: dict[str, Any] = {
        "trial": trial.number,
        "outcome": trial.outcome.value,
        "changed genes": changed_genes_text(trial.config, record.genes),
    }
    if evaluation.time_us is not None:
        found["predicted µs" if record.predicted else "µs"] = evaluation.time_us
    if trial.outcome is not Outcome.MEASURED:
        found["reason"] = evaluation.reason[:_MOST_REASON]
    if trial.control:
        found["control"] = True
    return found


def _span(trial: Trial, span: Span, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    cached = span.phase == "compile" and trial.evaluation.compile_s == 0 and trial.outcome is not Outcome.COMPILE_ERROR
    return {
        "ph": "X",
        "pid": _PID,
        "tid": tid,
        "name": f"trial {trial.number}" if span.phase == "evaluate" else span.phase,
        "cat": f"{span.phase},{trial.outcome.value}",
        "ts": _us(span.began_s),
        "dur": _us(span.seconds),
        "args": {**args, "cached": True} if cached else args,
    }


def _in_flight(trial: Trial, begin_s: float, args: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a trial's time in flight, from proposal to record."""
    shared = {"pid": _PID, "tid": SEARCH, "cat": "in flight", "id": trial.number, "name": f"trial {trial.number}"}
    yield {"ph": "b", "ts": _us(begin_s), "args": args, **shared}
    yield {"ph": "e", "ts": _us(max(trial.seconds, begin_s)), **shared}


def _sessions(sessions: Sequence[SessionRecord]) -> Iterator[dict[str, Any]]:
    """Yield the sessions, one after another, as in study time."""
    at = 0.0
    for number, session in enumerate(sessions):
        args = {"started": session.started, "ended": session.ended or "", "end": session.end_reason or ""}
        shared = {"pid": _PID, "tid": SEARCH, "name": f"session {number + 1}", "cat": "session"}
        yield {"ph": "X", "ts": _us(at), "dur": _us(session.elapsed_s), "args": args, **shared}
        at += session.elapsed_s


def _champions(record: StudyRecord, trials: Sequence[Trial]) -> Iterator[dict[str, Any]]:
    """Yield an instant event and a counter event for each trial that was faster than all earlier trials."""
    best = float("inf")
    unit = "predicted µs" if record.predicted else "µs"
    for trial in sorted(trials, key=lambda one: (one.seconds, one.number)):
        time_us = trial.evaluation.time_us
        if trial.outcome is not Outcome.MEASURED or time_us is None or time_us >= best:
            continue
        best, at = time_us, {"pid": _PID, "tid": SEARCH, "ts": _us(trial.seconds)}
        name = f"best {microseconds(time_us)} {unit}"
        yield {"ph": "i", "s": "t", "name": name, "cat": "best", "args": _args(record, trial), **at}
        yield {"ph": "C", "name": f"best {unit}", "args": {unit: time_us}, **at}


def _missing(trials: Sequence[Trial]) -> str:
    """Return a note on trials without spans and the reason, or an empty string."""
    without = [trial for trial in trials if not trial.evaluation.spans and trial.outcome is not Outcome.INFEASIBLE]
    if not without:
        return ""
    return (
        f"{len(without)} of {count_noun(len(trials), 'trial')} have only a time in flight, without worker "
        "spans, because they come from an older evokern or from a recording"
    )


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
