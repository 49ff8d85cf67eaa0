"""The parity kernels: their headers, inputs that meet edges and each other, and the comparison of two outputs.

A kernel under `data/parity` fills its first argument with rows, one per instruction or feature, each as long as the
grid has threads (times a width). The names of the rows are the strings its macros are called with. The header says:

    // launch: grid=8 block=256
    // args: out=f32 a=f32:0 b=f32:near*2 m=u32:zero
    // same: bitwise

with arguments as ``name=type:pattern*elements a thread`` (patterns: see `pattern`), and how two outputs must agree:

- ``bitwise``: the same bits;
- ``numbers``: the same bits, or both NaN: which one is not specified, and chips differ from operation to operation;
- ``converted``: the same, with the type that the row's name says (``rn.f16.f64`` gives an f16);
- ``bound TYPE``: within the ISA's bound of the approximation (`evokern.simt.numerics.ERROR_BOUNDS`);
- ``accumulation``: within `accumulation` of the tensor cores' order of summation;
- ``relative E``: within a relative error;
- ``printed``: the same text on standard output.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from paths import DATA

from evokern import simt
from evokern.compile.nvrtc import compile_program
from evokern.compile.records import Program
from evokern.simt import numerics

PARITY = DATA / "parity"
Array = np.ndarray[Any, Any]


# ------------------------------------------------------------------------------------------------- what a file declares


@dataclass(frozen=True)
class Argument:
    """One buffer of a parity kernel."""

    name: str
    kind: str
    """PTX type, as in `numerics.STORAGE`; decides patterns and comparison."""
    pattern: str
    """How it is filled; empty for the output."""
    width: int
    """Elements a thread, and for the output a row."""


@dataclass(frozen=True)
class Case:
    """One kernel with one set of inputs."""

    file: str
    entry: str
    variant: int
    threads: int
    grid: int
    block: int
    arguments: tuple[Argument, ...]
    same: str
    rows: tuple[str, ...]

    @property
    def name(self) -> str:
        """File, kernel and number of the input set."""
        return f"{self.file}-{self.entry}" + (f"-{self.variant}" if self.variant else "")

    def buffers(self) -> list[Array]:
        """Return all buffers before the launch, in the arguments' order."""
        out = self.arguments[0]
        first = np.zeros(len(self.rows) * self.threads * out.width, bits_of(out.kind))
        return [first] + [
            pattern(a.kind, a.pattern, self.threads * a.width, seed=len(self.entry) + place)
            for place, a in enumerate(self.arguments[1:])
        ]

    def results(self, buffers: list[Array]) -> list[tuple[str, str, Array]]:
        """Return (row, type, elements) of everything that the kernel may write."""
        out = self.arguments[0]
        rows = buffers[0].reshape(len(self.rows), -1)
        found = [(name, out.kind, row) for name, row in zip(self.rows, rows, strict=True)]
        scratch = zip(self.arguments[1:], buffers[1:], strict=True)
        return found + [(a.name, a.kind, data) for a, data in scratch if a.pattern == "zero"]


_HEADER = re.compile(
    r"// launch: grid=(\d+) block=(\d+)\n((?:// args: .*\n// same: .*\n)+)(?:(?!// launch:).*\n)*?"
    r'extern "C" __global__ void (\w+)\((?:(?!// launch:).*\n)*'
)
_ROW = re.compile(r'\b[A-Z]\w*\("([^"]*)"')


@lru_cache(maxsize=1)
def cases() -> tuple[Case, ...]:
    """Return every parity kernel with each of its input sets."""
    found = []
    for path in sorted(PARITY.glob("*.cu")):
        for match in _HEADER.finditer(path.read_text()):
            grid, block, entry = int(match[1]), int(match[2]), match[4]
            body = match[0][match[0].index(f"void {entry}(") :]
            lines = [line for line in body.splitlines() if not line.startswith("#")]
            rows = _unique(_ROW.findall("\n".join(lines)))
            sets = re.findall(r"// args: (.*)\n// same: (.*)\n", match[3])
            for variant, (args, same) in enumerate(sets):
                arguments = tuple(_argument(word) for word in args.split())
                found.append(Case(path.stem, entry, variant, grid * block, grid, block, arguments, same, rows))
    return tuple(found)


