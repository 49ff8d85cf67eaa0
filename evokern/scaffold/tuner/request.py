"""Input of a tuner, from a script's call: parameters, restrictions, grid and arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from evokern.cuda_source.c_types import ELEMENT_TYPES
from evokern.declaration.kernel import DTYPE_BYTES
from evokern.errors import SourceError
from evokern.scaffold.tuner.arithmetic import expressions

_DTYPES: Mapping[str, str] = {
    "float32": "f32", "float64": "f64", "float16": "f16", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
    "uint8": "u8", "uint32": "u32", "uint64": "u64", "bool": "bool", "ulong": "u64",
}  # fmt: skip
"""NumPy's type names, and T1's that C lacks → evokern's."""
_NAME = re.compile(r"(?:[A-Za-z_]\w*::)*[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class TunerArgument:
    """An argument of the kernel."""

    dtype: str
    """evokern's name of the argument's type."""
    shape: tuple[int, ...] | None = None
    """Shape of an array; None for a number."""
    value: float | None = None
    """Value, if the argument is a number."""
    name: str = ""
    """Name of the argument, if the file contains one."""
    role: str = ""
    """Role of an array that the file states, as in `evokern.Tensor`; empty if it states none."""
    span: tuple[float, float] | None = None
    """Smallest and largest value of an array; None if they are unknown."""
    size: str = ""
    """Expression of an array's size, if the file contains one."""

    def __post_init__(self) -> None:
        if self.value is not None and not isinstance(self.value, (int, float)):
            raise SourceError(f"{self.value!r} is not a value of a {self.dtype} argument; use a number")


@dataclass(frozen=True)
class TunerRequest:
    """Input of a tuner."""

    kernel: str
    """Name of the kernel."""
    source: str
    """CUDA source of the kernel."""
    file: str
    """Path of the source file; empty if the script contains the text."""
    problem_size: tuple[int | str, ...]
    """Problem size along x, y, z: numbers, or Python text over tunable parameters."""
    parameters: Mapping[str, tuple[int | str, ...]]
    """Tunable parameter → its values."""
    defaults: Mapping[str, int | str]
    """Default values of parameters, if the file contains them."""
    restrictions: tuple[str, ...]
    """Conditions on configurations, as Python text."""
    divisors: tuple[tuple[str, ...] | None, ...]
    """Divisors of each problem axis that give the grid; None means the block's extent."""
    block_names: tuple[str, str, str]
    """Parameters that set the block's extents."""
    arguments: tuple[TunerArgument, ...]
    """Arguments of the kernel in order."""
    constants: Mapping[str, TunerArgument]
    """`__constant__` array → its contents."""
    defines: Mapping[str, str] | None = None
    """Macros of the kernel → their values, with parameters as words; None if each parameter is a macro."""
    tolerances: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Argument → absolute and relative tolerance that the file states."""
    shared: str = "0"
    """Python text of the dynamic shared memory in bytes."""
    include: tuple[Path, ...] = ()
    """Folders of the source's own headers."""
    options: tuple[str, ...] = ()
    """Compiler options for the kernel."""
    sums: tuple[int, ...] = ()
    """Array arguments whose expected result is one number: the script compares their sum."""
    notes: tuple[str, ...] = ()
    """Notes about input that could not be translated, one sentence each."""
    expected: str = ""
    """Expected result of the script, in words."""
    template: str = ""
    """Template arguments of the kernel, as written in its name."""
    atol: float | None = None
    """Largest absolute error that a script permits; None if there is no script."""
    answers: Mapping[int, int] = field(default_factory=dict)
    """Position of an argument whose result the script compares → number of elements of the expected array."""
    arrays: bytes = b""
    """NPZ file with the arrays of a call with `answer`; empty if they are unknown or too large."""

    def __post_init__(self) -> None:
        names = [self.kernel, *self.parameters, *self.constants, *(argument.name for argument in self.arguments)]
        for name in filter(None, names):
            # The names become macros, keywords and buffer names.
            if not (isinstance(name, str) and _NAME.fullmatch(name)):
                raise SourceError(f"{name!r} is not a valid CUDA C++ name; use letters, digits and _")
        for name, values in self.parameters.items():
            if not values or {type(value) for value in values} not in ({int}, {str}, {bool}):
                raise SourceError(f"parameter {name} has the values {list(values)!r}; use whole numbers, or names")
        for text in self.restrictions:
            if not isinstance(text, str):
                raise SourceError(f"the restriction {text!r} is not text; write a condition such as 'a * b <= 1024'")


def from_call(call: Mapping[str, Any]) -> TunerRequest:
    """Return the tuner's input from a script's `tune_kernel` call, as recorded by `fake_kernel_tuner`.

    Raises:
        SourceError: the script does not tune CUDA code, or generates its source with a function.
    """
    lang = str(call.get("lang") or "CUDA").upper()
    if lang not in ("CUDA", "CUPY", "NVCUDA", "AUTO"):
        raise SourceError(f"the script tunes {lang} code, but evokern supports only CUDA")
    source = call["kernel_source"]
    if not isinstance(source, Mapping) or "file" not in source:
        raise SourceError(
            "the script generates its kernel source with a function whose text is not the same code with other "
            "numbers; write the text of one configuration to a file"
        )
    notes: list[str] = []
    restrictions = _restrictions(call.get("restrictions"), notes)
    if call.get("texmem_args"):
        raise SourceError(
            "the script uses textures (texmem_args), which evokern does not support; use a tensor instead"
        )
    if source["text"].strip() and "\n" not in source["text"] and not source["file"]:
        raise SourceError(f"the script's kernel source {source['text']!r} is neither code nor a file; correct the path")
    shared = _one(_plain((call.get("smem_args") or {}).get("size", 0), "smem_args", notes)) or 0
    answer = call.get("answer")
    parameters = {name: tuple(values) for name, values in call["tune_params"].items()}
    given = call.get("arguments") or ()
    parameters |= (precisions := _precisions(given, parameters, notes))
    arguments = tuple(_argument(item, precisions) for item in given)
    if call.get("verify"):
        notes.append(
            "kernel.py: the script checks results with its own function (verify); compare your reference with it"
        )
    ignored = [name for name in ("metrics", "observers") if call.get(name)]
    if ignored:
        notes.append(f"the study: the script's {' and '.join(ignored)} are omitted; evokern measures the time only")
    if call.get("objective") not in (None, "time") or call.get("objectives"):
        notes.append("the study: the script optimises another objective; evokern always optimises the time")
    answer = answer if isinstance(answer, list) else []
    expected = {at: one for at, one in enumerate(answer) if isinstance(one, Mapping)}
    arrays = {at: one for at, one in expected.items() if at < len(arguments) and arguments[at].shape is not None}
    words = {at: "one number" if "value" in one else f"an array of {one.get('shape')}" for at, one in expected.items()}
    if any(one.get("computed") is False for one in expected.values()):
        notes.append(
            "kernel.py: the script computes `answer` with run_kernel, which needs a device; its values are unknown here"
        )
    kernel, _, template = str(call["kernel_name"]).partition("<")
    options, include = _options(call)
    return TunerRequest(
        kernel=kernel.strip(),
        template=template.rpartition(">")[0].strip(),
        source=source["text"],
        file=source.get("file", ""),
        problem_size=sizes_of(call.get("problem_size"), notes),
        parameters=parameters,
        defines=_defines(call.get("defines"), notes),
        defaults={},
        restrictions=restrictions,
        divisors=tuple(divisors_of(call.get(f"grid_div_{axis}"), notes) for axis in "xyz"),
        block_names=_block_names(call.get("block_size_names")),
        arguments=arguments,
        constants={name: _argument(item) for name, item in (call.get("cmem_args") or {}).items()},
        shared=str(shared),
        include=include,
        options=options,
        sums=tuple(at for at, one in arrays.items() if "value" in one),
        notes=tuple(notes),
        expected=", ".join(f"{what} for argument {at}" for at, what in words.items()),
        atol=float(call["atol"]) if call.get("atol") is not None else 1e-6,  # Kernel Tuner's default
        answers={at: prod(one["shape"]) for at, one in arrays.items() if "shape" in one},
    )


def is_script(text: str) -> bool:
    """Return whether a text is a Python program that imports Kernel Tuner."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return any(name.partition(".")[0] == "kernel_tuner" for name in imported)


def _argument(item: Any, precisions: Mapping[str, tuple[Any, ...]] | None = None) -> TunerArgument:
    if isinstance(item, Mapping) and "dtype" in item:
        selected = (precisions or {}).get(str(item.get("precision", "")), (item["dtype"],))
        dtype = dtype_of(selected[0])
        if dtype is None:
            raise SourceError(
                f"the script passes an argument of NumPy type {item['dtype']}, which evokern does not support"
            )
        shape = tuple(item["shape"]) if "shape" in item else None
        span = (float(item["low"]), float(item["high"])) if "low" in item else None
        return TunerArgument(dtype, shape, item.get("value"), span=span)
    if isinstance(item, (int, float)):
        return TunerArgument("i32" if isinstance(item, int) else "f32", None, item)
    raise SourceError(f"the script passes an argument that is neither an array nor a number: {item}")


def dtype_of(name: object) -> str | None:
    """Return evokern's name of a type of NumPy, T1 or C; None if it is unknown."""
    return _DTYPES.get(str(name)) or ELEMENT_TYPES.get(str(name))


def _precisions(
    given: Sequence[Any], parameters: Mapping[str, tuple[Any, ...]], notes: list[str]
) -> dict[str, tuple[Any, ...]]:
    """Return the parameters that select the type of arguments, restricted to one type: the arrays' or the widest.

    Candidates with other types would get other inputs, so their results cannot be compared.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for item in given:
        name = str(item.get("precision", "")) if isinstance(item, Mapping) else ""
        if name not in parameters or name in found:
            continue
        types = {value: dtype for value in parameters[name] if (dtype := dtype_of(value))}
        if not types:
            raise SourceError(
                f"no value of {name}, which TunablePrecision selects, is a type; use float, double or half"
            )
        wanted = dtype_of(item["dtype"])
        best = wanted if wanted in types.values() else max(types.values(), key=lambda dtype: DTYPE_BYTES.get(dtype, 1))
        found[name] = tuple(value for value, dtype in types.items() if dtype == best)
        dropped = ", ".join(str(value) for value in parameters[name] if value not in found[name])
        if dropped:
            notes.append(f"kernel.py: {name} has only the type {found[name][0]}; draft the types {dropped} separately")
    return found


def _defines(given: Any, notes: list[str]) -> dict[str, str] | None:
    """Return the macros of the kernel; None if each parameter is a macro."""
    if given is None:
        return None
    made: dict[str, str] = {}
    for name, value in given.items():
        parts = _plain(value, f"the macro {name}", notes)
        if parts is not None:
            made[name] = str(_one(parts))
    return made


def _options(call: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return the compiler options without include folders, whose headers the draft contains, and these folders."""
    own = Path(call.get("folder", "."))
    kept, folders = [], []
    given = iter(map(str, call.get("compiler_options") or ()))
    for option in given:
        if option in ("-I", "--include-path"):
            folders.append(own / next(given, ""))
        elif match := re.fullmatch(r"(?:-I|--include-path=)(.+)", option):
            folders.append(own / match[1])
        else:
            kept.append(option)
    return tuple(kept), (*folders, own)


def _plain(given: Any, what: str, notes: list[str]) -> Any:
    """Return a value, or the expressions of a function of the parameters; None for other functions, with a note."""
    if not isinstance(given, Mapping) or not ({"rule", "function"} & set(given)):
        return given
    parts = expressions(given["rule"]) if "rule" in given else None
    if parts is None:
        notes.append(f"kernel.py: {what} is a function of the script that is not plain arithmetic; write it by hand")
    return parts


def _one(given: Any) -> Any:
    return given[0] if isinstance(given, list) else given


def sizes_of(given: Any, notes: list[str]) -> tuple[int | str, ...]:
    """Return the sizes of a problem as numbers or expressions."""
    given = _plain(given, "problem_size", notes)
    if given is None:
        return ()
    sizes = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(size if isinstance(size, (int, str)) else size["value"] for size in sizes if size is not None)


def divisors_of(given: Any, notes: list[str]) -> tuple[str, ...] | None:
    """Return the divisors of one axis of the grid; None for the block's extent."""
    given = _plain(given, "a grid divisor", notes)
    if given is None:
        return None
    return tuple(str(item) for item in ([given] if isinstance(given, (str, int)) else given))


def _block_names(given: Sequence[Any] | None) -> tuple[str, str, str]:
    named = list(map(str, given or ()))
    x, y, z = (*named, *("block_size_x", "block_size_y", "block_size_z")[len(named) :])
    return x, y, z


def _restrictions(given: Any, notes: list[str]) -> tuple[str, ...]:
    items = given if isinstance(given, list) else [] if given is None else [given]
    found: list[str] = []
    for item in items:
        parts = expressions(item["rule"], condition=True) if isinstance(item, Mapping) and "rule" in item else None
        if isinstance(item, str) or parts:
            found += [item] if isinstance(item, str) else (parts or [])
            continue
        name = item.get("function", "a function") if isinstance(item, Mapping) else "an object"
        notes.append(f"kernel.py: restriction {name} is not plain arithmetic; rewrite it as a Constraint")
    return tuple(one for one in found if one != "True")
