"""A kernel folder with the problems that are known of it: what the checks share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.small_problems import small_problem
from evokern.errors import StudyError
from evokern.study import discovery
from evokern.study.file import read_study
from evokern.study.settings import Study

if TYPE_CHECKING:
    from evokern.cuda_source import CudaSource

SAMPLE = 500
"""Configurations on which the kernel's functions are tried."""

Results = Iterator[tuple[bool | Literal["warning"] | None, str]]
"""What a check yields: whether it holds (`warning`: it does, and there is something to mend; None: could not be tried),
and what was found."""


@dataclass(frozen=True)
class Folder:
    """A kernel with what the checks share."""

    kernel: Kernel
    problems: tuple[Problem, ...]
    source: CudaSource

    @property
    def small(self) -> tuple[Problem, ...]:
        """Problems small enough to run a reference on."""
        return small_problems(self.kernel, self.problems[:1])

    @property
    def studied(self) -> tuple[Problem, ...]:
        """Problems of studies that are not among the small ones."""
        small = self.small
        return tuple(problem for problem in self.problems if problem not in small)

    @property
    def worded(self) -> tuple[Problem, ...]:
        """The first small problem with each other word that a field may be: another dtype, another layout."""
        small = self.small[:1]
        return tuple(
            self.kernel.problem({**one, entry.name: word})
            for one in small
            for entry in self.kernel.fields
            for word in entry.choices
            if isinstance(word, str) and word != one[entry.name]
        )


def studies_of(kernel: Kernel) -> Iterator[Study]:
    """Yield the studies that name a kernel, by their own names; a file that is unsound is left out."""
    for path in discovery.study_files().values():
        try:
            study = read_study(path)
        except StudyError:
            continue
        if kernel.name == study.kernel:
            yield study


def known_problems(kernel: Kernel) -> tuple[Problem, ...]:
    """Return the problems of the studies that name this kernel, then its small problems.

    Raises:
        KernelError: a small problem or a study's problem is not one that the kernel takes.
    """
    problems = []
    for study in studies_of(kernel):
        fields = {} if study.dtype is None or "dtype" not in kernel.field_names else {"dtype": study.dtype}
        problems += [kernel.problem({**kernel.problem(given), **fields}) for given in study.problems]
    return tuple(dict.fromkeys([*problems, *small_problems(kernel, problems[:1])]))


def small_problems(kernel: Kernel, like: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return the problems that a simulated gate runs, open fields filled in from a study's problem where there is one.

    Raises:
        KernelError: a small problem is not one that the kernel takes.
    """
    texts = kernel.workload.small_problems
    if like:
        return tuple(dict.fromkeys(small_problem(kernel, text, like[0]) for text in texts))
    return tuple(dict.fromkeys(kernel.problem(text) for text in texts))
