"""Sizes, roles and ranges of buffers, and correct results, as the input of a tuner states them."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import lcm, prod
from typing import Any

from evokern.cuda_source import KernelFunction
from evokern.declaration.as_data.golden import OUTPUT
from evokern.device.sim.full_size_runs import WHOLE_INSTRUCTIONS
from evokern.errors import SourceError
from evokern.scaffold.buffers import shape_of, size_of
from evokern.scaffold.draft import Draft
from evokern.scaffold.plan import DraftTensor, Plan
from evokern.scaffold.probe import Prober
from evokern.scaffold.problems import LIMIT, checked, tile_units, writes_outputs
from evokern.scaffold.reading import DRAFTED_FOR
from evokern.scaffold.tuner.arithmetic import over_genes
from evokern.scaffold.tuner.request import TunerArgument, TunerRequest

GOLDEN_FILE = "golden.npz"
"""File with the values of a script's call, next to `kernel.py`."""
OBSERVED = 8
"""Number of blocks that run at the tuner's own problem, if smaller ones cannot be run."""
_UNRUN = "the kernel did not run"
MOST_VALUES = 32
"""Number of configurations on which a divisor is tested."""
MOST_BORDER = 1 << 10
"""Maximum border of an image, in elements."""
LEAST_EXTENT = 16
"""Minimum number of a field that is an extent of a buffer."""
MOST_LANES = 16
"""Maximum number of elements for each element of a field."""
MOST_SMALL = 1 << 18
"""Maximum number of elements of all buffers at a small problem that is scaled down from the file's problem."""
TRIED = 5
"""Number of configurations that must be clean at a small problem."""
RTOL = 1e-5
"""Relative tolerance of `numpy.allclose`, with which Kernel Tuner compares results."""
_GUESSED = {"f64": 1e-10, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}
"""Tolerance between candidates if the file states none."""


def with_stated(made: Draft, request: TunerRequest, function: KernelFunction) -> Draft:
    """Return a draft with the sizes, roles, ranges and results that the tuner's input states.

    Args:
        made: draft from runs on the simulator.
        request: the tuner's input.
        function: the kernel.
    """
    given = _by_name(request, function)
    const = {parameter.name for parameter in function.parameters if parameter.const}
    made = _with_observed(made, given)
    notes = [note for note in made.notes if "roles, shapes and launch are guesses" not in note]
    sized = [_sized(made, tensor, given.get(tensor.name), request, notes) for tensor in made.tensors]
    unseen = {t.name for t in made.tensors if t.why.startswith((_UNRUN, "no run accesses"))}
    tensors = tuple(_with_role(t, given.get(t.name), request, const, ran=t.name not in unseen) for t, _ in sized)
    made = replace(made, tensors=tensors, notes=tuple(notes))
    if not all(known for _, known in sized):
        made = _fixed(made)
    made = _with_whole_tiles(made)
    made = _with_small_problems(made)
    results = [t for t in tensors if t.role in ("output", "inout")]
    made = replace(made, tolerance={t.name: _tolerance(t, given.get(t.name), request) for t in results})
    made = _with_golden(made, request, given)
    return made if made.golden else _with_short_blocks(made)


def _with_short_blocks(made: Draft) -> Draft:
    """Return a draft whose study has a smaller problem, if blocks of the file's problem run for too long.

    Of blocks that depend on each other, all must run.
    """
    plan, problem = made.plan, dict(made.study)
    free = plan.free
    together = made.finish or any(tensor.role in ("inout", "workspace") for tensor in made.tensors)
    while free and not made.compile_error:
        sizes = {tensor.name: size_of(tensor, plan, problem, LIMIT) for tensor in made.tensors}
        run = Prober(made.source, DRAFTED_FOR).run(plan, problem, limit=1, exact=sizes, blocks=1)
        largest = max(free, key=problem.__getitem__)
        most = WHOLE_INSTRUCTIONS if together else float("inf")
        total = run.instructions * prod(plan.extents(plan.whole_grid, plan.defaults, problem))
        if not (run.too_large or total > most) or problem[largest] % 2:
            break
        problem[largest] //= 2
    if problem == made.study:
        return made
    words = " ".join(f"{name}={value}" for name, value in made.study.items())
    note = f"the study: the file's problem {words} takes too long on a simulated device; use it on a GPU"
    return replace(made, study=problem, smaller=words, notes=(*made.notes, note))


