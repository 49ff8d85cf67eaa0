"""Crosswise times: candidates of a sweep's studies, each measured at many shapes, with the baselines.

Each candidate passes the strict correctness gate at each shape before it is timed. On a GPU, the fastest candidates and
the fastest baseline are then measured in interleaved rounds. The rounds give an interval for the ratio of their times.
The results are stored in the sweep's folder after each shape. An interrupted measurement therefore continues, and
packing again measures nothing and writes the same package.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evokern.analysis import candidates
from evokern.analysis.candidates import device_for, running_device
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Problem
from evokern.device import Device, Task
from evokern.device.contract import MeasuresRounds
from evokern.errors import StoreError
from evokern.events import step
from evokern.files import is_file, read_text, write_whole
from evokern.measurement.playoff import effects
from evokern.pack.candidates import Place, PoolCandidate, config_key
from evokern.pack.proofs import cores, verification_at, verify_variants
from evokern.store import Verification
from evokern.study.trial import Evaluation, Outcome
from evokern.version import __version__
from evokern.wording import count_noun, duration

FILE = "crosswise.json"
"""Name of the file with the times, in the sweep's folder."""
VERSION = 2
"""Version of the file's format."""
ROUNDS, SAMPLES = 5, 5
"""Interleaved rounds at each shape, and samples of each candidate in a round."""
MOST_RATIO = 1.25
"""Largest time of a candidate in the rounds, as a multiple of the fastest candidate's time."""
CLEAR, FASTEST = 0.87, 4
"""Below this multiple of the fastest baseline's time, only so many candidates take part in the rounds: the ratio of the
others is clear. A round costs about 50 ms per candidate."""
_REFUTED = (Outcome.WRONG, Outcome.CRASHED, Outcome.HUNG)


class OverBudgetError(Exception):
    """The time for measuring is used up."""


@dataclass(frozen=True)
class PlaceTimes:
    """Times at one shape, from one session of the device."""

    times: Mapping[str, float]
    """Key of a candidate (`config_key`) → time in µs, for those that passed the gate."""
    refuted: Mapping[str, str]
    """Key of a candidate → reason, for those with a wrong result."""
    baselines: Mapping[str, float]
    """Baseline → time in µs, for the correct ones."""
    ratios: Mapping[str, tuple[float, float]]
    """Key → 95 % interval of the candidate's time divided by that of the fastest baseline, in interleaved rounds."""


