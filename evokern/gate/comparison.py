"""Comparison of a candidate's outputs with the references, reduced to a few numbers on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from evokern.declaration.kernel import Kernel, Tensor, Tolerance
from evokern.gate.data import is_float, largest_finite
from evokern.gate.device_kernels import DeviceKernels, NonFinite
from evokern.gate.sealed import ReferenceValues
from evokern.study.settings import InputSet

ELEMENTS_AT_ONCE = 1 << 24
"""Maximum number of elements in one comparison, which needs about 60 bytes per element."""
MAX_TOGETHER = ELEMENTS_AT_ONCE
"""Maximum number of elements, over all calls, of an output that is compared in one step."""
NUMBERS_PER_CALL = 8
"""Numbers per output of a call; `compare` lists them."""
NUMBERS_PER_PART = 10
"""Numbers per part of an output.

In order: number of bad elements; index, value, reference, allowed error and excess error of the worst element; largest
error over the allowed error; sums of squares of errors, of references, and of errors over the allowed error."""


@dataclass(frozen=True)
class Worst:
    """The element of an output that exceeds the allowed error most, or comes closest to it."""

    output: str
    """Name of the output."""
    run: int
    """Run, from 0."""
    set: int
    """Input set, from 0."""
    bad: int
    """Number of elements outside the tolerance in this output, run and set."""
    index: tuple[int, ...]
    """Index of the element."""
    got: float
    """Computed value; an infinity becomes the largest finite value."""
    expected: float
    """Reference value."""
    allowed: float
    """Largest allowed error of the element."""
    relative_error: float
    """Relative Frobenius error of the output in this run and set."""
    spent: float
    """Root mean square of error / allowed error; far below 1 for rounding errors, larger for systematic errors."""
    most: float
    """Largest ratio of error to allowed error in the output; it may belong to an element other than `index`."""

    @property
    def over(self) -> float:
        """Ratio of the error to the allowed error; infinite for NaN."""
        error = abs(self.got - self.expected)
        if not error <= self.allowed:
            return error / self.allowed if self.allowed and error == error else float("inf")
        return error / self.allowed if self.allowed else 0.0


@dataclass(frozen=True)
class Findings:
    """Results of one comparison, copied from the device in one synchronisation."""

    worst: tuple[Worst, ...]
    """Worst element of each output and call."""
    guards_changed: tuple[int, ...]
    """Changed guard bytes around outputs and workspaces, per call."""
    inputs_changed: tuple[int, ...]
    """Changed 8-byte words of the inputs and the guards around them, per set."""
    differing: Mapping[str, tuple[int, ...]]
    """Output → number of bytes that differ from the first run, for each call of a later run."""


@dataclass(frozen=True)
class Rule:
    """Rule for judging the elements of one output."""

    tensor: Tensor
    """The output."""
    tolerance: Tolerance
    """Tolerance of the output."""
    nonfinite: bool
    """Whether the output must match infinities and NaN of the reference on `edges` inputs; otherwise they are
    ignored."""

    @property
    def nonfinite_treatment(self) -> NonFinite:
        """Treatment of elements of `edges` inputs whose reference is an infinity or NaN."""
        return "judged" if self.nonfinite and is_float(self.tensor.dtype) else "passed_over"

    def allowed(self, expected: torch.Tensor, error: torch.Tensor | None) -> torch.Tensor:
        """Return the largest allowed error of each element.

        Args:
            expected: the reference, in float64.
            error: the bound on the error before rounding (`evokern.gate.sealed.ReferenceValues`); None for 0.
        """
        return allowed_error(self.tolerance, expected, error)

    def prepare_pair(
        self, got: torch.Tensor, expected: torch.Tensor, edges: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output and the reference in float64, prepared so that their difference is the error.

        If the exact result exceeds the range of the dtype, an infinity and the largest value are both correct. Both
        values are clamped for this reason.

        On `edges` inputs the reference may be an infinity or NaN. If the kernel declares such values (`nonfinite`),
        only the same value is correct: both become 0 if they match, and the error is NaN otherwise.

        Args:
            got: the output, in its own dtype.
            expected: the reference, in float64.
            edges: mask of the calls with `edges` inputs, broadcastable to `got`; None if there are none.
        """
        limit = largest_finite(self.tensor.dtype)
        wide = got.to(torch.float64)
        if edges is None:
            return wide.clamp_(-limit, limit), expected.clamp(-limit, limit)
        odd = ~expected.isfinite() & edges
        alike = odd
        if self.nonfinite_treatment == "judged":
            alike = odd & ((wide.isnan() & expected.isnan()) | (wide == expected))
            if self.tensor.dtype == "e4m3":  # has no infinity: the largest value or NaN represents it
                alike |= odd & expected.isinf() & (wide.isnan() | (wide == expected.sign() * limit))
        clamped = wide.clamp(-limit, limit).masked_fill_(alike, 0.0)
        return clamped, expected.clamp(-limit, limit).masked_fill_(alike, 0.0).masked_fill_(odd & ~alike, math.nan)

    def clamp_reference(self, expected: torch.Tensor) -> torch.Tensor:
        """Return the reference clamped to the range of the dtype, without rounding it."""
        limit = largest_finite(self.tensor.dtype)
        return torch.where(expected.isfinite(), expected.clamp(-limit, limit), expected)

    def over(self, got: torch.Tensor, expected: torch.Tensor, error: torch.Tensor | None) -> torch.Tensor:
        """Return the error of each element divided by its tolerance, for a call with a finite reference."""
        value, exact = self.prepare_pair(got, expected, None)
        return error_over_tolerance(value, exact, self.allowed(exact, error))


