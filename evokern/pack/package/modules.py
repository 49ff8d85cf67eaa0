"""The operator in modules of a model, in place of their forward functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def replace_modules(
    model: torch.nn.Module, operator: Any, function: Callable[..., Any], fits: Callable[[torch.nn.Module], bool]
) -> int:
    """Let the operator compute modules of one input and the parameter `weight`; return the number of modules.

    The modules keep their parameters and names. Calls that the operator does not take run the earlier forward function.

    Args:
        model: the model, which is changed.
        operator: the operator.
        function: function of the package, which takes the input as a matrix, and the weight.
        fits: whether a module computes what the operator computes.
    """
    made: dict[type, type] = {}

    def forward(self: Any, x: torch.Tensor) -> Any:
        rows = x.reshape(-1, x.shape[-1]) if x.is_contiguous() and x.dim() > 0 else x
        reason = "" if x.is_contiguous() else "the input is not contiguous"
        result = operator.run_instead(function, [rows, self.weight], {}, lambda: None, reason)
        return self._unpacked.forward(self, x) if result is None else result.view(*x.shape[:-1], result.shape[-1])

    count = 0
    for module in list(model.modules()):
        own = type(module)
        if hasattr(own, "_unpacked") or not fits(module):
            continue
        if own not in made:
            made[own] = type(f"Packed{own.__name__}", (own,), {"forward": forward, "_unpacked": own})
        module.__class__ = made[own]
        count += 1
    return count


def is_linear(module: torch.nn.Module) -> bool:
    """Return whether a module is a linear layer without a bias; a bias would need another kernel."""
    return type(module) is torch.nn.Linear and module.bias is None


def is_rmsnorm(module: torch.nn.Module, eps: float) -> bool:
    """Return whether a module computes torch's `rms_norm` with its weight over the last dimension.

    A module of another library counts if its results for random rows are those of torch.
    """
    names = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    weight = getattr(module, "weight", None)
    if names != ["weight"] or not isinstance(weight, torch.Tensor) or weight.dim() != 1 or weight.is_meta:
        return False
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, len(weight), generator=generator) * torch.tensor([[1.0], [0.02], [0.002], [30.0]])
    rows = rows.to(weight)
    try:
        with torch.no_grad():
            found = module(rows)
            wanted = torch.rms_norm(rows.double(), (len(weight),), weight.double(), eps)
    except (RuntimeError, TypeError, ValueError):  # it takes other arguments
        return False
    if not isinstance(found, torch.Tensor) or found.shape != rows.shape:
        return False
    unit = 4 * torch.finfo(weight.dtype).eps
    return torch.allclose(found.double(), wanted, rtol=max(unit, 1e-4), atol=unit * 1e-2)
