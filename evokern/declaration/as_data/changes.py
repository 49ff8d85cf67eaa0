"""Differences between two calls of `evokern.tune`, from the texts that a database stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evokern.declaration.as_data.declared import DECLARATION, VALUES, data_of

_NAMED = {"entry": "entry", "where": "where", "grid": "grid", "block": "block", "shared": "shared",
          "tolerance": "tolerance", "options": "options", "template": "entry"}  # fmt: skip
"""Key of a declaration → argument of the call."""


def declaration_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str] | None:
    """Return what differs between two calls; None for kernels that are declared otherwise.

    Comments, white space, and names and paths without meaning for the kernel do not count.
    """
    before, after = data_of(old), data_of(new)
    if before is None or after is None:
        return None
    texts = _changed_code(before, after, old, new)
    found = [f"the source changed ({', '.join(texts)})"] if texts else []
    found += _argument_changes(before["arguments"], after["arguments"])
    if old.get(VALUES) != new.get(VALUES) and not found:
        found.append("the values of integer arguments changed")
    if before["reference"]["digest"] != after["reference"]["digest"]:
        name = after["reference"]["name"]
        found.append("the reference changed" if name == "reference" else f"reference {name} changed")
    one, other = _meaning(before), _meaning(after)
    found += dict.fromkeys(f"{text} changed" for key, text in _NAMED.items() if one.get(key) != other.get(key))
    if before["functions"] != after["functions"] and before["reference"]["digest"] == after["reference"]["digest"]:
        found.append("a draw or error function changed")
    return found or (["the declaration changed"] if one != other else [])


def newest_texts(ran: Mapping[str, str], newest: Mapping[str, str]) -> Mapping[str, str]:
    """Return the texts of the latest call if they mean the same as those that a trial ran, else the latter."""
    return newest if declaration_changes(ran, newest) == [] else ran


def _changed_code(
    before: Mapping[str, Any], after: Mapping[str, Any], old: Mapping[str, str], new: Mapping[str, str]
) -> list[str]:
    """Return the names of the source files that differ for the compiler."""
    one, other = before.get("code"), after.get("code")
    if one is None or other is None:  # stored by an older version
        own = (DECLARATION, VALUES)
        return [name for name in dict.fromkeys((*old, *new)) if name not in own and old.get(name) != new.get(name)]
    code = dict.fromkeys((*one, *other))
    outside = [name for name in dict.fromkeys((*old, *new)) if name not in {**_files(before), **_files(after)}]
    found = [name or after["source"] for name in code if one.get(name) != other.get(name)]
    return found + [name for name in outside if old.get(name) != new.get(name)]


def _files(data: Mapping[str, Any]) -> dict[str, None]:
    return dict.fromkeys((DECLARATION, VALUES, *data["includes"]))


def _meaning(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a declaration that decide the results of a trial, apart from its code."""
    labels = ("code", "source", "includes", "name", "path", "kind", "movable")
    found = {key: value for key, value in data.items() if key not in labels}
    found["where"] = [{key: value for key, value in rule.items() if key != "text"} for rule in data["where"]]
    found["reference"] = {key: value for key, value in data["reference"].items() if key not in labels}
    return found


def _argument_changes(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[str]:
    if len(before) != len(after):
        return [f"args had {len(before)} entries, and has {len(after)}"]
    pairs = [(_argument_text(one), _argument_text(other)) for one, other in zip(before, after, strict=True)]
    found = [f"args[{at}] was {one}, is {other}" for at, (one, other) in enumerate(pairs) if one != other]
    if not found and before != after:
        found = [
            f"the values of args[{at}] ({one['name']}) are drawn otherwise"
            for at, (one, other) in enumerate(zip(before, after, strict=True)) if one != other
        ]  # fmt: skip
    return found


def _argument_text(one: Mapping[str, Any]) -> str:
    if "scalar" in one:
        return f"{one['name']} = {one['value']}"
    role = "" if one["role"] == "input" else f"{one['role']} "
    return f"{role}{one['name']} {one['dtype']}[{'x'.join(map(str, one['shape']))}]"
