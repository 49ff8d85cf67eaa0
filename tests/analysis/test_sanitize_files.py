"""`evokern sanitize FILE.cu` on files of other people: their types, their missing headers, the compiler's own words."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)

LAUNCH = ("--grid", "1", "--block", "32", "--arg", "out:f32[32]")
TYPES = """#include <cstdio>
struct T1 { static constexpr int n = 4; };
namespace modes { enum class Mode { fast, exact }; }
template <class T> __global__ void k(float* out) { out[threadIdx.x] = T::n; }
template <modes::Mode M> __global__ void m(float* out) { out[threadIdx.x] = M == modes::Mode::fast ? 1 : 2; }
template <class T> __global__ void bad(float* out) { out[threadIdx.x] = T::absent; }
template <int N> __global__ void even(float* out) {
  static_assert(N % 2 == 0, "N must be even");
  out[threadIdx.x] = N;
}
int main() { k<T1><<<1, 32>>>(nullptr); }
"""


def _sanitized(path: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["sanitize", str(path), *LAUNCH, *arguments])
    return result.exit_code, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("entry", "code", "told"),
    [
        ("k<T1>", 0, "clean: nothing was found"),
        ("m<modes::Mode::exact>", 0, "clean: nothing was found"),
        ("bad<T1>", 2, 'types.cu:6: class "T1" has no member "absent"'),
        ("even<3>", 2, 'types.cu:8: static assertion failed with "N must be even"'),
        ("k<T2>", 2, "no entry point 'k<T2>': identifier \"T2\" is undefined"),
    ],
)
def test_an_entry_takes_types_of_the_file(tmp_path: Path, entry: str, code: int, told: str) -> None:
    """A type that only host code names may be a template's argument; what is wrong is said as the compiler says it."""
    (tmp_path / "types.cu").write_text(TYPES)
    found, text = _sanitized(tmp_path / "types.cu", "--entry", entry)
    assert (found, told in text) == (code, True), text


def test_missing_headers_come_before_the_errors_that_follow_from_them(tmp_path: Path) -> None:
    """Each quoted header that is not there is named, line and file, nested ones too, ahead of the first error."""
    (tmp_path / "own.cuh").write_text('#pragma once\n\n  #include "nested.cuh"\n')
    (tmp_path / "k.cu").write_text(
        '#include "own.cuh"\n#include "utils.h"\n__global__ void k(float* out) { out[W] = 1; }\n'
    )
    code, text = _sanitized(tmp_path / "k.cu")
    assert code == 2
    assert text.startswith('evokern: not found: "utils.h" (line 2), "nested.cuh" (line 3 of own.cuh); ')
    assert "with -I" in text and text.index("with -I") < text.index('k.cu:3: identifier "W" is undefined')


def test_a_header_in_angle_brackets_that_was_left_out_is_a_suspect(tmp_path: Path) -> None:
    """What is no host library by name and was taken for one is named, where the compile fails."""
    (tmp_path / "k.cu").write_text(
        "#include <vector>\n#include <my/helpers.cuh>\n__global__ void k(float* out) { out[helper()] = 1; }\n"
    )
    code, text = _sanitized(tmp_path / "k.cu")
    assert code == 2
    assert 'k.cu:3: identifier "helper" is undefined (treated as host headers and skipped: "my/helpers.cuh"' in text
    assert " -I" in text
