"""What was computed against the references: one number for each question, on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from evokern.declaration.kernel import Kernel, Tensor, Tolerance
from evokern.gate.data import is_float, largest_finite
from evokern.gate.own_kernels import NonFinite, OwnKernels
from evokern.study.settings import InputSet

ELEMENTS_AT_ONCE = 1 << 24
"""Elements that one comparison takes at once; it needs about 60 bytes for each."""
TOGETHER = ELEMENTS_AT_ONCE
"""Elements of an output over all calls up to which they are compared at once."""
NUMBERS = 8
"""Numbers that come of each call's output: see `compare`."""
PARTS = 10
"""Numbers of a part of it: bad elements; worst one's index, value, reference, allowed error and excess over that;
largest error over allowed; sums of squares of errors, references and errors over allowed."""


@dataclass(frozen=True)
class Worst:
    """The element of an output that is furthest beyond what is allowed (or nearest to it)."""

    output: str
    """The output."""
    run: int
    """Run, from 0."""
    set: int
    """Input set, from 0."""
    bad: int
    """Elements of this output, run and set that are not within the tolerance."""
    index: tuple[int, ...]
    """Its index."""
    got: float
    """What was computed; infinities read as the largest finite value."""
    expected: float
    """The reference."""
    allowed: float
    """Largest error allowed there."""
    relative_error: float
    """Relative Frobenius error of the output in this run and set."""
    spent: float
    """Root mean square of error over allowed error: rounding errors stay far below 1, a systematic one need not."""
    most: float
    """Largest error over allowed error, which may be another element's: this one is worst in absolute terms."""

    @property
    def over(self) -> float:
        """Error over what is allowed; NaN counts as infinite."""
        error = abs(self.got - self.expected)
        if not error <= self.allowed:
            return error / self.allowed if self.allowed and error == error else float("inf")
        return error / self.allowed if self.allowed else 0.0


@dataclass(frozen=True)
class Findings:
    """What one synchronisation brought back."""

    worst: tuple[Worst, ...]
    """One per output and call."""
    guards_changed: tuple[int, ...]
    """Changed guard bytes around outputs and workspaces, per call."""
    inputs_changed: tuple[int, ...]
    """Changed 8-byte words of the inputs and the guards around them, per set."""
    differing: Mapping[str, tuple[int, ...]]
    """Output → changed bytes against the first run, per call after those of the first run."""


