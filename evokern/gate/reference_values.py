"""Float64 references by output, together with the bounds on the errors of correct results."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class ReferenceValues(dict[str, torch.Tensor]):
    """Float64 references by output, with the bounds on their errors."""

    def __init__(self, values: Mapping[str, torch.Tensor], errors: Mapping[str, torch.Tensor] | None = None) -> None:
        super().__init__(values)
        self.errors = dict(errors or {})
        """Output → bound on the error before rounding, broadcastable to the output; outputs without a bound, or whose
        bound is 0, are absent."""
