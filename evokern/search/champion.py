"""The end of a search: its champion is verified, and where it is refuted the next one takes its place.

What a search measured passed the gate. The verification asks more of the one that is handed over: every small problem
under the sanitizer, shapes that no search looked at, and on a simulated device more blocks of the study's own problems.
It runs in a process of its own and within the study's budget; what it did not come to is said.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from evokern.declaration.genes import Config
from evokern.errors import EvokernError
from evokern.search.identity import SearchTarget
from evokern.store import Session, db_option
from evokern.study.discovery import WorkerContext
from evokern.study.settings import Study
from evokern.study.trial import Outcome, Trial
from evokern.wording import command
from evokern.workers.pool import JobResult, OwnServerPool, WorkerPool, WorkerSpec, wait

RESERVED_SHARE = {False: 0.2, True: 0.1}
"""Share of a budget that is kept for the verification of the champion: on a GPU, and on a simulated device. A champion
that was found in the last seconds, of an attention kernel, takes some nine."""
RESERVED_S = {False: 10.0, True: 60.0}
"""Most seconds of a budget that are kept for it: on a GPU, and on a simulated device."""
UNLIMITED_S = {False: 10.0, True: 300.0}
"""Seconds that it may take where no budget ends the search."""
INTERRUPTED = "interrupted"
"""Why a verification came to nothing that its user stopped."""
MOST_REFUTED = 5
"""Champions that may be refuted before the search is over."""
EARLY_CORES = 4
"""Cores of a machine from which on the processes start early: one drives the device, others compile."""
EARLY_PROCESSES = 2
"""Processes then: one for the best so far, one for what replaces it meanwhile."""
LEAD_S = 30.0
"""Seconds before the end of the loop at which they start. An attention kernel takes some twenty: import, sanitizer,
fuzzing."""
EARLY_S = 10.0
"""Seconds that a verification may take then."""
START_S = 30.0
"""Seconds for the process to start, on top: it imports torch."""


@dataclass(frozen=True)
class VerifierSettings:
    """What the verifying process shares over its jobs."""

    context: WorkerContext
    """The kernel, the study's problems, the chip under the study's limits."""
    study: Study
    """Gate and simulation settings."""
    secret: int
    """Of the study."""
    predicted: bool
    """Whether times, and so the gate at the study's own problems, come from the simulated device."""


@dataclass(frozen=True)
class VerifyJob:
    """One trial to verify; answered with stages as `verify --json` prints them, JSON values."""

    number: int
    """The trial."""
    config: Config
    """Its configuration."""
    seconds: float
    """Time for all of it: fuzzing has what the other stages leave; a fixed number of cases ends it before."""


def reserve(budget_s: float | None, predicted: bool) -> float:
    """Return the seconds of a budget that the loop leaves to the verification."""
    return 0.0 if budget_s is None else min(RESERVED_S[predicted], RESERVED_SHARE[predicted] * budget_s)


class ChampionVerification:
    """Verifies the fastest measured trial, and where it is refuted the next, in processes of their own.

    On a live device the processes start while the last trials run there, if cores are idle: what is the best then is
    often the champion, and torch alone takes seconds to import.
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
        """Prepare; nothing is started.

        Args:
            target: what is searched.
            session: keeps what is found.
            verifier: factory of the worker, as a `WorkerSpec` names it: takes `VerifierSettings`, answers `VerifyJob`.
            note: takes a sentence for the user.
            proved: takes every trial whose verification ended, earlier ones too, and whether it passed.
            cores: of the machine.
        """
        self._session, self._note, self._proved = session, note, proved
        self._known = {proof.trial: proof.passed for proof in session.proofs()}
        for number, passed in self._known.items():
            proved(number, passed)
        self._pending: set[int] = set()
        self._early = not target.device.predicted and cores >= EARLY_CORES
        context = WorkerContext(target.kernel.folder, target.problems, target.limits)
        settings = VerifierSettings(context, target.study, session.study.secret, target.device.predicted)
        # The simulator runs on the CPU alone; a GPU must not even be seen by a process that loads the kernel.
        environment = {"CUDA_CACHE_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._spec = WorkerSpec(verifier, settings, environment)
        self._pool: OwnServerPool | None = None

    def advance(self, best: Trial | None, left_s: float) -> None:
        """Go on while the search runs, near its end.

        Args:
            best: the fastest trial so far.
            left_s: seconds that the loop still has.
        """
        if not self._early or left_s > LEAD_S or best is None:
            return
        try:
            pool = self._started()
            for result in wait([pool], 0.0) if self._pending else ():
                self._found(result)
            known = best.number in self._known or best.number in self._pending
            if not known and len(self._pending) < EARLY_PROCESSES:
                self._submit(best, EARLY_S, LEAD_S + RESERVED_S[False])
        except (EvokernError, OSError):
            self._early = False  # asked again after the loop, which then says why

    def finish(self, seconds: float, stopped: Callable[[], bool]) -> None:
        """Verify after the loop.

        Args:
            seconds: how long all of it may take.
            stopped: whether the user wants to stop.
        """
        measured = [one for one in self._session.recorded_trials()[1] if one.outcome is Outcome.MEASURED]
        order = sorted(measured, key=lambda trial: (trial.evaluation.time_us or 0.0, trial.number))
        left = [trial for trial in order if self._known.get(trial.number) is not False]
        end = time.monotonic() + seconds
        for trial in left[:MOST_REFUTED]:
            why = "" if trial.number in self._known else self._answered(trial, end, stopped)
            if why:
                self._session.not_proved(trial.number, why)
                line = command("verify", self._session.study.name, *db_option(self._session.db))
                self._note(f"trial {trial.number} is not verified: {why}; `{line}` does it")
            if why or self._known.get(trial.number):
                return
        if len(left) > MOST_REFUTED:
            self._note(
                f"{MOST_REFUTED} champions in a row are refuted, the next is not verified; if all fail alike, say in "
                "the kernel's constraints or fields (`multiple_of`) what the kernel cannot take"
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

    def _answered(self, trial: Trial, end: float, stopped: Callable[[], bool]) -> str:
        """Wait until a trial is known; return why it is not."""
        self._note(f"verifying trial {trial.number}")
        try:
            if trial.number not in self._pending:
                left_s = max(1.0, end - time.monotonic())
                self._submit(trial, left_s, left_s)
            while not stopped():
                for result in wait([self._started()], 0.1):
                    why = self._found(result)
                    if result.key == trial.number:
                        return why
                if time.monotonic() >= end:
                    return "the budget ended before it was done"
        except (EvokernError, OSError) as error:
            return str(error).splitlines()[0]
        return INTERRUPTED

    def _found(self, result: JobResult) -> str:
        """Keep what a job found; return why it found nothing."""
        self._pending.discard(result.key)
        if result.status != "done":
            how = (
                f"no answer in {result.value:g} s" if result.status == "overran" else str(result.value).splitlines()[0]
            )
            return f"the verifying process failed ({how})"
        record, found = self._session.study, result.value
        self._session.proved(result.key, {"study": record.name, "trial": result.key, "device": record.device, **found})
        failed = [f"{name}: {one['detail']}" for name, one in found["stages"].items() if one["state"] == "failed"]
        self._known[result.key] = not failed
        self._proved(result.key, not failed)
        if failed:
            self._note(f"trial {result.key} is refuted, and no champion: {failed[0]}")
        return ""
