"""Operations of torch that a kernel computes, recognised by the values of its reference.

A package contains a function that replaces the operation in a model only if both agree on random inputs. Neither the
kernel's name nor its declaration decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.small_problems import small_problem
from evokern.errors import KERNEL_CODE_EXCEPTIONS
from evokern.pack.signature import Signature

if TYPE_CHECKING:
    import torch

MOST_FLOPS = 2e10
"""Most operations of a reference that is called."""
MOST_ELEMENTS = 2**25
"""Most elements of a buffer."""


@dataclass(frozen=True)
class TorchOperation:
    """An operation of torch that the operator computes."""

    name: str
    """`sdpa`, `linear` or `rmsnorm`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Facts that the code of the package needs."""


def operation_of(kernel: Kernel, signature: Signature, problem: Problem, config: Config) -> TorchOperation | None:
    """Return the operation of torch that a kernel computes, or None.

    Args:
        kernel: the kernel.
        signature: signature of the operator.
        problem: a problem of the study.
        config: a candidate.
    """
    if len(signature.outputs) != 1 or any(buffer.changed for buffer in signature.inputs):
        return None
    ranks = [len(buffer.shape) for buffer in signature.inputs]
    known: dict[tuple[int, ...], Callable[[_Values], TorchOperation | None]] = {
        (4, 4, 4): _sdpa, (2, 2): _linear, (2, 1): _rmsnorm,
    }  # fmt: skip
    if tuple(ranks) not in known or len(signature.arguments) > (ranks == [4, 4, 4]):
        return None
    small = kernel.workload.small_problems
    try:
        at = small_problem(kernel, small[0], problem) if small else problem
        return known[tuple(ranks)](_Values(kernel, signature, at, config))
    except _NoValuesError:
        return None


class _NoValuesError(Exception):
    """The reference is too large to run, or does not run with random values."""


class _Values:
    """Random inputs of a problem, and the reference at them."""

    def __init__(self, kernel: Kernel, signature: Signature, problem: Problem, config: Config) -> None:
        self.kernel, self.signature, self.problem, self.config = kernel, signature, problem, config
        if kernel.workload.flops(problem) > MOST_FLOPS:
            raise _NoValuesError

    def inputs(self, scale: float = 1.0) -> list[torch.Tensor]:
        """Return float64 inputs in the order of the operator."""
        import torch

        tensors = self.kernel.workload.tensors(self.problem, self.config)
        found = [tensors[buffer.declared] for buffer in self.signature.inputs]
        if any(tensor.elements > MOST_ELEMENTS or tensor.dtype[0] in "iu" for tensor in found):
            raise _NoValuesError
        generator = torch.Generator().manual_seed(1)
        return [scale * torch.randn(one.shape, generator=generator, dtype=torch.float64) for one in found]

    def result(self, inputs: Sequence[torch.Tensor], changes: Mapping[str, int] = MappingProxyType({})) -> torch.Tensor:
        """Return the result of the reference."""
        problem = self.kernel.problem({**self.problem, **changes})
        named = {buffer.declared: one for buffer, one in zip(self.signature.inputs, inputs, strict=True)}
        try:
            made = self.kernel.workload.reference(problem, named)
        except KERNEL_CODE_EXCEPTIONS as error:
            raise _NoValuesError from error
        return made[self.signature.outputs[0].declared].double()


def _close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    import torch

    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-6, atol=1e-9)


def _sdpa(values: _Values) -> TorchOperation | None:
    """Recognise attention without a mask, with a causal mask, or with an argument that chooses."""
    import torch

    query, key, value = values.inputs()

    def same(masked: bool, changes: Mapping[str, int]) -> bool:
        wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=masked)
        return _close(values.result([query, key, value], changes), wanted)

    if not values.signature.arguments:
        masked = next((causal for causal in (False, True) if same(causal, {})), None)
        return None if masked is None else TorchOperation("sdpa", {"causal": "", "masked": masked})
    argument = values.signature.arguments[0]
    if same(False, {argument.field: 0}) and same(True, {argument.field: 1}):
        return TorchOperation("sdpa", {"causal": argument.name, "masked": False})
    return None


def _linear(values: _Values) -> TorchOperation | None:
    import torch

    x, weight = values.inputs()
    if x.shape[1] != weight.shape[1]:
        return None
    same = _close(values.result([x, weight]), torch.nn.functional.linear(x, weight))
    return TorchOperation("linear") if same else None


def _rmsnorm(values: _Values) -> TorchOperation | None:
    """Recognise a normalisation by the root mean square; rows of small values show its constant eps."""
    import torch

    x, weight = values.inputs()
    small = 1e-4 * x
    divisors = small * weight / values.result([small, weight])
    eps = float(f"{float((divisors**2 - small.square().mean(-1, keepdim=True)).median()):.3g}")
    same = (_close(values.result([one, weight]), torch.rms_norm(one, (x.shape[1],), weight, eps)) for one in (small, x))
    return TorchOperation("rmsnorm", {"eps": eps}) if eps >= 0 and all(same) else None