def allowed_error(tolerance: Tolerance, expected: torch.Tensor, error: torch.Tensor | None) -> torch.Tensor:
    """Return the largest allowed error of each element; see `Rule.allowed`."""
    allowed = expected.abs().mul_(tolerance.rtol).add_(tolerance.atol)
    return allowed if error is None else allowed.add_(error)


def compare_calls(
    outputs: Mapping[str, torch.Tensor],
    rules: Mapping[str, Rule],
    calls: Sequence[tuple[int, int]],
    edges: Sequence[bool],
    reference: Callable[[int], ReferenceValues],
    own: DeviceKernels | None = None,
) -> list[torch.Tensor]:
    """Compare every output of every call with its reference; large outputs are compared one input set at a time.

    Args:
        outputs: outputs by name, shape (calls, *shape).
        rules: rule of each output.
        calls: run and input set of each call: the sets of the first run in order, then the sets of later runs.
        edges: whether each input set is of kind `edges`.
        reference: function that returns the references of an input set.
        own: evokern's kernels for this device, which take one call at a time; None uses torch.

    Returns:
        A tensor of shape (8, calls) for each output; `compare` describes its rows.
    """
    flags = torch.tensor([[edges[index]] for _, index in calls])
    if max(view.numel() for view in outputs.values()) <= MAX_TOGETHER:
        references = [reference(index) for index in range(len(edges))]
        sets = [index for _, index in calls]
        found = []
        for name, view in outputs.items():
            whole, bounds = torch.stack([one[name].flatten() for one in references]), _stacked_errors(name, references)
            if len(calls) != len(edges):
                whole, bounds = whole[sets], None if bounds is None else bounds[sets]
            flag = flags.to(view.device) if any(edges) else None
            found.append(compare(view.flatten(1), whole, bounds, rules[name], flag))
        return found
    columns: dict[tuple[str, int], torch.Tensor] = {}
    parts: dict[str, dict[int, torch.Tensor]] = {name: {} for name in outputs}
    for index in range(len(edges)):
        one = reference(index)
        for row in (row for row, (_, of) in enumerate(calls) if of == index):
            for name, view in outputs.items():
                flat, expected, rule = view[row].view(1, -1), one[name].reshape(1, -1), rules[name]
                error = one.errors.get(name)
                bounds = None if error is None else error.reshape(1, -1)
                if own is not None:
                    asked = rule.nonfinite_treatment if edges[index] else "unexpected"
                    numbers = own.compare(
                        flat[0], expected[0], None if bounds is None else bounds[0], rule.tensor.dtype, rule.tolerance,
                        nonfinite=asked,
                    )  # fmt: skip
                    if numbers is not None:
                        parts[name][row] = numbers
                        continue
                flag = flags[row : row + 1].to(view.device) if edges[index] else None
                columns[name, row] = compare(flat, expected, bounds, rule, flag)
    for name, rows in parts.items():
        if rows:
            joined = _joined(torch.stack(list(rows.values()), -1), outputs[name][0].numel())
            columns |= {(name, row): joined[:, place : place + 1] for place, row in enumerate(rows)}
    return [torch.cat([columns[name, row] for row in range(len(calls))], 1) for name in outputs]


def _stacked_errors(name: str, references: Sequence[ReferenceValues]) -> torch.Tensor | None:
    """Return the bounds of an output for all sets, shape (sets, elements); None if all are 0."""
    found = [one.errors.get(name) for one in references]
    like = next((one for one in found if one is not None), None)
    if like is None:
        return None
    return torch.stack([torch.zeros_like(like).flatten() if one is None else one.flatten() for one in found])


