"""Files of public repositories run as they are: the suite is for hands, since their texts are not part of this one."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest
from foreign_files import Unavailable, provide, texts_and_runs
from paths import ROOT

from evokern.analysis.sanitize.arguments import parse_argument
from evokern.errors import UsageError

SOURCES = ROOT / "tests" / "foreign" / "sources.toml"
FOLDER = "EVOKERN_FOREIGN"
"""Environment variable with the folder of the texts; without it they are fetched into a temporary one."""
ENOUGH = 0.97


def test_the_list_is_sound() -> None:
    """60 files of 5 repositories at least, ten chosen later; digests, arguments and expectations are well formed."""
    texts, runs = texts_and_runs(SOURCES)
    files = {(run.text.repository, run.text.path): run.later for run in runs}
    assert len(files) >= 60
    assert len({repository for repository, _ in files}) >= 5
    assert sum(files.values()) >= 10
    assert [name for name, count in Counter(run.name for run in runs).items() if count > 1] == []
    for text in texts:
        assert re.fullmatch(r"[0-9a-f]{40}", text.commit)
        assert re.fullmatch(r"[0-9a-f]{64}", text.sha256)
    for run in runs:
        assert run.expected.outcome in ("runs", "warning", "finding", "refused"), run.name
        assert bool(run.expected.line) == (run.expected.outcome in ("finding", "warning")), run.name
        assert bool(run.expected.reason) == (run.expected.outcome == "refused"), run.name
        for word in run.launch.get("arguments", "").split():
            try:
                parse_argument(word)
            except UsageError as error:
                pytest.fail(f"{run.name}: {error}")
    assert SOURCES.stat().st_size < 200_000


@pytest.mark.slow
def test_files_of_others_run_or_are_refused_for_a_true_reason(tmp_path: Path) -> None:
    """97 % at least come to what they must, and nothing that is right is called wrong."""
    folder = Path(os.environ.get(FOLDER, tmp_path))
    try:
        runs = provide(SOURCES, folder)
    except Unavailable as error:
        pytest.skip(f"{error} (set {FOLDER} to a folder with the texts)")
    results = [run.result(folder) for run in runs]
    assert [f"{result.run.name}: {result.detail}" for result in results if result.false_finding] == []
    others = [f"{result.run.name}: {result.outcome}, {result.detail}" for result in results if not result.as_expected]
    assert len(others) <= (1 - ENOUGH) * len(results), "\n".join(others)
