"""A candidate's program is its source as it is plus macros."""

from __future__ import annotations

from pathlib import Path

import pytest

from evokern import Kernel, Launch, Mutation, Parameter, ProblemField, Tensor, Tolerance, Workload
from evokern.compile.build import Target, build
from evokern.compile.records import Built
from evokern.declaration.render import render
from evokern.errors import KernelError, SpaceError
from evokern.export.trace import trace
from evokern.hardware.profiles import CHIPS

_TARGET = Target(CHIPS["l4"], None)


def _kernel(folder: Path, **changes: object) -> Kernel:
    (folder / "kernel.cu").write_text('#include "tile.cuh"\n__global__ void k() {}\n')
    (folder / "tile.cuh").write_text("// tile\n")
    (folder / "reference.h").write_text("// reference\n")
    workload = Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), "output")},
        reference=lambda p, t: {"y": t["x"]},
        tolerance={"y": Tolerance(0, 0)},
        flops=lambda p: 0,
        bytes=lambda p: 8 * p.N,
    )
    settings: dict[str, object] = {
        "name": "k",
        "genes": (Mutation("LOADS", ("scalar", "cp.async")), Parameter("TILE", (32, 64))),
        "fields": (ProblemField("N"),),
        "launches": lambda c, p: [Launch("k", 1, c.TILE, ("x", "y")), Launch("k", 2, c.TILE, ("x", "y"))],
        "workload": workload,
        "macros": lambda c, p: {"N_STATIC": p.N},
        "options": ("--use_fast_math",),
        "folder": folder,
    }
    return Kernel(**(settings | changes))  # type: ignore[arg-type]


def test_named_choices_arrive_as_numbered_constants(tmp_path: Path) -> None:
    """`LOADS=cp.async` becomes a constant the source can compare with."""
    kernel = _kernel(tmp_path)
    config = kernel.space.with_changes(kernel.space.default(), {"loads": "cp.async"})
    rendered = render(kernel, config, kernel.problem("7"))
    assert rendered.macros == {
        "LOADS_SCALAR": "0", "LOADS_CP_ASYNC": "1", "LOADS": "LOADS_CP_ASYNC", "TILE": "32", "N_STATIC": "7",
    }  # fmt: skip
    assert rendered.options[-1] == "--use_fast_math"
    assert rendered.entries == ("k",)


def test_headers_travel_with_the_source_but_the_reference_does_not(tmp_path: Path) -> None:
    """The compile key sees every header that the device code can include."""
    rendered = render(_kernel(tmp_path), _kernel(tmp_path).space.default(), _kernel(tmp_path).problem("7"))
    assert rendered.headers == {"tile.cuh": "// tile\n"}


def test_a_problem_macro_cannot_hide_a_gene(tmp_path: Path) -> None:
    """A macro with a gene's name would make the gene change nothing."""
    kernel = _kernel(tmp_path, macros=lambda c, p: {"TILE": 1})
    with pytest.raises(KernelError, match="macro TILE is already a gene"):
        render(kernel, kernel.space.default(), kernel.problem("7"))


def test_problem_text_is_positional_then_named(tmp_path: Path) -> None:
    """Shapes read as the field writes them, and errors say what the kernel takes."""
    kernel = _kernel(
        tmp_path, fields=(ProblemField("N"), ProblemField("D", (64, 128)), ProblemField("causal", (0, 1), 0))
    )
    assert dict(kernel.problem("7, 64")) == {"N": 7, "D": 64, "causal": 0}
    assert dict(kernel.problem("7,128,causal=true")) == {"N": 7, "D": 128, "causal": 1}
    for text, message in {
        "7,96": "D=96 is not supported.* 64, 128",
        "0,64": "N=0 is out of range",
        "7": "no value for D",
        "7,64,width=3": "no problem field 'width'",
        "seven,64": "N='seven' is not a whole number",
    }.items():
        with pytest.raises(KernelError, match=message):
            kernel.problem(text)


def test_a_field_that_came_later_leaves_texts_as_they_were(tmp_path: Path) -> None:
    """At its default it is a field like others but not in the text, which older records have; it needs a default."""
    fields = (ProblemField("N"), ProblemField("order", ("rows", "columns"), "rows", later=True))
    kernel = _kernel(tmp_path, fields=fields)
    old, new = kernel.problem("7"), kernel.problem("7,order=columns")
    assert (old.key, new.key, old["order"], new["order"]) == ("7", "7,order=columns", "rows", "columns")
    assert old.changed({"N": 8}).key == "8" and kernel.problem({**new, "order": "rows"}) == old
    with pytest.raises(KernelError, match=r"problem field order .*`later`, .* needs a default"):
        ProblemField("order", ("rows", "columns"), later=True)


