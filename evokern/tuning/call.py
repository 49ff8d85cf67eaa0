"""One call of `evokern.tune`: from its arguments to a kernel declared as data."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from evokern.compile.device_code import split_options
from evokern.cuda_source import read
from evokern.cuda_source.declarations import collisions
from evokern.cuda_source.lexer import code_of, without_comments
from evokern.declaration.as_data.declared import (
    DECLARATION,
    VALUES,
    Functions,
    Passing,
    chosen,
    declared_kernel,
    register,
)
from evokern.declaration.as_data.golden import KernelReference
from evokern.declaration.bounds import ErrorBound
from evokern.declaration.genes import Value, filled, placeholders
from evokern.declaration.kernel import DTYPE_BYTES, Kernel
from evokern.declaration.kernel_files import KernelContent, KernelFile, source_files
from evokern.errors import KernelError, UsageError, suggestion
from evokern.scaffold.tuner import rules
from evokern.tuning.arguments import TunedArgument, arguments_of, device_of
from evokern.tuning.options import TuneOptions
from evokern.tuning.reference import described, digest_of, name_of, order_of, pickled, place_of
from evokern.tuning.reference_check import check_reference

INDEX_BYTES = 4
"""Bytes of the smallest integers that may be indices into other inputs; narrower ones are data."""
MOST_THREADS = 1024
"""Maximum number of threads of a block (CUDA C++ Programming Guide, "Technical Specifications")."""
MOST_TRIED_FLOPS = 1e10
"""Maximum number of operations of a reference that is tried for a derived bound."""
_DYNAMIC_ATOMICS = re.compile(r"\batomic\w+\s*\(|\b(?:red|atom)\.")
"""Calls whose order differs between runs."""


@dataclass(frozen=True)
class Tuned:
    """Kernel that a call declares."""

    kernel: Kernel
    """The kernel."""
    device: str | None
    """Device of the call: the given one, else the GPU of the arrays."""
    notes: tuple[str, ...]
    """Warnings about examples that differ from those of the study."""
    ranges: str = ""
    """Note on the ranges in which a new study checks its inputs; empty without one."""


def tuned_kernel(call: TuneOptions, stored: Mapping[str, str] | None = None) -> Tuned:
    """Return the kernel that a call declares.

    Args:
        call: the arguments.
        stored: texts of the study's kernel in the database, whose ranges and values of inputs a resumed study keeps.

    Raises:
        UsageError: an argument cannot be used; the message names it.
    """
    return _Builder(call).kernel(stored)


class _Builder:
    """Builder of the declaration of one call."""

    def __init__(self, call: TuneOptions) -> None:
        self.call = call
        _check_name(call.study)
        _check_params(call.params)
        self._check_options()
        self.source = read(call.source)
        self.path = self.source.path.resolve() if self.source.path else None
        params = {name: tuple(map(_plain, values)) for name, values in call.params.items()}
        self.parameters = rules.Parameters(params)
        self.where = self._where()
        self.parameters.keep(lambda config: all(chosen(rule, config)[0] for rule in self.where))
        self.default: Mapping[str, Value] = self.parameters.tried[0]
        self.function = self._function()
        self._check_definitions()
        self.arguments = arguments_of(call.args, self.function, self._template(), self.source, call.draw or {})
        self.device = device_of(self.arguments, call.device)
        self.rules = {
            name: rules.rule_of(name, given, self.parameters, numbers)
            for name, given, numbers in (
                ("grid", call.grid, rules.extents), ("block", call.block, rules.extents),
                ("shared", call.shared, rules.size),
            )
        }  # fmt: skip
        self.default = self._launchable()
        self._check_used()

    def _launchable(self) -> Mapping[str, Value]:
        """Return the first combination that any GPU can launch, which is the default candidate."""
        block = self.rules["block"][0]
        for config in self.parameters.tried:
            if prod(chosen(block, config)) <= MOST_THREADS:
                return config
        raise UsageError(f"block has more than {MOST_THREADS} threads for every combination of params; use fewer")

    def _check_options(self) -> None:
        """Require compiler options that NVRTC accepts; options of nvcc may run programs."""
        options = self.call.options
        if isinstance(options, str) or not all(isinstance(one, str) for one in options):
            raise UsageError(f"options is {options!r}; use a list of strings, such as ['--use_fast_math']")
        _, rejected = split_options(options)
        if rejected:
            raise UsageError(f"options: NVRTC does not accept {', '.join(rejected)}; remove it")

    def _where(self) -> list[dict[str, Any]]:
        given = self.call.where if isinstance(self.call.where, (tuple, list)) else [self.call.where]
        found = []
        for number, one in enumerate(given):
            what = f"where[{number}]" if len(given) > 1 else "where"
            if not callable(one):
                raise UsageError(f"{what} is {one!r}; use a function of the parameters: lambda p: p.A * p.B <= 1024")
            rule, _ = rules.rule_of(what, one, self.parameters, rules.condition)
            found.append({**rule, "text": rules.text_of(one)})
        return found

    def _function(self) -> Any:
        """Return the kernel in the source."""
        call = self.call
        for name in placeholders(call.entry):
            if name not in call.params:
                raise UsageError(
                    f"entry {call.entry!r} contains {{{name}}}, which is not in params: {suggestion(name, call.params)}"
                )
        self.point = self.source.entry(filled(call.entry, self.default))
        return self.point.entry

    def _check_definitions(self) -> None:
        """Require that no line of the source replaces the value of a parameter."""
        for file, text in {self.source.name: self.source.text, **self.source.headers}.items():
            for one in collisions(text, self.call.params):
                if one.defines and not self._is_template(one.name):
                    raise UsageError(
                        f"{file}:{one.line}: {one.text!r} replaces the value of the parameter {one.name}; remove the "
                        f"line, or put it between #ifndef {one.name} and #endif"
                    )

    def _template(self) -> dict[str, str]:
        """Return the template arguments of the entry by parameter."""
        given = (self.point.expression or "").partition("<")[2].rpartition(">")[0]
        parts = re.split(r",(?![^<(]*[>)])", given) if given else []
        return {p.name: part.strip() for p, part in zip(self.function.template, parts, strict=False)}

    def _is_template(self, name: str) -> bool:
        """Return whether a parameter is only a template argument, which no macro may replace."""
        if name not in placeholders(self.call.entry):
            return False
        own = {parameter.name for parameter in self.function.template}
        texts = (self.source.device_text, *self.source.headers.values())
        return name in own or not any(re.search(rf"\b{name}\b", text) for text in texts)

    def _check_used(self) -> None:
        """Reject a parameter that nothing reads, which is probably mistyped."""
        text = "\n".join((self.source.text, *self.source.headers.values(), self.call.entry))
        words = set(re.findall(r"[A-Za-z_]\w*", text))
        read = frozenset().union(*(names for _, names in self.rules.values()))
        for name in self.call.params:
            if name not in words and name not in read:
                kinds = {macro.name: macro.kind for macro in self.source.macros}
                known = [w for w in sorted(words) if kinds.get(w, "used" if w.isupper() else "defined") != "defined"]
                known = [one for one in known if one not in self.call.params] or sorted(read)
                hint = suggestion(name, known)
                raise UsageError(
                    f"params: {name} occurs neither in the source nor in entry, grid, block or shared"
                    + (f"; {hint}" if hint else "")
                )
        for macro in self.source.macros:
            if (
                macro.kind == "required"
                and macro.name not in self.call.params
                and not macro.function_like
                and not any(option.startswith(f"-D{macro.name}") for option in self.call.options)
            ):
                raise UsageError(
                    f"the source requires the macro {macro.name} (line {macro.line}), which params lacks: "
                    f"{suggestion(macro.name, self.call.params)}"
                )  # fmt: skip

    def kernel(self, stored: Mapping[str, str] | None) -> Tuned:
        """Return the kernel, with the examples of a stored study."""
        functions, passing = self._functions()
        itself = isinstance(self.call.reference, KernelReference)
        self.flops = 0.0 if itself else check_reference(self.call.reference, passing, self.arguments)
        notes: list[str] = []
        files = list(self._source_files())
        values = {one.name: one.values for one in self.arguments if one.values}
        data = self._data(functions, passing, {file.name: list(file.includes) for file in files})
        data["code"] = {"" if at == 0 else file.name: _code_digest(file.text) for at, file in enumerate(files)}
        if stored is not None and DECLARATION in stored:
            notes += _keep_examples(data, values, stored)
        folder = files[0].path.parent
        for name, made in ((DECLARATION, data), *([(VALUES, values)] if values else [])):
            text = json.dumps(made, indent=1, ensure_ascii=False)
            files.append(KernelFile(name, folder / name, text.encode()))
        content = KernelContent(tuple(files), functions=pickled(functions))
        register(data["functions"], content.functions)
        try:
            kernel = declared_kernel(folder, content, tried=self.flops <= MOST_TRIED_FLOPS)
        except KernelError as error:
            raise self._without_bound(error) from error
        known = kernel.workload.reference
        if isinstance(known, KernelReference) and not known.affordable(kernel.problem({})):
            raise UsageError(
                "the outputs of the default candidate take too long to simulate; pass reference=, a function, or a "
                "smaller problem"
            )
        outside = kernel.outside_headers(kernel.files())
        kernel = replace(kernel, content=replace(content, outside=outside))
        return Tuned(kernel, self.device, tuple(notes), _range_note(self.arguments) if stored is None else "")

    def _without_bound(self, error: KernelError) -> UsageError:
        """Return the request for a tolerance, if that is what a declaration lacks."""
        if "neither a bound nor a tolerance" not in str(error):
            return error
        output = re.search(r"output '(\w+)'", str(error))
        return UsageError(
            f"the error bound of output {output[1] if output else 0} cannot be derived from "
            f"{described(name_of(self.call.reference))} ({error.__cause__}); pass tolerance=(atol, rtol), for example "
            "tolerance=(1e-3, 1e-3), or error=, for example error=evokern.Elementwise(4)"
        )

    def _source_files(self) -> tuple[KernelFile, ...]:
        if self.path is not None:
            return source_files(self.path)
        name = re.sub(r"\W", "_", self.function.name) + ".cu"
        return source_files(Path.cwd() / name, self.source.text)

    def _functions(self) -> tuple[Functions, Passing]:
        call, arrays = self.call, [one for one in self.arguments if one.role]
        inputs = tuple(one.name for one in arrays if one.role != "output")
        outputs = tuple(one.name for one in arrays if one.role != "input")
        if not callable(call.reference):
            raise UsageError(f"reference is {call.reference!r}; use a function that returns the outputs")
        passed = [one for one in self.arguments if one.role != "output"]
        numbers = {one.name: one.number for one in passed if one.number is not None}
        names = [one.name for one in passed]
        itself = isinstance(call.reference, KernelReference)
        order = () if itself else order_of(call.reference, inputs, numbers, names)
        passing = Passing(
            inputs, outputs, order, {one.name: one.kept for one in arrays if one.kept and one.role != "output"},
            next((one.framework for one in arrays if one.framework), "torch"), {one.name: one.shape for one in arrays},
        )  # fmt: skip
        error = _by_output("error", call.error, outputs, _bound)
        draws = {one.name: one.draw for one in arrays if callable(one.draw)}
        return Functions(call.reference, draws, error), passing

    def _data(self, functions: Functions, passing: Passing, includes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        call, entry = self.call, self.call.entry.strip()
        placeholder = entry.partition("<")[2]
        launched = self.point.symbol or self.point.expression or ""
        if placeholder and "<" in launched:
            launched = f"{launched.partition('<')[0]}<{placeholder}"
        digest = digest_of(call.reference)
        more = (functions.draws, functions.error)
        arrays = [one for one in self.arguments if one.role]
        floats = [one for one in arrays if one.role != "input" and one.dtype[0] not in "iu"]
        text = without_comments("\n".join((self.source.device_text, *self.source.headers.values())))
        exact = {one.name: [0.0, 0.0] for one in arrays if one.role != "input" and one.dtype[0] in "iu"}
        return {
            "name": call.study,
            "source": self.path.name if self.path else next(iter(includes)),
            "entry": launched,
            "arguments": [one.data() for one in self.arguments],
            "shapes": " ".join(f"{one.name}:{one.dtype}[{'x'.join(map(str, one.shape))}]" for one in arrays),
            "params": {name: list(values) for name, values in self.parameters.values.items()},
            "default": dict(self.default),
            "template": [name for name in self.parameters.values if self._is_template(name)],
            "where": self.where,
            **{name: rule for name, (rule, _) in self.rules.items()},
            "reference": {
                "name": name_of(call.reference), **place_of(call.reference), "digest": digest,
                "order": list(passing.order), "library": passing.framework,
            },
            "functions": digest if not any(more) else digest_of((call.reference, *more)),
            "tolerance": exact | _by_output("tolerance", call.tolerance, passing.outputs, _pair),
            "options": list(call.options),
            "deterministic": not (floats and _DYNAMIC_ATOMICS.search(text)),
            "flops": self.flops,
            "reads_all": not any(
                (one.values and DTYPE_BYTES[one.dtype] >= INDEX_BYTES) or callable(one.draw) for one in arrays
            ),
            "includes": dict(includes),
        }  # fmt: skip


def _code_digest(text: str) -> str:
    return hashlib.sha256(code_of(text).encode()).hexdigest()


def _plain(value: Any) -> Value:
    return int(value) if isinstance(value, bool) else value


def _check_name(name: Any) -> None:
    """Reject a name that commands or paths of files would misread."""
    if not isinstance(name, str) or not re.fullmatch(r"\w[^/\\:]*", name) or not name.isprintable():
        raise UsageError(
            f"name is {name!r}; start it with a letter, digit or underscore, and use no slash, backslash or colon; db= "
            "sets the file of the database"
        )


def _range_note(arguments: Sequence[TunedArgument]) -> str:
    """Return that the gate generates values only in the range of the examples; empty without such inputs."""
    drawn = {one.name: one.drawn["span"] for one in arguments if one.drawn and "span" in one.drawn}
    shown = ", ".join(f"{name} ({low:.4g} to {high:.4g})" for name, (low, high) in drawn.items())
    first = next(iter(drawn), "")
    return shown and (
        f"inputs are generated only within these ranges: {shown}; draw={{{first!r}: (low, high)}} sets another range"
    )


def _check_params(params: Any) -> None:
    """Reject parameters without usable values.

    Raises:
        UsageError: the message names the parameter.
    """
    if not isinstance(params, Mapping) or not params:
        raise UsageError(f'params is {params!r}; pass a dictionary of names and values, such as {{"BLOCK": [64, 128]}}')
    for name, values in params.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name):
            raise UsageError(f"params: {name!r} is not a C identifier that starts with a letter; rename it")
        if isinstance(values, (str, Mapping)) or not isinstance(values, (Sequence, range)):
            raise UsageError(f"params: {name} is {values!r}; use a list of whole numbers or names")
        if not values:
            raise UsageError(f"params: {name} has no values; list at least one")
        kinds = {str if isinstance(value, str) else int if isinstance(value, int) else None for value in values}
        if kinds not in ({str}, {int}):
            raise UsageError(f"params: {name} has the values {list(values)!r}; use whole numbers, or names")
        if len(set(values)) != len(values):
            twice = next(value for value in values if list(values).count(value) > 1)
            raise UsageError(f"params: {name} lists {twice!r} twice")


def _by_output(what: str, given: Any, outputs: Sequence[str], convert: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return a setting for each output, given once or by the name of the output."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return {name: convert(what, given) for name in outputs}
    for name in given:
        if name not in outputs:
            raise UsageError(f"{what}: there is no output {name!r}: {suggestion(name, outputs)}")
    return {name: convert(f"{what}[{name!r}]", one) for name, one in given.items()}


def _pair(what: str, given: Any) -> list[float]:
    pair = (given, given) if isinstance(given, (int, float)) and not isinstance(given, bool) else given
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(x, (int, float)) for x in pair):
        raise UsageError(f"{what} is {given!r}; use (atol, rtol), for example (1e-3, 1e-3)")
    return [float(part) for part in pair]


def _bound(what: str, given: Any) -> Any:
    if not (isinstance(given, ErrorBound) or callable(given)):
        raise UsageError(f"{what} is {given!r}; use a bound such as evokern.Elementwise(4), or a function")
    return given


def _keep_examples(data: dict[str, Any], values: dict[str, Any], stored: Mapping[str, str]) -> list[str]:
    """Keep the ranges and values of a study's first call; return a note for each input that differs much.

    Ranges of unseeded random examples differ in every call, and the results hold for those of the first.
    """
    before = json.loads(stored[DECLARATION])
    old_values = json.loads(stored.get(VALUES, "{}"))
    notes = []
    for new, old in zip(data["arguments"], before.get("arguments", ()), strict=False):
        same = {key: one for key, one in new.items() if key not in ("span", "scale")}
        if (
            "span" not in new
            or "given" in new
            or same != {key: one for key, one in old.items() if key not in ("span", "scale")}
        ):
            continue
        width, former = (one["span"][1] - one["span"][0] for one in (new, old))
        if not 0.5 * former <= width <= 2 * former:
            notes.append(
                f"the study keeps the range of {new['name']} from its first call, {old['span'][0]:g} to "
                f"{old['span'][1]:g}; pass fresh=True to use the new one"
            )
        new["span"], new["scale"] = old["span"], old["scale"]
    for name in values:
        old = old_values.get(name)
        if (
            old
            and old != values[name]
            and [old["dtype"], old["shape"]] == [values[name][k] for k in ("dtype", "shape")]
        ):
            notes.append(
                f"the study keeps the values of {name} from its first call; pass fresh=True to use the new ones"
            )
            values[name] = old
    return notes
