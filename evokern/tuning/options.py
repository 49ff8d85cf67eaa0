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


@dataclass(frozen=True)
class KernelTunerArguments:
    """Arguments of `evokern.tune_kernel`: those of Kernel Tuner's `tune_kernel`, and evokern's own."""

    kernel_name: str = required("Name of the kernel, with its template arguments.")
    kernel_source: Any = required("Source: text, a path, a list of paths, or a function of the parameters.")
    problem_size: Any = required("Extents: a number, text, a tuple, or a function of the parameters.")
    arguments: Sequence[Any] = required("Arguments of the kernel: arrays and NumPy numbers.")
    tune_params: Mapping[str, Sequence[Any]] = required("Parameters with their values.")
    grid_div_x: Any = option("Divisors of the grid along x. Default: the block's extent.")
    grid_div_y: Any = option("Divisors of the grid along y.")
    grid_div_z: Any = option("Divisors of the grid along z.")
    restrictions: Any = option("Conditions on the parameters: texts, or functions of a dictionary.")
    answer: Sequence[Any] | None = option("Expected outputs, with None for inputs.")
    atol: float = option("Largest absolute error, as for `numpy.allclose`.", 1e-6)
    verify: Any = option("Not supported.")
    verbose: bool = option("Print every result.", False)
    lang: str | None = option("Language; only CUDA is supported.")
    device: Any = option("Number of the GPU, or a device as for `search`. Default: auto.", 0)
    platform: int = option("Not supported.", 0)
    smem_args: Mapping[str, Any] | None = option("Dynamic shared memory: {'size': bytes}.")
    cmem_args: Any = option("Not supported.")
    texmem_args: Any = option("Not supported.")
    compiler: Any = option("Not supported.")
    compiler_options: Sequence[str] | None = option("Compiler options.")
    defines: Any = option("Not supported.")
    log: Any = option("Not supported.")
    iterations: int = option("Minimum number of samples of a measurement.", 7)
    block_size_names: Sequence[str] | None = option("Names of the parameters that set the block's extents.")
    quiet: bool = option("Print nothing.", False)
    strategy: Any = option("`brute_force` or `random_sample`. Default: evokern's sampler.")
    strategy_options: Mapping[str, Any] | None = option("`max_fevals` and `time_limit`.")
    cache: Any = option("Not supported; see `db`.")
    metrics: Mapping[str, Any] | None = option("Name → expression or function of a result.")
    simulation_mode: Any = option("Not supported.")
    parallel: Any = option("Not supported.")
    observers: Any = option("Not supported.")
    objective: Any = option("Only `time` is supported.")
    objective_higher_is_better: Any = option("Not supported.")
    objectives: Any = option("Not supported.")
    seed: int | None = option("Random seed of the sampler.")
    _: KW_ONLY
    reference: Callable[..., Any] | None = option("Reference as for `tune`, instead of `answer`.")
    name: str | None = option("Name of the study. Default: the name of the kernel.")
    db: str | Path = option("Database that stores the results.", "evokern.db")
    trials: int | None = option("Total number of evaluated trials over all calls.")
    budget: str | float | None = option("Total time over all calls, such as 10m.")
    fresh: bool = option("Start over; the old study is kept under another name.", False)

    @property
    def device_name(self) -> str | None:
        """Name of the device; None for the default."""
        if isinstance(self.device, str):
            return self.device
        return f"cuda:{self.device}" if self.device else None
