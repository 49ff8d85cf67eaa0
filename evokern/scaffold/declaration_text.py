"""The text of a drafted `kernel.py`, `reference.h` and study."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from evokern.escaping import in_comment
from evokern.scaffold.declares import check_declares, in_docstring, literal
from evokern.scaffold.draft import Draft
from evokern.scaffold.infer import bytes_of
from evokern.scaffold.plan import DraftArgument, DraftTensor
from evokern.scaffold.problems import LIMIT, uses_indices

OPEN = (
    "        # slices=(Slice({...: 0, ...: 0}),): where new rows of an input change the same rows of an output alone,",
    "        # each candidate of a large problem gets its own. nonfinite=(...): inputs that may be infinite or NaN.",
)
"""What a draft leaves open in a workload."""
_TOLERANCES = {"f64": "1e-9, 1e-9", "f32": "1e-3, 1e-3", "f16": "1e-2, 1e-2", "bf16": "3e-2, 3e-2"}


def kernel_py(name: str, origin: str, made: Draft) -> str:
    """Return the declaration.

    Args:
        name: the kernel's name.
        origin: what it was drafted from.
        made: the draft.
    """
    outputs = [tensor for tensor in made.tensors if tensor.role in ("output", "inout")]
    body = "\n".join([*_launches(made), "", "", *_tensors(made), "", "", *_reference(made, outputs)])
    declared = "\n".join(_declaration(name, made, outputs))
    used = body + declared
    names = ["Constraint", "Kernel", "Launch", "Parameter", "ProblemField", "Scalar", "Tensor", "Tolerance", "Workload",
             "divides", "i32", "i64"]  # fmt: skip
    imports = [word for word in names if re.search(rf"\b{word}\(", used)]
    lines = [
        f'"""Kernel {name}, drafted from {in_docstring(origin)}: confirm what says guess, write what says WRITE."""',
        "",
    ]
    lines += _wrapped(f"from evokern import {', '.join(imports)}")
    if uses_indices(made.tensors):
        lines += ["", f"INDEX_LIMIT = {LIMIT}  # guess: integers of the inputs are indices, and stay below this"]
    if "ceil_div(" in used:
        lines += ["", "", "def ceil_div(a, b):", '    """Return a / b, rounded up."""', "    return -(-a // b)"]
    return check_declares("\n".join([*lines, "", "", body, "", "", declared, ""]), origin)


def _wrapped(line: str) -> list[str]:
    if len(line) <= 118:
        return [line]
    head, _, names = line.partition("import ")
    return [f"{head}import (", *(f"    {name}," for name in names.split(", ")), ")"]


def _tuple(texts: tuple[str, ...]) -> str:
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _launches(made: Draft) -> Iterator[str]:
    plan = made.plan
    yield "def launches(c, p):"
    if made.launch_guess:
        yield '    """One launch."""'
        yield in_comment(f"    # guess: {made.launch_guess}")
    else:
        rounded = "" if plan.whole_grid == plan.grid else ", blocks rounded up to whole clusters"
        yield f'    """Grid and block as {in_docstring(made.launch_from)} has them{rounded}."""'
    yield f"    grid = {_tuple(plan.whole_grid)}"
    yield f"    block = {_tuple(plan.block)}"
    yield "    arguments = ("
    for argument in plan.arguments:
        doubt = f"  # guess: {argument.why}" if argument.why and not argument.is_tensor else ""
        yield in_comment(f"        {_argument(argument)},{doubt}")
    yield "    )"
    entry = f"f{literal(plan.entry)}" if "{" in plan.entry else literal(plan.entry)
    cluster = f", cluster={_tuple(plan.cluster)}" if plan.cluster else ""
    launch = f"Launch({entry}, grid, block, arguments, shared_bytes={plan.shared}{cluster})"
    if made.finish is None:
        yield f"    return [{launch}]"
        return
    workspace, total = made.finish
    extent = next(tensor for tensor in made.tensors if tensor.name == workspace).shape[0]
    yield "    return ["
    yield f"        {launch},"
    yield f'        Launch("add_up", 1, 32, ({literal(workspace)}, {literal(total)}, i32({extent}))),'
    yield "    ]"


def _argument(argument: DraftArgument) -> str:
    if argument.expression is None:
        return literal(argument.name)
    if argument.dtype in ("i32", "i64"):
        return f"{argument.dtype}({argument.expression})"
    return f'Scalar("{argument.dtype}", {argument.expression})'


def _tensors(made: Draft) -> Iterator[str]:
    yield "def tensors(p, c):"
    yield '    """Every buffer, in the order of reference.h: inputs, outputs, workspaces."""'
    yield "    return {"
    rank = {"constant": 0, "input": 0, "inout": 1, "output": 2, "workspace": 3}
    for tensor in sorted(made.tensors, key=lambda tensor: rank[tensor.role]):
        shape = f"({', '.join(tensor.shape)}{',' if len(tensor.shape) == 1 else ''})"
        role = "" if tensor.role == "input" else f', role="{tensor.role}"'
        extra = f", {tensor.extra}" if tensor.extra else ""
        doubt = f"  # guess: {tensor.why}" if tensor.why else ""
        yield in_comment(f'        {literal(tensor.name)}: Tensor("{tensor.dtype}", {shape}{role}{extra}),{doubt}')
    yield "    }"


def _reference(made: Draft, outputs: list[DraftTensor]) -> Iterator[str]:
    inputs = [tensor for tensor in made.tensors if tensor.role in ("input", "inout", "constant")]
    first = f"t[{literal(inputs[0].name)}]" if inputs else "..."
    yield "def reference(p, t):"
    yield '    """What is right: float64 outputs by name, from float64 torch tensors."""'
    if made.reference:
        yield "    # The file computes it on the CPU so:"
        yield from (in_comment(f"    #   {line}") for line in made.reference.split("\n"))
    if made.expected:
        yield in_comment(f"    # The script expects: {made.expected}")
    example = ", ".join(f"{literal(output.name)}: 2 * {first}" for output in outputs)
    yield in_comment(f"    # WRITE, for example: return {{{example}}}")
    yield '    raise ValueError("write the reference in kernel.py: only you know what the kernel should compute")'


def _declaration(name: str, made: Draft, outputs: list[DraftTensor]) -> Iterator[str]:
    plan = made.plan
    yield from ("kernel = Kernel(", f'    name="{name}",', "    genes=(")
    for gene in plan.genes:
        values = ", ".join(map(repr, gene.values)) + ("," if len(gene.values) == 1 else "")
        doc = f", doc={literal(gene.doc)}" if gene.doc else ""
        doubt = f"  # guess: {gene.why}" if gene.why else ""
        yield in_comment(f"        Parameter({literal(gene.name)}, ({values}), default={gene.default!r}{doc}),{doubt}")
    yield from ("    ),", "    fields=(")
    for field in plan.fields:
        multiple = f", multiple_of={field.multiple_of}" if field.multiple_of > 1 else ""
        if field.choices:
            multiple = f", choices=({', '.join(map(repr, field.choices))},), default={field.default!r}"
        doubt = f"  # guess: {field.why}" if field.why else ""
        yield in_comment(f"        ProblemField({literal(field.name)}{multiple}),{doubt}")
    yield from ("    ),", "    launches=launches,")
    if plan.constraints:
        yield "    constraints=("
        for label, condition, reason in plan.constraints:
            doubt = "  # guess: from runs" if label.startswith("whole_") else ""
            yield f"        Constraint({literal(label)}, lambda c, p: {condition}, {literal(reason)}),{doubt}"
        yield "    ),"
    if plan.macros:
        pairs = ", ".join(f"{literal(macro)}: {text}" for macro, text in plan.macros.items())
        yield f"    macros=lambda c, p: {{{pairs}}},"
    if plan.options:
        yield f"    options=({', '.join(map(repr, plan.options))},),"
    if made.state:
        yield from _state(made.state)
    yield from ("    workload=Workload(", "        tensors=tensors,", "        reference=reference,")
    limits = ", ".join(f"{literal(t.name)}: Tolerance({_TOLERANCES.get(t.dtype, '0, 0')})" for t in outputs)
    yield f"        tolerance={{{limits}}},  # guess: what the type's rounding may cost"
    work = " + ".join(" * ".join(f"({a})" if " " in a else a for a in t.shape) for t in outputs)
    yield f"        flops=lambda p: {work},  # guess: one operation for each element written"
    yield f"        bytes=lambda p: {bytes_of(made.tensors)},  # guess: each buffer once"
    small = ", ".join(f'"{_values(made, problem)}"' for problem in made.small)
    yield f"        small_problems=({small},),  # guess: several blocks, tails"
    yield from OPEN
    yield from ("    ),", ")")


_MOST_LITERAL = 256
"""Initial bytes of a variable that are written into the declaration."""


def _state(state: Mapping[str, bytes]) -> Iterator[str]:
    """The variables that a call leaves changed: what it finds there must not hang on the calls before it."""
    seen = "Runs show that a call changes" if all(state.values()) else "A call may change"
    yield f"    # {seen} these variables. They are given this before every call, which is timed"
    yield "    # with it; a workspace, which the kernel takes as an argument, may cost less."
    yield "    state={"
    for name, data in sorted(state.items()):
        if not data:
            yield in_comment(f"        {literal(name)}: 0,  # guess: its initial bytes are zeros")
        elif not any(data):
            yield in_comment(f"        {literal(name)}: 0,")
        elif len(data) <= _MOST_LITERAL:
            yield f"        {literal(name)}: {data!r},  # what the file has"
        else:
            yield in_comment(f"        {literal(name)}: 0,  # WRITE: the file has {len(data)} other bytes")
    yield "    },"


def _values(made: Draft, problem: Mapping[str, int]) -> str:
    """A problem as text: numbers by their position, fields with a default by their name."""
    named = {field.name for field in made.plan.fields if field.default is not None}
    return ",".join(f"{name}={value}" if name in named else str(value) for name, value in problem.items())


def reference_h(made: Draft) -> str:
    """Return the C++ reference with its signature and no body."""
    inputs = [tensor.name for tensor in made.tensors if tensor.role in ("input", "inout", "constant")]
    outputs = [tensor.name for tensor in made.tensors if tensor.role in ("output", "inout")]
    rank = {"constant": 0, "input": 0, "inout": 1}
    roles = {tensor.name: tensor.role for tensor in made.tensors}
    inputs.sort(key=lambda name: rank[roles[name]])
    outputs.sort(key=lambda name: roles[name] != "inout")
    parameters = [f"int {field.name}" for field in made.plan.fields]
    parameters += [f"const double* {name}" for name in inputs]
    parameters += [f"double* {name}_out" if name in inputs else f"double* {name}" for name in outputs]
    lines = made.reference.split("\n") if made.reference else []
    shown = "".join(in_comment(f"//   {line}") + "\n" for line in lines)
    return (
        "// What is right, in double; the exported program checks itself against it.\n#pragma once\n\n"
        + (f"// The file computes it on the CPU so:\n{shown}" if shown else "")
        + f"inline void reference({', '.join(parameters)}) {{\n"
        '#error "write the reference in reference.h: only you know what the kernel should compute"\n}\n'
    )


def study_toml(name: str, made: Draft) -> str:
    """Return a study on a guessed problem."""
    problem = " ".join(f"{name}={value}" for name, value in made.study.items())
    return (
        f"# Asks: which variant of {name} is the fastest?\n"
        f'kernel = "{name}"\n'
        f'problems = ["{problem}"]  # guess: sizes\n'
        'budget = "10m"\n'
    )
