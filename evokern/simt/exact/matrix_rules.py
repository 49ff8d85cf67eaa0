"""Rules of exact arithmetic for matrix instructions: products are sums of products in the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evokern.ptx.matrix_shapes import shape_of
from evokern.ptx.syntax import TYPE_BYTES, Operand
from evokern.simt.arrays import Action, Active, Array
from evokern.simt.exact import field
from evokern.simt.exact.field import BITS, CODE_SHIFT, CODES, NO_RULE, RAW, WIDTHS, Value, unpacked
from evokern.simt.exact.memory import embedded_bits, valued
from evokern.simt.exact.plane import Key, ShadowPlane, Site, whole_row
from evokern.simt.matrix import matrix_move, wmma_elements
from evokern.simt.matrix.descriptors import ELEMENTS, STEP
from evokern.simt.matrix.fragments import Fragment, mma_fragment
from evokern.simt.matrix.wmma import Wmma
from evokern.simt.memory.buffers import SHARED_WINDOW
from evokern.simt.numerics import STORAGE
from evokern.simt.operations import warpgroup
from evokern.simt.operations.matrix_ops import items_of, mma_of, slot_of
from evokern.simt.operations.memory_ops import address_rows, space_of


def _product(site: Site) -> Action | None:
    """Bind mma and wmma.mma."""
    if site.i.opcode == "wmma" and not site.i.has("mma"):
        return _fragment_move(site)
    return bind_products([site])[0]


def bind_products(sites: list[Site]) -> list[Action]:
    """Bind independent matrix products of one kind; those with the same first factor become one wide product."""
    form = mma_of(sites[0].i)
    kinds = {"a": form.a_type, "b": getattr(form, "b_type", form.a_type), "c": form.c_type, "d": form.d_type}
    if not set(kinds.values()) <= WIDTHS.keys():
        return [_integer_products(sites, BITS if form.d_type == "s32" else NO_RULE)]
    of_factor: dict[tuple[int, ...], list[Site]] = {}
    for one in sites:
        rows = tuple(slot_of(item, one.binder, _file(kinds["a"])) for item in items_of(one.i.operands[1]))
        of_factor.setdefault(rows, []).append(one)
    of_count: dict[int, list[Site]] = {}
    for some in of_factor.values():
        of_count.setdefault(len(some), []).extend(some)
    return [_bind_product(some, count, form, kinds) for count, some in of_count.items()]


def _bind_product(sites: list[Site], count: int, form: Any, kinds: dict[str, str]) -> Action:
    """Bind products; each run of `count` products has the same first factor."""
    site, plane = sites[0], sites[0].plane
    fragments = {
        one: form.fragments[one] if isinstance(form, Wmma) else mma_fragment(one, kind, form.shape)
        for one, kind in kinds.items()
    }
    m, n, k = form.shape
    read = [
        _matrix_reader(sites[::step], at, kinds[one], fragments[one], extent, count // step)
        for at, (one, extent, step) in enumerate((("a", (m, k), count), ("b", (k, n), 1), ("c", (m, n), 1)), 1)
    ]
    targets = [one.key(item) for site in sites for one, item in ((site, item) for item in items_of(site.i.operands[0]))]
    fragment, warps = fragments["d"], plane.lanes // 32
    at = np.arange(len(sites) * m * n).reshape(-1, m, count, n).swapaxes(1, 2)[..., fragment.rows, fragment.columns]
    at = at.reshape(len(sites), 32, -1).swapaxes(1, 2).reshape(-1, 32)

    def run() -> None:
        a, b, c = (one() for one in read)
        words = field.matmul(a, b, c).words(kinds["d"]).reshape(warps, -1).take(at, 1)
        _put_registers(plane, targets, words.swapaxes(0, 1).reshape(-1, plane.lanes), site.mask())

    return run


def _put_registers(plane: ShadowPlane, keys: list[Key | None], words: Array, mask: Array | None) -> None:
    """Write the words of a fragment's elements, [elements, lanes], to its registers."""
    each = words.shape[0] // len(keys)
    for number, key in enumerate(keys):
        if key is not None:
            plane.put(key, words[number * each : (number + 1) * each], mask)


def _file(kind: str) -> str:
    """Return the class of the registers that hold the values of a format."""
    return "64" if kind == "f64" else "32"


