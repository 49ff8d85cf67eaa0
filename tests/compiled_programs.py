"""What the compiler said of a source, kept by the process that runs the tests.

A test of one defect of a kernel's declaration compiles the same source as the test before, for the same three chips:
two thirds of what pytest's own process compiles. Here a source with the same name, headers, options, entries and
architecture is compiled once by a process. A compiler that died or overran is asked again, and so is the one of every
worker, which compiles by itself.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

from evokern.compile import isolated
from evokern.workers.pool import JobResult


def install(patch: pytest.MonkeyPatch) -> None:
    """Let compiles of this process be kept so."""
    compile_anew = isolated._Child.run
    known: dict[Any, JobResult] = {}

    def run(self: isolated._Child, job: Any) -> JobResult:
        if type(job) is not isolated._Compile:  # a test's own
            return compile_anew(self, job)
        key = tuple(tuple(part.items()) if isinstance(part, dict) else part for part in astuple(job))
        if key not in known:
            result = compile_anew(self, job)
            if result.status != "done":
                return result
            known[key] = result
        return known[key]

    patch.setattr(isolated._Child, "run", run)
