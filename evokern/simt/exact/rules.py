"""Rules of exact arithmetic: how each instruction changes the shadow of its results."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from evokern.ptx.instruction_set import Operation, data_type
from evokern.ptx.program import PtxProgram
from evokern.ptx.register_accesses import registers_accessed
from evokern.ptx.syntax import TYPE_BYTES, Instruction, Register, Vector
from evokern.simt.arrays import Action, Array
from evokern.simt.control_flow.loops import read_unwritten
from evokern.simt.exact import field
from evokern.simt.exact.field import BITS, NO_RULE, Value
from evokern.simt.exact.functions import FUNCTIONS, arguments, marked_function
from evokern.simt.exact.matrix_rules import MATRIX_RULES, bind_products
from evokern.simt.exact.memory_rules import MEMORY_RULES, is_argument
from evokern.simt.exact.move_rules import MOVE_RULES, Rule, bits_of, move_bytes, raw, sources_of, without_rule
from evokern.simt.exact.plane import BYTES, HALVES, UNITS, Carriers, Key, Name, Site
from evokern.simt.operations.matrix_ops import items_of

FLOATS = ("f32", "f64", *HALVES, "f16x2", "bf16x2")
_TO_INTEGER = ("rni", "rzi", "rmi", "rpi")


def bind_rules(sites: list[Site]) -> list[Action]:
    """Return the steps that update the shadow for one instruction, or for independent ones that run as a group."""
    if len(sites) > 1 and (sites[0].i.opcode == "mma" or sites[0].i.has("mma")):
        return bind_products(sites)
    steps = [_bind_rule(site) for site in sites]
    return [step for step in steps if step is not None]


def _rule_of(operation: Operation) -> Rule | None:
    return RULES.get((operation.opcode, operation.family)) or RULES.get((operation.opcode, "*"))


@lru_cache(maxsize=16)
def carriers(program: PtxProgram) -> Carriers:
    """Return the instructions that may access a shadow, and the registers that may have one; others are addresses."""
    moves: dict[int, tuple[set[Name], set[Name]]] = {}
    found, names = set[int](), set[Name]()
    for number, (item, operation, owner) in enumerate(
        zip(program.instructions, program.operations, program.owners, strict=True)
    ):
        read, written = ({(owner.number, one) for one in each} for each in registers_accessed(item, operation))
        rule = _rule_of(operation)
        if (rule is None and operation.kind == "lanes") or rule in _CARRY or (rule is _convert and _to_integer(item)):
            moves[number] = read, written
        elif rule is raw or (rule is MEMORY_RULES["ld", "*"] and is_argument(owner, item)):
            moves[number] = set(), written
        elif rule is not None or (operation.kind != "control" and operation.results):
            found.add(number)
            names |= written
            if item.opcode == "mma" or item.has("mma", "mma_async"):
                factors = [one for one in item.operands if item.opcode == "mma" or isinstance(one, Vector)]
                registers = [one for operand in factors for one in items_of(operand) if isinstance(one, Register)]
                names |= {(owner.number, one.name) for one in registers}
    size = -1
    while size < len(names):
        size = len(names)
        for read, written in moves.values():
            if not names.isdisjoint(read):
                names |= written
    routines = program.routines

    def rows(registers: set[Name]) -> frozenset[Key]:
        slots = (routines[routine].slots.get(name, ("pred", 0)) for routine, name in registers & names)
        return frozenset((slot[0], slot[1]) for slot in slots if slot[0] != "pred")

    known = {number: (rows(written), rows(read)) for number, (read, written) in moves.items()
             if not names.isdisjoint(written)}  # fmt: skip
    slots = routines[0].slots
    unwritten = {
        slots[name][:2]: number
        for name, number in read_unwritten(program).items()
        if (0, name) in names and slots[name][0] in UNITS  # a predicate has no residues
    }
    return Carriers({**dict.fromkeys(found), **known}, frozenset(names), unwritten)


def _bind_rule(site: Site) -> Action | None:
    """Return the step that updates the shadow for an instruction; None if nothing changes."""
    rule = _rule_of(site.operation)
    if rule is not None:
        return rule(site)
    if site.operation.kind == "control" or not site.operation.results:
        return None
    return bits_of(site) if site.operation.kind == "lanes" else without_rule(site)


# ---- arithmetic


def _arithmetic(site: Site) -> Action | None:
    i, kind = site.i, data_type(site.i) or ""
    results = i.operands[0]
    write = site.writer(results, kind)
    if kind not in FLOATS or i.has("sat", "relu", "xorsign") or i.opcode not in _COMPUTE:
        return lambda: write(site.bad_value(NO_RULE))
    read = [site.reader(operand, kind) for operand in i.operands[1:]]
    compute = _COMPUTE[i.opcode]
    return lambda: write(field.lost(compute(site, *[one() for one in read]), site.number))


_COMPUTE: dict[str, Callable[..., Value]] = {
    "add": lambda site, x, y: field.add(x, y),
    "sub": lambda site, x, y: field.add(x, field.negate(y)),
    "mul": lambda site, x, y: field.multiply(x, y),
    "fma": lambda site, x, y, z: field.fma(x, y, z),
    "mad": lambda site, x, y, z: field.fma(x, y, z),
    "neg": lambda site, x: field.negate(x),
    "rcp": lambda site, x: field.reciprocal(x, site.number),
    "div": lambda site, x, y: field.multiply(x, field.reciprocal(y, site.number)),
    "sqrt": lambda site, x: field.root(x),
    "rsqrt": lambda site, x: field.reciprocal(field.root(x), site.number),
}


def _function(site: Site) -> Action | None:
    """Bind a function: an instruction, or the mark with a function's number of `evokern_functions.h`."""
    i, kind, name, operand = site.i, data_type(site.i) or "", site.i.opcode, site.i.operands[1]
    if name == "slct":
        marked, kind, operand = marked_function(i), i.modifiers[0], i.operands[2]
        if marked is None:
            return bits_of(site)
        name = marked
    write = site.writer(i.operands[0], kind)
    if kind not in FLOATS:
        return lambda: write(site.bad_value(NO_RULE))
    read, bits, base = site.reader(operand, kind), site.bits(operand, kind), kind.removesuffix("x2")
    if name == "ex2":
        return lambda: write(field.exponential(read(), field.floats(base, bits()) < field.VANISHES, site.number))
    compute, known = FUNCTIONS[name], site.plane.exact.arguments

    def run() -> None:
        x, mask = read(), site.active().mask
        known.update(arguments(name, Value(x.p[..., mask], x.q)))
        write(compute(x, site.number))

    return run


