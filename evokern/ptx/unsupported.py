"""What the machine does not execute: the verdict on an instruction, and the error that names it with its line."""

from __future__ import annotations

from evokern.errors import SourceError
from evokern.ptx.lines import LineTable
from evokern.ptx.syntax import Instruction


class Unsupported(Exception):  # noqa: N818 - a verdict on one instruction, turned into a SourceError that names it
    """An instruction or a form of it that the machine does not execute."""


def refusal(lines: LineTable, instruction: Instruction, reason: str) -> SourceError:
    """Return the error for an instruction that the machine does not execute.

    Args:
        lines: the module's line table.
        instruction: what is refused.
        reason: why, in a few words.
    """
    location = lines.source_location(instruction.location)
    where = (
        f"line {location.line} of {location.file or lines.source_name}"
        if location.line
        else f"PTX line {instruction.ptx_line}"
    )
    return SourceError(
        f"{where}: {reason}: `{instruction.text}`. Remove it from the simulated build, or run this kernel on a GPU"
    )