def _registers(site: Site, slots: Array, kind: str, place: Callable[[Array], Array]) -> Value:
    """Return the values in some registers, [registers, elements, lanes], after `place` has arranged them."""
    plane, size, file = site.plane, STORAGE[kind].itemsize, _file(kind)
    units, lanes = max(size // 2, 2), plane.lanes
    bits = site.batch.registers.bits[file]
    zero, whole = np.full((1, 1), CODES[kind] << CODE_SHIFT), 1 if WIDTHS[kind] > 1 else units
    found = [plane.rows.get((file, slot)) for slot in slots.tolist()]
    rows = [
        np.broadcast_to(zero, (whole, lanes)) if one is None and not bits[slot].any() else one
        for one, slot in zip(found, slots.tolist(), strict=True)
    ]
    if all(one is not None and one.shape[0] == whole for one in rows):
        words = np.array(rows)
        if size == 1:
            words = site.split(words).transpose(1, 2, 0, 3).reshape(slots.size, -1, lanes)
        if bool((words >> CODE_SHIFT == CODES[kind]).all()):
            return Value(*unpacked(place(words)))
    own = bits[slots].view(f"u{size}").reshape(slots.size, lanes, -1).transpose(0, 2, 1)
    if all(one is None for one in found):
        arranged = place(own)
        return embedded_bits(kind, arranged.reshape(-1), site.number).map(lambda one: one.reshape(arranged.shape))
    none = np.zeros((units, lanes), np.uint64)
    words = np.stack([none if one is None else whole_row((file, 0), one) for one in found])
    if size == 1:
        words = site.split(words).transpose(1, 2, 0, 3)
    words = words.transpose(1, 0, 2).reshape(units, -1) if WIDTHS[kind] > 1 else words.reshape(-1)
    value = valued(words, own.reshape(-1), kind, site.number)
    return value.map(lambda one: place(one.reshape(own.shape)))


def _integer_products(sites: list[Site], reason: np.uint64) -> Action:
    def run() -> None:
        for site in sites:
            sources = [key for operand in site.i.operands[1:] for key in site.keys(operand)]
            site.put_tainted(site.keys(site.i.operands[0]), site.tainted(sources, reason), site.mask())

    return run


def _matrix_reader(
    sites: list[Site], place: int, kind: str, fragment: Fragment, extent: tuple[int, int], across: int
) -> Callable[[], Value]:
    """Return a function that reads an operand of several products as matrices, `across` of them side by side."""
    table = [[slot_of(item, one.binder, _file(kind)) for item in items_of(one.i.operands[place])] for one in sites]
    slots, inverse = np.unique(np.array(table), return_inverse=True)
    inverse, each = inverse.reshape(len(sites), -1), fragment.rows.shape[1] // len(table[0])
    lane, element = np.empty(extent, np.int64), np.empty(extent, np.int64)
    lane[fragment.rows, fragment.columns] = np.arange(32)[:, None]
    element[fragment.rows, fragment.columns] = np.arange(fragment.rows.shape[1])
    at = (inverse[:, element // each] * each + element % each) * 32 + lane
    at = at.reshape(-1, across, *extent).swapaxes(1, 2).reshape(-1, extent[0], across * extent[1])

    def placed(words: Array) -> Array:
        of_warps = words.reshape(slots.size * each, -1, 32).swapaxes(0, 1)
        found: Array = of_warps.reshape(of_warps.shape[0], -1).take(at, 1)
        return found

    return lambda: _registers(sites[0], slots, kind, placed)


def _warpgroup_product(site: Site) -> Action | None:
    """Bind `wgmma.mma_async`; as in the machine, the product is computed when it is issued."""
    if not site.i.has("mma_async"):
        return None
    i, plane, batch, shared = site.i, site.plane, site.batch, site.state.shared
    product, left, right = warpgroup.operands(i, site.binder)
    kind, to, columns = product.a_type, product.d_type, product.columns
    slots = np.array([slot_of(item, site.binder, "32") for item in items_of(i.operands[0])])
    keys = [site.key(item) for item in items_of(i.operands[0])]
    tiles = [mma_fragment("d", to, (16, 8, 16)) for _ in range(columns // 8)]
    rows, of_a = np.concatenate([one.rows for one in tiles], 1), mma_fragment("a", kind, (16, 8, 16))
    across = np.concatenate([one.columns + 8 * number for number, one in enumerate(tiles)], 1)
    keep = warpgroup.added(i, site.binder)

    def in_shared(factor: warpgroup.Shared, warps: warpgroup.Warps, *, own: bool) -> Value:
        """Return an operand in shared memory, [units, extent, 16], or transposed."""
        at = factor.addresses(warps.leaders)
        at = warpgroup.own_rows(at, warps, factor.transposed) if own else at
        first = (at + shared.base[warps.leaders].reshape(-1, 1, 1)) >> 1
        units = first[..., None] + np.arange(ELEMENTS)
        words, bits = (one.take(units, mode="clip") for one in (plane.spaces["shared"].words, shared.view(2)))
        value = valued(words.reshape(-1), bits.reshape(-1), kind, site.number)
        return value.map(lambda one: one.reshape(*at.shape[:2], -1))

    def in_registers(table: Array, of: tuple[Array, Array], of_kind: str, lanes: slice | Array, width: int) -> Value:
        """Return an operand in registers, [warps, 16, width]."""

        def placed(residues: Array) -> Array:
            elements = residues.reshape(-1, plane.lanes)[:, lanes]
            elements = elements.reshape(elements.shape[0], -1, 32).transpose(1, 2, 0)
            matrices = np.empty((elements.shape[0], 16, width), elements.dtype)
            matrices[:, of[0], of[1]] = elements
            return matrices

        return _registers(site, table, of_kind, placed)

    def run() -> None:
        active = site.active()
        if not active.count:
            return
        warps = warpgroup.warps_of(batch, active, [one for one in (left, right) if isinstance(one, warpgroup.Shared)])
        units = warps.leaders.size
        if isinstance(left, warpgroup.Shared):
            a = in_shared(left, warps, own=True)
            a = a.map(lambda one: one.swapaxes(1, 2)) if left.transposed else a
        else:
            a = in_registers(left, (of_a.rows, of_a.columns), kind, warps.columns, STEP)
            a = a.map(lambda one: one.reshape(units, -1, STEP))
        b = in_shared(right, warps, own=False)
        b = b if right.transposed else b.map(lambda one: one.swapaxes(1, 2))
        total = field.matmul(a, b).map(lambda one: one.reshape(-1, 16, columns))
        total = field.negate(total) if product.negated else total
        kept = keep(warps)
        if kept.any():
            old = in_registers(slots, (rows, across), to, warps.columns, columns)
            total = field.add(total, old.map(lambda one: np.where(kept[:, None, None], one, np.uint64(0))))
        found = total.words(to)[:, rows, across].transpose(2, 0, 1).reshape(across.shape[1], -1)
        if not isinstance(warps.columns, slice):
            words = np.zeros((found.shape[0], plane.lanes), np.uint64)
            words[:, warps.columns] = found
            found = words
        _put_registers(plane, keys, found, site.mask())

    return run


def _matrix_places(site: Site, operand: Operand, count: int) -> Callable[[], Array]:
    """Return a function that returns the unit of each half of ldmatrix or stmatrix, [registers, 2, lanes]."""
    row, offset = address_rows(operand, site.binder, "shared")
    move = matrix_move(count, transposed=site.i.has("trans"))
    low = (SHARED_WINDOW if space_of(site.i) == "generic" else 0) - offset
    lanes, shared = site.plane.lanes, site.state.shared
    base = shared.base - low - (shared.window if shared.ranks > 1 else 0)

    def places() -> Array:
        address = np.broadcast_to(row, (lanes,)).astype(np.int64) + base
        parts = move.addresses(address.reshape(-1, 32)).reshape(count, lanes, -1)
        first = (parts >> 1).transpose(0, 2, 1)
        return np.concatenate([first, first + 1], 1) if first.shape[1] == 1 else first

    return places


def _load_matrix(site: Site) -> Action | None:
    items = items_of(site.i.operands[0])
    places = _matrix_places(site, site.i.operands[1], len(items))

    def run() -> None:
        words, mask = site.plane.spaces["shared"].words.take(places(), mode="clip"), site.mask()
        some = bool(words.any())
        for number, item in enumerate(items):
            site.put_units(item, words[number] if some else None, mask)

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
    kind = next(word for word in i.modifiers if word in (*WIDTHS, "s8", "u8", "s32"))
    registers, where = (i.operands[1], i.operands[0]) if store else (i.operands[0], i.operands[1])
    items = items_of(registers)
    size = TYPE_BYTES[kind]
    rows, columns = wmma_elements(shape_of(i), operand, kind)
    m, n, k = shape_of(i)
    extent = {"a": (m, k), "b": (k, n)}.get(operand, (m, n))
    major = i.has("row")
    lines, places = (rows, columns) if major else (columns, rows)
    pitch = extent[1] if major else extent[0]
    stride = site.binder.src(i.operands[2], "u32") if len(i.operands) > 2 else None
    each, pieces = max(size // 2, 1), max(4 // size, 1)
    find, read = site.places(where), [site.units(item, each * pieces) for item in items]
    whole = np.arange(site.plane.lanes) % 32

    def run() -> None:
        for space, lanes, first in find():
            mine = whole[lanes.lanes]
            step = lanes.pick(stride).astype(np.int64) if stride is not None else np.int64(pitch)
            for number, item in enumerate(items):
                parts = [number * pieces + piece for piece in range(pieces)]
                starts = [first + (lines[mine, at] * step + places[mine, at]) * size for at in parts]
                if store:
                    found = read[number]()
                    words = np.zeros((each * pieces, site.plane.lanes), np.uint64) if found is None else found
                    for at, start in enumerate(starts):
                        space.store(start, words[at * each : (at + 1) * each][:, lanes.lanes])
                    continue
                loaded = np.concatenate([space.load(start, each) for start in starts])
                if size == 1:
                    loaded = np.tile(np.where(loaded.any(0), site.bad_word(BITS), RAW), (2, 1))
                _put_lanes(site, item, loaded, lanes)

    return run


def _put_lanes(site: Site, item: Operand, loaded: Array, lanes: Active) -> None:
    words = np.zeros((loaded.shape[0], site.plane.lanes), np.uint64)
    words[:, lanes.lanes] = loaded
    site.put_units(item, words, None if lanes.full else lanes.mask)


MATRIX_RULES: dict[tuple[str, str], Callable[[Site], Action | None]] = {
    ("mma", "*"): _product,
    ("wmma", "*"): _product,
    ("wgmma", "*"): _warpgroup_product,
    ("ldmatrix", "*"): _load_matrix,
    ("stmatrix", "*"): _store_matrix,
    ("movmatrix", "*"): _transpose,
}
