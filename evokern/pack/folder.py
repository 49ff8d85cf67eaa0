"""Folder of a package: its files, and how they are written."""

from __future__ import annotations

import hashlib
import json
import keyword
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from evokern.declaration.kernel import Kernel
from evokern.errors import UsageError
from evokern.escaping import in_docstring, in_markdown
from evokern.files import make_folder, write_whole
from evokern.pack.baseline_code import BaselineModule
from evokern.pack.library import OLDEST_TORCH, build_library
from evokern.pack.operations import TorchOperation
from evokern.pack.operator_code import Description, cpp_code, python_code
from evokern.version import __version__

PROVENANCE = "provenance.json"
"""File with the origin of a package; a folder without it is not replaced."""
_LICENCES = ("LICENSE", "LICENCE", "COPYING")
_RESERVED = ("torch", "evokern", "numpy", "aten", "prim", "prims", "test", "tests")


@dataclass(frozen=True)
class Written:
    """A written package."""

    folder: Path
    """The folder."""
    files: tuple[str, ...]
    """Files in it."""
    launch: str
    """How kernels are launched, with the reason if not by the C++ library."""
    compiled: bool
    """Whether the C++ library was built."""

    @property
    def install(self) -> str:
        """Command that installs the package; pip takes a path without a slash for the name of a package."""
        bare = not self.folder.is_absolute() and len(self.folder.parts) == 1
        return f"pip install {shlex.quote(f'./{self.folder}' if bare else str(self.folder))}"


def package_name(folder: Path) -> str:
    """Return the name of the package for its folder.

    Raises:
        UsageError: the folder's name cannot name a package.
    """
    name = re.sub(r"[-. ]", "_", folder.resolve().name).lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UsageError(
            f"{folder}: the name of the folder becomes the name of the package, but {name!r} cannot be imported; use "
            "letters, digits and _, for example -o my_operator"
        )
    if name in sys.stdlib_module_names or name in _RESERVED:
        raise UsageError(
            f"{folder}: {name} is the name of another package; choose another folder, for example my_{name}"
        )
    return name