def _unique(names: list[str]) -> tuple[str, ...]:
    known: dict[str, int] = {}
    unique = []
    for name in (name.strip() for name in names):
        known[name] = known.get(name, 0) + 1
        unique.append(name if known[name] == 1 else f"{name} #{known[name]}")
    return tuple(unique)


def _argument(word: str) -> Argument:
    name, kind, how, width = re.match(r"(\w+)=(\w+)(?::(\w+))?(?:\*(\d+))?$", word).groups()  # type: ignore[union-attr]
    return Argument(name, kind, how or "", int(width or 1))


# ------------------------------------------------------------------------------------------------------------- inputs


def bits_of(kind: str) -> np.dtype[Any]:
    """Return the unsigned type that holds a PTX type."""
    return np.dtype(f"u{numerics.STORAGE[kind].itemsize}")


def words(seed: int, count: int) -> Array:
    """Return uint64 numbers from splitmix64 (G. Steele et al., OOPSLA 2014): the same with every NumPy."""
    with np.errstate(over="ignore"):
        state = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return state ^ state >> np.uint64(31)


_FIELDS = {"f64": (52, 11), "f32": (23, 8), "f16": (10, 5), "bf16": (7, 8), "e4m3": (3, 4), "e5m2": (2, 5)}
"""Bits of fraction and exponent."""


def _float(kind: str, sign: Array, exponent: Array, fraction: Array) -> Array:
    """Patterns from fields; the exponent is unbiased and clamped to what the format has, infinities left out."""
    fraction_bits, exponent_bits = _FIELDS[kind]
    bias = (1 << exponent_bits - 1) - 1
    biased = np.clip(exponent.astype(np.int64) + bias, 0, (1 << exponent_bits) - 2).astype(np.uint64)
    mask = np.uint64((1 << fraction_bits) - 1)
    one = np.uint64(1)
    return (
        (sign & one) << np.uint64(fraction_bits + exponent_bits) | biased << np.uint64(fraction_bits) | fraction & mask
    )


def _spread(kind: str, seed: int, count: int, low: int, high: int) -> Array:
    """Random floats with exponents from low to high."""
    exponent = (words(seed + 1, count) % np.uint64(high - low + 1)).astype(np.int64) + low
    return _float(kind, words(seed + 2, count), exponent, words(seed + 3, count)).astype(bits_of(kind))


def edges(kind: str) -> Array:
    """Return the patterns at which a type's rules change."""
    if kind not in _FIELDS:
        width = 8 * numerics.STORAGE[kind].itemsize
        powers = {1 << k for k in (1, 2, 4, 5, 7, 8, 15, 16, 31, 32, 63) if k < width}
        values = {0, 1, 2, 3, 5, 7, 24, 31, 32, 33, 63, 64, 65, 255, 0x7FFFFF, *powers}
        values |= {power - 1 for power in powers} | {-value for value in (1, 2, 3, 7, 31, 32, 33, *powers)}
        return np.array(sorted({value & (1 << width) - 1 for value in values}), bits_of(kind))
    fraction_bits, exponent_bits = _FIELDS[kind]
    top = ((1 << exponent_bits) - 1) << fraction_bits
    one = ((1 << exponent_bits - 1) - 1) << fraction_bits
    step, half = 1 << fraction_bits, 1 << fraction_bits - 1
    positive = [0, 1, 2, half, step - 1, step, step + 1, one - step, one - 1, one, one + 1, one + half, one + step]
    positive += [
        one + step + half,
        one + fraction_bits * step,
        one + fraction_bits * step + 1,
        one - fraction_bits * step,
    ]
    positive += [one - (fraction_bits + 1) * step, top - step, top - 1, top, top + 1, top + half, top + step - 1]
    if kind in ("f32", "f64"):
        positive += [one + k * step for k in (7, 8, 15, 16, 31, 32, 63, 64)] + [one + 31 * step - 1, one + 126 * step]
    sign = 1 << fraction_bits + exponent_bits
    return np.array(sorted(set(positive) | {p | sign for p in positive}), bits_of(kind))


