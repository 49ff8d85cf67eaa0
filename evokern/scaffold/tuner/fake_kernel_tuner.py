"""Run a tuning script with a fake `kernel_tuner` module that records a call to `tune_kernel` and tunes nothing.

    python fake_kernel_tuner.py SCRIPT FOLDER ENTRY [ARGUMENT ...]

`evokern.scaffold.tuner.t1` starts this file. The first call to `tune_kernel` (for the kernel ENTRY, if it is not
empty) ends the script. The call is written to FOLDER/call.json; the arrays of a call with `answer` go to
FOLDER/arrays.npz. Packages that only access devices (pycuda, cupy, cuda, pynvml) are replaced, so that no device is
used: `cupy` by NumPy, the others by objects that do nothing. Very large random arrays are replaced by views of one
number.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import math
import operator
import os
import re
import runpy
import sys
import types
from pathlib import Path
from typing import Any

PARAMETERS = (
    "kernel_name", "kernel_source", "problem_size", "arguments", "tune_params", "grid_div_x", "grid_div_y",
    "grid_div_z", "restrictions", "answer", "atol", "verify", "verbose", "lang", "device", "platform", "smem_args",
    "cmem_args", "texmem_args", "compiler", "compiler_options", "defines", "log", "iterations", "block_size_names",
    "quiet", "strategy", "strategy_options", "cache", "metrics", "simulation_mode", "parallel", "observers",
    "objective", "objective_higher_is_better", "objectives", "seed",
)  # fmt: skip
"""Parameters of `tune_kernel` in order, for positional arguments (Kernel Tuner 1.3)."""
LARGE = 1 << 26
"""Minimum number of elements of a random array that is replaced."""
MOST_KEPT = 1 << 30
"""Maximum size of the arrays of a call that are kept as golden values, in bytes."""
DEVICE_PACKAGES = ("pycuda", "cupyx", "cuda", "pynvml", "nvtx", "hip", "pyopencl")
"""Packages that a script imports to access a device."""
NO_CALL, EXITED = 3, 4
"""Exit codes: the script ended without the call, or by `sys.exit`."""


class _Caught(BaseException):
    """Exception that `tune_kernel` raises to end the script."""


class _Stub:
    """Stand-in for an instance of any class; its attributes and calls return similar objects."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stub()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _Stub()

    def __iter__(self) -> Any:
        return iter(())


class _Anything(types.ModuleType):
    """Stand-in for a module: names in capitals are classes, others are functions and submodules."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made: Any = type(name, (_Stub,), {}) if name[:1].isupper() else _Anything(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _Stub()


class TunablePrecision(_Stub):
    """Argument whose type a tunable parameter selects."""

    def __init__(self, param_name: str, array: Any, dtypes: Any = None) -> None:
        self.parameter, self.array = param_name, array


class _Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Importer of packages and their submodules as fakes, also of installed ones."""

    packages: tuple[str, ...]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        known = name.partition(".")[0] in self.packages
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: Any) -> Any:
        return _NumpyNamed("cupy") if spec.name == "cupy" else _Anything(spec.name)


class _Finder(_Importer):
    """Importer of `kernel_tuner`."""

    packages = ("kernel_tuner",)

    def __init__(self, entry: str) -> None:
        self.entry = entry
        self.found: dict[str, Any] = {}
        self.others: list[str] = []

    def exec_module(self, module: Any) -> None:
        if module.__name__ in ("kernel_tuner", "kernel_tuner.interface"):
            module.tune_kernel, module.run_kernel = self._tune_kernel, _run_kernel
        if module.__name__ == "kernel_tuner.accuracy":
            module.TunablePrecision = TunablePrecision

    def _tune_kernel(self, *given: Any, **named: Any) -> Any:
        call = {**dict(zip(PARAMETERS, given, strict=False)), **named}
        name = str(call.get("kernel_name", ""))
        if self.entry and name.partition("<")[0] != self.entry.partition("<")[0]:
            self.others.append(name)
            first = {key: next(iter(values)) for key, values in dict(call.get("tune_params") or {}).items()}
            return [{**first, "time": 1.0}], {"best_config": {**first, "time": 1.0}}
        self.found = call
        raise _Caught


class _Devices(_Importer):
    """Importer of packages for devices: no device is used."""

    packages = (*DEVICE_PACKAGES, "cupy")

    def exec_module(self, module: Any) -> None:
        if module.__name__ == "pycuda.driver":
            import numpy

            module.pagelocked_zeros = lambda shape, dtype=float, *_, **__: numpy.zeros(shape, dtype)
            module.pagelocked_empty = lambda shape, dtype=float, *_, **__: numpy.empty(shape, dtype)
            module.register_host_memory = lambda array, *_: array


