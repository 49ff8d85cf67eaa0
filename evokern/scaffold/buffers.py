"""Buffers and block of a draft: shapes, axis orders, roles and extents, as runs and the file show them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from evokern.cuda_source import KernelFunction
from evokern.cuda_source.host import translated
from evokern.declaration.kernel import DTYPE_BYTES
from evokern.scaffold.evidence import INDEX_LIMIT, LIMITS, Evidence, Fit, row_major
from evokern.scaffold.plan import BLOCK_DOC, DraftArgument, DraftField, DraftGene, DraftTensor, Plan, unused_name
from evokern.scaffold.probe import Touch
from evokern.scaffold.stated.launch import LaunchText


def with_indexed_fields(plan: Plan, found: Evidence) -> tuple[Plan, Evidence]:
    """Return the plan with marks on the extents that integers index, and a new field for one that nothing states."""
    if not found.indexed:
        return replace(plan, fields=tuple(replace(field, indexed=False) for field in plan.fields)), found
    fields, fits = {field.name: field for field in plan.fields}, dict(found.fits)
    problems = [dict(problem) for problem in found.problems]
    for name in (name for name in found.fits if name in found.indexed):
        shape = _as_stated(plan, name) or found.fits[name]
        if shape and shape.stated:
            for axis in _indexed_axes(plan, shape, problems, [run.touches[name].extent for run in found.runs]):
                fields[axis] = replace(fields[axis], indexed=True)
        elif shape and INDEX_LIMIT in shape.axes:
            rows = unused_name(f"{name.upper()}_ROWS", " ".join((*fields, *plan.defaults)))
            why = f"integers in the inputs index these rows of {name}; the file does not state their number"
            fields[rows] = DraftField(rows, why=why, indexed=True)
            fits[name] = replace(shape, axes=tuple(f"p.{rows}" if a == INDEX_LIMIT else a for a in shape.axes))
            for problem, limit in zip(problems, LIMITS, strict=False):
                problem[rows] = limit
    return replace(plan, fields=tuple(fields.values())), replace(found, fits=fits, problems=tuple(problems))


def _indexed_axes(plan: Plan, shape: Fit, problems: Sequence[Mapping[str, int]], extents: Sequence[int]) -> list[str]:
    """Return the field along which no run accessed more rows than its limit, or else all fields."""
    sizes = [[plan.value(one, plan.defaults, problem) for one in shape.axes] for problem in problems]
    axes = [(at, axis[2:]) for at, axis in enumerate(shape.axes) if re.fullmatch(r"p\.\w+", axis)]
    for at, name in axes:
        if all(
            limit < size[at]
            and prod(size) - size[at] * prod(size[at + 1 :]) < extent
            and extent <= prod(size) - (size[at] - limit) * prod(size[at + 1 :])
            for size, extent, limit in zip(sizes, extents, LIMITS, strict=False)
        ):
            return [name]
    return [name for _, name in axes]


def tensors_of(plan: Plan, found: Evidence, source: str) -> tuple[DraftTensor, ...]:
    """Return the buffers, with shapes, axis orders and roles from the runs."""
    made: list[DraftTensor] = []
    constants = {argument.name for argument in plan.constants}
    passed = [(a.expression, a.name) for a in plan.arguments if a.expression and a.expression.startswith("p.")]
    names = {text: "|".join(name for other, name in passed if other == text) for text, _ in passed}
    for argument in (*plan.constants, *plan.arguments):
        if not argument.is_tensor:
            continue
        stated = found.exceeded.get(argument.name)
        shape = _as_stated(plan, argument.name) or found.fits[argument.name]
        touches = [run.touches[argument.name] for run in found.runs]
        why = [argument.why] if argument.why else []
        if shape is None or (shape.stated and not any(t.extent for t in touches)):
            made.append(_unexplained(plan, argument, touches))
            continue
        written, read = any(t.written for t in touches), any(t.read for t in touches)
        whole = found.covered.get(argument.name, False) and shape.exact
        role = "constant" if argument.name in constants else "input" if not written else "output"
        if written and any(t.in_place for t in touches):
            role = "inout"
            why.append("read before it is written")
        elif written and not whole:
            role = "inout"
            share = min(t.distinct / max(1, t.extent) for t in touches)
            part = f"only {min(99, int(100 * share))} %" if share < 1 else "perhaps not all"
            why.append(f"runs write {part} of the buffer, so the other elements must keep their values")
        elif written and read:
            why.append("written before it is read: an output or a workspace")
        if shape.stated and found.fits[argument.name] != shape and not stated:
            reached = max(t.extent for t in touches)
            words = " ".join(f"{name}={value}" for name, value in found.problems[-1].items())
            why.append(
                f"{plan.stated[argument.name].where} states this size; a run accessed {reached} elements ({words})"
            )
        elif not shape.exact:
            why.append("the smallest product of fields that covers the accessed elements")
        elif stated:
            why.append(f"{stated.where} states this size, but the kernel accesses elements beyond it")
        elif argument.name not in plan.stated and any(re.fullmatch(r"p\.\w+ [+-] \d+", axis) for axis in shape.axes):
            why.append("unknown size: the kernel accesses this many elements, and the file states no size")
        extra = ""
        if argument.dtype[0] in "iu" and role in ("input", "inout") and found.indexed:
            extents = [f"p.{field.name}" for field in plan.fields if field.indexed] or [INDEX_LIMIT]
            least = extents[0] if len(extents) == 1 else f"min({', '.join(extents)})"
            extra = f"high={least} - 1"
            why.append("integers below this limit, because some of them index a buffer")
        axes = shape.axes if shape.stated else row_major(shape.axes, argument.name, source, names)
        made.append(DraftTensor(argument.name, argument.dtype, axes, role, "; ".join(why), extra))
    return tuple(made)


def _as_stated(plan: Plan, name: str) -> Fit | None:
    """Return the shape that the file states for a buffer."""
    stated = plan.stated.get(name)
    return Fit(stated.axes, exact=True, stated=True) if stated and stated.axes and stated.sure else None


def _unexplained(plan: Plan, argument: DraftArgument, touches: Sequence[Touch]) -> DraftTensor:
    """Return a buffer that no run accesses, or that exceeds every product of fields."""
    written = any(touch.written for touch in touches)
    if not any(touch.extent for touch in touches):
        stated = _as_stated(plan, argument.name)
        return DraftTensor(
            argument.name, argument.dtype, stated.axes if stated else ("1",), "input", "no run accesses it"
        )
    shape = tuple(f"p.{field.name}" for field in plan.fields)
    why = "runs access more elements than any product of fields covers"
    return DraftTensor(argument.name, argument.dtype, shape, "output" if written else "input", why)


def size_of(
    tensor: DraftTensor, plan: Plan, problem: Mapping[str, int], limit: int,
    config: Mapping[str, int | str] | None = None,
) -> int:  # fmt: skip
    """Return the number of elements of a drafted buffer for a problem, and a configuration other than the default."""
    return prod(shape_of(tensor, plan, problem, limit, config))


def shape_of(
    tensor: DraftTensor, plan: Plan, problem: Mapping[str, int], limit: int,
    config: Mapping[str, int | str] | None = None,
) -> tuple[int, ...]:  # fmt: skip
    """Return the extents of a drafted buffer."""
    axes = (axis.replace(INDEX_LIMIT, str(limit)) for axis in tensor.shape)
    return tuple(plan.value(axis, plan.defaults if config is None else config, problem) for axis in axes)


def bytes_of(tensors: Sequence[DraftTensor]) -> str:
    """Return a Python expression for the bytes moved per call: a buffer counts once, or twice if updated in place."""
    parts = []
    for tensor in (tensor for tensor in tensors if tensor.role != "workspace"):
        times = DTYPE_BYTES[tensor.dtype] * (2 if tensor.role == "inout" else 1)
        parts.append(" * ".join([str(times), *(f"({a})" if " " in a else a for a in tensor.shape)]))
    return " + ".join(parts)


_THREADS = re.compile(r"k?(?:num_?)?threads(?:_?per_?block)?|block_?(?:size|dim)(?:_?x)?|tpb", re.IGNORECASE)
"""Common names for the number of threads per block."""


def block_of(
    function: KernelFunction, launch: LaunchText, names: Mapping[str, str], text: str
) -> tuple[tuple[str, ...], tuple[DraftGene, ...]]:
    """Return the block's extents and genes from the launch, or else from launch bounds or index arithmetic.

    Args:
        function: the kernel.
        launch: its launch in the file.
        names: C name → Python text, for constants, genes and fields.
        text: device code.
    """
    bound = translated(function.launch_bounds[0], names) if function.launch_bounds else None
    if launch.block:
        numbers = _block_numbers(launch)
        return launch.block, tuple(
            DraftGene(
                name,
                _within_bound(block_values(numbers[name]), name, numbers, launch.block, bound),
                numbers[name],
                "" if known else "the file contains no value",
                BLOCK_DOC,
            )
            for name, known in launch.block_genes.items()
        )
    if bound:
        return (bound,), ()
    return _block_by_index(function, names, text, launch.unread)


def _within_bound(
    values: tuple[int, ...], name: str, numbers: Mapping[str, int], block: tuple[str, ...], bound: str | None
) -> tuple[int, ...]:
    """Return the values of a block gene for which the block, with the other genes as in the file, obeys the bound."""
    plan = Plan("", (), (), (), (), block)

    def obeys(value: int) -> bool:
        config = {**numbers, name: value}
        return math.prod(plan.extents(block, config, {})) <= plan.value(bound or "", config, {})

    try:
        return (tuple(filter(obeys, values)) or values) if bound else values
    except (ArithmeticError, AttributeError):  # depends on other genes too
        return values


def _block_numbers(launch: LaunchText) -> dict[str, int]:
    """Return the values of a launch's block genes: the file's numbers, or guesses that give a common block size."""
    for guess in (256, 16, 32, 8):
        numbers = {name: number or guess for name, number in launch.block_genes.items()}
        try:
            extents = Plan("", (), (), (), (), launch.block).extents(launch.block, numbers, {})
        except (ZeroDivisionError, AttributeError):  # depends on other genes too
            continue
        if min(extents) >= 1 and 32 <= extents[0] * extents[1] * extents[2] <= 1024:
            return numbers
    return {name: number or 256 for name, number in launch.block_genes.items()}


def _block_by_index(
    function: KernelFunction, names: Mapping[str, str], text: str, unread: str
) -> tuple[tuple[str, ...], tuple[DraftGene, ...]]:
    """Guess the block from `blockIdx.x * BLOCK + threadIdx.x`; an extent without a macro becomes a gene."""
    axes = [axis for axis in "xyz" if f"threadIdx.{axis}" in text] or ["x"]
    extents: list[str] = []
    genes: list[DraftGene] = []
    for axis in "xyz"[: "xyz".index(axes[-1]) + 1]:
        found = re.search(rf"blockIdx\.{axis}\s*\*\s*\(?\s*([A-Za-z_]\w*)\b(?!\s*\.)", text) or re.search(
            rf"\b([A-Za-z_]\w*)\s*\*\s*blockIdx\.{axis}", text
        )
        known = names.get(found[1]) if found else None
        if known is None and axes == ["x"]:  # a template parameter for the block size
            known = next((text for word, text in names.items() if _THREADS.fullmatch(word)), None)
        if known and known.startswith("c."):
            extents.append(known)
            continue
        gene = unused_name(f"BLOCK_{axis.upper()}", text)
        default = 256 if len(axes) == 1 else 16
        genes.append(DraftGene(gene, block_values(default), default, unread, BLOCK_DOC))
        extents.append(f"c.{gene}")
    return tuple(extents), tuple(genes)


def block_values(number: int) -> tuple[int, ...]:
    """Return the block extents to try: whole warps, or neighbouring values if the value is less than a warp."""
    if number >= 32:
        values = {max(32, number // 4), max(32, number // 2), number, min(1024, 2 * number)}
        return tuple(sorted(values))
    return neighbours(number)


def neighbours(number: int) -> tuple[int, ...]:
    """Return a value with the neighbouring values that a tuner would try: half and double, or on and off."""
    if number in (0, 1):
        return (0, 1) if number == 0 else (1, 2, 4)
    lower = number // 2 if number % 2 == 0 else number - 1
    return tuple(sorted({lower, number, 2 * number}))
