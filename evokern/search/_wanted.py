"""What one session of a search was asked for beyond what its study says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from evokern.errors import StudyError
from evokern.search._identity import Overrides
from evokern.store import StudyRecord
from evokern.study import check_control, check_price


@dataclass(frozen=True)
class Wanted:
    """What this session was asked for beyond the study."""

    budget_s: float | None = None
    """Total time over all sessions, seconds."""
    extend_s: float | None = None
    """Time to add to the study's budget, seconds."""
    trials: int | None = None
    """Total number of evaluated trials."""
    overrides: Overrides = field(default_factory=Overrides)
    """What is said over the study's file."""
    warm_start: str | None = None
    """Where a new study's prior comes from."""
    cost_per_hour: float | None = None
    """Price of an hour of the device."""
    fresh: bool = False
    """Set an earlier study of this name aside."""
    go_on: bool = False
    """Let changes of settings and code pass."""

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 1:
            raise StudyError(f"trials = {self.trials}; give at least 1")
        window = self.overrides.window
        if window is not None and not 1 <= window <= 1024:
            raise StudyError(f"window = {window}; give 1 to 1024")
        check_control(self.overrides.control or "none", "")
        check_price(self.cost_per_hour)

    def applied(self, record: StudyRecord) -> StudyRecord:
        """Return the record with this session's limits and price.

        Raises:
            StudyError: there is no budget to extend.
        """
        budget_s = record.budget_s if self.budget_s is None else self.budget_s
        if self.extend_s is not None:
            if budget_s is None and record.trials_limit is not None:
                raise StudyError(
                    f"study {record.name} has no budget to extend: its trials ({record.trials_limit}) end it, and "
                    "time alone does not help; --trials N sets a larger total"
                )
            if budget_s is None:
                raise StudyError(f"study {record.name} has no budget to extend; give one with --budget")
            budget_s += self.extend_s
        price = record.cost_per_hour if self.cost_per_hour is None else self.cost_per_hour
        limit = self.trials or record.trials_limit
        return replace(record, budget_s=budget_s, trials_limit=limit, cost_per_hour=price)