class _NumpyNamed(_Anything):
    """NumPy under the name `cupy`."""

    def __getattr__(self, name: str) -> Any:
        import numpy

        if name == "asnumpy":
            return numpy.asarray
        return getattr(numpy, name) if hasattr(numpy, name) else super().__getattr__(name)


def _run_kernel(*given: Any, **named: Any) -> Any:
    """Return the arguments, whose arrays are marked as not computed: nothing runs on a device."""
    import numpy

    arguments = named.get("arguments", given[3] if len(given) > 3 else ())
    return [one.view(_not_computed()) if isinstance(one, numpy.ndarray) else one for one in arguments]


@functools.cache
def _not_computed() -> Any:
    """Return the class of arrays that `run_kernel` would have computed."""
    import numpy

    return type("NotComputed", (numpy.ndarray,), {})


def _described(value: Any) -> Any:
    """Return a value for JSON: an array becomes its type, shape and range, a function becomes arithmetic."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, dict):
        return {str(name): _described(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [_described(item) for item in value]
    if isinstance(value, TunablePrecision):
        return {**_described(value.array), "precision": value.parameter}
    if isinstance(value, (_Stub, _Anything)):
        return {"object": type(value).__name__}
    if type(value).__module__ == "torch" and hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _array(value)
    if callable(value):
        text = ""
        with contextlib.suppress(OSError, TypeError):
            text = inspect.getsource(value)
        return {"function": getattr(value, "__name__", "function"), "text": text}
    return {"object": type(value).__name__}


def _array(value: Any) -> dict[str, Any]:
    if value.shape == ():
        return {"dtype": str(value.dtype), "value": value.item()}
    made: dict[str, Any] = {"dtype": str(value.dtype), "shape": [int(extent) for extent in value.shape]}
    if type(value).__name__ == "NotComputed":
        return {**made, "computed": False}
    if value.size and value.dtype.kind in "iufb":
        flat = value.reshape(-1)[:LARGE] if type(value).__name__ != "Drawn" else value.reshape(-1)[:1]
        low, high = float(flat.min()), float(flat.max())
        if low == low and abs(low) != float("inf") and abs(high) != float("inf"):
            made |= {"low": low, "high": high}
    return made


def _as_rule(what: str, function: Any, parameters: dict[str, Any], kind: str) -> Any:
    """Return a function of the parameters as arithmetic or as a table; only its text if it is neither."""
    from evokern.errors import UsageError
    from evokern.scaffold.tuner import rules

    def numbers(made: Any) -> tuple[int, ...]:
        if kind == "condition":
            return rules.condition(bool(made) if type(made).__module__ == "numpy" else made)
        parts = made if isinstance(made, (tuple, list)) else (made,)
        parts = tuple(part if hasattr(part, "__index__") else int(part) for part in parts)
        if kind == "divisor":
            return rules.size(functools.reduce(operator.mul, parts, 1))  # of traced numbers
        return rules.size(parts[0]) if kind == "bytes" else rules.extents(parts)

    plain = {name: [int(v) if isinstance(v, bool) else v for v in values] for name, values in parameters.items()}
    try:
        return {"rule": rules.rule_of(what, function, rules.Parameters(plain), numbers)[0]}
    except UsageError as error:
        return {**_described(function), "why": str(error)}


def _source(value: Any, parameters: dict[str, Any]) -> Any:
    """Return the kernel source as text; it may be text, a file, several files, or a function of the parameters."""
    if isinstance(value, (list, tuple)):
        return _source(value[0], parameters) if value else ""
    if callable(value):
        return _generated(value, parameters)
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(text, str) and "\n" not in text and Path(text).is_file():
        return {"text": Path(text).read_text(encoding="utf-8", errors="replace"), "file": str(Path(text).resolve())}
    return {"text": text, "file": ""} if isinstance(text, str) else _described(value)


def _generated(generator: Any, parameters: dict[str, Any]) -> Any:
    """Return the text of a code generator with macros in place of its parameters, if it only inserts values."""
    unknown = {**_described(generator), "why": "its text is not the same code with other numbers"}

    def call(config: dict[str, Any]) -> str:
        made = generator(config)
        return Path(made).read_text() if "\n" not in made and Path(made).is_file() else str(made)

    try:
        with_names = call({name: name for name in parameters})
        for at in (0, -1, 1, 2):
            config = {name: values[at % len(values)] for name, values in parameters.items()}
            if _inserted(with_names, config) != _inserted(call(config), config):
                return unknown
    except Exception:  # the generator computes with the numbers
        return unknown
    if "\n" not in with_names:
        return unknown
    return {"text": with_names, "file": ""}


def _inserted(text: str, config: dict[str, Any]) -> list[str]:
    """Return the words of a text in which parameters have their values."""
    return re.sub(r"[A-Za-z_]\w*", lambda found: str(config.get(found[0], found[0])), text).split()


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
            if math.prod(shape) < LARGE:
                return function(*given, **named)
            small = {**named, "size": 1} if "size" in named else named
            plain = "size" in named or function.__name__ in ("rand", "randn")
            one = function(*(() if plain else (*given[:-1], 1)), **small)
            return _view(numpy.asarray(one).reshape(-1)[0], shape)

        draw.__name__ = function.__name__
        return draw

    for name in ("rand", "randn", "random", "random_sample", "randint", "normal", "uniform"):
        setattr(numpy.random, name, sparing(getattr(numpy.random, name)))


def _rules(call: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the functions of a call as arithmetic, by the name of the argument."""
    found: dict[str, Any] = {}
    kinds = {"problem_size": "extents", "grid_div_x": "divisor", "grid_div_y": "divisor", "grid_div_z": "divisor"}
    for name, kind in kinds.items():
        if callable(call.get(name)):
            found[name] = _as_rule(name, call[name], parameters, kind)
    size = (call.get("smem_args") or {}).get("size")
    if callable(size):
        found["smem_args"] = {"size": _as_rule("smem_args", size, parameters, "bytes")}
    if call.get("defines"):
        found["defines"] = {
            name: _as_rule(f"the macro {name}", one, parameters, "bytes") if callable(one) else _described(one)
            for name, one in call["defines"].items()
        }
    given = call.get("restrictions")
    items = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
    if any(callable(one) for one in items):
        found["restrictions"] = [
            _as_rule("a restriction", one, parameters, "condition") if callable(one) else _described(one)
            for one in items
        ]
    return found


