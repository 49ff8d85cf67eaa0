"""Checks that the functions of `kernel.py` are fast, and return the same for the same candidate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from evokern.analysis.check.folder import Folder
from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import AtMost, Kernel, Problem
from evokern.declaration.render import macros
from evokern.errors import KERNEL_CODE_EXCEPTIONS
from evokern.events import step
from evokern.hardware.profiles import CHIPS, Profile

MOST_S = 1.0
"""Largest time of a function for one candidate, in seconds; a search calls each function thousands of times."""
MOST_TEXT = 200
"""Maximum length of a returned value in a message."""
_CHIP = CHIPS["h200"]


def slow_function(folder: Folder) -> str:
    """Return a text about a function that takes too long for one candidate, or an empty string."""
    config, problem = folder.kernel.space.default(), folder.problems[0]
    with suppress(*KERNEL_CODE_EXCEPTIONS):  # later checks report them
        for name, call in _functions(folder.kernel, config, problem, _CHIP):
            began = time.perf_counter()
            with step(f"checking: {name} of kernel.py"):
                call()
            seconds = time.perf_counter() - began
            if seconds > MOST_S:
                return (
                    f"{name} took {seconds:.1f} s for one candidate, but a search checks thousands of candidates; use "
                    "at most a few milliseconds (the other checks were skipped)"
                )
    return ""


def varying_function(folder: Folder, configs: Sequence[Config]) -> str:
    """Return a text about a function that returns different values for the same candidate, or an empty string."""
    problem = folder.problems[0]
    for config in configs:
        for name, call in _functions(folder.kernel, config, problem, _CHIP):
            first, second = call(), call()
            if first != second:
                return (
                    f"{name} returned {_text(first)}, then {_text(second)} for the same candidate ({dict(config)}); it "
                    "must depend only on the configuration, the problem and the chip, not on random numbers or time"
                )
            if name.startswith("constraint") and not first.holds:
                break  # the other functions may not accept an infeasible candidate
    return ""


def _functions(
    kernel: Kernel, config: Config, problem: Problem, chip: Profile
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each declared function, and a function that calls it for a candidate."""
    for constraint in kernel.constraints:
        yield f"constraint {constraint.name}", partial(constraint.evaluate, config, problem, chip)
    if check(kernel, config, [problem], chip) is None:
        yield "launches", partial(launches_of, kernel, config, problem)
        yield "tensors", lambda: dict(kernel.workload.tensors(problem, config))
        yield "macros", partial(macros, kernel, config, problem)


def _text(value: Any) -> str:
    """Return a returned value as text of bounded length."""
    text = f"needed {value.needed:g}, available {value.available:g}" if isinstance(value, AtMost) else str(value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …"
