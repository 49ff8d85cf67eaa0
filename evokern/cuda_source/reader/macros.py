"""Functions that find a file's macros: defined, with a default, or required."""

from __future__ import annotations

from collections.abc import Iterator

from evokern.cuda_source import preprocessor
from evokern.cuda_source.reader.records import Macro
from evokern.cuda_source.source_file import SourceFile


def macros(unit: SourceFile) -> Iterator[Macro]:
    """Yield the macros of a file: defined, with a default, or required."""
    demanded = preprocessor.required(unit.stream)
    seen: set[str] = set()
    first = unit.definitions[:1]
    guards = {preprocessor.include_guard(unit.stream), *(one.name for one in first if not one.value)}
    for definition in unit.definitions:
        if definition.name in seen or (definition.guard and definition.name in guards):
            continue
        seen.add(definition.name)
        yield Macro(
            definition.name,
            definition.value or None,
            "default" if definition.guard else "defined",
            unit.line(definition.index),
            preprocessor.integer(definition.value),
            definition.parameters is not None,
            unit.name,
        )
    for name, index in demanded.items():
        if name not in seen and not name.startswith("__"):
            seen.add(name)
            yield Macro(name, None, "required", unit.line(index), file=unit.name)
