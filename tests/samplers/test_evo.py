"""What `evo` promises beyond the laws of every sampler (those are in test_samplers)."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evokern.declaration.genes import Config, Gene, Mutation, Parameter
from evokern.declaration.space import Space
from evokern.errors import SpaceError, StudyError
from evokern.samplers import FurtherStudy, History, Prior, make_sampler
from evokern.samplers.contract import TrialResult
from evokern.samplers.evo import EvoSampler
from evokern.samplers.evo._candidates import elites_of, most_promising_feasible, neighbours
from evokern.samplers.evo._features import features_of
from evokern.samplers.evo._first import FROM_PRIOR
from evokern.samplers.evo._gaussian import Process, prior_weights
from evokern.samplers.evo._generations import boundary
from evokern.samplers.evo._model import LINEAR, Scale, TrainingTrials, fit, representative
from evokern.samplers.evo._observations import OPERATORS, Ledger, Observations
from evokern.samplers.evo._pool import Pool
from evokern.samplers.evo._prior import GOOD, MISJUDGED
from evokern.samplers.evo._validity import FailureCounts, Validity
from evokern.samplers.genome import Genome, InertGenes
from evokern.study.trial import Outcome, Proposal

Answer = Callable[[Config], tuple[Outcome, float | None, str | None]]

GENES: tuple[Gene, ...] = (
    Mutation("LOAD", ("scalar", "vector", "async")),
    Mutation("LAYOUT", ("plain", "swizzle")),
    Parameter("TILE_M", (16, 32, 64, 128), default=32),
    Parameter("TILE_N", (16, 32, 64, 128), default=32),
    Parameter("WARPS", (1, 2, 4, 8), default=4),
    Parameter("STAGES", (1, 2, 3), when={"LOAD": ("async",)}),
    Parameter("UNROLL", (1, 2, 4, 8)),
)


def kernel_space() -> Space:
    return Space(GENES, feasible=lambda c: c.TILE_M * c.TILE_N >= 128 * c.WARPS and c.TILE_M * c.STAGES <= 256)


def large_space() -> Space:
    """The same with further genes: too many combinations to list."""
    more = tuple(Parameter(f"EXTRA_{i}", (1, 2, 3)) for i in range(4))
    return Space((*GENES, *more), feasible=kernel_space().feasible)


def listed_space() -> Space:
    """The small kernel's feasible configurations as a recording has them: a list."""
    return Space(GENES, table=tuple(c for c in kernel_space().grid() if kernel_space().feasible(c)))


def log_time(c: Config) -> float:
    cost = {"scalar": 1.0, "vector": 0.3, "async": 0.0}[str(c["LOAD"])] + 0.5 * (c["LAYOUT"] == "plain")
    cost += 0.2 * abs(math.log2(c.TILE_M / 64)) + 0.15 * abs(math.log2(c.TILE_N / 32))
    return cost + 0.2 * abs(math.log2(c.TILE_M * c.TILE_N / c.WARPS / 512)) + 0.1 * (c.STAGES == 1)


def measured(c: Config) -> tuple[Outcome, float | None, str | None]:
    return Outcome.MEASURED, log_time(c), None


PLAIN = 120
"""Trials of the longest search that several tests look at."""


def search(
    space: Space,
    answer: Answer,
    trials: int,
    *,
    window: int = 8,
    seed: int = 1,
    prior: Prior | None = None,
    restart_at: tuple[int, ...] = (),
) -> tuple[list[Proposal], History]:
    """Search, beginning anew from what is recorded before each trial in `restart_at`."""

    def fresh() -> EvoSampler:
        return EvoSampler(space, seed, window, prior=prior)

    sampler, history, proposals = fresh(), History(space), []

    def tell(number: int) -> None:
        config = history.pending[number]
        outcome, value, fingerprint = answer(config)
        history.tell(TrialResult(number, config, outcome, value, fingerprint))

    for number in range(trials):
        if number in restart_at:
            sampler, history = fresh(), History(space)
            for earlier, proposal in enumerate(proposals):
                history.commit(earlier, proposal)
                if earlier - window >= 0:
                    tell(earlier - window)
        if number - window >= 0:
            tell(number - window)
        proposal = sampler.propose(history, number)
        if proposal is None:
            break
        history.commit(number, proposal)
        proposals.append(proposal)
    return proposals, history


@cache
def plain(space: Callable[[], Space], trials: int) -> list[Proposal]:
    """Return the first proposals of the search that several tests look at: no prior, window 8, seed 1."""
    if trials < PLAIN:
        return plain(space, PLAIN)[:trials]
    return search(space(), measured, trials)[0]


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """A small space with a conditional gene and an arbitrary feasible part."""
    genes: list[Gene] = [Mutation("CHOICE", ("a", "b", "c")[: draw(st.integers(1, 3))])]
    for index in range(draw(st.integers(1, 3))):
        when = {"CHOICE": ("a",)} if draw(st.booleans()) else None
        genes.append(Parameter(f"P{index}", [2**i for i in range(draw(st.integers(1, 4)))], when=when))
    modulus, rest = draw(st.integers(2, 5)), draw(st.integers(0, 4))
    return Space(tuple(genes), feasible=lambda c: hash(tuple(map(str, c.values()))) % modulus != rest)


