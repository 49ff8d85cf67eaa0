"""Example arrays of torch, NumPy and CuPy: shape, dtype, range and device, without importing a library."""

from __future__ import annotations

import base64
import math
import sys
import zlib
from dataclasses import dataclass
from typing import Any

from evokern.errors import UsageError

DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8",
    "uint32": "u32", "uint64": "u64", "bool": "u8",
}  # fmt: skip
"""Name of a dtype in torch, NumPy and CuPy → evokern's name."""
MOST_STORED = 1 << 23
"""Maximum size of the compressed values of an integer input that a database stores, in bytes."""


def framework_of(value: object) -> str:
    """Return the library of an array: `torch`, `numpy` or `cupy`; empty for anything else."""
    for framework, kind in (("torch", "Tensor"), ("numpy", "ndarray"), ("cupy", "ndarray")):
        module = sys.modules.get(framework)  # an array exists only if its library is imported
        if module is not None and isinstance(value, getattr(module, kind, ())):
            return framework
    return ""


def number_of(value: object) -> int | float | None:
    """Return a number given by value: a Python or NumPy number; None for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        value = value.item()
    return value if isinstance(value, (bool, int, float)) else None


@dataclass(frozen=True)
class Example:
    """An example array."""

    value: Any
    """The array itself."""
    where: str
    """The argument in messages, such as `args[1] (x)`."""

    @property
    def framework(self) -> str:
        """Library of the array."""
        return framework_of(self.value)

    @property
    def dtype_name(self) -> str:
        """Name of its dtype in the library."""
        return str(self.value.dtype).removeprefix("torch.")

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape; an array without axes has one element."""
        return tuple(int(extent) for extent in self.value.shape) or (1,)

    @property
    def device(self) -> str:
        """`cuda:N` for an array on a GPU, else `cpu`."""
        if self.framework == "torch":
            return str(self.value.device)
        return f"cuda:{self.value.device.id}" if self.framework == "cupy" else "cpu"

    def check(self) -> None:
        """Reject an array that cannot be an argument.

        Raises:
            UsageError: it has an unsupported dtype, no elements, or its elements are not contiguous.
        """
        if self.dtype_name not in DTYPES:
            raise UsageError(
                f"{self.where} has dtype {self.dtype_name}, which evokern does not support; use one of "
                f"{', '.join(DTYPES)}"
            )
        if 0 in self.shape:
            raise UsageError(f"{self.where} has shape {self.shape}, which has no elements; pass a larger example")
        if self.framework == "torch":
            if str(self.value.layout) != "torch.strided" or self.value.device.type not in ("cpu", "cuda"):
                raise UsageError(f"{self.where} is a {self.value.layout} tensor on {self.value.device}; pass a dense "
                                 "tensor on the CPU or a GPU")  # fmt: skip
            contiguous, remedy = self.value.is_contiguous(), "{}.contiguous()"
        else:
            module = "np" if self.framework == "numpy" else "cp"
            contiguous, remedy = bool(self.value.flags["C_CONTIGUOUS"]), f"{module}.ascontiguousarray({{}})"
        if not contiguous:
            strides = tuple(self.value.stride()) if self.framework == "torch" else tuple(self.value.strides)
            raise UsageError(
                f"{self.where} is not contiguous (shape {self.shape}, strides {strides}); pass "
                f"{remedy.format(self.name)}"
            )

    @property
    def name(self) -> str:
        """Name of the argument in messages."""
        return self.where.rpartition("(")[2].rstrip(")")

    def tensor(self) -> Any:
        """Return the array as a torch tensor; one in host memory shares it."""
        import torch

        if self.framework == "torch":
            return self.value.detach().reshape(self.shape)
        if self.framework == "numpy":
            import numpy

            return torch.from_numpy(numpy.ascontiguousarray(self.value)).reshape(self.shape)
        return torch.utils.dlpack.from_dlpack(self.value).reshape(self.shape)

    def drawn_like(self) -> dict[str, Any]:
        """Return how values like these are generated: within their range, with their deviation.

        Raises:
            UsageError: the values are not finite, or are all equal.
        """
        values = self.tensor().double()
        low, high = float(values.min()), float(values.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise UsageError(f"{self.where} contains an infinity or NaN; pass an example with finite values")
        return {"span": [low, high], "scale": float(values.std(correction=0)) if low < high else abs(low)}

    def kept(self) -> dict[str, Any]:
        """Return the values as JSON.

        Raises:
            UsageError: they are too many.
        """
        import torch

        values = self.tensor().cpu()
        if values.dtype == torch.bool:
            values = values.to(torch.uint8)
        raw = zlib.compress(values.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), 6)
        if len(raw) > MOST_STORED:
            raise UsageError(
                f"the values of {self.where} take {len(raw) / 2**20:.0f} MiB compressed, and a study keeps at most "
                f"{MOST_STORED / 2**20:.0f} MiB; pass draw={{{self.name!r}: (low, high)}} to generate values instead"
            )
        return {
            "dtype": str(values.dtype).removeprefix("torch."), "shape": list(self.shape),
            "data": base64.b64encode(raw).decode(),
        }  # fmt: skip
