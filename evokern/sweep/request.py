"""Options and result of a sweep run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from evokern.cluster import RayRequest
from evokern.study.options import parse_duration
from evokern.sweep.study_state import StudyState


@dataclass(frozen=True)
class SweepRequest:
    """Options of a sweep run."""

    device: str | None = None
    """Device that replaces the devices in the file; None keeps them."""
    cluster: RayRequest | None = None
    """Ray cluster for simulated devices; None for this machine."""
    budget: str | float | None = None
    """Total time of all studies over all runs, for example `6h`; a number means seconds."""
    warm_start: Literal["auto", "none"] = "auto"
    """Warm start of new studies: from the nearest completed study in the folder, or none."""
    allow_changes: bool = False
    """Whether to continue even if settings or code have changed."""
    trust: bool = False
    """Whether to trust the kernels' folders from now on."""
    inputs: str | None = None
    """`normal`: check candidates on normal inputs only."""
    keep_going: bool = False
    """Whether to continue studies without correct candidates."""
    verify: bool = True
    """Whether to verify champions."""

    @property
    def budget_s(self) -> float | None:
        """Budget in seconds.

        Raises:
            StudyError: the budget is not a duration.
        """
        return None if self.budget is None else parse_duration(self.budget)


@dataclass(frozen=True)
class SweepResult:
    """Result of a sweep run."""

    end: Literal["done", "budget", "interrupted"]
    """Reason for the end: nothing is left to search, the sweep's budget is used up, or the user stopped it."""
    states: tuple[StudyState, ...]
    """States of the studies, in the sweep's order."""
    refused: dict[str, str] = field(default_factory=dict)
    """Reasons why studies could not be searched, by name of the study."""

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {"end": self.end, "studies": [one.as_dict() for one in self.states], "refused": self.refused}
