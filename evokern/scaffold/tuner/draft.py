"""Draft a kernel from a tuner's input."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from math import prod
from pathlib import Path

from evokern.compile.device_code import split_options
from evokern.cuda_source import CudaSource, KernelFunction, read
from evokern.cuda_source.c_types import ELEMENT_TYPES, NUMBERS, WHOLE
from evokern.cuda_source.specialize.conditionals import inline_headers
from evokern.cuda_source.specialize.unreferenced import drop_unreferenced
from evokern.errors import SourceError
from evokern.scaffold.buffers import size_of
from evokern.scaffold.draft import Draft, from_reading
from evokern.scaffold.plan import DraftArgument, DraftField, DraftGene, DraftTensor, Plan, unused_name
from evokern.scaffold.probe import Prober, Run
from evokern.scaffold.problems import LIMIT, small_problems
from evokern.scaffold.reading import DRAFTED_FOR, KernelReading, constants_of, resolved_types
from evokern.scaffold.source_text import cpu_function, device_source
from evokern.scaffold.tuner.arithmetic import over_genes
from evokern.scaffold.tuner.request import TunerRequest
from evokern.scaffold.tuner.stated import RTOL, require_outputs, with_stated

VECTOR_PROBLEM = 1 << 12
"""Value of every field in the detection of vector lengths; every vector length divides it."""
MOST_IN_VECTOR = 16
"""Maximum number of elements that one thread processes at once."""
MOST_TRIED = 20_000
"""Maximum number of configurations that are searched for one that satisfies all restrictions."""
_OLD_STANDARD = r"-{1,2}std=c\+\+(?:98|03|11|14)$"
"""C++ standards that CUDA's headers no longer support."""
LEAST_SIZE = 64
"""Minimum number in a compiler option that becomes a problem size; smaller ones (filter widths) stay options."""
LARGEST_COUNT = 1 << 28
"""Largest number that may be a size although no buffer is as large, for example a number of iterations."""
_AXIS = {0: r"width|_x$|^nx$|^x|col", 1: r"height|_y$|^ny$|^y|row", 2: r"depth|_z$|^nz$|^z"}
"""Typical names of the macro for an axis, for choosing between macros with equal numbers."""


def draft_of(request: TunerRequest) -> Draft:
    """Draft the kernel that a tuner tunes.

    Raises:
        SourceError: the source cannot be read or has no such kernel, or an expression of the tuner has no value.
    """
    try:
        return _draft(request)
    except (ArithmeticError, TypeError, ValueError) as error:  # the tuner's expressions, evaluated for its first values
        raise SourceError(f"an expression of the tuner's input has no value: {error}") from error


def reading_of(request: TunerRequest) -> KernelReading:
    """Return what a tuner's input states about its kernel, without runs.

    Raises:
        SourceError: as for `draft_of`.
    """
    try:
        return _read(request)[1]
    except (ArithmeticError, TypeError, ValueError) as error:
        raise SourceError(f"an expression of the tuner's input has no value: {error}") from error


def _read(request: TunerRequest) -> tuple[TunerRequest, KernelReading, CudaSource]:
    if request.file:
        source = read(Path(request.file), request.include)
    else:
        source = read(textwrap.dedent(request.source) + "\n", request.include)
    function = next((entry for entry in source.entries if entry.name == request.kernel), None)
    if function is None:
        known = ", ".join(entry.name for entry in source.entries) or "none"
        raise SourceError(f"the tuned source has no kernel {request.kernel!r}; its kernels: {known}")
    if len(function.parameters) != len(request.arguments):
        raise SourceError(
            f"{function.signature} has {len(function.parameters)} parameters, but the tuner passes "
            f"{len(request.arguments)} arguments"
        )
    request = _with_kernel_types(request, source, function)
    return request, _reading(request, source, function), source


