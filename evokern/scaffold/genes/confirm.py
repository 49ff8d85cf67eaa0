"""Conditions that a file states about a draft's genes, and runs that confirm their values.

Another value of a gene must not change the results.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from math import lcm
from typing import Any

import numpy as np

from evokern.declaration.header.text import NAMESPACE
from evokern.errors import EvokernError
from evokern.scaffold.plan import BLOCK_DOC, DraftGene, DraftTensor, Plan
from evokern.scaffold.probe import Prober, Run, numpy_type
from evokern.scaffold.problems import checked, multiples

MOST_TRIED = 4096
"""Maximum number of combinations for which a condition is evaluated."""
_DIVIDES = re.compile(r"divides\((.+), ([^,]+)\)")


def with_rules(plan: Plan, conditions: Iterable[str], reason: str) -> Plan:
    """Return a plan that obeys conditions of the file.

    A condition on one gene removes values. A condition on several genes, or on genes and fields, becomes a constraint
    unless all values obey it. A divisor of a field becomes its `multiple_of`.

    Args:
        plan: the draft's plan.
        conditions: Python texts over `c` and `p`.
        reason: where the file states them.
    """
    for text in conditions:
        for one in _conjuncts(text):
            plan = _with_rule(plan, one, reason)
    return plan


def whole_quotients(texts: Iterable[str]) -> Iterator[str]:
    """Yield conditions under which quotients of genes are whole, such as `c.BLOCK_M % c.WARPS == 0`.

    Args:
        texts: Python texts over genes.
    """
    for text in texts:
        for node in ast.walk(ast.parse(text.strip(), mode="eval")):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
                left, right = ast.unparse(node.left), ast.unparse(node.right)
                if "c." in left and "c." in right and "p." not in left + right:
                    yield f"({left}) % ({right}) == 0"


def holds(plan: Plan, condition: str, config: Mapping[str, int | str], problem: Mapping[str, int]) -> bool:
    """Return whether a configuration obeys a condition; one that has no value holds."""
    if match := _DIVIDES.fullmatch(condition):
        condition = f"({match[2]}) % ({match[1]}) == 0"
    try:
        return bool(plan.value(condition, config, problem))
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return True


def _with_rule(plan: Plan, condition: str, reason: str) -> Plan:
    genes = [g for g in plan.genes if re.search(rf"\bc\.{re.escape(g.name)}\b", condition)]
    fields = [f for f in plan.fields if re.search(rf"\bp\.{re.escape(f.name)}\b", condition)]
    if not genes:
        divisor = re.fullmatch(r"divides\(([\d *()]+), p\.(\w+)\)", condition)
        if divisor is None or fields[0].choices:
            return plan
        unit = lcm(max(1, fields[0].multiple_of), plan.value(divisor[1], {}, {}))
        return replace(plan, fields=tuple(replace(f, multiple_of=unit) if f is fields[0] else f for f in plan.fields))
    if not fields and len(genes) == 1:
        gene = genes[0]
        kept = tuple(v for v in gene.values if v == gene.default or holds(plan, condition, {gene.name: v}, {}))
        return replace(plan, genes=tuple(replace(g, values=kept) if g is gene else g for g in plan.genes))
    if not fields:
        tried = islice(product(*(gene.values for gene in genes)), MOST_TRIED)
        if all(holds(plan, condition, {g.name: v for g, v in zip(genes, values, strict=True)}, {}) for values in tried):
            return plan
    if any(known == condition for _, known, _ in plan.constraints):
        return plan
    label = "_".join([*(g.name.lower() for g in genes), *(f.name.lower() for f in fields)])
    taken = {name for name, _, _ in plan.constraints}
    label = next(n for n in (label, *(f"{label}_{at}" for at in range(2, 99))) if n not in taken)
    return replace(plan, constraints=(*plan.constraints, (label, condition, reason)))


def _conjuncts(text: str) -> Iterator[str]:
    """Yield the parts of a condition, with divisibility written as `divides(UNIT, NUMBER)`."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    for part in parts:
        match part:
            case ast.Compare(
                left=ast.BinOp(op=ast.Mod(), left=number, right=unit),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value=0)],
            ):
                yield f"divides({ast.unparse(unit)}, {ast.unparse(number)})"
            case _:
                yield ast.unparse(part)


RACES = ("shared_race", "global_race")
"""Findings that follow from the code, and not from the size of a buffer, which may be a guess."""
_ALLOWED = {"f32": 1e-3, "f64": 1e-6, "f16": 3e-2, "bf16": 6e-2}
"""Difference between two ways of rounding, relative to the largest element."""


def confirm_genes(
    prober: Prober, plan: Plan, tensors: Sequence[DraftTensor], problem: Mapping[str, int]
) -> tuple[Plan, tuple[DraftGene, ...]]:
    """Drop values for which the kernel fails or computes something else.

    A value that the file states is kept, and the draft says what the run shows. A race that the file's own values
    have too says nothing about a value.

    Args:
        prober: runs the kernel.
        plan: launch and genes of the draft.
        tensors: its buffers.
        problem: a small problem.

    Returns:
        The plan, and the genes that it lost because no other value is right.
    """
    return _Confirmation(prober, plan, tensors, problem).result()


