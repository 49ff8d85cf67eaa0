"""Verification of a search's champion; if the champion is refuted, the next fastest trial is verified.

Every measured trial has passed the correctness gate. The verification also runs all small problems under the sanitizer,
and shapes that the search did not use. It looks for races in some blocks of the study's problems. If a loop does not
repeat there, it does so at problems at which the loop repeats. On a simulated device, it also compares the results of
more blocks. It uses a separate process and the study's budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from evokern.declaration.as_data.declared import reference_option
from evokern.declaration.genes import Config
from evokern.errors import EvokernError
from evokern.events import step
from evokern.search.identity import SearchTarget
from evokern.store import Session, db_option, undecided
from evokern.study.discovery import WorkerContext
from evokern.study.settings import Study
from evokern.study.trial import Outcome, Trial
from evokern.wording import command, stage_label
from evokern.workers.pool import JobResult, OwnServerPool, WorkerPool, WorkerSpec, wait

RESERVED_SHARE = {False: 0.2, True: 0.1}
"""Fraction of a budget reserved for verifying the champion, on a GPU and on a simulated device. Verifying an attention
kernel's champion takes about 9 s."""
RESERVED_S = {False: 10.0, True: 60.0}
"""Maximum number of seconds reserved for the verification, on a GPU and on a simulated device."""
TIME_WITHOUT_BUDGET_S = {False: 180.0, True: 300.0}
"""Seconds allowed for the verification if the search has no budget."""
INTERRUPTED = "interrupted"
"""Reason stored for a verification that the user stopped."""
MOST_REFUTED = 5
"""Maximum number of refuted champions before verification stops."""
EARLY_CORES = 4
"""Minimum number of CPU cores for starting the processes early; the device and the compilers also need cores."""
EARLY_PROCESSES = 2
"""Number of early processes: one for the best trial so far, and one for a trial that may replace it."""
LEAD_S = 30.0
"""Seconds before the end of the loop at which these processes start. Import, sanitizer and fuzzing together take about
20 s for an attention kernel."""
EARLY_S = 10.0
"""Seconds allowed for an early verification."""
START_S = 30.0
"""Additional seconds for starting the process, which imports torch."""


@dataclass(frozen=True)
class VerifierSettings:
    """Settings that all jobs of the verifying process share."""

    context: WorkerContext
    """Kernel folder, the study's problems, and the chip with the study's resource limits applied."""
    study: Study
    """Study with the settings of the gate and the simulation."""
    secret: int
    """Secret of the study."""
    predicted: bool
    """Whether a simulated device provides the times and checks the study's full-size problems."""


@dataclass(frozen=True)
class VerifyJob:
    """A trial to verify; the result is the stages as JSON values, as printed by `verify --json`."""

    number: int
    """Trial number."""
    config: Config
    """Configuration of the trial."""
    seconds: float
    """Seconds for all stages: fuzzing gets the time that is left, and also ends after a fixed number of cases."""


def reserve(budget_s: float | None, predicted: bool) -> float:
    """Return how many seconds of a budget are reserved for the verification."""
    return 0.0 if budget_s is None else min(RESERVED_S[predicted], RESERVED_SHARE[predicted] * budget_s)


