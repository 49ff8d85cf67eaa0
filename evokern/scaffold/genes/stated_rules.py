"""Turn conditions that a file states into a draft's constraints, divisors of fields, and fewer values of genes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from math import lcm

from evokern.scaffold.plan import Plan

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
