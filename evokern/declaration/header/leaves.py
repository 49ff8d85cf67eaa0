"""Values in assertions: genes, macros that contain a field or a function's result, and constants for fields."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from evokern.declaration.genes import Config, Gene, Value
from evokern.declaration.header.text import NAMESPACE, choice_macro
from evokern.declaration.kernel import Kernel, Problem
from evokern.errors import KERNEL_CODE_EXCEPTIONS

_TRIED = 30
"""Number of configurations at which a macro must contain the value of a field."""
_FIELD = "problem_"
"""Start of the names of constants with fields."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """A gene, a field of the problem, or a function whose result is a macro."""

    name: str
    values: tuple[Value, ...]
    """Possible values; empty for a number of any size."""
    text: str = ""
    """C++ text of a number, or empty for a name."""
    conditions: Mapping[Value, str] = field(default_factory=dict)
    """Name → C++ condition that the leaf has this value."""
    natural: bool = False
    """Whether a number without listed values is never negative."""


def gene_leaf(gene: Gene) -> Leaf:
    """Return a gene with the C++ text of its value, or of the conditions for its names."""
    scope = f"{NAMESPACE}::" if gene.as_ == "constexpr" else ""
    if _are_numbers(gene.values):
        return Leaf(gene.name, gene.values, scope + gene.name)
    conditions = {value: f"({scope}{gene.name} == {scope}{choice_macro(gene, value)})" for value in gene.values}
    return Leaf(gene.name, gene.values, conditions=conditions)


def _are_numbers(values: Sequence[Value]) -> bool:
    return all(isinstance(value, int) for value in values)


def problem_constants(kernel: Kernel, problem: Problem) -> str:
    """Return constants with the fields of a problem, which assertions use if no macro contains a field."""
    values = [(entry.name, entry.choices, problem[entry.name]) for entry in kernel.fields]
    numbers = [f"{_FIELD}{name} = {of.index(one) if isinstance(one, str) else one}" for name, of, one in values]
    return f"namespace evokern_rules {{ enum : long long {{ {', '.join(numbers)} }}; }}  // constants without data"


_Sample = tuple[Config, Problem, Mapping[str, Any]]
"""A configuration and a problem with their macros."""


def samples_of(kernel: Kernel, problem: Problem) -> dict[str, list[list[_Sample]]]:
    """Return samples for each field: for each configuration, problems in which only this field varies."""
    rng = random.Random(0)
    configs = [kernel.space.default(), *(kernel.space.draw(rng) for _ in range(_TRIED))]
    found: dict[str, list[list[_Sample]]] = {}
    for entry in kernel.fields:
        tried: tuple[Value, ...] = entry.choices
        if not tried:
            values = range(int(problem[entry.name]), entry.most + 1, entry.multiple_of)
            tried = tuple(dict.fromkeys((*values[:3], values[len(values) // 2], values[-1])))
        problems = [Problem({**problem, entry.name: value}) for value in tried]
        try:
            found[entry.name] = [[(config, one, dict(kernel.macros(config, one))) for one in problems]
                                 for config in configs]  # fmt: skip
        except KERNEL_CODE_EXCEPTIONS:
            continue
    return found


def macro_functions(kernel: Kernel, samples: Mapping[str, Sequence[Sequence[_Sample]]]) -> dict[str, Leaf]:
    """Return the functions called by `macros` whose result is the same macro for all samples: name → macro."""
    macros_of = inspect.unwrap(kernel.macros)
    if not isinstance(macros_of, FunctionType):
        return {}
    parameters = list(inspect.signature(macros_of).parameters)
    tried = [one for at_field in samples.values() for at_config in at_field for one in at_config]
    found = {}
    for name in macros_of.__code__.co_names:
        function = macros_of.__globals__.get(name)
        if not isinstance(function, FunctionType) or not set(inspect.signature(function).parameters) <= set(parameters):
            continue
        places = [parameters.index(one) for one in inspect.signature(function).parameters]
        try:
            results = [function(*(sample[place] for place in places)) for sample in tried]
        except KERNEL_CODE_EXCEPTIONS:
            continue
        if not results or not _are_numbers(results) or len(set(results)) == 1:
            continue
        for macro in tried[0][2]:
            if all(macros.get(macro) == result for result, (_, _, macros) in zip(results, tried, strict=True)):
                found[name] = Leaf(name, (), macro, natural=min(results) >= 0)
                break
    return found


def field_leaves(kernel: Kernel, samples: Mapping[str, Sequence[Sequence[_Sample]]]) -> Iterator[Leaf]:
    """Yield the fields: as a macro that contains the value in all samples, else as a constant of the header."""
    for entry in kernel.fields:
        named = bool(entry.choices) and not _are_numbers(entry.choices)
        text, stored = f"evokern_rules::{_FIELD}{entry.name}", tuple(range(len(entry.choices)))
        for name in samples[entry.name][0][0][2] if entry.name in samples else ():
            seen = [tuple(macros.get(name, "") for _, _, macros in at) for at in samples[entry.name]]
            tried = tuple(problem[entry.name] for _, problem, _ in samples[entry.name][0])
            if len(tried) < 2 or seen[1:] != seen[:-1] or len(set(seen[0])) < len(tried) or not _are_numbers(seen[0]):
                continue
            if seen[0] == tried or entry.choices:
                text, stored, named = name, seen[0], seen[0] != tried
                break
        if named:
            texts = {one: f"({text} == {number})" for one, number in zip(entry.choices, stored, strict=True)}
            yield Leaf(entry.name, entry.choices, conditions=texts)
        else:
            yield Leaf(entry.name, entry.choices, text, natural=True)
