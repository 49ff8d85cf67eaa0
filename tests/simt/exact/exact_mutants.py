"""Kernels in which the source of one candidate has a change, for tests of the exact proof."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from paths import KERNELS

from evokern.analysis.verify.stages import algebra_stage, sanitizer_stage
from evokern.analysis.verify.under_test import CandidateUnderTest
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.device.sim.algebra import DIFFERENT, EQUAL, FAULT, NOT_COMPARABLE, NOT_FINISHED, SAME, Prover
from evokern.device.sim.program import SimulatedProgram
from evokern.study.discovery import load_kernel, remember_trust

EARLIER = "caught earlier"
"""Verdict on a mutant that the gate or the sanitizer finds."""
SMALL_S, SECONDS = 60.0, 600.0
"""Time limits of a small problem and of all problems, also on a busy machine."""
_WORST = (DIFFERENT, FAULT, NOT_COMPARABLE, NOT_FINISHED, SAME, EQUAL)


@dataclass(frozen=True)
class Change:
    """One change of a source."""

    file: str
    """Name as in `#include`; empty for the source itself."""
    before: str
    """Line, or a part of it."""
    after: str
    """Replacement."""
    line: int = 1
    """Number of the line; the nearest one with this text counts."""
    kind: str = ""
    """Kind of change, such as an index."""


def changed_in_one_candidate(name: str, config: Config, change: Change, folder: Path) -> Kernel:
    """Return a copy of a kernel in which the source of one candidate has a change."""
    for one in (name, "common"):
        shutil.copytree(KERNELS / one, folder / one, dirs_exist_ok=True)
    original = load_kernel(KERNELS / name)
    places = (folder / name / (change.file or original.source), folder / "common" / change.file)
    path = next(one for one in places if one.is_file())
    lines = path.read_text().splitlines()
    found = [number for number, line in enumerate(lines, 1) if change.before in line]
    number = min(found, key=lambda one: abs(one - change.line))
    after = lines[number - 1].replace(change.before, change.after)
    here = f"\n#line {number}\n"
    lines[number - 1] = f"#ifdef MUTANT{here}{after}\n#else{here}{lines[number - 1]}\n#endif{here}"
    path.write_text("\n".join(lines) + "\n")
    remember_trust(folder / name)
    copy = load_kernel(folder / name)
    return replace(copy, macros=lambda c, p: {**copy.macros(c, p), **({"MUTANT": 1} if c == config else {})})


class Judgement(NamedTuple):
    """Verdict on a mutant."""

    verdict: str
    """Verdict of the proof, or that an earlier check found it."""
    stage: str
    """Stage that reached it."""
    detail: str
    """Finding or comparison in words."""


def judged_mutant(subject: CandidateUnderTest, small: Sequence[Problem]) -> Judgement:
    """Judge a mutant as a search and `verify` do: the gate's small problems, the sanitizer, then all problems."""
    prover = Prover(subject.kernel, subject.chip, reference=False)
    for problem in small:
        for one in prover.at(subject.config, problem, time.monotonic() + SMALL_S).verdicts:
            if one.verdict in (DIFFERENT, FAULT):
                return Judgement(one.verdict, "small problems", f"{one} at {problem}")
    sanitizer = sanitizer_stage(subject)
    if sanitizer.state == "failed":
        return Judgement(EARLIER, "sanitizer", sanitizer.detail)
    algebra = algebra_stage(subject, sanitizer, SECONDS)
    verdicts = {one["verdict"] for one in algebra.facts["outputs"].values()}
    return Judgement(min(verdicts, key=_WORST.index), "all problems", algebra.detail)


def is_changed(subject: CandidateUnderTest, problems: Sequence[Problem]) -> bool:
    """Return whether the change of a candidate changes its instructions at one of some problems."""
    kernel, config = subject.kernel, subject.config

    def macros(c: Config, p: Problem) -> dict[str, object]:
        return {name: value for name, value in kernel.macros(c, p).items() if name != "MUTANT"}

    honest = replace(kernel, macros=macros)
    for problem in problems:
        texts = []
        for one in (kernel, honest):
            program = Prover(one, subject.chip).programs.program(config, problem)
            texts.append([text for text, _, _ in instructions(one, config, problem, program)])
        if texts[0] != texts[1]:
            return True
    return False


def instructions(
    kernel: Kernel, config: Config, problem: Problem, program: SimulatedProgram
) -> list[tuple[str, str, int]]:
    """Return the instructions of a program, each with its file and line."""
    found = []
    for launch in launches_of(kernel, config, problem):
        entry = program.entry(launch)
        for one in entry.instructions:
            where = entry.lines.source_location(one.location)
            found.append((one.text, Path(where.file or kernel.source).name, where.line))
    return found
