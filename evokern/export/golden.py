"""Check of an exported program without a C++ reference: inputs, reference values and allowed errors in a file.

The file lies next to the program. It is for the study's problem only; at other shapes, the program times its calls and
says that they are not checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evokern.declaration.as_data.declared import functions_advice, has_functions
from evokern.declaration.genes import Config
from evokern.declaration.kernel import DTYPE_BYTES, Kernel, Problem, Tensor, Tolerance
from evokern.declaration.kernel_files import REFERENCE
from evokern.errors import KernelError
from evokern.escaping import c_string, in_comment
from evokern.export.formula import member
from evokern.export.trace import Traces
from evokern.files import is_file

if TYPE_CHECKING:
    import torch

MOST_ELEMENTS = 1 << 20
"""Maximum number of elements of an output in the file; of more, a random sample is checked."""
MOST_BYTES = 1 << 30
"""Maximum size of the inputs in the file."""
_MAGIC = b"EVOKERN1"
_SEED = 1


@dataclass(frozen=True)
class Golden:
    """Inputs with the reference values of the outputs."""

    data: bytes
    """Content of the file."""
    file_name: str
    """Name of the file."""
    counts: Mapping[str, int]
    """Output → number of its elements in the file."""

    @property
    def identity(self) -> str:
        """Sixteen digits that the program and its file have in common."""
        return self.data[len(_MAGIC) : len(_MAGIC) + 16].decode()


def has_cpp_reference(kernel: Kernel) -> bool:
    """Return whether a kernel has a reference in C++, so that its exported program needs no file."""
    known = kernel.file_text(REFERENCE) is not None or is_file(kernel.folder / REFERENCE)
    return kernel.workload.cpp_reference and known


def golden_of(
    kernel: Kernel, config: Config, problem: Problem, tolerances: Mapping[str, Tolerance], program: str
) -> tuple[Golden | None, str]:
    """Return the file for a program, or the reason why there is none.

    Args:
        kernel: the kernel.
        config: the candidate.
        problem: the problem of the program.
        tolerances: tolerance of each output.
        program: name of the program's file.

    Raises:
        KernelError: the reference raised or returned something unsuitable.
    """
    import torch

    from evokern.gate.comparison import allowed_error
    from evokern.gate.data import draw, torch_dtype
    from evokern.gate.references import answers_of

    if not has_functions(kernel):
        return None, f"the reference was not known when the program was exported; {functions_advice(kernel)}"
    tensors = kernel.workload.buffers(problem, config)
    size = sum(tensor.bytes for tensor in tensors.values() if tensor.given)
    if size > MOST_BYTES:
        return None, f"its inputs take {size / 2**30:.1f} GiB, more than a file should"
    generator = torch.Generator().manual_seed(_SEED)
    inputs: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.given:
            inputs[name] = torch.empty(tensor.shape, dtype=torch_dtype(tensor.dtype))
            draw(tensor, "normal", inputs[name], generator)
    try:
        answers = answers_of(kernel, problem, tensors, tolerances, inputs, exact=False)
    except torch.OutOfMemoryError as error:
        raise KernelError(f"the reference of kernel {kernel.name} needs more memory than is free") from error
    parts = [_bytes(values) for values in inputs.values()]
    counts = {}
    for name, expected in answers.items():
        limit = tolerances[name].for_tensor(tensors[name])
        allowed = allowed_error(limit, expected, answers.errors.get(name))
        wanted, allowed = expected.reshape(-1).double(), allowed.reshape(-1).double()
        counts[name] = min(MOST_ELEMENTS, wanted.numel())
        if counts[name] < wanted.numel():
            places = torch.randperm(wanted.numel(), generator=generator)[: counts[name]].sort().values
            parts.append(_bytes(places))
            wanted, allowed = wanted[places], allowed[places]
        # An error of 0 divided by 0 would be NaN, which fails.
        parts += [_bytes(wanted), _bytes(allowed.clamp(min=5e-324))]
    body = b"".join(parts)
    identity = hashlib.sha256(body).hexdigest()[:16].encode()
    name = f"{program.removesuffix('.cu')}.golden"
    return Golden(_MAGIC + identity + body, name, counts), ""


def _bytes(values: torch.Tensor) -> bytes:
    import torch

    return bytes(values.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def at_study_shape(problem: Problem, traces: Traces) -> str:
    """Return the C++ condition that the shape is the study's."""
    return " && ".join(f"shape.{member(name)} == {int(problem[name])}" for name in traces.fields) or "true"


