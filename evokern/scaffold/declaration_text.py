"""Generate the texts of `kernel.py`, `reference.h` and the study for a draft.

A drafted `kernel.py` is executed. It contains names, conditions and comments from CUDA files, tuning scripts and T1
files. Each is written as an inert literal, and the complete text is checked for anything but declarations before it is
saved.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from evokern.declaration.kernel import SIGNIFICAND_BITS
from evokern.errors import SourceError
from evokern.escaping import in_comment, in_docstring, visible
from evokern.scaffold.buffers import bytes_of
from evokern.scaffold.draft import Draft, DraftReference
from evokern.scaffold.plan import DraftArgument, DraftTensor, whole
from evokern.scaffold.problems import LIMIT, uses_indices

_CALLED = frozenset((
    "Constraint", "GoldenValues", "Kernel", "Launch", "Parameter", "ProblemField", "SameAsDefault", "Scalar", "Tensor",
    "Tolerance", "Workload", "divides", "i32", "i64", "ceil_div", "min", "max", "int", "abs", "ValueError",
))  # fmt: skip
"""Functions that a draft may call."""
_ALLOWED_NODES = (
    ast.Module, ast.Expr, ast.ImportFrom, ast.alias, ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.Return,
    ast.Raise, ast.Lambda, ast.Call, ast.keyword, ast.Name, ast.Attribute, ast.Constant, ast.JoinedStr,
    ast.FormattedValue, ast.Tuple, ast.List, ast.Dict, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip
"""Syntax nodes that a draft may contain."""


def literal(text: str) -> str:
    """Return a text as a Python string literal, in double quotes on one line."""
    return visible(json.dumps(text, ensure_ascii=False))


def check_declares(text: str, origin: str) -> str:
    """Return a drafted `kernel.py` if it contains only imports from evokern and declarations.

    Args:
        text: text of the draft.
        origin: source of the draft, for the message.

    Raises:
        SourceError: the draft would execute something else.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise SourceError(f"cannot draft from {origin}: its contents do not form a declaration ({error})") from error
    for node in ast.walk(tree):
        if not _declares(node):
            shown = ast.unparse(node)[:80]
            raise SourceError(f"cannot draft from {origin}: {shown!r} would be executed; use plain arithmetic")
    return text


def _declares(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module=module, level=level):
            return (module, level) == ("evokern", 0)
        case ast.FunctionDef(decorator_list=decorators):
            return not decorators
        case ast.Call(func=ast.Name(id=name)):
            return name in _CALLED
        case ast.Call(func=ast.Attribute(attr="bit_length"), args=[], keywords=[]):
            return True
        case ast.Call():
            return False
        case ast.Attribute(attr="bit_length"):
            return True
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return owner in ("c", "p") and (name.isupper() or not name.startswith("_")) and not name.startswith("__")
        case ast.Name(id=name):
            return not name.startswith("__")
    return isinstance(node, _ALLOWED_NODES) and not isinstance(node, ast.Attribute)


_OPTIONAL_PARTS = (
    "        # Optional: slices=(Slice({...: 0, ...: 0}),) if rows of an input affect only the same rows of an output;",
    "        # candidates of a large problem then get new rows. nonfinite=(...): inputs that may be infinite or NaN.",
)
"""Optional parts of a workload, as comments in the draft."""
_BOUNDS = (
    "        # The allowed rounding error of each output is derived from the reference. If the reference uses a torch",
    "        # operation without a known bound, a message names the operation: then write error={...} (docs/proof.md).",
)
"""Comment in place of bounds."""


def kernel_py(name: str, origin: str, made: Draft) -> str:
    """Return the text of `kernel.py`.

    Args:
        name: name of the kernel.
        origin: source of the draft, for the docstring.
        made: draft to write.
    """
    if made.stated is not None:
        check_declares(unchecked_kernel_py(name, origin, replace(made, stated=None)), origin)
        return unchecked_kernel_py(name, origin, made)  # with code that the user named on the command line
    return check_declares(unchecked_kernel_py(name, origin, made), origin)