def _operand(kind: str, place: int, count: int, seed: int) -> Array:
    """Operands that meet: every pair of edges as far as there is room, then close exponents, then any bits."""
    known = edges(kind)
    size, index = len(known), np.arange(count)
    edge = known[(index // size, index, index * 7 + index // size)[place] % size]
    bits = words(seed + 10 * place, count)
    kinds = (words(99, count) % np.uint64(4)).astype(np.int64)
    if kind in _FIELDS:
        close = _spread(kind, seed + 10 * place + 1, count, -3, 3)
        low = -(1 << _FIELDS[kind][1] - 1)
        tiny = _spread(kind, seed + 10 * place + 5, count, low, low + _FIELDS[kind][0] + 4)
        other = np.choose(kinds, [bits.astype(known.dtype), close, tiny, close])
    else:
        width = np.uint64(8 * known.dtype.itemsize)
        small = bits.astype(known.dtype) >> (words(seed + 10 * place + 2, count) % width).astype(known.dtype)
        other = np.choose(kinds, [bits.astype(known.dtype), small, small, ~small + known.dtype.type(1)])
    return np.where(index < min(size * size, count * 7 // 8), edge, other).astype(known.dtype)


def pattern(kind: str, how: str, count: int, seed: int) -> Array:
    """Return `count` bit patterns of a type.

    Args:
        kind: PTX type.
        how: ``0`` ``1`` ``2`` operands of one instruction (edges met pairwise); ``bits`` any; ``iota`` 0, 1, 2 …;
            ``zero``; ``ints`` integers from -4 to 4; ``near`` magnitudes from 1/16 to 8; ``wide`` exponents over half
            of the type's range; ``turn`` angles in [-2 pi, 2 pi].
        count: elements.
        seed: of the random ones.
    """
    dtype = bits_of(kind)
    if how.isdigit():
        return _operand(kind, int(how), count, seed)
    if how == "bits":
        return words(seed, count).astype(dtype)
    if how in ("iota", "zero"):
        return np.arange(count).astype(dtype) if how == "iota" else np.zeros(count, dtype)
    if how == "ints":
        return numerics.encode(kind, (words(seed, count) % np.uint64(9)).astype(np.float64) - 4).view(dtype)
    if how == "near":
        return _spread(kind, seed, count, -4, 2)
    if how == "wide":
        reach = min((1 << _FIELDS[kind][1] - 1) // 2, 30)
        return _spread(kind, seed, count, -reach, reach)
    assert how == "turn"
    angles = (words(seed, count) >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1
    return (angles * 2 * np.pi).astype(np.float32).view(np.uint32)


# ------------------------------------------------------------------------------------------------------ both machines


@lru_cache(maxsize=32)
def program_of(file: str, architecture: str = "compute_90") -> Program:
    """Compile a parity file; ``sm_90`` gives machine code and the PTX it came from."""
    entries = sorted({case.entry for case in cases() if case.file == file})
    text = (PARITY / f"{file}.cu").read_text()
    program = compile_program(text, f"{file}.cu", {}, (), entries, architecture)
    assert isinstance(program, Program), program
    return program


@lru_cache(maxsize=32)
def module_of(file: str, architecture: str = "compute_90") -> simt.Module:
    """Return a parity file's parsed PTX."""
    return simt.parse(program_of(file, architecture).ptx)


def simulate(case: Case, buffers: list[Array]) -> tuple[simt.LaunchResult, list[Array]]:
    """Run a case on the PTX machine; return the result and the buffers afterwards."""
    memory = simt.Memory()
    placed = [
        memory.allocate(a.name, data, writable=a.pattern in ("", "zero"), initialised=a.pattern != "")
        for a, data in zip(case.arguments, buffers, strict=True)
    ]
    result = simt.launch(
        module_of(case.file),
        simt.LaunchSpec(case.entry, (case.grid, 1, 1), (case.block, 1, 1)),
        placed,
        memory,
        simt.LaunchOptions(count=False),
    )
    return result, [buffer.read() for buffer in placed]


# --------------------------------------------------------------------------------------------------------- comparison


def values(kind: str, patterns: Array) -> Array:
    """Return bit patterns as float64 numbers."""
    with numerics.ignore_float_warnings():
        return numerics.decode(kind, patterns.view(numerics.STORAGE[kind])).astype(np.float64)


def settled(case: Case, row: str, kind: str, patterns: Array) -> Array:
    """Return patterns in which equal answers have equal bits: every NaN is replaced by one, where the case says so."""
    rule = case.same.split()[0]
    if rule == "converted":
        target = row.split(" ")[0].split(".")[-2]
        kind = "f32" if target == "tf32" else target
    if rule == "bitwise" or kind not in _FIELDS:
        return patterns
    return np.where(np.isnan(values(kind, patterns.astype(bits_of(kind)))), patterns.dtype.type(0x7F), patterns)


def fingerprint(case: Case, row: str, kind: str, patterns: Array) -> str:
    """Return a short hash of a row under the case's notion of equality, or nothing where that is a tolerance."""
    if case.same not in ("bitwise", "numbers", "converted"):
        return ""
    return hashlib.sha256(np.ascontiguousarray(settled(case, row, kind, patterns)).tobytes()).hexdigest()[:16]


def different(case: Case, row: str, kind: str, expected: Array, got: Array) -> Array:
    """Return the places where two outputs of a row disagree.

    Args:
        case: which.
        row: its name.
        kind: type of the elements.
        expected: bit patterns of the simulated run.
        got: bit patterns of the other one.
    """
    rule, _, detail = case.same.partition(" ")
    if rule in ("bitwise", "numbers", "converted"):
        return np.flatnonzero(settled(case, row, kind, expected) != settled(case, row, kind, got))
    if rule == "printed":
        return np.flatnonzero([])
    with numerics.ignore_float_warnings():
        wanted, found = values(kind, expected), values(kind, got)
        if rule == "bound":
            allowed = _bound(row, detail, wanted, _first_operand(case))
        elif rule == "accumulation":
            allowed = _accumulation(case, row, kind, wanted)
        else:
            allowed = np.abs(wanted) * float(detail) + 2.0**-126
        equal = (wanted == found) | (np.isnan(wanted) & np.isnan(found))
        return np.flatnonzero(~equal & ~(np.abs(wanted - found) <= allowed))


def _first_operand(case: Case) -> Array:
    argument = case.arguments[1]
    return values(argument.kind, case.buffers()[1])


def _last_place(kind: str, wanted: Array) -> Array:
    """Return the distance between neighbours at a value."""
    fraction_bits, exponent_bits = _FIELDS[kind]
    lowest = 2 - (1 << exponent_bits - 1)
    exponent = np.frexp(np.where(np.isfinite(wanted), wanted, 0))[1] - 1
    return np.ldexp(1.0, np.maximum(exponent, lowest) - fraction_bits)


def _bound(row: str, kind: str, wanted: Array, operand: Array) -> Array:
    """Return what the ISA allows around the exact result, plus the rounding of the simulated one."""
    name = "div.full" if row.startswith("div.full") else row.split(".")[0]
    measure, limit = numerics.ERROR_BOUNDS[name, kind]
    place = _last_place(kind, wanted)
    tiny = np.abs(wanted) < numerics.FORMATS[kind].smallest_normal
    place = np.where(tiny, 2 * place, place)  # bounds are for normal results; chips cut subnormal ones off
    if measure == "ulp":
        return limit * place + place / 2
    if measure == "relative":
        return limit * np.abs(wanted) + place / 2
    inside = (operand > 0.5) & (operand < 2) if "(0.5, 2)" in measure else np.ones(operand.shape, bool)
    return np.where(inside, limit, limit * np.abs(wanted)) + place / 2


@lru_cache(maxsize=64)
def _magnitudes(case: Case) -> tuple[tuple[str, Array], ...]:
    """Return |c| + sum |a b| of every result: the same kernel on the absolute values of its inputs."""
    made = case.buffers()
    for data in made[1:]:
        data &= data.dtype.type(np.iinfo(data.dtype).max >> 1)
    _, after = simulate(case, made)
    return tuple((name, values(kind, row)) for name, kind, row in case.results(after))


def _accumulation(case: Case, row: str, kind: str, wanted: Array) -> Array:
    """Return what the order and width of a tensor core's sums may change: `matrix.accumulation_bound`, one rounding."""
    k = int(re.search(r"k(\d+)", row)[1])  # type: ignore[index]
    total = dict(_magnitudes(case))[row]
    kept = 52 if kind == "f64" else 23
    return (1.5 * k + 1) * 2.0**-kept * total + _last_place(kind, wanted)


def described(case: Case, row: str, kind: str, places: Array, expected: Array, got: Array) -> str:
    """Return a line about the first places that disagree, with the operands where rows have one element a thread."""
    made = case.buffers()[1:]
    lines = [f"{case.name} {row}: {len(places)} of {len(got)} differ"]
    for place in places[:4]:
        operands = [f"{data[place]:#x}" for data in made if data.size == got.size]
        lines.append(f"  [{place}] of {' '.join(operands)}: expected {expected[place]:#x}, got {got[place]:#x}")
    return "\n".join(lines)
