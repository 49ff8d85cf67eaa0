"""Functions of the parameters as data: arithmetic under conditions if they can be traced, else a table."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from operator import index
from typing import Any

from evokern.declaration.as_data.declared import chosen
from evokern.declaration.genes import Config, Value
from evokern.errors import KERNEL_CODE_EXCEPTIONS, SpaceError, UsageError, suggestion
from evokern.export.formula import Formula, ShapeGuard
from evokern.export.traced import GuardRecorder, Traced, TracedRatio, bare, formula_of

MOST_TRIED = 4096
"""Maximum number of combinations on which a function is called; larger spaces are sampled."""
MOST_CASES = 32
"""Maximum number of cases of a traced function; one with more becomes a table."""
MOST_ENTRIES = 1 << 16
"""Maximum number of entries of a table."""

Numbers = Callable[[Any], tuple[int, ...]]
"""Function from the result of a user's function to its numbers; it raises ValueError with the required form."""


class Parameters:
    """Parameters of a call: their values, and the combinations that `where` permits."""

    def __init__(self, values: Mapping[str, Sequence[Value]]) -> None:
        self.values = {name: tuple(one) for name, one in values.items()}
        self.size = prod(len(one) for one in self.values.values())
        self.tried = self._tried()

    def _tried(self) -> list[Config]:
        names = list(self.values)
        if self.size <= MOST_TRIED:
            return [Config(dict(zip(names, one, strict=True))) for one in product(*self.values.values())]
        rng = random.Random(0)
        drawn = [{name: rng.choice(one) for name, one in self.values.items()} for _ in range(MOST_TRIED)]
        ends = [{name: one[end] for name, one in self.values.items()} for end in (0, -1)]
        return [Config(one) for one in (*ends, *drawn)]

    def keep(self, permitted: Callable[[Config], bool]) -> None:
        """Restrict the tried combinations.

        Raises:
            UsageError: none is left.
        """
        self.tried = [config for config in self.tried if permitted(config)]
        if not self.tried:
            raise UsageError("where excludes every combination of params; relax a condition")


def rule_of(what: str, given: Any, parameters: Parameters, numbers: Numbers) -> tuple[dict[str, Any], frozenset[str]]:
    """Return a function of the parameters as data, and the parameters that it reads.

    Args:
        what: name of the function in messages, for example `grid`.
        given: the function, or its result if it does not depend on the parameters.
        parameters: the parameters.
        numbers: converts and checks the function's result.

    Raises:
        UsageError: the function raises, returns something unsuitable, or depends on too many parameters.
    """
    if not callable(given):
        found = _checked(what, given, numbers, None)
        return {"cases": [{"when": [], "value": list(map(str, found))}]}, frozenset()
    read: set[str] = set()
    results = {config: _called(what, given, _Reading(config, read), numbers, config) for config in parameters.tried}
    rule = _traced(given, results, numbers, whole=len(parameters.tried) == parameters.size)
    return rule or _table(what, given, parameters, sorted(read), results, numbers), frozenset(read)


def _called(
    what: str, function: Callable[[Any], Any], given: _Reading, numbers: Numbers, config: Config
) -> tuple[int, ...]:
    try:
        made = function(given)
    except SpaceError as error:
        raise UsageError(f"{what}: {error}") from error
    except KERNEL_CODE_EXCEPTIONS as error:
        raise UsageError(f"{what} raised {type(error).__name__}: {error} for {_words(config)}{given._zeros}") from error
    return _checked(what, made, numbers, given)


def _checked(what: str, made: Any, numbers: Numbers, config: _Reading | None) -> tuple[int, ...]:
    try:
        return numbers(made)
    except ValueError as error:
        if config is None:
            raise UsageError(f"{what} is {made!r}; {error}") from error
        raise UsageError(f"{what} returned {made!r} for {_words(config)}; {error}{config._zeros}") from error


def _words(config: Config) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())


