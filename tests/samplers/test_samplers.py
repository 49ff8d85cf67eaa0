"""Samplers: what every one of them promises, and how outcomes look to Optuna."""

from __future__ import annotations

import math

import pytest
from engine_helpers import loop_over, small_table, tiny_table
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from evokern.errors import StudyError
from evokern.samplers import History, TrialResult, make_sampler, trial_seed
from evokern.samplers.contract import constraints, objective
from evokern.samplers.optuna_view import OptunaView
from evokern.study.settings import SAMPLERS
from evokern.study.trial import Evaluation, Outcome, Proposal, Timing, Trial

GUARDED = [name for name in SAMPLERS if name != "grid"]
QUICK = [name for name in SAMPLERS if name != "gp"]  # a Gaussian process takes 0.2 s a proposal


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "gp" else n for n in GUARDED])
def test_proposals_are_feasible_and_new_until_the_space_is_exhausted(name: str) -> None:
    """Every sampler but the grid proposes each feasible configuration exactly once, then the search ends normally."""
    table = tiny_table()
    options = {"n_startup_trials": 18} if name == "gp" else {}
    trials, end, _ = loop_over(table, name, options=options)
    space = table.space()
    feasible = {config for config in space.grid() if space.feasible(config)}
    assert end == "exhausted"
    assert feasible == {trial.config for trial in trials}
    assert len(feasible) == len(trials)


def test_grid_visits_every_cell_in_declared_order_with_its_reason() -> None:
    """`grid` makes a trial of every distinct cell; an infeasible one names its constraint, needed and available."""
    table = tiny_table()
    trials, end, _ = loop_over(table, "grid")
    assert end == "exhausted"
    assert list(table.space().grid()) == [trial.config for trial in trials]
    infeasible = [trial for trial in trials if trial.outcome is Outcome.INFEASIBLE]
    assert len(infeasible) == 12
    assert {"rows"} == {trial.evaluation.evidence["constraint"] for trial in infeasible}
    assert all(t.evaluation.evidence["needed"] > t.evaluation.evidence["available"] for t in infeasible)


@pytest.mark.thorough
@pytest.mark.parametrize("name", QUICK)
def test_sequence_does_not_depend_on_workers_or_timing(name: str) -> None:
    """One worker at once and four with random delays see the same candidates and the same outcomes."""
    straight, _, _ = loop_over(small_table(), name, trials=60)
    shuffled, _, _ = loop_over(small_table(), name, trials=60, workers=4, delay_s=0.004, delay_seed=5)
    assert [(t.config, t.outcome) for t in straight] == [(t.config, t.outcome) for t in shuffled]


@pytest.mark.parametrize("name", QUICK)
def test_seeds_differ(name: str) -> None:
    """Another seed proposes other candidates (the grid has no choice)."""
    first, _, _ = loop_over(small_table(), name, trials=20, seed=1)
    second, _, _ = loop_over(small_table(), name, trials=20, seed=2)
    assert ([t.config for t in first] == [t.config for t in second]) is (name == "grid")


@pytest.mark.thorough
@pytest.mark.parametrize("name", SAMPLERS)
def test_an_interrupted_search_resumes_as_if_uninterrupted(name: str) -> None:
    """From any prefix, with any of the trials in flight lost, the rest of the sequence is the uninterrupted one."""
    count, window, cuts = (14, 4, (12,)) if name == "gp" else (48, 8, (1, 33))
    whole, _, loop = loop_over(small_table(), name, trials=count, window=window)
    for cut in cuts:
        earlier = _cut(whole, loop, cut, lost={cut - 1, cut - 3, cut - window + 1})
        resumed, _, _ = loop_over(small_table(), name, trials=count, window=window, earlier=earlier)
        assert [(t.config, t.outcome) for t in whole] == [(t.config, t.outcome) for t in resumed]


def _cut(whole: list[Trial], loop: object, cut: int, lost: set[int]) -> tuple[list[Proposal], list[Trial]]:
    proposals: list[Proposal] = loop._proposals  # type: ignore[attr-defined]
    return proposals[:cut], [trial for trial in whole[:cut] if trial.number not in lost]


@pytest.mark.thorough
@settings(max_examples=6, deadline=None)
@given(
    name=st.sampled_from(["tpe", "nsga2", "evo", "random"]),
    window=st.integers(1, 12),
    cut=st.integers(1, 39),
    lost=st.sets(st.integers(1, 12), max_size=6),
)
def test_interruption_is_harmless_for_any_window_and_any_loss(name: str, window: int, cut: int, lost: set[int]) -> None:
    """The law behind resuming, for any window, any place and any subset of the trials in flight."""
    whole, _, loop = loop_over(small_table(), name, trials=40, window=window)
    missing = {cut - back for back in lost if back <= window}
    resumed, _, _ = loop_over(
        small_table(), name, trials=40, window=window, earlier=_cut(whole, loop, cut, missing), workers=3
    )
    assert [(t.config, t.outcome) for t in whole] == [(t.config, t.outcome) for t in resumed]


