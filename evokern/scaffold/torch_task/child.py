"""Draft the files of a task's kernel folder in a child process, because the task is code that is executed.

    main(TASK, NAME, OUT)    writes the files' texts and notes, or an error, to OUT as JSON

Only `evokern.scaffold.torch_task.task` starts it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from evokern.analysis.check.rounding import proposed_bound, underivable, usable_input_sets
from evokern.declaration.genes import Value
from evokern.declaration.kernel import SIGNIFICAND_BITS, Kernel, Problem
from evokern.errors import EvokernError
from evokern.scaffold import declaration_text
from evokern.scaffold.draft import Draft, DraftReference
from evokern.scaffold.plan import BLOCK_DOC, DraftArgument, DraftField, DraftGene, DraftTensor, Plan
from evokern.scaffold.torch_task.probe import Probe, TaskTensor, probe
from evokern.study.discovery import load_kernel
from evokern.study.settings import GateSettings
from evokern.workers.role import limit_memory

ENTRY = "forward"
"""Name of the `__global__` function of every task's kernel."""
_TYPES = {
    "f64": "double", "f32": "float", "f16": "__half", "bf16": "__nv_bfloat16", "i64": "long long", "i32": "int",
    "i16": "short", "i8": "signed char", "u8": "unsigned char",
}  # fmt: skip
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
    return declaration_text.unchecked_kernel_py(name, origin, _draft(made, bounds, large))


def _draft(made: Probe, bounds: Bounds, large: float = INPUT_LARGE) -> Draft:
    """Return a draft with the task's module as its reference and one thread per output element."""
    gene = DraftGene("BLOCK", BLOCKS, 256, doc=BLOCK_DOC)
    fields = tuple(DraftField(field, step) for field, (step, _) in made.fields.items())
    grid = f"ceil_div({_product(made.outputs[0].shape)}, c.BLOCK)"
    tensors = [DraftTensor(one.name, one.dtype, one.shape, "input", "", _extra(one, large)) for one in _inputs(made)]
    tensors += [DraftTensor(one.name, one.dtype, one.shape, "output") for one in made.outputs]
    passed = ", ".join(map(_passed, made.arguments))
    weights = ", ".join(f'"{one.parameter}": t["{one.name}"]' for one in made.parameters)
    names = ", ".join(f'"{one.name}"' for one in made.outputs)
    mode = "" if made.training else ", training=False"
    mode += ", copies=True" if made.copies else ""
    mode += f", tied={made.ties!r}" if made.ties else ""
    imports = (
        "from pathlib import Path",
        "from evokern.declaration.torch_task import TorchTask",
        f'TASK = TorchTask(Path(__file__).with_name("task.py"){mode})',
    )
    line = f"return dict(zip([{names}], TASK.outputs(p, [{passed}], {{{weights}}})))"
    return Draft(
        function=ENTRY,
        plan=Plan(ENTRY, (gene,), fields, tuple(_arguments(made)), (grid,), ("c.BLOCK",)),
        source="",
        tensors=tuple(tensors),
        small=tuple(map(dict, made.small)),
        study={field: value for field, (_, value) in made.fields.items()},
        launch_from="",
        launch_guess="one thread per output element; write the launch that your kernel needs",
        stated=DraftReference("the module of task.py", "torch", imports, line, {}, rounded=True, bounds=bounds),
    )


def _arguments(made: Probe) -> Iterator[DraftArgument]:
    for argument in made.arguments:
        if isinstance(argument, TaskTensor):
            yield DraftArgument(argument.name, argument.dtype)
        elif argument is not None:  # integers are passed as int, other numbers as float
            real = isinstance(argument, float)
            yield DraftArgument("number", "f32" if real else "i32", repr(argument if real else int(argument)))
    yield from (DraftArgument(one.name, one.dtype) for one in (*made.parameters, *made.outputs))
    yield from (DraftArgument(field, "i32", f"p.{field}") for field in made.fields)


def _extra(tensor: TaskTensor, large: float) -> str:
    """Return the range of a tensor's values as arguments of its declaration."""
    if tensor.dtype in ("f64", "f32", "f16", "bf16"):
        if tensor.parameter:
            return f"scale={tensor.scale:g}, large={PARAMETER_LARGE * tensor.scale:g}"
        return f"large={large:g}" if large != INPUT_LARGE else ""
    drawn = (
        f', draw=lambda g: TASK.argument(p, {tensor.place}, g), change="nothing"' if tensor.place is not None else ""
    )
    return f"low={tensor.low}, high={tensor.high}{drawn}"


def _inputs(made: Probe) -> list[TaskTensor]:
    return [*(a for a in made.arguments if isinstance(a, TaskTensor)), *made.parameters]


def _passed(argument: TaskTensor | float | int | None) -> str:
    if not isinstance(argument, TaskTensor):
        return repr(argument)
    # The gate passes integers as float64.
    kind = ".bool()" if argument.truth else "" if argument.dtype[0] in "fb" else ".long()"
    return f't["{argument.name}"]{kind}'


