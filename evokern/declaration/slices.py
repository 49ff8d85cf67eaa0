"""Slices: each is a part of the inputs and the outputs that depend on this part; the gate can renew it separately."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evokern.declaration.field_types import Kind, entries, is_whole
from evokern.declaration.problem import Problem
from evokern.errors import KernelError

if TYPE_CHECKING:
    import torch


_AXIS = Kind(lambda axes: is_whole(axes) or (isinstance(axes, tuple) and all(map(is_whole, axes))),
             "the number of an axis, or a tuple of them")  # fmt: skip


@dataclass(frozen=True)
class Slice:
    """Corresponding parts of inputs and outputs: new inputs in a slice change only outputs in the same slice.

    Example for a matrix product: with `Slice({"a": 0, "c": 0})`, new rows of `a` change only the same rows of `c`. With
    `Slice({"b": 1, "c": 1})`, new columns of `b` change only the same columns of `c`. All inputs named by a slice are
    renewed together.
    """

    axes: Mapping[str, int | tuple[int, ...]]
    """Tensor → the axis, or several axes, along which it is cut.

    Each axis has its own indices, in the same order for every tensor. Tensors that are not named stay whole: such
    inputs are not renewed, and such outputs do not change."""
    fields: tuple[str, ...] = ()
    """Fields of the problem that give the extents of the axes; for the reference they are set to those of the slice."""
    reference: Callable[..., Mapping[str, torch.Tensor]] | None = None
    """Function that returns the float64 outputs of a slice; None applies the workload's reference to the cut inputs.

    It gets the problem, the float64 inputs (named inputs cut, others whole), and one int64 tensor of indices per
    axis."""

    def __post_init__(self) -> None:
        entries("a Slice", "axes", self.axes, _AXIS)
        if not self.axes:
            raise KernelError('a Slice names no tensor; name at least one tensor, for example Slice({"a": 0, "c": 0})')
        cuts = {name: self.cut(name) for name in self.axes}
        counts = {len(axes) for axes in cuts.values()}
        if len(counts) > 1 or counts == {0}:
            raise KernelError(f"a Slice must cut every tensor along the same number of axes: {dict(self.axes)}")
        for name, axes in cuts.items():
            if len(set(axes)) < len(axes) or any(axis < 0 for axis in axes):
                raise KernelError(f"a Slice cuts {name!r} along {axes}; list each axis once, counted from 0")
        if self.fields and len(self.fields) != counts.pop():
            raise KernelError(f"a Slice has fields {self.fields}; name one field for each cut axis, or no fields")

    def cut(self, name: str) -> tuple[int, ...]:
        """Return the axes along which a tensor is cut; empty if it stays whole."""
        axes = self.axes.get(name, ())
        return axes if isinstance(axes, tuple) else (axes,)

    def part(self, problem: Problem, counts: tuple[int, ...]) -> Problem:
        """Return the problem that remains if each axis of the slice keeps only the given number of indices."""
        return problem.changed(dict(zip(self.fields, counts, strict=False))) if self.fields else problem

    def extents(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Return the extents of the axes that are cut.

        Raises:
            KernelError: a tensor is unknown, an axis does not exist, or extents differ.
        """
        found: tuple[int, ...] = ()
        for name in self.axes:
            if name not in shapes:
                raise KernelError(f"a Slice names the unknown tensor {name!r}; use {', '.join(shapes)}")
            axes, shape = self.cut(name), shapes[name]
            if any(axis >= len(shape) for axis in axes):
                raise KernelError(f"a Slice cuts {name!r} along axis {max(axes)}, but its shape is {shape}")
            mine = tuple(shape[axis] for axis in axes)
            if found and mine != found:
                raise KernelError(f"a Slice cuts {name!r} with extents {mine}, but other tensors with extents {found}")
            found = mine
        return found
