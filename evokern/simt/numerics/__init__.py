"""PTX arithmetic over arrays of lanes: formats, conversions, rounded arithmetic, approximations, integers.

All functions are pure functions of NumPy arrays of any shape, with one element per lane in a type from `STORAGE`. They
run once per instruction, over hundreds to thousands of lanes. Each function has a fast path with few vector operations
for the common case: rounding to nearest, no NaN, no subnormals. Other lanes use a slower exact path. Every function
cites its section of the PTX ISA. Call them inside `ignore_float_warnings()`.
"""

from evokern.simt.numerics.approximation import ERROR_BOUNDS
from evokern.simt.numerics.binding import APPROXIMATE_OPERATIONS, EXACT_OPERATIONS, bind, bind_min_max
from evokern.simt.numerics.bits import bfe, bfi, bfind, bit_length, brev, clz, lop3, popc, prmt, shf
from evokern.simt.numerics.conversion import INTEGER_ROUNDINGS, convert, convert_packed, convert_pair
from evokern.simt.numerics.encoding import encode, flush, saturate
from evokern.simt.numerics.formats import (
    CANONICAL_NAN,
    FORMATS,
    ROUNDINGS,
    STORAGE,
    FloatFormat,
    decode,
    ignore_float_warnings,
    stored,
)
from evokern.simt.numerics.integer import dp2a, dp4a, mul24, mul_hi, sad, saturated

__all__ = [
    "APPROXIMATE_OPERATIONS", "CANONICAL_NAN", "ERROR_BOUNDS", "EXACT_OPERATIONS", "FORMATS", "INTEGER_ROUNDINGS",
    "ROUNDINGS", "STORAGE", "FloatFormat", "bfe", "bfi", "bfind", "bind", "bind_min_max", "bit_length", "brev", "clz",
    "convert", "convert_packed", "convert_pair", "decode", "dp2a", "dp4a", "encode", "flush", "ignore_float_warnings",
    "lop3", "mul24", "mul_hi", "popc", "prmt", "sad", "saturate", "saturated", "shf", "stored",
]  # fmt: skip