def _draft(request: TunerRequest) -> Draft:
    request, reading, source = _read(request)
    function = reading.function
    made = from_reading(_with_whole_vectors(_with_sizes_as_fields(reading)), known_launch=True)
    made = replace(
        made,
        launch_from="the tuner",
        reference=cpu_function(source, function.name),
        expected=request.expected,
        notes=(*made.notes, *request.notes, *_untranslated(request)),
    )
    made = with_stated(replace(made, same_as_default=True), request, function)
    for position in request.sums:
        made = _summed(made, function.parameters[position].name)
    require_outputs(made.tensors, function)
    return made


def _with_kernel_types(request: TunerRequest, source: CudaSource, function: KernelFunction) -> TunerRequest:
    """Return a request whose arguments have the types that the kernel takes; a note names each difference."""
    template = {parameter.name for parameter in function.template}
    unknown = {p.base for p in function.parameters} - template - {*ELEMENT_TYPES, "void"}
    values = _default_configuration(request, source)
    options = [*_options(request)[0], *(f"-D{name}={value}" for name, value in values.items())]
    types = resolved_types(source.device_text, unknown, options, DRAFTED_FOR[0]) if unknown else {}
    arguments, notes = [], []
    for parameter, given in zip(function.parameters, request.arguments, strict=True):
        base = types.get(parameter.base, parameter.base)
        wanted = (ELEMENT_TYPES if parameter.pointer else NUMBERS).get(base)
        same = (
            wanted is None
            or wanted == given.dtype
            or (wanted[0] in "iu" and given.dtype[0] in "iu" and wanted[1:] == given.dtype[1:])
        )
        if not same and (given.shape is not None) == parameter.pointer:
            taken = f"the kernel takes {parameter.type} ({wanted})"
            notes.append(f"kernel.py: the tuner passes {given.dtype} for {parameter.name or given.name}, but {taken}")
            given = replace(given, dtype=wanted or given.dtype)
        arguments.append(given)
    return replace(request, arguments=tuple(arguments), notes=(*request.notes, *notes))


def _reading(request: TunerRequest, source: CudaSource, function: KernelFunction) -> KernelReading:
    text = drop_unreferenced(inline_headers(source.device_text, source.headers), [function.name])
    names = list(request.parameters)
    macros, defined = _defines(request)
    for name in names:
        if request.defines is not None and name not in request.defines:  # the code's own word, not the parameter
            text = re.sub(rf"\b{re.escape(name)}\b", unused_name(f"{name}_", text), text)
    sizes = _size_macros(request, source, text)
    given = _given_sizes(request, text)
    text = device_source(text, [*names, *sizes.values()], generated=bool(names))
    fields, arguments, literals = _arguments(request, function, sizes)
    fields += [DraftField(name) for name in given if name not in literals]
    literals |= given
    on_axis = {axis: f"p.{name}" for axis, name in sizes.items()}
    for axis, size in enumerate(request.problem_size):
        if axis not in on_axis and isinstance(size, int) and size > 1:
            match = next((name for name, value in literals.items() if value == size), None)
            name = match or unused_name(f"SIZE_{'XYZ'[axis]}", text)
            if match is None:
                fields.append(DraftField(name, why="no macro or argument equals the tuner's problem size"))
                literals[name] = size
            on_axis[axis] = f"p.{name}"
    grid = tuple(_in_fields(extent, {**literals, **given}, axis) for axis, extent in enumerate(_grid(request, on_axis)))
    if not fields:
        more = _grid_sizes(grid, text)
        fields, literals = [DraftField(name) for name in more], {**literals, **more}
        grid = tuple(_in_fields(extent, more, axis) for axis, extent in enumerate(grid))
    while len(grid) > 1 and grid[-1] in ("1", "ceil_div(1, 1)"):
        grid = grid[:-1]
    block = tuple(_extent(request, axis) for axis in range(3))
    while len(block) > 1 and block[-1] == "1":
        block = block[:-1]
    default = _default_configuration(request, source)
    genes = tuple(
        DraftGene(name, tuple(dict.fromkeys(int(v) if isinstance(v, bool) else v for v in values)), default[name])
        for name, values in request.parameters.items()
    )
    macros_of = {name: f"p.{name}" for name in (*sizes.values(), *given)}
    macros_of |= macros
    macros_of |= {f"grid_size_{axis}": g for axis, g in zip("xyz", grid, strict=False) if f"grid_size_{axis}" in text}
    plan = Plan(
        entry=_entry(request, function),
        genes=genes,
        fields=tuple(fields),
        arguments=arguments,
        grid=grid,
        block=block,
        shared=over_genes(request.shared, names) or "0",
        macros=macros_of,
        constraints=tuple((n, _in_fields(text, given, 0), why) for n, text, why in _constraints(request)),
        options=(*(o for o in _options(request)[0] if _defined(o)[0] not in given), *defined),
        constants=constants_of(text, {}),
    )
    return KernelReading(function, plan, text, "the tuner", "", literals)


