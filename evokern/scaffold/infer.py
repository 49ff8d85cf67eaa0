"""Find the level of problem sizes and the grid at which runs explain every buffer of a drafted kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from math import prod

from evokern.scaffold.evidence import LEVELS, MODEST, Evidence, evidence, levels, obeys, problems_at
from evokern.scaffold.plan import BLOCK_DOC, Plan
from evokern.scaffold.probe import FEW_THREADS, Prober


def find_level_and_grid(
    prober: Prober, plan: Plan, *, known_launch: bool = False, whole: bool = False
) -> tuple[Plan, Evidence | None]:
    """Find the level at which the runs explain every buffer, and the grid if it is unknown.

    Args:
        prober: runs the plan.
        plan: launch; grid and block may be missing.
        known_launch: whether grid and block are certain, so that no others are tried.
        whole: whether a certain launch should also write every buffer that it writes as a whole.
    """
    best: Evidence | None = None
    if plan.grid and plan.block:
        for level in levels(plan):
            if not all(obeys(plan, problem) for problem in problems_at(plan.fields, level, len(plan.grid) < 2)):
                continue
            if best is not None and (
                prober.exhausted or (level > MODEST and _enough(best, known_launch and not whole))
            ):
                break
            few = best is not None and best.few
            found = evidence(prober, plan, level, 3 if level <= MODEST else 2, few=few)
            if best is None or found.rank > best.rank:
                best = found
            if found.exact and (found.updates if known_launch else found.allows_draft and found.plain):
                break
        if whole and known_launch and best is not None and best.ok and not best.updates:
            equal = _with_equal_fields(prober, plan)
            if equal is not None:
                return equal[0], _with_indices(prober, *equal)
        if best is not None and (best.allows_draft or (known_launch and best.ok)):
            return plan, _with_indices(prober, plan, best)
        if known_launch:
            return plan, None
    tried = _by_search(prober, plan)
    if tried is not None and (best is None or tried[1].rank > best.rank):
        return tried[0], _with_indices(prober, *tried)
    return plan, best if best is not None and best.ok else None


def _with_equal_fields(prober: Prober, plan: Plan) -> tuple[Plan, Evidence] | None:
    """Return the plan with one field for two of the grid if the kernel fills its outputs only if they are equal."""
    fields = [f.name for f in plan.fields if not f.choices and re.search(rf"\bp\.{f.name}\b", " ".join(plan.grid))]
    for kept, gone in combinations(fields, 2):
        why = f"it is also {gone}, because runs with different values leave elements unwritten"
        equal = replace(
            plan.rewritten(lambda text, k=kept, g=gone: re.sub(rf"\bp\.{g}\b", f"p.{k}", text)),  # type: ignore[misc]
            fields=tuple(replace(f, why=why) if f.name == kept else f for f in plan.fields if f.name != gone),
        )
        for level in LEVELS:
            found = evidence(prober, equal, level, 3 if level <= MODEST else 2)
            if found.exact and found.updates and found.plain:
                return equal, found
    return None


def _enough(best: Evidence, known_launch: bool) -> bool:
    """Return whether larger multiples are unnecessary: a draft is possible, or a part always stays unwritten."""
    return (known_launch and best.explained) or (best.allows_draft and best.plain)


def _with_indices(prober: Prober, plan: Plan, found: Evidence) -> Evidence:
    """Record whether larger integers in the inputs change the accessed elements."""
    whole = [
        a.name for a in plan.arguments if a.is_tensor and a.dtype[0] in "iu" and found.runs[0].touches[a.name].read
    ]
    if not whole:
        return found
    other = prober.run(plan, found.problems[0], limit=2)
    first = found.runs[0].touches
    return replace(found, indexed=frozenset(n for n, t in other.touches.items() if n in first and t != first[n]))


def with_leading_extents(prober: Prober, plan: Plan) -> Plan:
    """Return the plan without fields for distances between rows, such as `lda`, which a run shows to be row lengths."""
    launch = " ".join([*plan.grid, *plan.block, *plan.macros.values()])
    distances = [
        a.expression[2:]
        for a in plan.arguments
        if a.expression and re.fullmatch(r"p\.(?:LD\w?|(?:\w+_)?(?:STRIDE|PITCH|LD)\w?)", a.expression)
        and not re.search(rf"{re.escape(a.expression)}\b", launch)
    ]  # fmt: skip
    if not distances or not plan.grid or not plan.block:
        return plan
    (problem,) = problems_at(plan.fields, 64, few=True)[:1]
    problem |= {name: 64 * (11 + at) for at, name in enumerate(distances)}
    run = prober.run(plan, problem)
    sizes = {value: name for name, value in problem.items() if name not in distances}
    found: dict[str, str] = {}
    for touch in run.touches.values():
        for name in distances:
            rows, last = divmod(touch.extent - 1, problem[name])
            if touch.extent and rows + 1 in sizes and last + 1 in sizes:
                found.setdefault(f"p.{name}", f"p.{sizes[last + 1]}")
    arguments = tuple(replace(a, expression=found.get(a.expression or "", a.expression)) for a in plan.arguments)
    return replace(
        plan, arguments=arguments, fields=tuple(field for field in plan.fields if f"p.{field.name}" not in found)
    )


def with_read_constants(plan: Plan, found: Evidence) -> Plan:
    """Return the plan without unused `__constant__` arrays."""
    read = tuple(a for a in plan.constants if any(run.touches[a.name].read for run in found.runs))
    return replace(plan, constants=read)


def _by_search(prober: Prober, plan: Plan) -> tuple[Plan, Evidence] | None:
    """Find a grid that explains every buffer, preferably the one with the fewest blocks that writes everything."""
    best: tuple[tuple[object, ...], Plan, Evidence] | None = None
    # Use small blocks, so that a grid over the wrong field cannot cover the buffer with a single block.
    least = 32 if len(plan.block) < 2 else 8
    small = plan.defaults
    small |= {gene.name: least for gene in plan.genes if gene.doc == BLOCK_DOC and f"c.{gene.name}" in plan.block}
    for level in (1, 32, 128, *levels(plan)[len(LEVELS) :]):
        for group in _grids(plan):
            for grid in group:
                if prober.exhausted:
                    break
                trial = replace(plan, grid=grid)
                found = evidence(prober, trial, level, 2, small, FEW_THREADS)
                if not found.ok:
                    continue
                blocks = sum(prod(trial.extents(grid, small, problem)) for problem in found.problems)
                rank = (*found.rank[:-1], -blocks)
                if best is None or rank > best[0]:
                    best = rank, trial, found
            if best is not None and best[2].exact and best[2].allows_draft and best[2].plain:
                break
        if best is not None and best[2].allows_draft and best[2].plain:
            break
    if best is None:
        return None
    final = evidence(prober, best[1], best[2].level)
    return best[1], max(final, best[2], key=lambda one: one.rank)


def _grids(plan: Plan) -> Iterator[list[tuple[str, ...]]]:
    """Yield groups of grids to try: a thread, tile or block per element of a field or of a product of fields.

    A later group is tried only if no grid of an earlier group is usable.
    """
    fields = [f"p.{field.name}" for field in plan.fields]
    count = len(fields)
    products = [" * ".join(fields[at : at + size]) for size in range(1, count + 1) for at in range(count - size + 1)]
    genes = [f"c.{gene.name}" for gene in plan.genes if isinstance(gene.default, int) and gene.default > 1]
    if len(plan.block) < 2:
        (block,) = plan.block
        wide = [f"({block} * {more})" for more in (*(gene for gene in genes if gene not in block), 2, 4, 8)]
        yield [(f"ceil_div({amount}, {unit})",) for amount in fields for unit in (block, *wide)]
        for amount in products[len(fields) :]:
            yield [(f"ceil_div({amount}, {unit})",) for unit in (block, *wide)]
        for amount in products:
            yield [(amount,), *((f"ceil_div({amount}, {gene})",) for gene in genes if gene != block)]
        return
    choices: list[list[str]] = []
    for extent in plan.block:
        units = [extent, *(gene for gene in genes if gene != extent)][:4]
        choices.append([f"ceil_div({name}, {unit})" for name in fields for unit in units if unit != "1"] + fields)
    divided = [{text: text.partition("p.")[2].partition(",")[0] for text in texts} for texts in choices]
    yield [
        chosen
        for chosen in product(*choices)
        if len(fields) == 1 or len({one[text] for one, text in zip(divided, chosen, strict=True)}) == len(chosen)
    ]
