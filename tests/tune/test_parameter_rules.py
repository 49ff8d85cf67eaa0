"""Functions of the parameters as data: formulas, cases, tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evokern
from evokern.declaration.as_data.declared import chosen
from evokern.declaration.genes import Config
from evokern.scaffold.tuner.rules import Parameters, condition, extents, rule_of

PARAMETERS = {"A": (1, 2, 3, 8), "B": (4, 16, 64), "MODE": ("fast", "exact")}


def stored(function: Callable[[Any], Any], values: Any = None) -> tuple[dict[str, Any], Parameters]:
    """Return a function as the database returns it."""
    parameters = Parameters(values or PARAMETERS)
    rule, _ = rule_of("grid", function, parameters, extents)
    return json.loads(json.dumps(rule)), parameters


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "formula": lambda p: (2 * 8, evokern.cdiv(512, p.B), p.A + 1),
    "min": lambda p: min(p.A * p.B, 100),
    "branch": lambda p: p.A if p.B > 16 else (p.B, p.A),
    "name": lambda p: p.A * (2 if p.MODE == "fast" else 3),
    "subscript": lambda p: p["A"] * p["B"],
    "ceil": lambda p: math.ceil(1000 / p.B),
    "round": lambda p: int(1000 / p.B) + 1,
    "square root": lambda p: int(math.sqrt(p.B)),
    "power": lambda p: 2**p.A,
    "lookup": lambda p: {4: 1, 16: 2, 64: 3}[p.B],
    "bits": lambda p: (p.A | p.B) + (p.A ^ 3),
    "loop": lambda p: sum(range(p.A + 1)) + 1,
    "shift": lambda p: p.B << 1,
    "divmod": lambda p: divmod(p.B, p.A)[0] + 1,
    "constant": lambda p: 7,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_stored_function_gives_the_same_numbers(name: str) -> None:
    """The rule loaded from JSON equals the function at every combination."""
    rule, parameters = stored(FUNCTIONS[name])
    for config in parameters.tried:
        assert tuple(chosen(rule, config)) == extents(FUNCTIONS[name](config))


def test_arithmetic_is_stored_as_a_formula() -> None:
    """A traced function is one case over the parameters, not a table."""
    rule, _ = stored(lambda p: (16, evokern.cdiv(512, p.B)))
    assert rule == {"cases": [{"when": [], "value": ["16", "ceil_div(512, c.B)", "1"]}]}


def test_a_large_space_is_not_enumerated() -> None:
    """A formula and a comparison hold beyond the tried combinations, and a table covers what a function reads."""
    values = {name: tuple(range(1, 65)) for name in "ABCDEF"}
    last = Config(dict.fromkeys(values, 64))
    parameters = Parameters(values)
    rule, _ = rule_of("where", lambda p: p.A * p.B * p.C * p.D <= 4096, parameters, condition)
    assert len(parameters.tried) < parameters.size and chosen(rule, last) == [0]
    rule, read = rule_of("grid", lambda p: {n: n for n in range(99)}[p.A], parameters, extents)
    assert chosen(rule, last) == [64, 1, 1] and read == {"A"}


def test_a_function_that_cannot_be_stored_is_named() -> None:
    """A table over too many combinations is refused with the parameters."""
    parameters = Parameters({name: tuple(range(1, 65)) for name in "ABCDEF"})
    with pytest.raises(evokern.UsageError, match="grid reads A, B, C, D, which have 16,777,216 combinations"):
        rule_of("grid", lambda p: int(math.sqrt(p.A * p.B + p.C * p.D)), parameters, extents)


@given(st.lists(st.sampled_from(["+", "-", "*", "//", "%"]), min_size=1, max_size=5), st.integers(1, 9))
def test_random_formulas_are_stored_exactly(signs: list[str], number: int) -> None:
    """Any arithmetic over the parameters gives the same numbers after it is stored."""
    text = "p.A" + "".join(f" {sign} {'p.B' if index % 2 else number}" for index, sign in enumerate(signs))
    function = eval(f"lambda p: abs({text}) + 1")
    rule, parameters = stored(function, {"A": (1, 2, 5), "B": (3, 4)})
    assert all(tuple(chosen(rule, one)) == extents(function(one)) for one in parameters.tried)
