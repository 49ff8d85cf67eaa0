"""Samplers, which propose candidates; `make_sampler` builds a sampler by name.

| name | proposals |
|---|---|
| `evo` | two-layer evolutionary search; always feasible and new |
| `tpe`, `nsga2`, `gp`, `random` | Optuna's samplers, with a guard that retries until a proposal is feasible and new |
| `grid` | every configuration in declared order, including infeasible ones |
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from evokern.declaration.space import Space
from evokern.errors import StudyError, suggestion
from evokern.samplers.contract import (
    DISTANT,
    EACH,
    FURTHER,
    SIMULATED,
    Entries,
    Explain,
    FurtherStudy,
    History,
    PredictsProposals,
    PreparesProposals,
    Prior,
    Sampler,
    TrialResult,
    TrialSchedule,
    objective,
    trial_seed,
)
from evokern.study.settings import SAMPLERS

MOST_OPTION = 1_000_000
"""Maximum value of a numeric sampler option, such as a number of trials or draws."""
VERSIONS: Mapping[str, int] = {"evo": 7}
"""Sampler → version of its rules, if not the first. A study continues only with the version that started it."""
WARM = ("evo",)
"""Samplers that can use a warm start."""


def make_sampler(
    name: str,
    space: Space,
    options: Mapping[str, Any],
    seed: int,
    window: TrialSchedule | int,
    explain: Explain | None = None,
    prior: Prior | None = None,
) -> Sampler:
    """Build a sampler.

    Args:
        name: One of `evokern.study.settings.SAMPLERS`.
        space: Genes with their feasibility rules.
        options: Keyword arguments of the sampler, from the study's `[sampler]` table.
        seed: Seed of the study.
        window: Schedule for the number of trials in flight, or a constant number.
        explain: Function that names the constraint violated by an infeasible configuration.
        prior: Warm start; ignored by samplers that are not in `WARM`.

    Raises:
        StudyError: The sampler is unknown or does not accept one of the options.
    """
    named = explain or (lambda config: "infeasible")
    if name == "evo":
        from evokern.samplers.evo import EvoSampler

        given = {"space": space, "seed": seed, "window": window, "explain": named, "prior": prior}
        evo: Sampler = _build(name, EvoSampler, options, **given)
        return evo
    if name == "grid":
        from evokern.samplers._grid import GridSampler

        grid: Sampler = _build(name, GridSampler, options, space=space)
        return grid
    if name in SAMPLERS:
        from evokern.samplers._optuna import OptunaSampler, optuna_class

        rest = {option: value for option, value in options.items() if option != "guard"}
        guarded = options.get("guard", True)
        if not isinstance(guarded, bool):
            raise StudyError(f"sampler {name}: guard = {guarded!r}; use true or false")
        _build(name, optuna_class(name), rest, seed=seed, constraints_func=None)
        return OptunaSampler(name, rest, seed, named, guarded=guarded)
    raise StudyError(f"there is no sampler {name!r}: {suggestion(name, SAMPLERS)}")


def _check_option(sampler: str, option: str, value: object, annotation: str) -> None:
    """Reject an option value of the wrong type or size, which would fail at a later proposal.

    Raises:
        StudyError: The value has the wrong type, is negative, or is too large.
    """
    words = set(re.findall(r"\w+", annotation))
    code = bool(words & {"Callable", "Sequence"})
    if "bool" in words and not code:
        sound, wanted = isinstance(value, bool), "true or false"
    elif words & {"int", "float"} and not code:
        kind, wanted = ((int, float), "a number") if "float" in words else (int, "a whole number")
        sound = isinstance(value, kind) and not isinstance(value, bool) and 0 <= value <= MOST_OPTION
        wanted += f" from 0 to {MOST_OPTION}"
    else:
        raise StudyError(
            f"sampler {sampler}: {option} = {value!r} is not allowed; this option takes Python code, which a study "
            "file cannot contain; remove the option"
        )
    if not sound:
        raise StudyError(f"sampler {sampler}: {option} = {value!r}; use {wanted}")


def _build(name: str, cls: Any, options: Mapping[str, Any], **given: Any) -> Any:
    known = [option for option in inspect.signature(cls).parameters if option not in given]
    for option in options:
        if option not in known:
            hint = suggestion(option, known) or "it takes no options"
            raise StudyError(f"sampler {name} has no option {option!r}: {hint}")
    accepted = inspect.signature(cls).parameters
    for option, value in options.items():
        _check_option(name, option, value, inspect.formatannotation(accepted[option].annotation))
    try:
        return cls(**{option: value for option, value in given.items() if option in accepted}, **options)
    except (TypeError, ValueError) as error:
        raise StudyError(f"sampler {name} rejects the options {dict(options)}: {error}") from error


__all__ = [
    "DISTANT", "EACH", "FURTHER", "SIMULATED", "VERSIONS", "WARM", "Entries", "Explain", "FurtherStudy", "History",
    "PredictsProposals", "PreparesProposals", "Prior", "Sampler", "TrialResult", "TrialSchedule", "make_sampler",
    "objective", "trial_seed",
]  # fmt: skip
