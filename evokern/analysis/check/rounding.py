"""What rounding alone does to a kernel's answers: its reference in the kernel's own arithmetic on the gate's inputs.

The reference computes once in float64, and again in float32 and in the type of the tensors where that is narrower; the
results are rounded to the outputs' types as a kernel's are. What is left is rounding: a tolerance below it turns right
candidates away, one far above it lets wrong ones pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evokern.analysis.check.folder import Folder, Results
from evokern.analysis.check.reference_check import python_reference, workload_tensors
from evokern.declaration.kernel import Kernel, Problem, Tensor, Tolerance, unit_roundoff
from evokern.errors import RAISED, KernelError
from evokern.study.settings import GateSettings, InputSet

if TYPE_CHECKING:
    import torch

HEADROOM = 4.0
"""A suggested tolerance over what rounding reaches: other inputs and other orders of summation round differently."""
MOST = 2
"""Small problems that are computed: as many as a simulated gate runs."""
LOOSE = 1e-3
"""Share of the tolerance below which rounding leaves room for wrong answers."""
SAME = 0.05
"""Error over the largest element beyond which an answer is no longer the same number but for rounding."""
SEED = 0
"""Of the inputs: the gate draws its own from a secret one."""
ACCUMULATOR = "f32"
"""What kernels on narrower types usually add up in."""
_NARROW = ("f16", "bf16")
_FLUSHED = 2.0**-126
"""Smallest normal number of float32 and bfloat16 (IEEE 754, section 3.6)."""


@dataclass
class Rounding:
    """What rounding reaches in one output, over all input sets and problems."""

    share: float = 0.0
    """Largest error over the tolerance; infinite where the result was not finite, or nothing is allowed."""
    inputs: InputSet = "normal"
    """The input set that reached it."""
    least: float = 0.0
    """The same, where every error counts as a unit roundoff of the output's type at least."""
    seen: list[tuple[InputSet, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """Input set, errors and references, flat."""
    finite: bool = True
    """Whether every result was finite."""


def rounding(folder: Folder) -> Results:
    """Rounding in the kernel's own arithmetic stays below the tolerance, and not a thousandfold below."""
    kernel = folder.kernel
    if not folder.small:
        yield None, "not tried: the workload lists no small_problems"
        return
    for problem in folder.small[:MOST]:
        tensors = workload_tensors(kernel, problem)
        try:
            python_reference(kernel, problem, tensors)
        except KernelError:
            yield None, "not tried: the Python reference fails"
            return
    for name, tolerance in kernel.workload.tolerance.items():
        for dtype, problems in _by_dtype(folder, name).items():
            reached = dict(_reached(kernel, problems, name))
            yield from _told(name, tolerance.of(dtype), dtype, reached, other=dtype in tolerance.by_dtype)


def _by_dtype(folder: Folder, output: str) -> dict[str, list[Problem]]:
    """Return small problems that have an output, by its dtype."""
    found: dict[str, list[Problem]] = {}
    for problem in (*folder.small[:MOST], *folder.worded):
        tensor = workload_tensors(folder.kernel, problem).get(output)
        if tensor is None:
            continue  # another word of a problem's field brings it along
        mine = found.setdefault(tensor.dtype, [])
        if len(mine) < MOST:
            mine.append(problem)
    return found


def _reached(kernel: Kernel, problems: Sequence[Problem], output: str) -> Iterator[tuple[str, Rounding]]:
    """Yield what rounding reaches in an output, by the type that the reference computed in, the widest first."""
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
    """Return the types to compute in: float32, or float64 where there are such tensors, and a narrower one if any."""
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
    """Compute an output in a type, and take in how far it is from float64."""
    import torch

    from evokern.gate.data import draw, largest_finite, torch_dtype

    generator = torch.Generator().manual_seed(SEED)
    inputs: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.given:
            inputs[name] = torch.empty(tensor.shape, dtype=torch_dtype(tensor.dtype))
            draw(tensor, kind, inputs[name], generator)
    limit = largest_finite(tensors[output].dtype)
    exact = kernel.workload.reference(problem, {n: t.to(torch.float64) for n, t in inputs.items()})[output]
    # On edges the reference itself may be infinite or NaN: no rounding is seen there.
    judged = exact.isfinite() if kind == "edges" else torch.ones_like(exact, dtype=torch.bool)
    exact = exact.to(torch.float64).clamp(-limit, limit)
    got = _computed(kernel, problem, inputs, output, torch_dtype(dtype), exact)
    got = got.to(torch_dtype(tensors[output].dtype)).to(torch.float64)[judged]
    exact = exact[judged]
    if not exact.numel():
        return
    of.finite = of.finite and not bool(got.isnan().any())
    error = (got.clamp(-limit, limit) - exact).abs()
    tolerance = kernel.workload.tolerance[output].holding(tensors[output])
    allowed = tolerance.atol + tolerance.rtol * exact.abs()
    share = float(torch.where(error == 0, 0.0, error / allowed).nan_to_num(nan=math.inf).max())
    if share > of.share:
        of.share, of.inputs = share, kind
    roundoff = unit_roundoff(tensors[output].dtype)
    least = torch.maximum(error, roundoff * exact.abs()) / allowed.clamp_min(torch.finfo(torch.float64).tiny)
    of.least = max(of.least, float(least.nan_to_num(nan=math.inf).max()))
    of.seen.append((kind, error.flatten(), exact.abs().flatten()))


def _computed(
    kernel: Kernel,
    problem: Problem,
    inputs: Mapping[str, torch.Tensor],
    output: str,
    dtype: torch.dtype,
    exact: torch.Tensor,
) -> torch.Tensor:
    """Return an output computed in a type; the exact one where the reference can compute in float64 alone."""
    try:
        return kernel.workload.reference(problem, {n: t.to(dtype) for n, t in inputs.items()})[output]
    except RAISED:  # torch has no such operation in this type, or the reference makes float64 tensors of its own
        return exact


def _told(
    name: str, tolerance: Tolerance, dtype: str, reached: Mapping[str, Rounding], *, other: bool = False
) -> Results:
    if not reached:
        yield True, f"{name} is a whole number: nothing is rounded"
        return
    shares = ", ".join(f"{_share(one)} in {_LONG[kind]}" for kind, one in reached.items())
    accumulator, one = next(iter(reached.items()))
    room, given = _written(_suggested(one, dtype)), _written(tolerance)
    which = f"{name} in {_LONG.get(dtype, dtype)}" if other else name
    said = f"{which}: of {given} rounding alone reaches {shares}"
    if not one.finite:
        yield "warning", f"{said}; a sum may overflow its type: Tensor's large= says what the kernel must survive"
    elif one.share > 1:
        yield "warning", f"{said}; right candidates are turned away, {room} would let them pass"
    elif one.least < LOOSE:
        yield "warning", f"{said}; wrong answers may pass, {room} has room for rounding"
    else:
        yield True, f"{said}; {room} has room for {_LONG[accumulator]}"


def _written(tolerance: Tolerance) -> str:
    return f"Tolerance(atol={tolerance.atol:g}, rtol={tolerance.rtol:g})"


def _share(one: Rounding) -> str:
    if not one.finite:
        return "NaN"
    share = (
        f"{one.share:.2g}" if one.share < 100 else f"{one.share:.0f}" if math.isfinite(one.share) else "more than all"
    )
    return f"{share} ({one.inputs} inputs)" if one.share else "0"


def measured_tolerance(
    kernel: Kernel, problems: Sequence[Problem], output: str
) -> tuple[Tolerance | None, tuple[InputSet, ...]]:
    """Return a tolerance for what the reference itself loses in the kernel's own arithmetic, and where it can be told.

    Args:
        kernel: the kernel; the tolerance that it declares is not looked at.
        problems: problems that the reference can compute in moments.
        output: a floating-point output.

    Returns:
        A tolerance with `HEADROOM`, None where no input set can be computed; and the input sets that can: in float64
        and in the narrower type the answer is finite, and it is the same number but for rounding.
    """
    whole, usable = Rounding(), []
    for kind in GateSettings().input_sets:
        one = Rounding()
        for problem in problems:
            tensors = workload_tensors(kernel, problem)
            _add(one, kernel, problem, tensors, output, kind, _arithmetics(tensors)[0])
        if all(bool((error <= max(SAME * float(exact.max()), _FLUSHED)).all()) for _, error, exact in one.seen):
            usable.append(kind)
            whole.seen += one.seen
    if not whole.seen:
        return None, ()
    return _suggested(whole, workload_tensors(kernel, problems[0])[output].dtype), tuple(usable)


def _suggested(one: Rounding, dtype: str) -> Tolerance:
    """Return a tolerance that leaves `HEADROOM` over what rounding reached, in digits that a person would choose.

    The relative part is that of the larger elements on usual inputs, the absolute part what is left of all errors.
    """
    usual = [(error, exact) for kind, error, exact in one.seen if kind == "normal"] or [one.seen[0][1:]]
    relative = [
        float((error / exact)[exact >= exact.max() / 16].nan_to_num().max())
        for error, exact in usual
        if bool((exact > 0).any())
    ]
    rtol = _rounded_up(HEADROOM * max([unit_roundoff(dtype), *relative]))
    left = max(float((HEADROOM * error - rtol * exact).max()) for _, error, exact in one.seen)
    if 0 < left < _FLUSHED:
        left = _FLUSHED  # of subnormal results, which fast arithmetic takes for 0
    return Tolerance(_rounded_up(left), rtol)


def _rounded_up(value: float) -> float:
    """Return the next number above that begins with 1, 2 or 5 and has no other digit; 0 for what is next to nothing."""
    if not 0 < value < math.inf:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= value * (1 - 1e-9))


_LONG = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