@settings(max_examples=15, deadline=None)
@given(spaces(), st.integers(1, 9), st.integers(0, 99))
def test_every_feasible_candidate_is_proposed_exactly_once(space: Space, window: int, seed: int) -> None:
    """A search that goes on to the end proposes the feasible set, each candidate once, and nothing else."""

    def answer(c: Config) -> tuple[Outcome, float | None, str | None]:
        value = float(len(str(c)))
        return (Outcome.CRASHED, None, None) if value % 5 == 0 else (Outcome.MEASURED, value, None)

    proposals, _ = search(space, answer, 1000, window=window, seed=seed)
    proposed = [proposal.config for proposal in proposals]
    assert sorted(c.key for c in space.grid() if space.feasible(c)) == sorted(c.key for c in proposed)


@pytest.mark.thorough
def test_interrupted_and_uninterrupted_searches_propose_the_same() -> None:
    """What a process remembers changes nothing: restarts inside and at the ends of generations leave no trace.

    Neither do they in the counts of what constraints turned away, where feasibility is asked about one by one.
    """
    whole = plain(large_space, 100)
    broken, _ = search(large_space(), measured, 100, window=8, restart_at=(3, 17, 64, 71, 96))
    assert [(p.config, p.info) for p in whole] == [(p.config, p.info) for p in broken]
    assert [p.rejections for p in whole] == [p.rejections for p in broken]
    assert sum(sum(p.rejections.values()) for p in whole) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("space", [large_space, listed_space], ids=["asked", "listed"])
def test_nothing_infeasible_and_nothing_twice(space: Callable[[], Space]) -> None:
    """Not one trial is spent on what cannot run or was tried, whether the feasible set is a list or must be asked."""
    proposals, feasible = plain(space, PLAIN), space().feasible
    assert len({p.config for p in proposals}) == PLAIN
    assert all(feasible(p.config) for p in proposals)


@pytest.mark.thorough
def test_a_list_is_searched_the_same_after_an_interruption() -> None:
    """Where every row of a recorded list is a candidate, restarts leave no trace either."""
    whole = plain(listed_space, 90)
    broken, _ = search(listed_space(), measured, 90, window=8, restart_at=(5, 30, 31, 77))
    assert [(p.config, p.info) for p in whole] == [(p.config, p.info) for p in broken]


@pytest.mark.thorough
def test_finds_the_best_of_a_small_kernel_early() -> None:
    """On a smooth space with a few thousand candidates the optimum takes fewer than a hundred trials."""
    best = min(log_time(c) for c in kernel_space().grid() if kernel_space().feasible(c))
    proposals, _ = search(kernel_space(), measured, 90, window=1, seed=0)
    assert min(log_time(p.config) for p in proposals) == pytest.approx(best)


def test_the_first_generation_shows_every_code_choice() -> None:
    """The default candidate comes first, and each value of each mutation is among the first trials."""
    proposals, _ = search(kernel_space(), measured, 6, window=32)
    assert proposals[0].config == kernel_space().default()
    assert proposals[0].info["operator"] == "default"
    for gene in kernel_space().mutations:
        assert set(gene.values) == {p.config[gene.name] for p in proposals}


@pytest.mark.parametrize(("warm", "more", "size"), [(False, 0, 8), (True, 0, 9), (True, 3, 5)])
def test_the_rest_of_the_first_generation_is_told_ahead(warm: bool, more: int, size: int) -> None:
    """What comes before the model speaks is known from the first trial on, whatever the results are."""
    space = kernel_space()
    drawn = {space.sample(random.Random(n)) for n in range(30)} - {None}
    known = [(config, log_time(config)) for config in drawn if config is not None]
    prior = Prior.from_trials(space, sorted(known, key=lambda one: one[1]), "a study") if warm else None
    if prior is not None:
        prior = replace(prior, further=tuple(FurtherStudy((prior.entries[at],), 1.0) for at in (3, 5, 9)[:more]))
    sampler, history = EvoSampler(space, 3, 4, prior=prior), History(space)
    told: list[Config] = []
    for number in range(size):
        while history.results_seen <= number - 4:
            config = history.pending[history.results_seen]
            history.tell(TrialResult(history.results_seen, config, *measured(config)[:2]))
        proposal = sampler.propose(history, number)
        assert proposal is not None
        assert not number or proposal.config == told[0]
        told = list(sampler.likely())
        assert len(told) == min(size - 1 - number, 8)
        history.commit(number, proposal)


def test_a_window_of_trials_does_not_herd() -> None:
    """Trials in flight together are not neighbours of one point: several genes differ on average."""
    proposals, _ = search(kernel_space(), measured, 96, window=32)
    flight = [list(p.config.values()) for p in proposals[64:96]]
    apart = [sum(a != b for a, b in zip(x, y, strict=True)) for i, x in enumerate(flight) for y in flight[:i]]
    assert sum(apart) / len(apart) >= 2.0