def found_worst(
    numbers: Sequence[float], calls: Sequence[tuple[int, int]], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Worst, ...]:
    """Return the worst elements, read from the flattened numbers of `compare_calls`."""
    worst: list[Worst] = []
    for place, (name, shape) in enumerate(shapes.items()):
        block = numbers[place * NUMBERS_PER_CALL * len(calls) :][: NUMBERS_PER_CALL * len(calls)]
        for row, (run, index) in enumerate(calls):
            bad, flat, got, expected, allowed, *errors = block[row :: len(calls)]
            worst.append(
                Worst(name, run, index, int(bad), unravel_index(int(flat), shape), got, expected, allowed, *errors)
            )
    return tuple(worst)


def compare(
    got: torch.Tensor,
    expected: torch.Tensor,
    error: torch.Tensor | None,
    rule: Rule,
    edges: torch.Tensor | None,
) -> torch.Tensor:
    """Compare one output of several calls with the reference.

    Args:
        got: the output, shape (calls, elements).
        expected: the reference, shape (calls or 1, elements).
        error: bound on the error before rounding, shape (calls or 1, elements); None for 0.
        rule: rule of the output.
        edges: mask of the calls with `edges` inputs, shape (calls, 1); None if there are none.

    Returns:
        Shape (8, calls): bad elements, worst index, got, expected, allowed, relative error, spent, most.
    """
    calls, elements = got.shape
    step = max(1, ELEMENTS_AT_ONCE // calls)
    parts = []
    for start in range(0, elements, step):
        part = slice(start, start + step)
        bound = None if error is None else error[:, part]
        parts.append(_compare_part(got[:, part], expected[:, part], bound, rule, edges, start))
    return _joined(torch.stack(parts, 1), elements)


def _joined(parts: torch.Tensor, elements: int) -> torch.Tensor:
    """Combine numbers of shape (`NUMBERS_PER_PART`, parts, calls) into those of all elements, shape (8, calls)."""
    bad, index, value, exact, allowed, excess, most, squares, scale, shares = parts
    chosen = excess.argmax(0, keepdim=True)
    picked = [one.gather(0, chosen).squeeze(0) for one in (index, value, exact, allowed)]
    tiny = torch.finfo(torch.float64).tiny
    relative = (squares.sum(0) / scale.sum(0).clamp_min(tiny)).sqrt_()
    spent = (shares.sum(0) / elements).sqrt_()
    return torch.stack([bad.sum(0), *picked, relative, spent, most.amax(0)])


def _compare_part(
    got: torch.Tensor,
    expected: torch.Tensor,
    bound: torch.Tensor | None,
    rule: Rule,
    edges: torch.Tensor | None,
    start: int,
) -> torch.Tensor:
    value, exact = rule.prepare_pair(got, expected, edges)
    exact = exact.expand_as(value)
    allowed = rule.allowed(exact, bound).nan_to_num_(nan=0.0)
    error = (value - exact).abs_()
    if edges is not None:
        # Report the original values of these elements, not the replacements that make the error NaN.
        odd = error.isnan()
        value, exact = torch.where(odd, got.to(torch.float64), value), torch.where(odd, expected, exact)
    bad = error.shape[1] - (error <= allowed).sum(1)
    # argmax treats NaN as the largest value, so an element with NaN is the worst one.
    excess = error - allowed
    worst = excess.argmax(1, keepdim=True)
    picked = [part.gather(1, worst).squeeze(1) for part in (value, exact, allowed, excess)]
    shares = error / allowed.clamp_min(torch.finfo(torch.float64).tiny)
    most = shares.amax(1)
    sums = [part.square().sum(1) for part in (error, exact, shares)]  # not finite where an infinity is expected
    place = worst.squeeze(1).to(torch.float64) + start
    return torch.stack([bad.to(torch.float64), place, *picked, most, *sums])


def error_over_tolerance(got: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Return error / allowed error: 0 without an error, infinite if the allowed error is 0."""
    error = (got - expected).abs_()
    return torch.where(error == 0, 0.0, error / allowed)


def independent_errors(errors: torch.Tensor, kind: InputSet) -> torch.Tensor:
    """Return one error per independent event: of each element, or the largest in each row for `equal_rows` inputs."""
    return (errors.amax(-1) if kind == "equal_rows" and errors.ndim > 1 else errors).flatten()


def unravel_index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of an element from its row-major position."""
    index: list[int] = []
    for extent in reversed(shape):
        flat, position = divmod(flat, extent)
        index.append(position)
    return tuple(reversed(index))


def tolerances(kernel: Kernel, atol: float | None, rtol: float | None) -> dict[str, Tolerance]:
    """Return the tolerance of each output; a study's `atol` and `rtol` override the kernel's."""
    return {name: one.overridden(atol, rtol) for name, one in kernel.workload.tolerance.items()}