def _product(shape: Sequence[str]) -> str:
    return " * ".join(part if re.fullmatch(r"[\w.]+( \* [\w.]+)*", part) else f"({part})" for part in shape)


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
    gate = ""
    if input_sets is not None:
        listed = ", ".join(f'"{one}"' for one in input_sets)
        gate = f"\n[gate]\ninput_sets = [{listed}]  # on others the module's float32 result is not finite\n"
    return declaration_text.study_toml(name, _draft(made, {})) + gate


MIDDLE_BYTES = 4 << 20
"""Maximum size in bytes of the buffers of the larger problem on which rounding is measured."""
MOST_BYTES = 8 << 30
"""Maximum address space of a task in bytes; the task runs at small sizes."""


def main(task: str, name: str, out: str) -> None:
    """Draft the files of a task, and write the result as JSON.

    Args:
        task: path of the task's file.
        name: kernel name.
        out: path of the JSON result.
    """
    answer: dict[str, object]
    limit_memory(MOST_BYTES)  # so that a task that exceeds it fails with a message
    try:
        answer = drafted(Path(task), name)
    except EvokernError as error:
        answer = {"error": str(error)}
    Path(out).write_text(json.dumps(answer), encoding="utf-8")


def drafted(task: Path, name: str) -> dict[str, object]:
    """Return the texts of `kernel.cu`, `kernel.py` and the study, and the notes.

    Raises:
        EvokernError: the task cannot be run, or has arguments that a kernel cannot take.
    """
    text = task.read_text(encoding="utf-8")
    made = probe(text, task.name)
    notes = list(made.notes)
    every = GateSettings().input_sets
    for large in (INPUT_LARGE, 8.0, 2.0):
        bounds, usable = _bounds(text, name, made, large)
        if "large" in usable:
            break
    else:
        large = 2.0
    if "normal" not in usable:
        notes.append("kernel.py: on the gate's normal inputs the module's float32 result is not finite or inaccurate; "
                     "change these inputs in `module` (for example, use absolute values)")  # fmt: skip
    if bounds:
        notes.append(f"kernel.py: confirm the proposed error bound of {', '.join(bounds)}, which cannot be derived")
    left_out = [kind for kind in every if kind not in usable]
    if left_out and usable:
        notes.append(f"the study: its gate omits {' and '.join(left_out)} inputs, because the module's own float32 "
                     "result on them is not finite or inaccurate")  # fmt: skip
    return {
        "kernel.cu": kernel_cu(name, task.name, made),
        "kernel.py": kernel_py(name, task.name, made, bounds, large),
        "study": study_toml(name, made, usable if left_out and usable else None),
        "notes": notes,
    }


def _bounds(text: str, name: str, made: Probe, large: float) -> tuple[Bounds, tuple[str, ...]]:
    """Return a bound for each output without a derived one, and the input sets that are usable for all outputs."""
    usable: set[str] = set(GateSettings().input_sets)
    bounds: dict[str, tuple[str, str]] = {}
    with TemporaryDirectory(prefix="evokern-task-") as folder:
        place = Path(folder) / name
        place.mkdir()
        (place / "task.py").write_text(text, encoding="utf-8")
        (place / "kernel.cu").write_text("", encoding="utf-8")
        undecided = {one.name: ("Elementwise(ulp=4)", "") for one in made.outputs if one.dtype in SIGNIFICAND_BITS}
        (place / "kernel.py").write_text(kernel_py(name, "", made, undecided, large), encoding="utf-8")
        kernel = load_kernel(place)
        problems = _problems(kernel, made)
        for output in undecided:
            usable &= set(usable_input_sets(kernel, problems, output))
            if (reason := underivable(kernel, output, problems)) is not None:
                bounds[output] = proposed_bound(kernel, output, problems), reason
    return bounds, tuple(kind for kind in GateSettings().input_sets if kind in usable)


def _problems(kernel: Kernel, made: Probe) -> list[Problem]:
    """Return the small problems, and one between them and the task's own size."""
    found = [kernel.problem(sizes) for sizes in made.small] or [kernel.problem({})]
    sizes: dict[str, Value | bool] = {name: value for name, (_, value) in made.fields.items()}
    least = dict(found[0])
    while made.fields:
        try:
            middle = kernel.problem(sizes)
            tensors = kernel.workload.tensors(middle, kernel.space.default())
        except EvokernError:
            break
        if sum(tensor.bytes for tensor in tensors.values()) <= MIDDLE_BYTES:
            return [*found, middle]
        name = max(sizes, key=lambda one: int(sizes[one]) / int(least[one]))
        step = made.fields[name][0]
        smaller = int(sizes[name]) // 2 // step * step
        if smaller <= int(least[name]):
            break
        sizes[name] = smaller
    return found
