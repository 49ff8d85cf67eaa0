"""Feasibility names the violated constraint with what was needed and what there is."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paths import KERNELS

from evokern import (
    AtMost,
    Constraint,
    Kernel,
    Launch,
    Mutation,
    Parameter,
    ProblemField,
    Tensor,
    Tolerance,
    VectorAccess,
    Workload,
    divides,
    i32,
)
from evokern.declaration.feasibility import REMEMBERED, check, feasible_space
from evokern.declaration.genes import Relieves, Value
from evokern.declaration.kernel import Problem, i64
from evokern.declaration.space import Space
from evokern.errors import DeviceError, KernelError, SpaceError
from evokern.hardware.profiles import CHIPS, Profile, chip, limits_for
from evokern.study.discovery import find_kernel, load_kernel
from evokern.wording import changed_genes_text, low_priority_values_text


def _kernel(**changes: object) -> Kernel:
    workload = Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), "output")},
        reference=lambda p, t: {"y": 2 * t["x"]},
        tolerance={"y": Tolerance(1e-6, 1e-6)},
        flops=lambda p: p.N,
        bytes=lambda p: 8 * p.N,
    )
    settings: dict[str, object] = {
        "name": "double",
        "genes": (
            Mutation("LOADS", ("scalar", "vector16", "bulk"), min_compute_capability={"bulk": (9, 0)}),
            Parameter("THREADS", (128, 256, 2048), default=256),
            Parameter("TILE", (32, 48, 64), default=64),
            Parameter("STAGES", (1, 2, 4), when={"LOADS": ("vector16", "bulk")}),
            Parameter("MIN_BLOCKS", (1, 8, 32)),
        ),
        "fields": (ProblemField("N"),),
        "launches": lambda c, p: [
            Launch(
                "double_it", -(-p.N // c.TILE), c.THREADS, ("x", "y", i32(p.N)),
                shared_bytes=c.STAGES * c.TILE * 1024, min_blocks=c.MIN_BLOCKS,
            )
        ],
        "workload": workload,
        "constraints": (Constraint("tile_divides", lambda c, p: divides(c.TILE, p.N), "no tails"),),
        "vector_accesses": lambda c, p: (
            [VectorAccess("x", 16, (p.N * 4,))] if c["LOADS"] == "vector16" else []
        ),
    }  # fmt: skip
    return Kernel(**(settings | changes))  # type: ignore[arg-type]


def _violation(kernel: Kernel, n: int, on: str = "l4", **genes: int | str) -> tuple[str, float, float] | None:
    config = kernel.space.with_changes(kernel.space.default(), genes)
    found = check(kernel, config, [kernel.problem({"N": n})], chip(on))
    return (found.constraint, found.needed, found.available) if found else None


@pytest.mark.parametrize(
    ("n", "genes", "expected"),
    [
        (192, {}, None),
        (100, {}, ("tile_divides", 36, 0)),
        (192, {"THREADS": 2048}, ("block_extent", 2048, 1024)),
        (192, {"LOADS": "vector16", "STAGES": 2}, ("shared_memory_per_block", 131072, 101376)),
        (192, {"MIN_BLOCKS": 8, "TILE": 32}, ("shared_memory_per_sm", 270336, 102400)),
        (192, {"LOADS": "bulk"}, ("compute_capability", 9.0, 8.9)),
        (33 * 2, {"LOADS": "vector16", "TILE": 32}, ("tile_divides", 2, 0)),
    ],
)
def test_each_limit_is_named_with_needed_and_available(
    n: int, genes: dict[str, int | str], expected: tuple[str, float, float] | None
) -> None:
    """A rejected candidate names the constraint, what it needed and what there is."""
    assert _violation(_kernel(), n, **genes) == expected


def test_misaligned_vector_rows_are_infeasible() -> None:
    """A 16-byte access over a stride that is no multiple of 16 is refused before the compile."""
    kernel = _kernel(constraints=())
    assert _violation(kernel, 33, LOADS="vector16", TILE=32) == ("vector_alignment", 4, 0)
    assert _violation(kernel, 32, LOADS="vector16", TILE=32) is None


def test_launch_bounds_are_held_against_the_sm() -> None:
    """Resident blocks that launch bounds promise must exist."""
    kernel = _kernel(launches=lambda c, p: [Launch("k", 1, c.THREADS, (), min_blocks=c.MIN_BLOCKS)])
    assert _violation(kernel, 192, MIN_BLOCKS=32) == ("blocks_per_sm", 32, 24)
    assert _violation(kernel, 192, MIN_BLOCKS=8) == ("threads_per_sm", 2048, 1536)
    assert _violation(kernel, 192, "h200", MIN_BLOCKS=8) is None


def test_limits_of_another_chip_and_single_overrides() -> None:
    """`limits` lowers a chip's limits; it can never raise them."""
    h200 = chip("h200")
    assert limits_for(h200, {"chip": "l4"}).shared_bytes_per_block == 101_376
    assert limits_for(h200, {"shared_bytes_per_block": 49_152}).shared_bytes_per_block == 49_152
    with pytest.raises(DeviceError, match="out of range"):
        limits_for(chip("l4"), {"shared_bytes_per_block": 232_448})
    with pytest.raises(DeviceError, match="did you mean 'shared_bytes_per_block'"):
        limits_for(h200, {"shared_bytes_per_blok": 1})
    with pytest.raises(DeviceError, match="known: l4"):
        chip("l5x")


