"""Options of `evokern.tune` that declare the kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from evokern.declaration.genes import Value
from evokern.study.options import option, required


@dataclass(frozen=True)
class TuneOptions:
    """Arguments of `evokern.tune` that declare the kernel."""

    source: str | Path = required("Path or text of the CUDA source. Parameters are macros in it.")
    entry: str = required(
        "Name of the kernel with its template arguments, such as `gemm<{TILE}, 8>`: `{TILE}` stands for a parameter."
    )
    args: Sequence[Any] = required(
        "One entry for each parameter of the kernel: an array (torch, NumPy or CuPy) for an input, "
        "`evokern.out_like(x)` for an output, `evokern.inout(x)` for an output that the kernel also reads, or a "
        "number. The gate generates its own values within the range of each floating-point array; integer arrays keep "
        "theirs."
    )
    params: Mapping[str, Sequence[Value]] = required("Parameters with their values: whole numbers or names.")
    _: KW_ONLY
    grid: Any = required(
        "Blocks along x, y, z: numbers, or a function of the parameters, such as `lambda p: evokern.cdiv(n, p.BLOCK)`.",
        named=True,
    )
    block: Any = required("Threads along x, y, z, likewise.", named=True)
    reference: Callable[..., Any] = required(
        "Function that returns the correct outputs in the order of `args`. It gets the inputs in this order: floating "
        "point as float64, integers unchanged. It also gets the numbers if it takes that many arguments. On a GPU, the "
        "function of torch tensors in their own dtypes is the first baseline.",
        named=True,
    )
    where: Any = option("Conditions on the parameters: a function such as `lambda p: p.A < p.B`, or a list.", ())
    shared: Any = option("Dynamic shared memory in bytes: a number, or a function of the parameters.", 0)
    tolerance: Any = option(
        "Largest errors (atol, rtol), or a mapping from outputs. Default: a bound that is derived from the reference, "
        "if it consists of known operations; 0 for integers."
    )
    error: Any = option("Bound on the error, such as `evokern.Elementwise(4)`, or a mapping from outputs.")
    draw: Mapping[str, Any] | None = option(
        "Input → (low, high), or function of a `torch.Generator` that returns its values."
    )
    options: Sequence[str] = option("Compiler options, such as `--use_fast_math`.", ())
    name: str | None = option("Name of the study. Default: the name of the kernel.")
    device: str | None = option("Device, as for `search`. Default: the GPU of the arrays, else auto.")

    @property
    def study(self) -> str:
        """Name of the study."""
        return self.name or re.split(r"[<({]", str(self.entry))[0].strip().rpartition("::")[2]
