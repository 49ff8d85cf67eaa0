"""What a champion cannot change alone is kept at the end of a search, and the page says it."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_helpers import small_table, study

from evokern.api import search
from evokern.declaration.feasibility import Violation
from evokern.declaration.genes import Config, Mutation, Parameter
from evokern.declaration.space import Space
from evokern.device.recorded.table import TableDevice
from evokern.errors import KernelError, SpaceError
from evokern.report.facts import gather
from evokern.report.gene_values import GeneValues
from evokern.search.neighbours import infeasible_neighbours
from evokern.store import open_readonly

GENES = (
    Mutation("TENSOR_CORES", ("none", "wgmma")),
    Parameter("BLOCK_M", (32, 64, 128), default=64),
    Parameter("STAGES", (1, 2), when={"TENSOR_CORES": ("none",)}),
)


def violation(config: Config) -> Violation | None:
    if config["TENSOR_CORES"] == "wgmma" and config["BLOCK_M"] != 64:
        return Violation("wgmma_takes_64_rows", 64, int(config["BLOCK_M"]), "a warp group has 64 rows", "rows")
    return None


def test_changes_that_the_other_choices_forbid_are_told_with_the_rule() -> None:
    """Neither the champion's own values nor those that have no effect in it."""
    champion = Config({"TENSOR_CORES": "wgmma", "BLOCK_M": 64, "STAGES": 1})
    found = infeasible_neighbours(Space(GENES), violation, champion)
    assert [(one["gene"], one["value"], one["constraint"]) for one in found] == [
        ("BLOCK_M", 32, "wgmma_takes_64_rows"),
        ("BLOCK_M", 128, "wgmma_takes_64_rows"),
    ]
    assert found[0]["reason"] == "wgmma_takes_64_rows: needs 64 rows, has 32 rows (a warp group has 64 rows)"
    plain = Config({"TENSOR_CORES": "none", "BLOCK_M": 128, "STAGES": 2})
    assert [one["gene"] for one in infeasible_neighbours(Space(GENES), violation, plain)] == ["TENSOR_CORES"]


def test_a_second_change_that_lets_the_champion_take_it_is_named() -> None:
    """The first of each gene; nothing for a value beyond the declared ones, of which a constraint may not know."""
    champion = Config({"TENSOR_CORES": "wgmma", "BLOCK_M": 64, "STAGES": 1})
    narrow, wide = infeasible_neighbours(Space(GENES), violation, champion)
    assert narrow["together"] == wide["together"] == {"TENSOR_CORES": "none"}

    def few_rows(config: Config) -> Violation | None:
        rows = {32: 1, 64: 2, 128: 4}
        if int(config["BLOCK_M"]) not in rows:
            raise KernelError("constraint few_rows raised KeyError: 256")
        return None

    plain = Config({"TENSOR_CORES": "none", "BLOCK_M": 128, "STAGES": 2})

    def few_buffers(config: Config) -> Violation | None:
        return Violation("few_buffers", int(config["STAGES"]), 2, "no more", "buffers") if config.STAGES > 2 else None

    assert infeasible_neighbours(Space(GENES), few_rows, plain, beyond=True) == []
    assert infeasible_neighbours(Space(GENES), few_buffers, plain) == []
    (beyond,) = infeasible_neighbours(Space(GENES), few_buffers, plain, beyond=True)
    assert (beyond["gene"], beyond["value"], beyond["constraint"]) == ("STAGES", 4, "few_buffers")


def test_what_no_constraint_can_answer_for_is_left_out() -> None:
    """Changes that nobody ever proposed may divide by zero in a constraint: that ends no search."""
    genes = Space((Parameter("A", (0, 1)), Parameter("B", (0, 1)), Parameter("C", (1, 2))))
    champion = Config({"A": 0, "B": 0, "C": 1})

    def divides(config: Config) -> Violation | None:
        if config.A == 1 and config.B == 1:
            raise KernelError("constraint divides raised ZeroDivisionError: division by zero")
        if config.B == 1:
            raise SpaceError("C=3 is none of 1, 2")
        return Violation("divides", 1, 0, "no", "") if config.A == 1 else None

    (found,) = infeasible_neighbours(genes, divides, champion)
    assert (found["gene"], found["together"]) == ("A", {})


def test_an_edge_on_which_other_genes_depend_is_left_open() -> None:
    """Whether they have an effect beyond it nobody declared, so what is asked there would be another candidate."""
    genes = Space((Parameter("STAGES", (1, 2, 3)), Parameter("PIPE", (0, 1), when={"STAGES": (2, 3)})))
    champion = Config({"STAGES": 3, "PIPE": 1})

    def pipe(config: Config) -> Violation | None:
        return Violation("pipe", 1, 0, "no", "") if config.STAGES > 3 else None

    assert infeasible_neighbours(genes, pipe, champion, beyond=True) == []


@pytest.mark.parametrize(
    ("values", "at", "beyond"),
    [
        ((1, 2, 4, 8), 8, 16), ((1, 2, 4, 8), 1, None), ((1, 2, 4, 8), 4, None), ((2, 4, 8), 2, 1), ((1, 2, 3), 3, 4),
        ((32, 48, 64), 64, 80), ((32, 48, 64), 32, 16), ((0, 1), 1, 2), ((0, 1), 0, None), ((16, 64, 256), 256, 1024),
        ((7,), 7, None),
    ],
)  # fmt: skip
def test_what_comes_next_past_an_end(values: tuple[int, ...], at: int, beyond: int | None) -> None:
    """The last step once more, from 1 on; within there is nothing."""
    assert Parameter("G", values).beyond(at) == beyond


def test_a_search_keeps_them_for_its_champion(tmp_path: Path) -> None:
    """Once for a champion, whoever asks; the page says why."""
    table = small_table()
    path = tmp_path / "a.db"
    for trials in (30, 40):
        search(study(), db=path, device=TableDevice(table), trials=trials, sampler="random", seed=3)
    with open_readonly(path) as reader:
        record = reader.study()
        best = reader.best(record)
        assert best is not None
        kept = reader.infeasible_neighbours(record, best.number)
        facts = gather(reader, None)
        assert len(reader.proofs(record, "neighbours")) <= 2
    assert kept == infeasible_neighbours(table.space(), table.violation, best.config)
    assert kept
    assert facts.neighbours == {(one["gene"], one["value"]): one for one in kept}
    lines = {(gene["name"], line.value): line for gene in GeneValues(facts).genes() for line in gene["lines"]}
    for one in kept:
        line = lines.get((one["gene"], str(one["value"])))
        assert line is None or f": {one['reason']}" in line.note