def test_a_constraint_that_raises_names_itself_and_the_candidate() -> None:
    """A fault in a declared function is the kernel author's, and says which function and candidate."""
    broken = _kernel(constraints=(Constraint("bad", lambda c: 1 // 0 == 0, "never"),))
    with pytest.raises(KernelError, match=r"constraint bad raised ZeroDivisionError: .* for \{'LOADS': 'scalar', "):
        _violation(broken, 192)


def test_every_chip_rate_has_a_source() -> None:
    """No number of a chip stands without its source."""
    wanted = {"sms", "clock_mhz", "l2_bytes", "dram_bytes_per_s", "tensor_flops_per_clock", "l2_bytes_per_clock_per_sm"}
    limits = {"shared_bytes_per_block", "shared_bytes_per_sm", "registers_per_sm", "threads_per_sm", "blocks_per_sm"}
    for profile in CHIPS.values():
        assert (wanted | limits) - profile.sources.keys() == set()


def test_tensor_rates_reproduce_the_published_figures() -> None:
    """SMs × clock × rate gives the vendor's dense fp16 figure."""
    published = {"l4": 121e12, "rtx4090": 330.3e12, "a100": 312e12}
    for name, figure in published.items():
        profile = chip(name)
        rate = profile.sms * profile.clock_mhz * 1e6 * profile.tensor_peak_flops_per_clock
        assert rate == pytest.approx(figure, rel=0.01)


def test_narrowed_genes_and_unknown_ones() -> None:
    """A study may narrow genes; unknown genes and values are named."""
    kernel = _kernel()
    problems = [kernel.problem({"N": 192})]
    space = feasible_space(kernel, problems, chip("l4"), {"THREADS": (128,), "loads": ("scalar",)})
    assert {c.THREADS for c in space.grid()} == {128}
    assert space.default().THREADS == 128
    with pytest.raises(SpaceError, match="did you mean 'THREADS'"):
        feasible_space(kernel, problems, chip("l4"), {"THREAD": (128,)})
    with pytest.raises(SpaceError, match="cannot be '100'"):
        feasible_space(kernel, problems, chip("l4"), {"THREADS": (100,)})


def test_a_change_that_does_not_count_is_told_with_what_it_needs() -> None:
    """A gene that is inactive is named with the values that make it active, conditions of those included."""
    genes = (
        *_kernel().genes,
        Parameter("DEPTH", (1, 2, 3), when={"STAGES": (2, 4)}),
        Parameter("REACH", (1, 2), when={"LOADS": ("vector16",), "TILE": (32,)}),
    )
    space = Space(genes)

    def told(**changes: str | int) -> tuple[str, ...]:
        return space.without_effect(space.with_changes(space.default(), changes), changes)

    assert told(STAGES=4, THREADS=128) == ("STAGES=4 has no effect with LOADS=scalar; it needs LOADS=vector16|bulk",)
    assert told(STAGES=4, loads="bulk") == told(STAGES=1) == told() == ()
    assert told(depth="3", REACH=2, TILE=32) == (
        "DEPTH=3 has no effect with LOADS=scalar and STAGES=1; it needs LOADS=vector16|bulk and STAGES=2|4",
        "REACH=2 has no effect with LOADS=scalar; it needs LOADS=vector16",
    )


@given(st.integers(0, 2**32))
def test_canonical_configurations_are_fixed_points(seed: int) -> None:
    """Drawn configurations are canonical, and their neighbours are different and canonical."""
    space = _kernel().space
    config = space.draw(random.Random(seed))
    assert space.canonical(config) == config
    for other in space.neighbours(config):
        assert other != config
        assert space.canonical(other) == other


def test_grid_lists_each_distinct_configuration_once() -> None:
    """Inactive genes do not multiply the grid."""
    space = _kernel().space
    cells = list(space.grid())
    assert len(cells) == len(set(cells)) == (1 + 3 + 3) * 3 * 3 * 3
    assert Space(space.genes, table=tuple(cells[:5])).feasible(cells[5]) is False


def test_need_holds_up_to_what_is_available() -> None:
    """Equal is enough."""
    assert (AtMost(4, 4).holds, AtMost(5, 4).holds) == (True, False)


@given(st.integers(0, 2**32))
def test_the_quick_answer_is_the_explained_one(seed: int) -> None:
    """What samplers ask in bulk agrees with `check`, which names the constraint."""
    kernel = _kernel()
    problems = [kernel.problem({"N": 192}), kernel.problem({"N": 96})]
    space = feasible_space(kernel, problems, chip("l4"))
    config = space.draw(random.Random(seed))
    assert space.feasible(config) == (check(kernel, config, problems, chip("l4")) is None)


def test_a_constraint_that_raises_is_named_in_the_quick_answer_too() -> None:
    """Samplers learn of a broken constraint by its name."""
    broken = _kernel(constraints=(Constraint("bad", lambda c: 1 // 0 == 0, "never"),))
    space = feasible_space(broken, [broken.problem({"N": 192})], chip("l4"))
    with pytest.raises(KernelError, match="constraint bad raised ZeroDivisionError"):
        space.feasible(space.default())


def test_violations_read_naturally() -> None:
    """A remainder is no thing that one has, what is used up is too much of it, a condition has no amount."""
    from evokern.declaration.feasibility import Violation

    said = [
        str(Violation("whole_vectors", 1, 0, "a tail", "left over")),
        str(Violation("whole_rows", 16, 0, "a tail", "rows left over")),
        str(Violation("swizzled", 1, 0, "chunks are swizzled")),
        str(Violation("row_registers", 0, -8, "it spills", "registers")),
        str(Violation("warps", 16, 8, "too small", "warps")),
    ]
    assert said == [
        "whole_vectors: 1 left over, must be 0 (a tail)",
        "whole_rows: 16 rows left over, must be 0 (a tail)",
        "swizzled: chunks are swizzled",
        "row_registers: 8 registers too many (it spills)",
        "warps: needs 16 warps, has 8 warps (too small)",
    ]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"for_study": ("bulky",)}, "gene G .*'bulky': did you mean 'bulk'"),
        ({"for_study": "bulk"}, r'write for_study=\("bulk",\)'),
        ({"for_study": ("scalar",)}, "for_study marks its default 'scalar'"),
        ({"less_precise": ("scalar",)}, "less_precise marks its default 'scalar'"),
        ({"less_precise": "bulk"}, r'write less_precise=\("bulk",\)'),
        ({"less_precise": ("bulky",)}, "gene G .*'bulky': did you mean 'bulk'"),
        ({"for_chips": {"bulky": ("h200",)}}, "gene G .*'bulky': did you mean 'bulk'"),
        ({"for_chips": {"bulk": "h200"}}, r'for_chips\[.bulk.\] .*; write \("h200",\)'),
        ({"for_chips": {"bulk": ("h20",)}}, "unknown chip 'h20' for value 'bulk': did you mean 'h200'"),
    ],
)
def test_marks_name_values_and_chips_that_there_are(given: dict[str, Any], told: str) -> None:
    """A mistake in a declaration is told with its remedy."""
    with pytest.raises(SpaceError, match=told):
        Mutation("G", ("scalar", "vector", "bulk"), **given)


def test_marks_are_bound_to_the_chip_and_to_the_values_that_are_left() -> None:
    """Where a study leaves nothing but marked values, none of them is late; the space stays the same."""
    genes = (
        Mutation("LOADS", ("vector16", "scalar", "strided"), for_study=("scalar", "strided")),
        Parameter("BLOCKS", (132, 58, 108), for_chips={132: ("h100", "h200"), 58: ("l4",)}),
        Mutation("SUM", ("fp32", "fp16"), less_precise=("fp16",)),
    )
    bare = (
        Mutation("LOADS", ("vector16", "scalar", "strided")),
        Parameter("BLOCKS", (132, 58, 108)),
        Mutation("SUM", ("fp32", "fp16")),
    )
    assert genes == bare
    kernel = _kernel(
        genes=genes, constraints=(), launches=lambda c, p: [Launch("double_it", 1, 128, ("x", "y", i32(p.N)))]
    )
    problems = [kernel.problem("256")]

    def late(name: str, **narrowed: tuple[str | int, ...]) -> dict[str, tuple[str | int, ...]]:
        found = dict(feasible_space(kernel, problems, CHIPS[name], narrowed).low_priority)
        assert found.pop("SUM") == ("fp16",)
        return found

    assert late("h200") == {"LOADS": ("scalar", "strided"), "BLOCKS": (58,)}
    assert late("l4") == {"LOADS": ("scalar", "strided"), "BLOCKS": (132,)}
    assert late("a100") == {"LOADS": ("scalar", "strided"), "BLOCKS": (132, 58)}
    assert late("l4", LOADS=("scalar", "strided"), BLOCKS=(132,)) == {}
    assert late("l4", LOADS=("vector16", "strided"), BLOCKS=(58, 132)) == {"LOADS": ("strided",), "BLOCKS": (132,)}
    space = feasible_space(kernel, problems, CHIPS["l4"])
    assert all(space.feasible(config) for config in space.grid())
    assert len(list(space.grid())) == 18
    assert "SUM" not in feasible_space(kernel, problems, CHIPS["l4"], {"SUM": ("fp16",)}).low_priority


@pytest.mark.parametrize(
    ("point", "told"),
    [
        ({"TILES": 64}, "kernel double: starting point 2: there is no gene 'TILES': did you mean 'TILE'"),
        ({"TILE": 46}, "starting point 2: gene TILE cannot be 46: .*32, 48, 64"),
        ({"TILE": "64"}, "starting point 2: gene TILE cannot be '64': write 64"),
        ({"TILE": 32.0}, r"starting point 2: gene TILE cannot be 32\.0: write 32"),
        ({"LOADS": {"bulk"}}, r"gene LOADS cannot be \{'bulk'\}: .*'scalar', 'vector16', 'bulk'"),
        ({"STAGES": 2}, "starting point 2 sets STAGES, .*`when`.*inactive"),
        ("TILE", r"starting point 2 is 'TILE'; .* mapping"),
        ({"TILE": 64}, "starting point 2 repeats the default candidate"),
        ({"MIN_BLOCKS": True, "TILE": 48}, "starting point 2 repeats starting point 1"),
    ],
)
def test_a_starting_point_says_what_it_changes(point: object, told: str) -> None:
    """One that names what there is not, or what changes nothing, is refused when the folder is loaded."""
    with pytest.raises(KernelError, match=told):
        _kernel(starting_points=({"TILE": 48}, point))


@pytest.mark.parametrize("given", [{"TILE": 48}, "TILE", None, 5])
def test_starting_points_are_a_sequence(given: object) -> None:
    """A comma that is missing behind a single one is told."""
    with pytest.raises(KernelError, match=r"kernel double: starting_points is .*; use a tuple of mappings .* a comma"):
        _kernel(starting_points=given)
    assert _kernel(starting_points=[{"TILE": 48}]).starting_points == ({"TILE": 48},)


def test_starting_points_for_a_problem_come_first() -> None:
    """A function of the problem and the chip adds some; a repeated one is tried once, and a wrong one named."""

    def points_at(p: Problem, chip: Profile) -> list[dict[str, Value]]:
        return [{"TILE": 48 if p.N > 100 else 32}, {"THREADS": 128}, {"TILE": 46 if chip.name == "l4" else 32}]

    kernel = _kernel(starting_points=({"THREADS": 128}, {"STAGES": 2, "LOADS": "bulk"}), starting_points_at=points_at)

    def points(chip: str, *problems: str) -> list[str]:
        found = feasible_space(kernel, [kernel.problem(text) for text in problems], CHIPS[chip])
        return [changed_genes_text(point, kernel.genes) for point in found.starting_configs()]

    assert points("h200", "192") == ["TILE=48", "THREADS=128", "TILE=32", "LOADS=bulk STAGES=2"]
    assert points("h200", "64", "192") == ["TILE=32", "THREADS=128", "TILE=48", "LOADS=bulk STAGES=2"]
    with pytest.raises(KernelError, match="starting point 3: gene TILE cannot be 46"):
        points("l4", "192")


def test_starting_points_keep_to_the_values_that_a_study_leaves() -> None:
    """They stand in declared order; those with a value that the study leaves out are left out; defaults follow it."""
    kernel = _kernel(
        starting_points=({"LOADS": "bulk", "STAGES": 4}, {"LOADS": "vector16", "TILE": 32}, {"THREADS": 128})
    )

    def points(**narrowed: tuple[str | int, ...]) -> list[str]:
        found = feasible_space(kernel, [kernel.problem("192")], CHIPS["h200"], narrowed)
        return [changed_genes_text(point, kernel.genes) for point in found.starting_configs()]

    assert points() == ["LOADS=bulk STAGES=4", "LOADS=vector16 TILE=32", "THREADS=128"]
    assert points(LOADS=("scalar", "vector16")) == ["LOADS=vector16 TILE=32", "THREADS=128"]
    assert points(TILE=(48,)) == ["LOADS=bulk TILE=48 STAGES=4", "THREADS=128 TILE=48"]
    assert points(MIN_BLOCKS=(8, 32), STAGES=(4,)) == [
        "LOADS=bulk STAGES=4 MIN_BLOCKS=8",
        "LOADS=vector16 TILE=32 STAGES=4 MIN_BLOCKS=8",
        "THREADS=128 STAGES=4 MIN_BLOCKS=8",
    ]


def test_marks_are_told_in_words() -> None:
    """`check` says which values are tried late, and why."""
    assert (
        low_priority_values_text(Mutation("LOADS", ("vector16", "scalar"), for_study=("scalar",)))
        == "LOADS=scalar for study"
    )
    blocks = Parameter("BLOCKS", (132, 58, 264), for_chips={132: ("h100", "h200"), 58: ("l4",), 264: ("h100", "h200")})
    assert low_priority_values_text(blocks) == "BLOCKS=132|264 for h100 and h200, 58 for l4"
    half = Mutation("SUM", ("fp32", "bf16", "fp16"), for_study=("bf16",), less_precise=("bf16", "fp16"))
    assert low_priority_values_text(half) == "SUM=bf16 for study, bf16|fp16 less precise"
    assert low_priority_values_text(Parameter("TILE", (16, 32))) == ""


@pytest.mark.parametrize(
    ("relieves", "told"),
    [
        (("memmory",), "gene G: unknown cause 'memmory' in relieves: did you mean 'memory'"),
        ("memory", r'write relieves=\("memory",\)'),
        ({"memory": 0}, "gene G: weight 0 of memory"),
    ],
)
def test_what_a_gene_relieves_is_a_cause_that_is_known(relieves: Relieves, told: str) -> None:
    """A misspelt cause, a bare word and a weight that says nothing are refused where the gene is declared."""
    with pytest.raises(SpaceError, match=told):
        Parameter("G", (1, 2), relieves=relieves)


def test_what_genes_relieve_is_no_part_of_the_space() -> None:
    """Genes that differ in it alone are the same genes: a study goes on where a declaration adds it."""
    assert Parameter("G", (1, 2), relieves=("memory", "launch")).relieves == {"memory": 1, "launch": 1}
    assert Parameter("G", (1, 2), relieves={"memory": 2}) == Parameter("G", (1, 2))


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        (i32, r"argument 2 of k is the function i32 itself; call it .*i32\(p.N\)"),
        (0.5, r"argument 2 of k is the plain number 0.5; .*f32\(0.5\)"),
        (7, r"argument 2 of k is the plain number 7; .*i32\(7\)"),
        (None, r"argument 2 of k is None; .*i32\(p.N\)"),
    ],
)
def test_an_argument_without_a_type_is_refused(argument: object, told: str) -> None:
    """What is neither a tensor's name nor a number with its type is named where it is declared."""
    with pytest.raises(KernelError, match=told):
        Launch("k", 1, 32, ("x", argument))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: i32(2.5), "2.5.* is not a whole number"),  # type: ignore[arg-type]
        (lambda: i32(2**31), r"i32\(2147483648\) does not fit.* i64"),
        (lambda: i64(-(2**63) - 1), "does not fit"),
    ],
)
def test_a_whole_argument_is_whole_and_fits(make: Callable[[], object], told: str) -> None:
    """A number is passed as it is, or refused: never cut off."""
    assert [i32(4.0).value, i32(-(2**31)).value, i64(2**31).value] == [4, -(2**31), 2**31]  # type: ignore[arg-type]
    with pytest.raises(KernelError, match=told):
        make()


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, "0.1", True, None])
@pytest.mark.parametrize("name", ["atol", "rtol"])
def test_a_tolerance_is_finite_and_not_negative(name: str, value: object) -> None:
    """What cannot be a tolerance is refused with its name and value; zero asks for the exact answer."""
    assert Tolerance(0, 0) == Tolerance(0.0, 0.0)
    with pytest.raises(KernelError, match=rf"{name} = .* is not a tolerance"):
        Tolerance(**{"atol": 0.0, "rtol": 0.0, name: value})  # type: ignore[arg-type]


