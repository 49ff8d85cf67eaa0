"""Write `kernels/NAME/` and `studies/NAME.toml`; what only the user can know is marked CONFIRM or WRITE."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evokern.cuda_source import CudaSource, read
from evokern.errors import UsageError
from evokern.scaffold.guess import Guess, guess


@dataclass(frozen=True)
class Scaffold:
    """What was written, and what is left to do."""

    name: str
    """The kernel's name."""
    files: tuple[Path, ...]
    """Files written."""
    confirm: tuple[str, ...]
    """What only the user can know, one sentence each."""


def scaffold(
    path: Path, root: Path, name: str | None = None, entry: str | None = None, include: Sequence[Path] = ()
) -> Scaffold:
    """Write a kernel folder and a study for one kernel of a CUDA file.

    Args:
        path: the `.cu` file.
        root: folder that gets `kernels/NAME/` and `studies/NAME.toml`.
        name: the kernel's name; None for the file's stem.
        entry: which `__global__` function, where the file has several.
        include: folders searched for the file's own headers, after the file's folder.

    Raises:
        SourceError: the file or its kernel cannot be read.
        UsageError: the folder or the study exists already, the name is none, or two headers have one name.
    """
    source = read(path, include)
    name = name or re.sub(r"\W", "_", path.stem)
    if not name.isidentifier():
        raise UsageError(f"{name!r} cannot be a kernel's name; give letters, digits and _ with --name")
    found = guess(source, entry)
    folder, study = root / "kernels" / name, root / "studies" / f"{name}.toml"
    for target in (folder, study):
        if target.exists():
            raise UsageError(f"{target} exists already; give another name with --name, or remove it")
    flat: dict[str, str] = {}
    for header in source.headers:
        if (other := flat.setdefault(Path(header).name, header)) != header:
            raise UsageError(f"{other} and {header} would be one file in a kernel folder: rename one of the two")
    folder.mkdir(parents=True)
    study.parent.mkdir(exist_ok=True)
    texts = {
        folder / "kernel.cu": device_source(source, found),
        folder / "kernel.py": kernel_py(name, path, found),
        folder / "reference.h": reference_h(found),
        study: study_toml(name, found),
    }
    texts |= {folder / Path(header).name: text for header, text in source.headers.items()}
    for target, text in texts.items():
        target.write_text(_flat_includes(text, source), encoding="utf-8")
    return Scaffold(name, tuple(texts), tuple(_to_confirm(source, found)))


def _flat_includes(text: str, source: CudaSource) -> str:
    """Name the file's own headers without their folders: a kernel folder has none."""
    for header in source.headers:
        text = re.sub(rf'(#[ \t]*include[ \t]*)["<]{re.escape(header)}[">]', rf'\1"{Path(header).name}"', text)
    return text


def device_source(source: CudaSource, found: Guess) -> str:
    """Return the file's device code, each tunable's definition replaced by an `#error` for its absence."""
    text = source.device_text
    tuned = {gene.name for gene in found.genes}
    for macro in source.macros:
        if macro.name not in tuned or macro.kind not in ("defined", "default"):
            continue
        define = re.compile(rf"^[ \t]*#[ \t]*define[ \t]+{macro.name}\b(?:\\\n|[^\n])*$", re.MULTILINE)
        demand = f'#error "{macro.name} must be defined"'
        text = define.sub(demand if macro.kind == "default" else f"#ifndef {macro.name}\n{demand}\n#endif", text, 1)
    text = re.sub(r"\n(?:[ \t]*\n){2,}", "\n\n", text).strip("\n")
    return text + "\n"


