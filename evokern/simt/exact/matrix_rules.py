"""Rules of exact arithmetic for matrix instructions: products are sums of products in the field."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.ptx.matrix_shapes import shape_of
from evokern.ptx.syntax import Operand
from evokern.simt.arrays import Action, Active, Array
from evokern.simt.exact import field
from evokern.simt.exact.field import BITS, NO_RULE, Value
from evokern.simt.exact.memory import embedded_bits, valued
from evokern.simt.exact.plane import HALVES, Site
from evokern.simt.matrix import matrix_move, wmma_elements
from evokern.simt.matrix.fragments import Fragment, mma_fragment
from evokern.simt.matrix.wmma import Wmma
from evokern.simt.memory.buffers import SHARED_WINDOW
from evokern.simt.operations.matrix_ops import items_of, mma_of, slot_of
from evokern.simt.operations.memory_ops import address_rows, space_of

KINDS = ("f32", "tf32", *HALVES)


def _product(site: Site) -> Action | None:
    """Bind mma and wmma.mma."""
    if site.i.opcode == "wmma" and not site.i.has("mma"):
        return _fragment_move(site)
    return bind_products([site])


def bind_products(sites: list[Site]) -> Action | None:
    """Bind independent matrix products of one kind to run as a single product."""
    site, form = sites[0], mma_of(sites[0].i)
    plane = site.plane
    kinds = {"a": form.a_type, "b": getattr(form, "b_type", form.a_type), "c": form.c_type, "d": form.d_type}
    if not set(kinds.values()) <= set(KINDS):
        return _integer_products(sites, BITS if form.d_type == "s32" else NO_RULE)
    fragments = {
        one: form.fragments[one] if isinstance(form, Wmma) else mma_fragment(one, kind, form.shape)
        for one, kind in kinds.items()
    }
    m, n, k = form.shape
    read = [
        _matrix_reader(sites, at, kinds[one], fragments[one], extent)
        for at, (one, extent) in enumerate((("a", (m, k)), ("b", (k, n)), ("c", (m, n))), 1)
    ]
    targets = [[one.key(item) for item in items_of(one.i.operands[0])] for one in sites]
    fragment, each = fragments["d"], 2 if kinds["d"] in HALVES else 1

    def run() -> None:
        a, b, c = (one() for one in read)
        words = field.add(field.matmul(a, b), c).words(kinds["d"])[:, fragment.rows, fragment.columns]
        words = words.reshape(len(sites), -1, 32, words.shape[-1]).transpose(0, 3, 1, 2)
        rows, mask = words.reshape(len(sites), -1, plane.lanes), site.mask()
        for own, keys in zip(rows, targets, strict=True):
            for number, key in enumerate(keys):
                if key is not None:
                    plane.put(key, own[number * each : (number + 1) * each], mask)

    return run


def _integer_products(sites: list[Site], reason: np.uint64) -> Action:
    def run() -> None:
        for site in sites:
            sources = [key for operand in site.i.operands[1:] for key in site.keys(operand)]
            site.put_tainted(site.keys(site.i.operands[0]), site.tainted(sources, reason), site.mask())

    return run


def _matrix_reader(
    sites: list[Site], place: int, kind: str, fragment: Fragment, extent: tuple[int, int]
) -> Callable[[], Value]:
    """Return a function that reads an operand of several products as matrices of values, [products * warps, …]."""
    plane, number, pair = sites[0].plane, sites[0].number, kind in HALVES
    table = np.array([[slot_of(item, one.binder, "32") for item in items_of(one.i.operands[place])] for one in sites])
    slots, inverse = np.unique(table, return_inverse=True)
    inverse = inverse.reshape(table.shape)
    file, lanes, units = sites[0].batch.registers.bits["32"], plane.lanes, 2 if pair else 1
    warps, where = lanes // 32, (fragment.rows, fragment.columns)
    none = np.zeros((2, lanes), np.uint64)

    def read() -> Value:
        bits = file[slots]
        if pair:
            bits = bits.view(np.uint16).reshape(-1, lanes, 2).transpose(0, 2, 1)
        words = [plane.units(("32", slot)) for slot in slots.tolist()]
        if all(one is None for one in words):
            value = embedded_bits(kind, bits.reshape(-1), number)
        else:
            known = np.stack([none if one is None else one for one in words])
            known = known.reshape(-1) if pair else known.transpose(1, 0, 2).reshape(2, -1)
            value = valued(known, bits.reshape(-1), kind, number)

        def placed(residues: Array) -> Array:
            elements = residues.reshape(-1, units, warps, 32)[inverse]
            elements = elements.reshape(len(sites), -1, warps, 32).transpose(0, 2, 3, 1)
            matrices = np.empty((len(sites) * warps, *extent), np.uint64)
            matrices[:, where[0], where[1]] = elements.reshape(len(sites) * warps, 32, -1)
            return matrices

        return Value(placed(value.p), placed(value.q), None if value.bad is None else placed(value.bad))

    return read


def _matrix_places(site: Site, operand: Operand, count: int) -> Callable[[], Array]:
    """Return a function that returns the unit of each half of ldmatrix or stmatrix, [registers, 2, lanes]."""
    row, offset = address_rows(operand, site.binder, "shared")
    move = matrix_move(count, transposed=site.i.has("trans"))
    low = (SHARED_WINDOW if space_of(site.i) == "generic" else 0) - offset
    lanes, base = site.plane.lanes, site.state.shared.base

    def places() -> Array:
        address = np.broadcast_to(row, (lanes,)).astype(np.int64) - low
        parts = move.addresses(address.reshape(-1, 32)).reshape(count, lanes, -1) + base[:, None]
        first = (parts >> 1).transpose(0, 2, 1)
        return np.concatenate([first, first + 1], 1) if first.shape[1] == 1 else first

    return places


def _load_matrix(site: Site) -> Action | None:
    items = items_of(site.i.operands[0])
    places = _matrix_places(site, site.i.operands[1], len(items))

    def run() -> None:
        words, mask = site.plane.spaces["shared"].words.take(places(), mode="clip"), site.mask()
        for number, item in enumerate(items):
            site.put_units(item, words[number], mask)

    return run


def _store_matrix(site: Site) -> Action | None:
    items = items_of(site.i.operands[1])
    places, read = _matrix_places(site, site.i.operands[0], len(items)), [site.units(item, 2) for item in items]

    def run() -> None:
        mask, at = site.active().mask, places()
        none = np.zeros((2, site.plane.lanes), np.uint64)
        words = site.plane.spaces["shared"].words
        for number, one in enumerate(read):
            found = one()
            words[at[number][:, mask]] = (none if found is None else found)[:, mask]

    return run


def _transpose(site: Site) -> Action | None:
    read = site.units(site.i.operands[1], 2)

    def run() -> None:
        found = read()
        if found is not None:
            found = found.T.reshape(-1, 8, 8).transpose(0, 2, 1).reshape(-1, 2).T
        site.put_units(site.i.operands[0], found, site.mask())

    return run


def _fragment_move(site: Site) -> Action | None:
    """Bind wmma.load and wmma.store."""
    i = site.i
    store = i.has("store")
    operand = next(word for word in i.modifiers if word in ("a", "b", "c", "d"))
    kind = next(word for word in i.modifiers if word in (*KINDS, "s8", "u8", "s32", "f64"))
    registers, where = (i.operands[1], i.operands[0]) if store else (i.operands[0], i.operands[1])
    items = items_of(registers)
    if kind not in KINDS:
        keys = [key for item in items for key in site.keys(item)]
        word = np.full(site.plane.lanes, site.bad_word(NO_RULE))
        return None if store else lambda: site.put_tainted(keys, word, site.mask())
    rows, columns = wmma_elements(shape_of(i), operand, kind)
    m, n, k = shape_of(i)
    extent = {"a": (m, k), "b": (k, n)}.get(operand, (m, n))
    major = i.has("row")
    lines, places = (rows, columns) if major else (columns, rows)
    pitch = extent[1] if major else extent[0]
    stride = site.binder.src(i.operands[2], "u32") if len(i.operands) > 2 else None
    each = 1 if kind in HALVES else 2
    find, read = site.places(where), [site.units(item, 2) for item in items]
    whole = np.arange(site.plane.lanes) % 32

    def run() -> None:
        for space, lanes, first in find():
            mine = whole[lanes.lanes]
            step = lanes.pick(stride).astype(np.int64) if stride is not None else np.int64(pitch)
            for number, item in enumerate(items):
                parts = [number * 2 + piece for piece in range(2)] if each == 1 else [number]
                starts = [first + (lines[mine, at] * step + places[mine, at]) * each for at in parts]
                if store:
                    found = read[number]()
                    words = np.zeros((2, site.plane.lanes), np.uint64) if found is None else found
                    for at, start in enumerate(starts):
                        space.store(start, words[at * each : (at + 1) * each][:, lanes.lanes])
                    continue
                loaded = np.concatenate([space.load(start, each) for start in starts])
                _put_lanes(site, item, loaded, lanes)

    return run


def _put_lanes(site: Site, item: Operand, loaded: Array, lanes: Active) -> None:
    words = np.zeros((loaded.shape[0], site.plane.lanes), np.uint64)
    words[:, lanes.lanes] = loaded
    site.put_units(item, words, None if lanes.full else lanes.mask)


MATRIX_RULES: dict[tuple[str, str], Callable[[Site], Action | None]] = {
    ("mma", "*"): _product,
    ("wmma", "*"): _product,
    ("ldmatrix", "*"): _load_matrix,
    ("stmatrix", "*"): _store_matrix,
    ("movmatrix", "*"): _transpose,
}