@pytest.mark.thorough
@pytest.mark.parametrize("pattern", [pytest.param("one gene", marks=pytest.mark.slow), "two genes", "a product"])
def test_crashing_regions_are_avoided(pattern: str) -> None:
    """With about 30 % of the space crashing in a pattern, at most 10 % of the trials after the first 100 crash.

    The easiest pattern, values of one gene each, runs by hand.
    """

    def crashes(c: Config) -> bool:
        if pattern == "one gene":
            return c.UNROLL == 8 or (c["LOAD"] == "async" and c.STAGES == 1)
        if pattern == "two genes":
            return (c.WARPS >= 4) and c["LOAD"] != "vector"
        return c.TILE_M * c.UNROLL >= 256

    feasible = [c for c in kernel_space().grid() if kernel_space().feasible(c)]
    assert 0.2 <= sum(map(crashes, feasible)) / len(feasible) <= 0.45

    def answer(c: Config) -> tuple[Outcome, float | None, str | None]:
        return (Outcome.CRASHED, None, None) if crashes(c) else measured(c)

    late = [p.config for p in search(kernel_space(), answer, 180, seed=1)[0][100:]]
    assert sum(map(crashes, late)) / len(late) <= 0.10


@pytest.mark.thorough
def test_inert_genes_are_not_varied() -> None:
    """Once a gene is known to change no machine code, none is proposed that differs from an earlier one in it only."""

    def answer(c: Config) -> tuple[Outcome, float | None, str | None]:
        return Outcome.MEASURED, log_time(c), c.replace(UNROLL=1).key

    proposals, history = search(kernel_space(), answer, 160, window=1)
    folded = [p.config.replace(UNROLL=1).key for p in proposals]
    repeats = [index for index, key in enumerate(folded) if key in folded[:index]]
    assert not [index for index in repeats if index > 100]
    seen = Ledger(Genome(kernel_space())).read(history)
    (inert,) = [g for g in InertGenes(Genome(kernel_space()), seen.rows, seen.fingerprints).genes if g.context is None]
    assert GENES[inert.gene].name == "UNROLL"


def test_a_gene_inert_with_a_value_is_recognised() -> None:
    """A gene may matter in one context and not in another; only the dead context folds."""
    genome = Genome(Space((Parameter("A", (1, 2)), Parameter("B", (1, 2, 3)))))
    rows = genome.rows(genome.space.grid())
    fingerprints = np.array([0, 0, 0, 1, 2, 3])
    inert = InertGenes(genome, rows, fingerprints)
    assert [(g.gene, g.context) for g in inert.genes] == [(1, (0, 0))]
    assert inert.fresh(rows[[1, 4]], rows[[0, 3]]).tolist() == [False, True]


