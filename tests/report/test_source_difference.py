"""How two candidates' sources differ, from their text alone: what a choice changes is told, and nothing is run."""

from __future__ import annotations

import pytest

from evokern.declaration.genes import Config, Mutation, Parameter
from evokern.report.source_difference import MOST_LINES, SourceDifference

GENES = (Mutation("LOAD", ("scalar", "vector", "async"), doc="how"), Parameter("TILE", (16, 32, 64), doc="rows"))
SOURCE = """// TILE rows, LOAD
#include "parts.cuh"
constexpr bool ASYNC = LOAD == LOAD_ASYNC;
constexpr int ROWS = TILE * 2;  // of TILE
#if TILE > 16 && !defined(OTHER)
int large;
#elif LOAD == LOAD_SCALAR
int small_scalar;
#else
int small;
#endif
void k() {
  if constexpr (ASYNC) {
    copy();
  } else if constexpr (LOAD == LOAD_VECTOR) {
    vector();
  } else {
    scalar();
  }
  if constexpr (unknown(TILE)) wait();
}
"""
FILES = {"kernel.cu": SOURCE, "parts.cuh": "#pragma once\nint part[TILE];\n"}


def told(champion: Config, other: Config, files: dict[str, str] = FILES) -> list[str]:
    return [f"{line.mark}{line.text}" for line in SourceDifference(files, GENES).between(champion, other)]


def test_lines_that_a_choice_changes_are_told_with_their_place() -> None:
    """Values are written out, branches that are not taken go, conditions say how they come out, comments stay."""
    assert told(Config({"LOAD": "scalar", "TILE": 16}), Config({"LOAD": "async", "TILE": 32})) == [
        "@parts.cuh, line 2",
        "-int part[16];",
        "+int part[32];",
        "@kernel.cu, line 3",
        "-constexpr bool ASYNC = LOAD_SCALAR == LOAD_ASYNC;",
        "+constexpr bool ASYNC = LOAD_ASYNC == LOAD_ASYNC;",
        "-constexpr int ROWS = 16 * 2;  // of TILE",
        "+constexpr int ROWS = 32 * 2;  // of TILE",
        "-#if TILE > 16 && !defined(OTHER)  // false",
        "+#if TILE > 16 && !defined(OTHER)",
        "+int large;",
        "-#elif LOAD == LOAD_SCALAR  // true",
        "+#elif LOAD == LOAD_SCALAR  // false",
        "-int small_scalar;",
        "@kernel.cu, line 10",
        "+int small;",
        "@kernel.cu, line 13",
        "-  if constexpr (ASYNC) {  // false",
        "+  if constexpr (ASYNC) {  // true",
        "+    copy();",
        "-  } else if constexpr (LOAD == LOAD_VECTOR) {  // false",
        "@kernel.cu, line 17",
        "-  } else {",
        "-    scalar();",
        "-  }",
    ]


def test_what_is_alike_is_not_told() -> None:
    """Equal candidates have no difference, and a gene that stands in no code makes none."""
    one = Config({"LOAD": "scalar", "TILE": 16})
    assert told(one, one) == []
    assert told(one, one.replace(TILE=64), {"kernel.cu": "// TILE alone\nint x;\n"}) == []


@pytest.mark.parametrize(
    "condition",
    [
        "__import__('os').system('x')", "TILE.real", "[x for x in (1,)]", "lambda: TILE", "TILE ** 9 ** 9 ** 9",
        "(" * 300,
        "TILE << 99999999", "f'{TILE}'", "TILE ? 1 : 0", "TILE if LOAD else 0", "9" * 399, "", "TILE /* x */ > 1",
    ],
)  # fmt: skip
def test_conditions_are_evaluated_without_running_code(condition: str) -> None:
    """What is no comparison of numbers stays undecided: in both candidates alike, at once, and nothing of it runs."""
    files = {"kernel.cu": f"void k() {{\n  if constexpr ({condition}) {{\n    a();\n  }}\n}}\n"}
    found = told(Config({"LOAD": "scalar", "TILE": 16}), Config({"LOAD": "async", "TILE": 32}), files)
    assert not any("a();" in line for line in found)


def test_constants_that_name_each_other_end() -> None:
    """A circle of constants is undecided."""
    branch = "void k() {\n  if constexpr (A > 1) {\n    a();\n  }\n}\n"
    files = {"kernel.cu": f"constexpr int A = B + TILE;\nconstexpr int B = A;\n{branch}"}
    found = told(Config({"LOAD": "scalar", "TILE": 16}), Config({"LOAD": "scalar", "TILE": 32}), files)
    assert found == ["@kernel.cu, line 1", "-constexpr int A = B + 16;", "+constexpr int A = B + 32;"]


def test_a_long_difference_is_cut_and_says_so() -> None:
    """At most so many lines are told, and how many are left out."""
    files = {"kernel.cu": "int a = TILE;\n" * 200}
    found = told(Config({"LOAD": "scalar", "TILE": 16}), Config({"LOAD": "scalar", "TILE": 32}), files)
    assert len(found) == MOST_LINES + 1
    assert found[-1] == f"@and {400 - (MOST_LINES - 1)} more lines"


def test_without_a_source_nothing_is_known() -> None:
    """A recording has no source."""
    assert not SourceDifference({}, GENES).known
