"""Export of a candidate as one `.cu` file that builds with nvcc, checks its results and times itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from string import Template
from typing import Any

from evokern.compile.build import Target, compile_rendered
from evokern.compile.cache import default_cache
from evokern.compile.device_code import compilable
from evokern.compile.isolated import compile_ptx
from evokern.compile.nvrtc import virtual_architecture
from evokern.compile.occupancy import cooperative_entries, launch_excess
from evokern.compile.records import CompileFailure, Program
from evokern.cuda_source.specialize.specialize import self_contained, specialize
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import DTYPE_BYTES, Kernel, Problem, Tensor, Tolerance
from evokern.declaration.render import Rendered, render
from evokern.errors import DeviceError, KernelError
from evokern.escaping import c_string, in_comment
from evokern.export.banner import (
    ProgramArguments,
    Provenance,
    banner,
    linking_declarations,
    nvcc_options,
    parameters,
    shape_members,
)
from evokern.export.bound_check import ExportedLimit, exported_limit, growth
from evokern.export.declared_state import restored_variables
from evokern.export.formula import cpp_names
from evokern.export.golden import Golden, at_study_shape, golden_check, golden_code, has_cpp_reference
from evokern.export.launcher import MAP_ENCODER, elements, launch_body, number, pointer_alignment, shape_checks
from evokern.export.reference_runs import reference_runs
from evokern.export.sampled_check import SampledField, sampled_fields
from evokern.export.sections import KernelSection, kernel_section, reference_section
from evokern.export.trace import Traces, trace
from evokern.hardware.profiles import Profile

_HOST_TYPES = {
    "f64": "double", "f32": "float", "f16": "__half", "bf16": "__nv_bfloat16", "e4m3": "__nv_fp8_e4m3",
    "e5m2": "__nv_fp8_e5m2", "i64": "long long", "i32": "int", "i16": "short", "i8": "signed char",
    "u8": "unsigned char", "u32": "unsigned", "u64": "unsigned long long",
}  # fmt: skip
_HEADERS = {"f16": "cuda_fp16.h", "bf16": "cuda_bf16.h", "e4m3": "cuda_fp8.h", "e5m2": "cuda_fp8.h"}
_FLOATING = ("f64", "f32", "f16", "bf16", "e4m3", "e5m2")
_CONVERSIONS = {
    "f16": ("__float2half(static_cast<float>(value))", "__half2float(value)"),
    "bf16": ("__float2bfloat16(static_cast<float>(value))", "__bfloat162float(value)"),
    "e4m3": ("__nv_fp8_e4m3(static_cast<float>(value))", "static_cast<float>(value)"),
    "e5m2": ("__nv_fp8_e5m2(static_cast<float>(value))", "static_cast<float>(value)"),
}


@dataclass(frozen=True)
class StandaloneProgram:
    """An exported program, with the parts that are compiled separately."""

    text: str
    """Text of the `.cu` file."""
    section: KernelSection
    """The kernel in it."""
    target: str
    """Architecture for which it is built, for example `sm_90a`."""
    options: tuple[str, ...]
    """The kernel's own compiler options, without macros."""
    original: Rendered
    """The candidate's source and options as it ran in the study."""
    golden: Golden | None = None
    """File that the program needs for its check."""

    @property
    def host_text(self) -> str:
        """Text in which the kernel's section is replaced by declarations, so that a host compiler can read it."""
        return self.text.replace(self.section.text, self.section.declarations)


