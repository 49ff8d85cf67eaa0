"""Options as fields of a record, for the command line and Python functions: names, types, defaults, help, durations."""

from __future__ import annotations

import inspect
import operator
import re
import reprlib
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar, get_type_hints

from evokern.errors import EvokernError, StudyError, UsageError, suggestion

RENAMED = {"go_on": "allow_changes", "window": "max_in_flight"}
"""Current name of each deprecated option; the deprecated names still work, until version 0.4.0."""

_P = ParamSpec("_P")
_Call = TypeVar("_Call")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Option:
    """Description of one option."""

    help: str
    """Meaning of the option, for the command line and for Python."""
    python: str = ""
    """Further sentence for Python."""
    command_line: str = ""
    """Meaning on the command line, if it differs: a flag `--no-NAME` has the inverse meaning of its field."""
    metavar: str = ""
    """Placeholder for the value on the command line."""
    minimum: int | None = None
    """Smallest value."""
    choices: tuple[str, ...] = ()
    """Values for completion."""


def option(help: str, default: Any = None, **more: Any) -> Any:
    """Return a field with an option's description.

    Args:
        help: meaning of the option.
        default: value of the field if the option is not given.
        more: further fields of `Option`.
    """
    return field(default=default, metadata={"option": Option(help, **more)})


def required(help: str, *, named: bool = False) -> Any:
    """Return a field without a default; callers may pass it by position, unless it is `named`."""
    return field(kw_only=named, metadata={"option": Option(help)})


def described(record: type, name: str) -> Option:
    """Return the description of a record's option."""
    found: Option = record.__dataclass_fields__[name].metadata["option"]  # type: ignore[attr-defined]
    return found


_BUILTIN = {"str": (str, "text"), "int": (int, "an integer"), "float": (float, "a number"), "bool": (bool, "")}
_NAMES = {
    "bool": "True or False",
    "Device": "a device object",
    "RayRequest": "an evokern.RayRequest",
    "Kernel": "an evokern.Kernel",
}


def plain_type(annotation: str) -> type:
    """Return the builtin type in which the command line passes an option, such as `int` for `int | None`."""
    return next(_BUILTIN[part][0] for part in annotation.split(" | ") if part in _BUILTIN)


def check_types(record: Any, kind: type) -> None:
    """Reject options whose values have a wrong type, and convert NumPy integers.

    Objects that are not of a builtin type are checked where they are used.

    Args:
        record: the options.
        kind: class of the record, or the base class whose fields are checked.

    Raises:
        StudyError: a value has a wrong type.
    """
    for one in fields(kind):
        value, allowed = getattr(record, one.name), str(one.type).split(" | ")
        if "int" in allowed and hasattr(value, "__index__") and not isinstance(value, bool):
            object.__setattr__(record, one.name, operator.index(value))  # the dataclass is frozen
        elif value is not None and not _fits(value, allowed):
            texts = [_NAMES.get(part) or _BUILTIN.get(part, ("", ""))[1] for part in allowed if part != "None"]
            raise StudyError(f"{one.name} = {reprlib.repr(value)}; use {' or '.join(texts)}")


def _fits(value: object, allowed: list[str]) -> bool:
    if isinstance(value, bool):
        return "bool" in allowed
    if isinstance(value, (int, float)):
        return "float" in allowed
    if isinstance(value, str):
        return "str" in allowed
    builtin = isinstance(value, (bytes, list, tuple, set, dict))
    return not builtin and any(part not in (*_BUILTIN, "None") for part in allowed)


