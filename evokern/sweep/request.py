"""What a run of a sweep is asked for, and what it ends with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from evokern.cluster import RayRequest
from evokern.study.duration import parse_duration
from evokern.sweep.standing import StudyStanding


@dataclass(frozen=True)
class SweepRequest:
    """What a run of a sweep is asked for."""

    device: str | None = None
    """The device that stands for those of the file; None leaves them."""
    cluster: RayRequest | None = None
    """The Ray cluster that simulated devices work on; None for this machine."""
    budget: str | float | None = None
    """Total time of all studies over all runs, for example `6h`; seconds as a number."""
    warm_start: Literal["auto", "none"] = "auto"
    """What a new study begins with: the nearest study of the folder that is searched to its end, or nothing."""
    go_on: bool = False
    """Let changes of settings and code pass."""
    trust: bool = False
    """Remember that the kernels' folders may run."""

    @property
    def budget_s(self) -> float | None:
        """The budget in seconds.

        Raises:
            StudyError: it is no duration.
        """
        return None if self.budget is None else parse_duration(self.budget)


@dataclass(frozen=True)
class SweepResult:
    """How a run of a sweep ended."""

    end: Literal["done", "budget", "interrupted"]
    """Why: nothing is left to search, the sweep's budget is used up, or its user stopped it."""
    standings: tuple[StudyStanding, ...]
    """How each study stands, in the sweep's order."""
    refused: dict[str, str] = field(default_factory=dict)
    """Study → why it could not go on."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"end": self.end, "studies": [one.as_dict() for one in self.standings], "refused": self.refused}