def standalone_program(
    kernel: Kernel,
    config: Config,
    problem: Problem,
    chip: Profile,
    provenance: Provenance,
    *,
    tolerance: Mapping[str, Tolerance] | None = None,
    sets: int = 4,
    sample_us: float = 500.0,
    file_name: str = "best.cu",
    code: str | None = None,
    golden: Golden | None = None,
    unchecked: str = "",
) -> StandaloneProgram:
    """Return a candidate as a standalone program, which has not been compiled.

    Args:
        kernel: the kernel.
        config: the candidate.
        problem: the problem of the search; its macros are inserted into the source.
        chip: the chip of the search.
        provenance: facts for the first comment.
        tolerance: tolerances by output that replace the kernel's.
        sets: number of input sets that timed calls use in rotation.
        sample_us: target length of a timed replay, µs.
        file_name: name of the file, for the build line.
        code: source of the kernel; None for `device_code`.
        golden: inputs and reference values, for a kernel without a C++ reference.
        unchecked: reason why the program has neither.

    Raises:
        KernelError: reference.h cannot be read, or one of the kernel's declared functions raised.
    """
    traces = trace(kernel, config, problem, chip)
    by_role = {role: [n for n, t in traces.tensors.items() if t.role in roles] for role, roles in _ROLES.items()}
    program = _rendered(kernel, config, problem, chip)
    template = resources.files(__package__).joinpath("program.cu.in").read_text(encoding="utf-8")
    tolerances = {**kernel.workload.tolerance, **(tolerance or {})}
    written = has_cpp_reference(kernel)
    restored = restored_variables(kernel, program, chip)
    sampled = sampled_fields(kernel, config, problem, traces) if written else ()
    judged = by_role["output"] if written else []
    limits = {name: exported_limit(kernel, config, problem, tolerances, name, sampled) for name in judged}
    if code is None:
        code = device_code(kernel, config, problem, chip)
    section = kernel_section(code, program.macros, traces, restored)
    target = chip.architecture + program.architecture_suffix
    arguments = ProgramArguments.of(traces, problem, golden, sampled=bool(sampled), written=written)
    parts = {
        "banner": banner(
            kernel, config, problem, target, provenance, file_name, linking_declarations(traces), arguments
        ),
        "type_headers": _type_headers(traces.tensors) + MAP_ENCODER * any(one.maps for one in traces.launches),
        "shape_members": shape_members(traces),
        "shape_checks": shape_checks(kernel, problem, traces),
        "sizes": _sizes(traces.tensors),
        "launch_parameters": parameters(traces.tensors),
        "addresses": " | ".join(f"reinterpret_cast<uintptr_t>({name})" for name in cpp_names(traces.tensors).values())
        or "0",
        "alignment": pointer_alignment(kernel, config, problem),
        "launch_body": launch_body(traces, restored, _cooperative(kernel, config, problem, chip)),
        "sets": max(1, sets),
        "sample_us": repr(float(sample_us)),
        "conversions": _conversions(traces.tensors),
        "call_arguments": _call_arguments(traces.tensors, by_role),
        "default_shape": ", ".join(str(problem[name]) for name in traces.fields),
        "host_bytes": _host_bytes(traces.tensors, by_role),
        "make_inputs": _make_inputs(traces.tensors, by_role["input"], golden is not None),
        "make_outputs": _make_outputs(traces.tensors, by_role),
        "make_workspaces": _make_workspaces(traces.tensors, by_role["workspace"]),
        **arguments.parts(),
        **(
            {
                "reference_runs": reference_runs(kernel, problem, traces, by_role, sampled, limits),
                "check": _check(kernel, problem, traces, by_role, limits, sampled),
                "checked": "true",
            }
            if written
            else _golden_parts(problem, traces, by_role, golden)
        ),
        "read_golden": "  const Golden golden = checked ? read_golden() : Golden();" if golden else "",
        "keep_path": "  own_path = argv[0];" if golden else "",
        "unchecked": c_string(unchecked or "the golden file is for the study's shape"),
    }
    first, second, third = (
        re.sub(r"\n{3,}", "\n\n", Template(part).substitute(parts))
        for part in re.split(r"\$(?:kernel|reference)\b", template)
    )
    reference = reference_section(kernel) if written else "// none; the check uses a golden file, if any"
    text = f"{first}{section.text}{second}{reference}{third}"
    return StandaloneProgram(text, section, target, tuple(nvcc_options(kernel)), program, golden)


def standalone(
    kernel: Kernel, config: Config, problem: Problem, chip: Profile, provenance: Provenance, **options: Any
) -> str:
    """Return the text of a standalone program; the arguments are those of `standalone_program`."""
    return standalone_program(kernel, config, problem, chip, provenance, **options).text


_ROLES = {"input": ("input", "inout", "constant"), "output": ("output", "inout"), "workspace": ("workspace",)}