def described_call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call of `tune_kernel` as JSON: arrays by type, shape and range, and functions as arithmetic."""
    parameters = {name: list(values) for name, values in dict(call.get("tune_params") or {}).items()}
    described = {name: _described(value) for name, value in call.items() if name != "kernel_source"}
    described |= _rules(call, parameters)
    described["kernel_source"] = _source(call.get("kernel_source", ""), parameters)
    return {**described, "folder": str(Path.cwd())}


def _keep_arrays(call: dict[str, Any], folder: Path) -> None:
    """Write the arrays of a call with an `answer`: its arguments by position, constants by name, and the answer."""
    import numpy

    answer = call.get("answer")
    if not isinstance(answer, (list, tuple)):
        return
    arrays: dict[str, Any] = {}
    for what, items in (("argument", call.get("arguments") or ()), ("answer", answer)):
        arrays |= {f"{what}{at}": one for at, one in enumerate(items) if isinstance(one, numpy.ndarray)}
    for name, one in (call.get("cmem_args") or {}).items():
        arrays[f"constant_{name}"] = numpy.asarray(one)
    odd = any(type(one).__name__ in ("Drawn", "NotComputed") or one.dtype.kind not in "iufb" for one in arrays.values())
    expected = any(name.startswith("answer") for name in arrays)
    if odd or not expected or sum(one.nbytes for one in arrays.values()) > MOST_KEPT:
        return
    kept: dict[str, Any] = {name: numpy.ascontiguousarray(one) for name, one in arrays.items()}
    numpy.savez(folder / "arrays.npz", **kept)


def main(script: str, folder: Path, entry: str, arguments: list[str]) -> int:
    """Run a script up to its call to `tune_kernel`, and write the call; return `NO_CALL` if there is none."""
    finder = _Finder(entry)
    sys.meta_path.insert(0, finder)
    sys.meta_path.insert(0, _Devices())
    with contextlib.suppress(ImportError):
        _spare_memory()
    os.chdir(Path(script).resolve().parent)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    status: Any = 0
    try:
        with contextlib.redirect_stdout(sys.stderr):
            runpy.run_path(Path(script).name, run_name="__main__")
    except _Caught:
        pass
    except SystemExit as error:
        status = error.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
    call = finder.found
    if not call:
        print(json.dumps({"calls": finder.others, "status": status}))
        return EXITED if status else NO_CALL
    described = described_call(call)
    _keep_arrays(call, folder)
    (folder / "call.json").write_text(json.dumps(described, default=str), encoding="utf-8")
    return 0


if __name__ == "__main__":
    out = Path(sys.argv[2]).resolve()
    sys.exit(main(str(Path(sys.argv[1]).resolve()), out, sys.argv[3], sys.argv[4:]))
