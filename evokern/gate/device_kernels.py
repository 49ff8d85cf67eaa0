"""Interface for kernels of a device that need one pass over memory where torch needs several."""

from __future__ import annotations

from typing import Literal, Protocol

import torch

from evokern.declaration.kernel import Tolerance

NonFinite = Literal["unexpected", "passed_over", "judged"]
"""Treatment of elements whose reference is an infinity or NaN (`evokern.gate.comparison.Rule.prepare_pair`).

`unexpected`: there are none; `passed_over`: they are ignored; `judged`: the output must have the same value."""


class DeviceKernels(Protocol):
    """Kernels for the device of the gate's buffers; their results are equal to the results of torch."""

    def cipher(self, words: torch.Tensor, out: torch.Tensor, key: int) -> None:
        """XOR contiguous 8-byte words with the stream of a key and write them to `out`, which may be `words`."""

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
        """Compare one call's output with its reference.

        Args:
            got: the output, flat.
            expected: the reference, float64, flat.
            error: bound on the error before rounding, bfloat16 or float64, flat; None for 0.
            dtype: dtype of the output.
            tolerance: tolerance of the output.
            nonfinite: treatment of elements whose reference is an infinity or NaN.

        Returns:
            Numbers of the parts, in the order listed at `evokern.gate.comparison.NUMBERS_PER_CALL`, one row for each
            number and one column for each part; None if torch must compare this dtype.
        """