def unchecked_kernel_py(name: str, origin: str, made: Draft) -> str:
    """Return the text of `kernel.py`, in which code from the input file may run, as in a torch task."""
    outputs = [tensor for tensor in made.tensors if tensor.role in ("output", "inout")]
    reference = [] if made.same_as_default else ["", "", *_reference(made, outputs)]
    body = "\n".join([*_launches(made, origin), "", "", *_tensors(made), *reference])
    declared = "\n".join(_declaration(name, made, outputs))
    used = body + declared
    names = ["Baseline", "Constraint", "Elementwise", "GoldenValues", "Kernel", "Launch", "Parameter", "ProblemField",
             "SameAsDefault", "Scalar", "Sum", "SumOfProducts", "Tensor", "Tolerance", "Workload", "divides", "i32",
             "i64"]  # fmt: skip
    imports = [word for word in names if re.search(rf"(?<!\.)\b{word}\(", used)]
    lines = [
        f'"""Kernel {name}, drafted from {in_docstring(origin)}. Complete each `TODO`, and confirm each `guess`."""',
        "",
    ]
    stated = made.stated.imports if made.stated else ()
    lines += [*(line for line in stated[:1]), ""] if stated else []
    lines += _wrapped(f"from evokern import {', '.join(imports)}")
    lines += [line for line in stated[1:] if line]
    if uses_indices(made.tensors):
        lines += ["", f"INDEX_LIMIT = {LIMIT}  # guess: integers in the inputs are indices below this limit"]
    if "ceil_div(" in used:
        lines += ["", "", "def ceil_div(a, b):", '    """Return a / b, rounded up."""', "    return -(-a // b)"]
    return "\n".join([*lines, "", "", body, "", "", declared, ""])


def _wrapped(line: str) -> list[str]:
    if len(line) <= 118:
        return [line]
    head, _, names = line.partition("import ")
    return [f"{head}import (", *(f"    {name}," for name in names.split(", ")), ")"]


def _tuple(texts: tuple[str, ...]) -> str:
    texts = tuple(ast.unparse(ast.parse(text.strip(), mode="eval")) for text in texts)  # without needless brackets
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _launches(made: Draft, origin: str) -> Iterator[str]:
    plan = made.plan
    yield "def launches(c, p):"
    if made.launch_guess:
        yield '    """Return one launch."""'
        yield in_comment(f"    # guess: {made.launch_guess}")
    else:
        rounded = "" if plan.whole_grid == plan.grid else ", rounded up to whole clusters"
        where = f"{made.launch_from} of {origin}" if made.launch_from.startswith("line ") else made.launch_from
        yield f'    """Return one launch with grid and block from {in_docstring(where)}{rounded}."""'
    yield f"    grid = {_tuple(plan.whole_grid)}"
    yield f"    block = {_tuple(plan.block)}"
    yield "    arguments = ("
    for argument in plan.arguments:
        doubt = ""
        if argument.why and not argument.is_tensor:
            doubt = f"  # guess: {argument.why}"
            if not whole(argument.dtype):
                doubt = f"  # TODO: write the value that you pass for {argument.name}; {argument.why}"
        yield in_comment(f"        {_argument(argument)},{doubt}")
    yield "    )"
    entry = _entry(plan.entry)
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


def _entry(entry: str) -> str:
    """Return the Python text of a kernel name, with `{GENE}` for each gene and the values of fields."""
    if "{p." in entry:
        return "f" + literal(re.sub(r"\{c\.(\w+)\}", r"{{\1}}", entry))
    return literal(entry.replace("{c.", "{"))


