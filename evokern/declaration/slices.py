"""Which outputs a part of the inputs reaches: it lets the gate renew inputs of a large problem by parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evokern.declaration.problem import Problem
from evokern.errors import KernelError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Slice:
    """Inputs and outputs that are cut alike: new inputs in a slice change outputs in the slice and nowhere else.

    `Slice({"a": 0, "c": 0})` of a product: new rows of `a` change the same rows of `c`. `Slice({"b": 1, "c": 1})`: new
    columns of `b` change the same columns of `c`. Every input that a slice names is renewed with it.
    """

    axes: Mapping[str, int | tuple[int, ...]]
    """Tensor → the axis along which it is cut, or several, each by indices of its own, in the same order for every
    tensor. Tensors that are not named stay whole: inputs are left as they are, outputs are not reached."""
    fields: tuple[str, ...] = ()
    """Fields of the problem that are the extents of those axes: they are set to the slice's for the reference."""
    reference: Callable[..., Mapping[str, torch.Tensor]] | None = None
    """Float64 outputs of a slice, from the problem, the float64 inputs (those named, cut; the others whole), and the
    indices along each axis (an int64 tensor each). None runs the workload's own reference on the cut inputs."""

    def __post_init__(self) -> None:
        if not self.axes:
            raise KernelError('a Slice names no tensor; for example Slice({"a": 0, "c": 0})')
        cuts = {name: self.cut(name) for name in self.axes}
        counts = {len(axes) for axes in cuts.values()}
        if len(counts) > 1 or counts == {0}:
            raise KernelError(f"a Slice cuts its tensors along different numbers of axes: {dict(self.axes)}")
        for name, axes in cuts.items():
            if len(set(axes)) < len(axes) or any(axis < 0 for axis in axes):
                raise KernelError(f"a Slice cuts {name!r} along {axes}; name each axis once, from 0")
        if self.fields and len(self.fields) != counts.pop():
            raise KernelError(f"a Slice has fields {self.fields}; name one for each axis that is cut, or none")

    def cut(self, name: str) -> tuple[int, ...]:
        """Return the axes along which a tensor is cut, none where it stays whole."""
        axes = self.axes.get(name, ())
        return axes if isinstance(axes, tuple) else (axes,)

    def part(self, problem: Problem, counts: tuple[int, ...]) -> Problem:
        """Return the problem that a slice of so many indices along each axis is by itself."""
        return problem.changed(dict(zip(self.fields, counts, strict=False))) if self.fields else problem

    def extents(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Return the extents of the axes that are cut.

        Raises:
            KernelError: a tensor is unknown, has no such axis, or extents differ.
        """
        found: tuple[int, ...] = ()
        for name in self.axes:
            if name not in shapes:
                raise KernelError(f"a Slice names {name!r}; inputs and outputs are {', '.join(shapes)}")
            axes, shape = self.cut(name), shapes[name]
            if any(axis >= len(shape) for axis in axes):
                raise KernelError(f"a Slice cuts {name!r} along axis {max(axes)}; its shape is {shape}")
            mine = tuple(shape[axis] for axis in axes)
            if found and mine != found:
                raise KernelError(f"a Slice cuts {name!r} where its extent is {mine}, and others where it is {found}")
            found = mine
        return found