class CrosswiseTimes:
    """File with crosswise times."""

    def __init__(
        self, folder: Path, baselines: Sequence[str], report: Callable[[str], None], budget_s: float | None = None
    ) -> None:
        """Read the file, if there is one.

        Args:
            folder: folder of the sweep.
            baselines: baselines that a package can contain; the others are not compared with candidates.
            report: prints a line before each measurement.
            budget_s: seconds after which no further shape is begun; None for no limit.

        Raises:
            StoreError: the file cannot be read, or was written by another version.
        """
        self._path, self.baselines, self._report = folder / FILE, tuple(baselines), report
        self._began, self._budget_s = time.monotonic(), budget_s
        self._table: dict[str, Any] = {"version": VERSION, "problems": {}, "edges": {}, "proofs": {}}
        if is_file(self._path):
            try:
                table = json.loads(read_text(self._path))
                if known := table["version"] == VERSION:
                    self._table |= {part: dict(table.get(part, {})) for part in ("problems", "edges", "proofs")}
            except (ValueError, LookupError, TypeError) as error:
                raise StoreError(f"{self._path} is damaged ({error}); delete it to measure again") from error
            if not known:
                raise StoreError(f"{self._path} is from another version of evokern; delete it to measure again")

    def at(self, place: Place, configs: Sequence[Config]) -> PlaceTimes:
        """Return the times of candidates at a place; those that are not stored are measured first.

        Raises:
            OverBudgetError: candidates must be measured, but the budget is used up.
            DeviceError: the device is not available.
            UsageError: the file cannot be written.
        """
        subject, entry = place.subject, self._entry(place)
        if missing := [one for one in configs if config_key(one) not in entry["times"]]:
            with self._begun(f"measuring {count_noun(len(missing), 'candidate')} at {place.problem} on {place.device}"):
                device, task = device_for(subject.record, None), subject.task(strict=True)
                with running_device(device, task) as started:
                    found = candidates.evaluate(device, missing)
                    passed = {c: e.time_us for c, e in zip(missing, found, strict=True) if e.passed_gate and e.time_us}
                    entry["times"] |= {config_key(config): passed.get(config) for config in missing}
                    entry["baselines"] |= {
                        b.name: b.timings[0].median_us
                        for b in started.baselines
                        if b.name in self.baselines and b.timings and not b.error
                    }
                    _measure_rounds(device, task, passed, entry)
            wrong = [(c, e) for c, e in zip(missing, found, strict=True) if e.outcome in _REFUTED]
            entry["refuted"] |= {config_key(config): _failure(one) for config, one in wrong}
            self._write()
        keys = {config_key(one) for one in configs}
        return PlaceTimes(
            {key: one for key, one in entry["times"].items() if key in keys and one is not None},
            {key: one for key, one in entry["refuted"].items() if key in keys},
            entry["baselines"],
            {key: (low, high) for key, (low, high) in entry["ratios"].items() if key in keys},
        )

    def _entry(self, place: Place) -> dict[str, Any]:
        rule = str(place.subject.record.timing_rule)
        where = _digest(place.device, place.kernel.digest(), place.problem.key, rule)
        empty: dict[str, Any] = {"times": {}, "refuted": {}, "baselines": {}, "ratios": {}}
        entry: dict[str, Any] = self._table["problems"].setdefault(
            where, {"problem": place.problem.in_words(every=True), **empty}
        )
        return entry

    def failure_at(self, place: Place, candidate: PoolCandidate, problems: Sequence[Problem]) -> str:
        """Return the reason why a candidate fails the strict gate at some problems; empty if it passes at each.

        Args:
            place: place with the settings.
            candidate: the candidate.
            problems: problems for which the candidate has the same machine code.

        Raises:
            OverBudgetError: the candidate must be checked, but the budget is used up.
            DeviceError: the device is not available.
        """
        where = _check_key(candidate, place, problems)
        if where not in self._table["edges"]:
            edges = f"{count_noun(len(problems), 'edge')} of its regions ({'; '.join(map(str, problems))})"
            with self._begun(f"measuring {candidate.title} at {edges}"):
                device = device_for(place.subject.record, None)
                with running_device(device, replace(place.subject, problems=tuple(problems)).task(strict=True)):
                    (found,) = candidates.evaluate(device, [candidate.config])
            self._table["edges"][where] = "" if found.passed_gate else _failure(found)
            self._write()
        return str(self._table["edges"][where])

    def verifications(self, variants: Sequence[tuple[PoolCandidate, Place]]) -> list[Verification]:
        """Return the verifications of candidates at places; those that are not stored run first.

        Raises:
            OverBudgetError: a candidate must be verified, but the budget is used up.
            EvokernError: the processes that verify candidates cannot start.
        """
        proofs, failures = self._table["proofs"], dict[str, str]()
        keys = [_check_key(one, place, [place.problem]) for one, place in variants]
        missing = {key: pair for key, pair in zip(keys, variants, strict=True) if key not in proofs}

        def verified(key: str, pair: tuple[PoolCandidate, Place]) -> Verification:
            why = failures.get(key)
            return verification_at(*pair, dict(proofs[key])) if why is None else Verification(None, why, None)

        def done(key: str, stages: Mapping[str, Any], why: str) -> None:
            if why:
                failures[key] = why  # not stored, so the next call tries again
            else:
                proofs[key] = [*stages.items()]  # keys of an object would be sorted
                self._write()
            (candidate, place), found = missing[key], verified(key, missing[key])
            result = {True: "passed", False: f"refuted ({found.reason})", None: f"not verified ({found.reason})"}
            number = sum(one in proofs or one in failures for one in missing)
            self._report(
                f"verification {number} of {len(missing)}: {candidate.title} at {place.problem}: "
                f"{result[found.verified]}"
            )

        at_once = f", {min(cores(), len(missing))} at a time" if len(missing) > 1 else ""
        if missing:
            with self._begun(f"verifying {count_noun(len(missing), 'variant')}{at_once}"):
                verify_variants(missing, done)
        return [verified(*one) for one in zip(keys, variants, strict=True)]

    @contextmanager
    def _begun(self, text: str) -> Iterator[None]:
        """Report a step, unless the budget is used up, and name the step while it runs."""
        if self._budget_s is not None and time.monotonic() - self._began >= self._budget_s:
            raise OverBudgetError(f"the budget of {duration(self._budget_s)} is used up before {text}")
        self._report(text)
        with step(text):
            yield

    def _write(self) -> None:
        write_whole(self._path, json.dumps(self._table, indent=1, sort_keys=True).encode())


def _check_key(candidate: PoolCandidate, place: Place, problems: Sequence[Problem]) -> str:
    """Return the key of a check; it contains the version of evokern, because another version may check less."""
    keys = [one.key for one in problems]
    return _digest(__version__, place.device, place.kernel.digest(), candidate.key, *keys)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _failure(found: Evaluation) -> str:
    return f"{found.outcome.value}: {found.reason}"


def is_wrong(failure: str) -> bool:
    """Return whether the reason of a failure is a wrong result, a crash or a hang."""
    return failure.partition(":")[0] in _REFUTED


def _measure_rounds(device: Device, task: Task, passed: Mapping[Config, float], entry: dict[str, Any]) -> None:
    """Measure the fastest candidates and the fastest baseline in interleaved rounds, which replace their times."""
    if not entry["baselines"] or not passed or not isinstance(device, MeasuresRounds):
        return
    fastest = min(entry["baselines"], key=lambda name: (entry["baselines"][name], name))
    order = sorted(passed, key=lambda one: passed[one])
    near = [one for one in order if passed[one] <= MOST_RATIO * passed[order[0]]]
    entrants = near[:FASTEST] + [one for one in near[FASTEST:] if passed[one] > CLEAR * entry["baselines"][fastest]]
    measure = device.rounds(task, [fastest, *entrants])
    baseline, *found = effects(measure, 1 + len(entrants), rounds=ROUNDS, samples=SAMPLES)
    entry["baselines"][fastest] = baseline.time_us
    for config, one in zip(entrants, found, strict=True):
        entry["times"][config_key(config)] = one.time_us
        entry["ratios"][config_key(config)] = list(one.ratio_ci95)
