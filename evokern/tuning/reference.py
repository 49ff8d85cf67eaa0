"""Reference of a tuned kernel: its identity, its import path, its pickle, and its import on the command line."""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import linecache
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from evokern.declaration.as_data.declared import Functions, register
from evokern.errors import KERNEL_CODE_EXCEPTIONS, UsageError, suggestion
from evokern.files import is_file

MOST_NAMED = 20
"""Maximum number of functions of a module that a message lists."""
_importing = False
_stopped: set[str] = set()
"""Modules and files whose import ended at a call of `evokern.tune`."""


class ImportEnds(BaseException):
    """The end of a script's import at its call of `evokern.tune`; its functions are defined before."""


def end_import() -> None:
    """End the import of a module for its reference, if one is in progress; `evokern.tune` calls this."""
    if _importing:
        raise ImportEnds


def stops_at_tune(place: str) -> bool:
    """Return whether the import of a module or file ended at its call of `evokern.tune`."""
    return place in _stopped


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function for results."""
    name = getattr(function, "__name__", type(function).__name__)
    return "reference" if name == "<lambda>" else name


def described(name: str) -> str:
    """Return how messages refer to a reference: with its name, unless it is a lambda or only called `reference`."""
    return "the reference" if name == "reference" else f"reference {name}"


def place_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return where a function is: its import path, or why it has none and whether a file could contain it."""
    path = import_path(function)
    if path:
        return {"path": path}
    code = getattr(function, "__code__", None)
    if isinstance(function, functools.partial):
        kind = "a functools.partial"
    elif isinstance(function, types.MethodType):
        kind = "a method of an object"
    elif code is None:
        kind = f"an object of class {type(function).__name__}"
    elif function.__name__ == "<lambda>":
        kind = "a lambda"
    else:
        name = function.__qualname__
        kind = "defined inside a function" if "<locals>" in name else "defined in a notebook or an interactive session"
    # Without the text of a function, its digest is that of its bytecode, which a function in a file does not have.
    movable = code is None or kind == "a lambda" or bool(linecache.getlines(code.co_filename))
    return {"path": "", "kind": kind, "movable": movable}


def import_path(function: Callable[..., Any]) -> str:
    """Return `module:function`, or `FILE.py:function` for a script; empty if the function cannot be imported."""
    name, module = getattr(function, "__qualname__", "<none>"), getattr(function, "__module__", None)
    if "<" in name or module is None or isinstance(function, types.MethodType):
        return ""
    if module != "__main__":
        return f"{module}:{name}"
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return f"{file}:{name}" if file else ""


def digest_of(value: Any) -> str:
    """Return the SHA-256 digest of a function's code and of the values and functions that it uses.

    Comments and line numbers do not count. Functions of installed packages count by name.
    """
    state = hashlib.sha256()
    for part in _identity(value, set()):
        state.update(part.encode() + b"\0")
    return state.hexdigest()