def device_code(kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> str:
    """Return the candidate's source as one readable file, with headers inserted and the code of other variants removed.

    The compiler determines the unused code for the chip's architecture. Without a compiler, all code remains.
    """
    program = _rendered(kernel, config, problem, chip)

    def compiled(text: str) -> str | None:
        built = compile_ptx(
            text,
            program.name,
            program.headers,  # for __has_include
            program.options,
            program.entries,
            chip.compute_capability,
            line_info=False,
            suffix=program.architecture_suffix,
        )
        return built.ptx if isinstance(built, Program) else None

    parts = (program.headers, program.entries)
    try:
        return specialize(program.source, program.macros, compiled, *parts).strip()
    except DeviceError as error:
        return whole_code(program, str(error))


def _rendered(kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> Rendered:
    """Return a candidate's source, without host code if the device compiler rejects the host code."""
    program = render(kernel, config, problem)
    try:
        return compilable(program, virtual_architecture(chip.compute_capability, program.architecture_suffix))
    except DeviceError:  # no compiler
        return program


def whole_code(program: Rendered, reason: str) -> str:
    """Return a candidate's source with the code of other variants, after a comment with the reason."""
    text = self_contained(program.source, program.macros, program.headers, program.entries).strip()
    why = in_comment(f"// Still contains the code of other variants, because {' '.join(reason.split())}")
    return f"{why}\n\n{text}"


def _cooperative(kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> frozenset[str]:
    """Return the entry points that need a cooperative launch.

    Raises:
        KernelError: the chip cannot launch the candidate.
    """
    rendered = _rendered(kernel, config, problem, chip)
    try:
        program = compile_rendered(rendered, Target(chip, default_cache()))
    except DeviceError:  # no compiler: a kernel that asks for its grid may synchronise it
        texts = (rendered.source, *rendered.headers.values())
        return frozenset(rendered.entries if any("this_grid" in text for text in texts) else ())
    if isinstance(program, CompileFailure):
        return frozenset()
    for launch in launches_of(kernel, config, problem):
        over = launch_excess(program, launch, chip)
        if over is not None:
            raise KernelError(
                f"the candidate cannot be launched on {chip.model} at {problem}: {over.reason}; export another trial"
            )
    return cooperative_entries(program)


def _type_headers(tensors: Mapping[str, Tensor]) -> str:
    names = dict.fromkeys(_HEADERS[t.dtype] for t in tensors.values() if t.dtype in _HEADERS)
    return "\n".join(f"#include <{name}>" for name in names)


def _sizes(tensors: Mapping[str, Tensor]) -> str:
    """Return C++ functions for the sizes of the workspaces, which the caller allocates."""
    lines = []
    for (name, tensor), own in zip(tensors.items(), cpp_names(tensors).values(), strict=True):
        if tensor.role == "workspace":
            size = f"static_cast<size_t>({elements(tensor)}) * {DTYPE_BYTES[tensor.dtype]}"
            lines += [
                in_comment(f"/// Returns the size in bytes of the workspace `{name}`, which the caller allocates.")
            ]
            lines += [f"EVOKERN_API size_t {own}_bytes([[maybe_unused]] const Shape& shape) {{ return {size}; }}", ""]
    return "\n".join(lines)


def _conversions(tensors: Mapping[str, Tensor]) -> str:
    lines = []
    for dtype in dict.fromkeys(t.dtype for t in tensors.values()):
        if dtype in _CONVERSIONS:
            into, out = _CONVERSIONS[dtype]
            kind = _HOST_TYPES[dtype]
            lines.append(f"template <> [[maybe_unused]] {kind} from_double<{kind}>(double value) {{ return {into}; }}")
            lines.append(f"template <> [[maybe_unused]] double to_double<{kind}>({kind} value) {{ return {out}; }}")
    return "\n".join(lines)


def _call_arguments(tensors: Mapping[str, Tensor], by_role: Mapping[str, list[str]]) -> str:
    """Return the pointers in the order of `ordered`; a buffer that is input and output is passed once."""
    parts = [f"inputs[{i}].devices[set]" for i, name in enumerate(by_role["input"]) if tensors[name].kept]
    parts += [f"outputs[set][{index}]" for index in range(len(by_role["output"]))]
    return "".join(f"{part}, " for part in [*parts, *(f"workspaces[{i}]" for i in range(len(by_role["workspace"])))])


def _host_bytes(tensors: Mapping[str, Tensor], by_role: Mapping[str, list[str]]) -> str:
    """Return C++ that adds up the required host memory: every input in double, plus one buffer at a time."""
    lines = []
    for name in dict.fromkeys((*by_role["input"], *by_role["output"])):
        tensor = tensors[name]
        count = " * ".join([f"static_cast<double>({number(extent)})" for extent in tensor.shape]) or "1.0"
        if name in by_role["input"]:
            lines.append(f"  inputs += 8 * {count};  {in_comment('// ' + name)}")
        lines.append(
            f"  largest = std::max(largest, {DTYPE_BYTES[tensor.dtype]} * {count});  {in_comment('// ' + name)}"
        )
    return "\n".join(lines)


def _golden_parts(
    problem: Problem, traces: Traces, by_role: Mapping[str, list[str]], golden: Golden | None
) -> dict[str, str]:
    """Return the parts of a program without a C++ reference."""
    outputs = by_role["output"]
    kinds = {name: _HOST_TYPES[traces.tensors[name].dtype] for name in outputs}
    counts = [elements(traces.tensors[name]) for name in outputs]
    return {
        "reference_runs": golden_code(golden, traces, by_role),
        "check": golden_check(golden, kinds, outputs, counts),
        "checked": at_study_shape(problem, traces) if golden else "false",
    }


def _make_inputs(tensors: Mapping[str, Tensor], names: list[str], golden: bool) -> str:
    lines = []
    for index, name in enumerate(names):
        tensor = tensors[name]
        low, high = (0, 0) if tensor.dtype in _FLOATING else (tensor.low, tensor.high)
        arguments = f"{elements(tensor)}, {float(tensor.scale)}, {low}, {high}, sets, random"
        made = f"make_input<{_HOST_TYPES[tensor.dtype]}>({arguments})"
        if golden:
            made = f"checked ? golden_input(golden.inputs[{index}], sets) : {made}"
        lines.append(f"  inputs.push_back({made});  {in_comment('// ' + name)}")
    return "\n".join(lines)


def _make_outputs(tensors: Mapping[str, Tensor], by_role: Mapping[str, list[str]]) -> str:
    lines = []
    for name in by_role["output"]:
        size = f"({elements(tensors[name])}) * {DTYPE_BYTES[tensors[name].dtype]}"
        shared = tensors[name].role == "inout"
        buffer = f"inputs[{by_role['input'].index(name)}].devices[set]" if shared else f"make_poisoned({size})"
        lines.append(f"    outputs[set].push_back({buffer});  {in_comment('// ' + name)}")
    return "\n".join(lines)


def _make_workspaces(tensors: Mapping[str, Tensor], names: list[str]) -> str:
    return "\n".join(
        f"  workspaces.push_back(make_poisoned(evokern::{cpp_names(tensors)[name]}_bytes(shape)));" for name in names
    )


def _check(
    kernel: Kernel,
    problem: Problem,
    traces: Traces,
    by_role: Mapping[str, list[str]],
    limits: Mapping[str, ExportedLimit],
    sampled: Sequence[SampledField],
) -> str:
    """Return C++ that calls the reference and compares every output."""
    call = "reference_within(shape, inputs, random, whole)" if sampled else "run_reference(shape, inputs, {})"
    lines = [f"  const std::vector<Expected> expected = {call};", "  double worst = 0;"]
    for index, name in enumerate(by_role["output"]):
        dtype = traces.tensors[name].dtype
        kind, limit, count = _HOST_TYPES[dtype], limits[name], elements(traces.tensors[name])
        what = c_string("bound" if limit.bounded else "tolerance")
        where = f"{c_string(name)}, {what}, outputs[0][{index}], {count}, expected[{index}]"
        parts = [repr(limit.atol), repr(limit.rtol)]
        if limit.function is not None:
            parts.append("1.0")  # the function grows with the shape
        elif limit.bounded:
            lines.append(f"  const double grown_{index} = {growth(kernel, problem, traces)};")
            parts[1] = f"{limit.rtol!r} + {limit.relative!r} * grown_{index}"
            parts += [f"{limit.factor!r} * grown_{index}", f"{limit.constant!r} * grown_{index}"]
        elif limit.elements:  # with more elements, the largest error of a correct kernel grows
            grown = f"std::sqrt(std::max(1.0, std::log(static_cast<double>({count})) / std::log({limit.elements}.0)))"
            lines.append(f"  const double grown_{index} = {grown};")
            parts = [f"{part} * grown_{index}" for part in parts]
        lines.append(f"  worst = std::max(worst, worst_ratio<{kind}>({where}, {', '.join(parts)}));")
    return "\n".join(lines)
