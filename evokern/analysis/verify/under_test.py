"""A candidate under verification, with the study's data that the stages need."""

from __future__ import annotations

from dataclasses import dataclass

from evokern.declaration.as_data.golden import compared_with
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.hardware.profiles import Profile
from evokern.study.settings import Study


@dataclass(frozen=True)
class CandidateUnderTest:
    """A kernel configuration, and the study for which the configuration is verified."""

    kernel: Kernel
    """The kernel."""
    config: Config
    """The configuration under test."""
    study: Study
    """Study with the gate and simulation settings."""
    problems: tuple[Problem, ...]
    """The study's problems."""
    chip: Profile
    """The chip with the study's resource limits."""
    secret: int
    """The study's secret seed for the choice of blocks and inputs on the full-size problems."""

    @property
    def against(self) -> str:
        """Origin of the values that its outputs are compared with, in words; empty if these are correct results."""
        return compared_with(self.kernel.workload.reference, self.config == self.kernel.space.default())
