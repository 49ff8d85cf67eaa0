"""Defects that `hopper_candidates.py` adds to copies of the kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from hopper_candidates import DEFECTS, GROUPS, with_defects

from evokern.study.discovery import load_kernel


@pytest.mark.parametrize("name", DEFECTS)
def test_defects_match_the_texts_of_the_kernels(name: str, tmp_path: Path) -> None:
    """Each defect is added to the one line that it changes, and a gene selects the defect."""
    folder = with_defects(name, tmp_path)
    for number, (file, right, wrong) in zip(("FIRST", "SECOND"), DEFECTS[name], strict=True):
        assert f"DEFECT_{number}" in wrong and wrong != right
        assert (folder / file).read_text(encoding="utf-8").count(wrong) == 1
    assert load_kernel(folder).space.gene("DEFECT").values == ("none", "first", "second")


def test_each_group_has_defects() -> None:
    """Every fifth candidate of each group can have a defect."""
    assert {group.kernel for group in GROUPS.values()} == DEFECTS.keys()
