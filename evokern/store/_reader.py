"""Reader of studies: the champion, its verification, its groups, and the object that `show --json` prints."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from evokern.declaration.as_data.declared import reference_option
from evokern.declaration.kernel_files import changed_since, stored_outside
from evokern.errors import StoreError
from evokern.files import is_file
from evokern.measurement.grid import grid_facts
from evokern.measurement.roofline import Rates, RooflineBound, roofline_bound_of
from evokern.store._files import close_reading, connect_readonly, db_option, explain_errors
from evokern.store._proofs import ALGEBRA, HEAD_TO_HEAD, NEIGHBOURS, REMEASURED, ProofRecord
from evokern.store._read_file import ReadFile
from evokern.store._verification import NO_ALGEBRA, Verification, algebra_of, verification
from evokern.store.records import Row, StudyRecord, baseline_times, interval_us, stored_entries
from evokern.study.trial import Outcome, Trial


@dataclass(frozen=True)
class Milestone:
    """Point in a study at which one group reached a result."""

    trial: int
    """Number of the trial."""
    evaluated: int
    """Evaluated trials of the group so far, including this one."""
    elapsed_s: float
    """Study time in seconds; the two groups share it."""


@dataclass(frozen=True)
class ArmSummary:
    """Results of one group (the sampler's trials or the control's trials) in a study with a control."""

    sampler: str
    """Name of the sampler."""
    control: bool
    """Whether this group is the control."""
    trials: int
    """Number of trials."""
    evaluated: int
    """Number of evaluated trials, counted as if the group had been the only one."""
    best_us: float | None
    """Best time measured during the search, in µs."""
    best_after: Milestone | None
    """The point at which the group reached its best time."""
    matched_after: Milestone | None
    """The point at which the group matched or beat the other group's best time, or None."""


def arms(record: StudyRecord, trials: Iterable[Trial]) -> tuple[tuple[Trial, ...], tuple[Trial, ...]]:
    """Return the trials of a study's sampler and of its control, with outcomes as if each group had been the only one.

    Args:
        record: the study; without a control, the second tuple is empty.
        trials: recorded trials of the study in number order.
    """
    found: tuple[list[Trial], list[Trial]] = [], []
    if record.control == "none":
        return tuple(trials), ()
    programs: tuple[set[str | None], set[str | None]] = set(), set()
    for trial in trials:
        seen = trial.evaluation
        outcome = seen.outcome.as_seen_by_arm(seen.fingerprint, programs[trial.control])
        if outcome is not seen.outcome:
            trial = replace(trial, evaluation=replace(seen, outcome=outcome))
        found[trial.control].append(trial)
    return tuple(found[0]), tuple(found[1])


def bests(trials: Sequence[Trial], without: Container[int] = ()) -> list[tuple[Milestone, float]]:
    """Return each new best of a group, with its time in µs.

    Args:
        trials: trials of the group in number order.
        without: numbers of trials that count as evaluated but cannot be a best, such as refuted ones.
    """
    found: list[tuple[Milestone, float]] = []
    evaluated = 0
    for trial in trials:
        evaluated += trial.outcome.evaluated
        time_us = None if trial.number in without else trial.evaluation.time_us
        if trial.outcome is Outcome.MEASURED and time_us and (not found or time_us < found[-1][1]):
            found.append((Milestone(trial.number, evaluated, trial.seconds), time_us))
    return found


def control_table(record: StudyRecord, trials: Iterable[Trial]) -> dict[str, Any] | None:
    """Return the `control` object of `show --json`, or None for a study without a control.

    Args:
        record: the study.
        trials: recorded trials of the study in number order.
    """
    if record.control == "none":
        return None
    both = arms(record, trials)
    curves = [bests(one) for one in both]
    summaries = []
    for place, (mine, curve) in enumerate(zip(both, curves, strict=True)):
        other = curves[1 - place]
        target = other[-1][1] if other else None
        matched = next((when for when, time_us in curve if target is not None and time_us <= target), None)
        summaries.append(
            ArmSummary(
                sampler=record.control if place else record.sampler,
                control=bool(place),
                trials=len(mine),
                evaluated=sum(trial.outcome.evaluated for trial in mine),
                best_us=curve[-1][1] if curve else None,
                best_after=curve[-1][0] if curve else None,
                matched_after=matched,
            )
        )
    searched, control = summaries
    ratio = control.best_us / searched.best_us if control.best_us and searched.best_us else None
    return {"sampler": record.control, "arms": [asdict(arm) for arm in summaries], "advantage": ratio}