def verifier_spec(verifier: str, settings: VerifierSettings) -> WorkerSpec:
    """Return the specification of a verifying process, for a factory of its worker."""
    # The simulator needs only the CPU; a process that loads the kernel must not have access to a GPU.
    return WorkerSpec(verifier, settings, {"CUDA_CACHE_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""})


def verifier_failure(result: JobResult) -> str:
    """Return why a verifying process gave no result; empty if it gave one."""
    if result.status == "done":
        return ""
    overran = result.status == "overran"
    how = f"no result within {result.value:g} s" if overran else str(result.value).splitlines()[0]
    return f"the verifying process failed ({how})"


class ChampionVerification:
    """Verification of the fastest trial in separate processes; if a trial is refuted, the next fastest follows.

    If a GPU is searched and CPU cores are idle, the processes start before the search ends, because importing torch
    takes seconds. The best trial at that time often remains the champion.
    """

    def __init__(
        self,
        target: SearchTarget,
        session: Session,
        verifier: str,
        note: Callable[[str], None],
        proved: Callable[[int, bool], None],
        *,
        cores: int,
    ) -> None:
        """Store the settings; start no process.

        Args:
            target: study, kernel, device and space to search.
            session: stores the results.
            verifier: factory of the worker, as in `WorkerSpec`; takes `VerifierSettings`, processes `VerifyJob`.
            note: called with notes for the user.
            proved: called with each verified or refuted trial, earlier ones included, and whether it passed.
            cores: number of cores of the machine.
        """
        self._session, self._note, self._proved = session, note, proved
        self._known = {proof.trial: proof.passed for proof in session.proofs()}
        for proof in session.proofs():
            if not (proof.passed and undecided(proof.result.get("stages", {}))):
                proved(proof.trial, proof.passed)
        content = target.kernel.content
        self._reference = reference_option({one.name: one.text for one in content.files} if content else {})
        self._pending: set[int] = set()
        self._late = ""
        self._early = not target.device.predicted and cores >= EARLY_CORES
        context = WorkerContext.of(target.kernel, target.problems, target.limits)
        settings = VerifierSettings(context, target.study, session.study.secret, target.device.predicted)
        self._spec = verifier_spec(verifier, settings)
        self._pool: OwnServerPool | None = None

    def advance(self, best: Trial | None, left_s: float) -> None:
        """Start early verifications near the end of the search, or collect their results.

        Args:
            best: the fastest trial so far.
            left_s: seconds until the loop ends.
        """
        if not self._early or left_s > LEAD_S or best is None:
            return
        try:
            pool = self._started()
            for result in wait([pool], 0.0) if self._pending else ():
                self._store_result(result)
            known = best.number in self._known or best.number in self._pending
            if not known and len(self._pending) < EARLY_PROCESSES:
                self._submit(best, EARLY_S, LEAD_S + RESERVED_S[False])
        except (EvokernError, OSError):
            self._early = False  # `finish` tries again and reports the error

    def finish(self, seconds: float, stopped: Callable[[], bool], *, budget: bool = True) -> None:
        """Verify champions after the loop, until one passes.

        Args:
            seconds: time limit for all verifications together.
            stopped: returns whether the user wants to stop.
            budget: whether the time limit is what is left of the study's budget.
        """
        late = "the budget ended before the verification completed"
        self._late = late if budget else f"the verification did not complete within {seconds:.0f} s"
        measured = [one for one in self._session.recorded_trials()[1] if one.outcome is Outcome.MEASURED]
        order = sorted(measured, key=lambda trial: (trial.evaluation.time_us or 0.0, trial.number))
        left = [trial for trial in order if self._known.get(trial.number) is not False]
        end = time.monotonic() + seconds
        for trial in left[:MOST_REFUTED]:
            why = "" if trial.number in self._known else self._verify(trial, end, stopped)
            if why:
                self._session.write_unfinished_verification(trial.number, why)
                where = (*self._reference, *db_option(self._session.db))
                line = command("verify", self._session.study.name, "--trial", trial.number, *where)
                self._note(f"trial {trial.number} is not verified: {why}; to verify it, run `{line}`")
            if why or self._known.get(trial.number):
                return
        if len(left) > MOST_REFUTED:
            self._note(
                f"{MOST_REFUTED} champions in a row were refuted, so verification stopped. If all failed in the same "
                "way, exclude the unsupported cases with constraints or fields (`multiple_of`)"
            )

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.close()

    def _started(self) -> WorkerPool:
        if self._pool is None:
            self._pool = OwnServerPool(self._spec, size=EARLY_PROCESSES if self._early else 1)
        return self._pool

    def _submit(self, trial: Trial, seconds: float, deadline_s: float) -> None:
        self._started().submit(trial.number, VerifyJob(trial.number, trial.config, seconds), deadline_s + START_S)
        self._pending.add(trial.number)

    def _verify(self, trial: Trial, end: float, stopped: Callable[[], bool]) -> str:
        """Wait for a trial's verification; return why there is no result, or an empty string."""
        self._note(f"verifying trial {trial.number}")
        with step(f"verifying trial {trial.number}"):
            return self._waited(trial, end, stopped)

    def _waited(self, trial: Trial, end: float, stopped: Callable[[], bool]) -> str:
        try:
            if trial.number not in self._pending:
                left_s = max(1.0, end - time.monotonic())
                self._submit(trial, left_s, left_s)
            while not stopped():
                for result in wait([self._started()], 0.1):
                    why = self._store_result(result)
                    if result.key == trial.number:
                        return why
                if time.monotonic() >= end:
                    return self._late
        except (EvokernError, OSError) as error:
            return str(error).splitlines()[0]
        return INTERRUPTED

    def _store_result(self, result: JobResult) -> str:
        """Store the result of a job; return why there is no result, or an empty string."""
        self._pending.discard(result.key)
        if why := verifier_failure(result):
            return why
        record, found = self._session.study, result.value
        self._session.write_verification(
            result.key, {"study": record.name, "trial": result.key, "device": record.device, **found}
        )
        stages = found["stages"].items()
        failed = [f"{stage_label(name)}: {one['detail']}" for name, one in stages if one["state"] == "failed"]
        self._known[result.key] = not failed
        unclear = "" if failed else undecided(found["stages"])
        if unclear:
            self._note(f"trial {result.key} is not verified: {unclear}")
        else:
            self._proved(result.key, not failed)
        if failed:
            self._note(f"trial {result.key} is refuted and cannot be the champion: {failed[0]}")
        return ""
