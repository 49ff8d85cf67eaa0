"""What a candidate must meet before it is compiled: constraints, and vector accesses that must be aligned."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from evokern.declaration.genes import Config
from evokern.declaration.problem import Problem
from evokern.errors import RAISED, KernelError, SpaceError

LEFT_OVER = "left over"
"""End of the unit of a remainder, which must be 0."""


@dataclass(frozen=True)
class Need:
    """What a constraint compares: it holds while `needed` is at most `available`."""

    needed: float
    """What the candidate needs."""
    available: float
    """What there is."""
    unit: str = ""
    """Unit of both, for messages."""

    @property
    def holds(self) -> bool:
        """Whether there is enough."""
        return self.needed <= self.available


def divides(divisor: int, number: int, unit: str = "") -> Need:
    """Return a need that holds when `divisor` divides `number`; its size is the remainder."""
    return Need(number % divisor if divisor else 1, 0, f"{unit} {LEFT_OVER}".strip())


@dataclass(frozen=True)
class Constraint:
    """A named condition that a candidate must meet before it is compiled."""

    name: str
    """Name; the `static_assert` in the source that says the same thing carries it too."""
    holds: Callable[..., bool | Need]
    """Function of (config), (config, problem) or (config, problem, chip)."""
    reason: str
    """Why a candidate that violates it cannot work, in a sentence."""
    wasteful: bool = False
    """The candidate would be right but never worth a trial; on small problems of a simulated gate it may run."""

    def __post_init__(self) -> None:
        arity = len(inspect.signature(self.holds).parameters)
        if not 1 <= arity <= 3:
            raise KernelError(f"constraint {self.name} takes {arity} arguments; use (config[, problem[, chip]])")
        object.__setattr__(self, "_arity", arity)

    @property
    def arity(self) -> int:
        """How many of (config, problem, chip) the function takes."""
        return self._arity  # type: ignore[attr-defined,no-any-return]

    def evaluate(self, config: Config, problem: Problem, chip: object) -> Need:
        """Return what is needed and available; a plain boolean becomes 1 or 0 needed of 0.

        Raises:
            KernelError: the constraint's own function raised, or returned nothing.
        """
        try:
            answer = self.holds(*(config, problem, chip)[: self.arity])
        except SpaceError:
            raise
        except RAISED as error:
            frame = traceback.extract_tb(error.__traceback__)[:2][-1]  # this function's, then the constraint's own
            raise KernelError(
                f"constraint {self.name} raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno}) "
                f"for {dict(config)} at {problem}; it must answer for every candidate: False where one cannot work"
            ) from error
        if answer is None:
            raise KernelError(
                f"constraint {self.name} returned None for {dict(config)} at {problem}; it must return a bool, "
                "Need(needed, available) or divides(a, b)"
            )
        return answer if isinstance(answer, Need) else Need(0 if answer else 1, 0)


@dataclass(frozen=True)
class VectorAccess:
    """A vector load or store whose alignment depends on strides: checked before the compile."""

    tensor: str
    """Tensor in global memory, or a name such as `shared k_tile`."""
    width_bytes: int
    """Bytes that one thread moves at once: 4, 8 or 16."""
    stride_bytes: tuple[int, ...]
    """Strides, in bytes, by which such accesses are apart (row stride, slice offset, base offset)."""
