"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from paths import ROOT
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)

README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The README's kernel and study, written out in an empty folder."""
    folder = tmp_path / "kernels" / "scale"
    folder.mkdir(parents=True)
    (tmp_path / "studies").mkdir()
    (folder / "kernel.cu").write_text(_blocks("cuda")[0])
    (folder / "kernel.py").write_text(_blocks("python")[0])
    (folder / "reference.h").write_text(_blocks("cpp")[0])
    (tmp_path / "studies" / "scale.toml").write_text(_blocks("toml")[0])
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_kernel_of_the_readme_is_sound(scale: Path) -> None:
    """A complete kernel takes less than 60 lines of Python, and `check` finds nothing wrong with it."""
    result = CliRunner().invoke(app, ["check", "scale"])
    assert (result.exit_code, result.output.splitlines()[-1].partition(";")[0]) == (0, "the folder is sound")
    assert len(_blocks("python")[0].splitlines()) < 60


def test_each_command_line_of_the_readme_is_accepted() -> None:
    """Every option that the README's examples use exists."""
    lines = re.findall(r"^evokern (.+?)(?: +#.*)?$", README, re.MULTILINE)
    for line in lines:
        name, *rest = line.split()
        text = CliRunner().invoke(app, [name, "--help"]).output
        for word in rest:
            if word.startswith("-"):
                assert re.search(rf"(^|[\s,]){re.escape(word)}\b", text, re.MULTILINE), f"evokern {line}: no {word}"


def test_the_python_api_is_there() -> None:
    """What the README's Python example names exists."""
    import evokern

    example = _blocks("python")[1]
    for name in re.findall(r"evokern\.(\w+)", example):
        assert hasattr(evokern, name)
    assert {"best", "speedup"} <= set(dir(evokern.SearchResult)) | set(evokern.SearchResult.__dataclass_fields__)


def test_links_lead_somewhere() -> None:
    """Every relative link of the README leads to a file."""
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / target).is_file(), target


def test_make_targets_exist() -> None:
    """Every `make TARGET` that the README names is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([\w-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE) or target in ("search", "test"), target
