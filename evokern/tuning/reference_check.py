"""First call of a reference: on tensors without data if it accepts them, otherwise on the examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evokern.declaration.as_data.declared import Passing
from evokern.errors import KERNEL_CODE_EXCEPTIONS, KernelError, UsageError
from evokern.tuning.arguments import TunedArgument
from evokern.tuning.reference import described, name_of


def check_reference(function: Callable[..., Any], passing: Passing, arguments: Sequence[TunedArgument]) -> float:
    """Call the reference once on the examples, and check the shapes and dtypes that it returns.

    Returns:
        Its floating-point operations, as far as they bound the time of a kernel from below; 0 if unknown.

    Raises:
        UsageError: it raises, or returns other shapes or dtypes than the outputs have.
    """
    import torch

    outputs = {one.name: one for one in arguments if one.name in passing.outputs}
    examples = {one.name: one for one in arguments if one.name in passing.inputs}
    found, flops = None, 0.0
    if passing.framework == "torch":  # tensors without data cost nothing, but not every function accepts them
        shaped = {n: torch.empty(one.shape, dtype=torch.float64, device="meta") for n, one in examples.items()}
        try:
            found = passing.call(function, shaped)
            flops = _flops(lambda: passing.call(function, shaped))
        except KERNEL_CODE_EXCEPTIONS:
            found = None
    if found is None:
        given = {name: one.example.tensor().to(torch.float64) for name, one in examples.items() if one.example}
        try:
            found = passing.call(function, given)
        except KernelError as error:
            raise UsageError(str(error)) from error
        except KERNEL_CODE_EXCEPTIONS as error:
            raise UsageError(
                f"{described(name_of(function))} raised {type(error).__name__}: {error} on the float64 inputs "
                f"({', '.join(f'{n} {tuple(one.shape)}' for n, one in given.items())})"
            ) from error
    for name, value in found.items():
        wanted = outputs[name]
        if tuple(value.shape) != wanted.shape:
            raise UsageError(
                f"{described(name_of(function))} returned shape {tuple(value.shape)} for output {name}, but "
                f"{wanted.where} has shape {wanted.shape}"
            )
        if wanted.dtype[0] not in "iu" and value.dtype != torch.float64:
            raise UsageError(
                f"{described(name_of(function))} returned {str(value.dtype).removeprefix('torch.')} for output {name}; "
                "it gets float64 inputs and must compute in float64, without a conversion to another type"
            )
    return flops


def _flops(run: Callable[[], Any]) -> float:
    """Return the operations of matrix products and convolutions; 0 if a mask may make a kernel skip some."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils.flop_counter import FlopCounterMode

    masked = False

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal masked
            if func is torch.nn.functional.scaled_dot_product_attention:
                masked |= len(args) > 3 or bool({"attn_mask", "is_causal"} & set(kwargs or {}))
            masked |= getattr(func, "__name__", "") in ("tril", "triu", "where", "masked_fill", "__getitem__")
            return func(*args, **(kwargs or {}))

    counter = FlopCounterMode(display=False)
    with counter, Watch():
        run()
    return 0.0 if masked else float(counter.get_total_flops())
