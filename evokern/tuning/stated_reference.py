"""Reference named on the command line of `evokern init`: a function, a call with keyword arguments, or a lambda."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evokern.errors import UsageError
from evokern.files import is_file, read_text
from evokern.tuning.reference import imported, is_installed, name_of, stops_at_tune

COPY = "reference.py"
"""Name of the copy of the user's file in the kernel folder."""
_NAMES = {"torch": "import torch", "F": "import torch.nn.functional as F", "math": "import math"}
"""Names that a lambda may use → the import that defines them in `kernel.py`."""


@dataclass(frozen=True)
class StatedReference:
    """A reference as stated, with its text for `kernel.py`."""

    given: str
    """Text of the option."""
    function: Callable[..., Any]
    """The function, with its keyword arguments."""
    called: str
    """Text of the function in `kernel.py`: a name or, for a lambda, the lambda."""
    named: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments."""
    imports: tuple[str, ...] = ()
    """Lines of `kernel.py` that define the function."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Python files to write next to `kernel.py`: name → text."""

    @property
    def name(self) -> str:
        """Name of the function for results."""
        return name_of(self.function)

    def call(self, arguments: Sequence[str]) -> str:
        """Return the text of a call.

        Args:
            arguments: texts of the arguments, in order.
        """
        if self.called.startswith("lambda"):
            made = ast.parse(self.called, mode="eval").body
            assert isinstance(made, ast.Lambda), self.called
            names = [one.arg for one in made.args.args]
            if not any(
                isinstance(node, (ast.Lambda, ast.comprehension, ast.NamedExpr)) for node in ast.walk(made.body)
            ):
                return ast.unparse(_Replacing(dict(zip(names, arguments, strict=True))).visit(made.body))
            return f"({self.called})({', '.join(arguments)})"
        named = [f"{key}={value!r}" for key, value in self.named.items()]
        return f"{self.called}({', '.join([*arguments, *named])})"


class _Replacing(ast.NodeTransformer):
    """Replacement of a lambda's parameters by their arguments."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the argument of a parameter."""
        return ast.parse(self.texts[node.id], mode="eval").body if node.id in self.texts else node


def stated_reference(given: str) -> StatedReference:
    """Return the reference that the option `--reference` names.

    Args:
        given: `module:function`, `FILE.py:function`, either with keyword arguments in parentheses, or a lambda.

    Raises:
        UsageError: it cannot be parsed or imported, or is not a function.
    """
    text = given.strip()
    if text.startswith("lambda"):
        return _lambda(given, text)
    path, call, rest = text.partition("(")
    named = _keywords(given, rest) if call else {}
    path = path.strip()
    function = imported(path)
    place, _, name = path.rpartition(":")
    imports, called, files = _text_of(path, place, name, function)
    bound: Callable[..., Any] = function
    if named:
        bound = functools.partial(function, **named)
        bound.__name__ = name_of(function)  # type: ignore[attr-defined]
    return StatedReference(given, bound, called, named, imports, files)


def _keywords(given: str, rest: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        assert isinstance(call, ast.Call), rest
        if call.args or any(one.arg is None for one in call.keywords):
            raise ValueError
        return {one.arg or "": ast.literal_eval(one.value) for one in call.keywords}
    except (AssertionError, SyntaxError, ValueError) as error:
        raise UsageError(
            f"--reference {given}: the parentheses may contain only keyword arguments with constant values, such as "
            "torch.nn.functional:softmax(dim=-1); for anything else write a lambda: 'lambda x: F.softmax(x, -1)'"
        ) from error


def _lambda(given: str, text: str) -> StatedReference:
    import torch

    try:
        made = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise UsageError(f"--reference {given}: the lambda is not valid Python: {error.msg}") from error
    if not isinstance(made, ast.Lambda):
        raise UsageError(f"--reference {given}: more than a lambda; write one lambda, or a function in a file")
    arguments = made.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs or arguments.defaults:
        raise UsageError(f"--reference {given}: the lambda may have only plain parameters, one for each input")
    parameters = {one.arg for one in arguments.args}
    used = dict.fromkeys(node.id for node in ast.walk(made.body) if isinstance(node, ast.Name))
    known = {"torch": torch, "F": torch.nn.functional, "math": math}
    function = eval(compile(ast.Expression(made), "--reference", "eval"), dict(known))
    inside = {node.arg for node in ast.walk(made.body) if isinstance(node, ast.arg)}
    inside |= {
        node.id for node in ast.walk(made.body) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    builtin = vars(importlib.import_module("builtins"))
    if unknown := [one for one in used if one not in parameters | inside | set(known) and one not in builtin]:
        raise UsageError(
            f"--reference {given}: {unknown[0]} is unknown; a lambda may use its parameters, torch, "
            "F (torch.nn.functional) and math; write a function in a file for anything else"
        )
    imports = tuple(line for name, line in _NAMES.items() if name in used)
    return StatedReference(given, function, ast.unparse(made), {}, imports)


def _text_of(
    path: str, place: str, name: str, function: Callable[..., Any]
) -> tuple[tuple[str, ...], str, Mapping[str, str]]:
    """Return the lines that define a function in `kernel.py`, its name there, and the files to copy."""
    own = Path(place) if place.endswith(".py") else Path(*place.split(".")).with_suffix(".py")
    module = None if is_file(own) else sys.modules[place]
    source = own if module is None else Path(getattr(module, "__file__", None) or "")
    if module is not None and (not source.suffix or is_installed(str(source))):
        return (f"import {place}",), f"{place}.{name}", {}
    if stops_at_tune(place):
        raise UsageError(
            f"--reference {path}: {source} calls evokern.tune when it is imported; put that call below "
            '`if __name__ == "__main__":`'
        )
    if near := _neighbours(source):
        raise UsageError(
            f"--reference {path}: {source} imports {near[0]}, which a kernel folder does not contain; put both into "
            "one file"
        )
    head, dot, more = name.partition(".")
    return (
        "from pathlib import Path",
        "",
        "from evokern.declaration.loading import load_name",
        f'{head} = load_name(Path(__file__).with_name("{COPY}"), "{head}")',
    ), head + dot + more, {COPY: read_text(source)}  # fmt: skip


def _neighbours(source: Path) -> list[str]:
    """Return the modules of the user's own that a file imports."""
    found = []
    for node in ast.walk(ast.parse(read_text(source))):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        for one in names:
            file = getattr(sys.modules.get(one), "__file__", None)
            if one.startswith(".") or (file and file.endswith(".py") and not is_installed(file)):
                found.append(one)
    return found


def takes_by_name(function: Callable[..., Any], known: Sequence[str]) -> list[str] | None:
    """Return the parameters of a function if each is the name of an argument of the kernel, else None."""
    try:
        names = [
            one.name
            for one in inspect.signature(function).parameters.values()
            if one.default is inspect.Parameter.empty
        ]
    except (TypeError, ValueError):
        return None
    return names if names and all(one in known for one in names) else None
