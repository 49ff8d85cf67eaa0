"""Errors for unsupported instructions, with the source line."""

from __future__ import annotations

from evokern.errors import SourceError
from evokern.ptx.lines import LineTable
from evokern.ptx.syntax import Instruction


class Unsupported(Exception):  # noqa: N818 - internal; the caller raises a SourceError with the line
    """Error about an instruction, or a form of it, that the machine does not support."""


def unsupported_error(lines: LineTable, instruction: Instruction, reason: str) -> SourceError:
    """Return the exception to raise for an unsupported instruction.

    Args:
        lines: the module's line table.
        instruction: the unsupported instruction.
        reason: a short statement of what is unsupported.
    """
    location = lines.source_location(instruction.location)
    where = (
        f"line {location.line} of {location.file or lines.source_name}"
        if location.line
        else f"PTX line {instruction.ptx_line}"
    )
    return SourceError(
        f"{where}: {reason}: `{instruction.text}`. Remove it from simulated builds, or run the kernel on a GPU"
    )
