"""Genes on which the code at a source line, or the size of shared memory, may depend.

The kernel's functions show which macros and launch values a gene changes; a slice of the source shows which of these
reach the place (`evokern.cuda_source.reaching`). Too many genes are possible, too few are not intended.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from evokern.compile.records import NO_ENTRY
from evokern.cuda_source import preprocessor
from evokern.cuda_source.lexer import Token, TokenStream
from evokern.cuda_source.reaching import names_reaching
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.render import macros, read_source
from evokern.declaration.space import Space
from evokern.errors import KERNEL_CODE_EXCEPTIONS, EvokernError
from evokern.study.trial import Evaluation, Outcome, Trial

_ADDRESS_CHECKS = frozenset({"out_of_bounds", "misaligned"})
"""Checks that depend on the addresses of accesses, not on the values read or written."""
_POSITIONS = frozenset(
    {"threadIdx", "blockIdx", "blockDim", "gridDim", "asm", "extern", "this_grid", "this_thread_block", "this_cluster"}
)
"""Names whose values depend on the launch."""
_VALUES = 64
"""Values of a gene whose effects on macros and launches are compared."""


@dataclass(frozen=True)
class Cause:
    """Check and place at which a candidate failed."""

    check: str
    """Name of the check, the limit or the error."""
    file: str = ""
    """File of the source line; empty for the kernel's own source."""
    line: int | None = None
    """Source line, or None."""
    shared: bool = False
    """Whether the place is the declarations of shared memory."""
    entry: str = ""
    """Entry point that the source lacks, or empty."""
    inputs: str = ""
    """Kind of inputs on which outputs are outside the tolerance."""


def cause_of(evaluation: Evaluation) -> Cause | None:
    """Return the cause of a failure; None for a candidate that did not fail."""
    evidence, outcome = evaluation.evidence, evaluation.outcome
    if evaluation.passed_gate or outcome is Outcome.SLOW:
        return None
    finding = evidence.get("finding")
    if isinstance(finding, Mapping):
        return Cause(str(finding.get("kind")), str(finding.get("file") or ""), finding.get("line") or None)
    if outcome is Outcome.COMPILE_ERROR:
        absent = re.search(NO_ENTRY + " '(.*?)'", evaluation.reason)
        entry = absent[1] if absent else ""
        return Cause(outcome.value, str(evidence.get("file") or ""), evidence.get("line"), entry=entry)
    if outcome is Outcome.OVER_RESOURCES:
        shared = "shared" in str(evidence["constraint"])
        return Cause("shared memory" if shared else str(evidence["constraint"]), shared=shared)
    check = str(evidence.get("check") or evidence.get("error") or outcome.value)
    return Cause(check, inputs=str(evidence.get("input_set") or ""))


def shared_cause(trials: Iterable[Trial]) -> Cause | None:
    """Return the cause that all evaluated trials share, or None."""
    causes = {cause_of(trial.evaluation) for trial in trials if trial.outcome.evaluated}
    return causes.pop() if len(causes) == 1 else None


def genes_reaching(kernel: Kernel, space: Space, problem: Problem, cause: Cause) -> frozenset[str]:
    """Return the genes on which a cause may depend; all genes if its place is unknown."""
    everything = frozenset(gene.name for gene in space.genes)
    if cause.line is None and not (cause.shared or cause.entry):
        return everything
    try:
        text, headers = read_source(kernel)
        if cause.entry:
            named = any(cause.entry.partition("<")[0] in one for one in (text, *headers.values()))
            return everything if named else _genes_of_entries(kernel, space, problem)
        by_name, always = _changes(kernel, space, problem)
    except EvokernError:
        return everything
    base = space.first_feasible() or space.default()
    entries = frozenset(launch.entry for launch in launches_of(kernel, base, problem))
    texts = {**headers, kernel.source: text}
    names = names_reaching(
        texts,
        cause.file or kernel.source,
        cause.line,
        entries=entries,
        fixed=frozenset(by_name) | _POSITIONS,
        addresses=cause.check in _ADDRESS_CHECKS,
        compile_time=cause.check == Outcome.COMPILE_ERROR.value or cause.shared,
    )
    if names is None:
        return everything
    return frozenset(always).union(*(by_name.get(name, ()) for name in names)) & everything


