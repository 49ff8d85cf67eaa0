"""Comparison of a kernel's two references: Python for the correctness gate, C++ for exported programs."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evokern.declaration.kernel import Kernel, Problem, Tensor
from evokern.errors import KERNEL_CODE_EXCEPTIONS, KernelError
from evokern.study.settings import InputSet

if TYPE_CHECKING:
    import torch

MAX_RELATIVE_DIFFERENCE = 1e-9
"""Largest allowed difference between the references (both in double), relative to the largest output."""


def workload_tensors(kernel: Kernel, problem: Problem) -> dict[str, Tensor]:
    """Return the default candidate's buffers.

    Raises:
        KernelError: the kernel's `tensors` raised.
    """
    try:
        return kernel.workload.buffers(problem, kernel.space.default())
    except KernelError:
        raise
    except KERNEL_CODE_EXCEPTIONS as error:
        raise KernelError(
            f"kernel {kernel.name}: tensors raised {type(error).__name__} for {problem}: {error}"
        ) from error


def draw_inputs(tensors: Mapping[str, Tensor], seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random inputs, drawn in each tensor's type and converted to double for the references."""
    import torch

    storage = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
               "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    drawn: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if not tensor.given:
            continue
        if tensor.draw is not None:
            drawn[name] = tensor.draw(generator).to(torch.float64)
        elif tensor.dtype in storage:
            values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * tensor.scale
            drawn[name] = values.to(storage[tensor.dtype]).to(torch.float64)
        else:
            whole = torch.randint(tensor.low, tensor.high + 1, tensor.shape, generator=generator)
            drawn[name] = whole.to(torch.float64)
    return drawn


def python_reference(kernel: Kernel, problem: Problem, tensors: Mapping[str, Tensor]) -> dict[str, torch.Tensor]:
    """Run the kernel's Python reference on random inputs and check its results.

    Raises:
        KernelError: the reference raises, omits an output, or returns a wrong shape, a wrong dtype, NaN or infinity.
    """
    import torch

    inputs = draw_inputs(tensors)
    try:
        results: Mapping[str, Any] = kernel.workload.reference(problem, inputs)
    except KERNEL_CODE_EXCEPTIONS as error:
        raise KernelError(
            f"kernel {kernel.name}: reference raised {type(error).__name__} for {problem}: {error}"
        ) from error
    wanted = {name: tensor for name, tensor in tensors.items() if tensor.role in ("output", "inout")}
    if not isinstance(results, Mapping) or set(results) != set(wanted):
        got = sorted(results) if isinstance(results, Mapping) else type(results).__name__
        raise KernelError(
            f"kernel {kernel.name}: reference returned {got}; it must return a dict of the outputs {sorted(wanted)}"
        )
    for name, tensor in wanted.items():
        result = results[name]
        if not isinstance(result, torch.Tensor):
            raise KernelError(f"kernel {kernel.name}: reference[{name!r}] is a {type(result).__name__}, not a tensor")
        if tuple(result.shape) != tensor.shape:
            raise KernelError(
                f"kernel {kernel.name}: reference[{name!r}] has shape {tuple(result.shape)}; "
                f"tensors declares {tensor.shape}"
            )
        if result.dtype != torch.float64:
            raise KernelError(f"kernel {kernel.name}: reference[{name!r}] is {result.dtype}; it must be torch.float64")
        if not bool(torch.isfinite(result).all()):
            raise KernelError(f"kernel {kernel.name}: reference[{name!r}] contains NaN or infinity for {problem}")
    return {name: results[name] for name in wanted}


def compare_with_cpp(kernel: Kernel, expected: Mapping[Problem, Mapping[str, torch.Tensor]], compiler: str) -> float:
    """Compile `reference.h` for the host, run it on each problem, and return the largest relative difference.

    Args:
        kernel: kernel whose folder contains `reference.h`.
        expected: for each problem, the Python reference's outputs on `draw_inputs`.
        compiler: path of g++ or clang++.

    Raises:
        KernelError: the file does not compile, crashes, or runs for more than a minute.
    """
    with tempfile.TemporaryDirectory(prefix="evokern-reference-") as folder:
        work = Path(folder)
        compiled: set[Path] = set()
        worst = 0.0
        for problem, results in expected.items():
            tensors = workload_tensors(kernel, problem)
            inputs, outputs = [name for name, tensor in tensors.items() if tensor.given], _outputs(tensors)
            numbers = reference_arguments(kernel, problem)
            # Numbers and sizes are command-line arguments, so that one program serves every problem.
            binary = work / f"main_{len(numbers)}_{len(inputs)}_{len(outputs)}"
            if binary not in compiled:
                text = _program(len(numbers), len(inputs), len(outputs))
                binary.with_suffix(".cpp").write_text(text, encoding="utf-8")
                where = ["-iquote", str(kernel.folder.resolve())]  # not -I: the folder must not shadow <cmath>
                options = ["-std=c++17", "-O2", *where, "-o", str(binary)]
                _run([compiler, *options, str(binary.with_suffix(".cpp"))], "does not compile", work)
                compiled.add(binary)
            for index, values in enumerate(draw_inputs(tensors).values()):
                (work / f"{index}.in").write_bytes(values.contiguous().numpy().tobytes())
            sizes = [tensors[name].elements for name in (*inputs, *outputs)]
            _run([str(binary), *map(str, (*numbers, *sizes))], "crashed", work)
            worst = max([worst, *(_difference(work, outputs.index(name), wanted) for name, wanted in results.items())])
        return worst