def _defines(request: TunerRequest) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the macros that the tuner states in addition to its parameters: expressions, and options for other text.

    Raises:
        SourceError: a macro with a parameter's name has another value, or its text is not arithmetic.
    """
    names, macros, options = list(request.parameters), dict[str, str](), list[str]()
    for name, value in (request.defines or {}).items():
        if value == name:
            continue
        formula = over_genes(value, names)
        if name in names or (formula is None and set(re.findall(r"[A-Za-z_]\w*", value)) & {*names}):
            raise SourceError(
                f"the tuner defines the macro {name} as {value!r}; use arithmetic and another macro's name"
            )
        if formula is None:
            options.append(f"-D{name}={value}")
        else:
            macros[name] = formula
    return macros, tuple(options)


def _entry(request: TunerRequest, function: KernelFunction) -> str:
    """Return the kernel's name with its template arguments, in which a parameter is a field of a format string."""
    if not request.template:
        return function.name if function.extern_c else function.qualified
    text = request.template.replace("{", "{{").replace("}", "}}")
    names = "|".join(map(re.escape, request.parameters)) or "$^"
    text = re.sub(rf"\b({names})\b", r"{c.\1}", text)
    return f"{function.qualified}<{text}>"


def _options(request: TunerRequest) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tuner's compiler options that NVRTC accepts, and the others."""
    return split_options(option for option in request.options if not re.match(_OLD_STANDARD, option))


def _defined(option: str) -> tuple[str, str]:
    """Return the macro that a compiler option defines, and its value; empty strings for other options."""
    match = re.fullmatch(r"-D(\w+)=(.*)", option)
    return (match[1], match[2]) if match else ("", "")


def _given_sizes(request: TunerRequest, text: str) -> dict[str, int]:
    """Return the numeric macros that compiler options define and the code uses: the problem sizes."""
    defined = dict(map(_defined, request.options))
    return {
        name: int(value)
        for name, value in defined.items()
        if value.isdigit()
        and int(value) >= LEAST_SIZE
        and name not in request.parameters
        and re.search(rf"\b{re.escape(name)}\b", text)
    }


def _grid_sizes(grid: Sequence[str], text: str) -> dict[str, int]:
    """Return fields for the sizes in a grid, if nothing else states the size of the problem."""
    found: dict[str, int] = {}
    for axis, extent in enumerate(grid):
        numbers = [int(one) for one in re.findall(r"(?<![\w.])[0-9]+(?![\w.])", extent)]
        largest = max(numbers, default=0)
        if largest >= LEAST_SIZE and largest not in found.values():
            found[unused_name(f"SIZE_{'XYZ'[axis]}", text)] = largest
    return found