def _absolute(site: Site) -> Action | None:
    kind = data_type(site.i) or ""
    operand, write = site.i.operands[1], site.writer(site.i.operands[0], kind)
    if kind not in FLOATS:
        return lambda: write(site.bad_value(NO_RULE))
    read, bits, base = site.reader(operand, kind), site.bits(operand, kind), kind.removesuffix("x2")

    def run() -> None:
        x, negative = read(), np.signbit(field.floats(base, bits()))
        other = field.negate(x)
        write(Value(np.where(negative, other.p, x.p), np.where(negative, other.q, x.q), x.bad))

    return run


def _extreme(site: Site) -> Action | None:
    """Bind minimum and maximum: the real bits decide which value the result carries.

    Values that differ may be equal after rounding. All lanes must then choose the same one, so the shadow decides.
    """
    i, kind = site.i, data_type(site.i) or ""
    if kind not in FLOATS or len(i.operands) != 3 or i.has("xorsign"):
        return without_rule(site)
    base, pair = kind.removesuffix("x2"), kind.endswith("x2")
    count = 1 if kind in HALVES else 2
    bits = [site.bits(operand, kind) for operand in i.operands[1:]]
    largest = i.opcode == "max"

    def chosen(x: Array, y: Array) -> Array:
        a, b = (field.floats(base, one()) for one in bits)
        first_wins = x >= y if pair or count == 1 else x[0] >= y[0]
        return np.where((a > b if largest else a < b) | np.isnan(b) | ((a == b) & first_wins), x, y)

    return site.carried(i.operands[0], i.operands[1:], count, chosen)


def _kinds(i: Instruction) -> list[str]:
    return [word for word in i.modifiers if word in TYPE_BYTES]


def _to_integer(i: Instruction) -> bool:
    return _kinds(i)[0][0] in "us"


def _convert(site: Site) -> Action | None:
    i = site.i
    kinds = _kinds(i)
    to, source = kinds[0], kinds[-1]
    target, origin = i.operands[0], i.operands[1]
    integral = _to_integer(i), source[0] in "us"
    if all(integral):
        least, wide = min(TYPE_BYTES[to], TYPE_BYTES[source]), max(TYPE_BYTES[to], 2)
        if i.has("sat") or (least == 1 and source == "s8"):
            return bits_of(site)
        return move_bytes(site, [(1, at) if at < least else None for at in range(wide)])
    if not any(integral) and i.has("sat", "relu"):
        return without_rule(site)
    if integral[0] or i.has("sat", "relu", *_TO_INTEGER):
        return bits_of(site)
    if integral[1]:
        return _from_integer(site, to, source)
    if not {to, source} <= {*FLOATS, "tf32", *(f"{one}x2" for one in BYTES)}:
        return without_rule(site)
    write = site.writer(target, to)
    if len(i.operands) == 3:
        high, low = (site.reader(operand, source) for operand in i.operands[1:])
        return lambda: write(_pair(low(), high()))
    read_one = site.reader(origin, source)
    return lambda: write(read_one())


def _pair(low: Value, high: Value) -> Value:
    p, q = (np.stack(np.broadcast_arrays(x, y)) for x, y in ((low.p, high.p), (low.q, high.q)))
    if low.bad is None and high.bad is None:
        return Value(p, q)
    none = np.zeros(1, np.uint64)
    bads = [np.broadcast_to(none if one.bad is None else one.bad, p.shape[1:]) for one in (low, high)]
    return Value(p, q, np.stack(bads))


def _from_integer(site: Site, to: str, source: str) -> Action | None:
    if to not in FLOATS:
        return without_rule(site)
    row, write = site.binder.src(site.i.operands[1], source), site.writer(site.i.operands[0], to)
    sources = sources_of(site)

    def run() -> None:
        value = field.integers(row.astype(np.int64))
        tainted = site.tainted(sources, BITS)
        bad = None if tainted is None else tainted & field.PAYLOAD
        write(Value(value.p, value.q, bad))

    return run


_CARRY = frozenset(MOVE_RULES.values()) - {raw}
"""Rules whose results have a shadow only if an operand has one."""
RULES: dict[tuple[str, str], Rule] = {
    **{(opcode, family): _arithmetic for opcode in _COMPUTE for family in ("float", "half", "packed")},
    ("copysign", "float"): _arithmetic,
    **{(opcode, family): _function for opcode in ("ex2", "lg2", "sin", "cos", "tanh") for family in ("float", "half")},
    ("slct", "*"): _function,
    **{("abs", family): _absolute for family in ("float", "half")},
    **{(opcode, family): _extreme for opcode in ("min", "max") for family in ("float", "half")},
    ("cvt", "*"): _convert,
    **MOVE_RULES,
    **MEMORY_RULES,
    **MATRIX_RULES,
}
"""(opcode, type family) → rule; instructions of lanes without one treat their operands as integers."""