def test_a_tolerance_grows_with_the_largest_of_more_errors() -> None:
    """Beyond the number of elements that it was chosen for; what a study says in its place holds for any number."""
    chosen = Tolerance(1e-3, 2e-3, {"bf16": Tolerance(8e-3, 8e-3)}, elements=2**10)

    def of(elements: int, dtype: str = "f16", tolerance: Tolerance = chosen) -> tuple[float, float]:
        found = tolerance.for_tensor(Tensor(dtype, (elements,), "output"))
        return found.atol, found.rtol

    assert of(1) == of(2**10) == (1e-3, 2e-3)
    assert of(2**20) == pytest.approx((math.sqrt(2) * 1e-3, math.sqrt(2) * 2e-3))
    assert of(2**20, "bf16") == pytest.approx((math.sqrt(2) * 8e-3, math.sqrt(2) * 8e-3))
    assert of(2**20, tolerance=chosen.overridden(None, None)) == of(2**20)
    assert of(2**20, tolerance=chosen.overridden(5e-3, None)) == (5e-3, 2e-3)
    assert of(2**20, tolerance=Tolerance(1e-3, 0.0)) == (1e-3, 0.0)
    # The law itself: the largest of so many normal values.
    largest = [
        float(torch.randn(n, generator=torch.Generator().manual_seed(seed)).abs().max())
        for n in (2**10, 2**20)
        for seed in range(20)
    ]
    assert fmean(largest[20:]) / fmean(largest[:20]) == pytest.approx(math.sqrt(2), rel=0.05)
    with pytest.raises(KernelError, match=r"to 1 elements; .* at least 2"):
        Tolerance(1e-3, 0.0, elements=1)


