"""Lines: which line of whose file an instruction stands for."""

from __future__ import annotations

from evokern.ptx.lines import UNKNOWN_LOCATION, LineTable, SourceLocation


def _table(*headers: str) -> LineTable:
    table = LineTable("my.cu", dict.fromkeys(headers, ""))
    table.files |= {1: "/somewhere/my.cu", 2: "/somewhere/reduce/warp.cuh", 3: "/usr/include/cuda_fp16.hpp"}
    return table


def test_a_line_in_a_foreign_header_stands_for_its_call() -> None:
    """Code inlined from CUDA's own headers counts as the user's line that called it."""
    table = _table()
    table.add(1, 7, 3, None)
    assert SourceLocation(7) == table.source_location(table.add(3, 900, 1, (1, 7, 3)))


def test_own_headers_are_named_where_they_are_known() -> None:
    """A header of the user's has its own line; where nobody names it as such, the call's line stands for it."""
    for headers, expected in ((("reduce/warp.cuh",), SourceLocation(4, "reduce/warp.cuh")), ((), SourceLocation(7))):
        table = _table(*headers)
        table.add(1, 7, 3, None)
        place = table.add(2, 4, 1, (1, 7, 3))
        assert expected == table.source_location(place)
        assert (("", 7),) == table.source_location(place).called_from or not headers


def test_calls_are_followed_through_the_latest_place() -> None:
    """A helper inlined twice names the call that was being written out when its instruction came."""
    table = _table("reduce/warp.cuh")
    found = []
    for call in (7, 9):
        table.add(1, call, 3, None)
        table.add(2, 4, 1, (1, call, 3))
        found.append(table.source_location(table.add(3, 900, 1, (2, 4, 1))).called_from)
    assert [(("", 7),), (("", 9),)] == found


def test_line_nought_stays_with_the_line_before() -> None:
    """Instructions that the compiler merged from several lines count with the one before them."""
    table = _table()
    place = table.add(1, 14, 3, None)
    assert place == table.add(1, 0, 3, None)


def test_what_no_file_of_the_users_explains_is_nowhere() -> None:
    """An instruction without a place, or from a foreign file alone, has no line."""
    table = _table()
    assert UNKNOWN_LOCATION == table.source_location(-1)
    assert 0 == table.line(table.add(3, 12, 1, None))


def test_call_that_is_named_after_its_inlined_code() -> None:
    """In a loop, the code inlined from a call belongs to the call that its basic block names next."""
    table = _table()
    for call in (7, 9):
        table.begin_block()
        place = table.add(2, 14, 10, (2, 15, 10))
        table.add(2, 15, 10, (1, call, 3))
        assert SourceLocation(call) == table.source_location(place)
