"""The README: its first screen is in order, and its Python example runs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from paths import DATA, ROOT

import evokern

README = (ROOT / "README.md").read_text(encoding="utf-8")
SCREEN = 70
"""Lines of the first screen."""


def test_the_first_screen_is_in_order() -> None:
    """One sentence, a picture, a call, four lines with their output, one line of proof, a table of six rows."""
    first = "\n".join(README.splitlines()[:SCREEN])
    parts = ("finds the fastest", "![", "evokern.tune(", "git clone", "```text", "1.37×", "| you bring")
    places = [first.index(part) for part in parts]
    assert places == sorted(places)
    assert first.partition("git clone")[2].partition("```")[0].count("\n") == 4
    table = [line for line in first.splitlines() if line.startswith("| ")]
    assert len(table) == 1 + 6
    for name in ("Kernel Tuner", "Triton", "Helion", "KernelBench"):
        assert name in table[0]
    assert "when *not* to use evokern" in table[-1]


def test_the_clone_of_the_readme_has_what_its_lines_use(tmp_path: Path) -> None:
    """A clone holds the Makefile, the kernels and the studies."""
    if not (ROOT / ".git").exists():
        pytest.skip("no repository to clone")
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", tmp_path / "evokern"], check=True)
    for file in ("Makefile", "kernels/attention/kernel.cu", "studies/attention-s512.toml", "docs/panel.svg"):
        assert (tmp_path / "evokern" / file).is_file()


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example works: here on a small recording, with few trials, and without pandas where it is missing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    table = DATA / "table_small.json.gz"
    study = f'kernel = "recording"\nproblems = ["recorded"]\ndevice = "replay:{table}"\n'
    (tmp_path / "studies" / "attention-s512.toml").write_text(study)
    _, example = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    example = example.replace('budget="10m"', 'budget="10m", trials=12')
    try:
        import pandas  # noqa: F401
    except ImportError:
        example = re.sub(r"^frame = .*$", "", example, flags=re.MULTILINE)
    # A recording has no source to export.
    example = re.sub(r"^study\.export.*$", "", example, flags=re.MULTILINE)
    if not hasattr(evokern, "load_study"):
        pytest.skip("evokern.load_study is not there yet")
    exec(compile(example, "README.md", "exec"), {})
    assert (tmp_path / "report.html").is_file()
