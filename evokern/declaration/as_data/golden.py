"""References that are not functions of the inputs alone: recorded values of one problem, or the kernel itself."""

from __future__ import annotations

import functools
import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evokern.errors import KernelError

if TYPE_CHECKING:
    import torch

Outputs = Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]
"""A reference: function of the problem and the inputs."""


@dataclass(frozen=True)
class GoldenValues:
    """Inputs of one problem and their correct outputs, in an NPZ file next to `kernel.py`.

    At this problem, the inputs are those of the file and never change, and the outputs are compared with those of the
    file: a reference for other inputs does not exist. At other problems, `Workload.reference` applies.
    """

    problem: str
    """The problem."""
    file: str
    """Name of the file. Its arrays have the names of the buffers; those of outputs are the correct values."""
    sha256: str
    """Digest of the file."""


@dataclass(frozen=True)
class Compared:
    """A reference whose values are not known to be correct."""

    run: Outputs
    """The reference."""
    compared_with: str
    """Origin of its values, in words."""

    def __call__(self, problem: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the outputs by name."""
        return self.run(problem, inputs)


def compared_with(reference: object, default: bool = False) -> str:
    """Return what a candidate is compared with, in words; empty for a function that returns correct results.

    Args:
        reference: the kernel's reference.
        default: whether the candidate is the default candidate.
    """
    text = str(getattr(reference, "compared_with", ""))
    return text.replace("the default candidate", "itself") if default else text


@dataclass(frozen=True)
class SomeOutputs:
    """Outputs that some blocks of a reference's launch write."""

    grid: tuple[int, int, int]
    """Blocks of the launch along x, y, z."""
    blocks: tuple[int, ...]
    """Linear ids of the blocks that ran."""
    elements: Mapping[str, Any]
    """Output → indices of the elements that these blocks write, as an array."""
    values: Mapping[str, torch.Tensor]
    """Output → values of these elements in float64."""


class KernelReference(ABC):
    """A reference that needs the kernel itself, or that is expensive to compute at some problems."""

    compared_with = ""
    """Origin of its values, in words; empty if they are correct."""

    @abstractmethod
    def of(self, kernel: Any) -> KernelReference:
        """Return the reference of a loaded kernel."""

    @abstractmethod
    def affordable(self, problem: Any) -> bool | None:
        """Return whether the reference is cheap enough at a problem; None if that depends on its operations."""

    @abstractmethod
    def __call__(self, problem: Any, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the outputs by name, in float64."""

    def some(
        self, problem: Any, inputs: Mapping[str, torch.Tensor], rng: random.Random, most: float
    ) -> SomeOutputs | None:
        """Return the outputs of some blocks, for a problem at which all are too expensive; None if that is impossible.

        Args:
            problem: the problem.
            inputs: the inputs, in their own dtypes.
            rng: generator for the places.
            most: maximum number of warp instructions.
        """
        return None


def with_values(kernel: Any) -> Any:
    """Return a loaded kernel with its golden values, and with itself in its reference.

    Raises:
        KernelError: the problem of the golden values is invalid.
    """
    workload = kernel.workload
    if isinstance(workload.reference, KernelReference):
        workload = replace(workload, reference=workload.reference.of(kernel))
    if workload.golden is not None:
        values = _GoldenReference(kernel, workload.golden, workload.reference)
        workload = replace(
            workload, reference=values, tensors=functools.partial(values.tensors, workload.tensors), golden=None
        )
    return kernel if workload is kernel.workload else replace(kernel, workload=workload)


class _GoldenReference(KernelReference):
    """Reference that is recorded at one problem, and computed at others."""

    def __init__(self, kernel: Any, golden: GoldenValues, other: Outputs) -> None:
        self._problem, self._other = kernel.problem(golden.problem), other
        self._path, self._digest = kernel.folder / golden.file, golden.sha256
        elsewhere = compared_with(other)
        self.compared_with = f"the values of {golden.file} at {self._problem}"
        self.compared_with += f", and {elsewhere} at other problems" if elsewhere else ""

    def of(self, kernel: Any) -> KernelReference:
        return self

    def affordable(self, problem: Any) -> bool | None:
        if problem == self._problem:
            return True
        return self._other.affordable(problem) if isinstance(self._other, KernelReference) else None

    def some(
        self, problem: Any, inputs: Mapping[str, torch.Tensor], rng: random.Random, most: float
    ) -> SomeOutputs | None:
        return self._other.some(problem, inputs, rng, most) if isinstance(self._other, KernelReference) else None

    def tensors(self, declared: Callable[..., Mapping[str, Any]], problem: Any, config: Any) -> Any:
        """Return the buffers; at the recorded problem, with the recorded inputs."""
        found = declared(problem, config)
        if problem != self._problem:
            return found
        return {
            name: replace(one, draw=functools.partial(self._drawn, name), change="nothing") if one.given else one
            for name, one in found.items()
        }

    def _drawn(self, name: str, generator: torch.Generator) -> torch.Tensor:
        return _tensor(self._path, self._digest, name).to(generator.device)

    def __call__(self, problem: Any, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        if problem != self._problem:
            return self._other(problem, inputs)
        import torch

        device = next((one.device for one in inputs.values()), torch.device("cpu"))
        names = [name for name in _arrays(self._path, self._digest) if name.startswith(OUTPUT)]
        return {
            name.removeprefix(OUTPUT): _tensor(self._path, self._digest, name).to(device, torch.float64)
            for name in names
        }


OUTPUT = "correct_"
"""Prefix of the names of correct outputs in the file, because an updated buffer is also an input."""


@functools.lru_cache(maxsize=2)
def _arrays(path: Path, digest: str) -> Mapping[str, Any]:
    """Return the arrays of a file.

    Raises:
        KernelError: the file is missing, or its content is not the declared one.
    """
    import numpy

    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise KernelError(f"cannot read the golden values {path}: {error.strerror}; restore the file") from error
    if found != digest:
        raise KernelError(f"{path} is not the file that kernel.py declares (SHA-256 {found}); restore the file")
    with numpy.load(path) as stored:
        return {name: stored[name] for name in stored.files}


def _tensor(path: Path, digest: str, name: str) -> torch.Tensor:
    import torch

    arrays = _arrays(path, digest)
    if name not in arrays:
        raise KernelError(f"{path} has no array {name!r}; it has {', '.join(arrays)}")
    return torch.from_numpy(arrays[name])
