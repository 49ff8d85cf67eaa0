"""`evo` in a plain Optuna study."""

from __future__ import annotations

import optuna
import pytest

from evokern.declaration.genes import Mutation, Parameter
from evokern.declaration.space import Space
from evokern.errors import StudyError
from evokern.samplers.optuna_sampler import EvoForOptuna

SPACE = Space(
    (Mutation("LOAD", ("scalar", "vector")), Parameter("TILE", (16, 32, 64, 128)), Parameter("WARPS", (1, 2, 4, 8))),
    lambda c: c.TILE >= 16 * c.WARPS,
)
"""20 feasible configurations."""


def throughput(trial: optuna.Trial) -> float:
    """Return what is best for vector loads, the largest tile and 4 warps; refuse 2 warps."""
    values = {gene.name: trial.suggest_categorical(gene.name, gene.values) for gene in SPACE.genes}
    if values["WARPS"] == 2:
        raise optuna.TrialPruned
    return values["TILE"] / 16 + (values["LOAD"] == "vector") - abs(values["WARPS"] - 4)


def study(direction: str = "minimize", seed: int = 0) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=EvoForOptuna(SPACE, seed), direction=direction)


def test_the_direction_of_a_study_is_honoured() -> None:
    """What a study maximises is maximised: the best is found before half of the space is tried, either way."""
    best = {"maximize": (9.0, {"LOAD": "vector", "TILE": 128, "WARPS": 4}), "minimize": (-2.0, None)}
    for direction, (value, params) in best.items():
        searched = study(direction)
        searched.optimize(throughput, n_trials=14)
        assert searched.best_value == value
        assert params is None or searched.best_params == params


def test_jobs_propose_no_duplicates_and_the_end_is_told() -> None:
    """With four jobs each feasible configuration is proposed once and nothing else; then the search says it is over."""
    searched = study("maximize")
    searched.optimize(throughput, n_trials=20, n_jobs=4)
    proposed = [tuple(trial.params.values()) for trial in searched.trials]
    assert sorted(tuple(c.values()) for c in SPACE.grid() if SPACE.feasible(c)) == sorted(proposed)
    with pytest.raises(StudyError, match="every feasible configuration"):
        searched.optimize(throughput, n_trials=1)


def test_the_sequence_of_one_job_repeats() -> None:
    """The same seed proposes the same."""
    one, two = study(seed=3), study(seed=3)
    for searched in (one, two):
        searched.optimize(throughput, n_trials=12)
    assert [trial.params for trial in one.trials] == [trial.params for trial in two.trials]


def test_what_it_cannot_do_is_refused() -> None:
    """Several objectives, or a parameter that is no gene, end with a message."""
    several = optuna.create_study(sampler=EvoForOptuna(SPACE), directions=["minimize", "maximize"])
    with pytest.raises(StudyError, match="this study has 2"):
        several.optimize(lambda trial: (0.0, throughput(trial)), n_trials=1)
    with pytest.raises(StudyError, match="OTHER is not a gene"):
        study().optimize(lambda trial: trial.suggest_int("OTHER", 1, 3), n_trials=1)
