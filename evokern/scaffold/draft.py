"""Draft a kernel from its file, from runs on the simulator, and from guesses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from evokern.compile.build import active_includes
from evokern.cuda_source import CudaSource
from evokern.declaration.render import Rendered
from evokern.device.sim.program import SimulatedProgram
from evokern.errors import SourceError
from evokern.scaffold.buffers import block_values, neighbours, size_of, tensors_of, with_indexed_fields
from evokern.scaffold.evidence import LIMITS, Evidence, evidence, problems_at
from evokern.scaffold.genes.confirm import RACES, confirm_genes, with_numbers, without_constants
from evokern.scaffold.infer import find_level_and_grid, with_leading_extents, with_read_constants
from evokern.scaffold.plan import BLOCK_DOC, DraftArgument, DraftGene, DraftTensor, Plan, unused_name, without_fields
from evokern.scaffold.probe import LATER_ONLY, Prober, Run
from evokern.scaffold.problems import checked, clean, small_problems, study_problem, with_multiples
from evokern.scaffold.reading import DRAFTED_FOR, KernelReading, read_kernel
from evokern.scaffold.source_text import cpu_function
from evokern.simt import ERROR, Finding

_WRITABLE = re.compile(
    r"^[ \t]*(?:static\s+)?__device__\s+(?!const\b|constexpr\b|__)(?:[\w:<>]+[\s*]+)+?(\w+)\s*"
    r"(?:\[[^\]]*\]\s*)*(?:=[^;]*)?;",
    re.MULTILINE,
)
"""A writable variable in GPU memory, at the start of a line."""


_SMALLEST = "the smallest grid tried that writes every element"
_EXTENTS = range(1, 129)
"""Extents of a block that are tried; a field with more possible values needs no limit."""
_TORCH_OPTIONS = ("-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__")
_WARP_WIDE = re.compile(r"\b(?:__shfl\w*|__syncwarp|__ballot\w*|__reduce_\w+|__match_\w+|wmma|mma_sync)\b")
"""Operations of whole warps: an extent of 32 is then the warp."""


@dataclass(frozen=True)
class DraftReference:
    """Reference that the user named, as text for `kernel.py`, and its comparison with the default candidate."""

    given: str
    """The option's value."""
    name: str
    """Name of the function, which is the name of the first baseline."""
    imports: tuple[str, ...]
    """Lines that define the function."""
    line: str
    """Statement that returns the outputs by name."""
    files: Mapping[str, str]
    """Further files of the kernel: name → text."""
    differs: str = ""
    """The first element that differs from the reference, in words; empty if the values agree."""
    flops: str = ""
    """Operations of its matrix products as Python text; empty if unknown."""
    rounded: bool = False
    """Whether an output contains whole numbers, which the gate expects as float64."""
    bounds: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Output without a derived bound → proposed bound, and the reason."""


@dataclass(frozen=True)
class Draft:
    """Content of the files that a draft consists of."""

    function: str
    """Name of the kernel in the source."""
    plan: Plan
    """Genes, fields, arguments and launch of the kernel."""
    source: str
    """Text of `kernel.cu`."""
    tensors: tuple[DraftTensor, ...]
    """Buffers of the kernel."""
    small: tuple[dict[str, int], ...]
    """Small problems for the correctness check."""
    study: Mapping[str, int]
    """Problem of the study."""
    launch_from: str
    """Where grid and block come from, for example `line 12`."""
    launch_guess: str = ""
    """Why grid and block are guesses; empty if the file states them."""
    faults: tuple[str, ...] = ()
    """Findings in the kernel, one sentence each; the user must correct them before anything else."""
    compile_error: str = ""
    """The compiler's first error; empty if the kernel compiles."""
    reference: str = ""
    """CPU version of the kernel in the file."""
    expected: str = ""
    """Expected result of a tuning script, in words."""
    notes: tuple[str, ...] = ()
    """Further points for the user to confirm, one sentence each."""
    state: Mapping[str, bytes] = field(default_factory=dict)
    """Module variable that a call changes → its initial bytes, empty if unknown."""
    same_as_default: bool = False
    """Whether the default candidate is the reference until the user writes one."""
    golden: tuple[str, str, str] | None = None
    """Problem, file and digest of recorded inputs and results."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Further files: name → content."""
    tolerance: Mapping[str, tuple[float, float, str]] = field(default_factory=dict)
    """Output → absolute and relative tolerance, and why it is a guess; empty if the bounds are derived."""
    stated: DraftReference | None = None
    """Reference that the user named; None if it is to be written."""
    unread: tuple[str, ...] = ()
    """Fields whose value in the study is not from the file or the user."""
    smaller: str = ""
    """The file's own problem, if the study has a smaller one because the file's is too large for a simulated device."""
    finish: tuple[str, str] | None = None
    """Workspace that a second kernel sums, and the output for the sum."""