@pytest.mark.parametrize("name", ["evo", "tpe", "nsga2"])
def test_a_proposal_sees_nothing_newer_than_the_window(name: str) -> None:
    """Another result of trial k changes no proposal up to k + W - 1."""
    window, changed = 6, 12
    space = small_table().space()
    told: list[TrialResult] = []
    for flip in (False, True):
        history, sampler = History(space), make_sampler(name, space, {}, 1, window)
        proposed = []
        for number in range(changed + window + 1):
            while len(history.results) <= number - window:
                n = len(history.results)
                value = 1.0 + n % 5 - (10.0 if flip and n == changed else 0.0)
                told.append(TrialResult(n, proposed[n].config, Outcome.MEASURED, value))
                history.tell(told[-1])
            proposal = sampler.propose(history, number)
            assert proposal is not None
            history.commit(number, proposal)
            proposed.append(proposal)
        if not flip:
            plain = proposed
    same = [a.config == b.config for a, b in zip(plain, proposed, strict=True)]
    assert all(same[: changed + window])


@pytest.mark.parametrize("name", ["tpe", "random", "nsga2"])
def test_without_its_guard_a_sampler_makes_trials_of_infeasible_cells(name: str) -> None:
    """`guard = false` leaves proposals as they are: infeasible ones become trials, nothing is turned away."""
    trials, _, loop = loop_over(small_table(), name, trials=25, options={"guard": False})
    assert sum(trial.outcome is Outcome.INFEASIBLE for trial in trials) > 0
    assert dict(loop.rejections) == {}


@pytest.mark.parametrize("name", ["tpe", "random", "evo"])
def test_rejections_name_their_constraint(name: str) -> None:
    """What is turned away before it becomes a trial is counted under the constraint's own name."""
    _, _, loop = loop_over(small_table(), name, trials=40)
    assert set(loop.rejections) <= {"rows_per_warp", "shared_memory_per_block"}
    assert sum(loop.rejections.values()) > 0


def test_unknown_samplers_and_options_are_refused() -> None:
    """A wrong name or option is the user's mistake, with what would be right."""
    space = tiny_table().space()
    with pytest.raises(StudyError, match="did you mean 'nsga2'"):
        make_sampler("nsga", space, {}, 0, 1)
    with pytest.raises(StudyError, match="n_startup_trials"):
        make_sampler("tpe", space, {"n_startup_trial": 3}, 0, 1)
    with pytest.raises(StudyError, match="population_size"):
        make_sampler("nsga2", space, {"population_size": 1}, 0, 1)
    with pytest.raises(StudyError, match="guard"):
        make_sampler("random", space, {"guard": "yes"}, 0, 1)


def _evaluation(outcome: Outcome) -> Evaluation:
    evidence = {
        "duplicate_of": 1,
        "elite_us": 4.0,
        "check": "output",
        "error": "E",
        "limit_s": 3.0,
        "log": "L",
        "constraint": "shared",
        "needed": 150.0,
        "available": 100.0,
        "reason": "r",
        "memory": {},
    }
    timed = outcome in (Outcome.MEASURED, Outcome.DUPLICATE)
    timings = (Timing(8.0, (7.9, 8.1), (8.0,)),) if timed or outcome is Outcome.SLOW else ()
    return Evaluation(outcome, 8.0 if timed else None, timings, evidence=evidence)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_outcomes_as_optuna_sees_them(outcome: Outcome) -> None:
    """Each outcome has the state, value and constraints that the list of outcomes fixes, in the sampler's view."""
    space = tiny_table().space()
    history = History(space)
    config = space.default()
    history.commit(0, Proposal(config))
    history.tell(TrialResult.of(Trial(0, Proposal(config), _evaluation(outcome))))
    view = OptunaView(history)
    view.catch_up()
    trial = view.study.get_trials()[0]
    complete = outcome in (Outcome.MEASURED, Outcome.DUPLICATE)
    if outcome is Outcome.LOST:
        assert (TrialState.FAIL, None, {}) == (trial.state, trial.value, trial.constraints)
        return
    assert (TrialState.COMPLETE if complete else TrialState.PRUNED) == trial.state
    timed = complete or outcome is Outcome.SLOW
    assert trial.value == (pytest.approx(math.log(8.0)) if timed else None)
    graded = outcome in (Outcome.INFEASIBLE, Outcome.OVER_RESOURCES)
    expected = {} if timed else {"shared": 0.5} if graded else {outcome.value: 1.0}
    assert expected == trial.constraints
    assert dict(config) == trial.params


def test_a_constraint_missed_by_nothing_is_still_violated() -> None:
    """Optuna reads an amount of 0 as kept, so a violation's amount is always above it."""
    evidence = {"constraint": "c", "needed": 1.0, "available": 1.0, "reason": ""}
    assert constraints(Evaluation(Outcome.INFEASIBLE, evidence=evidence))["c"] > 0


def test_a_slow_trial_is_worth_what_was_seen_of_it() -> None:
    """Over several problems, the mean of the logs of the medians seen so far."""
    timings = (Timing(4.0, (4.0, 4.0), (4.0,)), Timing(9.0, (9.0, 9.0), (9.0,)))
    slow = Evaluation(Outcome.SLOW, timings=timings, evidence={"elite_us": 3.0})
    assert objective(slow) == pytest.approx(math.log(6.0))


def test_seeds_of_trials_are_stable() -> None:
    """A study resumed by a later version of Python draws the same numbers: the seeds are fixed."""
    assert [trial_seed(0, 0), trial_seed(7, 123)] == [2318824108, 3987040153]