def checked_function(name: str, value: Any, arguments: tuple[str, ...]) -> Any:
    """Return a callback, after a check that it takes its arguments.

    Args:
        name: name of the option, for the message.
        value: the callback.
        arguments: names of the arguments that it is called with.

    Raises:
        StudyError: the value is not a function, or takes other arguments.
    """
    form = f"a function of ({', '.join(arguments)})"
    if not callable(value):
        raise StudyError(f"{name} = {reprlib.repr(value)}; use {form}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # some functions in C have no signature
        return value
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise StudyError(f"{name}: {getattr(value, '__name__', value)}{signature} is not {form}: {error}") from error
    return value


def called_with(call: Callable[_P, _Call]) -> Callable[[Callable[[_Call], _Result]], Callable[_P, _Result]]:
    """Return a decorator that gives a function of one record the record's fields as arguments.

    The signature and the section `Args:` of the docstring come from the record.

    Args:
        call: dataclass whose fields are options.
    """
    hints = get_type_hints(call)
    signature = inspect.signature(call)
    typed = [one.replace(annotation=hints[name]) for name, one in signature.parameters.items()]

    def decorate(function: Callable[[_Call], _Result]) -> Callable[_P, _Result]:
        @wraps(function)
        def run(*args: _P.args, **keywords: _P.kwargs) -> _Result:
            with python_words(hints):
                return function(call(*args, **_current_names(function.__name__, signature, keywords)))

        returned = get_type_hints(function)["return"]
        run.__signature__ = inspect.Signature(typed, return_annotation=returned)  # type: ignore[attr-defined]
        run.__annotations__ = {**{one.name: one.annotation for one in typed}, "return": returned}
        head, section, rest = inspect.cleandoc(function.__doc__ or "").partition("\nReturns:")
        run.__doc__ = "\n".join([head, "Args:", *_argument_lines(call, signature), section + rest])
        return run

    return decorate


@contextmanager
def python_words(arguments: Collection[str]) -> Iterator[None]:
    """Name arguments of a Python function in place of options of the command line, in messages of errors.

    Args:
        arguments: names of the function's arguments. Other options are those of commands.
    """
    try:
        yield
    except UsageError as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (_with_arguments(error.args[0], arguments), *error.args[1:])
        if isinstance(error.__cause__, EvokernError):  # an exception of the user's function stays the cause
            raise error from None
        raise


_FLAGS = ("fresh", "verify", "trust", "allow_changes", "keep_going", "quiet")
_OPTION = re.compile(
    r"--(no-)?([a-z][a-z-]*[a-z])(?: ([A-Z]+\b|(?:none|auto|sim)(?![\w:/.])|[\w.]*[:.\d/][\w.:/,-]*\w))?"
)
"""An option, with a value if the next word is a placeholder or not a word of the sentence."""


def _with_arguments(text: str, arguments: Collection[str]) -> str:
    def argument(found: re.Match[str]) -> str:
        negative, option, value = found.groups()
        name = option.replace("-", "_")
        if name not in arguments:
            return found[0]
        if negative or name in _FLAGS:
            return f"{name}={not negative}" + (f" {value}" if value else "")
        if value is None or value.isupper() or value.replace(".", "", 1).isdigit():
            return f"{name}={value or ''}"
        return f"{name}={value!r}"

    parts = text.split("`")  # the odd ones are quoted
    for at, part in enumerate(parts):
        quoted = at % 2 == 1
        if not (quoted and part.startswith("evokern ")):
            parts[at] = _OPTION.sub(argument, part)
            if quoted:
                parts[at] = re.sub(r"(=\S+) (?=\w+=)", r"\1, ", parts[at])
    return "`".join(parts)


def _argument_lines(call: Any, signature: inspect.Signature) -> list[str]:
    texts = ((name, described(call, name)) for name in signature.parameters)
    lines = (f"{name}: {one.help} {one.python}".rstrip() for name, one in texts)
    return [
        part for line in lines for part in textwrap.wrap(line, 112, initial_indent="    ", subsequent_indent="        ")
    ]


def _current_names(function: str, signature: inspect.Signature, given: Mapping[str, Any]) -> Any:
    """Return keyword arguments with each deprecated name replaced, with a DeprecationWarning at the caller's line."""
    found = dict(given)
    for old in given:
        new = RENAMED.get(old, old)
        if new not in signature.parameters:
            raise TypeError(f"{function}() has no argument {old!r}: {suggestion(old, signature.parameters)}")
        if new != old and (value := found.pop(old)) is not None:
            warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=3)
            found[new] = value
    return found


LONGEST_S = 100 * 365 * 24 * 3600.0
"""Longest accepted duration in seconds: a hundred years."""
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def parse_duration(text: str | int | float) -> float:
    """Return the number of seconds of a duration such as `2h`, `1h30m`, `90m`, `45s` or `1 h 30 min` (as printed).

    A number, which only Python callers can pass, means seconds.

    Raises:
        StudyError: the value is not a duration, has no unit, or is not positive.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        # A large integer may not fit a float.
        return _check_range(text, float(min(text, 2 * LONGEST_S)))
    word = str(text).strip().lower().replace(" ", "")
    match = _DURATION.fullmatch(word)
    if match and any(match.groups()):
        hours, minutes, seconds = (float(part) if part else 0.0 for part in match.groups())
        return _check_range(text, 3600 * hours + 60 * minutes + seconds)
    if _NUMBER.fullmatch(word):
        _check_range(text, float(word))
        raise StudyError(f"{text!r} has no unit; use, for example, {word}h, {word}m or {word}s")
    raise StudyError(f"{text!r} is not a duration; use, for example, 2h, 90m, 1h30m or 45s")


def _check_range(given: str | float, seconds: float) -> float:
    if 0 < seconds <= LONGEST_S:
        return seconds
    if seconds > LONGEST_S:
        raise StudyError(f"{given!r} is longer than 100 years; use, for example, 2h, 90m or 45s")
    raise StudyError(f"{given!r} is not a positive duration; use, for example, 2h, 90m or 45s")