def draft(source: CudaSource, entry: str | None) -> Draft:
    """Draft the kernel folder of one kernel in a CUDA file.

    Raises:
        SourceError: the kernel is missing, is ambiguous, or has unsupported arguments.
    """
    reading = read_kernel(source, entry)
    made = from_reading(reading)
    notes = list(made.notes)
    lost = re.search(r'identifier "(\w+)" is undefined', made.compile_error)
    if lost and re.fullmatch(r"[A-Z_][A-Z0-9_]*", lost[1]):
        notes.append(f"kernel.cu: if the build defines {lost[1]}, draft again with -D {lost[1]}=VALUE")
    rendered = Rendered(source.device_text, source.name, source.headers, (), ())
    missing = active_includes(source, source.missing_includes, rendered, DRAFTED_FOR[0])
    names = dict.fromkeys(include.name for include in missing)
    notes += [f"kernel.cu: include {name} was not found" for name in names]
    return replace(made, reference=cpu_function(source, reading.function.name), notes=tuple(notes))


def from_reading(reading: KernelReading, *, known_launch: bool = False) -> Draft:
    """Complete the result of reading a file with the results of runs on the simulator.

    Args:
        reading: result of reading the file.
        known_launch: whether grid and block are certain, so that no others are tried.
    """
    limited = _with_small_blocks(reading)
    made = _from_reading(limited, known_launch)
    own = {one.name: one.choices for one in reading.plan.fields}
    fields = tuple(replace(one, choices=own.get(one.name, one.choices)) for one in made.plan.fields)
    return replace(made, plan=replace(made.plan, fields=fields))