def _with_observed(made: Draft, given: Mapping[str, TunerArgument]) -> Draft:
    """Return a draft whose roles come from some blocks at the tuner's own problem, if no other run succeeded."""
    plan = made.plan
    if made.compile_error or not any(t.why.startswith(_UNRUN) for t in made.tensors):
        return made
    exact = {name: prod(one.shape) for name, one in given.items() if one.shape is not None}
    run = Prober(made.source, DRAFTED_FOR).run(plan, made.study, limit=1, exact=exact, blocks=OBSERVED)
    if run.finding is not None:
        note = f"kernel.py: with the tuner's sizes, {run.why}; compare the sizes of its arrays with the kernel"
        return replace(made, notes=(*made.notes, note.replace("out_of_bounds", "an access is out of bounds")))
    if not run.ok:
        return made
    tensors = []
    for tensor in made.tensors:
        touch = run.touches[tensor.name]
        role = "input" if not touch.written else "inout" if touch.in_place else "output"
        why = "read before it is written" if touch.in_place else "" if touch.extent else "no run accesses it"
        tensors.append(replace(tensor, shape=(str(exact[tensor.name]),), role=role, why=why))
    return _per_element(replace(made, tensors=tuple(tensors), faults=()))


def _per_element(made: Draft) -> Draft:
    """Return a draft whose buffers grow with a field, if a run at half of the tuner's problem confirms it.

    If no field explains all sizes, only the tuner's problem is valid.
    """
    for name, number in made.study.items():
        if all(int(tensor.shape[0]) % number == 0 for tensor in made.tensors) and number % 2 == 0:
            shapes = [(f"p.{name}", str(int(tensor.shape[0]) // number)) for tensor in made.tensors]
            tensors = [
                replace(t, shape=shape if shape[1] != "1" else shape[:1])
                for t, shape in zip(made.tensors, shapes, strict=True)
            ]
            scaled = replace(made, tensors=tuple(tensors))
            problem = {**made.study, name: number // 2}
            if _clean(Prober(made.source, DRAFTED_FOR), scaled, problem, made.plan.defaults):
                return scaled
    return _fixed(made)


def _with_whole_tiles(made: Draft) -> Draft:
    """Return a draft in which tiles must be whole where partial ones fail, except at the tuner's own problem.

    The file permits every configuration at its own problem; there, the search finds out whether partial tiles fail.
    """
    plan, study = made.plan, made.study
    configs = [{gene.name: gene.values[at % len(gene.values)] for gene in plan.genes} for at in range(MOST_VALUES)]
    rules, whole = [], dict[str, int]()
    for name, text, why in (*plan.constraints, *_partial_tiles(made)):
        found = re.fullmatch(r"divides\((.+), p\.(\w+)\)", text)
        if found and name.startswith("whole_"):
            units = [plan.value(found[1], config, study) for config in configs]
            whole[found[2]] = lcm(whole.get(found[2], 1), plan.value(found[1], plan.defaults, study) or 1)
            if not all(unit and study[found[2]] % unit == 0 for unit in units):
                text = f"p.{found[2]} == {study[found[2]]} or p.{found[2]} % ({found[1]}) == 0"
        rules.append((name, text, why))
    fields = []
    for field in plan.fields:  # the default candidate is the reference, so it must run at every problem
        unit = lcm(field.multiple_of, whole.get(field.name, 1))
        why = field.why or "whole tiles of the default candidate"
        held = replace(field, multiple_of=unit, why=why) if unit > 1 else field
        fields.append(replace(field, multiple_of=1, why="") if study[field.name] % unit else held)
    return replace(made, plan=replace(plan, constraints=tuple(rules), fields=tuple(fields)))


def _partial_tiles(made: Draft) -> Iterator[tuple[str, str, str]]:
    """Yield the rules that configurations other than the default need, because only their partial tiles fail."""
    plan, prober = made.plan, Prober(made.source, DRAFTED_FOR)
    known = " ".join(text for _, text, _ in plan.constraints)
    free = plan.free
    tiles = {
        name: [
            unit for text in plan.grid for unit in tile_units(text, name) if f"divides({unit}, p.{name})" not in known
        ]
        for name in free
    }
    tiles = {name: units for name, units in tiles.items() if any("c." in unit for unit in units)}
    for config in _configurations(plan) if tiles and not made.compile_error else ():
        sizes = {name: lcm(*(plan.value(unit, config, made.study) for unit in units)) for name, units in tiles.items()}
        problem = {**made.study, **(made.small[0] if made.small else {}), **{n: 2 * size for n, size in sizes.items()}}
        if not _clean(prober, made, problem, config):
            continue
        for name in [name for name in tiles if sizes[name] > 1]:
            tail = {**problem, name: problem[name] - sizes[name] // 2}
            if _permitted(plan, tail, config) and not _clean(prober, made, tail, config):
                why = checked(prober, plan, made.tensors, tail, config).fault or "elements stay unwritten"
                yield from _tile_rules(name, tiles.pop(name), f"else {why}")
    for name, units in tiles.items():
        if any(re.fullmatch(rf"p\.{name}\b[^()+]* // [^()+]*", text) for text in plan.grid):
            yield from _tile_rules(name, units, "the grid has no block for a partial tile")


def _tile_rules(name: str, units: Sequence[str], why: str) -> Iterator[tuple[str, str, str]]:
    for number, unit in enumerate(dict.fromkeys(units)):
        suffix = f"_{number + 1}" if number else ""
        yield f"whole_{name.lower()}_tiles{suffix}", f"divides({unit}, p.{name})", why


def _by_name(request: TunerRequest, function: KernelFunction) -> dict[str, TunerArgument]:
    pairs = zip(function.parameters, request.arguments, strict=True)
    names = {p.name or a.name or f"argument{at}": a for at, (p, a) in enumerate(pairs)}
    return {**names, **request.constants}


def _sized(
    made: Draft, tensor: DraftTensor, given: TunerArgument | None, request: TunerRequest, notes: list[str]
) -> tuple[DraftTensor, bool]:
    """Return a buffer with the stated size, and whether fields explain it."""
    if given is None or given.shape is None:
        return tensor, True
    stated, found = prod(given.shape), size_of(tensor, made.plan, made.study, LIMIT)
    written = tensor.role in ("output", "inout")
    span = "" if given.span is None or tensor.dtype[0] in "iu" or tensor.extra else _span(given.span)
    tensor = replace(tensor, extra=tensor.extra or span)
    if not made.plan.free:
        return replace(tensor, shape=tuple(map(str, given.shape)), why=_without_size_doubts(tensor.why)), True
    if stated == found and not tensor.why.startswith(_UNRUN):
        return replace(tensor, why=_without_size_doubts(tensor.why)), True
    if tensor.why.startswith("no run accesses"):
        return replace(tensor, shape=_lanes(stated, made.plan, made.study) or (str(stated),)), True
    text = _in_fields(given.size, request, made.plan)
    if text and made.plan.value(text, made.plan.defaults, made.study) == stated:
        return replace(tensor, shape=(text,), why=_without_size_doubts(tensor.why)), True
    if extents := _lanes(stated, made.plan, made.study) or _bordered(stated, made.plan, made.study):
        return replace(tensor, shape=extents, why=""), True
    if found < stated <= 2 * found and not written:
        shape = " * ".join(f"({axis})" if " " in axis else axis for axis in tensor.shape)
        return replace(tensor, shape=(f"{shape} + {stated - found}",), why=""), True
    if found < stated and not tensor.why.startswith(_UNRUN):
        verb = "written" if written else "read"
        notes.append(
            f"kernel.py: the tuner passes {stated:,} elements for {tensor.name}; in runs, at most {found:,} are {verb}"
        )
        return replace(tensor, why=_without_size_doubts(tensor.why)), True
    return replace(tensor, shape=tuple(map(str, given.shape)), why=""), False


def _lanes(stated: int, plan: Plan, study: Mapping[str, int]) -> tuple[str, ...]:
    """Return the extents of a few elements for each element of a field, if they give a stated size."""
    free = [name for name in plan.free if study[name] >= LEAST_EXTENT]
    factors = {name: stated // study[name] for name in free if stated % study[name] == 0}
    name = min(factors, key=factors.__getitem__, default="")
    if not name or factors[name] > MOST_LANES:
        return ()
    return (f"p.{name}",) if factors[name] == 1 else (f"p.{name}", str(factors[name]))


def _bordered(stated: int, plan: Plan, study: Mapping[str, int]) -> tuple[str, ...]:
    """Return the extents of an image with a border, or of a product of fields, if they give a stated size."""
    free = [name for name in plan.free if study[name] >= LEAST_EXTENT]
    pairs = [(b, a) for at, a in enumerate(free) for b in free[at + 1 :]] + [(a, a) for a in free]
    for margin in range(MOST_BORDER):
        for pair in pairs:
            if prod(study[name] + margin for name in pair) == stated:
                return tuple(f"p.{name} + {margin}" if margin else f"p.{name}" for name in pair)
    return ()


def _without_size_doubts(why: str) -> str:
    doubts = ("unknown size:", "the smallest product of fields")
    return "; ".join(part for part in why.split("; ") if not part.startswith(doubts))


def _span(span: tuple[float, float]) -> str:
    low, high = span
    if low == high:
        return ""
    return f"span=({low!r}, {high!r}), scale={(high - low) / 4:.4g}"


def _in_fields(size: str, request: TunerRequest, plan: Plan) -> str:
    """Return the expression of a stated size over the fields of the problem, or an empty text."""
    if "ProblemSize" not in size:
        return ""
    extents = [re.search(r"p\.\w+", extent) for extent in plan.grid]
    axes = [found[0] if found else "" for found in extents]

    def axis(match: re.Match[str]) -> str:
        at = int(match[1])
        return f"axis_{at}" if at < len(axes) and axes[at] else "unknown"

    text = re.sub(r"ProblemSize\[(\d)\]", axis, size)
    text = re.sub(r"\bmax\((\w+)\)", lambda m: str(max(request.parameters.get(m[1], (m[0],)))), text)
    return (
        over_genes(text, [gene.name for gene in plan.genes], {f"axis_{at}": one for at, one in enumerate(axes)}) or ""
    )


def _with_role(
    tensor: DraftTensor, given: TunerArgument | None, request: TunerRequest, const: set[str], *, ran: bool
) -> DraftTensor:
    """Return a buffer with the stated role; if runs contradict it, with both."""
    if given is None or given.shape is None or tensor.role == "constant":
        return tensor
    seen = tensor.role
    if request.answers or request.sums:
        position = next(at for at, one in enumerate(request.arguments) if one is given)
        compared = position in request.answers or position in request.sums
        if compared and seen == "input" and tensor.name not in const:
            return replace(tensor, role="output", why="the script compares it" + ("; no run writes it" if ran else ""))
        if compared and seen == "inout" and "read before" not in tensor.why:
            return replace(tensor, role="output", why="")
        if not compared and seen == "output":
            return replace(tensor, role="workspace", why="the script does not compare it")
        return tensor
    stated = given.role
    if not stated or stated == seen or (stated == "input" and seen == "input"):
        return replace(tensor, why="") if stated and stated == seen else tensor
    if tensor.name in const:
        return replace(tensor, role="input", why=f"const in the kernel; the file states {stated}")
    if not ran:
        return replace(tensor, role=stated, why="")
    if stated == "input" or (stated == "output" and "read before" in tensor.why):
        return replace(tensor, why=f"the file states {stated}, but runs show {seen}")
    if stated == "output" and seen == "inout":
        return replace(tensor, role="output", why="")  # a grid without tails writes everything
    return replace(tensor, role=stated, why="" if seen == "output" else f"the file states {stated}; no run writes it")


def _fixed(made: Draft) -> Draft:
    """Return a draft for the file's own problem only, because its sizes do not follow from fields."""
    fields = tuple(
        field if field.choices else replace(field, choices=(made.study[field.name],), default=made.study[field.name])
        for field in made.plan.fields
    )
    note = (
        "kernel.py: the sizes of buffers do not follow from the problem's numbers, so only the file's problem is valid"
    )
    return replace(made, plan=replace(made.plan, fields=fields), small=(), notes=(*made.notes, note))


def _tolerance(tensor: DraftTensor, given: TunerArgument | None, request: TunerRequest) -> tuple[float, float, str]:
    """Return the tolerance of an output, and why it is a guess."""
    if tensor.dtype[0] in "iu":
        return 0.0, 0.0, ""
    if given is not None and given.name in request.tolerances:
        return (*request.tolerances[given.name], "")
    if request.atol is not None and (request.answers or request.sums):
        return request.atol, RTOL, ""
    found = _GUESSED.get(tensor.dtype, 1e-4)
    return found, found, "difference between correct candidates"


def _with_small_problems(made: Draft) -> Draft:
    """Return a draft whose small problems are clean for several configurations.

    A problem with tails may be clean only for the default configuration. The file's own problem, scaled down by powers
    of two, keeps its divisors.
    """
    plan = made.plan
    free = plan.free
    if not free or made.compile_error:
        return made
    prober = Prober(made.source, DRAFTED_FOR)
    default, *others = _configurations(plan)
    tried: list[Mapping[str, int]] = []
    for problem in (*made.small, *_scaled(made)):
        if problem not in tried and _clean(prober, made, problem, default):
            tried.append(problem)
    held = [sum(_clean(prober, made, problem, config) for config in others) for problem in tried]
    best = sorted(zip(held, range(len(tried)), tried, strict=True), key=lambda one: (-one[0], one[1]))
    if not best:
        kept = tuple(_kept_where_unwritten(tensor) for tensor in made.tensors)
        if kept != made.tensors:
            return _with_small_problems(replace(made, tensors=kept))
        return _fixed(made) if made.small else made
    return replace(made, small=tuple(dict(problem) for count, _, problem in best[:2] if count == best[0][0]))


def _kept_where_unwritten(tensor: DraftTensor) -> DraftTensor:
    if tensor.role != "output":
        return tensor
    return replace(
        tensor, role="inout", why="no small problem writes all of it, so its other elements must keep their values"
    )


def _scaled(made: Draft) -> Iterator[dict[str, int]]:
    """Yield the file's problem, scaled down until its buffers are small."""
    free = made.plan.free
    for least in (256, 128, 64):
        problem = dict(made.study)
        while True:
            largest = max(free, key=lambda name: problem[name])
            total = sum(size_of(t, made.plan, problem, LIMIT) for t in made.tensors)
            if total <= MOST_SMALL and problem[largest] <= least:
                break
            if problem[largest] < 2 or (total <= MOST_SMALL and problem[largest] % 2):
                break
            problem[largest] //= 2
        yield problem


def _configurations(plan: Plan) -> Iterator[dict[str, int | str]]:
    """Yield the default configuration, and feasible ones with other values of each gene."""
    yield plan.defaults
    found = 1
    conditions = [text for _, text, _ in plan.constraints if "p." not in text]
    ends = [(gene.name, value) for end in (-1, 0) for gene in plan.genes if (value := gene.values[end]) != gene.default]
    for name, value in ends:
        config = {**plan.defaults, name: value}
        threads = prod(plan.extents(plan.block, config, {field.name: 64 for field in plan.fields}))
        if 32 <= threads <= 1024 and all(plan.value(text, config, {}) for text in conditions):
            yield config
            found += 1
        if found == TRIED:
            return


def _clean(prober: Prober, made: Draft, problem: Mapping[str, int], config: Mapping[str, Any]) -> bool:
    """Return whether a permitted configuration stays inside the buffers and writes all outputs.

    If a limit stops the run, the result is True.
    """
    if not _permitted(made.plan, problem, config):
        return False
    run = checked(prober, made.plan, made.tensors, problem, config)
    if run.finding is None and not run.ok:
        return "cannot be run" in run.why or "did not end" not in run.why
    return writes_outputs(run, made.tensors)


def _permitted(plan: Plan, problem: Mapping[str, int], config: Mapping[str, Any]) -> bool:
    return all(plan.value(text, config, problem) for _, text, _ in plan.constraints)


def _with_golden(made: Draft, request: TunerRequest, given: Mapping[str, TunerArgument]) -> Draft:
    """Return a draft with the script's arrays and expected results, if they are known."""
    if not request.arrays:
        return made
    import numpy

    positions = {name: at for at, one in enumerate(request.arguments) for name, other in given.items() if other is one}
    values: dict[str, Any] = {}
    with numpy.load(io.BytesIO(request.arrays)) as arrays:
        for tensor in made.tensors:
            shape = shape_of(tensor, made.plan, made.study, LIMIT)
            at = positions.get(tensor.name)
            if tensor.role in ("input", "inout", "constant"):
                own = arrays[f"constant_{tensor.name}" if at is None else f"argument{at}"].reshape(-1)
                values[tensor.name] = own[: prod(shape)]
            if tensor.role in ("output", "inout"):
                if f"answer{at}" not in arrays:
                    return _noted(made, f"the script expects no array for {tensor.name}, which the kernel writes")
                values[OUTPUT + tensor.name] = arrays[f"answer{at}"].reshape(-1)[: prod(shape)]
            for name in (tensor.name, OUTPUT + tensor.name):
                if name in values and values[name].ndim == 1:
                    if values[name].size != prod(shape):
                        return _noted(made, f"its array for {tensor.name} has {values[name].size:,} elements")
                    values[name] = values[name].reshape(shape)
    file = io.BytesIO()
    numpy.savez(file, **values)
    problem = " ".join(f"{name}={value}" for name, value in made.study.items())
    digest = hashlib.sha256(file.getvalue()).hexdigest()
    return replace(made, golden=(problem, GOLDEN_FILE, digest), files={GOLDEN_FILE: file.getvalue()})


def _noted(made: Draft, why: str) -> Draft:
    return replace(made, notes=(*made.notes, f"kernel.py: the script's answer is not used: {why}"))


def require_outputs(tensors: Sequence[DraftTensor], function: KernelFunction) -> None:
    """Reject a kernel without outputs.

    Raises:
        SourceError: no buffer is written.
    """
    if not any(tensor.role in ("output", "inout") for tensor in tensors):
        raise SourceError(f"{function.signature} writes none of its arguments at the tuner's problem; check the grid")
