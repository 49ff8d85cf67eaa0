"""The first comment of an exported program: build and run commands, linking, and provenance."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem, Tensor
from evokern.declaration.render import without_macros
from evokern.escaping import in_comment, shell_line
from evokern.export.formula import member
from evokern.export.names import cpp_names
from evokern.export.program_arguments import ProgramArguments
from evokern.export.trace import Traces


@dataclass(frozen=True)
class Provenance:
    """Provenance of a candidate, for the first comment of the file."""

    facts: Mapping[str, str] = field(default_factory=dict)
    """Label → text for the study, trial, device, driver, compiler, time with its interval, and baseline."""
    predicted: bool = False
    """Whether the time is predicted."""


LINKED = ("-DEVOKERN_NO_MAIN", "-c")
"""nvcc options that compile an exported program to an object file."""
_BUILD_LINE = "//     nvcc "
_NVRTC_OPTIONS = frozenset(("default-device", "device-as-default-execution-space", "device-int128", "minimal"))
"""Options that nvcc does not have and a specialised source does not need."""
_WHOLE_WORDS = (
    "If the reference for all elements would take over five seconds, the program checks a sample and reports its size.",
    "--whole checks all elements.",
)


def build_commands(text: str, file: Path) -> tuple[str, str]:
    """Return the shell commands that build and run an exported program in its folder.

    Args:
        text: the exported program.
        file: path of the program.
    """
    line = next(line for line in text.split("\n")[1:] if line.startswith(_BUILD_LINE))
    words = shlex.split(line.removeprefix("//"))
    binary = file.parent / _binary(file.name)
    run = str(binary) if binary.is_absolute() else f"./{binary}"
    return shell_line([*words[:-3], file, "-o", binary]), shell_line([run])


def _binary(file_name: str) -> str:
    return file_name.removesuffix(".cu") if file_name.endswith(".cu") else f"{file_name}.out"


def linking_declarations(traces: Traces) -> list[str]:
    """Return the C++ declarations that a program needs to call the object file."""
    names = cpp_names(traces.tensors)
    sizes = [names[name] for name, tensor in traces.tensors.items() if tensor.role == "workspace"]
    return [
        "namespace evokern {",
        f"struct Shape {{ {shape_members(traces)} }};",
        "enum Status { OK = 0, BAD_SHAPE = 1, MISALIGNED = 2, CUDA_ERROR = 3 };",
        "const char* refusal(const Shape& shape);  // reason for rejecting a shape, or nullptr",
        *(f"size_t {name}_bytes(const Shape& shape);" for name in sizes),
        f"Status launch(const Shape& shape, {parameters(traces.tensors)}cudaStream_t stream);",
        "}",
    ]


def banner(
    kernel: Kernel,
    config: Config,
    problem: Problem,
    architecture: str,
    provenance: Provenance,
    file_name: str,
    declarations: Sequence[str],
    arguments: ProgramArguments,
) -> str:
    """Return the first comment of an exported program.

    Args:
        kernel: the kernel.
        config: the candidate.
        problem: the problem of the search.
        architecture: target architecture, for example `sm_90a`.
        provenance: provenance of the candidate.
        file_name: name of the file, for the build line.
        declarations: declarations for programs that link the object file.
        arguments: arguments of the program.
    """
    binary = _binary(file_name)
    options = nvcc_options(kernel)
    build = shell_line(["nvcc", build_target(architecture), *options, file_name, "-o", binary])
    linked = shell_line(["nvcc", build_target(architecture), *options, *LINKED, file_name, "-o", f"{binary}.o"])
    with_check = ", with a check of its results" * arguments.checked
    lines = [f"{kernel.name}: the fastest variant that evokern found{with_check}.", ""]
    lines += [
        f"    {build}",
        f"    {shell_line([f'./{binary}'])} {arguments.usage}     prints the time, then {arguments.verdict}",
        "",
        f"With --check: {arguments.check_words}, for example under compute-sanitizer.",
        *_WHOLE_WORDS[: 2 * arguments.whole],
        "",
        "To link the kernel into your own program, compile it without the check and main:",
        "",
        f"    {linked}",
        "",
        "and add these declarations after cuda_runtime.h:",
        "",
        *(f"    {line}" for line in declarations),
        "",
    ]
    width = max((len(label) for label in provenance.facts), default=0)
    lines += [f"{label + ':':<{width + 1}} {text}" for label, text in provenance.facts.items()]
    lines += ["problem: " + ", ".join(f"{name}={value}" for name, value in problem.items()), "configuration:"]
    lines += [f"    {name} = {value}" for name, value in config.items()]
    # Facts, options and values may come from untrusted databases and folders; none may end its comment line.
    return "\n".join(in_comment(f"// {line}") for line in lines)


def nvcc_options(kernel: Kernel) -> list[str]:
    """Return the kernel's own options for nvcc, without macros, which are part of the program."""
    return [one for one in without_macros(kernel.options) if one.lstrip("-") not in _NVRTC_OPTIONS]


def build_target(architecture: str) -> str:
    """Return nvcc's option for an architecture, such as `sm_89`.

    For an architecture-specific target such as `sm_90a`, nvcc 13.0 misreads the short form as the plain architecture.
    """
    if not architecture.endswith("a"):
        return f"-arch={architecture}"
    return f"-gencode=arch={architecture.replace('sm', 'compute')},code={architecture}"


def ordered(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the buffers in the order of the launcher's parameters: inputs, outputs, workspaces."""
    rank = {"input": 0, "constant": 0, "inout": 1, "output": 1, "workspace": 2}
    return sorted(tensors, key=lambda name: rank[tensors[name].role])


def parameters(tensors: Mapping[str, Tensor]) -> str:
    """Return the launcher's buffer parameters as C++, each with its comma."""
    names = cpp_names(tensors)
    return "".join(f"{'const ' if tensors[name].kept else ''}void* {names[name]}, " for name in ordered(tensors))


def shape_members(traces: Traces) -> str:
    """Return the members of `Shape` as C++; empty if the problem has no numeric field."""
    return f"long long {', '.join(map(member, traces.fields))};" if traces.fields else ""
