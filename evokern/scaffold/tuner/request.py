"""Input of a tuner, from a script's call or from a T1 file: parameters, restrictions, grid and arguments."""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from evokern.cuda_source.c_types import ELEMENT_TYPES, lanes_of
from evokern.declaration.kernel import DTYPE_BYTES
from evokern.errors import SourceError, suggestion
from evokern.files import is_file, read_text
from evokern.scaffold.tuner.arithmetic import expressions, value_over, values_of

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
        problem_size=_sizes(call.get("problem_size"), notes),
        parameters=parameters,
        defines=_defines(call.get("defines"), notes),
        defaults={},
        restrictions=restrictions,
        divisors=tuple(_divisors(call.get(f"grid_div_{axis}"), notes) for axis in "xyz"),
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


def from_t1(text: str, path: Path) -> TunerRequest:
    """Return the tuner's input from a T1 file (auto-tuning schema, version 1.0.0).

    Raises:
        SourceError: the file is incomplete, is not for CUDA, or its kernel file is missing.
    """
    try:
        return _t1_request(_with_t1_names(json.loads(text)), path)
    except KeyError as error:
        raise SourceError(f"T1 file {path} lacks the key {error}; add it") from error
    except (ValueError, TypeError, AttributeError, IndexError, ArithmeticError, SyntaxError) as error:
        raise SourceError(f"T1 file {path} has an unexpected value: {error}") from error


def _t1_request(whole: Any, path: Path) -> TunerRequest:
    space, kernel = whole["ConfigurationSpace"], whole["KernelSpecification"]
    _check_keys(path, "KernelSpecification", kernel, _T1_KEYS)
    for item in (*space["TuningParameters"], *kernel.get("Arguments", ())):
        _check_keys(path, f"entry {item.get('Name', '')}".strip(), item, _T1_ITEM_KEYS)
    parameters = {item["Name"]: _t1_values(item["Values"]) for item in space["TuningParameters"]}
    if kernel.get("Language", "CUDA") != "CUDA":
        raise SourceError(f"{path} is written for {kernel['Language']}, but evokern supports only CUDA")
    places = [folder / kernel["KernelFile"] for folder in (path.parent, path.parent.parent)]
    file = next((place for place in places if is_file(place)), None)
    if file is None:
        raise SourceError(f"{path} needs the kernel file {kernel['KernelFile']}, which is not next to the T1 file")
    notes: list[str] = []
    sizes = _t1_values(kernel.get("ProblemSize") or [], text=True)
    names = {"ProblemSize": list(sizes), **{name: list(values) for name, values in parameters.items()}}
    arguments, constants = [], {}
    for item in kernel.get("Arguments", ()):
        shape = None
        dtype = _dtype(item["Type"])
        if item["MemoryType"] == "Vector":
            shape = (int(values_of(str(item["Size"]), names)[0]) * lanes_of(str(item["Type"])),)
        if dtype is None:
            notes.append(f"kernel.py: T1 type {item['Type']!r} of {item.get('Name', 'an argument')} is taken as f32")
        made = TunerArgument(
            dtype or "f32", shape, _t1_number(item.get("FillValue")), item.get("Name", ""),
            _T1_ROLES.get(item.get("AccessType", ""), ""), _t1_span(item, shape), str(item.get("Size", "")),
        )  # fmt: skip
        if item["MemoryType"] == "Symbol" or item.get("MemType") == "Constant":
            constants[str(item.get("Name", ""))] = made
        if item["MemoryType"] != "Symbol":
            arguments.append(made)
    local = _t1_axes(kernel.get("LocalSize"))
    block = tuple(str(local.get(axis.upper(), f"block_size_{axis}")) for axis in "xyz")
    divisors: tuple[tuple[str, ...] | None, ...]
    if sizes:
        divisors = tuple(_divisors(kernel.get(f"GridDiv{axis}") or None, notes) for axis in "XYZ")
    else:
        sizes = tuple(str(_t1_axes(kernel["GlobalSize"]).get(axis, "1")) for axis in "XYZ")
        divisors = (
            ((), (), ()) if kernel.get("GlobalSizeType", "CUDA") == "CUDA" else ((block[0],), (block[1],), (block[2],))
        )
    return TunerRequest(
        kernel=kernel["KernelName"],
        source=read_text(file, "replace"),
        file=str(file),
        problem_size=_sizes(sizes, notes),
        parameters=parameters,
        defaults={item["Name"]: item["Default"] for item in space["TuningParameters"] if "Default" in item},
        restrictions=tuple(item["Expression"] for item in space.get("Conditions", ())),
        divisors=divisors,
        block_names=(block[0], block[1], block[2]),
        arguments=tuple(arguments),
        constants=constants,
        shared=str(kernel.get("SharedMemory") or 0),
        options=tuple(str(option) for option in _t1_values(kernel.get("CompilerOptions") or [], text=True)),
        notes=tuple(notes),
        tolerances=dict(_t1_tolerances(kernel.get("ReferenceArguments") or (), [one.name for one in arguments])),
        expected=", ".join(
            f"{item.get('FillType', '')} {item.get('DataSource', item.get('FillValue', ''))} for {item['TargetName']}"
            for item in kernel.get("ReferenceArguments") or ()
        ),
    )


