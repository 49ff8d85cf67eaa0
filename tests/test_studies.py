"""The studies that come with evokern are sound, and their keys are documented."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from evokern.discovery import kernel_of
from evokern.feasibility import check, feasible_space
from evokern.profiles import CHIPS, LIMITS, limits_for
from evokern.study import GateSettings, SimulationSettings, Study, TimingSettings, read_study

ROOT = Path(__file__).resolve().parent.parent
STUDIES = sorted((ROOT / "studies").glob("*.toml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_each_study_can_begin(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel takes its problems, and its default candidate is feasible on an H200 under the study's limits."""
    monkeypatch.chdir(ROOT)
    study = read_study(path)
    kernel = kernel_of(study)
    problems = [kernel.problem(problem) for problem in study.problems]
    chip = limits_for(CHIPS["h200"], study.limits)
    space = feasible_space(kernel, problems, chip, study.genes)
    default = space.canonical(space.default())
    assert check(kernel, default, problems, chip) is None


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_each_study_says_what_it_asks(path: Path) -> None:
    """Its first line asks a question, and the list of studies names it."""
    assert path.read_text().startswith("# Asks: ")
    assert f"| `{path.stem}` |" in (ROOT / "studies" / "README.md").read_text()


def test_every_key_is_documented() -> None:
    """studies/README.md has a row for each key that a study may have, and no others."""
    text = (ROOT / "studies" / "README.md").read_text()
    documented = set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)) - {path.stem for path in STUDIES}
    top = {f.name for f in fields(Study)} - {"name", "path", "budget_s", "genes", "limits", "gate", "timing"}
    known = (top - {"simulation"}) | {"budget"} | {f"limits.{name}" for name in ("chip", *LIMITS)}
    for prefix, record in (("gate", GateSettings), ("timing", TimingSettings), ("simulation", SimulationSettings)):
        known |= {f"{prefix}.{f.name}" for f in fields(record)}
    assert documented == known