_NOTHING: dict[str, object] = {
    "verified": None, "verified_reason": "no trial has been measured", "verified_share": None, "verified_scaled": [],
    "algebra": NO_ALGEBRA,
}  # fmt: skip


def open_readonly(path: str | Path) -> Reader:
    """Open a database for reading; use the result in a `with` statement.

    Raises:
        StoreError: if the file does not exist or this version cannot read it as an evokern database.
    """
    return Reader(Path(path))


def has_studies(path: Path) -> bool:
    """Return whether a database has its tables; a search that was killed early may not have created them.

    Damage is not checked: the result for an unusable file is also True, and opening the file raises the error.
    """
    if not is_file(path) or not path.stat().st_size:
        return False
    try:
        connection = connect_readonly(path)
    except StoreError:
        return True
    try:
        return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'evokern_studies'").fetchall())
    except sqlite3.Error:
        return True
    finally:
        close_reading(connection)


class Reader(ReadFile):
    """Reader of a database's studies, trials and sessions, and of results derived from them."""

    def best(self, study: StudyRecord) -> Trial | None:
        """Return the champion of a study, or None if no trial qualifies.

        The champion is the winner of the latest playoff that includes the fastest trial. If there is no such playoff,
        it is the fastest trial. Trials whose last verification refuted them are excluded. If a playoff ends in a tie, a
        verified trial takes precedence. The winner of a playoff has the time measured in the playoff.
        """
        proofs = self.proofs(study, "verify")
        refuted = _refuted(proofs)
        measured = [one for one in self.trial_statuses(study) if one.outcome == Outcome.MEASURED.value]
        sound = {one.number: one.time_us for one in measured if one.number not in refuted}
        if not sound:
            return None
        fastest = min(sound, key=lambda number: (sound[number], number))
        verified = {proof.trial for proof in proofs} - refuted
        for proof in reversed(proofs):
            finalists = _trials_of(proof.result.get("playoff") or {})
            leaders = {n: one for n, one in finalists.items() if n in sound and one["standing"] != "slower"}
            if fastest in finalists and leaders:
                number = next((n for n in leaders if n in verified), next(iter(leaders)))
                return _decided(self.trial(study, number).trial, leaders[number])
        return self.trial(study, fastest).trial

    def refuted(self, study: StudyRecord) -> frozenset[int]:
        """Return the numbers of trials whose last verification failed."""
        return _refuted(self.proofs(study, "verify"))

    def verification(self, study: StudyRecord, trial: Trial) -> Verification:
        """Return the verification state of a trial."""
        latest = [session.end_reason for session in self.sessions(study)][-1:]
        found = verification(
            study,
            trial,
            self.proofs(study, "verify"),
            self.proofs(study, "undone"),
            interrupted=latest == ["interrupted"],
            options=lambda: (*reference_option(self.source(study.kernel_digest, shown=True)), *db_option(self.path)),
        )
        proofs = [*self.proofs(study, "verify"), *self.proofs(study, ALGEBRA)]
        found = replace(found, algebra=algebra_of(study, trial, proofs))
        if study.settings.get("gate", {}).get("inputs") == "normal":
            found = replace(found, reason=f"{found.reason}; only normal inputs were checked")
        if found.verified and (changed := self.damaged_sources(study, trial)):
            files = ", ".join(map(repr, changed))
            return replace(found, verified=None, reason=f"the stored source {files} of the verified trial is damaged")
        if found.verified and (headers := self._changed_headers(study, trial)):
            reason = f"{', '.join(headers)}, which the verified program includes, changed since"
            return replace(found, verified=None, reason=f"{reason}; restore it, or search again with --fresh")
        return found

    def _changed_headers(self, study: StudyRecord, trial: Trial) -> list[str]:
        """Return the headers outside a trial's kernel that exist on this machine with another content."""
        stored = self.source(self.trial(study, trial.number).kernel_digest, shown=True)
        known = stored_outside(stored).values()
        return [path for digest, path in known if is_file(Path(path)) and changed_since(digest, Path(path))]

    def limit(self, study: StudyRecord, best: Trial) -> RooflineBound | None:
        """Return the champion's roofline bound, or None if its work is unknown.

        The bound uses the rates of the latest session that measured them on the GPU, or the data sheet's peaks.
        """
        kept = [session.environment.get("rates") for session in self.sessions(study)]
        known = [Rates(**rates) for rates in kept if isinstance(rates, dict)]
        return roofline_bound_of(best.evaluation.evidence, best.evaluation.time_us or 0.0, known[-1] if known else None)

    def outcomes(self, study: StudyRecord) -> dict[str, int]:
        """Return the number of trials by outcome, including outcomes that did not occur."""
        counts = Counter(one.outcome for one in self.trial_statuses(study))
        return {outcome.value: counts[outcome.value] for outcome in Outcome}

    def slow(self, study: StudyRecord) -> dict[str, int]:
        """Return how many slow trials were stopped after the gate (`raced_out`) and before it (`screened`)."""
        timed = [one.timed for one in self.trial_statuses(study) if one.outcome == Outcome.SLOW.value]
        return {"raced_out": sum(timed), "screened": len(timed) - sum(timed)}

    def baselines(self, study: StudyRecord) -> dict[str, float]:
        """Return correct baseline → time in µs, fastest first, from the latest session that has one."""
        times = (baseline_times(session.baselines) for session in reversed(self.sessions(study)))
        return next(filter(None, times), {})

    def baseline(self, study: StudyRecord) -> tuple[str, float] | None:
        """Return the name and the time in µs of the fastest of the `baselines`."""
        return next(iter(self.baselines(study).items()), None)

    def rejected_baselines(self, study: StudyRecord) -> dict[str, str]:
        """Return the name and error of each baseline that failed in the latest session that tried baselines."""
        tried = [session.baselines for session in self.sessions(study) if session.baselines]
        return {one.name: one.error for one in tried[-1] if one.error} if tried else {}

    def in_turn(self, study: StudyRecord, trial: int) -> dict[str, Any] | None:
        """Return the latest head-to-head times of a trial and the fastest baseline.

        They come from the end of a search or from the playoff of a verification.

        Returns:
            A dict, or None if the two were never timed head-to-head. Its keys are `time_us` of the trial, `baseline`
            with `name` and `time_us`, `ratio` (baseline time ÷ trial time), `ratio_ci95`, and `rounds`.
        """
        of_search = [proof for proof in self.proofs(study, HEAD_TO_HEAD) if proof.trial == trial]
        found: list[tuple[str, dict[str, Any]]] = [(proof.created, dict(proof.result)) for proof in of_search]
        for proof in self.proofs(study, "verify"):
            played = proof.result.get("playoff") or {}
            trials = _trials_of(played)
            others = [one for one in played.get("finalists") or () if one not in trials.values()]
            mine = trials.get(trial)
            if others and mine and mine["standing"] != "slower" and not played.get("predicted"):
                # Both intervals are relative to the playoff's champion; combine them into the widest interval.
                fastest = min(others, key=lambda one: float(one["ratio"]))
                (low, high), (least, most) = fastest["ratio_ci95"], mine["ratio_ci95"]
                ratio = {"ratio": fastest["ratio"] / mine["ratio"], "ratio_ci95": [low / most, high / least]}
                baseline = {"name": fastest["name"], "time_us": fastest["time_us"]}
                own = {"time_us": mine["time_us"], "rounds": played["rounds"]}
                found.append((proof.created, {"baseline": baseline, **ratio, **own}))
        return sorted(found, key=lambda one: one[0])[-1][1] if found else None

    def infeasible_neighbours(self, study: StudyRecord, trial: int) -> list[dict[str, Any]] | None:
        """Return the infeasible one-gene changes of a champion: `gene`, `value`, `constraint`, `reason`.

        Return None if no session that stored these changes ended with that champion.
        """
        mine = [proof for proof in self.proofs(study, NEIGHBOURS) if proof.trial == trial]
        return list(mine[-1].result.get("infeasible", ())) if mine else None

    def remeasured(self, study: StudyRecord) -> dict[int, dict[str, Any]]:
        """Return results measured again on another GPU, because the times of the trials' own GPU had drifted.

        Returns:
            For each trial number: `gpu`, `outcome`, `time_us` in µs, and `because`.
        """
        return {proof.trial: dict(proof.result) for proof in self.proofs(study, REMEASURED)}

    def warm_start(self, study: StudyRecord) -> dict[str, Any] | None:
        """Return the source of a study's warm start and the number of its candidates, or None without a warm start."""
        with explain_errors(self.path):
            if not self._db["evokern_priors"].exists():  # a file older than warm starts
                return None
        return next(self._rows.read_where("evokern_priors", _warm_start_of, {"study": study.uuid}), None)

    def summary(self, study: StudyRecord) -> dict[str, Any]:
        """Return the object that `show --json` prints."""
        outcomes = self.outcomes(study)
        baseline, best = self.baseline(study), self.best(study)
        in_turn = self.in_turn(study, best.number) if best else None
        elapsed_s = sum(session.elapsed_s for session in self.sessions(study))
        limit = self.limit(study, best) if best else None
        return {
            "study": study.name,
            "device": study.device,
            "predicted": study.predicted,
            "timing_rule": study.timing_rule,
            "trials": sum(outcomes.values()),
            "outcomes": outcomes,
            "slow": self.slow(study),
            "rejections": self.rejections(study),
            "elapsed_s": elapsed_s,
            "budget_s": study.budget_s,
            "warm_start": self.warm_start(study),
            "baseline": {"name": baseline[0], "time_us": baseline[1]} if baseline else None,
            "best": _best_table(best, baseline[1] if baseline else None, in_turn) if best else None,
            **(self.verification(study, best).as_dict() if best else _NOTHING),
            "limit": limit.as_dict() if limit else None,
            "remeasured": self.remeasured(study),
            "cost": study.cost(elapsed_s),
            "control": control_table(study, () if study.control == "none" else self.trials(study)),
            "damaged": list(self.damaged),
            "baselines": self.baselines(study),
            "rejected_baselines": self.rejected_baselines(study),
            "grid": grid_facts(best.evaluation.resources, limit.share if limit else None) if best else None,
            "end": next((one.end_reason for one in reversed(self.sessions(study)) if one.end_reason), None),
        }


