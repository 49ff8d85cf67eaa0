"""The hand-picked candidates that a GPU run times stay expressible and feasible."""

from __future__ import annotations

import json
from typing import Any

import pytest
from paths import DATA, KERNELS, STUDIES

from evokern.declaration.feasibility import check
from evokern.hardware.profiles import CHIPS, limits_for
from evokern.study.discovery import find_kernel, find_study

GROUPS = json.loads((DATA / "candidates.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group['study']}@{group.get('problem', 'own')}")
def test_hand_picked_candidates_are_feasible(group: dict[str, Any]) -> None:
    """Each choice that is named takes effect, no two candidates are the same, and an H200 can run each."""
    study = find_study(str(STUDIES / f"{group['study']}.toml"))
    kernel = find_kernel(str(KERNELS / study.kernel))
    problem = kernel.problem(group.get("problem", study.problems[0]))
    chip = limits_for(CHIPS["h200"], study.limits)
    default = kernel.space.default()
    configs = [kernel.space.with_changes(default, changes) for changes in group["candidates"]]
    for config, changes in zip(configs, group["candidates"], strict=True):
        assert changes == {name: config[name] for name in changes}
        assert check(kernel, config, [problem], chip) is None, changes
    assert len(set(configs)) == len(configs)