def kernel_py(name: str, path: Path, found: Guess) -> str:
    """Return the declaration."""
    entry = found.entry
    call = entry.entry.name if entry.symbol else entry.expression
    shape = ", ".join(f"p.{field}" for field in found.fields[:2])
    shape += "," if len(found.fields) == 1 else ""
    outputs = [tensor.name for tensor in found.tensors if tensor.role == "output"] or [found.tensors[-1].name]
    imports = ["Kernel", "Launch", "ProblemField", "Tensor", "Tolerance", "Workload"]
    imports += ["Parameter"] if found.genes else []
    used = " ".join(found.arguments)
    imports += [word for word in ("Scalar", "i32", "i64") if f"{word}(" in used]
    lines = [f'"""Kernel {name}, drafted from {path.name}: confirm what is marked CONFIRM, write what says WRITE."""',
             "", f"from evokern import {', '.join(sorted(imports))}", "", "",
             "def ceil_div(a, b):", '    """Return a / b, rounded up."""', "    return -(-a // b)", "", "",
             "def launches(c, p):"]  # fmt: skip
    if found.from_launch:
        lines.append(f'    """Grid and block as the file launches it ({found.from_launch})."""')
    else:
        lines += ['    """One launch."""', "    # CONFIRM: grid, block and dynamic shared memory in bytes are guesses"]
    doubt = "  # CONFIRM: the numbers" if "Scalar(" in used else ""
    lines += [f"    grid, block = {found.grid}, {found.block}",
              f"    arguments = ({', '.join(found.arguments)},){doubt}",
              f'    return [Launch("{call}", grid, block, arguments, shared_bytes={found.shared})]', "", "",
              "def tensors(p, c):",
              '    """Every buffer, in the order of reference.h: inputs, outputs, workspaces."""',
              "    # CONFIRM: shapes are guesses; a pointer that is not const may be an output, inout or a workspace",
              "    return {"]  # fmt: skip
    for tensor in sorted(found.tensors, key=lambda tensor: tensor.name in outputs):
        role = ', role="output"' if tensor.name in outputs else ""
        doubt = "" if tensor.sure else "  # CONFIRM: the element type was not recognised"
        lines.append(f'        "{tensor.name}": Tensor("{tensor.dtype}", ({shape}){role}),{doubt}')
    lines += ["    }", "", "", "def reference(p, t):",
              '    """What is right: float64 outputs by name, from float64 torch tensors."""',
              f'    # WRITE, for example: return {{"{outputs[0]}": 2 * t["{found.tensors[0].name}"]}}',
              '    raise ValueError("write the reference in kernel.py: only you know what the kernel should compute")',
              "", "", "kernel = Kernel(", f'    name="{name}",', "    genes=("]  # fmt: skip
    for gene in found.genes:
        values = ", ".join(map(str, gene.values)) + ("," if len(gene.values) == 1 else "")
        doubt = "values worth trying" if gene.known else "the file gives no value, so list the ones it may have"
        lines.append(f'        Parameter("{gene.name}", ({values}), default={gene.default}),  # CONFIRM: {doubt}')
    lines += ["    ),", "    fields=("]
    lines += [f'        ProblemField("{field}"),' for field in found.fields]
    lines += ["    ),", "    launches=launches,", "    workload=Workload(", "        tensors=tensors,",
              "        reference=reference,",
              f"        tolerance={{{', '.join(f'{name!r}: Tolerance(1e-3, 1e-3)' for name in outputs)}}},  # CONFIRM"
              .replace("'", '"'),
              f"        flops=lambda p: p.{found.fields[0]},  # CONFIRM: operations of one call",
              f"        bytes=lambda p: 4 * p.{found.fields[0]},  # CONFIRM: fewest bytes through device memory",
              f'        small_problems=("{",".join(["64"] * len(found.fields))}",),  # CONFIRM: small, tails too',
              "    ),", ")", ""]  # fmt: skip
    return "\n".join(lines)


def reference_h(found: Guess) -> str:
    """Return the C++ reference with its signature and no body."""
    outputs = [tensor.name for tensor in found.tensors if tensor.role == "output"] or [found.tensors[-1].name]
    inputs = [tensor.name for tensor in found.tensors if tensor.name not in outputs]
    parameters = [f"int {field}" for field in found.fields]
    parameters += [f"const double* {name}" for name in inputs] + [f"double* {name}" for name in outputs]
    return (
        "// What is right, in double; the exported program checks itself against it.\n#pragma once\n\n"
        f"inline void reference({', '.join(parameters)}) {{\n"
        '#error "write the reference in reference.h: only you know what the kernel should compute"\n}\n'
    )


def study_toml(name: str, found: Guess) -> str:
    """Return a study on a guessed problem."""
    return (
        f"# Asks: which variant of {name} is the fastest?\n"
        f'kernel = "{name}"\n'
        f'problems = ["{",".join(["4096" if len(found.fields) < 3 else "1024"] * len(found.fields))}"]'
        f"  # CONFIRM: {', '.join(found.fields)}\n"
        'budget = "10m"\n'
    )


def _to_confirm(source: CudaSource, found: Guess) -> list[str]:
    notes = ["kernel.py: write `reference`, and the same in double in reference.h"]
    notes.append("kernel.py: confirm shapes and roles of " + ", ".join(tensor.name for tensor in found.tensors))
    if found.genes:
        notes.append("kernel.py: confirm the values of " + ", ".join(gene.name for gene in found.genes))
    else:
        notes.append("kernel.cu: nothing is tunable yet; turn a number into a macro and declare a Parameter for it")
    if not found.from_launch:
        notes.append("kernel.py: confirm grid, block and shared memory in `launches`: guesses, no launch could be read")
    if source.constants:
        names = ", ".join(constant.name for constant in source.constants)
        notes.append(f"kernel.cu: {names} are constants that could become genes")
    notes += [f"kernel.cu: include {include.name} was not found" for include in source.missing_includes]
    notes.append("the study: confirm the problem")
    return notes