class _Reading(Config):
    """Configuration that records the parameters that are read."""

    __slots__ = ("_read",)

    def __init__(self, values: Mapping[str, Value], read: set[str]) -> None:
        super().__init__(dict(values))
        self._read = read

    def __getitem__(self, name: str) -> Value:
        if name not in self._values:
            raise SpaceError(f"there is no parameter {name!r}: {suggestion(name, self._values)}")
        self._read.add(name)
        return self._values[name]

    @property
    def _zeros(self) -> str:
        """The parameters that were read and are 0, as the likely cause of a failure, with the remedy."""
        found = [name for name in self._read if self._values[name] == 0]
        if not found:
            return ""
        return (
            f"; {' and '.join(found)} {'is' if len(found) == 1 else 'are'} 0: remove this value from params, or "
            f"exclude it with where=lambda p: p.{found[0]} > 0"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self._values else default

    def items(self) -> Any:
        self._read.update(self._values)
        return self._values.items()


class _Tracing(_Reading):
    """Configuration whose whole numbers are traced; reading a name becomes a condition."""

    __slots__ = ("_conditions", "_recorder")

    def __init__(self, config: Config, recorder: GuardRecorder, conditions: dict[str, None]) -> None:
        super().__init__(config, set())
        self._recorder, self._conditions = recorder, conditions

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if isinstance(value, str):
            self._conditions[f"c.{name} == {value!r}"] = None
            return value
        return Traced.make(value, ("field", name), self._recorder)


def _traced(
    function: Callable[[Any], Any], results: Mapping[Config, tuple[int, ...]], numbers: Numbers, *, whole: bool
) -> dict[str, Any] | None:
    """Return the cases of a function, or None if it cannot be traced.

    Args:
        function: the function.
        results: its results on the tried combinations.
        numbers: converts its results.
        whole: whether every combination was tried; if not, several cases may leave some out.
    """
    cases: list[dict[str, Any]] = []
    for config, wanted in results.items():
        try:
            found = tuple(chosen({"cases": cases}, config))
        except LookupError:
            case = _case(function, config, numbers)
            if case is None or len(cases) == MOST_CASES:
                return None
            cases.append(case)
            found = tuple(chosen({"cases": cases}, config))
        if found != wanted:
            return None
    return {"cases": cases} if whole or len(cases) == 1 or _complement(cases) else None


def _complement(cases: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the cases are one comparison and its opposite, which cover everything."""
    if len(cases) != 2 or any(len(case["when"]) != 1 for case in cases):
        return False
    (one,), (other,) = (case["when"] for case in cases)
    return any(
        one.replace(f" {a} ", f" {b} ", 1) == other
        for a, b in (("<=", ">"), (">", "<="), ("<", ">="), (">=", "<"), ("==", "!="), ("!=", "=="))
    )


def _case(function: Callable[[Any], Any], config: Config, numbers: Numbers) -> dict[str, Any] | None:
    recorder, conditions = GuardRecorder(), dict[str, None]()
    try:
        made = function(_Tracing(config, recorder, conditions))
        parts = made if isinstance(made, (tuple, list)) else (made,)
        if any(isinstance(part, TracedRatio) for part in parts):
            return None
        plain = numbers(tuple(map(bare, parts)) if isinstance(made, (tuple, list)) else bare(made))
        formulas = [formula_of(part) for part in parts] + [("number", one) for one in plain[len(parts) :]]
        guards = [_guard_text(guard) for guard in recorder.guards]
        return {"when": [*conditions, *dict.fromkeys(guards)], "value": [_text(one) for one in formulas]}
    except KERNEL_CODE_EXCEPTIONS:
        return None


def _guard_text(guard: ShapeGuard) -> str:
    if guard.when or guard.others:
        raise ValueError(guard)
    return f"{_text(guard.left)} {guard.comparison} {_text(guard.right)}"


def _text(formula: Formula) -> str:
    """Return a formula as an expression.

    Raises:
        ValueError: it contains an operation without an expression.
    """
    match formula:
        case ("field", name):
            return f"c.{name}"
        case ("number", number):
            return str(number)
        case ("neg", ("//", ("neg", dividend), divisor)):
            return f"ceil_div({_text(dividend)}, {_text(divisor)})"
        case ("neg", ("//", ("number", number), divisor)) if number < 0:
            return f"ceil_div({-number}, {_text(divisor)})"
        case ("neg", inner):
            return f"-{_part(inner)}"
        case ("+" | "-" | "*" | "//" | "%" as sign, left, right):
            return f"{_part(left)} {sign} {_part(right)}"
    raise ValueError(formula)


def _part(formula: Formula) -> str:
    text = _text(formula)
    return text if formula[0] in ("field", "number") or text.startswith("ceil_div") else f"({text})"


def _table(
    what: str,
    function: Callable[[Any], Any],
    parameters: Parameters,
    read: Sequence[str],
    results: Mapping[Config, tuple[int, ...]],
    numbers: Numbers,
) -> dict[str, Any]:
    """Return a function as a table over the parameters that it reads.

    Raises:
        UsageError: the table would be too large.
    """
    table = {",".join(str(config[name]) for name in read): list(result) for config, result in results.items()}
    count = prod(len(parameters.values[name]) for name in read)
    if len(parameters.tried) < parameters.size and count > MOST_ENTRIES:
        raise UsageError(
            f"{what} reads {', '.join(read)}, which have {count:,} combinations, and is not plain arithmetic, so it "
            "cannot be stored; write it with + - * // and comparisons of the parameters"
        )
    for config in _combinations(parameters, read) if len(parameters.tried) < parameters.size else ():
        key = ",".join(str(config[name]) for name in read)
        if key not in table:
            try:
                table[key] = list(numbers(function(config)))
            except KERNEL_CODE_EXCEPTIONS:  # a combination that `where` may exclude
                continue
    return {"of": list(read), "table": table}


def _combinations(parameters: Parameters, read: Sequence[str]) -> Iterator[Config]:
    first = {name: values[0] for name, values in parameters.values.items()}
    for values in product(*(parameters.values[name] for name in read)):
        yield Config({**first, **dict(zip(read, values, strict=True))})


def extents(made: Any) -> tuple[int, ...]:
    """Return the three extents of a grid or block.

    Raises:
        ValueError: it is not one to three whole numbers of at least 1.
    """
    parts = tuple(made) if isinstance(made, (tuple, list)) else (made,)
    if not 1 <= len(parts) <= 3 or any(isinstance(part, bool) or not hasattr(part, "__index__") for part in parts):
        raise ValueError("use one to three whole numbers; // and evokern.cdiv divide without a fraction")
    parts = tuple(map(index, parts))
    if any(part < 1 for part in parts):
        raise ValueError("each extent must be at least 1")
    return (*parts, 1, 1)[:3]


def size(made: Any) -> tuple[int, ...]:
    """Return a number of bytes.

    Raises:
        ValueError: it is not a whole number of at least 0.
    """
    if isinstance(made, bool) or not hasattr(made, "__index__") or made < 0:
        raise ValueError("use a whole number of bytes, at least 0")
    return (index(made),)


def condition(made: Any) -> tuple[int, ...]:
    """Return a condition as 1 or 0.

    Raises:
        ValueError: it is not True or False.
    """
    if not isinstance(made, (bool, int)):
        raise ValueError("return True or False")
    return (int(bool(made)),)


def text_of(function: Callable[..., Any]) -> str:
    """Return the source of a condition, for messages; its name if the source is unknown."""
    try:
        text = " ".join(inspect.getsource(function).split())
    except (OSError, TypeError):
        return getattr(function, "__name__", "a condition")
    body = text.partition("lambda")[2].partition(":")[2].strip() if function.__name__ == "<lambda>" else text
    return _balanced(body) or text


def _balanced(text: str) -> str:
    """Return the text up to the end of a lambda: a comma or bracket that it did not open."""
    depth = 0
    for end, character in enumerate(text):
        depth += character in "([{"
        depth -= character in ")]}"
        if depth < 0 or (depth == 0 and character == ","):
            return text[:end].strip()
    return text
