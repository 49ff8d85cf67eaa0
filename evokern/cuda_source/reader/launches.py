"""Functions that find kernel launches and allocations in host code, with the expressions for their extents."""

from __future__ import annotations

from collections.abc import Iterator

from evokern.cuda_source import preprocessor
from evokern.cuda_source.declarations import CppDeclaration
from evokern.cuda_source.reader.records import Allocation, LaunchSite
from evokern.cuda_source.source_file import SourceFile


def launches(unit: SourceFile) -> Iterator[LaunchSite]:
    """Yield all launches, written with ``<<<`` or with the runtime's launch functions."""
    tokens = unit.stream.tokens
    for index, token in enumerate(tokens):
        if token.text == "<<<":
            close = next((i for i in range(index, len(tokens)) if tokens[i].text in (">>>", ";")), index)
            kernel, template = _launched(unit, index - 1)
            if tokens[close].text != ">>>" or not kernel:
                continue
            setting = [unit.stream.source(*part) for part in unit.stream.split_commas(index + 1, close - 1)]
            arguments = unit.arguments(close + 1)
        elif token.text in ("cudaLaunchKernel", "cudaLaunchCooperativeKernel") and index + 1 in unit.stream.partner:
            parts = unit.arguments(index + 1)
            if len(parts) < 4:
                continue
            kernel, template = _launched(unit, parts[0][1])
            written = [unit.stream.source(*part) for part in parts]
            setting, arguments = [written[1], written[2], *written[4:6]], []
        else:
            continue
        setting += ["1", "1", "0", "0"][len(setting) :]
        owner = next((leaf for leaf in unit.leaves if leaf.first <= index <= leaf.last), None)
        yield LaunchSite(
            kernel=kernel,
            template_arguments=template,
            grid=setting[0],
            block=setting[1],
            shared=setting[2],
            stream=setting[3],
            arguments=tuple(unit.stream.source(*part) for part in arguments),
            function=owner.names[0] if owner and owner.names else "",
            line=unit.line(index),
            definitions=_definitions_for(unit, owner, index, " ".join([*setting[:3], template])),
            file=unit.name,
        )


_ALLOCATING = frozenset(("cudaMalloc", "cudaMallocManaged", "cudaMallocAsync", "cudaMallocFromPoolAsync"))
_CONTAINERS = frozenset(("device_vector", "universal_vector"))


def allocations(unit: SourceFile) -> Iterator[Allocation]:
    """Yield the allocations of GPU memory: the runtime's functions, and Thrust's vectors."""
    tokens, partner = unit.stream.tokens, unit.stream.partner
    for index, token in enumerate(tokens):
        if token.text in _ALLOCATING and index + 1 in partner:
            parts = unit.arguments(index + 1)
            if len(parts) < 2 or tokens[parts[0][1]].kind != "word":
                continue
            name, size, in_bytes = tokens[parts[0][1]].text, parts[1], True
        elif token.text in _CONTAINERS and index + 1 < len(tokens) and tokens[index + 1].text == "<":
            name_at = unit.stream.skip_angles(index + 1, len(tokens))
            if name_at is None or tokens[name_at].kind != "word" or tokens[name_at + 1].text not in ("(", "{"):
                continue
            parts = unit.arguments(name_at + 1)
            if not parts:
                continue
            name, size, in_bytes = tokens[name_at].text, parts[0], False
        else:
            continue
        owner = next((leaf for leaf in unit.leaves if leaf.first <= index <= leaf.last), None)
        text = unit.stream.source(*size)
        yield Allocation(
            name=name,
            size=text,
            in_bytes=in_bytes,
            function=owner.names[0] if owner and owner.names else "",
            line=unit.line(index),
            definitions=_definitions_for(unit, owner, index, text),
            file=unit.name,
        )


def _launched(unit: SourceFile, last: int) -> tuple[str, str]:
    """Return the kernel name and template arguments that end at a token."""
    tokens = unit.stream.tokens
    while last > 0 and tokens[last].text == ")":
        last -= 1
    if tokens[last].kind == "word":
        return tokens[last].text, ""
    for opener in range(last, max(last - 200, -1), -1):
        if tokens[opener].text == "<" and unit.stream.skip_angles(opener, last + 1) == last + 1:
            return tokens[opener - 1].text, unit.stream.source(opener + 1, last - 1)
        if tokens[opener].text in (";", "{", "}"):
            break
    return "", ""


def _declared_together(unit: SourceFile, index: int) -> Iterator[int]:
    """Yield the indices of the names in `dim3 grid(…), block(…)`, starting at the first."""
    tokens, partner = unit.stream.tokens, unit.stream.partner
    while tokens[index].kind == "word" and tokens[index + 1].text in ("(", "{") and index + 1 in partner:
        yield index
        comma = partner[index + 1] + 1
        if comma + 2 >= len(tokens) or tokens[comma].text != ",":
            return
        index = comma + 1


def _definitions_for(
    unit: SourceFile, owner: CppDeclaration | None, before: int, expressions: str
) -> tuple[tuple[str, str], ...]:
    """Return the initialisers of local variables used in a launch, each before its first use."""
    if owner is None or owner.body is None:
        return ()
    tokens = unit.stream.tokens
    known: dict[str, str] = {}
    for index in range(owner.body[0] + 1, before - 1):
        if tokens[index].kind != "word" or tokens[index - 1].kind not in ("word", "punct"):
            continue
        typed = tokens[index - 1].kind == "word" and tokens[index - 1].text not in ("return", "else", "case", "goto")
        following = tokens[index + 1].text
        if following in ("(", "{") and typed and index + 1 in unit.stream.partner and tokens[index - 1].text != "new":
            for name in _declared_together(unit, index):
                inner = unit.stream.source(name + 2, unit.stream.partner[name + 1] - 1)
                known[tokens[name].text] = f"{tokens[index - 1].text}({inner})"
        elif following == "=":
            end = index + 2
            while end < before and tokens[end].text not in (";", ","):
                end = unit.stream.partner.get(end, end) + 1
            known[tokens[index].text] = unit.stream.source(index + 2, end - 1)
    wanted: dict[str, str] = {}
    waiting = [expressions]
    while waiting:
        for word in preprocessor.words(waiting.pop()):
            if word in known and word not in wanted:
                wanted[word] = known[word]
                waiting.append(known[word])
    return tuple(sorted(wanted.items(), key=lambda item: list(known).index(item[0])))
