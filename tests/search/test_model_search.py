"""A search of the simulated device before a GPU's: what a warm start from `sim` begins with."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
from paths import DATA

from evokern.hardware.profiles import CHIPS
from evokern.search import SessionRequest
from evokern.search._find import find
from evokern.search._model_search import search_model
from evokern.search.identity import SearchTarget
from evokern.study.settings import Study

FAULTY = DATA / "kernels" / "faulty"
CHIP = CHIPS["l4"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOKERN_CACHE", str(tmp_path / "cache"))


def faulty(**genes: Any) -> SearchTarget:
    study = Study(name="faulty", kernel=str(FAULTY), problems=("300",), genes=genes)
    return find(study, SessionRequest(device="sim:l4", trust=True))


@pytest.mark.thorough
def test_what_was_right_is_praised_first() -> None:
    """The fastest of what a warm start begins with was checked; what crashes when simulated is no part of it."""
    subject = faulty(FAULT=("none", "out_of_bounds", "wrong"), VARIANT=(0, 1))
    found = search_model(subject, CHIP, 6, seed=1, say=lambda text: None)
    assert min(found, key=lambda entry: entry[1])[0]["FAULT"] == "none"
    assert "out_of_bounds" not in {config["FAULT"] for config, _ in found}
    assert all(0.1 < math.exp(value) < 100 for _, value in found)


@pytest.mark.thorough
def test_it_says_how_far_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long search of the simulated device is no silence."""
    monkeypatch.setattr(importlib.import_module("evokern.search._model_search"), "NOTE_EVERY_S", 0.0)
    said: list[str] = []
    search_model(faulty(FAULT=("none",), VARIANT=(0, 1)), CHIP, 2, seed=1, say=said.append)
    assert said[-1].startswith("warm start: 2 of 2 candidates simulated, best ")


@pytest.mark.thorough
def test_it_keeps_to_its_time() -> None:
    """What was found until then is the warm start, and how little that is is said."""
    said: list[str] = []
    target = faulty(FAULT=("none",), VARIANT=tuple(range(8)))
    assert len(search_model(target, CHIP, 8, seed=1, say=said.append)) == 8
    assert said == []
    assert search_model(target, CHIP, 8, seed=1, say=said.append, within_s=0.0) == []
    (note,) = said
    assert "0 of 8 candidates simulated in 0 s" in note and "longer budget" in note
