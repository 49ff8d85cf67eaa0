"""Niche restarts of `evo`: what a stuck search of a large space does about it."""

from __future__ import annotations

import numpy as np
import pytest

from evokern.declaration.space import Config, Parameter, Space
from evokern.samplers import History
from evokern.samplers.contract import TrialResult
from evokern.samplers.evo import EvoSampler, _niche_restarts
from evokern.samplers.evo._generations import GENERATION
from evokern.samplers.evo._observations import Ledger, Observations
from evokern.samplers.evo.genome import Genome
from evokern.study.trial import Outcome, Proposal

TILES = tuple(2**i for i in range(6))
SPACE = Space((Parameter("TILE", TILES), *(Parameter(f"P{i}", (1, 2, 4, 8)) for i in range(6))), lambda c: True)
"""No list: more than 20,000 candidates."""
WINDOW = 8


def two_basins(c: Config) -> float:
    """Return log(time): with the largest tile everything else must be the other way round, and is then faster."""
    places = [int(c[f"P{i}"]).bit_length() - 1 for i in range(6)]
    if c["TILE"] == TILES[-1]:
        return 0.25 * sum(places)
    return 0.4 + 0.25 * sum(3 - place for place in places) + 0.01 * int(c["TILE"]).bit_length()


def search(trials: int, seed: int) -> tuple[list[Proposal], History]:
    sampler, history, proposals = EvoSampler(SPACE, seed, WINDOW), History(SPACE), []
    for number in range(trials):
        if number >= WINDOW:
            config = history.pending[number - WINDOW]
            history.tell(TrialResult(number - WINDOW, config, Outcome.MEASURED, two_basins(config)))
        proposal = sampler.propose(history, number)
        assert proposal is not None
        history.commit(number, proposal)
        proposals.append(proposal)
    return proposals, history


def seen_by(history: History) -> Observations:
    return Ledger(Genome(SPACE)).read(history)


@pytest.fixture(scope="module")
def searched() -> tuple[list[Proposal], History]:
    return search(300, 3)


@pytest.mark.thorough
def test_a_basin_that_must_be_tuned_before_it_pays_is_found(searched: tuple[list[Proposal], History]) -> None:
    """A search that has tuned one basin leaves it for another whose untuned candidates look five times slower."""
    times = [two_basins(proposal.config) for proposal in searched[0]]
    assert min(times[:80]) > 0.4
    assert min(times) == 0.0


@pytest.mark.thorough
def test_niche_restarts_get_half_the_trials_and_hold_a_value(searched: tuple[list[Proposal], History]) -> None:
    """Once a search is stuck every second trial belongs to a niche restart, and all of its trials have its value."""
    proposals, _ = searched
    trips = {n: p for n, p in enumerate(proposals) if "root" in p.info}
    first = min(trips)
    assert 32 <= first <= 150
    assert 0.35 <= sum(number >= first for number in trips) / (len(proposals) - first) <= 0.5
    for proposal in trips.values():
        root = proposals[proposal.info["root"]]
        gene = proposal.info["held"]
        assert proposal.config[gene] == root.config[gene]
        assert proposal.info["turn"] == f"excursion {gene}={root.config[gene]}"


@pytest.mark.thorough
def test_slots_hold_different_values(searched: tuple[list[Proposal], History]) -> None:
    """No two niche restarts under way are in the same niche."""
    proposals, history = searched
    held = {}
    for proposal in proposals:
        if "root" in proposal.info:
            held[proposal.info["slot"]] = (proposal.info["root"], proposal.info["turn"])
            going = [turn for root, turn in held.values() if proposal.info["root"] - root < 2 * WINDOW]
            assert len(set(going)) == len(going)
    assert set(held) == set(range(_niche_restarts.slots(WINDOW)))
    assert len(seen_by(history)) == len(proposals)


@pytest.mark.thorough
def test_a_niche_restart_ends_when_it_stops_climbing(searched: tuple[list[Proposal], History]) -> None:
    """No niche restart goes on for long after its last improvement on the best of its niche."""
    proposals, _ = searched
    times = [two_basins(proposal.config) for proposal in proposals]
    trips: dict[int, list[int]] = {}
    for number, proposal in enumerate(proposals):
        if "root" in proposal.info:
            trips.setdefault(proposal.info["root"], []).append(number)
    in_flight = WINDOW // (_niche_restarts.TURN * _niche_restarts.slots(WINDOW)) + 1
    for root, numbers in trips.items():
        held = proposals[root].info["held"]
        value = proposals[root].config[held]
        alike = [n for n, proposal in enumerate(proposals) if proposal.config[held] == value]
        records = [n for n in numbers if times[n] < min((times[m] for m in alike if m < n), default=np.inf)]
        after = [n for n in numbers if n > max(records, default=-1)]
        assert len(after) <= _niche_restarts.PATIENCE + in_flight + GENERATION


def test_a_search_that_gets_better_is_not_stuck() -> None:
    """Progress within the patience keeps a study from being stuck; noise on the best time is no progress."""
    history = History(SPACE)

    def tell(values: list[float]) -> None:
        for value in values:
            number = len(history.proposals)
            config = SPACE.canonical({"TILE": TILES[number % 6], **{f"P{i}": 1 << (number >> i & 3) for i in range(6)}})
            history.commit(number, Proposal(config))
            history.tell(TrialResult(number, config, Outcome.MEASURED, value))

    tell([1.0 - 0.05 * step for step in range(20)])
    assert not _niche_restarts.is_stuck(seen_by(history))
    tell([0.05 - 0.0001 * step for step in range(_niche_restarts.STUCK)])
    assert _niche_restarts.is_stuck(seen_by(history))


@pytest.mark.thorough
def test_niche_restarts_survive_an_interruption(searched: tuple[list[Proposal], History]) -> None:
    """A search that goes on in another process proposes what it would have: the record holds its niche restarts."""
    proposals = searched[0][:180]
    assert any("root" in proposal.info for proposal in proposals)
    sampler, again = EvoSampler(SPACE, 3, WINDOW), History(SPACE)
    for number, proposal in enumerate(proposals[:-20]):
        again.commit(number, proposal)
        if number >= WINDOW:
            config = again.pending[number - WINDOW]
            again.tell(TrialResult(number - WINDOW, config, Outcome.MEASURED, two_basins(config)))
    for number in range(len(proposals) - 20, len(proposals)):
        config = again.pending[number - WINDOW]
        again.tell(TrialResult(number - WINDOW, config, Outcome.MEASURED, two_basins(config)))
        proposal = sampler.propose(again, number)
        assert proposal is not None
        again.commit(number, proposal)
        assert (proposal.config, proposal.info) == (proposals[number].config, proposals[number].info)
