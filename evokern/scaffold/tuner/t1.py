"""Input of a tuner from a T1 file (auto-tuning schema, version 1.0.0), or from a tuning script.

The script runs in a child process and tunes nothing.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from evokern.cuda_source.c_types import lanes_of
from evokern.errors import SourceError, suggestion
from evokern.events import step
from evokern.files import is_file, read_text
from evokern.scaffold.tuner.arithmetic import value_over, values_of
from evokern.scaffold.tuner.fake_kernel_tuner import EXITED, NO_CALL
from evokern.scaffold.tuner.request import TunerArgument, TunerRequest, divisors_of, dtype_of, from_call, sizes_of


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
        dtype = dtype_of(item["Type"])
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
        divisors = tuple(divisors_of(kernel.get(f"GridDiv{axis}") or None, notes) for axis in "XYZ")
    else:
        sizes = tuple(str(_t1_axes(kernel["GlobalSize"]).get(axis, "1")) for axis in "XYZ")
        divisors = (
            ((), (), ()) if kernel.get("GlobalSizeType", "CUDA") == "CUDA" else ((block[0],), (block[1],), (block[2],))
        )
    return TunerRequest(
        kernel=kernel["KernelName"],
        source=read_text(file, "replace"),
        file=str(file),
        problem_size=sizes_of(sizes, notes),
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


LIMIT_S = 120
"""Time limit in seconds until the script must call `tune_kernel`."""


def run_script(path: Path, arguments: Sequence[str] = (), entry: str | None = None) -> TunerRequest:
    """Run a script up to its call to `tune_kernel`, and return the call's arguments.

    Args:
        path: path of the script, which is executed; the caller must have the user's permission.
        arguments: command-line arguments of the script.
        entry: name of the tuned kernel, if the script calls `tune_kernel` several times; None for the first call.

    Raises:
        SourceError: the script fails, does not call `tune_kernel`, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="evokern-script-") as folder:
        command = [sys.executable, str(Path(__file__).with_name("fake_kernel_tuner.py")), str(path), folder]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        try:
            with step(f"running {path.name}"):
                done = subprocess.run(
                    [*command, entry or "", *arguments], capture_output=True, text=True, timeout=LIMIT_S,
                    stdin=subprocess.DEVNULL, env=environment,
                )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SourceError(
                f"{path} did not call tune_kernel within {LIMIT_S} s; pass it a smaller problem size after --"
            ) from None
        if done.returncode:
            raise SourceError(_failure(path, done, entry))
        request = from_call(json.loads((Path(folder) / "call.json").read_text(encoding="utf-8")))
        arrays = Path(folder) / "arrays.npz"
        request = replace(request, arrays=arrays.read_bytes() if arrays.exists() else b"")
        if entry is None and (others := _other_calls(path)):
            note = f"kernel.py: the script calls tune_kernel {others + 1} times; the first call that it reaches is used"
            request = replace(request, notes=(*request.notes, f"{note}; choose another with --entry KERNEL"))
        return request


def _failure(path: Path, done: subprocess.CompletedProcess[str], entry: str | None) -> str:
    """Return why a script did not reach its call, with the remedy."""
    lines = done.stderr.strip().splitlines()
    last = lines[-1] if lines else "without a message"
    if done.returncode in (NO_CALL, EXITED):
        ended: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        if entry is not None and ended["calls"]:
            known = ", ".join(dict.fromkeys(ended["calls"]))
            return f"{path} tunes {known}, but not {entry}; choose one of these with --entry"
        if done.returncode == NO_CALL:
            return (
                f"{path} ended without calling kernel_tuner.tune_kernel, so there is nothing to draft; pass its "
                "arguments after --, or choose the script that tunes"
            )
        return f"{path} ended with sys.exit before it called tune_kernel: {last}; pass its arguments after --"
    remedy = "install it in evokern's environment" if last.startswith("ModuleNotFoundError") else "correct the script"
    if last.startswith(("IndexError", "ValueError")) and "sys.argv" in read_text(path, "replace"):
        remedy = "pass its arguments after --"
    return f"{path} failed before it called tune_kernel: {last}; {remedy}"


def _other_calls(path: Path) -> int:
    """Return the number of calls of `tune_kernel` in a script beyond the first."""
    tree = ast.parse(read_text(path, "replace"))
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return max(0, sum("tune_kernel" in (getattr(f, "id", ""), getattr(f, "attr", "")) for f in calls) - 1)
