"""One reading of a draft: its buffers with roles and shapes, and the values of a run and of a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from evokern.declaration.as_data.declared import Passing
from evokern.declaration.kernel import DTYPE_BYTES, SIGNIFICAND_BITS
from evokern.errors import UsageError
from evokern.scaffold.evidence import INDEX_LIMIT
from evokern.scaffold.plan import DraftTensor, Plan, whole
from evokern.scaffold.probe import CONSTANT, MOST_STATED, Prober, Run, contents_of, numpy_type
from evokern.scaffold.problems import LIMIT
from evokern.tuning.reference import order_of
from evokern.tuning.stated_reference import takes_by_name

if TYPE_CHECKING:
    import torch

GIVEN = ("input", "inout", "constant")
"""Roles of buffers that a reference gets."""
_FRACTION = {"f64": 1e-9, "f32": 1e-3, "f16": 1e-2, "bf16": 5e-2}
"""Difference that counts as equal here, relative to an element and the mean square; `check` applies the bound."""


@dataclass(frozen=True)
class Reading:
    """Launch and buffers of a draft."""

    plan: Plan
    tensors: tuple[DraftTensor, ...]

    @property
    def outputs(self) -> tuple[DraftTensor, ...]:
        """The buffers that the reference returns."""
        return tuple(t for t in self.tensors if t.role in ("output", "inout"))

    @property
    def given(self) -> tuple[DraftTensor, ...]:
        """The buffers that the reference gets, in the order of the kernel's arguments."""
        by_name = {t.name: t for t in self.tensors if t.role in GIVEN}
        names = [a.name for a in (*self.plan.constants, *self.plan.arguments)]
        return tuple(by_name[name] for name in names if name in by_name)

    def size(self, axis: str, problem: Mapping[str, int]) -> int:
        """Return the extent of an axis at a problem."""
        return self.plan.value(axis.replace(INDEX_LIMIT, str(LIMIT)), self.plan.defaults, problem)

    def shapes(self, problem: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each buffer at a problem."""
        return {t.name: tuple(self.size(axis, problem) for axis in t.shape) for t in self.tensors}

    def run(self, prober: Prober, problem: Mapping[str, int], blocks: Sequence[int] | None = None) -> Run:
        """Run the default candidate on the inputs that `inputs` returns."""
        exact = {name: prod(shape) for name, shape in self.shapes(problem).items()}
        return prober.run(self.plan, problem, limit=LIMIT, exact=exact, keep=True, blocks=blocks)

    def order(self, function: Callable[..., Any], what: str) -> tuple[str, ...]:
        """Return the names of the arguments that a reference takes.

        Args:
            function: the reference.
            what: the reference in messages.

        Raises:
            UsageError: it takes other arguments than the inputs, or inputs and numbers.
        """
        inputs = tuple(t.name for t in self.given)
        numbers = {a.name: a.expression or "" for a in self.plan.arguments if not a.is_tensor}
        every = [a.name for a in (*self.plan.constants, *self.plan.arguments)]
        passed = [name for name in every if name in inputs or name in numbers]
        try:
            order = tuple(map(str, order_of(function, inputs, {n: n for n in numbers}, passed)))  # type: ignore[misc]
        except UsageError as error:
            named = takes_by_name(function, passed)
            if named is None:
                raise UsageError(
                    f"{what} must take the kernel's inputs, ({', '.join(inputs)}), or name its parameters after "
                    f"arguments of the kernel: {', '.join(passed)}"
                ) from error
            order = tuple(named)
        for name in order:
            if "c." in numbers.get(name, ""):
                raise UsageError(f"{what} takes {name}, which depends on a gene ({numbers[name]}); remove it")
        return order

    def passing(self, order: Sequence[str], problem: Mapping[str, int]) -> Passing:
        """Return how arguments reach the reference at a problem."""
        plan, shapes = self.plan, self.shapes(problem)
        numbers = {a.name: plan.number(a, plan.defaults, problem) for a in plan.arguments if not a.is_tensor}
        return Passing(
            inputs=tuple(t.name for t in self.given),
            outputs=tuple(t.name for t in self.outputs),
            order=tuple(numbers.get(name, name) for name in order),
            dtypes={t.name: "int64" for t in self.given if whole(t.dtype)},
            framework="torch",
            shapes={t.name: shapes[t.name] for t in self.outputs},
        )

    def inputs(self, problem: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Return the contents of the inputs of a run in float64."""
        shapes, roles = self.shapes(problem), {t.name: t.role for t in self.tensors}
        limit = self.plan.index_limit(LIMIT, problem)
        places = [*enumerate(self.plan.arguments), *((CONSTANT, one) for one in self.plan.constants)]
        return {
            one.name: _tensor(
                contents_of(one, prod(shapes[one.name]), limit, place, MOST_STATED), one.dtype
            ).reshape(shapes[one.name])
            for place, one in places
            if one.is_tensor and roles.get(one.name) in GIVEN
        }  # fmt: skip

    def difference(self, returned: Mapping[str, torch.Tensor], run: Run, problem: Mapping[str, int]) -> str:
        """Return the first element that a run wrote differently than a reference, in words; empty if there is none."""
        import numpy as np
        import torch

        assert run.contents is not None, "the contents were requested"
        for tensor in self.outputs:
            expected = returned[tensor.name].reshape(-1).to(torch.float64)
            contents = np.frombuffer(run.contents[tensor.name], numpy_type(tensor.dtype))
            actual = _tensor(contents, tensor.dtype)[: expected.numel()]
            written = torch.from_numpy(run.written[tensor.name].copy())[: expected.numel()]
            wrong = ~_close(actual, expected, tensor.dtype) & written
            if wrong.any():
                at = int(wrong.nonzero()[0])
                place = ", ".join(map(str, _place(at, self.shapes(problem)[tensor.name])))
                return (
                    f"{tensor.name}[{place}] is {float(actual[at]):.6g} in a run of the default candidate at "
                    f"{in_words(problem)}, and {float(expected[at]):.6g} in the reference"
                )
        return ""


def in_words(problem: Mapping[str, int]) -> str:
    """Return a problem as text."""
    return " ".join(f"{name}={value}" for name, value in problem.items())


def _tensor(data: Any, dtype: str) -> torch.Tensor:
    """Return an array of `contents_of` as a float64 tensor."""
    import numpy as np
    import torch

    from evokern.gate.data import torch_dtype

    if whole(dtype) or dtype in ("f16", "f32", "f64"):
        return torch.from_numpy(data.astype(np.float64))
    raw = data.copy().view(np.int16 if DTYPE_BYTES[dtype] == 2 else np.uint8)
    return torch.from_numpy(raw).view(torch_dtype(dtype)).to(torch.float64)


def _close(actual: torch.Tensor, expected: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return which elements are equal but for rounding."""
    if dtype not in SIGNIFICAND_BITS:
        return actual == expected
    finite = expected[expected.isfinite()]
    scale = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    near = (actual - expected).abs() <= _FRACTION.get(dtype, 0.2) * (expected.abs() + scale)
    return near | (actual == expected) | (actual.isnan() & expected.isnan())


def _place(at: int, shape: Sequence[int]) -> list[int]:
    """Return the indices of an element of a row-major array."""
    place: list[int] = []
    for extent in reversed(shape):
        place.insert(0, at % extent)
        at //= extent
    return place