def _argument(argument: DraftArgument) -> str:
    if argument.expression is None:
        return literal(argument.name)
    if argument.dtype in ("i32", "i64"):
        return f"{argument.dtype}({argument.expression})"
    return f'Scalar("{argument.dtype}", {argument.expression})'


def _tensors(made: Draft) -> Iterator[str]:
    yield "def tensors(p, c):"
    yield '    """Return all buffers, in the order of reference.h: inputs, outputs, workspaces."""'
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
    if made.stated is not None:
        yield from _stated(made.stated)
        return
    yield "def reference(p, t):"
    yield '    """Return the correct float64 outputs by name, from float64 torch tensors."""'
    if made.reference:
        yield "    # CPU version from the file:"
        yield from (in_comment(f"    #   {line}") for line in made.reference.split("\n"))
    if made.expected:
        yield in_comment(f"    # The script expects: {made.expected}")
    example = ", ".join(f"{literal(output.name)}: 2 * {first}" for output in outputs)
    yield in_comment(f"    # TODO: write the reference, for example: return {{{example}}}")
    yield '    raise ValueError("write the reference in kernel.py: only you know what the kernel should compute")'


def _stated(stated: DraftReference) -> Iterator[str]:
    """Yield the function that the user named, for float64 tensors and as a baseline for the kernel's own dtypes."""
    yield f"def {'computed' if stated.rounded else 'reference'}(p, t):"
    yield f'    """Return the outputs by name: {in_docstring(stated.given)}."""'
    if stated.differs:
        yield in_comment(f"    # TODO: {stated.differs}")
    yield f"    {stated.line}"
    if stated.rounded:
        yield from ("", "", "def reference(p, t):", '    """Return the outputs by name in float64."""',
                    "    return {name: value.double() for name, value in computed(p, t).items()}")  # fmt: skip


def _declaration(name: str, made: Draft, outputs: list[DraftTensor]) -> Iterator[str]:
    plan = made.plan
    yield from ("kernel = Kernel(", f'    name="{name}",', "    genes=(")
    for gene in plan.genes:
        values = ", ".join(map(repr, gene.values)) + ("," if len(gene.values) == 1 else "")
        doc = f", doc={literal(gene.doc)}" if gene.doc else ""
        doc += f', as_="{gene.as_}"' if gene.as_ != "macro" else ""
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
    yield from ("    workload=Workload(", "        tensors=tensors,")
    stated = made.stated
    if made.same_as_default:
        yield from _default_reference(made, outputs)
    else:
        yield "        reference=reference,"
    if stated is not None and stated.bounds:
        yield "        error={"
        for output, (text, why) in stated.bounds.items():
            yield in_comment(f"            {literal(output)}: {text},  # TODO: confirm this error bound; {why}")
        yield "        },"
        if exact := [f"{literal(one.name)}: Tolerance(0, 0)" for one in outputs if one.dtype not in SIGNIFICAND_BITS]:
            yield f"        tolerance={{{', '.join(exact)}}},"
    elif not made.same_as_default:
        yield from _BOUNDS
    work = " + ".join(" * ".join(f"({a})" if " " in a else a for a in t.shape) for t in outputs)
    if stated is not None and stated.flops:
        yield f"        flops=lambda p: {stated.flops},  # matrix products of the reference"
    else:
        yield f"        flops=lambda p: {work},  # guess: one operation per output element"
    yield f"        bytes=lambda p: {bytes_of(made.tensors)},  # guess: each buffer is accessed once"
    small = ", ".join(f'"{_values(made, problem)}"' for problem in made.small)
    if made.small:
        yield f"        small_problems=({small},),  # guess: several blocks, with tails"
    if stated is not None:
        run = "computed" if stated.rounded else "reference"
        yield f"        baselines=(Baseline({literal(stated.name)}, {run}),),"
        yield "        cpp_reference=False,"
    yield from _OPTIONAL_PARTS
    yield from ("    ),", ")")


