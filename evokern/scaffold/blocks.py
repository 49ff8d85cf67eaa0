"""Block of a drafted launch: its extents, and the genes that change them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from evokern.cuda_source import KernelFunction
from evokern.cuda_source.host import translated
from evokern.scaffold.plan import BLOCK_DOC, DraftGene, Plan, unused_name
from evokern.scaffold.stated.launch import LaunchText

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
