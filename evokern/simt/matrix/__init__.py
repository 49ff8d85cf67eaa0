"""Matrix instructions of PTX over batches of warps: `mma.sync`, `wmma`, `wgmma`, `ldmatrix`, `stmatrix`.

Registers are arrays of shape [registers, warps, 32 lanes] and type uint32, or of 64-bit items for f64. Bind an
instruction once (`bind_mma`, `bind_wmma`, `bind_wgmma`, `wmma_fragment`, `matrix_move`), then call the result many
times.
"""

from evokern.simt.matrix.descriptors import Descriptor, pieces_of
from evokern.simt.matrix.fragments import WMMA_SHAPES, Fragment, Shape, mma_fragment, wmma_elements, wmma_fragment
from evokern.simt.matrix.mma import Mma, accumulation_bound, bind_mma
from evokern.simt.matrix.moves import ROW_BYTES, MatrixMove, matrix_move
from evokern.simt.matrix.wgmma import WarpgroupProduct, bind_wgmma
from evokern.simt.matrix.wmma import Wmma, bind_wmma

__all__ = [
    "ROW_BYTES", "WMMA_SHAPES", "Descriptor", "Fragment", "MatrixMove", "Mma", "Shape", "WarpgroupProduct", "Wmma",
    "accumulation_bound", "bind_mma", "bind_wgmma", "bind_wmma", "matrix_move", "mma_fragment", "pieces_of",
    "wmma_elements", "wmma_fragment",
]  # fmt: skip
