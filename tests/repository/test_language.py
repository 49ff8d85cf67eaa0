"""The lint of the language rules: it finds what breaks each rule, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

LINT = ROOT / "docs" / "lint_words.py"


def lint(*files: Path) -> tuple[int, str]:
    """Return exit code and output of the lint."""
    done = subprocess.run([sys.executable, LINT, *files], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.md", "The search goes on after a restart.", "'goes on'"),
        ("a.md", "| option | stands beside the other |", "'beside'"),
        ("a.md", "What the kernel needs is computed.", "question word"),
        ("a.md", "word " * 26 + "end.", "27 words"),
        ("a.md", "a, b; " * 25, "150 characters"),
        ("a.py", '"""Tell the time."""', "'Tell'"),
        ("a.py", 'raise ValueError(f"leave {1} away or begin anew")', "'anew'"),
        ("a.py", "X = 1  # whoever reads it", "'whoever'"),
        ("a.cu", "// It is no limit.", "'is no'"),
        ("a.toml", "# told of\nx = 1", "'told'"),
    ],
)
def test_each_rule_finds_its_violation(tmp_path: Path, name: str, text: str, found: str) -> None:
    """Each planted violation is reported with its line, and the exit code is 1."""
    (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    code, output = lint(tmp_path / name)
    assert code == 1
    assert f"{name}:1" in output
    assert found in output


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "What does `--go-on` do? Optuna's `tell` returns.\n\n```\ngoes on\n```"),
        ("a.md", "<!-- words: quotes an old message -->\nIt goes on."),
        ("a.py", "GOES_ON = 'goes_on'\nTOLD = {'told': 1}"),
        ("a.py", "# words: the name of a stored value\nX = 'it goes on here'"),
        ("a.cu", "int told = 1;  // There is no limit."),
    ],
)
def test_code_questions_and_marked_lines_pass(tmp_path: Path, name: str, text: str) -> None:
    """Code spans, fenced code, short strings, questions and marked lines are not reported."""
    (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    assert lint(tmp_path / name) == (0, "")


def test_dates_belong_to_the_laboratory_notes(tmp_path: Path) -> None:
    """A date or an interval in a page of docs/ is reported, except in results.md and docs/lab/."""
    sys.path.insert(0, str(LINT.parent))
    try:
        import lint_words
    finally:
        sys.path.remove(str(LINT.parent))
    dated = ["It took 3 ± 1 ms on 2026-11-27."]
    for page in ("docs/searching.md", "docs/results.md", "docs/lab/2026-11-27-timing.md"):
        found = lint_words.page_problems(ROOT / page, dated)
        assert len(found) == (1 if page == "docs/searching.md" else 0), page
    link = ["The [notes](lab/2026-11-27-timing.md) have the measurements."]
    assert lint_words.page_problems(ROOT / "docs/searching.md", link) == []
