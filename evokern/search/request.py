"""Options of one search session, from the command line or from Python."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from evokern.errors import StudyError
from evokern.study.duration import parse_duration
from evokern.study.settings import check_control, check_price, check_seed, check_trials

if TYPE_CHECKING:
    from evokern.cluster import RayRequest
    from evokern.declaration.kernel import Kernel
    from evokern.device import Device
    from evokern.store import StudyRecord


@dataclass(frozen=True)
class WorkerFactories:
    """Workers from higher layers that a search starts, each given as `module:Class` (see `WorkerSpec`)."""

    diagnoser: str
    """Worker that explains crashes and hangs (`evokern.search.diagnosis.Diagnoses`)."""
    verifier: str
    """Worker that verifies the champion (`evokern.search.champion.ChampionVerification`)."""


@dataclass(frozen=True)
class SessionPart:
    """Part of a study that one session searches, so that several studies can be searched alternately."""

    trials: int | None = None
    """Evaluated trials over all sessions at which the session pauses."""
    elapsed_s: float | None = None
    """Study time over all sessions, in seconds, at which the session pauses."""
    verification_s: float | None = None
    """Seconds for verifying the champion of a finished search; None: only repeat an interrupted verification."""
    neighbours: tuple[Path, ...] = ()
    """Further databases that the warm start `auto` may use."""
    fresh_advice: str = ""
    """Advice on how to start over, used in messages if `--fresh` is not available."""

    @property
    def pauses(self) -> bool:
        """Whether the session may end before its study."""
        return self.trials is not None or self.elapsed_s is not None


WHOLE = SessionPart()
"""The whole study, up to its own limits."""


@dataclass(frozen=True)
class SessionRequest:
    """Options of one session; None keeps the study's stored value, or the study file's value for a new study."""

    device: str | Device | None = None
    """Device: `auto`, `cuda[:N]`, `sim:CHIP`, `replay:FILE`, or a device object."""
    cluster: RayRequest | None = None
    """Ray cluster for a simulated device; None for this machine."""
    kernel: Kernel | None = None
    """The kernel, if it cannot be found by the name that the study gives."""
    budget: str | float | None = None
    """Total time over all sessions, for example `2h`; a number means seconds."""
    extend: str | float | None = None
    """Time to add to the study's budget."""
    trials: int | None = None
    """Total number of evaluated trials over all sessions."""
    sampler: str | None = None
    """Name of the sampler."""
    seed: int | None = None
    """Seed of the proposals."""
    max_in_flight: int | None = None
    """Maximum number of concurrent trials."""
    control: str | None = None
    """Name of the control, or `none`."""
    warm_start: str | None = None
    """Source of a new study's prior: `auto` (the default), `none`, `sim`, `DB:STUDY` or a recording."""
    cost_per_hour: float | None = None
    """Device price per hour."""
    fresh: bool = False
    """Whether to start over; the old study is kept as NAME.1."""
    allow_changes: bool = False
    """Whether to continue even if settings or code have changed."""
    trust: bool = False
    """Whether to trust the kernel folder from now on; on resume, whether to run the stored copy of its code."""
    verify: bool = True
    """Whether to verify the champion at the end, within the budget."""

    inputs: str | None = None
    """`normal`: check candidates on normal inputs only."""
    keep_going: bool = False
    """Whether to continue even if nothing was right (`FailureWatch`)."""

    def __post_init__(self) -> None:
        if self.inputs not in (None, "normal"):
            raise StudyError(f"inputs = {self.inputs!r}; use normal, or omit it to use the inputs of the study")
        for time in (self.budget, self.extend):
            if time is not None:
                parse_duration(time)
        check_trials(self.trials)
        check_seed(self.seed)
        if self.max_in_flight is not None and not 1 <= self.max_in_flight <= 1024:
            raise StudyError(f"max_in_flight = {self.max_in_flight} is out of range; use 1 to 1024")
        check_control(self.control or "none", "")
        check_price(self.cost_per_hour)

    def applied(self, record: StudyRecord) -> StudyRecord:
        """Return the record with this session's limits and price applied.

        Raises:
            StudyError: there is no budget to extend.
        """
        budget_s = record.budget_s if self.budget is None else parse_duration(self.budget)
        if self.extend is not None:
            if budget_s is None and record.trials_limit is not None:
                raise StudyError(
                    f"study {record.name} has no budget to extend because its trial limit ({record.trials_limit}) ends "
                    "it; set a larger limit with --trials N"
                )
            if budget_s is None:
                raise StudyError(f"study {record.name} has no budget to extend; set a budget with --budget")
            budget_s += parse_duration(self.extend)
        price = record.cost_per_hour if self.cost_per_hour is None else self.cost_per_hour
        limit = self.trials or record.trials_limit
        return replace(record, budget_s=budget_s, trials_limit=limit, cost_per_hour=price)