def _default_reference(made: Draft, outputs: list[DraftTensor]) -> Iterator[str]:
    """Yield the reference of a draft from a tuner: recorded values, and the default candidate's outputs elsewhere."""
    if made.golden:
        problem, file, digest = made.golden
        yield "        # At this problem, the inputs are those of the script, and outputs must equal its `answer`."
        yield f"        golden=GoldenValues({literal(problem)}, {literal(file)}, {literal(digest)}),"
        yield "        # Elsewhere, candidates must equal the default candidate: not a check against a known result."
    else:
        yield "        # Candidates must equal the default candidate: this is not a check against a known result."
    yield "        # WRITE a reference to check other inputs: a function of (p, t) that returns float64 outputs,"
    inputs = [tensor.name for tensor in made.tensors if tensor.role in ("input", "inout", "constant")]
    first = f"t[{literal(inputs[0])}]" if inputs else "..."
    example = ", ".join(f"{literal(output.name)}: 2 * {first}" for output in outputs)
    yield in_comment(f"        # for example lambda p, t: {{{example}}}")
    yield "        reference=SameAsDefault(),"
    yield "        tolerance={"
    for name, (atol, rtol, why) in made.tolerance.items():
        doubt = f"  # guess: {why}" if why else ""
        yield in_comment(f"            {literal(name)}: Tolerance({atol!r}, {rtol!r}),{doubt}")
    yield "        },"
    yield "        cpp_reference=False,"


_MOST_LITERAL = 256
"""Maximum number of a variable's initial bytes that are written into the declaration."""


def _state(state: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the lines that declare the variables that a call changes, so that they are reset before each call."""
    seen = "Runs show that a call changes" if all(state.values()) else "A call may change"
    yield f"    # {seen} these variables. They are reset to these values before every call,"
    yield "    # and the reset is timed; a workspace argument may be cheaper."
    yield "    state={"
    for name, data in sorted(state.items()):
        if not data:
            yield in_comment(f"        {literal(name)}: 0,  # guess: initially zero")
        elif not any(data):
            yield in_comment(f"        {literal(name)}: 0,")
        elif len(data) <= _MOST_LITERAL:
            yield f"        {literal(name)}: {data!r},  # value in the file"
        else:
            yield in_comment(
                f"        {literal(name)}: 0,  # TODO: write the file's value, {len(data)} bytes, is not zero"
            )
    yield "    },"


def _values(made: Draft, problem: Mapping[str, int]) -> str:
    """Return a problem as text: numbers by position, fields with a default by name."""
    named = {field.name for field in made.plan.fields if field.default is not None}
    return ",".join(f"{name}={value}" if name in named else str(value) for name, value in problem.items())


def reference_h(made: Draft) -> str:
    """Return the text of the C++ reference: its signature without a body."""
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
        "// Reference in double precision; the exported program checks itself against it.\n"
        "// Without it, delete this file and set cpp_reference=False in the Workload of kernel.py.\n#pragma once\n\n"
        + (f"// CPU version from the file:\n{shown}" if shown else "")
        + f"inline void reference({', '.join(parameters)}) {{\n"
        "// TODO: write the same computation as in kernel.py, in double precision\n"
        '#error "write the reference in reference.h: only you know what the kernel should compute"\n}\n'
    )


def study_toml(name: str, made: Draft) -> str:
    """Return the text of a study for a guessed problem."""
    problem = " ".join(f"{name}={value}" for name, value in made.study.items())
    doubt = f"  # TODO: write the sizes that you use; {', '.join(made.unread)}: not in the file" if made.unread else ""
    smaller = f"# The file's problem is {made.smaller}: it takes too long on a simulated device; use a GPU.\n"
    return (
        f"# Asks: which variant of {name} is the fastest?\n"
        f"{smaller if made.smaller else ''}"
        f'kernel = "{name}"\n'
        f'problems = ["{problem}"]{doubt}\n'
        'budget = "10m"\n'
    )
