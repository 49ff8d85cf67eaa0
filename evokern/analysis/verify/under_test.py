"""A candidate to verify, with what its stages need of the study."""

from __future__ import annotations

from dataclasses import dataclass

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.hardware.profiles import Profile
from evokern.study.settings import Study


@dataclass(frozen=True)
class CandidateUnderTest:
    """One configuration of a kernel at a study's problems."""

    kernel: Kernel
    """The kernel."""
    config: Config
    """The configuration."""
    study: Study
    """Gate and simulation settings."""
    problems: tuple[Problem, ...]
    """The study's problems."""
    chip: Profile
    """The chip under the study's limits."""
    secret: int
    """Of the study: draws blocks and inputs at its own problems."""