def genes_acting_alone(kernel: Kernel, space: Space, problem: Problem) -> frozenset[str]:
    """Return the genes that the source uses only as the bound of a loop, or to compute a thread's position.

    Whether a candidate is right may depend on the value of such a gene, but hardly on the values of two of them. All
    other genes may be parts of one condition, in which only one pair of values is right.
    """
    try:
        by_name, always = _changes(kernel, space, problem)
        text, headers = read_source(kernel)
    except EvokernError:
        return frozenset()
    names = {name for name in by_name if name not in _POSITIONS or name in _EXTENTS}
    deciding = {name for one in (text, *headers.values()) for name in _names_in_conditions(one, names)}
    joint = always.union(*(by_name[name] for name in deciding))
    return frozenset(gene.name for gene in space.genes) - joint


_EXTENTS = frozenset({"blockDim", "gridDim"})
_INDICES = frozenset({"threadIdx", "blockIdx"})
_CHOOSING = frozenset({"==", "!=", "?", "&&", "||", "!", "%", "/", "&", "|", "^", "<<", ">>"})
_COMPARING = _CHOOSING | {"<", ">", "<=", ">="}


def _names_in_conditions(text: str, names: Collection[str]) -> set[str]:
    """Return the names that a text uses outside the bounds of loops and the positions of threads."""
    stream, found = TokenStream(text), set[str]()
    part: list[Token] = []
    at = 0
    while at < len(stream.tokens):
        token = stream.tokens[at]
        if token.kind == "directive":
            found |= set() if token.directive == "pragma" else preprocessor.words(token.text) & set(names)
        elif token.text in ("for", "__launch_bounds__") and at + 1 in stream.partner:
            end = stream.partner[at + 1]
            found |= _used(stream.tokens[at + 2 : end], names, _CHOOSING)
            at = end
        elif token.text in (";", "{", "}"):
            indexing = any(one.text in _INDICES for one in part)
            found |= _used(part, names, _COMPARING if indexing else None)
            part = []
        else:
            part.append(token)
        at += 1
    return found


def _used(tokens: Sequence[Token], names: Collection[str], choosing: Collection[str] | None) -> set[str]:
    """Return the names among tokens if one of the tokens chooses between values; None if each token does."""
    words = {token.text for token in tokens}
    return words & set(names) if choosing is None or words & set(choosing) else set()


def _changes(kernel: Kernel, space: Space, problem: Problem) -> tuple[dict[str, set[str]], set[str]]:
    """Return name in the source → genes that change it, and the genes that have other effects.

    Raises:
        EvokernError: a function in `kernel.py` raised.
    """
    base = space.first_feasible() or space.default()
    before = _effects(kernel, base, problem)
    by_name: dict[str, set[str]] = {}
    always: set[str] = set()
    for gene in space.genes:
        for value in islice(gene.values, _VALUES):
            config = space.canonical({**base, gene.name: value})
            try:
                after = _effects(kernel, config, problem)
            except EvokernError:
                always.add(gene.name)
                continue
            for name in before.keys() | after.keys():
                if before.get(name) != after.get(name):
                    by_name.setdefault(name, set()).add(gene.name)
    always |= by_name.pop("", set())
    return by_name, always


def _genes_of_entries(kernel: Kernel, space: Space, problem: Problem) -> frozenset[str]:
    """Return the genes that change which entry points a candidate launches."""
    base = space.first_feasible() or space.default()
    entries = [launch.entry for launch in launches_of(kernel, base, problem)]
    found = set()
    for gene in space.genes:
        for value in islice(gene.values, _VALUES):
            config = space.canonical({**base, gene.name: value})
            if [launch.entry for launch in launches_of(kernel, config, problem)] != entries:
                found.add(gene.name)
    return frozenset(found)


def _effects(kernel: Kernel, config: Config, problem: Problem) -> dict[str, Any]:
    """Return what a configuration passes to the source: macros, the launch for built-in variables, and "" for the rest.

    Raises:
        EvokernError: a function in `kernel.py` raised.
    """
    launches = launches_of(kernel, config, problem)
    shape = [(launch.grid, launch.block, launch.shared_bytes, launch.cluster) for launch in launches]
    try:
        tensors = dict(kernel.workload.tensors(problem, config))
    except KERNEL_CODE_EXCEPTIONS:
        tensors = {}
    rest = [(launch.entry, launch.args) for launch in launches], tensors, kernel.architecture_suffix(config)
    return {**macros(kernel, config, problem), **dict.fromkeys(_POSITIONS, shape), "": rest}