def _in_fields(text: str, given: Mapping[str, int], axis: int) -> str:
    """Replace field values in an expression with fields; of several fields with one value, use the axis's field."""
    for number in {value for value in given.values() if value >= LEAST_SIZE}:
        fitting = [name for name, value in given.items() if value == number]
        named = [name for name in fitting if re.search(_AXIS[axis], name, re.IGNORECASE)]
        chosen = named[0] if named else fitting[min(axis, len(fitting) - 1)]
        text = re.sub(rf"(?<![\w.]){number}(?![\w.])", f"p.{chosen}", text)
    return text


def _size_macros(request: TunerRequest, source: CudaSource, text: str) -> dict[int, str]:
    """Return a map of each problem axis to the macro with its size."""
    numbers = {m.name: m.number for m in source.macros if m.number is not None and m.name not in request.parameters}
    numbers = {name: number for name, number in numbers.items() if re.search(rf"\b{re.escape(name)}\b", text)}
    found: dict[int, str] = {}
    for axis, size in enumerate(request.problem_size):
        fitting = [name for name, number in numbers.items() if number == size]
        named = [name for name in fitting if re.search(_AXIS[axis], name, re.IGNORECASE)]
        if fitting:
            found[axis] = (named or fitting)[0]
    return found


def _arguments(
    request: TunerRequest, function: KernelFunction, sizes: Mapping[int, str]
) -> tuple[list[DraftField], tuple[DraftArgument, ...], dict[str, int]]:
    """Return the fields, the arguments, and the values that the tuner passes for fields."""
    literals = {name: int(request.problem_size[axis]) for axis, name in sizes.items()}
    fields = [DraftField(name) for name in dict.fromkeys(sizes.values())]
    arguments: list[DraftArgument] = []
    numbers = [size for size in request.problem_size if isinstance(size, int)]
    most = max(LARGEST_COUNT, prod(numbers), *(prod(one.shape or ()) for one in request.arguments))
    most = min(most, (1 << 31) - 1)  # 0 and larger numbers are an offset or a key, not a size
    for position, (parameter, given) in enumerate(zip(function.parameters, request.arguments, strict=True)):
        name = parameter.name or given.name or f"argument{position}"
        if parameter.pointer != (given.shape is not None):
            raise SourceError(f"{function.signature}: the tuner passes {given} for {parameter.type} {name}")
        if parameter.pointer:
            arguments.append(DraftArgument(name, given.dtype, None))
        elif (
            given.dtype[0] in "iu" and (parameter.base in WHOLE or request.template) and 0 < (given.value or 0) <= most
        ):
            field = name.upper()
            fields.append(DraftField(field))
            literals[field] = int(given.value or 0)
            arguments.append(DraftArgument(name, given.dtype, f"p.{field}"))
        else:
            value = bool(given.value) if given.dtype == "bool" else given.value
            arguments.append(DraftArgument(name, given.dtype, repr(value)))
    return fields, tuple(arguments), literals


def _grid(request: TunerRequest, on_axis: Mapping[int, str]) -> Iterator[str]:
    names = list(request.parameters)
    for axis, size in enumerate(request.problem_size):
        amount = on_axis.get(axis) or over_genes(str(size), names)
        if amount is None:
            raise SourceError(f"the problem size {size!r} is not arithmetic over {', '.join(names)}; use a number")
        divisors = request.divisors[axis]
        if divisors is None:
            divisors = (request.block_names[axis],) if request.block_names[axis] in names else ()
        units = [text for item in divisors if (text := over_genes(item, names)) is not None]
        yield f"ceil_div({amount}, {' * '.join(units)})" if units else amount


def _extent(request: TunerRequest, axis: int) -> str:
    name = request.block_names[axis]
    known = over_genes(name, list(request.parameters))
    return known if known is not None else str((256, 1, 1)[axis])  # Kernel Tuner's defaults


