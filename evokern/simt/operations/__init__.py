"""The operations of the machine; importing this package fills the table."""

from evokern.simt.operations import compare, control, convert, floating, integer, memory_ops

__all__ = ["compare", "control", "convert", "floating", "integer", "memory_ops"]