def _with_small_blocks(reading: KernelReading) -> KernelReading:
    """Return the reading with few values for the fields that are extents of the block, which allows few threads."""
    plan = reading.plan
    ones = {one.name: next((c for c in one.choices if isinstance(c, int)), 1) for one in plan.fields}
    fields = []
    for one in plan.fields:
        used = not one.choices and any(re.search(rf"\bp\.{one.name}\b", extent) for extent in plan.block)
        sizes = {n: prod(plan.extents(plan.block, plan.defaults, {**ones, one.name: n})) for n in _EXTENTS if used}
        most = max((n for n, threads in sizes.items() if threads <= DRAFTED_FOR[0].threads_per_block), default=0)
        few = tuple(sorted({most // 2, most - 1, most})) if 1 < most < _EXTENTS[-1] else one.choices
        fields.append(replace(one, choices=few))
    return replace(reading, plan=replace(plan, fields=tuple(fields)))


def _from_reading(reading: KernelReading, known_launch: bool) -> Draft:
    prober = Prober(reading.source, DRAFTED_FOR)
    reading = with_cluster(prober, _as_torch_builds(prober, reading))
    stated = bool(reading.launch_line)
    if not known_launch:
        reading = replace(reading, plan=with_leading_extents(prober, reading.plan))
    plan, found = find_level_and_grid(prober, reading.plan, known_launch=known_launch or stated, whole=not known_launch)
    if found is None:
        return _draft_without_runs(reading, prober)
    if len(plan.fields) < len(reading.plan.fields):  # two fields are equal; the launch is still the file's
        reading = replace(reading, plan=replace(reading.plan, grid=plan.grid))
    plan = with_read_constants(plan, found)
    plan, found = _without_idle_fields(prober, reading, plan, found)
    plan, found = with_indexed_fields(plan, found) if not known_launch else (plan, found)
    tensors = tensors_of(plan, found, reading.source)
    plan = with_multiples(prober, plan, found, tensors)
    notes = list(_unwritten(reading, plan, found, tensors)) if reading.launch_line and not known_launch else []
    if not known_launch and not found.exceeded and not prober.exhausted:
        plan = _with_block_genes(prober, plan, tensors, reading.source)
    notes += _architecture_note(prober, plan)
    small = small_problems(plan, tensors, None if found.exceeded else prober)  # which drops problems with findings
    source = reading.source
    if not known_launch and not found.exceeded:
        least = min(small, key=lambda problem: prod(problem.values()))
        plan, fixed = confirm_genes(prober, plan, tensors, least)
        source, tensors = without_constants(source, fixed), with_numbers(tensors, fixed)
        notes += [f"kernel.cu: {gene.name} = {gene.default} stays fixed: {gene.why}" for gene in fixed]
    return Draft(
        function=reading.function.name,
        plan=plan,
        source=source,
        tensors=tensors,
        small=small,
        study=study_problem(plan, tensors, reading.literals),
        unread=tuple(f.name for f in plan.fields if f.default is None and f.name not in reading.literals),
        launch_from=reading.launch_line,
        launch_guess="" if reading.launch_line else f"{_SMALLEST}; {reading.unread}",
        faults=(*_excess_faults(prober, plan, found, tensors, small), *_own_races(prober, plan, tensors, small)),
        notes=tuple(notes),
        state={name: data for run in found.runs for name, data in run.changed.items()},
    )


def _as_torch_builds(prober: Prober, reading: KernelReading) -> KernelReading:
    """Return the reading with the macros of torch's builds if the source compiles only with them."""
    if "namespace c10" not in reading.source or not isinstance(_default_program(prober, reading.plan), str):
        return reading
    plan = replace(reading.plan, options=(*reading.plan.options, *_TORCH_OPTIONS))
    return reading if isinstance(_default_program(prober, plan), str) else replace(reading, plan=plan)


def _excess_faults(
    prober: Prober, plan: Plan, found: Evidence, tensors: Sequence[DraftTensor], small: Sequence[Mapping[str, int]]
) -> tuple[str, ...]:
    """Return a sentence for each buffer that the kernel exceeds, with the line of the first access beyond it."""
    made = []
    for name, stated in found.exceeded.items():
        place = "kernel.cu"
        for problem in small:
            sizes = {t.name: size_of(t, plan, problem, LIMITS[-1]) for t in tensors}
            exact = {each: size if each == name else 2 * size + 64 for each, size in sizes.items()}
            finding = prober.run(plan, problem, limit=LIMITS[-1], exact=exact).finding
            if finding and finding.kind == "out_of_bounds":
                place = f"{finding.file or 'kernel.cu'}:{finding.line}"
                break
        elements = " * ".join(stated.axes).replace("p.", "").replace("c.", "")
        made.append(f"{place}: out of bounds: {name} has {elements} elements ({stated.where}), and the kernel accesses "
                    "elements beyond them; correct the check, or the size in kernel.py")  # fmt: skip
    return tuple(made)


def _own_races(
    prober: Prober, plan: Plan, tensors: Sequence[DraftTensor], small: Sequence[Mapping[str, int]]
) -> Iterator[str]:
    """Yield a sentence about the first race of the file's own values, which no value of a gene causes."""
    for problem in small:
        run = checked(prober, plan, tensors, problem)
        found = run.finding
        if run.ok:
            return
        if found and found.kind in RACES and found.level == ERROR:
            sizes = " ".join(f"{name}={value}" for name, value in problem.items())
            what = f"{found.kind.replace('_', ' ')} with the file's own values at {sizes}"
            yield f"{found.file or 'kernel.cu'}:{found.line}: {what}: {found.hint.rstrip('.')}"
            return


def with_cluster(prober: Prober, reading: KernelReading) -> KernelReading:
    """Return the parsed source, with the compiled kernel's cluster size if the source specifies none."""
    program = _default_program(prober, reading.plan)
    if reading.plan.cluster or isinstance(program, str):
        return reading
    symbol = program.symbols[reading.plan.entry_of(reading.plan.defaults, _any_problem(reading.plan))]
    try:
        extents = program.module.program(symbol).entry.directives.get("reqnctapercluster", ())
    except SourceError:  # an instruction that the simulator does not support; the draft says so
        return reading
    while extents and extents[-1] <= 1:  # zeros mean that the launch sets the cluster
        extents = extents[:-1]
    return replace(reading, plan=replace(reading.plan, cluster=tuple(map(str, extents))))


def _default_program(prober: Prober, plan: Plan) -> SimulatedProgram | str:
    problem = _any_problem(plan)
    return prober.program(plan.entry_of(plan.defaults, problem), plan.defines(plan.defaults, problem))


def _any_problem(plan: Plan) -> dict[str, int]:
    return {f.name: next((c for c in f.choices if isinstance(c, int)), 64) for f in plan.fields}


def _architecture_note(prober: Prober, plan: Plan) -> list[str]:
    """Return a note about the required GPU architecture if earlier ones lack a feature."""
    chip = prober.chips[0]
    if chip is DRAFTED_FOR[0]:
        return []
    what = "it uses thread-block clusters" if plan.cluster else "it uses features that earlier GPUs lack"
    return [
        f"kernel.cu: {what}, so it needs {chip.architecture} or later; search on such a GPU or with "
        f"--device sim:{chip.name}"
    ]


def _unwritten(reading: KernelReading, plan: Plan, found: Evidence, tensors: Sequence[DraftTensor]) -> Iterator[str]:
    """Yield a note for each buffer that the runs with the file's launch wrote in part."""
    for tensor in tensors:
        if tensor.name not in found.covered or any(run.touches[tensor.name].in_place for run in found.runs):
            continue
        share = min(
            run.touches[tensor.name].distinct / max(1, size_of(tensor, plan, problem, limit))
            for run, problem, limit in zip(found.runs, found.problems, LIMITS, strict=False)
        )
        if share < 1:
            yield (
                f"kernel.py: with the launch on {reading.launch_line}, runs wrote {100 * share:.0f} % of {tensor.name} "
                f"({', '.join(tensor.shape)}, a guess); check the shape and the grid"
            )


def _without_idle_fields(prober: Prober, reading: KernelReading, plan: Plan, found: Evidence) -> tuple[Plan, Evidence]:
    """Remove fields that determine neither the size of a buffer nor the grid."""
    axes = " ".join(axis for fit in found.fits.values() if fit for axis in fit.axes)
    computed = [a.expression or "" for a in plan.arguments if not re.fullmatch(r"p\.\w+", a.expression or "")]
    text = " ".join([axes, *plan.grid, *plan.block, plan.shared, *plan.macros.values(), *computed])
    used = {f.name for f in plan.fields if re.search(rf"p\.{re.escape(f.name)}\b", text)}
    idle = {f.name for f in plan.fields} - used
    if reading.launch_line:  # a variable that the file passes is a field, though its value has no effect on sizes
        idle = {name for name in idle if name in reading.literals}
    if not idle or not used or prober.exhausted:
        return plan, found
    smaller = without_fields(plan, idle, reading.literals)
    again = evidence(prober, smaller, found.level)
    return (smaller, replace(again, indexed=found.indexed)) if again.allows_draft else (plan, found)


def _with_block_genes(prober: Prober, plan: Plan, tensors: Sequence[DraftTensor], source: str) -> Plan:
    """Turn a block's constant extents into genes if runs with other values are clean.

    A grid number equal to a block extent is assumed to be that extent, preferably on the same axis.
    """
    if any("c." in extent for extent in plan.block):
        return plan
    # Twice as large, so that several blocks remain even if their extent doubles.
    long = plan.free
    problems = [{**p, **{name: 2 * p[name] for name in long}} for p in small_problems(plan, tensors, prober)]
    for axis, extent in enumerate(plan.block):
        if not extent.isdigit() or extent == "1" or (extent == "32" and _WARP_WIDE.search(source)):
            continue
        name = unused_name(f"BLOCK_{'XYZ'[axis]}", source)
        rounded = rf"\((.+) \+ {int(extent) - 1}\) // {extent}$"
        before = [re.sub(rounded, rf"ceil_div(\1, {extent})", text) for text in plan.grid]
        number = re.compile(rf"(?<![\w.]){extent}(?![\w.])")
        cut = [at for at, text in enumerate(before) if number.search(text)]
        mine = axis if axis in cut else cut[0] if len(cut) == 1 and plan.block.count(extent) == 1 else None
        grid = tuple(number.sub(f"c.{name}", text) if at == mine else text for at, text in enumerate(before))
        block = tuple(f"c.{name}" if at == axis else text for at, text in enumerate(plan.block))
        values = (block_values if len(plan.block) == 1 else neighbours)(int(extent))
        gene = DraftGene(name, values, int(extent), "half and double the file's value", BLOCK_DOC)
        wider = replace(plan, genes=(*plan.genes, gene), grid=grid, block=block)
        sound = [value for value in gene.values if _sound(prober, wider, {name: value}, tensors, problems)]
        if int(extent) in sound and len(sound) > 1:
            plan = replace(wider, genes=(*plan.genes, replace(gene, values=tuple(sound))))
    return plan


def _sound(
    prober: Prober, plan: Plan, changed: Mapping[str, int | str], tensors: Sequence[DraftTensor],
    problems: Sequence[Mapping[str, int]],
) -> bool:  # fmt: skip
    genes = tuple(replace(gene, default=changed.get(gene.name, gene.default)) for gene in plan.genes)
    return all(clean(prober, replace(plan, genes=genes), tensors, problem) for problem in problems)


def _draft_without_runs(reading: KernelReading, prober: Prober) -> Draft:
    """Return a draft made without runs: roles follow from const, and each thread has one element."""
    plan = reading.plan
    if not plan.grid:
        plan = replace(plan, grid=(f"ceil_div(p.{plan.fields[0].name}, {plan.block[0]})",))
    program = _default_program(prober, plan)
    error = program if isinstance(program, str) and LATER_ONLY not in program else ""
    problems = [_any_problem(plan), *problems_at(plan.fields, 1, len(plan.grid) < 2)]
    problem, run = next(((p, r) for p in problems if not (r := prober.run(plan, p)).ok), (problems[0], Run({})))
    why = error or run.why or "no run shows what the kernel writes"
    fault = "" if error or run.finding is None else _fault_in_block(plan, run.finding, problem, reading)
    lost = f"; the simulator could not run the kernel ({why})"
    if error:
        lost = "; the simulator could not run the kernel"
    elif fault:
        lost = ", because the finding ends every run"
    elif run.ok:
        written = any(touch.written for touch in run.touches.values())
        lost = (
            "; no tried grid writes a whole buffer" if written else "; the kernel ran, but wrote no element of a buffer"
        )
    note = f"kernel.py: roles, shapes and launch are guesses{lost}"
    tensors = tuple(_without_run(reading, a, why) for a in plan.arguments if a.is_tensor)
    if not any(t.role == "output" for t in tensors):
        tensors = (*tensors[:-1], replace(tensors[-1], role="output"))
    return Draft(
        function=reading.function.name,
        plan=plan,
        source=reading.source,
        tensors=tensors,
        small=small_problems(plan, tensors, None),
        study=study_problem(plan, tensors, reading.literals),
        unread=tuple(f.name for f in plan.fields if f.default is None and f.name not in reading.literals),
        launch_from=reading.launch_line,
        launch_guess="" if reading.launch_line else f"{reading.unread}, and no run shows them",
        state=dict.fromkeys(_WRITABLE.findall(reading.source), b""),
        faults=(fault,) if fault else (),
        compile_error=error,
        notes=(note,),
    )


def _without_run(reading: KernelReading, argument: DraftArgument, why: str) -> DraftTensor:
    """Return a buffer with the shape that the file states, or else with the first fields."""
    const = {p.name for p in reading.function.parameters if p.const}
    copied = reading.copied.get(argument.name, "")
    role = "input" if argument.name in const or copied == "in" else "inout" if copied == "both" else "output"
    stated = reading.plan.stated.get(argument.name)
    if stated and stated.axes and (argument.name in const or copied):
        return DraftTensor(argument.name, argument.dtype, stated.axes, role)
    shape = stated.axes if stated and stated.axes else tuple(f"p.{f.name}" for f in reading.plan.fields[:2])
    return DraftTensor(argument.name, argument.dtype, shape, role, f"the kernel did not run: {why}")


def _fault_in_block(plan: Plan, finding: Finding, problem: Mapping[str, int], reading: KernelReading) -> str:
    """Return a sentence about an access outside shared or local memory, whose size the source or the launch states."""
    if finding.kind != "out_of_bounds" or not re.search(r"\.(?:shared|local)\b", finding.instruction):
        return ""
    space = "local" if ".local" in finding.instruction else "shared"
    block = " x ".join(str(size) for size in plan.extents(plan.block, plan.defaults, problem) if size > 1)
    values = " ".join(f"{name}={value}" for name, value in problem.items())
    dynamic = plan.value(plan.shared, plan.defaults, problem)
    guess = "" if reading.launch_line else ", which is a guess"
    bytes_ = f" and {dynamic:,} bytes of dynamic shared memory{guess}" if dynamic and space == "shared" else ""
    return (
        f"{finding.file or 'kernel.cu'}:{finding.line}: out of bounds: {finding.allocation or 'an access'}, byte "
        f"{finding.offset:,}, is outside {space} memory at {values} with blocks of {block or 1} threads{bytes_}; "
        "correct the index or the size"
    )