def golden_code(golden: Golden | None, traces: Traces, by_role: Mapping[str, Sequence[str]]) -> str:
    """Return the C++ functions that read the file; without a file, nothing."""
    if golden is None:
        return ""
    reads = [
        f"  golden.inputs.push_back(read_part(file, {traces_bytes(traces.tensors[name])}));  {in_comment('// ' + name)}"
        for name in by_role["input"]
    ]
    for name in by_role["output"]:
        count = golden.counts[name]
        sampled = count < traces_elements(traces.tensors[name])
        reads.append(f"  golden.expected.push_back(read_expected(file, {count}, {str(sampled).lower()}));  "
                     f"{in_comment('// ' + name)}")  # fmt: skip
    return _CODE.replace("@FILE@", c_string(golden.file_name)).replace("@ID@", golden.identity).replace(
        "@READS@", "\n".join(reads)
    )  # fmt: skip


def traces_elements(tensor: Tensor) -> int:
    """Return the number of elements of a traced buffer at the study's shape."""
    total = 1
    for extent in tensor.shape:
        total *= int(extent)
    return total


def traces_bytes(tensor: Tensor) -> int:
    """Return the size of a traced buffer at the study's shape, in bytes."""
    return traces_elements(tensor) * DTYPE_BYTES[tensor.dtype]


def golden_check(golden: Golden | None, kinds: Mapping[str, str], outputs: Sequence[str], counts: Sequence[str]) -> str:
    """Return the C++ code that compares the outputs with the file.

    Args:
        golden: the file; None if there is none.
        kinds: output → its C++ type.
        outputs: the outputs, in order.
        counts: C++ expressions of their numbers of elements.
    """
    lines = ["  double worst = 0;"]
    for index, (name, count) in enumerate(zip(outputs, counts, strict=True) if golden else ()):
        where = f"{c_string(name)}, {c_string('allowed error')}, outputs[0][{index}], {count}, golden.expected[{index}]"
        lines.append(f"  if (checked) worst = std::max(worst, worst_ratio<{kinds[name]}>({where}, 0, 0, 1));")
    return "\n".join(lines)


_CODE = """constexpr const char* GOLDEN = @FILE@;  // inputs, reference values and allowed errors
static const char* own_path = "";

/// Contents of the golden file.
struct Golden {
  std::vector<std::vector<char>> inputs;
  std::vector<Expected> expected;  // the magnitudes are the allowed errors
};

std::vector<char> read_part(std::FILE* file, size_t bytes) {
  std::vector<char> part(bytes);
  if (std::fread(part.data(), 1, bytes, file) == bytes) return part;
  std::fprintf(stderr, "%s is too short; export the program again\\n", GOLDEN);
  std::exit(2);
}

Expected read_expected(std::FILE* file, size_t count, bool sampled) {
  Expected expected;
  const auto fill = [&](void* into) { std::memcpy(into, read_part(file, 8 * count).data(), 8 * count); };
  if (sampled) expected.places.resize(count), fill(expected.places.data());
  expected.values.resize(count), fill(expected.values.data());
  expected.magnitudes.resize(count), fill(expected.magnitudes.data());
  return expected;
}

/// Returns the contents of the golden file next to the program or in the working directory.
Golden read_golden() {
  std::vector<char> beside(own_path, own_path + std::strlen(own_path) + 1);
  while (beside.size() > 1 && beside[beside.size() - 2] != '/') beside.erase(beside.end() - 2);
  beside.insert(beside.end() - 1, GOLDEN, GOLDEN + std::strlen(GOLDEN));
  std::FILE* file = std::fopen(beside.data(), "rb");
  if (!file) file = std::fopen(GOLDEN, "rb");
  if (!file) {
    std::fprintf(stderr, "cannot open %s, which the check needs; put it next to the program\\n", GOLDEN);
    std::exit(2);
  }
  if (std::memcmp(read_part(file, 24).data(), "EVOKERN1@ID@", 24) != 0) {
    std::fprintf(stderr, "%s belongs to another program; export both again\\n", GOLDEN);
    std::exit(2);
  }
  Golden golden;
@READS@
  std::fclose(file);
  return golden;
}

Input golden_input(const std::vector<char>& values, int sets) {
  Input input;
  input.devices = copies(values.data(), values.size(), sets);
  return input;
}
"""
