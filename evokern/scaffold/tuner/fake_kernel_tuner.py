"""Run a tuning script with a fake `kernel_tuner` module that records the call to `tune_kernel` and tunes nothing.

    python fake_kernel_tuner.py SCRIPT OUT.json

`evokern.scaffold.tuner.script` starts this file. It imports nothing from evokern, and NumPy only for scripts that use
it. The first call to `tune_kernel` ends the script. Large random arrays are replaced by views of one number to save
memory, because only their type and shape matter.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import runpy
import sys
import types
from pathlib import Path
from typing import Any

PARAMETERS = (
    "kernel_name", "kernel_source", "problem_size", "arguments", "tune_params", "grid_div_x", "grid_div_y",
    "grid_div_z", "restrictions", "answer", "atol", "verify", "verbose", "lang", "device", "platform", "smem_args",
    "cmem_args", "texmem_args", "compiler", "compiler_options",
)  # fmt: skip
"""Parameters of `tune_kernel` in order, for positional arguments (Kernel Tuner 1.0)."""
LARGE = 1 << 22
"""Minimum number of elements of a random array that is replaced."""


class _Caught(BaseException):
    """Exception that `tune_kernel` raises to end the script."""


class _Anything(types.ModuleType):
    """Stand-in for a module, class or function; its attributes and calls return similar objects."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Anything(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Importer of `kernel_tuner` and its submodules as fakes."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] == "kernel_tuner":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return _Anything(spec.name)

    def exec_module(self, module: Any) -> None:
        if module.__name__ in ("kernel_tuner", "kernel_tuner.interface"):
            module.tune_kernel = self._tune_kernel

    def _tune_kernel(self, *given: Any, **named: Any) -> Any:
        self.found.update({**dict(zip(PARAMETERS, given, strict=False)), **named})
        raise _Caught


def _described(value: Any) -> Any:
    """Return a value for JSON: an array becomes its type and shape, and a number is unchanged."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, dict):
        return {str(name): _described(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [_described(item) for item in value]
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        if value.shape == ():
            return {"dtype": str(value.dtype), "value": value.item()}
        largest = None
        if str(value.dtype).startswith(("int", "uint")) and value.size and value.size <= LARGE:
            largest = int(value.max())
        return {"dtype": str(value.dtype), "shape": [int(extent) for extent in value.shape], "largest": largest}
    if callable(value):
        text = ""
        with contextlib.suppress(OSError, TypeError):
            text = inspect.getsource(value)
        return {"function": getattr(value, "__name__", "function"), "text": text}
    return {"object": type(value).__name__}


def _source(value: Any) -> Any:
    """Return the kernel source as text; it may be text, a file or several files."""
    if isinstance(value, (list, tuple)):
        return _source(value[0]) if value else ""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(text, str) and "\n" not in text and Path(text).is_file():
        return {"text": Path(text).read_text(encoding="utf-8", errors="replace"), "file": str(Path(text).resolve())}
    return {"text": text, "file": ""} if isinstance(text, str) else _described(value)


def _spare_memory() -> None:
    """Make NumPy's random functions return views of one number for large shapes."""
    import numpy

    class Drawn(numpy.ndarray):
        def astype(self, dtype: Any, *_: Any, **__: Any) -> Any:
            return _view(numpy.dtype(dtype).type(self.flat[0]), self.shape)

    def _view(number: Any, shape: Any) -> Any:
        return numpy.broadcast_to(numpy.asarray(number), shape).view(Drawn)

    def sparing(function: Any) -> Any:
        def draw(*given: Any, **named: Any) -> Any:
            size = named.get("size", given if function.__name__ in ("rand", "randn") else given[-1] if given else ())
            shape = tuple(int(n) for n in (size if isinstance(size, (tuple, list)) else (size,)) if isinstance(n, int))
            count = 1
            for extent in shape:
                count *= extent
            if count < LARGE:
                return function(*given, **named)
            small = {**named, "size": 1} if "size" in named else named
            plain = "size" in named or function.__name__ in ("rand", "randn")
            one = function(*(() if plain else (*given[:-1], 1)), **small)
            return _view(numpy.asarray(one).reshape(-1)[0], shape)

        draw.__name__ = function.__name__
        return draw

    for name in ("rand", "randn", "random", "random_sample", "randint", "normal", "uniform"):
        setattr(numpy.random, name, sparing(getattr(numpy.random, name)))


def main(script: str, out: str) -> int:
    """Run a script up to its first call to `tune_kernel`, and write the call; return 3 if there is none."""
    found: dict[str, Any] = {}
    sys.meta_path.insert(0, _Finder(found))
    with contextlib.suppress(ImportError):
        _spare_memory()
    os.chdir(Path(script).resolve().parent)
    sys.argv = [script]
    sys.path.insert(0, str(Path(script).resolve().parent))
    with contextlib.suppress(_Caught), contextlib.redirect_stdout(sys.stderr):
        runpy.run_path(Path(script).name, run_name="__main__")
    if not found:
        return 3
    described = {name: _described(value) for name, value in found.items() if name != "kernel_source"}
    described["kernel_source"] = _source(found.get("kernel_source", ""))
    Path(out).write_text(json.dumps(described), encoding="utf-8")
    return 0


if __name__ == "__main__":
    out_path = str(Path(sys.argv[2]).resolve())
    sys.exit(main(str(Path(sys.argv[1]).resolve()), out_path))