_IN_TEMPLATE = """
template <int BLOCK_M, int D, class T> __global__ void k(const float* x, float* y) {
  __shared__ T tile[BLOCK_M];
  tile[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = static_cast<float>(tile[threadIdx.x]) + D;
}
"""
_WITH_CONSTANTS = """
#include "evokern_genes.h"
__global__ void k(const float* x, float* y) {
  if constexpr (genes::LOADS == genes::LOADS_CP_ASYNC) y[threadIdx.x] = 1;
  else y[threadIdx.x] = x[threadIdx.x] * genes::TILE;
}
"""


def test_a_template_gene_fills_its_place_in_the_entry(tmp_path: Path) -> None:
    """`{GENE}` becomes the value, also the name of a type; the gene is no macro, so a parameter may have its name."""
    genes = (Parameter("BLOCK_M", (32, 64), as_="template"), Mutation("T", ("float", "double"), as_="template"))
    kernel = _kernel(
        tmp_path, genes=genes, launches=lambda c, p: [Launch("k<{BLOCK_M}, 64, {T}>", 1, c.BLOCK_M, ("x", "y"))]
    )
    (tmp_path / "kernel.cu").write_text(_IN_TEMPLATE)
    config = kernel.space.with_changes(kernel.space.default(), {"BLOCK_M": 64, "T": "double"})
    rendered = render(kernel, config, kernel.problem("7"))
    assert rendered.entries == ("k<64, 64, double>",)
    assert rendered.macros == {"N_STATIC": "7"}
    built = [build(kernel, one, [kernel.problem("7")], _TARGET) for one in (config, kernel.space.default())]
    assert all(isinstance(one, Built) for one in built)
    assert built[0].fingerprint != built[1].fingerprint  # type: ignore[union-attr]
    assert trace(kernel, config, kernel.problem("7"), CHIPS["l4"]).launches[0].entry == "k<64, 64, double>"


def test_a_constexpr_gene_is_a_constant_of_the_generated_header(tmp_path: Path) -> None:
    """Numbers and named choices are constants in `namespace genes`, and each value makes another program."""
    kernel = _kernel(tmp_path, genes=(
        Mutation("LOADS", ("scalar", "cp.async"), as_="constexpr"), Parameter("TILE", (32, 64), as_="constexpr")
    ))  # fmt: skip
    (tmp_path / "kernel.cu").write_text(_WITH_CONSTANTS)
    programs = set()
    for changes in ({}, {"TILE": 64}, {"LOADS": "cp.async"}):
        config = kernel.space.with_changes(kernel.space.default(), changes)
        built = build(kernel, config, [kernel.problem("7")], _TARGET)
        assert isinstance(built, Built), built
        programs.add(built.programs[0].ptx)
    assert len(programs) == 3


def test_an_unknown_gene_in_an_entry_is_named(tmp_path: Path) -> None:
    """The message contains the name and the nearest gene; C++ braces with spaces or numbers stay."""
    kernel = _kernel(tmp_path, launches=lambda c, p: [Launch("k<{TIEL}>", 1, 1, ("x", "y"))])
    with pytest.raises(KernelError, match=r"'k<\{TIEL\}>': there is no gene 'TIEL': did you mean 'TILE'"):
        render(kernel, kernel.space.default(), kernel.problem("7"))
    kernel = _kernel(tmp_path, launches=lambda c, p: [Launch("k<int{4}, S{ N }, {TILE}>", 1, 1, ("x", "y"))])
    assert render(kernel, kernel.space.default(), kernel.problem("7")).entries == ("k<int{4}, S{ N }, 32>",)


def test_an_unknown_form_of_a_gene_is_refused() -> None:
    """A mistyped form is named with the nearest one."""
    with pytest.raises(SpaceError, match="gene TILE: as_='templat': did you mean 'template'"):
        Parameter("TILE", (1, 2), as_="templat")  # type: ignore[arg-type]


def test_a_written_generated_header_does_not_belong_to_the_kernel(tmp_path: Path) -> None:
    """Writing the header for an editor changes no digest; a file of the user with its name is refused."""
    kernel = _kernel(tmp_path)
    (tmp_path / "kernel.cu").write_text(_WITH_CONSTANTS)
    before = kernel.digest()
    header = render(kernel, kernel.space.default(), kernel.problem("7")).headers["evokern_genes.h"]
    (tmp_path / "evokern_genes.h").write_text(header.replace("32", "64"))
    assert kernel.digest() == before
    assert render(kernel, kernel.space.default(), kernel.problem("7")).headers["evokern_genes.h"] == header
    (tmp_path / "evokern_genes.h").write_text("#define TILE 3\n")
    with pytest.raises(KernelError, match=r"evokern_genes\.h has the name of the header that evokern generates"):
        kernel.digest()
