"""Every kind of finding has planted defects, each with a clean twin."""

from __future__ import annotations

import pytest
from simt_tools import Defect, defects

from evokern.simt.sanitizer.findings import CLUSTER_HINTS, HINTS, UNFINISHED

ALL = defects()


@pytest.mark.parametrize("defect", ALL, ids=lambda defect: defect.name)
def test_defect_is_named_at_its_line(defect: Defect) -> None:
    """A planted defect is reported first, with kind, line and text, and no other kind is reported."""
    result = defect.run()
    assert {defect.kind} == {finding.kind for finding in result.findings}
    assert result.findings[0].line in defect.lines
    for finding in result.findings:
        assert finding.source == defect.source.splitlines()[finding.line - 1].strip()
        assert finding.count >= 1
        of_cluster = defect.kind in CLUSTER_HINTS and defect.name.startswith("cluster_")
        assert finding.hint.endswith((CLUSTER_HINTS if of_cluster else HINTS)[defect.kind])


@pytest.mark.thorough
@pytest.mark.parametrize("defect", ALL, ids=lambda defect: defect.name)
def test_clean_twin_is_clean(defect: Defect) -> None:
    """The mended version of each defect raises no finding."""
    result = defect.run(fixed=True)
    assert result.findings == ()
    assert result.completed


def test_every_kind_has_a_defect() -> None:
    """No kind of finding goes untested; `tests/simt/test_hangs.py` tests launches that are stopped at the limit."""
    assert set(HINTS) - {UNFINISHED} == {defect.kind for defect in ALL}
    assert len(ALL) >= 24