def test_each_trial_says_where_it_comes_from() -> None:
    """Operator, parents (earlier trials) and prediction are recorded, so that credit can be shown."""
    proposals, _ = search(kernel_space(), measured, 60, window=1)
    for number, proposal in enumerate(proposals[20:], 20):
        assert proposal.info["operator"] in OPERATORS[:4]
        assert proposal.info["predicted_us"] > 0
        assert all(parent < number for parent in proposal.info["parents"])
    errors = [abs(math.log(p.info["predicted_us"]) - log_time(p.config)) for p in proposals[30:]]
    assert sorted(errors)[len(errors) // 2] < 0.15


@pytest.mark.thorough
def test_a_good_prior_is_tried_first_and_a_wrong_one_is_overcome() -> None:
    """A warm start saves trials when it is right; when it praises the slowest, the optimum is still found."""
    space = kernel_space()
    feasible = [c for c in space.grid() if space.feasible(c)]
    best = min(map(log_time, feasible))
    good = Prior.from_trials(space, [(c, log_time(c) + 1.0) for c in feasible[::7]], "runs.db:other")
    proposals, _ = search(space, measured, 40, window=1, prior=good)
    assert proposals[0].config == good.entries[0][0]
    assert proposals[0].info["operator"] == "prior"
    assert min(log_time(p.config) for p in proposals) == pytest.approx(best, abs=0.05)
    wrong = Prior.from_trials(space, [(c, -log_time(c)) for c in feasible[::7]], "runs.db:other")
    proposals, _ = search(space, measured, 160, window=1, prior=wrong)
    assert min(log_time(p.config) for p in proposals) == pytest.approx(best, abs=0.05)


@pytest.mark.thorough
def test_what_was_fastest_in_further_studies_comes_after_the_best() -> None:
    """Each once; also where none of the nearest study's candidates is feasible here."""
    space = kernel_space()
    feasible = [c for c in space.grid() if space.feasible(c)]
    fastest = (feasible[5], feasible[11], feasible[5])
    further = tuple(FurtherStudy(((config, 0.0), (feasible[21], 1.0)), 2.0) for config in fastest)
    near = Prior.from_trials(space, [(c, log_time(c)) for c in feasible[::7]], "runs.db:near")
    proposals, _ = search(space, measured, 12, window=1, prior=replace(near, further=further))
    assert [p.config for p in proposals[:3]] == [near.entries[0][0], feasible[5], feasible[11]]
    assert [p.info["operator"] for p in proposals[:4]] == ["prior"] * 3 + ["default"]
    turned_away = [c for c in space.grid() if not space.feasible(c)][:9]
    none = Prior(tuple((c, float(at)) for at, c in enumerate(turned_away)), "runs.db:near", further=further)
    proposals, _ = search(space, measured, 12, window=1, prior=none)
    assert [p.config for p in proposals[:2]] == [feasible[5], feasible[11]]


def test_the_model_follows_the_best_of_a_simulated_chip() -> None:
    """What else a first generation has, the default too, knows less than either of them."""
    space = kernel_space()
    feasible = [c for c in space.grid() if space.feasible(c)]
    prior = Prior.from_trials(space, [(c, log_time(c)) for c in feasible[::7]], "sim")
    proposals, _ = search(space, measured, 40, window=1, prior=prior)
    operators = [p.info["operator"] for p in proposals]
    assert operators[:FROM_PRIOR] == ["prior"] * FROM_PRIOR
    assert not {"cover", "starting_point", "default"} & set(operators)
    assert "predicted_us" in proposals[FROM_PRIOR].info


def test_a_prior_fills_the_wait_for_the_first_results() -> None:
    """In a large window most trials before any result are good ones of the prior, none twice, not immigrants."""
    space = large_space()
    drawn = random.Random(1).sample([c for c in kernel_space().grid() if kernel_space().feasible(c)], 200)
    known = [({**c, **{f"EXTRA_{i}": 1 for i in range(4)}}, 0.4 * log_time(c)) for c in drawn]
    prior = Prior.from_trials(space, known, "sim")
    proposals, _ = search(space, measured, 40, window=40, prior=prior)
    good = sorted(value for _, value in known)[0] + GOOD
    from_prior = [p for p in proposals if p.info["operator"] == "prior"]
    assert len(from_prior) >= 20
    assert all(0.4 * log_time(p.config) <= good + MISJUDGED - GOOD for p in from_prior[FROM_PRIOR:])
    assert sum(0.4 * log_time(p.config) <= good for p in from_prior) >= 10
    assert len({p.config for p in proposals}) == 40


@pytest.mark.thorough
def test_a_code_choice_that_a_prior_may_misjudge_is_tried_in_the_wait() -> None:
    """All the best of a prior make one choice; in a large window the best of others are tried beside them."""
    space = kernel_space()
    behind = {"scalar": 0.9, "vector": 0.3, "async": 0.0}
    feasible = [c for c in space.grid() if space.feasible(c)]
    known = [(c, behind[c["LOAD"]] + 0.005 * (at % 37)) for at, c in enumerate(feasible[::5])]
    prior = Prior.from_trials(space, known, "sim")
    assert {config["LOAD"] for config, value in prior.entries if value < GOOD} == {"async"}
    proposals, _ = search(space, measured, 40, window=40, prior=prior)
    waited = [p.config["LOAD"] for p in proposals if p.info["operator"] == "prior"][FROM_PRIOR:]
    assert set(waited) == {"async", "vector"}
    assert waited.count("vector") >= 6


def test_a_prior_takes_the_genes_that_are_shared_and_names_the_others() -> None:
    """Unknown genes are left out, absent ones stand at their default, trials with unknown values are passed over."""
    trials = [({"TILE_M": 64, "OLD": 3}, 1.0), ({"TILE_M": 48, "OLD": 3}, 0.5)]
    prior = Prior.from_trials(kernel_space(), trials, "runs.db:other")
    assert prior.used == ("TILE_M",)
    assert prior.ignored[:2] == ("OLD (unknown here)", "LOAD (not there: scalar)")
    assert [config for config, _ in prior.entries] == [kernel_space().default().replace(TILE_M=64)]
    with pytest.raises(StudyError, match="shares no gene"):
        Prior.from_trials(kernel_space(), [({"OLD": 3}, 1.0)], "runs.db:other")
    with pytest.raises(StudyError, match="no usable trial"):
        Prior.from_trials(kernel_space(), [({"TILE_M": 48}, 1.0)], "runs.db:other")


def _marked(space: Space) -> Space:
    """The same space, the two slowest kinds of loads and a layout marked."""
    return Space(space.genes, space.feasible, low_priority={"LOAD": ("scalar",), "LAYOUT": ("plain",), "STAGES": (3,)})


@pytest.mark.parametrize("space", [kernel_space, large_space], ids=["small", "large"])
def test_marked_values_are_tried_late_and_not_never(space: Callable[[], Space]) -> None:
    """None of them is among the first, apart from the default candidate; without marks some are."""

    def with_marks(proposals: list[Proposal]) -> list[int]:
        """Trials behind the default candidate's that have a marked value of an active gene."""
        found = []
        for number, proposal in enumerate(proposals):
            c = proposal.config
            stages = c["LOAD"] == "async" and c.STAGES == 3
            if number and (c["LOAD"] == "scalar" or c["LAYOUT"] == "plain" or stages):
                found.append(number)
        return found

    marked, bare = search(_marked(space()), measured, 60)[0], plain(space, 60)
    assert min(with_marks(marked)) >= 8
    assert min(with_marks(bare)) < 8
    assert len(with_marks(marked)) < len(with_marks(bare))


def test_where_nothing_better_is_left_marked_values_are_tried() -> None:
    """The whole space is reached."""
    space = Space(GENES[:4], low_priority={"LOAD": ("scalar",), "LAYOUT": ("plain",)})
    proposals, _ = search(space, lambda c: (Outcome.MEASURED, math.log(c.TILE_M + c.TILE_N), None), 500)
    assert len(proposals) == space.size
    assert {proposal.config for proposal in proposals} == set(space.grid())


def test_marks_that_mislead_are_overcome() -> None:
    """The best of a space is found though it has a marked value."""
    space = kernel_space()
    best = min((c for c in space.grid() if space.feasible(c)), key=log_time)
    marked = Space(space.genes, space.feasible, low_priority={"LOAD": (best["LOAD"],), "LAYOUT": (best["LAYOUT"],)})
    proposals, _ = search(marked, measured, 150)
    assert min(log_time(proposal.config) for proposal in proposals) < log_time(best) + 0.05


def test_starting_points_come_right_after_the_default() -> None:
    """In their order, infeasible and repeated ones passed over; the rest of the first generation is spread as ever."""
    infeasible, good = {"LOAD": "async", "TILE_M": 128, "STAGES": 3}, {"LOAD": "async", "TILE_M": 64, "STAGES": 2}
    space = replace(kernel_space(), starting_points=(infeasible, good, {"LAYOUT": "swizzle"}, good, {}))
    points = space.starting_configs()
    assert not space.feasible(points[0])
    proposals, _ = search(space, measured, 20, window=4)
    operators = [proposal.info["operator"] for proposal in proposals]
    assert operators[:8] == ["default", "starting_point", "starting_point", *["cover"] * 5]
    assert [proposal.config for proposal in proposals[1:3]] == points[1:3]
    assert "cover" not in operators[8:]
    assert search(space, measured, 20, window=4, restart_at=(1, 2, 5))[0] == proposals


def test_many_starting_points_lengthen_the_first_generation() -> None:
    """Every feasible one is tried, and some candidates of which least is known besides."""
    space = kernel_space()
    some = sorted((c for c in space.grid() if space.feasible(c)), key=lambda c: c.key)[::9][:12]
    space = replace(space, starting_points=tuple(dict(c) for c in some if c != space.default()))
    proposals, _ = search(space, measured, 20, window=4)
    found = [proposal.info["operator"] for proposal in proposals]
    count = len(space.starting_points)
    assert found[: count + 5] == ["default", *["starting_point"] * count, *["cover"] * 4]
    assert "cover" not in found[count + 5 :]


def test_starting_points_that_mislead_are_overcome() -> None:
    """A search that begins among slow candidates ends with the best all the same."""
    space = kernel_space()
    slow = sorted((c for c in space.grid() if space.feasible(c)), key=log_time)[-5:]
    proposals, _ = search(replace(space, starting_points=tuple(slow)), measured, 120)
    best = min(log_time(c) for c in space.grid() if space.feasible(c))
    assert min(log_time(proposal.config) for proposal in proposals) < best + 0.05


def test_what_other_studies_found_stands_before_starting_points() -> None:
    """A warm start fills the first generation; a starting point is asked for where there is room."""
    space = replace(kernel_space(), starting_points=({"LAYOUT": "swizzle"},))
    entries = sorted((c for c in space.grid() if space.feasible(c)), key=lambda c: c.key)[::7]
    prior = Prior.from_trials(space, [(c, log_time(c) + 1.0) for c in entries], "runs.db:near")
    operators = [proposal.info["operator"] for proposal in search(space, measured, 9, prior=prior)[0]]
    assert operators[:3] == ["prior", "default", "starting_point"]


def test_a_study_s_prior_leads_and_is_given_up_where_it_misleads() -> None:
    """Its best is the first trial, then the default; of one that says the opposite little is left after some trials."""
    space = kernel_space()
    entries = sorted((c for c in space.grid() if space.feasible(c)), key=lambda c: c.key)[::7]
    right = Prior.from_trials(space, [(c, log_time(c) + 1.0) for c in entries], "runs.db:near")
    wrong = Prior.from_trials(space, [(c, -log_time(c)) for c in entries], "runs.db:far")
    found = {}
    for name, prior in (("right", right), ("wrong", wrong), ("cold", None)):
        proposals = plain(kernel_space, 60) if prior is None else search(space, measured, 60, prior=prior)[0]
        found[name] = [log_time(proposal.config) for proposal in proposals]
        if prior is not None:
            assert proposals[0].config == prior.entries[0][0]
            assert proposals[1].config == space.default()
    assert min(found["right"][:16]) < min(found["cold"][:16])
    assert min(found["wrong"]) < min(found["cold"]) + 0.1


def test_of_what_a_prior_cannot_tell_apart_one_is_tried() -> None:
    """A time model gives many candidates one time; the first trials of a warm start go to different ones."""
    space = kernel_space()
    feasible = [c for c in space.grid() if space.feasible(c)]
    prior = Prior.from_trials(space, [(c, float(c.WARPS)) for c in feasible], "sim")
    proposals, _ = search(space, measured, 4, window=1, prior=prior)
    praised = [p.config for p in proposals if p.info["operator"] == "prior"]
    assert [config.WARPS for config in praised] == sorted({config.WARPS for config in feasible})[: len(praised)]


@pytest.mark.thorough
@pytest.mark.parametrize(("told", "milliseconds"), [(1000, 3.0), (5000, 8.0)])
def test_a_proposal_stays_cheap(told: int, milliseconds: float) -> None:
    """12 genes, window 8: the mean over some windows stays within five times what an idle machine needs at most."""
    genes = (*(Mutation(f"M{i}", ("a", "b", "c")) for i in range(3)),)
    genes = (*genes, *(Parameter(f"P{i}", (1, 2, 4, 8, 16)) for i in range(9)))
    space = Space(genes, feasible=lambda c: c.P0 * c.P1 <= 64)
    sampler, history, draws = make_sampler("evo", space, {}, 1, 8), History(space), random.Random(0)

    def tell(number: int) -> None:
        config = history.pending[number]
        history.tell(TrialResult(number, config, Outcome.MEASURED, math.log(9 + abs(config.P1 - 4) + config.P2)))

    number = 0
    while number < told:
        config = space.sample(draws)
        if config is None or config in history.seen:
            continue
        history.commit(number, Proposal(config))
        if number >= 8:
            tell(number - 8)
        number += 1
    spent = 0.0
    for step in range(40):
        tell(number - 8)
        begun = time.process_time()
        proposal = sampler.propose(history, number)
        spent += (time.process_time() - begun) * (step >= 8)
        assert proposal is not None
        history.commit(number, proposal)
        number += 1
    assert 1000 * spent / 32 <= 5 * milliseconds


def test_pending_rows_narrow_the_variance_and_leave_the_mean() -> None:
    """A row without a result tells where not to look again, not what is there; its result changes the mean."""
    genome = Genome(kernel_space())
    features, rng = features_of(genome), np.random.default_rng(3)
    rows, targets = genome.draw(rng, 24), genome.draw(rng, 50)
    y = rng.standard_normal(24)
    process = Process(features, prior_weights(features), features(rows[:20]), y[:20], room=4, linear=LINEAR)
    asked = process.candidates(features(targets))
    mean, sd = process.predict(asked)
    for row in features(rows[20:]):
        process.add(row, asked)
    pending_mean, pending_sd = process.predict(asked)
    assert pending_mean == pytest.approx(mean)
    assert (pending_sd <= sd + 1e-9).all()
    assert pending_sd.sum() < sd.sum()
    at_once = Process(features, prior_weights(features), features(rows), y[:20], room=0, linear=LINEAR)
    assert pending_mean == pytest.approx(at_once.predict(at_once.candidates(features(targets)))[0])
    assert pending_sd == pytest.approx(at_once.predict(at_once.candidates(features(targets)))[1])
    whole = Process(features, prior_weights(features), features(rows), y, room=0, linear=LINEAR)
    assert whole.predict(whole.candidates(features(targets)))[0] != pytest.approx(mean)


def test_a_number_is_like_its_neighbours_and_a_name_is_not() -> None:
    """Before it has data the model is far surer of a number between two measured ones than of an unmeasured name."""
    space = Space((Parameter("BLOCK", (16, 32, 64, 128, 256, 512)), Mutation("LAYOUT", tuple("abcdef"))))
    genome = Genome(space)
    features = features_of(genome)
    seen, unseen = [0, 1, 2, 4, 5], [3]

    def forecast(gene: str) -> tuple[float, float]:
        """Return mean and standard deviation at a gene's fourth value when its others took -2.4, -1.4, … 2.6."""
        rows = genome.rows(space.default().replace(**{gene: value}) for value in space.gene(gene).values)
        y = np.array(seen) - np.mean(seen)
        process = Process(features, prior_weights(features), features(rows[seen]), y, 0, linear=0)
        mean, sd = process.predict(process.candidates(features(rows[unseen])))
        return float(mean[0]), float(sd[0])

    between, sure = forecast("BLOCK")
    anything, unsure = forecast("LAYOUT")
    assert between == pytest.approx(0.6, abs=0.2)
    assert anything == pytest.approx(0.0, abs=0.1)
    assert sure < 0.3 * unsure


def test_features_tell_names_and_ranks_apart() -> None:
    """Mutations are names; numbers also have a rank, and a magnitude where it differs."""
    genome = Genome(Space((Mutation("A", ("x", "y", "z")), Parameter("B", (16, 48, 64)), Parameter("C", (1, 2, 4)))))
    features = features_of(genome)
    rows = genome.rows(genome.space.grid())
    columns = features(rows)
    assert columns.min() >= 0.0
    assert columns.max() <= 1.0
    # A: names. B: names, rank, magnitude, powers of two. C: names, rank (its magnitude is the same).
    assert features.bare.tolist() == [False, True, False, False, False, True, False]
    assert len(np.unique(columns, axis=0)) == len(rows)


@given(st.lists(st.integers(-500, 1500), min_size=3, max_size=40, unique=True))
def test_compression_keeps_the_order(values: list[int]) -> None:
    """The slow tail comes closer, nothing changes places, and a predicted time can be read back."""
    given_values = np.sort(np.array(values) / 100.0)
    scale = Scale.of(given_values)
    compressed = scale.compress(given_values)
    assert (np.diff(compressed) > 0).all()
    assert np.ptp(compressed) <= np.ptp(given_values) / scale.unit
    assert scale.expand(compressed) == pytest.approx(given_values)


def test_the_gene_that_decides_gets_the_shorter_length_scale() -> None:
    """Length scales follow the data: of two genes the one that decides gets the larger weight."""
    genome = Genome(Space((Parameter("A", (1, 2, 4, 8, 16)), Parameter("B", (1, 2, 4, 8, 16)))))
    features, rows = features_of(genome), genome.rows(genome.space.grid())
    values = np.array([float(genome.config(row).A) for row in rows])
    logs = fit(features, TrainingTrials.of(rows, np.log(values)))
    assert logs[1] > logs[3] + 1.0  # ranks of A, ranks of B


def test_the_elites_hold_the_best_of_every_code_choice() -> None:
    """A choice between two numbers counts as one: its best trial breeds, however far behind it is."""
    space = Space((Mutation("LOAD", ("a", "b", "c")), Parameter("FLAG", (0, 1)), Parameter("TILE", tuple(range(40)))))
    history = History(space)
    for number in range(40):
        config = space.canonical(
            {"LOAD": "abc"[number == 38 or 2 * (number == 39)], "FLAG": number == 37, "TILE": number}
        )
        history.commit(number, Proposal(config))
        history.tell(TrialResult(number, config, Outcome.MEASURED, float(number)))
    genome = Genome(space)
    assert genome.choices == (0, 1)
    seen = Ledger(genome).read(history)
    assert {0, 1, 2, 3, 4, 5, 37, 38, 39} == set(elites_of(genome, seen).tolist())


def test_a_slow_trial_is_never_taken_for_a_fast_one() -> None:
    """Of two problems a slow trial came to the short one only; what it lost to is what is known of its time."""
    space = kernel_space()
    history, configs = History(space), [c for c in space.grid() if space.feasible(c)][:6]
    for number, config in enumerate(configs):
        history.commit(number, Proposal(config))
    for number, (outcome, value) in enumerate(
        [
            (Outcome.MEASURED, 3.0),
            (Outcome.MEASURED, 2.0),
            (Outcome.SLOW, 0.5),
            (Outcome.SLOW, 4.0),
            (Outcome.MEASURED, 1.5),
        ]
    ):
        history.tell(TrialResult(number, configs[number], outcome, value))
    seen = Ledger(Genome(space), lambda number: 1).read(history)
    assert [3.0, 2.0, 2.0, 4.0, 1.5] == seen.values[:5].tolist()
    assert [4, 1, 2, 0, 3] == seen.best_first.tolist()


def test_what_was_read_before_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that read a history bit by bit sees the same as one that reads it at once, and reads nothing twice."""
    space = kernel_space()
    history, configs = History(space), [c for c in space.grid() if space.feasible(c)][:12]
    outcomes = [Outcome.MEASURED, Outcome.SLOW, Outcome.LOST, Outcome.WRONG, Outcome.MEASURED, Outcome.SLOW]
    read: list[int] = []
    plain = Genome.rows
    monkeypatch.setattr(
        Genome, "rows", lambda self, configs: read.append(len(found := list(configs))) or plain(self, found)
    )
    ledger = Ledger(Genome(space), lambda number: 3)
    for number, config in enumerate(configs):
        history.commit(number, Proposal(config, {"operator": "neighbour" if number % 2 else "cover"}))
        if number >= 4:
            told = number - 4
            outcome = outcomes[told % len(outcomes)]
            value = {Outcome.MEASURED: 3.0 - 0.1 * told, Outcome.SLOW: 0.5}.get(outcome)
            history.tell(TrialResult(told, configs[told], outcome, value, f"program {told // 2}"))
        seen, before = ledger.read(history), sum(read)
        ledger.read(history)
        assert before == sum(read) == number + 1
        at_once = Ledger(Genome(space), lambda number: 3).read(history)
        read.pop()
        for name in Observations.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(seen, name), getattr(at_once, name), err_msg=name)
    assert seen.lost.any()
    assert seen.slow.any()


def test_neighbours_are_all_of_them() -> None:
    """Everything that differs in one gene is made, with what follows where a gene becomes inactive."""
    genome = Genome(kernel_space())
    row = genome.rows([kernel_space().default()])
    made = neighbours(genome, row, np.array([7])).distinct(genome, genome.keys(row))
    expected = {c.key for c in Space(GENES).neighbours(kernel_space().default())}
    assert expected == {genome.config(row).key for row in made.rows}
    assert set(made.parents[:, 0].tolist()) == {7}


def test_feasible_rows_are_found_where_draws_find_none() -> None:
    """With one configuration in a billion feasible, the search goes on from the feasible ones it knows."""
    genes = tuple(Parameter(f"P{i}", tuple(range(8))) for i in range(12))
    space = Space(genes, lambda c: sum(c.values()) <= 3)
    genome = Genome(space)
    pool = Pool(genome, lambda config: "sum")
    default = genome.rows([space.default()])
    found = pool.draw(np.random.default_rng(0), 20, genome.keys(default), default)
    assert len(found) >= 10
    assert pool.feasible(found).all()


def test_a_failing_pair_is_recognised_among_many_genes() -> None:
    """Of hundreds of pairs of values the one that fails is avoided, and the rest is not."""
    genes = tuple(Mutation(f"M{i}", ("a", "b", "c")) for i in range(20))
    genome, history, draws = Genome(Space(genes)), History(Space(genes)), random.Random(3)
    for number in range(120):
        config = history.space.draw(draws)
        wrong = config["M3"] == "a" and config["M11"] == "b"
        history.commit(number, Proposal(config))
        outcome, value = (Outcome.CRASHED, None) if wrong else (Outcome.MEASURED, 1.0)
        history.tell(TrialResult(number, config, outcome, value))
    validity = Validity(genome, Ledger(genome).read(history))
    base = genome.rows([history.space.default()])
    pair = base.copy()
    pair[0, [3, 11]] = 0, 1
    assert validity(pair)[0] < 0.3
    rows = genome.draw(np.random.default_rng(1), 200)
    fails = (rows[:, 3] == 0) & (rows[:, 11] == 1)
    assert validity(rows)[~fails].mean() > validity(rows)[fails].max() + 0.2


@given(st.integers(0, 4000), st.sampled_from([16, 32]), st.sampled_from([None, 8]))
def test_boundaries_are_fixed_points(number: int, growth: int, most: int | None) -> None:
    """A boundary is its own boundary and never after its trial: state tied to it is shared by the trials after it."""
    at = boundary(number, growth, most)
    assert at <= number
    assert boundary(at, growth, most) == at
    assert most is None or number - at < most


@given(st.lists(st.one_of(st.just(math.nan), st.floats(0, 9)), min_size=1, max_size=60), st.integers(2, 40))
def test_the_selection_keeps_the_best_and_the_pending(values: list[float], most: int) -> None:
    """However long a study is, the model knows its best trials and everything in flight."""
    seen = np.array(values)
    must = np.zeros(len(seen), dtype=bool)
    must[-1] = True
    kept = representative(seen, must, most)
    assert len(kept) <= max(most, most // 2 + 1)
    assert len(seen) - 1 in kept
    if not np.isnan(seen).all():
        assert int(np.nanargmin(seen)) in kept


def test_asking_goes_on_while_a_generation_lacks_candidates() -> None:
    """Where the promising ones are infeasible the others are asked about, too; else the limit holds."""
    space = Space(tuple(Parameter(f"P{i}", (1, 2, 4, 8)) for i in range(7)), lambda c: c.P0 == 1)
    genome = Genome(space)
    pool = Pool(genome, lambda config: "P0")
    rows = pool.distinct(genome.draw(np.random.default_rng(1), 600))
    score = rows[:, 0].astype(float)  # the larger P0, the more promising
    assert 0 == len(most_promising_feasible(pool, rows, score, 80, 160, 0))
    kept = most_promising_feasible(pool, rows, score, 80, 160, 24)
    assert 24 <= len(kept) < 80
    assert pool.feasible(rows[kept]).all()


def test_tables_grow_linearly_with_the_values_of_a_gene() -> None:
    """A gene of thousands of values and pairs of such genes take little memory; two values still differ by about 1."""
    space = Space((Parameter("A", range(20_000)), Parameter("B", range(20_000)), Parameter("C", (1, 2))))
    genome = Genome(space)
    features = features_of(genome)
    assert sum(table.size for table in features.tables) < 80 * 2 * 20_000
    rows = genome.rows([space.canonical({"A": a, "B": 0, "C": 1}) for a in range(0, 20_000, 400)])
    names = features(rows)[:, features.groups == 0]
    apart = ((names[:, None] - names[None]) ** 2).sum(2)[np.triu_indices(len(names), 1)]
    assert abs(apart.mean() - 1) < 0.1 and apart.min() > 0.4
    counts = FailureCounts(genome)
    assert counts.begins[-1] < 6 * 65_536
    cells = counts.cells_of(rows.astype(np.int64))
    assert [len(np.unique(column)) for column in cells.T] == [50, 50, 50, 1, 1, 1]


def test_a_gene_has_at_most_as_many_values_as_an_index_holds() -> None:
    """Rows hold 16-bit indices, so the last value of the largest gene is still told apart."""
    space = Space((Parameter("A", range(32_768)),))
    (row,) = Genome(space).rows([space.canonical({"A": 32_767})])
    assert Genome(space).config(row)["A"] == 32_767
    with pytest.raises(SpaceError, match="gene A has 32,769 values; list at most 32,768"):
        Parameter("A", range(32_769))
