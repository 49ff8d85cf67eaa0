"""The studies that come with evokern are sound, and their keys are documented."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from paths import ROOT, STUDIES

from evokern.compile.nvrtc import compile_program
from evokern.compile.occupancy import excess
from evokern.compile.records import CompileFailure, Program
from evokern.declaration.feasibility import check, feasible_space, launches_of, narrowed
from evokern.declaration.render import render
from evokern.hardware.profiles import CHIPS, LIMITS, limits_for
from evokern.search.identity import problems_of
from evokern.study.discovery import kernel_of
from evokern.study.file import read_study
from evokern.study.settings import GateSettings, SimulationSettings, Study, TimingSettings

STUDY_FILES = sorted(STUDIES.glob("*.toml"))


@pytest.mark.parametrize("path", STUDY_FILES, ids=lambda path: path.stem)
def test_each_study_can_start(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel takes its problems, and its default candidate is feasible on an H200 under the study's limits."""
    monkeypatch.chdir(ROOT)
    study = read_study(path)
    kernel = kernel_of(study)
    problems = [kernel.problem(problem) for problem in study.problems]
    chip = limits_for(CHIPS["h200"], study.limits)
    space = feasible_space(kernel, problems, chip, study.genes)
    default = space.canonical(space.default())
    assert check(kernel, default, problems, chip) is None


@cache
def _compiled(rendered: tuple[object, ...], architecture: str) -> Program | CompileFailure:
    source, name, headers, options, entries = rendered
    return compile_program(source, name, dict(headers), options, entries, architecture)  # type: ignore[arg-type, call-overload]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("architecture", "chip"),
    [
        pytest.param("sm_80", "a100", marks=pytest.mark.slow),
        ("sm_89", "l4"),
        pytest.param("sm_90", "h200", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("path", STUDY_FILES, ids=lambda path: path.stem)
def test_each_default_candidate_compiles_and_fits(
    path: Path, architecture: str, chip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a search begins with compiles for three generations, fits a chip of each, and spills nothing."""
    monkeypatch.chdir(ROOT)
    study = read_study(path)
    kernel = kernel_of(study)
    config = narrowed(kernel.space, study.genes).default()
    profile = CHIPS[chip] if "chip" in study.limits else limits_for(CHIPS[chip], study.limits)
    for problem in problems_of(study, kernel):
        assert check(kernel, config, [problem], profile) is None
        r = render(kernel, config, problem)
        program = _compiled((r.source, r.name, tuple(r.headers.items()), r.options, r.entries), architecture)
        assert isinstance(program, Program), program
        for launch in launches_of(kernel, config, problem):
            assert program.uses[launch.entry].spill_bytes == 0
            assert excess(program.uses[launch.entry], launch, profile) is None


@pytest.mark.parametrize("path", STUDY_FILES, ids=lambda path: path.stem)
def test_each_study_states_its_question(path: Path) -> None:
    """Its first line asks a question, and the list of studies names it."""
    assert path.read_text().startswith("# Asks: ")
    assert f"| `{path.stem}` |" in (STUDIES / "README.md").read_text()


def test_every_key_is_documented() -> None:
    """studies/README.md has a row for each key that a study may have, and no others."""
    text = (STUDIES / "README.md").read_text()
    documented = set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)) - {path.stem for path in STUDY_FILES}
    top = {f.name for f in fields(Study)} - {"name", "path", "budget_s", "genes", "limits", "gate", "timing"}
    known = (top - {"simulation"}) | {"budget"} | {f"limits.{name}" for name in ("chip", *LIMITS)}
    for prefix, record in (("gate", GateSettings), ("timing", TimingSettings), ("simulation", SimulationSettings)):
        known |= {f"{prefix}.{f.name}" for f in fields(record)}
    assert documented == known
