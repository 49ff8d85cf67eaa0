"""A long search of `attention-s512` on an H200 (2026-11-21: 6,458 trials, every second one drawn at random), replayed.

Half of what it recorded is what evo proposed, so the recording is dense near the optimum and random draws do well too:
it holds what evo needs at most, and says little about the whole space.
"""

from __future__ import annotations

import pytest
from paths import DATA

from evokern.sampler_benchmark import replay

RECORDING = DATA / "attention_s512_h200.json.gz"


@pytest.mark.slow
def test_evo_comes_within_five_per_cent_soon() -> None:
    """On the recorded attention space each search is within 5 % of the best known after 60 of 6,458 candidates."""
    found = replay(RECORDING, samplers=("evo",), trials=60, repeats=3)
    assert min(found.samplers[0].at(60)) >= 0.95
    assert sum(found.samplers[0].at(50)) / 3 > found.random_curve[49]