def _identity(value: Any, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:
        return
    if isinstance(value, functools.partial):
        yield from _identity((value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.MethodType):
        yield from _identity((value.__func__, value.__self__), seen)
    elif isinstance(value, type) and not _installed(value):
        seen.add(id(value))
        yield value.__qualname__
        parts = (getattr(one, "__func__", getattr(one, "fget", one)) for one in vars(value).values())
        yield from _identity([*value.__bases__, *(one for one in parts if isinstance(one, types.FunctionType))], seen)
    elif isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
    elif isinstance(value, types.FunctionType):
        seen.add(id(value))
        if _installed(value):
            yield f"{value.__module__}.{value.__qualname__}"
            return
        yield _code_text(value)
        inside = inspect.getclosurevars(value)
        for name, used in sorted({**inside.globals, **inside.nonlocals}.items()):
            yield name
            yield from _identity(used, seen)
            if isinstance(used, types.ModuleType) and not is_installed(getattr(used, "__file__", None) or "<frozen"):
                for attribute in sorted(inside.unbound):  # functions and values of a module of the user
                    if hasattr(used, attribute):
                        yield attribute
                        yield from _identity(getattr(used, attribute), seen)
        yield from _identity(value.__defaults__, seen)
        yield from _identity(value.__kwdefaults__, seen)
    elif hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "tolist"):
        yield f"{value.dtype}{tuple(value.shape)}{value.tolist()}"
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _identity(one, seen)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield str(key)
            yield from _identity(one, seen)
    elif hasattr(value, "__dict__"):
        seen.add(id(value))
        yield from _identity((type(value), vars(value)), seen)
    else:
        yield getattr(value, "__qualname__", None) or repr(value)


def _installed(value: types.FunctionType | type) -> bool:
    """Return whether a function or class is of an installed package or of Python, which a study does not track."""
    if isinstance(value, types.FunctionType):
        return is_installed(value.__code__.co_filename)
    module = sys.modules.get(value.__module__)
    return value.__module__ != "__main__" and is_installed(getattr(module, "__file__", None) or "<frozen")


def is_installed(file: str) -> bool:
    """Return whether a file belongs to an installed package or to Python."""
    parts = ("site-packages" in file, "dist-packages" in file)
    return any(parts) or file.startswith(("<frozen", sysconfig.get_path("stdlib")))


def _code_text(function: types.FunctionType) -> str:
    """Return the code of a function as text: its syntax tree, or its bytecode if no source is available."""
    if function.__name__ != "<lambda>":
        try:
            return ast.dump(_without_docstrings(ast.parse(textwrap.dedent(inspect.getsource(function)))))
        except (OSError, SyntaxError, TypeError):
            pass
    return _bytecode_text(function.__code__)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.walk(tree):
        if isinstance(node, definitions) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _bytecode_text(code: types.CodeType) -> str:
    constants = [_bytecode_text(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names}"


def pickled(functions: Functions) -> bytes:
    """Return functions as a pickle, also those of a script or a notebook.

    Raises:
        UsageError: a function refers to something that cannot be passed to another process.
    """
    import cloudpickle

    used = (functions.reference, *functions.draws.values(), *functions.error.values())
    own = {
        sys.modules.get(one.__module__) for one in used if isinstance(one, types.FunctionType) and not _installed(one)
    }
    modules = [module for module in own if module is not None and module.__name__ != "__main__"]
    # By value, because a worker that imports the user's module would run its code again, also a call of tune.
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        code = getattr(functions.reference, "__code__", None)
        return bytes(cloudpickle.dumps(replace(functions, file="" if code is None else code.co_filename)))
    except KERNEL_CODE_EXCEPTIONS as error:
        raise UsageError(
            f"the reference cannot be passed to worker processes ({type(error).__name__}: {error}); it may use only "
            "functions, arrays and numbers"
        ) from error
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def order_of(
    function: Callable[..., Any], inputs: tuple[str, ...], numbers: Mapping[str, int | float], arguments: list[str]
) -> tuple[str | int | float, ...]:
    """Return the arguments of the reference: the inputs, inputs and numbers, or those that its parameters name.

    Args:
        function: the reference.
        inputs: names of the inputs, in the order of the arguments.
        numbers: name → number, for arguments passed by value.
        arguments: names of all inputs and numbers, in order.

    Raises:
        UsageError: the reference takes another number of arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return inputs
    every = tuple(numbers.get(name, name) for name in arguments)
    named = tuple(numbers.get(name, name) for name in signature.parameters)
    by_name = set(inputs) <= set(signature.parameters) <= set(arguments)
    for order in (inputs, every, *([named] if by_name else [])):
        try:
            signature.bind(*order)
        except TypeError:
            continue
        return order
    raise UsageError(
        f"{described(name_of(function))}{signature} must take the inputs in the order of args: {_call(inputs)}"
        + (f", or with the numbers {_call(arguments)}; with these names it may omit numbers" if numbers else "")
    )


def _call(names: Any) -> str:
    return f"({', '.join(names)})"


def register_reference(path: str) -> str:
    """Import a reference from `module:function` or `FILE.py:function`, make it known, and return its digest.

    Raises:
        UsageError: there is no such function, or its module raises.
    """
    function = imported(path)
    digest = digest_of(function)
    register(digest, pickled(Functions(function)), path)
    return digest


def imported(path: str) -> Callable[..., Any]:
    """Import a function from `module:function` or `FILE.py:function`.

    Raises:
        UsageError: there is no such function, or its module raises.
    """
    place, colon, name = path.rpartition(":")
    if not colon or not name or not place:
        owner, dot, last = path.rpartition(".")
        owner = "torch.nn.functional" if owner == "F" else owner
        example = f"{owner}:{last}" if dot and owner and last and last != "py" else "mykernels:reference"
        raise UsageError(f"--reference {path} is not module:function; write for example {example}")
    module = _module(place)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not None and not callable(found):
        raise UsageError(f"--reference {path}: {name} is {type(found).__name__}, not a function; name a function")
    if found is None:
        known = [key for key, value in vars(module).items() if isinstance(value, types.FunctionType)]
        near = difflib.get_close_matches(name, known, 3) if len(known) > MOST_NAMED else known
        close = suggestion(name, near) if near else "check the name" if known else "it defines none"
        raise UsageError(f"--reference {path}: {place} has no function {name}: {close}")
    return found  # type: ignore[no-any-return]


def _module(place: str) -> types.ModuleType:
    path = Path(place) if place.endswith(".py") else Path(*place.split(".")).with_suffix(".py")
    if is_file(path):  # also a script, whose import ends at its call of evokern.tune
        spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
        assert spec is not None and spec.loader is not None, path
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        sys.path.insert(0, str(path.resolve().parent))
        with _stopping_at_tune(place):
            spec.loader.exec_module(module)
        return module
    if place.endswith(".py"):
        raise UsageError(f"--reference: there is no file {place}; check the path")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # packages in the working directory
    with _stopping_at_tune(place):
        return importlib.import_module(place)
    raise UsageError(f"--reference: {place} calls evokern.tune when it is imported; name its file, {place}.py")


@contextmanager
def _stopping_at_tune(place: str) -> Iterator[None]:
    global _importing
    _importing = True
    try:
        yield
    except ImportEnds:
        _stopped.add(place)
    except ModuleNotFoundError as error:
        where = "; check its name, or run the command in the folder that contains it" if error.name in (
            place, place.partition(".")[0]
        ) else ""  # fmt: skip
        raise UsageError(f"--reference: importing {place} raised ModuleNotFoundError: {error}{where}") from error
    except KERNEL_CODE_EXCEPTIONS as error:
        raise UsageError(f"--reference: importing {place} raised {type(error).__name__}: {error}") from error
    finally:
        _importing = False
