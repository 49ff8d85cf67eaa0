"""Options of one search session, from the command line or from Python."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from evokern.cluster import RayRequest
from evokern.declaration.kernel import Kernel
from evokern.device import Device
from evokern.errors import StudyError
from evokern.study.options import check_types, option, parse_duration
from evokern.study.settings import CONTROLS, SAMPLERS, check_control, check_price, check_seed, check_trials

if TYPE_CHECKING:
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
    notes: tuple[str, ...] = ()
    """Notes to report at the start."""

    @property
    def pauses(self) -> bool:
        """Whether the session may end before its study."""
        return self.trials is not None or self.elapsed_s is not None


WHOLE = SessionPart()
"""The whole study, up to its own limits."""


@dataclass(frozen=True, kw_only=True)
class ResumeRequest:
    """Options of a session that resumes a study; None keeps the study's stored value."""

    budget: str | float | None = option(
        "Total time over all sessions, such as 2h, 1h30m or 45s. Default: the study's budget.",
        python="A number means seconds.",
        metavar="TIME",
    )
    extend: str | float | None = option("Add TIME, such as 30m, to the study's budget.", metavar="TIME")
    trials: int | None = option(
        "Stop after N evaluated trials over all sessions. Infeasible, duplicate and lost trials do not count. "
        "Default: the study's limit, if any.",
        metavar="N",
        minimum=1,
    )
    device: str | Device | None = option(
        "Device: auto (a GPU, otherwise a simulated L4), cuda:N, several GPUs (cuda:0,1 or cuda:all), sim:CHIP "
        "(see `evokern list`) or replay:FILE. Default: the study's device.",
        python="A device object is also possible.",
        metavar="DEVICE",
    )
    cluster: RayRequest | None = option(
        "Ray cluster whose hosts compile candidates and run them. Default: this machine."
    )
    cost_per_hour: float | None = option(
        "Price of one device hour; `show` reports the total cost.", metavar="PRICE", minimum=0
    )
    keep_going: bool = option(
        "Continue even if no candidate is correct. By default, a search stops after 350 incorrect trials. It "
        "stops after 40 if they all fail for the same reason and no gene affects that reason.",
        False,
    )
    allow_changes: bool = option("Continue a study even if its study file or kernel code has changed.", False)
    trust: bool = option(
        "Allow the database's copy of kernel.py to run if the kernel folder is missing, changed or not trusted.",
        False,
        python="The folder itself does not become trusted.",
    )
    verify: bool = option(
        "Verify the champion at the end, within the budget. Default: True.",
        True,
        command_line="Skip verification of the champion; you can run `evokern verify` later.",
    )

    def __post_init__(self) -> None:
        check_types(self, ResumeRequest)
        for name, time in (("budget", self.budget), ("extend", self.extend)):
            if time is not None:
                _seconds(name, time)
        check_trials(self.trials)
        check_price(self.cost_per_hour)


def _seconds(name: str, time: str | float) -> float:
    try:
        return parse_duration(time)
    except StudyError as error:
        raise StudyError(f"{name} = {error}") from error


@dataclass(frozen=True, kw_only=True)
class SessionRequest(ResumeRequest):
    """Options of a session; None keeps the study's stored value, or the study file's value for a new study."""

    sampler: str | None = option(
        f"Sampler: {', '.join(SAMPLERS)}. Default: from the study file.", metavar="NAME", choices=SAMPLERS
    )
    seed: int | None = option("Random seed of the sampler. Default: from the study file.", metavar="N")
    max_in_flight: int | None = option(
        "Maximum number of concurrent trials; fixed once the study has started. The search begins with 4 at a "
        "time and increases to this maximum. Default: enough to keep the device busy.",
        metavar="N",
    )
    control: str | None = option(
        "With random, every second trial is drawn at random, to compare the sampler with random search. "
        "Default: from the study file.",
        metavar="random|none",
        choices=CONTROLS,
    )
    warm_start: str | None = option(
        "Earlier results that seed a new study: auto, none, sim, another study (DB:STUDY) or a recording "
        "(FILE). With auto, studies of the same kernel in the database are used, nearest problem first. With "
        "sim, a simulation of this GPU is searched first. Default: auto; none with a control or on a recording "
        "(replay:FILE).",
        metavar="auto|none|sim|DB:STUDY|FILE",
    )
    fresh: bool = option("Start over; the old study is kept as NAME.1, or with the next free number.", False)
    inputs: str | None = option(
        "Check candidates on normal inputs only, not on large, subnormal or edge cases; every result says so. "
        "Default: the inputs of the study (`gate.input_sets`).",
        metavar="normal",
    )
    trust: bool = option("Trust the kernel folder: allow its kernel.py to run, now and in later commands.", False)
    kernel: Kernel | None = option("Kernel, if it cannot be found by the name that the study gives.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_types(self, SessionRequest)
        if self.inputs not in (None, "normal"):
            raise StudyError(f"inputs = {self.inputs!r}; use normal, or omit it to use the inputs of the study")
        check_seed(self.seed)
        if self.max_in_flight is not None and not 1 <= self.max_in_flight <= 1024:
            raise StudyError(f"max_in_flight = {self.max_in_flight} is out of range; use 1 to 1024")
        check_control(self.control or "none", "")

    @classmethod
    def of(cls, options: ResumeRequest) -> SessionRequest:
        """Return the request with the options of another record."""
        return cls(**{one.name: getattr(options, one.name) for one in fields(cls) if hasattr(options, one.name)})

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
