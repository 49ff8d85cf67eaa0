"""Generate the texts of the files in a task's kernel folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from evokern.declaration.kernel import SIGNIFICAND_BITS
from evokern.scaffold.declaration_text import BOUNDS, OPTIONAL_PARTS
from evokern.scaffold.torch_task.probe import Probe, TaskTensor

ENTRY = "forward"
"""Name of the `__global__` function of every task's kernel."""
_TYPES = {
    "f64": "double", "f32": "float", "f16": "__half", "bf16": "__nv_bfloat16", "i64": "long long", "i32": "int",
    "i16": "short", "i8": "signed char", "u8": "unsigned char",
}  # fmt: skip
READY_MADE = {"Elementwise", "Sum", "SumOfProducts"}
BLOCKS = (32, 64, 128, 256, 512, 1024)
INPUT_LARGE, PARAMETER_LARGE = 64.0, 4.0
"""Standard deviation of large inputs: absolute for arguments, relative to the usual value for parameters."""
Bounds = Mapping[str, tuple[str, str]]
"""Output → text of its bound, and the reason why no bound is derived."""


def kernel_py(name: str, origin: str, made: Probe, bounds: Bounds, large: float = INPUT_LARGE) -> str:
    """Return the text of `kernel.py`.

    Args:
        name: kernel name.
        origin: file name of the task.
        made: properties of the task.
        bounds: bounds of the outputs without a derived one.
        large: standard deviation of the large inputs of arguments.
    """
    scalars = [a for a in made.arguments if isinstance(a, (int, float)) and not isinstance(a, bool)]
    # Integer arguments are passed to the kernel as int, other numbers as float.
    names = ["Baseline", "Kernel", "Launch", "Parameter", *(["ProblemField"] if made.fields else []), "Tensor",
             *(["Tolerance"] if bounds and any(one.dtype not in SIGNIFICAND_BITS for one in made.outputs) else []),
             "Workload", *({text.partition("(")[0] for text, _ in bounds.values()} & READY_MADE),
             *(["f32"] if any(isinstance(s, float) for s in scalars) else []),
             *(["i32"] if made.fields or any(isinstance(s, int) for s in scalars) else [])]  # fmt: skip
    mode = "" if made.training else ", training=False"
    mode += ", copies=True" if made.copies else ""
    mode += f", tied={made.ties!r}" if made.ties else ""
    lines = [
        f'"""Kernel {name}, drafted from {origin}; reference and tensors come from its torch module."""',
        "",
        "from pathlib import Path",
        "",
        f"from evokern import {', '.join(names)}",
        "from evokern.declaration.torch_task import TorchTask",
        "",
        f'TASK = TorchTask(Path(__file__).with_name("task.py"){mode})',
        "",
        "",
        "def ceil_div(a, b):",
        '    """Return a / b, rounded up."""',
        "    return -(-a // b)",
        "",
        "",
        "def launches(c, p):",
        '    """Return one launch with a thread per output element."""',
        f"    elements = {_product(made.outputs[0].shape)}  # guess: write the launch that your kernel needs",
        f"    arguments = ({', '.join(_arguments(made))},)",
        f'    return [Launch("{ENTRY}", ceil_div(elements, c.BLOCK), c.BLOCK, arguments)]',
        "",
        "",
        "def tensors(p, c):",
        '    """Return the arguments of the module\'s forward, its parameters, and its outputs."""',
        "    return {",
        *(f"        {line}" for line in _tensors(made, large)),
        "    }",
        "",
        "",
        *_reference(made),
        "",
        "",
        *_kernel(name, made, bounds),
        "",
    ]
    return "\n".join(lines)


def _arguments(made: Probe) -> list[str]:
    found = []
    for argument in made.arguments:
        if isinstance(argument, TaskTensor):
            found.append(f'"{argument.name}"')
        elif isinstance(argument, float):
            found.append(f"f32({argument!r})")
        elif isinstance(argument, int):
            found.append(f"i32({int(argument)})")
    found += [f'"{tensor.name}"' for tensor in (*made.parameters, *made.outputs)]
    return [*found, *(f"i32(p.{name})" for name in made.fields)]


def _tensors(made: Probe, large: float) -> list[str]:
    lines = []
    for tensor in [*_inputs(made), *made.outputs]:
        shape = f"({', '.join(tensor.shape)}{',' if len(tensor.shape) == 1 else ''})"
        extra = ', role="output"' if tensor in made.outputs else ""
        if tensor not in made.outputs:
            if tensor.dtype in ("f64", "f32", "f16", "bf16"):
                if tensor.parameter:
                    extra = f", scale={tensor.scale:g}, large={PARAMETER_LARGE * tensor.scale:g}"
                elif large != INPUT_LARGE:
                    extra = f", large={large:g}"
            else:
                extra = f", low={tensor.low}, high={tensor.high}"
                if tensor.place is not None:
                    extra += f', draw=lambda g: TASK.argument(p, {tensor.place}, g), change="nothing"'
        lines.append(f'"{tensor.name}": Tensor("{tensor.dtype}", {shape}{extra}),')
    return lines


def _inputs(made: Probe) -> list[TaskTensor]:
    return [*(a for a in made.arguments if isinstance(a, TaskTensor)), *made.parameters]


def _passed(argument: TaskTensor | float | int | None) -> str:
    if not isinstance(argument, TaskTensor):
        return repr(argument)
    # The gate passes integers as float64.
    kind = ".bool()" if argument.truth else "" if argument.dtype[0] in "fb" else ".long()"
    return f't["{argument.name}"]{kind}'


