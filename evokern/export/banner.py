"""Command line and first comment of an exported program: arguments, build and run commands, linking, provenance."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem, Tensor
from evokern.declaration.render import without_macros
from evokern.escaping import c_string, in_comment, shell_line
from evokern.export.formula import cpp_names, member
from evokern.export.golden import Golden
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


_PARSE_SHAPE = r"""bool parse_shape(const char* text, Shape& shape) {
  long long* fields[] = {@FIELDS@};
  const size_t count = sizeof(fields) / sizeof(fields[0]);
  char* end = const_cast<char*>(text);
  for (size_t i = 0; i < count; i++) {
    const char* start = end;
    *fields[i] = std::strtoll(start, &end, 10);
    if (end == start || *end != (i + 1 < count ? ',' : '\0')) return false;
    end++;
  }
  return true;
}
"""
_PARSE_SEED = r"""bool parse_seed(const char* text, unsigned long long& seed) {
  char* end = nullptr;
  seed = std::strtoull(text, &end, 10);
  return *text >= '0' && *text <= '9' && *end == '\0';
}
"""
_WHOLE_OPTION = """ else if (std::strcmp(argv[i], "--whole") == 0) {
      whole = true;
    }"""
_REFUSED = "2 invalid arguments, or a shape that is not supported or too large; 3 CUDA error"


@dataclass(frozen=True)
class ProgramArguments:
    """Arguments that a program takes; one of a single shape takes none, and one with golden inputs needs no seed."""

    fields: tuple[str, ...]
    """Fields of the shape."""
    example: str
    """The study's shape, as an argument."""
    whole: bool
    """Whether a long check samples."""
    golden: str
    """Name of the golden file; empty if there is none."""
    checked: bool
    """Whether the program has a check."""

    @classmethod
    def of(
        cls, traces: Traces, problem: Mapping[str, object], golden: Golden | None, *, sampled: bool, written: bool
    ) -> ProgramArguments:
        """Return the arguments of a program.

        Args:
            traces: the traced shape.
            problem: problem of the search.
            golden: its golden file.
            sampled: whether a long check samples.
            written: whether it has a C++ reference.
        """
        example = ",".join(str(problem[name]) for name in traces.fields)
        name = golden.file_name if golden else ""
        return cls(tuple(traces.fields), example, sampled, name, written or golden is not None)

    @property
    def seeded(self) -> bool:
        """Whether a seed changes the inputs."""
        return bool(self.fields) or not self.golden

    @property
    def usage(self) -> str:
        """The arguments in the usage line."""
        optional = {"--check": True, "--whole": self.whole, "SHAPE": bool(self.fields), "SEED": self.seeded}
        return " ".join(f"[{name}]" for name, takes in optional.items() if takes)

    @property
    def verdict(self) -> str:
        """Last line that the program prints."""
        return "PASS (exit 0) or FAIL (exit 1)" if self.checked else "NOT CHECKED (exit 0)"

    @property
    def check_words(self) -> str:
        """Effect of `--check`."""
        if not self.checked:
            return "run one call, without timing"
        against = f"the values in {self.golden}" if self.golden else "the reference"
        return f"compare one call with {against}, without timing"

    def parts(self) -> dict[str, str]:
        """Return the parts of the program's template."""
        shape = [f"SHAPE    {','.join(self.fields)}, for example {self.example}"]
        inputs = "the random inputs at another shape" if self.golden else "the random inputs"
        lines = [f"--check  {self.check_words} (for compute-sanitizer)"]
        lines += [*shape * bool(self.fields), *[f"SEED     seed for {inputs}, an integer (default: 1)"] * self.seeded]
        printed = [f'  std::fprintf(file, "  %s\\n", {c_string(line)});' for line in lines]
        if self.whole:
            text = r'"  --whole  check every element, even if the reference takes over %g s\n", WHOLE_S'
            printed.insert(1, f"  std::fprintf(file, {text});")
        codes = f"exit code: {'0 PASS; 1 FAIL' if self.checked else '0 done, not checked'}; {_REFUSED}"
        printed.append(f'  std::fprintf(file, "%s\\n", {c_string(codes)});')
        words = [f"parse_shape(words[{0}], shape)"] * bool(self.fields)
        words += [f"parse_seed(words[{len(words)}], seed)"] * self.seeded
        failing = [f"(words.size() > {at} && !{call})" for at, call in enumerate(words)]
        addresses = ", ".join(f"&shape.{member(name)}" for name in self.fields)
        return {
            "usage": self.usage,
            "help": "\n".join(printed),
            "parse_shape": _PARSE_SHAPE.replace("@FIELDS@", addresses) if self.fields else "",
            "parse_seed": _PARSE_SEED if self.seeded else "",
            "bad_words": " ||\n      ".join([f"words.size() > {len(words)}", *failing]),
            "whole_option": _WHOLE_OPTION if self.whole else "",
        }


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
