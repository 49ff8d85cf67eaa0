"""Keys of the shadows: what is packed comes out again, field by field."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evokern.simt.sanitizer import access_keys, block_history
from evokern.simt.sanitizer.access_keys import BitField

LAYOUTS = {
    "shared": (access_keys.STAMP, access_keys.NUMBER, access_keys.THREAD),
    "global": (block_history.TIME, block_history.BLOCK, block_history.ATOMIC, block_history.NUMBER),
}


@given(layout=st.sampled_from(sorted(LAYOUTS)), data=st.data())
def test_fields_come_out_as_they_went_in(layout: str, data: st.DataObject) -> None:
    """Every field of a key keeps its value whatever the others hold, alone or in a row."""
    fields = LAYOUTS[layout]
    rows = data.draw(st.lists(st.tuples(*[st.integers(0, field.most) for field in fields]), min_size=1, max_size=5))
    keys = np.array([sum(f.pack(v) for f, v in zip(fields, row, strict=True)) for row in rows], np.uint64)
    for place, field in enumerate(fields):
        values = [row[place] for row in rows]
        assert values == field.of(keys).tolist()
        assert field.pack_all(np.array(values, np.uint64)).tolist() == field.alone(keys).tolist()


def test_fields_of_a_key_do_not_overlap_and_fill_it() -> None:
    """Each bit of a key belongs to one field."""
    for fields in LAYOUTS.values():
        assert 2**64 - 1 == sum(int(field.mask) for field in fields)
        assert 2**64 - 1 == int(np.bitwise_or.reduce([field.mask for field in fields]))


def test_setting_a_field_leaves_the_others() -> None:
    """A field takes a new value in place, and no other changes."""
    high, low = BitField(32, 32), BitField(0, 32)
    keys = np.array([high.pack(7) | low.pack(5), low.pack(9)], np.uint64)
    high.set(keys, high.most - 1)
    assert [high.most - 1] * 2 == high.of(keys).tolist()
    assert [5, 9] == low.of(keys).tolist()