@dataclass(frozen=True)
class Rule:
    """How the elements of one output are judged."""

    tensor: Tensor
    """The output."""
    tolerance: Tolerance
    """What is allowed of it."""
    nonfinite: bool
    """Whether infinities and NaN of the reference are asked for on `edges` inputs; there they are passed over else."""

    @property
    def asked_of_nonfinite(self) -> NonFinite:
        """What is asked on `edges` inputs where the reference is an infinity or NaN."""
        return "judged" if self.nonfinite and is_float(self.tensor.dtype) else "passed_over"

    def allowed(self, expected: torch.Tensor) -> torch.Tensor:
        """Return the largest error of each element."""
        return expected.abs().mul_(self.tolerance.rtol).add_(self.tolerance.atol)

    def prepared(
        self, got: torch.Tensor, expected: torch.Tensor, edges: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what was computed and the reference so that their difference is the error.

        Where the exact result exceeds the dtype's range an infinity or the largest value is right: both clamp alike.
        Where the reference itself is an infinity or NaN, as it may be on `edges` inputs, only the same is right, if
        the kernel declares what it does with them: both are 0 where that is so, and the error is NaN elsewhere.

        Args:
            got: what was computed, in its own dtype.
            expected: the reference, in float64.
            edges: which calls had `edges` inputs, to broadcast; None where none had.
        """
        limit = largest_finite(self.tensor.dtype)
        wide = got.to(torch.float64)
        if edges is None:
            return wide.clamp_(-limit, limit), expected.clamp(-limit, limit)
        odd = ~expected.isfinite() & edges
        alike = odd
        if self.asked_of_nonfinite == "judged":
            alike = odd & ((wide.isnan() & expected.isnan()) | (wide == expected))
            if self.tensor.dtype == "e4m3":  # which has no infinity: the largest value or NaN stands for it
                alike |= odd & expected.isinf() & (wide.isnan() | (wide == expected.sign() * limit))
        clamped = wide.clamp(-limit, limit).masked_fill_(alike, 0.0)
        return clamped, expected.clamp(-limit, limit).masked_fill_(alike, 0.0).masked_fill_(odd & ~alike, math.nan)

    def answer(self, expected: torch.Tensor) -> torch.Tensor:
        """Return the reference as a right kernel would leave it, but for its rounding: within the dtype's range."""
        limit = largest_finite(self.tensor.dtype)
        return torch.where(expected.isfinite(), expected.clamp(-limit, limit), expected)

    def over(self, got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        """Return error over tolerance of each element of a call whose reference is finite."""
        value, exact = self.prepared(got, expected, None)
        return error_over_tolerance(value, exact, self.allowed(exact))


def compare_calls(
    outputs: Mapping[str, torch.Tensor],
    rules: Mapping[str, Rule],
    calls: Sequence[tuple[int, int]],
    edges: Sequence[bool],
    reference: Callable[[int], Mapping[str, torch.Tensor]],
    own: OwnKernels | None = None,
) -> list[torch.Tensor]:
    """Compare every output of every call with the reference of its input set, a set at a time where that is much.

    Args:
        outputs: by name, shape (calls, *shape).
        rules: how each is judged.
        calls: run and input set of each call: the sets of the first run in order, then those of later runs.
        edges: of each input set, whether it is of `edges`.
        reference: number of a set → the reference of its outputs.
        own: kernels for this device, which take a call at a time; None for torch.

    Returns:
        For each output shape (8, calls), as `compare` has it.
    """
    flags = torch.tensor([[edges[index]] for _, index in calls])
    if max(view.numel() for view in outputs.values()) <= TOGETHER:
        references = [reference(index) for index in range(len(edges))]
        sets = [index for _, index in calls]
        found = []
        for name, view in outputs.items():
            whole = torch.stack([one[name].flatten() for one in references])
            rows = whole if len(calls) == len(edges) else whole[sets]
            flag = flags.to(view.device) if any(edges) else None
            found.append(compare(view.flatten(1), lambda part, rows=rows: rows[:, part], rules[name], flag))  # type: ignore[misc]
        return found
    columns: dict[tuple[str, int], torch.Tensor] = {}
    for index in range(len(edges)):
        one = reference(index)
        for row in (row for row, (_, of) in enumerate(calls) if of == index):
            for name, view in outputs.items():
                flag = flags[row : row + 1].to(view.device) if edges[index] else None
                flat, expected = view[row].view(1, -1), one[name].reshape(1, -1)
                parts, rule = None, rules[name]
                if own is not None:
                    asked = rule.asked_of_nonfinite if edges[index] else "unexpected"
                    parts = own.compare(flat[0], expected[0], rule.tensor.dtype, rule.tolerance, nonfinite=asked)
                if parts is not None:
                    columns[name, row] = _joined(parts.unsqueeze(-1), flat.shape[1])
                else:
                    columns[name, row] = compare(flat, lambda part, e=expected: e[:, part], rules[name], flag)  # type: ignore[misc]
    return [torch.cat([columns[name, row] for row in range(len(calls))], 1) for name in outputs]


def found_worst(
    numbers: Sequence[float], calls: Sequence[tuple[int, int]], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Worst, ...]:
    """Return what `compare_calls` found, from its numbers one after the other."""
    worst: list[Worst] = []
    for place, (name, shape) in enumerate(shapes.items()):
        block = numbers[place * NUMBERS * len(calls) :][: NUMBERS * len(calls)]
        for row, (run, index) in enumerate(calls):
            bad, flat, got, expected, allowed, *errors = block[row :: len(calls)]
            worst.append(
                Worst(name, run, index, int(bad), unravelled(int(flat), shape), got, expected, allowed, *errors)
            )
    return tuple(worst)


def compare(
    got: torch.Tensor, expected: Callable[[slice], torch.Tensor], rule: Rule, edges: torch.Tensor | None
) -> torch.Tensor:
    """Compare some calls' output with the reference.

    Args:
        got: what was computed, shape (calls, elements).
        expected: a range of elements → the reference, shape (calls or 1, elements of the range).
        rule: how elements are judged.
        edges: shape (calls, 1), which calls had `edges` inputs; None where none had.

    Returns:
        Shape (8, calls): bad elements, worst index, got, expected, allowed, relative error, spent, most.
    """
    calls, elements = got.shape
    step = max(1, ELEMENTS_AT_ONCE // calls)
    parts = [
        _compare_part(got[:, start : start + step], expected(slice(start, start + step)), rule, edges, start)
        for start in range(0, elements, step)
    ]
    return _joined(torch.stack(parts, 1), elements)


def _joined(parts: torch.Tensor, elements: int) -> torch.Tensor:
    """Return of numbers of parts, shape (`PARTS`, parts, calls), those of all elements, shape (8, calls)."""
    bad, index, value, exact, allowed, excess, most, squares, scale, shares = parts
    chosen = excess.argmax(0, keepdim=True)
    picked = [one.gather(0, chosen).squeeze(0) for one in (index, value, exact, allowed)]
    tiny = torch.finfo(torch.float64).tiny
    relative = (squares.sum(0) / scale.sum(0).clamp_min(tiny)).sqrt_()
    spent = (shares.sum(0) / elements).sqrt_()
    return torch.stack([bad.sum(0), *picked, relative, spent, most.amax(0)])


def _compare_part(
    got: torch.Tensor, expected: torch.Tensor, rule: Rule, edges: torch.Tensor | None, start: int
) -> torch.Tensor:
    value, exact = rule.prepared(got, expected, edges)
    exact = exact.expand_as(value)
    allowed = rule.allowed(exact).nan_to_num_(nan=0.0)
    error = (value - exact).abs_()
    if edges is not None:
        # What is told of an element is what it is, not what makes its error NaN.
        odd = error.isnan()
        value, exact = torch.where(odd, got.to(torch.float64), value), torch.where(odd, expected, exact)
    bad = error.shape[1] - (error <= allowed).sum(1)
    # NaN compares as the largest value in argmax, so that a NaN is the worst element wherever there is one.
    excess = error - allowed
    worst = excess.argmax(1, keepdim=True)
    picked = [part.gather(1, worst).squeeze(1) for part in (value, exact, allowed, excess)]
    shares = error / allowed.clamp_min(torch.finfo(torch.float64).tiny)
    most = shares.amax(1)
    sums = [part.square().sum(1) for part in (error, exact, shares)]  # not finite where an infinity is expected
    place = worst.squeeze(1).to(torch.float64) + start
    return torch.stack([bad.to(torch.float64), place, *picked, most, *sums])


def error_over_tolerance(got: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Return error over what is allowed; where nothing is allowed an error is infinite, and none is 0."""
    error = (got - expected).abs_()
    return torch.where(error == 0, 0.0, error / allowed)


def independent_errors(errors: torch.Tensor, kind: InputSet) -> torch.Tensor:
    """Return one number for what is one independent event: the worst of a row where inputs are equal along rows."""
    return (errors.amax(-1) if kind == "equal_rows" and errors.ndim > 1 else errors).flatten()


def unravelled(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of an element by its number in row-major order."""
    index: list[int] = []
    for extent in reversed(shape):
        flat, position = divmod(flat, extent)
        index.append(position)
    return tuple(reversed(index))


def tolerances(kernel: Kernel, atol: float | None, rtol: float | None) -> dict[str, Tolerance]:
    """Return the kernel's tolerances with a study's own in their place."""
    return {name: one.overridden(atol, rtol) for name, one in kernel.workload.tolerance.items()}
