"""Draft a task's files in a child process, because the task is code that is executed.

    main(TASK, NAME, OUT)    writes the files' texts and notes, or an error, to OUT as JSON

Only `evokern.scaffold.torch_task.task` starts it.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from evokern.analysis.check.bound_advice import proposed_bound, underivable
from evokern.analysis.check.rounding import usable_input_sets
from evokern.declaration.genes import Value
from evokern.declaration.kernel import SIGNIFICAND_BITS, Kernel, Problem
from evokern.errors import EvokernError
from evokern.scaffold.torch_task.probe import Probe, probe
from evokern.scaffold.torch_task.text import INPUT_LARGE, Bounds, kernel_cu, kernel_py, study_toml
from evokern.study.discovery import load_kernel
from evokern.study.settings import GateSettings
from evokern.workers.role import limit_memory

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