def _refuted(proofs: Iterable[ProofRecord]) -> frozenset[int]:
    last = {proof.trial: proof.passed for proof in proofs}
    return frozenset(number for number, passed in last.items() if not passed)


def _trials_of(playoff: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return those finalists of a playoff that are in the given trials, by trial number, fastest first."""
    finalists = ((str(one["name"]), one) for one in playoff.get("finalists") or ())
    return {int(name.removeprefix("trial ")): one for name, one in finalists if name.startswith("trial ")}


def _warm_start_of(row: Row) -> dict[str, Any]:
    studies = [study for study, _, entries in stored_entries(row["entries"]) for _ in entries]
    return {"source": str(row["source"]), "candidates": studies.count(0), "further": max(studies, default=0)}


def _decided(trial: Trial, finalist: dict[str, Any]) -> Trial:
    """Return a trial with the time that a playoff measured for it."""
    evaluation = trial.evaluation
    timings = evaluation.timings
    if len(timings) == 1:
        low, high = finalist["ci95_us"]
        timings = (replace(timings[0], median_us=finalist["time_us"], ci95_us=(low, high)),)
    evidence = {**evaluation.evidence, "search_time_us": evaluation.time_us, "time_from": "playoff"}
    return replace(
        trial, evaluation=replace(evaluation, time_us=finalist["time_us"], timings=timings, evidence=evidence)
    )


def _best_table(best: Trial, baseline_us: float | None, in_turn: Mapping[str, Any] | None) -> dict[str, Any]:
    time_us = best.evaluation.time_us
    assert time_us is not None  # a measured trial has a time: `Evaluation` checks it
    interval = interval_us(best.evaluation)
    return {
        "trial": best.number,
        "time_us": time_us,
        "ci95_us": list(interval) if interval else None,
        "speedup": in_turn["ratio"] if in_turn else baseline_us / time_us if baseline_us else None,
        "speedup_ci95": list(in_turn["ratio_ci95"]) if in_turn else None,
        "in_turn": {**in_turn["baseline"], "champion_us": in_turn["time_us"]} if in_turn else None,
        "config": dict(best.config),
    }
