"""Kernels that seal and compare buffers at memory bandwidth; torch needs many passes for the same work.

On large problems, these steps would dominate the gate's time (docs/lab/2026-11-27-timing.md#gate-kernels).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver

from evokern.compile.build import compile_internal
from evokern.declaration.kernel import Tolerance
from evokern.device.gpu.driver_call import check
from evokern.gate.comparison import NUMBERS_PER_PART
from evokern.gate.data import largest_finite
from evokern.gate.device_kernels import NonFinite
from evokern.hardware.profiles import Profile

SOURCE = Path(__file__).with_suffix(".cu")
"""Source of the kernels."""
DTYPES = {"f16": 0, "bf16": 1, "f32": 2}
"""Output dtypes that `compare` supports, with their numbers in the kernel."""
NONFINITE: Mapping[NonFinite, int] = {"unexpected": 0, "passed_over": 1, "judged": 2}
"""Numbers in the kernel for the check of elements whose reference is an infinity or NaN."""
_ERROR_DTYPES = (torch.bfloat16, torch.float64)
_THREADS = 256
_BLOCKS_AN_SM = 16
"""Blocks per SM, enough to hide memory latency; blocks loop over the remaining elements."""


class GateKernels:
    """Kernels of the gate, loaded once into this process's context."""

    def __init__(self, profile: Profile) -> None:
        """Compile and load the kernels.

        Raises:
            DeviceError: a kernel does not compile.
        """
        text, self._functions = SOURCE.read_text("utf-8"), {}
        for entry in ("xor_stream", "compare"):
            program = compile_internal(text, SOURCE.name, entry, profile)
            module = check(driver.cuModuleLoadData(program.cubin))
            self._functions[entry] = module, check(driver.cuModuleGetFunction(module, program.lowered[entry].encode()))
        self._blocks = _BLOCKS_AN_SM * profile.sms

    def cipher(self, words: torch.Tensor, out: torch.Tensor, key: int) -> None:
        """Enqueue the XOR of words with the stream of a key.

        Args:
            words: int64, contiguous.
            out: same length, contiguous; may be `words` itself.
            key: 64 bits.
        """
        count = words.numel()
        arguments = (ctypes.c_void_p(words.data_ptr()), ctypes.c_void_p(out.data_ptr()), ctypes.c_uint64(count),
                     ctypes.c_uint32(key & 0xFFFFFFFF), ctypes.c_uint32(key >> 32))  # fmt: skip
        self._launch("xor_stream", -(-count // (2 * _THREADS)), arguments)

    def compare(
        self,
        got: torch.Tensor,
        expected: torch.Tensor,
        error: torch.Tensor | None,
        dtype: str,
        tolerance: Tolerance,
        *,
        nonfinite: NonFinite,
    ) -> torch.Tensor | None:
        """Compare the output of one call with its reference; see `DeviceKernels.compare`."""
        if dtype not in DTYPES:
            return None
        got, expected = got.contiguous(), expected.contiguous()
        bound = None if error is None else error.contiguous()
        if bound is not None and bound.dtype not in _ERROR_DTYPES:
            return None
        count = got.numel()
        blocks = self._blocks_for(-(-count // _THREADS))
        out = torch.empty((NUMBERS_PER_PART, blocks), dtype=torch.float64, device=got.device)
        arguments = (ctypes.c_void_p(got.data_ptr()), ctypes.c_void_p(expected.data_ptr()),
                     ctypes.c_void_p(0 if bound is None else bound.data_ptr()),
                     ctypes.c_uint32(0 if bound is None else bound.element_size()), ctypes.c_uint64(count),
                     ctypes.c_uint32(DTYPES[dtype]), ctypes.c_double(tolerance.atol), ctypes.c_double(tolerance.rtol),
                     ctypes.c_double(largest_finite(dtype)), ctypes.c_uint32(NONFINITE[nonfinite]),
                     ctypes.c_void_p(out.data_ptr()))  # fmt: skip
        self._launch("compare", blocks, arguments)
        return out

    def _blocks_for(self, wanted: int) -> int:
        return max(1, min(self._blocks, wanted))

    def _launch(self, entry: str, blocks: int, arguments: Sequence[Any]) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        # The driver copies the parameters before the call returns.
        check(
            driver.cuLaunchKernel(
                self._functions[entry][1], self._blocks_for(blocks), 1, 1, _THREADS, 1, 1, 0,
                torch.cuda.current_stream().cuda_stream, ctypes.addressof(pointers), 0,
            )
        )  # fmt: skip