def _outputs(tensors: Mapping[str, Tensor]) -> list[str]:
    return [name for name, tensor in tensors.items() if tensor.role in ("output", "inout")]


def _difference(work: Path, index: int, wanted: torch.Tensor) -> float:
    """Return the largest difference of an output, relative to the largest expected element."""
    import torch

    raw = bytearray((work / f"{index}.out").read_bytes())
    got = torch.frombuffer(raw, dtype=torch.float64).reshape(wanted.shape)
    difference = float((got - wanted).abs().max()) / max(float(wanted.abs().max()), 1e-300)
    return difference if difference == difference else float("inf")


def reference_arguments(kernel: Kernel, problem: Problem) -> list[int]:
    """Return the leading arguments of `reference`: numeric fields, and for each named choice its index."""
    values = {field: problem[field.name] for field in kernel.fields}
    return [
        value if isinstance(value, int) else field.choices.index(value)
        for field, value in values.items()
        if isinstance(value, int) or len(field.choices) > 1
    ]


_FRAME = """#include "reference.h"
#include <cstdio>
#include <cstdlib>
namespace evokern_check {
double* buffer(const char* name, const char* elements) {
  const long long count = std::atoll(elements);
  double* values = static_cast<double*>(std::malloc(8 * count));
  if (!values) std::abort();
  for (long long i = 0; i < count; ++i) values[i] = 0.0 / 0.0;
  if (!name) return values;
  FILE* file = std::fopen(name, "rb");
  if (!file || std::fread(values, 8, count, file) != static_cast<std::size_t>(count)) std::abort();
  std::fclose(file);
  return values;
}
void write(const char* name, const double* values, const char* elements) {
  FILE* file = std::fopen(name, "wb");
  const std::size_t count = std::atoll(elements);
  if (!file || std::fwrite(values, 8, count, file) != count || std::fclose(file)) std::abort();
}
}  // namespace evokern_check
"""
"""Common part of every test program. It uses malloc, because <vector> would dominate the compile time."""


def _program(numbers: int, inputs: int, outputs: int) -> str:
    """Return a program that reads the inputs from files, calls `reference`, and writes the outputs.

    The program's arguments are the numbers for `reference`, then the element count of each input and output. Folder
    and buffer names do not appear in the text, because they may contain quotes or line breaks.
    """
    first_out = 1 + numbers + inputs
    own = "evokern_check::"
    ins = [f'{own}buffer("{index}.in", given[{1 + numbers + index}])' for index in range(inputs)]
    lines = [f"  double* out_{index} = {own}buffer(nullptr, given[{first_out + index}]);" for index in range(outputs)]
    arguments = [f"std::atoll(given[{1 + index}])" for index in range(numbers)]
    arguments += [*ins, *(f"out_{index}" for index in range(outputs))]
    lines.append(f"  reference({', '.join(arguments)});")
    lines += [f'  {own}write("{index}.out", out_{index}, given[{first_out + index}]);' for index in range(outputs)]
    return "\n".join([_FRAME + "int main(int, char** given) {", *lines, "}", ""])


def _run(command: list[str], what: str, folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise KernelError("reference.h ran for more than a minute on a small problem") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        detail = f": {lines[0].strip()}" if lines else ""
        raise KernelError(f"reference.h {what}{detail} (required declaration: {_SIGNATURE})")


_SIGNATURE = "`inline void reference(int for each field, const double* for each input, double* for each output)`"


def inputs_of(tensors: Mapping[str, Tensor], kind: InputSet, seed: int) -> dict[str, torch.Tensor]:
    """Return one set of generated inputs, in their own types."""
    import torch

    from evokern.gate.data import draw, torch_dtype

    generator = torch.Generator().manual_seed(seed)
    inputs: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.given:
            inputs[name] = torch.empty(tensor.shape, dtype=torch_dtype(tensor.dtype))
            draw(tensor, kind, inputs[name], generator)
    return inputs


def computed(
    kernel: Kernel,
    problem: Problem,
    inputs: Mapping[str, torch.Tensor],
    output: str,
    dtype: torch.dtype,
    exact: torch.Tensor,
) -> torch.Tensor:
    """Return an output computed in a type, or the exact output if the reference works only in float64."""
    try:
        return kernel.workload.reference(problem, {n: t.to(dtype) for n, t in inputs.items()})[output]
    except KERNEL_CODE_EXCEPTIONS:  # torch lacks an operation for this type, or the reference creates float64 tensors
        return exact
