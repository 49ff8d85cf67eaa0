"""What a device may bring to the gate: kernels that do in one pass over memory what torch does in many."""

from __future__ import annotations

from typing import Protocol

import torch

from evokern.declaration.kernel import Tolerance


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
        pass_over_nonfinite: bool,
    ) -> torch.Tensor | None:
        """Compare one call's output with its reference.

        Args:
            got: what was computed, flat.
            expected: the reference, float64, flat.
            dtype: of the output.
            tolerance: what is allowed of it.
            pass_over_nonfinite: elements whose reference is an infinity or NaN are right whatever was computed.

        Returns:
            Of parts of the elements the numbers that `evokern.gate.comparison.PARTS` lists, shape (`PARTS`, parts);
            None where the dtype takes torch.
        """
