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
from evokern.simt.operations.matrix_ops import items_of, mma_of
from evokern.simt.operations.memory_ops import address_rows, space_of

KINDS = ("f32", "tf32", *HALVES)


def _product(site: Site) -> Action | None:
    """Bind mma and wmma.mma."""
    i = site.i
    if i.opcode == "wmma" and not i.has("mma"):
        return _fragment_move(site)
    form = mma_of(i)
    targets = [key for item in items_of(i.operands[0]) for key in site.keys(item)]
    if form.a_type not in KINDS or form.d_type not in KINDS:
        sources = [key for operand in i.operands[1:] for key in site.keys(operand)]
        reason = BITS if form.d_type == "s32" else NO_RULE
        return lambda: site.put_tainted(targets, site.tainted(sources, reason), site.mask())
    kinds = {"a": form.a_type, "b": getattr(form, "b_type", form.a_type), "c": form.c_type, "d": form.d_type}
    fragments = {
        one: form.fragments[one] if isinstance(form, Wmma) else mma_fragment(one, kind, form.shape)
        for one, kind in kinds.items()
    }
    m, n, k = form.shape
    read = [
        _matrix_reader(site, operand, kinds[one], fragments[one], extent)
        for operand, one, extent in zip(i.operands[1:], "abc", ((m, k), (k, n), (m, n)), strict=False)
    ]

    def run() -> None:
        a, b, c = (one() for one in read)
        result = field.add(field.matmul(a, b), c)
        _scatter(site, items_of(i.operands[0]), kinds["d"], fragments["d"], result)

    return run


def _matrix_reader(
    site: Site, operand: Operand, kind: str, fragment: Fragment, extent: tuple[int, int]
) -> Callable[[], Value]:
    """Return a function that reads an operand as one matrix of values per warp."""
    pair, lanes = kind in HALVES, site.plane.lanes
    items = items_of(operand)
    bits = [site.bits(item, f"{kind}x2" if pair else kind) for item in items]
    units = [site.units(item, 2) for item in items]
    rows, columns = fragment.rows, fragment.columns

    def read() -> Value:
        shape = (2, lanes) if pair else (lanes,)
        real = np.stack([np.broadcast_to(one(), shape) for one in bits])
        words = [one() for one in units]
        if all(one is None for one in words):
            value = embedded_bits(kind, real.reshape(-1), site.number)
        else:
            none = np.zeros((2, lanes), np.uint64)
            known = np.stack([none if one is None else one for one in words])
            known = known.reshape(1, -1) if pair else known.transpose(1, 0, 2).reshape(2, -1)
            value = valued(known[0] if pair else known, real.reshape(-1), kind, site.number)

        def placed(residues: Array) -> Array:
            matrix = np.empty((lanes // 32, *extent), np.uint64)
            matrix[:, rows, columns] = residues.reshape(-1, lanes // 32, 32).transpose(1, 2, 0)
            return matrix

        return Value(placed(value.p), placed(value.q), None if value.bad is None else placed(value.bad))

    return read


def _scatter(site: Site, items: tuple[Operand, ...], kind: str, fragment: Fragment, value: Value) -> None:
    """Write one matrix of values per warp to registers."""
    words = value.words(kind)[:, fragment.rows, fragment.columns].transpose(2, 0, 1).reshape(-1, site.plane.lanes)
    each, mask = (2 if kind in HALVES else 1), site.mask()
    for number, item in enumerate(items):
        key = site.key(item)
        if key is not None:
            site.plane.put(key, words[number * each : (number + 1) * each], mask)


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
