"""Conditions checked before a candidate is compiled: constraints, and the alignment of vector accesses."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass

from evokern.declaration.field_types import FUNCTION, TEXT, WHOLE, members, quoted, require
from evokern.declaration.genes import Config
from evokern.declaration.problem import Problem
from evokern.errors import KERNEL_CODE_EXCEPTIONS, KernelError, SpaceError

LEFT_OVER = "left over"
"""End of the unit of a remainder, which must be 0."""


@dataclass(frozen=True)
class AtMost:
    """Amounts that a constraint compares: the constraint holds if `needed` is at most `available`."""

    needed: float
    """Amount that the candidate needs."""
    available: float
    """Available amount."""
    unit: str = ""
    """Unit of both amounts, for messages."""

    @property
    def holds(self) -> bool:
        """Whether the available amount suffices."""
        return self.needed <= self.available


def divides(divisor: int, number: int, unit: str = "") -> AtMost:
    """Return amounts for the condition that `divisor` divides `number`; `needed` is the remainder."""
    return AtMost(number % divisor if divisor else 1, 0, f"{unit} {LEFT_OVER}".strip())


@dataclass(frozen=True)
class Constraint:
    """A named condition that a candidate must meet before it is compiled."""

    name: str
    """Name; use it also in the corresponding `static_assert` of the source."""
    holds: Callable[..., bool | AtMost]
    """Function of (config), (config, problem) or (config, problem, chip)."""
    reason: str
    """Reason why a candidate that violates the constraint cannot work, as a sentence."""
    wasteful: bool = False
    """Whether violating candidates are correct but too slow to try; they may run on small problems in a simulated
    gate."""

    def __post_init__(self) -> None:
        require("a constraint", self, {"name": TEXT})
        require(f"constraint {self.name}", self, {"holds": FUNCTION, "reason": TEXT})
        arity = len(inspect.signature(self.holds).parameters)
        if not 1 <= arity <= 3:
            raise KernelError(f"constraint {self.name} takes {arity} arguments; use (config[, problem[, chip]])")
        object.__setattr__(self, "_arity", arity)

    @property
    def arity(self) -> int:
        """Number of parameters, out of (config, problem, chip), that the function takes."""
        return self._arity  # type: ignore[attr-defined,no-any-return]

    def evaluate(self, config: Config, problem: Problem, chip: object) -> AtMost:
        """Return the needed and available amounts; for a boolean, 0 of 0 if the constraint holds, else 1 of 0.

        Raises:
            KernelError: the constraint's function raised or returned None.
        """
        try:
            answer = self.holds(*(config, problem, chip)[: self.arity])
        except SpaceError:
            raise
        except KERNEL_CODE_EXCEPTIONS as error:
            frame = traceback.extract_tb(error.__traceback__)[:2][-1]  # this function's, then the constraint's own
            raise KernelError(
                f"constraint {self.name} raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno}) "
                f"for {dict(config)} at {problem}; it must return False instead of raising if a candidate cannot work"
            ) from error
        if answer is None or isinstance(answer, (str, Collection)):
            raise KernelError(
                f"constraint {self.name} returned {quoted(answer)} for {dict(config)} at {problem}; it must return "
                "a bool, AtMost(needed, available) or divides(a, b)"
            )
        return answer if isinstance(answer, AtMost) else AtMost(0 if answer else 1, 0)


@dataclass(frozen=True)
class VectorAccess:
    """A vector load or store whose alignment depends on strides, checked before compilation."""

    tensor: str
    """Name of a tensor in global memory, or a description such as `shared k_tile`."""
    width_bytes: int
    """Bytes per access of one thread: 4, 8 or 16."""
    stride_bytes: tuple[int, ...]
    """Strides between accesses in bytes (row stride, slice offset, base offset)."""

    def __post_init__(self) -> None:
        owner = "a vector access"
        require(owner, self, {"tensor": TEXT, "width_bytes": WHOLE})
        object.__setattr__(self, "stride_bytes", members(owner, "stride_bytes", self.stride_bytes, WHOLE))
