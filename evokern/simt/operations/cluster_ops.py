"""Addresses of other blocks of a cluster: ``mapa`` (PTX ISA 9.7.9.23) and ``getctarank`` (9.7.9.24)."""

from __future__ import annotations

import numpy as np

from evokern.ptx.syntax import Instruction
from evokern.simt.arrays import Action, Array
from evokern.simt.binder import Binder
from evokern.simt.clusters.layout import MAX_RANK, RANK_BITS
from evokern.simt.memory.buffers import WINDOW_BITS
from evokern.simt.operations.integer import assign, kind_of
from evokern.simt.operations.table import operation


@operation("mapa", "9.7.9.23")
def mapa(i: Instruction, b: Binder) -> Action:
    """Compute the address in another block of the cluster that corresponds to a shared-memory address of this block.

    If the rank is outside the cluster, any access to the resulting address is invalid.
    """
    kind = kind_of(i)
    address, rank, out = b.src(i.operands[1], kind), b.src(i.operands[2], "u32"), b.dst(i.operands[0], kind)
    dtype = out.dtype
    shift, below, half = dtype.type(RANK_BITS), dtype.type((1 << RANK_BITS) - 1), dtype.type(1 << RANK_BITS - 1)
    window = dtype.type(0 if i.has("shared::cluster") else ~((1 << WINDOW_BITS) - 1) & (1 << 64) - 1)

    def mapped() -> Array:
        named = np.minimum(rank, np.uint32(MAX_RANK)).astype(dtype)
        # A base slightly below the block's memory (an offset is added later) keeps its distance in the other block.
        found: Array = (address & window) + (named << shift) + ((address + half) & below) - half
        return found

    return assign(out, mapped)


@operation("getctarank", "9.7.9.24")
def getctarank(i: Instruction, b: Binder) -> Action:
    """Compute the rank of the block to which a shared address belongs."""
    kind = kind_of(i)
    address, out = b.src(i.operands[1], kind), b.dst(i.operands[0], "u32")
    shift, most = address.dtype.type(RANK_BITS), address.dtype.type((1 << 32 - RANK_BITS) - 1)
    return assign(out, lambda: ((address >> shift) & most).astype(np.uint32))
