"""What a device may bring to the gate: kernels that do in one pass over memory what torch does in many."""

from __future__ import annotations

from typing import Literal, Protocol

import torch

from evokern.declaration.kernel import Tolerance

NonFinite = Literal["unexpected", "passed_over", "judged"]
"""What is asked of elements whose reference is an infinity or NaN: there are none; on `edges` inputs nothing, or the
same answer (`evokern.gate.comparison.Rule.prepared`)."""


class OwnKernels(Protocol):
    """Kernels for the device on which the gate's buffers live; what they find is what torch finds."""

    def cipher(self, words: torch.Tensor, out: torch.Tensor, key: int) -> None:
        """XOR contiguous words of 8 bytes with the stream of a key into another tensor, or in place."""

    def compare(
        self,
        got: torch.Tensor,
        expected: torch.Tensor,
        dtype: str,
        tolerance: Tolerance,
        *,
        nonfinite: NonFinite,
    ) -> torch.Tensor | None:
        """Compare one call's output with its reference.

        Args:
            got: what was computed, flat.
            expected: the reference, float64, flat.
            dtype: of the output.
            tolerance: what is allowed of it.
            nonfinite: what is asked of elements whose reference is an infinity or NaN.

        Returns:
            Of parts of the elements the numbers that `evokern.gate.comparison.PARTS` lists, shape (`PARTS`, parts);
            None where the dtype takes torch.
        """
