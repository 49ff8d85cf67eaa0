"""What one session of a search is asked for, from the command line or from Python."""

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
    """Workers that a search starts and whose code comes after it: `module:Class`, as a `WorkerSpec` names them."""

    diagnoser: str
    """Says why candidates crash or hang (`evokern.search.diagnosis.Diagnoses`)."""
    verifier: str
    """Verifies the champion (`evokern.search.champion.ChampionVerification`)."""


@dataclass(frozen=True)
class SessionPart:
    """Which part of its study a session does, for whoever searches several in turn; the study keeps its own limits."""

    trials: int | None = None
    """Evaluated trials over all sessions at which it pauses."""
    elapsed_s: float | None = None
    """Study time over all sessions, in seconds, at which it pauses."""
    overdue_s: float | None = None
    """Seconds for verifying the champion where there is nothing to search; None leaves it as it is."""
    neighbours: tuple[Path, ...] = ()
    """Further databases whose studies the warm start `auto` may take."""
    anew: str = ""
    """What begins a study anew, for messages, where `--fresh` does not."""

    @property
    def pauses(self) -> bool:
        """Whether the session may end before its study does."""
        return self.trials is not None or self.elapsed_s is not None


WHOLE = SessionPart()
"""All of a study, up to its own limits."""


@dataclass(frozen=True)
class SessionRequest:
    """What this session is asked for; None leaves what the study began with, or on a new study what its file says."""

    device: str | Device | None = None
    """What evaluates: `auto`, `cuda[:N]`, `sim:CHIP`, `replay:FILE`, or a device."""
    cluster: RayRequest | None = None
    """The Ray cluster that a simulated device works on; None for this machine."""
    kernel: Kernel | None = None
    """The kernel, where it is not found by the name that the study gives."""
    budget: str | float | None = None
    """Total time over all sessions, for example `2h`; seconds as a number."""
    extend: str | float | None = None
    """Time to add to the study's budget."""
    trials: int | None = None
    """Total number of evaluated trials."""
    sampler: str | None = None
    """Name of the sampler."""
    seed: int | None = None
    """Seed of the proposals."""
    window: int | None = None
    """Most trials in flight."""
    control: str | None = None
    """Name of the control, or `none`."""
    warm_start: str | None = None
    """Where a new study's prior comes from: `auto`, which None stands for, `none`, `sim`, `DB:STUDY` or a recording."""
    cost_per_hour: float | None = None
    """Price of an hour of the device."""
    fresh: bool = False
    """Set an earlier study of this name aside."""
    go_on: bool = False
    """Let changes of settings and code pass."""
    trust: bool = False
    """Remember that the kernel folder's code may run; on resume, run the copy that the database keeps of it."""
    verify: bool = True
    """Verify the champion at the end, within the budget."""

    def __post_init__(self) -> None:
        for time in (self.budget, self.extend):
            if time is not None:
                parse_duration(time)
        check_trials(self.trials)
        check_seed(self.seed)
        if self.window is not None and not 1 <= self.window <= 1024:
            raise StudyError(f"max_in_flight = {self.window}; give 1 to 1024")
        check_control(self.control or "none", "")
        check_price(self.cost_per_hour)

    def applied(self, record: StudyRecord) -> StudyRecord:
        """Return the record with this session's limits and price.

        Raises:
            StudyError: there is no budget to extend.
        """
        budget_s = record.budget_s if self.budget is None else parse_duration(self.budget)
        if self.extend is not None:
            if budget_s is None and record.trials_limit is not None:
                raise StudyError(
                    f"study {record.name} has no budget to extend: its trials ({record.trials_limit}) end it, and "
                    "time alone does not help; --trials N sets a larger total"
                )
            if budget_s is None:
                raise StudyError(f"study {record.name} has no budget to extend; give one with --budget")
            budget_s += parse_duration(self.extend)
        price = record.cost_per_hour if self.cost_per_hour is None else self.cost_per_hour
        limit = self.trials or record.trials_limit
        return replace(record, budget_s=budget_s, trials_limit=limit, cost_per_hour=price)
