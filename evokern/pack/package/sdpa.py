"""The operator in place of torch's `scaled_dot_product_attention`, and as an attention function of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

_TORCH = torch._C._nn.scaled_dot_product_attention


class Sdpa:
    """Attention that the operator computes if it takes the call; torch computes all other calls."""

    def __init__(self, operator: Any, function: Callable[..., Any], causal: str, masked: bool) -> None:
        """Create the attention.

        Args:
            operator: the operator.
            function: function of the package.
            causal: argument of the function for a causal mask; empty without one.
            masked: whether the mask is causal, if there is no such argument.
        """
        self._operator, self._function, self._causal, self._masked = operator, function, causal, masked

    def _call(
        self, tensors: list[torch.Tensor], causal: bool, scale: float | None, copy: bool, reason: str,
        otherwise: Callable[[], Any],
    ) -> Any:  # fmt: skip
        query, key, value = tensors
        if not reason and not query.shape == key.shape == value.shape:
            reason = "query, key and value have different shapes"
        if not reason and scale is not None and abs(scale * query.shape[-1] ** 0.5 - 1) > 1e-6:
            reason = "the scale is not 1/sqrt(D)"
        if not reason and not self._causal and causal != self._masked:
            reason = f"the kernel is for is_causal={self._masked}"
        arguments = {self._causal: int(causal)} if self._causal else {}
        return self._operator.run_instead(self._function, tensors, arguments, otherwise, reason, copy=copy)

    @contextmanager
    def replace_sdpa(self, *, copy: bool = False) -> Iterator[None]:
        """Replace `torch.nn.functional.scaled_dot_product_attention`, in all threads, until the block ends.

        Calls that the operator does not take go to torch. `stats()` counts them with the reason.

        Args:
            copy: whether to copy inputs that are not contiguous; otherwise such calls go to torch.
        """

        def attention(
            query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
            is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
        ) -> Any:  # fmt: skip
            reason = "there is a mask" if attn_mask is not None else "there is dropout" if dropout_p else ""

            def otherwise() -> Any:
                return _TORCH(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

            if not torch.compiler.is_dynamo_compiling() and self._operator.in_baseline:
                return otherwise()
            return self._call([query, key, value], is_causal, scale, copy, reason, otherwise)

        earlier = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = attention
        try:
            yield
        finally:
            torch.nn.functional.scaled_dot_product_attention = earlier

    def register_attention(self, name: str, *, copy: bool = True) -> None:
        """Add the operator to the attention functions of transformers, for `attn_implementation=name`.

        Calls that the operator does not take go to the function `sdpa` of transformers.

        Args:
            name: name of the attention function.
            copy: whether to copy inputs that are not contiguous, as those of most models; else they go to `sdpa`.
        """
        library, functions, masks = map(
            import_module, ("transformers", "transformers.modeling_utils", "transformers.masking_utils")
        )
        original = functions.ALL_ATTENTION_FUNCTIONS["sdpa"]

        def attention(
            module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any,
            dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None, **more: Any,
        ) -> tuple[Any, None]:  # fmt: skip
            def otherwise() -> Any:
                return original(
                    module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal,
                    **more,
                )[0]  # fmt: skip

            # As in transformers: without a mask, a module is causal unless it says otherwise.
            causal = query.shape[2] > 1 and getattr(module, "is_causal", True) if is_causal is None else is_causal
            reason = "there is a mask" if attention_mask is not None else "there is dropout" if dropout else ""
            if any(value is not None for key, value in more.items() if key in ("sliding_window", "softcap", "s_aux")):
                reason = "the model limits or changes the scores"
            found = self._call([query, key, value], bool(causal), scaling, copy, reason, lambda: None)
            return (otherwise() if found is None else found.transpose(1, 2).contiguous()), None

        library.AttentionInterface.register(name, attention)
        library.AttentionMaskInterface.register(name, masks.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