def write_package(folder: Path, made: Description, baselines: BaselineModule, provenance: Mapping[str, Any]) -> Written:
    """Write a package, and build its library if a C++ compiler is installed.

    Args:
        folder: the folder; a package written earlier is replaced.
        made: the operator.
        baselines: the module with the baselines.
        provenance: facts for `provenance.json`; names, digests and versions are added.

    Raises:
        UsageError: the folder contains something else, or cannot be written.
    """
    _check_folder(folder)
    licence = licence_of(made.kernel)
    sources = {"operator.h": _own("operator.h"), "operator.cpp": cpp_code(made)}
    library = build_library(sources)
    inside: dict[str, bytes] = {
        "__init__.py": _init_code(made).encode(),
        "_rules.py": python_code(made).encode(),
        "_baselines.py": baselines.text.encode(),
        **{f"_{name}.py": _own(f"{name}.py").encode() for name in ("operator", "launcher")},
        **{f"{name}.py": _own(f"{name}.py").encode() for name in ("selftest", "benchmark")},
        **{f"_{name}.py": _own(f"{name}.py").encode() for name in _modules(made)},
        **{f"variant_{index}.cubin": variant.cubin for index, variant in enumerate(made.variants)},
        **{f"source/{name}": text.encode() for name, text in sources.items()},
    }
    launch = f"C++ library: {library.text}"
    if library.data is not None:
        inside["operator.so"] = library.data
    else:
        launch = f"Python, because {library.text}"
    facts = {
        "package": made.package, "operator": f"{made.package}::{made.name}", "evokern": __version__, "launch": launch,
        **provenance,
        "licence": "unknown: the kernel has no file LICENSE" if licence is None else "LICENSE",
        "baselines": list(baselines.names), "baselines_left_out": list(baselines.left_out),
        "digests": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(inside.items())},
    }  # fmt: skip
    inside[PROVENANCE] = (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode()
    files = {f"{made.package}/{name}": data for name, data in inside.items()}
    files["pyproject.toml"] = _pyproject(made).encode()
    files["build_wheel.py"] = _own("build_wheel.py").encode()
    files["README.md"] = _readme(made, baselines, launch).encode()
    if licence is not None:
        files["LICENSE"] = licence
    _replace(folder, made.package, files)
    return Written(folder, tuple(sorted(files)), launch, library.data is not None)


def licence_of(kernel: Kernel) -> bytes | None:
    """Return the licence of a kernel: a file in its folder, or next to the folder `kernels` that contains it."""
    places = [kernel.folder, *([kernel.folder.parent.parent] if kernel.folder.parent.name == "kernels" else [])]
    files = (place / f"{name}{suffix}" for place in places for name in _LICENCES for suffix in ("", ".txt", ".md"))
    return next((file.read_bytes() for file in files if file.is_file()), None)


def _own(name: str) -> str:
    return resources.files(__package__).joinpath("package", name).read_text(encoding="utf-8")


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder for the package with -o")
    if folder.is_dir() and any(folder.iterdir()) and not list(folder.glob(f"*/{PROVENANCE}")):
        raise UsageError(f"the folder {folder} contains other files; choose a new or empty folder with -o")


def _replace(folder: Path, package: str, files: Mapping[str, bytes]) -> None:
    """Write the files, and remove machine code and a library of an earlier package."""
    try:
        for stale in (*folder.glob(f"{package}/variant_*.cubin"), *folder.glob(f"{package}/operator.so")):
            if f"{package}/{stale.name}" not in files:
                stale.unlink()
        for name, data in files.items():
            path = folder / name
            make_folder(path.parent)
            write_whole(path, data)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; choose another folder with -o") from error


def _pyproject(made: Description) -> str:
    oldest = ".".join(map(str, OLDEST_TORCH))
    return f"""\
[build-system]
requires = []
build-backend = "build_wheel"
backend-path = ["."]

[project]
name = "{made.package}"
version = "1.0"
description = "Operator {made.package}::{made.name} for torch, with kernels found by evokern"
requires-python = ">=3.11"
dependencies = ["torch>={oldest}"]
"""


def _init_code(made: Description) -> str:
    signature = made.signature
    inputs = [buffer.name for buffer in signature.inputs]
    defaults = ["" if one.default is None else f"={one.default}" for one in signature.arguments]
    options = [
        f"{one.name}: int{default.replace('=', ' = ')}"
        for one, default in zip(signature.arguments, defaults, strict=True)
    ]
    typed = ", ".join(f"{name}: torch.Tensor" for name in inputs)
    passed = ", ".join([*inputs, *(one.name for one in signature.arguments)])
    tensors = "(" + "".join(f"{name}, " for name in inputs).rstrip() + ")"
    values = "[" + ", ".join(one.name for one in signature.arguments) + "]"
    needs = " or ".join(f"{name}.requires_grad" for name in inputs)
    changed = [buffer.name for buffer in signature.inputs if buffer.changed]
    copies = [f"            {name} = {name}.contiguous()" for name in inputs if name not in changed]
    copied = ["        if copy:", *copies] if copies else []
    # A bool tensor contains the bytes 0 and 1, and the view shares them.
    views = [
        f"        if {name}.dtype is torch.bool:\n            {name} = {name}.view(torch.uint8)"
        for place, name in enumerate(inputs)
        if any(mode.inputs[place].dtype == "u8" for mode in signature.modes)
    ]
    needing = [f"        if torch.compiler.is_compiling() or (torch.is_grad_enabled() and ({needs})):"]
    if changed:  # torch would not notice at the backward pass that a call changed an input
        needing = [
            f"        if torch.is_grad_enabled() and ({needs}):\n            _operator.refuse_gradient()",
            "        if torch.compiler.is_compiling():",
        ]
    result = "None" if not signature.outputs else "tuple[torch.Tensor, ...]"
    result = "torch.Tensor" if len(signature.outputs) == 1 else result
    keywords = ", ".join([*options, "copy: bool = False"])
    own = ", ".join(["*", *options]) if options else ""
    return f'''"""Operator `{made.package}::{made.name}` for torch, with kernels found by evokern.

`{made.name}` calls the operator, `explain` names the kernel that serves a call, and `stats` counts the calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from {made.package} import _rules
from {made.package}._baselines import BASELINES
from {made.package}._launcher import Launcher
from {made.package}._operator import Explanation, Operator

{_imports(made)}
_operator = Operator("{made.package}", _rules, BASELINES, Path(__file__).parent, Launcher)
_call = _operator.call
_direct = _call._op  # without a frame of Python
_below_autograd = torch._C._AutoDispatchBelowAutograd


def {made.name}({typed}, *, {keywords}) -> {result}:
    """Return {in_docstring(", ".join(buffer.declared for buffer in signature.outputs)) or "nothing"}.

    Args:
{_argument_docs(made)}
        copy: whether to copy inputs that are not contiguous; otherwise they raise an error.
    """
    try:
{chr(10).join((*views, *copied, *needing))}
            return _call({passed})
        with _below_autograd():  # skips the check for gradients, which costs more than the launch
            return _direct({passed})
    except (AttributeError, RuntimeError):
        _operator.check_types({tensors})
        raise


def explain({typed}{", " + own if own else ""}) -> Explanation:
    """Return the kernel or baseline that would serve a call, and the reason; the call does not run."""
    try:
{chr(10).join((*views, f"        return _operator.explain({tensors}, {values})"))}
    except (AttributeError, RuntimeError):
        _operator.check_types({tensors})
        raise


def stats() -> dict[str, Any]:
    """Return how many calls each kernel and each baseline served in this process, with reasons."""
    return _operator.stats()

{_replacements(made)}
__all__ = [{", ".join(f'"{name}"' for name in ("Explanation", "explain", made.name, "stats", *_names(made)))}]
'''


def _modules(made: Description) -> tuple[str, ...]:
    """Return the modules with the functions that fit the kernel."""
    if made.operation is None:
        return ()
    return ("sdpa",) if made.operation.name == "sdpa" else ("modules",)


def _names(made: Description) -> tuple[str, ...]:
    """Return the names of the functions that fit the kernel."""
    if made.operation is None:
        return ()
    return (f"replace_{made.operation.name}", *(("register_attention",) if made.operation.name == "sdpa" else ()))


def _imports(made: Description) -> str:
    if made.operation is None:
        return ""
    if made.operation.name == "sdpa":
        return f"from {made.package}._sdpa import Sdpa\n"
    return f"from {made.package}._modules import is_{made.operation.name}, replace_modules\n"


def _replacements(made: Description) -> str:
    """Return the functions that let the operator compute what a model asks of torch."""
    match made.operation:
        case None:
            return ""
        case TorchOperation("sdpa", options):
            given = ", ".join(repr(one) for one in options.values())
            return f"""
_sdpa = Sdpa(_operator, {made.name}, {given})
replace_sdpa = _sdpa.replace_sdpa
register_attention = _sdpa.register_attention
"""
        case TorchOperation(name, options):
            what = "linear layers without a bias" if name == "linear" else f"RMS norms with eps {options['eps']}"
            given = "".join(f", {one}={value!r}" for one, value in options.items())
            return f'''
def replace_{name}(model: torch.nn.Module) -> int:
    """Let the operator compute the {what} of a model; return their number.

    The modules keep their parameters. Calls that the operator does not take run as before, and `stats()` counts them.
    """
    return replace_modules(model, _operator, {made.name}, lambda module: is_{name}(module{given}))

'''


def _argument_docs(made: Description) -> str:
    signature = made.signature
    docs = {entry.name: in_docstring(entry.doc) for entry in signature.fields}
    lines = []
    for place, buffer in enumerate(signature.inputs):
        types = " or ".join(dict.fromkeys(mode.inputs[place].dtype for mode in signature.modes))
        types = re.sub(r"\bu8\b", "u8 or bool", types)
        lines.append(
            f"        {buffer.name}: {types} tensor, contiguous{'; changed by the call' if buffer.changed else ''}."
        )
    lines += [f"        {one.name}: {docs[one.field] or 'field ' + one.field}." for one in signature.arguments]
    return "\n".join(lines)


def _readme(made: Description, baselines: BaselineModule, launch: str) -> str:
    rows = "\n".join(
        f"| {index} | {in_markdown(variant.title)} | sm_{variant.capability} |"
        for index, variant in enumerate(made.variants)
    )
    inputs = ", ".join(buffer.name for buffer in made.signature.inputs)
    names = in_markdown(", ".join(baselines.names))
    functions = "".join(f" `{name}` lets a model use the operator without changes." for name in _names(made)[:1])
    return f"""\
# {made.package}

The operator `{made.package}::{made.name}` for torch, with kernels found by evokern {__version__}.

```
pip install .
python -m {made.package}.selftest
python -m {made.package}.benchmark
```

```python
import torch
from {made.package} import {made.name}, explain, stats

torch.compile({made.name}, fullgraph=True)({inputs})
```

| Variant | Origin | Architecture |
|---|---|---|
{rows}

Calls that no variant takes run a baseline of torch: {names}. `explain({inputs})` names the code that serves a call, and
`stats()` counts the calls. Kernels are launched by: {launch}.{functions}

`{made.package}/{PROVENANCE}` states the origin of each file.
"""