def _default_configuration(request: TunerRequest, source: CudaSource) -> dict[str, int | str]:
    """Return a configuration that satisfies all restrictions, near the file's values or with a common block size."""
    own = {m.name: m.number for m in source.macros if m.kind == "default" and m.number is not None}
    names = list(request.parameters)
    block = Plan("", (), (), (), (), tuple(_extent(request, axis) for axis in range(3)))
    conditions = [text for r in request.restrictions if (text := over_genes(r, names)) is not None]
    ordered = []
    for name, values in request.parameters.items():
        wanted = request.defaults.get(name, own.get(name))
        common = (128, values[len(values) // 2]) if name in request.block_names else ()
        preferred = [value for value in (wanted, *common) if value in values]
        ordered.append(list(dict.fromkeys([*preferred, *values])))
    first = dict(zip(names, (values[0] for values in ordered), strict=True))
    for chosen in islice(product(*ordered), MOST_TRIED):
        config = dict(zip(names, chosen, strict=True))
        threads = block.extents(block.block, config, {})
        if 32 <= threads[0] * threads[1] * threads[2] <= 1024 and all(block.value(c, config, {}) for c in conditions):
            return config
    return first


def _constraints(request: TunerRequest) -> Iterator[tuple[str, str, str]]:
    for number, text in enumerate(request.restrictions):
        condition = over_genes(text, list(request.parameters))
        if condition is not None:
            yield f"restriction_{number + 1}", condition, text


def _untranslated(request: TunerRequest) -> Iterator[str]:
    """Yield a note for the compiler options that are dropped, and for each restriction without a translation."""
    if dropped := " ".join(_options(request)[1]):
        yield f"kernel.py: omits the compiler options {dropped}: only nvcc accepts them, or evokern sets them itself"
    for text in request.restrictions:
        if over_genes(text, list(request.parameters)) is None:
            yield f"kernel.py: restriction {text!r} could not be translated; rewrite it as a Constraint"


def _with_sizes_as_fields(reading: KernelReading) -> KernelReading:
    """Turn parameters that change the result, such as a filter's width, into fields of the problem."""
    plan = reading.plan
    prober = Prober(reading.source, DRAFTED_FOR)
    problem = {field.name: 96 if len(plan.grid) < 3 else 48 for field in plan.fields}
    base = prober.run(plan, problem, keep=True)
    if not base.ok:
        return reading
    launch = " ".join((*plan.grid, *plan.block, plan.entry))
    # A tile's size may change what is written, and a switch between layouts reads other buffers.
    free = [
        g for g in plan.genes if not re.search(rf"\bc\.{re.escape(g.name)}\b", launch) and not {*g.values} <= {0, 1}
    ]
    moved = [gene for gene in free if _resizes(prober, plan, problem, gene, base)]
    if not moved:
        return reading
    names = {gene.name for gene in moved}
    fields = tuple(
        DraftField(
            gene.name,
            choices=gene.values,
            default=int(gene.default),
            why="a tunable parameter of the script that changes the result",
        )
        for gene in moved
    )

    def moved_in(text: str) -> str:
        return re.sub(rf"\bc\.({'|'.join(map(re.escape, names))})\b", r"p.\1", text)

    kept = replace(
        plan,
        genes=tuple(gene for gene in plan.genes if gene.name not in names),
        fields=(*plan.fields, *fields),
        macros={**plan.macros, **{name: f"p.{name}" for name in names}},
        shared=moved_in(plan.shared),
        constraints=tuple((label, moved_in(text), why) for label, text, why in plan.constraints),
    )
    return replace(reading, plan=kept, literals={**reading.literals, **{g.name: int(g.default) for g in moved}})


def _with_whole_vectors(reading: KernelReading) -> KernelReading:
    """Add divisibility constraints for parameters that set the number of elements per thread.

    Such a parameter is detected by two runs. If its values divide the problem, it accesses the same elements as the
    default. If the problem is one larger, it accesses other elements: it skips the tail or reads beyond it.
    """
    plan = reading.plan
    prober = Prober(reading.source, DRAFTED_FOR)
    base = dict.fromkeys(plan.free, VECTOR_PROBLEM)
    fixed = {field.name: int(field.default or field.choices[0]) for field in plan.fields if field.choices}
    constraints = list(plan.constraints)
    for name in base:
        whole, tail = base | fixed, {**base, **fixed, name: VECTOR_PROBLEM + 1}
        default, default_tail = prober.run(plan, whole), prober.run(plan, tail)
        if not (default.ok and default_tail.ok):
            continue
        for gene in plan.genes:
            largest = max((v for v in gene.values if isinstance(v, int) and 1 < v <= MOST_IN_VECTOR), default=1)
            if largest == 1 or f"c.{gene.name}" in " ".join((*plan.grid, *plan.block)):
                continue
            config = {**plan.defaults, gene.name: largest}
            run, run_tail = (prober.run(plan, problem, config=config) for problem in (whole, tail))
            if run.ok and _extents(run) == _extents(default) and _extents(run_tail) != _extents(default_tail):
                why = f"with {gene.name} = {largest} the kernel accesses a tail differently than with {gene.default}"
                constraints.append((f"whole_{name.lower()}_{gene.name}", f"divides(c.{gene.name}, p.{name})", why))
    return replace(reading, plan=replace(plan, constraints=tuple(constraints)))


def _resizes(prober: Prober, plan: Plan, problem: Mapping[str, int], gene: DraftGene, base: Run) -> bool:
    """Return whether every other value of a gene that can run changes the extent of a buffer that is read."""
    resized = False
    for value in [value for value in gene.values if value != gene.default][:3]:
        run = prober.run(plan, problem, config={**plan.defaults, gene.name: value}, keep=True)
        if run.ok and not _resized(run, base):
            return False
        resized |= run.ok
    return resized


def _resized(run: Run, base: Run) -> bool:
    """Return whether a buffer that two runs read has different extents, although they write the same elements."""
    pairs = [(one, base.touches[name]) for name, one in run.touches.items()]
    same = all(one.written == other.written for one, other in pairs)
    return same and any(one.read != other.read > 0 < one.read for one, other in pairs)


def _extents(run: Run) -> dict[str, int]:
    return {name: touch.extent for name, touch in run.touches.items()}


def _summed(made: Draft, name: str) -> Draft:
    """Turn an output that the script sums into a workspace, and add a second kernel for the sum."""
    tensor = next(t for t in made.tensors if t.name == name)
    total = unused_name(f"{name}_total", made.source)
    kind = next(written for written, dtype in NUMBERS.items() if dtype == tensor.dtype)
    code = (
        f"\n// The script compares the sum of {name}, which one warp computes here.\n"
        f'extern "C" __global__ void add_up(const {kind}* parts, {kind}* total, int n) {{\n'
        f"  {kind} sum = 0;\n"
        "  for (int i = threadIdx.x; i < n; i += 32) sum += parts[i];\n"
        "  for (int step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(0xffffffff, sum, step);\n"
        "  if (threadIdx.x == 0) *total = sum;\n"
        "}\n"
    )
    blocks = made.plan.whole_grid[0]
    tensors = tuple(
        replace(t, shape=(blocks,), role="workspace", why="one number per block, summed by a second kernel")
        if t.name == name
        else t
        for t in made.tensors
    )
    output = DraftTensor(total, tensor.dtype, ("1",), "output", "the script's result is one number")
    addends = max(size_of(t, made.plan, made.study, LIMIT) for t in tensors if t.role == "input")
    rounding = 0.0 if tensor.dtype[0] in "iu" else float(f"{2e-6 * math.sqrt(addends):.1g}")
    bound = (rounding, RTOL if rounding else 0.0, f"rounding of a sum of {addends:,} numbers in another order")
    made = replace(made, source=made.source + code, tensors=(*tensors, output), finish=(name, total))
    made = replace(made, tolerance={other: one for other, one in made.tolerance.items() if other != name})
    made = replace(made, tolerance={**made.tolerance, total: bound})
    return replace(made, small=made.small or small_problems(made.plan, made.tensors, None))
