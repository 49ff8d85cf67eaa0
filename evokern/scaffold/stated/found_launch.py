"""The file's launch of a kernel, in the names of its function, with what its callers state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evokern.cuda_source import CudaSource, KernelFunction
from evokern.cuda_source.host import (
    Arithmetic,
    Dim3,
    Expr,
    HostBuffer,
    HostLaunch,
    Name,
    Pointer,
    names_in,
    number,
    substituted,
    text_of,
)
from evokern.cuda_source.host.values import product_of


@dataclass(frozen=True)
class StatedLaunch:
    """A launch in the file, with what its callers state."""

    view: HostLaunch
    """The launch in the names of its function, in which a caller's expressions replace parameters."""
    views: tuple[HostLaunch, ...]
    """The same launch, seen from the callers."""
    siblings: tuple[HostLaunch, ...]
    """Other launches of the kernel."""
    values: Mapping[Name, int]
    """Name → number that a caller or the file gives it."""
    aliases: Mapping[Name, Name]
    """Name of a caller → name in the view."""


def find_launch(source: CudaSource, entry: KernelFunction, wanted: str | None = None) -> StatedLaunch | None:
    """Return the first launch whose arguments match the kernel's parameters, preferably in the file itself.

    Args:
        source: the file.
        entry: the kernel.
        wanted: name of the kernel with template arguments, which the launch should have; None for any.
    """
    all_views = [
        one for one in source.launches if one.kernel == entry.name and len(one.arguments) == len(entry.parameters)
    ]
    own = [one for one in all_views if one.own]
    if not own:
        return None
    given = "".join((wanted or "").partition("<")[2].rpartition(">")[0].split())
    matching = [one for one in own if given and given == "".join(",".join(map(text_of, one.template)).split())]
    launch = min(matching or own, key=lambda one: (bool(one.file), one.line if one.file else 0))
    views = tuple(v for v in all_views if not v.own and (v.file, v.line) == (launch.file, launch.line))
    siblings = tuple(one for one in own if one is not launch)
    return _composed(launch, views, siblings)


def _composed(launch: HostLaunch, views: tuple[HostLaunch, ...], siblings: tuple[HostLaunch, ...]) -> StatedLaunch:
    """Return a launch with the expressions of the caller that states most about the buffers."""
    values: dict[Name, int] = {}
    aliases: dict[Name, Name] = {}
    best = max(views, key=_stated, default=None)
    if best is None or _stated(best) < _stated(launch):
        return StatedLaunch(launch, views, siblings, values, aliases)
    replaced: dict[Name, Expr] = {}
    for parameter, value in best.given.items():
        name = launch.given.get(parameter)
        if not isinstance(name, Name) or name.kind != "parameter":
            continue
        if isinstance(value, Name):
            aliases[value] = name
        elif isinstance(value, Arithmetic) and not any(n.kind == "unknown" for n in names_in(value)):
            replaced[name] = value
        if (known := number(value)) is not None:
            values[name] = known
    arguments = tuple(
        theirs if isinstance(mine, Pointer) else mine
        for mine, theirs in zip(launch.arguments, best.arguments, strict=True)
    )
    view = _substituted(replace(launch, arguments=arguments), replaced.get)
    view = replace(
        view, requirements=(*view.requirements, *best.requirements), conditions=(*view.conditions, *best.conditions)
    )
    return StatedLaunch(view, views, siblings, values, aliases)


def _substituted(view: HostLaunch, values: Callable[[Name], Expr | None]) -> HostLaunch:
    """Return a launch with names replaced by other expressions."""

    def changed(value: Expr) -> Expr:
        return substituted(value, values)

    def extents(value: Dim3) -> Dim3:
        return Dim3(changed(value.x), changed(value.y), changed(value.z))

    return replace(
        view, grid=extents(view.grid), block=extents(view.block), shared=changed(view.shared),
        arguments=tuple(changed(a) if isinstance(a, int | float | Name | Arithmetic) else a for a in view.arguments),
        requirements=tuple(map(changed, view.requirements)), conditions=tuple(map(changed, view.conditions)),
    )  # fmt: skip


def in_extents(view: HostLaunch) -> HostLaunch:
    """Return a launch in which one name stands for equal extents, and `x.numel()` is a product if it uses an extent.

    In a `case`, the block contains the number of the case.
    """
    same: dict[Name, Name] = {}

    def first(name: Name) -> Name:
        while name in same:
            name = same[name]
        return name

    for left, right in equalities(view.requirements):
        if isinstance(right, Name) and first(left) != first(right):
            same[first(left)] = first(right)
    view = _substituted(view, first)
    used = {name for part in (*view.arguments, view.grid) for name in names_in(part)}
    counts: dict[Name, Expr] = {}
    for buffer in (one.buffer for one in view.arguments if isinstance(one, Pointer)):
        axes = [substituted(axis, first) for axis in axes_of(buffer)]
        if used.intersection(axes):
            counts[Name(f"{buffer.name}.numel()", "extent")] = product_of(axes)
    return _in_case(_substituted(view, counts.get))


def _in_case(view: HostLaunch) -> HostLaunch:
    """Return a launch in a `case`, with the number of the case in the block."""
    cases = {
        one.operands[0]: one.operands[1]
        for one in view.conditions
        if isinstance(one, Arithmetic) and one.operator == "==" and isinstance(one.operands[1], int)
        and one.operands[1] in view.template
    }  # fmt: skip
    block = view.block
    return replace(view, block=Dim3(*(cases.get(one, one) for one in (block.x, block.y, block.z))))


def axes_of(buffer: HostBuffer) -> Sequence[Expr]:
    """Return the extents of a tensor that the file checks or reads; empty if an axis is unknown."""
    if buffer.shape is not None:
        return buffer.shape
    name = buffer.like or buffer.name
    if buffer.asked == {-1}:
        return (Name(f"{name}.rows", "extent"), Name(f"{name}.size(-1)", "extent"))
    last = max(buffer.asked) if buffer.asked and min(buffer.asked) >= 0 else -1
    return [Name(f"{name}.size({axis})", "extent") for axis in range(last + 1)]


def _stated(view: HostLaunch) -> int:
    """Return how many sizes a view states."""
    buffers = [one.buffer for one in view.arguments if isinstance(one, Pointer)]
    sized = sum(1 for b in buffers if b.kind == "tensor" or b.elements is not None or b.bytes is not None)
    return 2 * sized + sum(1 for value in view.given.values() if number(value) is not None)


def equalities(requirements: Sequence[Expr]) -> Iterator[tuple[Name, Expr]]:
    """Yield the extents that a check equates with others or with numbers."""
    for one in requirements:
        match one:
            case Arithmetic("==", (Name(kind="extent") as left, Name() | int() as right)) if left != right:
                yield left, right