def _reference(made: Probe) -> list[str]:
    passed = ", ".join(map(_passed, made.arguments))
    weights = ", ".join(f'"{one.parameter}": t["{one.name}"]' for one in made.parameters)
    names = ", ".join(f'"{one.name}"' for one in made.outputs)
    return [
        "def module(p, t):",
        '    """Return the module\'s results by output name."""',
        f"    returned = TASK.outputs(p, [{passed}], {{{weights}}})",
        f"    return dict(zip([{names}], returned))",
        "",
        "",
        "def reference(p, t):",
        '    """Return the correct outputs: the module\'s results in float64."""',
        "    return {name: value.double() for name, value in module(p, t).items()}",
    ]


def _kernel(name: str, made: Probe, bounds: Bounds) -> list[str]:
    fields = [
        f'        ProblemField("{field}"{f", multiple_of={step}" if step > 1 else ""}),'
        for field, (step, _) in made.fields.items()
    ]
    exact = [f'"{one.name}": Tolerance(0, 0)' for one in made.outputs if bounds and one.dtype not in SIGNIFICAND_BITS]
    declared = [f'            "{one}": {text},  # TODO: confirm; {why}' for one, (text, why) in bounds.items()]
    sizes = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1}
    moved = " + ".join(f"{sizes[one.dtype]} * {_product(one.shape)}" for one in [*_inputs(made), *made.outputs])
    small = "".join(f'"{_problem(problem)}", ' for problem in made.small)
    return [
        "kernel = Kernel(",
        f'    name="{name}",',
        f'    genes=(Parameter("BLOCK", {BLOCKS}, default=256, doc="threads per block"),),',
        *(["    fields=(", *fields, "    ),"] if fields else ["    fields=(),"]),
        "    launches=launches,",
        "    workload=Workload(",
        "        tensors=tensors,",
        "        reference=reference,",
        *(["        error={", *declared, "        },"] if declared else BOUNDS),
        *([f"        tolerance={{{', '.join(exact)}}},"] if exact else []),
        f"        flops=lambda p: {' + '.join(_product(one.shape) for one in made.outputs)},"
        "  # guess: one operation per output element",
        f"        bytes=lambda p: {moved},  # guess: each buffer is accessed once",
        '        baselines=(Baseline("torch", module),),',
        f"        small_problems=({small.rstrip()}),",
        "        cpp_reference=False,",
        *OPTIONAL_PARTS,
        "    ),",
        ")",
    ]


def _product(shape: Sequence[str]) -> str:
    return " * ".join(part if re.fullmatch(r"[\w.]+( \* [\w.]+)*", part) else f"({part})" for part in shape)


def _problem(sizes: Mapping[str, int]) -> str:
    return ",".join(map(str, sizes.values()))


def kernel_cu(name: str, origin: str, made: Probe) -> str:
    """Return a kernel that compiles but computes nothing, with the signature that candidates need."""
    inputs = _inputs(made)
    rows = [(one.name, _TYPES[one.dtype], " * ".join(one.shape).replace("p.", "")) for one in [*inputs, *made.outputs]]
    width = max(len(row[0]) for row in rows)
    parameters = []
    count = 0
    for argument in made.arguments:
        if isinstance(argument, TaskTensor):
            parameters.append(f"const {_TYPES[argument.dtype]}* __restrict__ {argument.name}")
        elif argument is not None:
            count += 1
            parameters.append(f"{'float' if isinstance(argument, float) else 'int'} number_{count}")
    parameters += [f"const {_TYPES[one.dtype]}* __restrict__ {one.name}" for one in made.parameters]
    parameters += [f"{_TYPES[one.dtype]}* __restrict__ {one.name}" for one in made.outputs]
    parameters += [f"int {field}" for field in made.fields]
    taken = {*made.fields, *(row[0] for row in rows)}
    index = next(name for name in ("i", "element", "thread", "at") if name not in taken)
    half = any(one.dtype == "f16" for one in [*inputs, *made.outputs])
    brain = any(one.dtype == "bf16" for one in [*inputs, *made.outputs])
    elements = _product(made.outputs[0].shape).replace("p.", "").replace(" * ", " * (long long)")
    lines = [
        f"// {name}: computes `Model` of {origin} (task.py). All buffers are contiguous; the last axis varies fastest.",
        "//",
        *(f"// {label:<{width}}  {kind:<13}  {shape} elements" for label, kind, shape in rows),
        "//",
        "// BLOCK  32 to 1024  threads per block: more threads hide more latency; with fewer, each thread can use "
        "more registers",
        *(["#include <cuda_fp16.h>"] if half else []),
        *(["#include <cuda_bf16.h>"] if brain else []),
        "#ifndef BLOCK",
        f'#error "{name} needs the macro BLOCK"',
        "#endif",
        "",
        'extern "C" __global__ void __launch_bounds__(BLOCK)',
        f"{ENTRY}({', '.join(parameters)}) {{",
        f"  const long long {index} = blockIdx.x * (long long)BLOCK + threadIdx.x;",
        f"  if ({index} >= (long long){elements}) return;",
        f"  // TODO: element {index} of {made.outputs[0].name}",
        "}",
        "",
    ]
    return "\n".join(lines)


def study_toml(name: str, made: Probe, input_sets: Sequence[str] | None) -> str:
    """Return the text of a study with the task's own sizes."""
    sizes = {field: value for field, (_, value) in made.fields.items()}
    named = " ".join(f"{field}={value}" for field, value in sizes.items())
    gate = ""
    if input_sets is not None:
        listed = ", ".join(f'"{one}"' for one in input_sets)
        gate = f"\n[gate]\ninput_sets = [{listed}]  # on others the module's float32 result is not finite\n"
    return (
        f"# Asks: which variant of {name} is the fastest?\n"
        f'kernel = "{name}"\n'
        f'problems = ["{named}"]{"" if sizes else "  # the task has one size"}\n'
        f'budget = "10m"\n{gate}'
    )