def test_a_tolerance_may_depend_on_the_dtype() -> None:
    """What holds is the output's own; a study's parts replace those of every dtype; an unknown dtype is refused."""
    brain = Tolerance(1e-3, 1e-2)
    both = Tolerance(0.0, 1e-3, {"bf16": brain})
    assert (both.of("bf16"), both.of("f16"), Tolerance(0.0, 1e-3).of("bf16")) == (brain, both, Tolerance(0.0, 1e-3))
    assert both.overridden(None, 0.5).of("bf16") == Tolerance(1e-3, 0.5)
    assert both.overridden(0.25, None).of("f16").atol == 0.25 and both.overridden(None, None) == both
    with pytest.raises(KernelError, match="dtype 'bf61': did you mean 'bf16'"):
        Tolerance(0.0, 0.0, {"bf61": brain})


@pytest.mark.parametrize(
    ("grid", "block", "told"),
    [(1, -32, "the block is empty: -32 along x"), ((1, -2), 32, "the grid is empty: -2 along y")],
)
def test_a_negative_extent_is_named(grid: object, block: object, told: str) -> None:
    """A launch without blocks or threads is infeasible, and says what its extent is."""
    kernel = replace(find_kernel("rmsnorm"), launches=lambda c, p: [Launch("k", grid, block, ())], constraints=())  # type: ignore[arg-type]
    violation = check(kernel, kernel.space.default(), [kernel.problem("8,1024")], CHIPS["l4"])
    assert told in str(violation)