class _Confirmation:
    def __init__(self, prober: Prober, plan: Plan, tensors: Sequence[DraftTensor], problem: Mapping[str, int]) -> None:
        self.prober, self.plan, self.tensors, self.problem = prober, plan, tensors, problem
        self.base: dict[tuple[tuple[str, int], ...], Run] = {}

    def result(self) -> tuple[Plan, tuple[DraftGene, ...]]:
        """Return the plan, and the genes that it lost."""
        genes, fixed = [], []
        for gene in self.plan.genes:
            tried = [value for value in gene.values if value != gene.default]
            faults = {value: self._fault({gene.name: value}) for value in tried}
            wrong = {value: why for value, why in faults.items() if why}
            if wrong:
                shown = f"with {gene.name} = {', '.join(map(str, wrong))}, {next(iter(wrong.values()))}"
                if not gene.why and gene.doc != BLOCK_DOC:  # the file states the values
                    gene = replace(gene, why=shown)
                elif len(wrong) == len(tried):
                    fixed.append(replace(gene, why=shown))
                    continue
                else:
                    gene = replace(gene, values=tuple(value for value in gene.values if value not in wrong))
            genes.append(gene)
        return _without(replace(self.plan, genes=tuple(genes)), fixed), tuple(fixed)

    def _fault(self, changes: Mapping[str, int | str]) -> str:
        """Return what is wrong with values of genes while the others have their defaults; empty if nothing is."""
        if self.prober.exhausted:
            return ""
        plan = self.plan
        config = {**plan.defaults, **changes}
        changed = replace(plan, genes=tuple(replace(g, default=config[g.name]) for g in plan.genes))
        units = {name: lcm(unit, multiples(changed)[name]) for name, unit in multiples(plan).items()}
        sizes = {name: -(-number // units[name]) * units[name] for name, number in self.problem.items()}
        if not all(holds(plan, text, config, sizes) for _, text, _ in plan.constraints):
            return ""  # other genes must change too
        run, key = self._run(changed, sizes), tuple(sizes.items())
        if key not in self.base:
            self.base[key] = self._run(plan, sizes)
        base = self.base[key]
        if not run.ok:
            raced = [one.finding.kind for one in (base, run) if one.finding and one.finding.kind in RACES]
            return "" if len(raced) == 2 else run.why
        return "the results differ" if base.ok and not _agree(base, run, self.tensors) else ""

    def _run(self, plan: Plan, problem: Mapping[str, int]) -> Run:
        try:
            return checked(self.prober, plan, self.tensors, problem, keep=True)
        except (EvokernError, ArithmeticError, AttributeError) as error:
            return Run({}, str(error))


def with_numbers(tensors: Sequence[DraftTensor], fixed: Sequence[DraftGene]) -> tuple[DraftTensor, ...]:
    """Return buffers whose extents contain the numbers of genes that are fixed."""
    return tuple(replace(one, shape=tuple(_filled(axis, fixed) for axis in one.shape)) for one in tensors)


def _filled(text: str, fixed: Sequence[DraftGene]) -> str:
    numbers = {gene.name: str(gene.default) for gene in fixed}
    text = re.sub(r"\{c\.(\w+)\}", lambda found: numbers.get(found[1], found[0]), text)
    return re.sub(r"\bc\.(\w+)\b", lambda found: numbers.get(found[1], found[0]), text)


def without_constants(source: str, fixed: Sequence[DraftGene]) -> str:
    """Return device code in which constants that became fixed numbers have the file's value again."""
    for gene in fixed:
        if gene.as_ == "constexpr":
            source = re.sub(rf"\b{NAMESPACE}::{re.escape(gene.name)}\b", str(gene.default), source)
    return source


def _without(plan: Plan, fixed: Sequence[DraftGene]) -> Plan:
    """Return a plan whose expressions contain the numbers of genes that are fixed."""
    if not fixed:
        return plan
    filled = plan.rewritten(lambda text: _filled(text, fixed))
    fewer = replace(filled, constraints=tuple(one for one in filled.constraints if "c." in one[1]))
    return with_rules(fewer, [text for _, text, _ in filled.constraints if "c." not in text], "")


def _agree(one: Run, other: Run, tensors: Sequence[DraftTensor]) -> bool:
    """Return whether two runs leave the same results."""
    for tensor in tensors:
        per_gene = any("c." in axis for axis in tensor.shape)  # such as one element per block
        if tensor.role in ("output", "inout") and not per_gene:
            texts = [(run.contents or {}).get(tensor.name) for run in (one, other)]
            if texts[0] is None or texts[1] is None or len(texts[0]) != len(texts[1]):
                return False
            first, second = (_numbers(text, tensor.dtype) for text in texts)
            largest = np.max(np.abs(first), initial=0.0, where=np.isfinite(first))
            allowed = _ALLOWED.get(tensor.dtype, 0.0) * float(largest)
            if not np.allclose(first, second, rtol=0, atol=allowed, equal_nan=True):
                return False
    return True


def _numbers(data: Any, dtype: str) -> Any:
    raw = np.frombuffer(bytes(data), numpy_type(dtype))
    return (raw.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else raw.astype(np.float64)