def _with_t1_names(given: Any) -> Any:
    """Return JSON values in which T1's keys have their usual case."""
    if isinstance(given, list):
        return [_with_t1_names(item) for item in given]
    if not isinstance(given, dict):
        return given
    return {_T1_NAMES.get(name.lower(), name): _with_t1_names(item) for name, item in given.items()}


def _t1_tolerances(items: Sequence[Any], names: Sequence[str]) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the outputs that a file compares → absolute and relative tolerance."""
    for item in items:
        if item["TargetName"] not in names:
            known = suggestion(item["TargetName"], names)
            raise ValueError(f"ReferenceArguments name the argument {item['TargetName']!r}: {known}")
        limit = float(item.get("ValidationThreshold") or 0)
        relative = "relative" in str(item.get("ValidationMethod", "")).lower()
        if limit:
            yield item["TargetName"], (0.0, limit) if relative else (limit, 0.0)


def _t1_values(given: Any, *, text: bool = False) -> tuple[Any, ...]:
    """Return a list of a T1 file, which may be a list, a single number, or (unless `text`) an expression."""
    if isinstance(given, str):
        return (given,) if text else values_of(given)
    return tuple(given) if isinstance(given, list) else (given,)


def _t1_axes(given: Any) -> Mapping[str, Any]:
    """Return extents by axis; a list or a single value starts at X."""
    if isinstance(given, Mapping):
        return given
    return dict(zip("XYZ", _t1_values(given if given is not None else [], text=True), strict=False))


_T1_ROLES = {"ReadOnly": "input", "WriteOnly": "output", "ReadWrite": "inout"}
"""T1's access types → evokern's roles."""


def _t1_span(item: Mapping[str, Any], shape: tuple[int, ...] | None) -> tuple[float, float] | None:
    """Return the range of an array's values: `Random` fills up to `FillValue`, a generator with the element's index."""
    fill, value = item.get("FillType", ""), _t1_number(item.get("FillValue"))
    if fill == "Random" and isinstance(value, (int, float)) and value > 0:
        return 0.0, float(value)
    if fill != "Generator" or not shape:
        return None
    try:
        count = prod(shape)
        drawn = [float(value_over(str(item["DataSource"]), {"i": i})) for i in range(0, count, max(1, count // 1024))]
    except (ArithmeticError, SyntaxError, TypeError, ValueError):
        return None
    return min(drawn), max(drawn)


def _t1_number(given: Any) -> Any:
    """Return a fill value as a number if its text is one."""
    try:
        return float(given) if isinstance(given, str) else given
    except ValueError:
        return given


def _check_keys(path: Path, where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Reject a key that is probably a misspelling, because its value would be ignored."""
    for key in given:
        if key not in known and difflib.get_close_matches(key, [name for name in known if name not in given], 1, 0.8):
            raise SourceError(f"T1 file {path}: {where} has the unknown key {key!r}: {suggestion(key, known)}")


_T1_KEYS = (
    "Language", "CompilerOptions", "BenchmarkConfig", "KernelName", "KernelFile", "LocalSize", "GlobalSize",
    "GlobalSizeType", "ProblemSize", "GridDivX", "GridDivY", "GridDivZ", "SharedMemory", "Stream", "Arguments",
    "Device", "SimulationInput", "PointerType", "ReferenceArguments", "Profiling",
)  # fmt: skip
"""Keys of `KernelSpecification` in T1 1.0.0."""
_T1_ITEM_KEYS = (
    "Name", "Type", "Values", "Default", "Size", "MemoryType", "MemType", "AccessType", "FillType", "FillValue",
    "DataSource", "RandomSeed", "Output", "Shape", "Min", "Max",
)  # fmt: skip
"""Keys of tuning parameters and arguments in T1 1.0.0."""


_T1_REFERENCE_KEYS = ("TargetName", "ValidationMethod", "ValidationThreshold")
_T1_TOP_KEYS = (
    "ConfigurationSpace", "KernelSpecification", "TuningParameters", "Conditions", "Expression", "X", "Y", "Z",
)  # fmt: skip
_T1_NAMES = {name.lower(): name for name in (*_T1_KEYS, *_T1_ITEM_KEYS, *_T1_REFERENCE_KEYS, *_T1_TOP_KEYS)}
"""T1's keys in lower case → their usual case."""


def is_t1(text: str) -> bool:
    """Return whether a text is a T1 file: JSON with a configuration space and a kernel."""
    try:
        whole = _with_t1_names(json.loads(text))
    except ValueError:
        return False
    return isinstance(whole, dict) and {"ConfigurationSpace", "KernelSpecification"} <= set(whole)


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
        dtype = _dtype(selected[0])
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


def _dtype(name: object) -> str | None:
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
        types = {value: dtype for value in parameters[name] if (dtype := _dtype(value))}
        if not types:
            raise SourceError(
                f"no value of {name}, which TunablePrecision selects, is a type; use float, double or half"
            )
        wanted = _dtype(item["dtype"])
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


def _sizes(given: Any, notes: list[str]) -> tuple[int | str, ...]:
    given = _plain(given, "problem_size", notes)
    if given is None:
        return ()
    sizes = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(size if isinstance(size, (int, str)) else size["value"] for size in sizes if size is not None)


def _divisors(given: Any, notes: list[str]) -> tuple[str, ...] | None:
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