def test_what_is_remembered_of_a_large_space_is_bounded() -> None:
    """A search asks about tens of thousands of configurations, few of them twice: memory does not grow with them."""
    kernel = load_kernel(KERNELS / "matmul")
    space = feasible_space(kernel, [kernel.problem("1024,1024,1024")], CHIPS["h200"])
    rng = random.Random(0)
    asked = [space.draw(rng) for _ in range(REMEMBERED // 2)]
    answers = [space.feasible(config) for config in asked]
    tracemalloc.start()
    for _ in range(2 * REMEMBERED):
        space.feasible(space.draw(rng))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 2048 * REMEMBERED
    assert answers == [space.feasible(config) for config in asked]


@pytest.mark.parametrize(
    ("given", "extents"), [(None, None), (2, (2, 1, 1)), ((2, 2), (2, 2, 1)), ((1, 4, 1), (1, 4, 1))]
)
def test_a_cluster_is_given_as_a_grid_is(given: Any, extents: tuple[int, int, int] | None) -> None:
    """One to three extents, the others 1."""
    assert Launch("k", 8, 32, (), cluster=given).cluster == extents


@pytest.mark.parametrize(
    ("cluster", "on", "expected"),
    [
        (1, "l4", None),
        (2, "l4", ("compute_capability", 9.0, 8.9)),
        (16, "h200", None),
        (17, "h200", ("cluster_blocks", 17, 16)),
        (3, "h200", ("cluster", 2, 0)),
    ],
)
def test_clusters_that_no_chip_takes_are_named(
    cluster: int, on: str, expected: tuple[str, float, float] | None
) -> None:
    """One block is no cluster, on any chip; more need Hopper, at most 16 of them, and whole clusters."""
    kernel = _kernel(launches=lambda c, p: [Launch("double_it", 16 * 17, 32, ("x", "y"), cluster=cluster)])
    assert _violation(kernel, 192, on) == expected


@pytest.mark.parametrize("given", [0, (2, 0, 1), (), (1, 1, 1, 1), (1.5,)])
def test_a_cluster_that_is_none_is_a_mistake_of_the_kernel(given: Any) -> None:
    """What has no blocks, or no whole number of them, is named, and nothing is divided by it."""
    with pytest.raises(KernelError, match="cluster"):
        Launch("k", 8, 32, (), cluster=given)
