"""Measurement of rounding errors, compared with the tolerances and bounds that a kernel declares.

The reference computes the gate's inputs in float64, in float32, and in the tensors' type if that is narrower. The
results are rounded to the output types, as a kernel's results are. A tolerance below the difference rejects correct
candidates; a tolerance far above it accepts wrong ones. Where a bound fits the measured errors, the checks advise it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

from evokern.analysis.check.folder import Folder, Result, Results
from evokern.analysis.check.reference_check import computed, inputs_of, workload_tensors
from evokern.declaration.bounds import CustomBound, Elementwise, ErrorBound, Inputs, Sum, SumOfProducts
from evokern.declaration.bounds.derived import derived_bound
from evokern.declaration.kernel import SIGNIFICAND_BITS, Kernel, Problem, Tensor, Tolerance, unit_roundoff
from evokern.errors import KernelError
from evokern.study.settings import GateSettings, InputSet

if TYPE_CHECKING:
    import torch

_SEED = 0
"""Seed of the inputs; a search uses a secret seed."""
LEAST_POWER = 0.5
"""Largest relative error that a bound may leave undetected: a result half as large as the correct one is found."""


@dataclass
class Power:
    """Power of the bound of one output, over all input sets and problems."""

    share: float = 0.0
    """Largest error of the reference in float32, divided by the bound."""
    share_on: str = ""
    """Inputs and problem of that error."""
    found: float = math.inf
    """Smallest relative error of a typical element that exceeds the bound on some inputs."""
    found_on: InputSet = "normal"
    """Inputs on which it does."""


def bound_results(kernel: Kernel, output: str, dtype: str, problems: Sequence[Problem]) -> Results:
    """Check the bound of an output: correct rounding stays below it, and a wrong result exceeds it.

    Args:
        kernel: the kernel.
        output: an output with a bound.
        dtype: its type.
        problems: small problems with this type.
    """
    power = power_of(kernel, output, problems)
    name = f"{output} in {dtype}"
    share = f"{power.share:.2g} of the bound" + (f" ({power.share_on})" if power.share_on else "")
    if power.share > 1:
        yield (
            False,
            f"{name}: the reference in float32 exceeds the bound: its error is {share}; "
            "correct candidates would fail; declare a larger number of terms or a less precise accumulator",
        )
    elif not power.found <= LEAST_POWER:
        least = "no error" if math.isinf(power.found) else f"only an error above {power.found:.2g} of an element"
        yield (
            False,
            f"{name}: the bound has no power: {least} is found on any inputs, and rounding uses {share}; "
            "declare a smaller number of terms or a more precise accumulator, or a Tolerance",
        )
    else:
        yield (
            True,
            f"{name}: rounding in float32 uses {share}; a relative error of {power.found:.2g} in one element is found "
            f"({power.found_on} inputs)",
        )


def power_of(kernel: Kernel, output: str, problems: Sequence[Problem]) -> Power:
    """Measure the power of the bound of an output on small problems."""
    import torch

    from evokern.gate.comparison import allowed_error, tolerances
    from evokern.gate.data import exact_kinds, largest_finite, torch_dtype
    from evokern.gate.references import answers_of

    found = Power()
    limits = tolerances(kernel, None, None)
    for problem in problems:
        tensors = workload_tensors(kernel, problem)
        for kind in exact_kinds(GateSettings().input_sets, tensors):
            inputs = inputs_of(tensors, kind, _SEED)
            answers = answers_of(kernel, problem, tensors, limits, inputs, exact=kind == "exact")
            exact = answers[output]
            limit = largest_finite(tensors[output].dtype)
            judged = exact.abs() <= limit
            allowed = allowed_error(limits[output].for_tensor(tensors[output]), exact, answers.errors.get(output))
            got = computed(kernel, problem, inputs, output, torch.float32, exact)
            got = got.to(torch_dtype(tensors[output].dtype)).to(torch.float64)
            error = (got - exact).abs()
            shares = torch.where(error == 0, 0.0, error / allowed)[judged]
            if shares.numel() and float(shares.max()) > found.share:
                found.share, found.share_on = float(shares.max()), f"{kind} inputs at {problem}"
            relative = (allowed / exact.abs())[judged & (exact != 0)]
            if kind != "edges" and relative.numel() and float(relative.median()) < found.found:
                found.found, found.found_on = float(relative.median()), kind
    return found


MOST_SHARE = 0.5
"""Largest share of a proposed bound that rounding may use; other orders of the additions round differently."""
ULPS = (1, 4, 16)
"""Errors of functions of single elements that are tried."""


def bound_advice(kernel: Kernel, output: str, problems: Sequence[Problem]) -> str:
    """Return how to replace the tolerance of an output by a bound.

    Args:
        kernel: the kernel.
        output: a floating-point output.
        problems: small problems.
    """
    if (reason := underivable(kernel, output, problems)) is None:
        return f"remove {output!r} from `tolerance`, so that its bound is derived from the reference"
    return f"declare error={{{output!r}: {proposed_bound(kernel, output, problems)}}} instead ({reason})"


def underivable(kernel: Kernel, output: str, problems: Sequence[Problem]) -> str | None:
    """Return why no bound of an output can be derived from the reference; None if one can."""
    try:
        derived_bound(kernel, kernel.space.default(), problems[0], output)
    except KernelError as error:
        return str(error)
    return None


def proposed_bound(kernel: Kernel, output: str, problems: Sequence[Problem]) -> str:
    """Return the text of the tightest ready-made bound that fits the rounding errors of the reference in float32.

    Its number of terms is a formula of the problem, so that it grows with the shape.

    Args:
        kernel: the kernel; its declared limit of the output is ignored.
        output: a floating-point output.
        problems: small problems.
    """
    for text, bound in _candidates(kernel, problems):
        limits = {name: one for name, one in kernel.workload.tolerance.items() if name != output and one.bound is None}
        error = {name: one for name, one in kernel.workload.error.items() if name != output} | {output: bound}
        workload = replace(kernel.workload, tolerance=limits, error=error)
        try:
            power = power_of(replace(kernel, workload=workload), output, problems)
        except KernelError:
            continue  # the reference does not support absolute values of these inputs
        if power.share <= MOST_SHARE and power.found <= LEAST_POWER:
            return text
    return f"Elementwise(ulp={ULPS[-1]})"  # none fits, so the text is only a start


def _candidates(kernel: Kernel, problems: Sequence[Problem]) -> Iterator[tuple[str, ErrorBound]]:
    """Yield bounds with their texts, from functions of single elements to sums of many products."""
    tensors = workload_tensors(kernel, problems[0])
    given = [name for name, tensor in tensors.items() if tensor.given and tensor.dtype in SIGNIFICAND_BITS]
    for ulp in ULPS:
        yield f"Elementwise(ulp={ulp})", Elementwise(ulp)
    if given:
        yield f"Elementwise(ulp=1, inputs={tuple(given)!r})", Elementwise(1, tuple(given))
    fields = [field.name for field in kernel.fields if isinstance(problems[-1][field.name], int)]
    products = [(), *combinations(fields, 1), *combinations(fields, 2)]
    for names in products[1:]:
        terms = f"lambda p: {_advice(names)}"
        for name in given:
            yield f"Sum(terms={terms}, input={name!r})", Sum(partial(_count, names), name)
        if len(given) > 1:
            yield (
                f"SumOfProducts(terms={terms}, inputs={tuple(given)!r})",
                SumOfProducts(partial(_count, names), tuple(given)),
            )
    for names in products if given else ():  # relative to the largest inputs
        factors = [f"t[{name!r}].abs().max()" for name in given]
        text = " * ".join(["2**-22", *([_advice(names)] if names else []), *factors])
        yield f"lambda p, t: {text}", CustomBound(partial(_largest, names, given))


def _advice(names: Sequence[str]) -> str:
    return " * ".join(f"p.{name}" for name in names)


def _count(names: Sequence[str], p: Problem) -> int:
    return math.prod(int(p[name]) for name in names)


def _largest(names: Sequence[str], given: Sequence[str], p: Problem, t: Inputs) -> torch.Tensor:
    found = t[given[0]].abs().max()
    for name in given[1:]:
        found = found * t[name].abs().max()
    return 2.0**-22 * _count(names, p) * found


MOST = 2
"""Number of small problems to compute, the same as in the simulated gate."""
LOOSE_SHARE = 1e-3
"""Share of the tolerance below which the tolerance is reported as too loose."""
MAX_ROUNDING_ERROR = 0.05
"""Error relative to the largest element above which a result differs by more than rounding."""
SEED = 0
"""Seed of the inputs; a search uses a secret seed."""
ACCUMULATOR = "f32"
"""Usual accumulator type of kernels on narrower types."""
_NARROW = ("f16", "bf16")
_FLUSHED = 2.0**-126
"""Smallest normal number of float32 and bfloat16 (IEEE 754, section 3.6)."""


@dataclass
class Rounding:
    """Rounding errors of one output over all input sets and problems."""

    share: float = 0.0
    """Largest error divided by the tolerance; infinite if a result is not finite or the tolerance is zero."""
    inputs: InputSet = "normal"
    """Input set with the largest share."""
    least: float = 0.0
    """Largest share if every error counts as at least one unit roundoff of the output's type."""
    seen: list[tuple[InputSet, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """For each input set: its name, and the flattened errors and absolute reference values."""
    finite: bool = True
    """Whether no result was NaN."""


def rounding(folder: Folder) -> Results:
    """Check that rounding errors are below the tolerance, but not a thousand times smaller."""
    kernel = folder.kernel
    if not folder.small:
        yield None, "skipped: the workload lists no small_problems"
        return
    for name, tolerance in kernel.workload.tolerance.items():
        for dtype, problems in _by_dtype(folder, name).items():
            if tolerance.bound is not None:
                yield from bound_results(kernel, name, dtype, problems)
                continue
            reached = dict(_rounding_by_type(kernel, problems, name))
            if not reached:
                yield True, f"{name} is an integer output, so it has no rounding errors"
                continue
            which = f"{name} in {_LONG.get(dtype, dtype)}" if dtype in tolerance.by_dtype else name
            yield _tolerance_result(which, tolerance.of(dtype), reached, bound_advice(kernel, name, problems))


def _by_dtype(folder: Folder, output: str) -> dict[str, list[Problem]]:
    """Return the small problems that have an output, grouped by the output's dtype."""
    found: dict[str, list[Problem]] = {}
    for problem in (*folder.small[:MOST], *folder.choice_variants):
        tensor = workload_tensors(folder.kernel, problem).get(output)
        if tensor is None:
            continue  # only another choice of a problem field has this output
        mine = found.setdefault(tensor.dtype, [])
        if len(mine) < MOST:
            mine.append(problem)
    return found


def _rounding_by_type(kernel: Kernel, problems: Sequence[Problem], output: str) -> Iterator[tuple[str, Rounding]]:
    """Yield the rounding errors of an output for each type of the reference's arithmetic, widest first."""
    found: dict[str, Rounding] = {}
    for problem in problems:
        tensors = workload_tensors(kernel, problem)
        if output not in tensors or not _real(tensors[output]):
            return
        for dtype in _arithmetics(tensors):
            of = found.setdefault(dtype, Rounding())
            for kind in GateSettings().input_sets:
                _add(of, kernel, problem, tensors, output, kind, dtype)
    yield from found.items()


def _arithmetics(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the types to compute in: float32 (float64 if tensors need it), then narrower tensor types."""
    used = {tensor.dtype for tensor in tensors.values() if tensor.role != "workspace"}
    wide = "f64" if "f64" in used and not used & {"f32", *_NARROW} else ACCUMULATOR
    return [wide, *(dtype for dtype in _NARROW if dtype in used)]


def _real(tensor: Tensor) -> bool:
    from evokern.gate.data import is_float

    return is_float(tensor.dtype)


def _add(
    of: Rounding,
    kernel: Kernel,
    problem: Problem,
    tensors: Mapping[str, Tensor],
    output: str,
    kind: InputSet,
    dtype: str,
) -> None:
    """Compute an output in a type, and record its errors relative to float64."""
    import torch

    from evokern.gate.data import largest_finite, torch_dtype

    inputs = inputs_of(tensors, kind, SEED)
    limit = largest_finite(tensors[output].dtype)
    exact = kernel.workload.reference(problem, {n: t.to(torch.float64) for n, t in inputs.items()})[output]
    # On the edges inputs, the reference itself may be infinite or NaN; those elements show no rounding.
    judged = exact.isfinite() if kind == "edges" else torch.ones_like(exact, dtype=torch.bool)
    exact = exact.to(torch.float64).clamp(-limit, limit)
    got = computed(kernel, problem, inputs, output, torch_dtype(dtype), exact)
    got = got.to(torch_dtype(tensors[output].dtype)).to(torch.float64)[judged]
    exact = exact[judged]
    if not exact.numel():
        return
    of.finite = of.finite and not bool(got.isnan().any())
    error = (got.clamp(-limit, limit) - exact).abs()
    tolerance = kernel.workload.tolerance[output].for_tensor(tensors[output])
    allowed = tolerance.atol + tolerance.rtol * exact.abs()
    share = float(torch.where(error == 0, 0.0, error / allowed).nan_to_num(nan=math.inf).max())
    if share > of.share:
        of.share, of.inputs = share, kind
    roundoff = unit_roundoff(tensors[output].dtype)
    least = torch.maximum(error, roundoff * exact.abs()) / allowed.clamp_min(torch.finfo(torch.float64).tiny)
    of.least = max(of.least, float(least.nan_to_num(nan=math.inf).max()))
    of.seen.append((kind, error.flatten(), exact.abs().flatten()))


def _tolerance_result(which: str, tolerance: Tolerance, reached: Mapping[str, Rounding], advice: str) -> Result:
    shares = ", ".join(f"{_share(one)} in {_LONG[kind]}" for kind, one in reached.items())
    one = next(iter(reached.values()))
    summary = f"{which}: largest rounding error relative to {_written(tolerance)}: {shares}"
    if not one.finite:
        return "warning", (
            f"{summary}; a sum may overflow its type: set Tensor's large= to the largest input that the kernel must "
            "support"
        )
    if one.share > 1:
        return "warning", f"{summary}; correct candidates would fail; {advice}"
    if one.least < LOOSE_SHARE:
        return "warning", f"{summary}; wrong results may pass; {advice}"
    return True, f"{summary}; a bound holds at every shape: {advice}"


def _written(tolerance: Tolerance) -> str:
    return f"Tolerance(atol={tolerance.atol:g}, rtol={tolerance.rtol:g})"


def _share(one: Rounding) -> str:
    if not one.finite:
        return "NaN"
    share = f"{one.share:.2g}" if one.share < 100 else f"{one.share:.0f}" if math.isfinite(one.share) else "infinite"
    return f"{share} ({one.inputs} inputs)" if one.share else "0"


def usable_input_sets(kernel: Kernel, problems: Sequence[Problem], output: str) -> tuple[InputSet, ...]:
    """Return the input sets on which float64 and the kernel's type give finite results that differ only by rounding.

    Args:
        kernel: the kernel; its declared tolerance is ignored.
        problems: small problems that the reference computes quickly.
        output: a floating-point output.
    """
    usable: list[InputSet] = []
    for kind in GateSettings().input_sets:
        one = Rounding()
        for problem in problems:
            tensors = workload_tensors(kernel, problem)
            _add(one, kernel, problem, tensors, output, kind, _arithmetics(tensors)[0])
        if all(
            bool((error <= max(MAX_ROUNDING_ERROR * float(exact.max()), _FLUSHED)).all())
            for _, error, exact in one.seen
        ):
            usable.append(kind)
    return tuple(usable)


_LONG = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
