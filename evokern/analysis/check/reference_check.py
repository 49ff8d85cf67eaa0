"""Do a kernel's two references agree: the Python one that the gate trusts, and the C++ one that exports carry?"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evokern.declaration.kernel import Kernel, Problem, Tensor
from evokern.errors import RAISED, KernelError

if TYPE_CHECKING:
    import torch

AGREEMENT = 1e-9
"""Largest difference of the two references, relative to the largest output: both compute in double."""


def workload_tensors(kernel: Kernel, problem: Problem) -> dict[str, Tensor]:
    """Return the default candidate's buffers.

    Raises:
        KernelError: the kernel's `tensors` raised.
    """
    try:
        return dict(kernel.workload.tensors(problem, kernel.space.default()))
    except KernelError:
        raise
    except RAISED as error:
        raise KernelError(
            f"kernel {kernel.name}: tensors raised {type(error).__name__}: {error} at {problem}"
        ) from error


def draw_inputs(tensors: Mapping[str, Tensor], seed: int = 0) -> dict[str, torch.Tensor]:
    """Draw each input in its own type and return it in double, as the references get it."""
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
    """Run the kernel's Python reference on drawn inputs and check what it returns.

    Raises:
        KernelError: it raises, leaves an output out, or returns a wrong shape, dtype or NaN.
    """
    import torch

    inputs = draw_inputs(tensors)
    try:
        results: Mapping[str, Any] = kernel.workload.reference(problem, inputs)
    except RAISED as error:
        raise KernelError(
            f"kernel {kernel.name}: reference raised {type(error).__name__}: {error} at {problem}"
        ) from error
    wanted = {name: tensor for name, tensor in tensors.items() if tensor.role in ("output", "inout")}
    if not isinstance(results, Mapping) or set(results) != set(wanted):
        got = sorted(results) if isinstance(results, Mapping) else type(results).__name__
        raise KernelError(f"kernel {kernel.name}: reference returned {got}, the outputs are {sorted(wanted)}")
    for name, tensor in wanted.items():
        result = results[name]
        if not isinstance(result, torch.Tensor):
            raise KernelError(f"kernel {kernel.name}: reference[{name!r}] is a {type(result).__name__}, not a tensor")
        if tuple(result.shape) != tensor.shape:
            raise KernelError(
                f"kernel {kernel.name}: reference[{name!r}] has shape {tuple(result.shape)}, declared is {tensor.shape}"
            )
        if result.dtype != torch.float64:
            raise KernelError(f"kernel {kernel.name}: reference[{name!r}] is {result.dtype}; it must be torch.float64")
        if not bool(torch.isfinite(result).all()):
            raise KernelError(f"kernel {kernel.name}: reference[{name!r}] has NaN or infinity at {problem}")
    return {name: results[name] for name in wanted}


def compare_with_cpp(
    kernel: Kernel,
    problem: Problem,
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, torch.Tensor],
    compiler: str,
) -> float:
    """Compile `reference.h` for the host, run it on the same inputs, and return the largest relative difference.

    Raises:
        KernelError: it does not compile, crashes, or does not finish within a minute.
    """
    import torch

    with tempfile.TemporaryDirectory(prefix="evokern-reference-") as folder:
        work = Path(folder)
        (work / "main.cpp").write_text(_program(kernel, problem, tensors), encoding="utf-8")
        binary = work / "main"
        where = ["-iquote", str(kernel.folder.resolve())]  # for this one name, not for <vector>
        command = [compiler, "-std=c++17", "-O2", *where, "-o", str(binary), str(work / "main.cpp")]
        _run(command, "does not compile", work)
        for index, values in enumerate(draw_inputs(tensors).values()):
            (work / f"{index}.in").write_bytes(values.contiguous().numpy().tobytes())
        _run([str(binary)], "crashed", work)
        worst = 0.0
        outputs = [name for name, tensor in tensors.items() if tensor.role in ("output", "inout")]
        for name, wanted in expected.items():
            raw = bytearray((work / f"{outputs.index(name)}.out").read_bytes())
            got = torch.frombuffer(raw, dtype=torch.float64).reshape(wanted.shape)
            scale = max(float(wanted.abs().max()), 1e-300)
            difference = float((got - wanted).abs().max()) / scale
            worst = max(worst, difference if difference == difference else float("inf"))
        return worst


def reference_arguments(kernel: Kernel, problem: Problem) -> list[int]:
    """Return the leading arguments of `reference`: numeric fields, and of a choice of words the position, in order."""
    values = {field: problem[field.name] for field in kernel.fields}
    return [
        value if isinstance(value, int) else field.choices.index(value)
        for field, value in values.items()
        if isinstance(value, int) or len(field.choices) > 1
    ]


def _program(kernel: Kernel, problem: Problem, tensors: Mapping[str, Tensor]) -> str:
    """Write a program that reads the inputs from files, calls `reference`, and writes the outputs."""
    ins = [name for name, tensor in tensors.items() if tensor.given]
    outs = [name for name, tensor in tensors.items() if tensor.role in ("output", "inout")]
    arguments = [str(number) for number in reference_arguments(kernel, problem)]
    arguments += [f"in_{index}.data()" for index in range(len(ins))]
    arguments += [f"out_{index}.data()" for index in range(len(outs))]
    # Nothing of a folder's or a buffer's name stands in the text.
    lines = ['#include "reference.h"', "#include <cstdio>", "#include <vector>"]
    lines += ["static void read(const char* name, std::vector<double>& values) {",
              '  FILE* file = std::fopen(name, "rb");',
              "  if (!file || std::fread(values.data(), 8, values.size(), file) != values.size()) throw 1;",
              "  std::fclose(file);", "}", "int main() {"]  # fmt: skip
    for index, name in enumerate(ins):
        lines.append(f'  std::vector<double> in_{index}({tensors[name].elements}); read("{index}.in", in_{index});')
    for index, name in enumerate(outs):
        lines.append(f"  std::vector<double> out_{index}({tensors[name].elements}, 0.0 / 0.0);")
    lines.append(f"  reference({', '.join(arguments)});")
    for index in range(len(outs)):
        lines.append(f'  {{ FILE* file = std::fopen("{index}.out", "wb");')
        lines.append(f"    std::fwrite(out_{index}.data(), 8, out_{index}.size(), file); std::fclose(file); }}")
    return "\n".join([*lines, "  return 0;", "}", ""])


def _run(command: list[str], what: str, folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise KernelError("reference.h took more than a minute on a small problem") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        detail = f": {lines[0].strip()}" if lines else ""
        raise KernelError(f"reference.h {what}{detail} (it must declare {_SIGNATURE})")


_SIGNATURE = "`inline void reference(int per field, const double* per input, double* per output)`"
