"""Samplers: who proposes the next candidate. `make_sampler` builds one by name.

| name | proposes |
|---|---|
| `evo` | two layers, evolutionary; feasible and unseen by construction |
| `tpe`, `nsga2`, `gp`, `random` | Optuna's own behind a guard that draws again until feasible and unseen |
| `grid` | every cell in declared order, infeasible ones too |
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from evokern.declaration.space import Space
from evokern.errors import StudyError, nearest
from evokern.samplers._prior import DISTANT, EACH, FURTHER, SIMULATED, Entries, FurtherStudy, Prior
from evokern.samplers.contract import (
    AskedAhead,
    Explain,
    Foresighted,
    History,
    Sampler,
    TrialResult,
    TrialSchedule,
    objective,
    trial_seed,
)
from evokern.study.settings import SAMPLERS

MOST_OPTION = 1_000_000
"""Largest number that a sampler's option may be: counts of trials or of draws."""
VERSIONS: Mapping[str, int] = {"evo": 7}
"""Sampler → version of its rules, where it is not the first: a study goes on by those that it began with."""
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
        name: one of `evokern.study.settings.SAMPLERS`.
        space: genes with feasibility bound.
        options: the sampler's own keyword arguments, from the study's `[sampler]` table.
        seed: the study's seed.
        window: the study's schedule of trials in flight; a number is the same for every trial.
        explain: names the constraint that turns an infeasible configuration away.
        prior: a warm start; samplers that are not in `WARM` leave it aside.

    Raises:
        StudyError: there is no such sampler, or it does not take one of the options.
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
            raise StudyError(f"sampler {name}: guard = {guarded!r}; write true or false")
        _build(name, optuna_class(name), rest, seed=seed, constraints_func=None)
        return OptunaSampler(name, rest, seed, named, guarded=guarded)
    raise StudyError(f"there is no sampler {name!r}: {nearest(name, SAMPLERS)}")


def _check_option(sampler: str, option: str, value: object, annotation: str) -> None:
    """Refuse a value that is not of the type that a sampler declares: it would fail at the first proposal, or later.

    Raises:
        StudyError: it is of another type, negative, or so large that a proposal would never end.
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
        raise StudyError(f"sampler {sampler}: {option} = {value!r} is code, which no file can give; leave it away")
    if not sound:
        raise StudyError(f"sampler {sampler}: {option} = {value!r}; give {wanted}")


def _build(name: str, cls: Any, options: Mapping[str, Any], **given: Any) -> Any:
    known = [option for option in inspect.signature(cls).parameters if option not in given]
    for option in options:
        if option not in known:
            hint = nearest(option, known) or "it takes none"
            raise StudyError(f"sampler {name} has no option {option!r}: {hint}")
    accepted = inspect.signature(cls).parameters
    for option, value in options.items():
        _check_option(name, option, value, inspect.formatannotation(accepted[option].annotation))
    try:
        return cls(**{option: value for option, value in given.items() if option in accepted}, **options)
    except (TypeError, ValueError) as error:
        raise StudyError(f"sampler {name} cannot be built with {dict(options)}: {error}") from error


__all__ = [
    "DISTANT",
    "EACH",
    "FURTHER",
    "SIMULATED",
    "VERSIONS",
    "WARM",
    "AskedAhead",
    "Entries",
    "Explain",
    "Foresighted",
    "FurtherStudy",
    "History",
    "Prior",
    "Sampler",
    "TrialResult",
    "TrialSchedule",
    "make_sampler",
    "objective",
    "trial_seed",
]
