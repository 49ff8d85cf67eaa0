"""Data shared by all checks: a kernel, its source and its known problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from evokern.analysis.check.reference_check import workload_tensors
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.small_problems import small_problem
from evokern.errors import KernelError, StudyError
from evokern.study import discovery
from evokern.study.file import read_study
from evokern.study.settings import Study

if TYPE_CHECKING:
    from evokern.cuda_source import CudaSource

MOST_SMALL_BYTES = 1 << 28
"""Largest total buffer size of a small problem, in bytes; its reference would take many seconds."""
SAMPLE = 500
"""Number of configurations on which the kernel's functions are tested."""

Result = tuple[bool | Literal["warning"] | None, str]
"""Result of a check: state and detail. States: True (passed), False (failed), `warning`, None (skipped)."""
Results = Iterator[Result]


@dataclass(frozen=True)
class Folder:
    """A kernel, its known problems and its source."""

    kernel: Kernel
    problems: tuple[Problem, ...]
    source: CudaSource

    @property
    def small(self) -> tuple[Problem, ...]:
        """Small problems, without those that are too large to run the reference."""
        return tuple(problem for problem in self._declared if not self._is_large(problem))

    @property
    def too_large(self) -> tuple[Problem, ...]:
        """Small problems that are too large to run the reference."""
        return tuple(problem for problem in self._declared if self._is_large(problem))

    def _is_large(self, problem: Problem) -> bool:
        try:
            return problem_bytes(self.kernel, problem) > MOST_SMALL_BYTES
        except KernelError:  # the check of the workload reports it
            return False

    @property
    def _declared(self) -> tuple[Problem, ...]:
        return small_problems(self.kernel, self.problems[:1])

    @property
    def study_problems(self) -> tuple[Problem, ...]:
        """Problems of the kernel's studies, without the small problems."""
        small = self._declared
        return tuple(problem for problem in self.problems if problem not in small)

    @property
    def choice_variants(self) -> tuple[Problem, ...]:
        """Variants of the first small problem, one for each other value of a field, such as a dtype."""
        small = self.small[:1]
        return tuple(
            self.kernel.problem({**one, entry.name: word})
            for one in small
            for entry in self.kernel.fields
            for word in entry.choices
            if isinstance(word, str) and word != one[entry.name]
        )


def problem_bytes(kernel: Kernel, problem: Problem) -> int:
    """Return the total size of the default candidate's buffers.

    Raises:
        KernelError: the kernel's `tensors` raised.
    """
    return sum(tensor.bytes for tensor in workload_tensors(kernel, problem).values())


def studies_of(kernel: Kernel) -> Iterator[Study]:
    """Yield the studies of a kernel, sorted by name; skip invalid files.

    A study names the kernel's folder, as a name or a path; `kernel.py` may give the kernel another name.
    """
    names = {kernel.name, kernel.folder.name}
    for path in discovery.study_files().values():
        try:
            study = read_study(path)
        except StudyError:
            continue
        if study.kernel in names or Path(study.kernel).name in names:
            yield study


def known_problems(kernel: Kernel) -> tuple[Problem, ...]:
    """Return the problems of this kernel's studies, then its small problems.

    Raises:
        KernelError: the kernel does not accept a small problem or a study's problem.
    """
    problems = []
    for study in studies_of(kernel):
        fields = {} if study.dtype is None or "dtype" not in kernel.field_names else {"dtype": study.dtype}
        problems += [kernel.problem({**kernel.problem(given), **fields}) for given in study.problems]
    return tuple(dict.fromkeys([*problems, *small_problems(kernel, problems[:1])]))


def small_problems(kernel: Kernel, like: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return the small problems for the simulated gate; fields without a value are taken from a study's problem.

    Raises:
        KernelError: the kernel does not accept a small problem.
    """
    texts = kernel.workload.small_problems
    if like:
        return tuple(dict.fromkeys(small_problem(kernel, text, like[0]) for text in texts))
    return tuple(dict.fromkeys(kernel.problem(text) for text in texts))
