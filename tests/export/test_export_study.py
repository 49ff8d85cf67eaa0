"""From a search to its exported program: which code, which words, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from pathlib import Path

import pytest
from paths import ROOT
from stored_studies import reseal
from typer.testing import CliRunner

import evokern
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)

GUIDE = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the documents' kernel and a study of it, searched on a simulated L4."""
    place = tmp_path_factory.mktemp("searched")
    folder = place / "kernels" / "scale"
    folder.mkdir(parents=True)
    (place / "studies").mkdir()
    for name, language in (("kernel.cu", "cuda"), ("kernel.py", "python"), ("reference.h", "cpp")):
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
        (folder / name).write_text(blocks[0])
    study = 'kernel = "scale"\nproblems = ["65536"]\n[genes]\nLOADS = ["scalar"]\n[gate]\nrtol = 1e-4\n'
    (place / "studies" / "scale.toml").write_text(study)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        result = CliRunner().invoke(app, ["search", "scale", "--device", "sim:l4", "--trials", "2", "--quiet"])
        assert result.exit_code == 0, result.output
    return place


@pytest.fixture
def here(searched: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder, as the working directory."""
    monkeypatch.chdir(searched)
    monkeypatch.delenv("EVOKERN_DB", raising=False)
    return searched


def _invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.thorough
def test_the_champion_is_exported(here: Path, tmp_path: Path) -> None:
    """The file tells study, trial, device and time, labelled as predicted, and the command tells how to build it."""
    best = json.loads(_invoke("show", "--json")[1])["best"]
    target = tmp_path / "mine.cu"
    code, told, _ = _invoke("export", "-o", str(target))
    assert code == 0
    assert f"nvcc -arch=sm_89 {target} -o {tmp_path / 'mine'} && {tmp_path / 'mine'}" in told
    text = target.read_text()
    assert re.search(r"^// study: +scale, ", text, re.MULTILINE)
    assert re.search(rf"^// trial: +{best['trial']}$", text, re.MULTILINE)
    assert re.search(r"^// device: +sim:l4, simulated$", text, re.MULTILINE)
    assert re.search(rf"^// time: +{best['time_us']:.3f} µs predicted$", text, re.MULTILINE)
    assert "expected[0], 0, 0.0001)" in text.replace("0.0,", "0,"), "the study's own tolerance is used"


def test_python_exports_what_the_command_does(here: Path, tmp_path: Path) -> None:
    """`load_study().export()` writes the same program, of the champion or another trial, and names what is missing."""
    study = evokern.load_study()
    for words, options in (((), {}), (("--trial", "0"), {"trial": 0})):
        assert _invoke("export", *words, "-o", str(tmp_path / "same.cu"))[0] == 0
        command = (tmp_path / "same.cu").read_text()
        assert study.export(tmp_path / "same.cu", **options).read_text() == command
    with pytest.raises(evokern.EvokernError, match="no problem 3: 0 is 65536"):
        study.export(tmp_path / "same.cu", problem=3)


def test_python_reads_without_the_kernel(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel folder that breaks when imported is no matter to reading; a program needs it, or its stored copy."""
    study = evokern.load_study(db=here / "evokern.db")
    wanted = study.export(tmp_path / "same.cu").read_text()
    own = tmp_path / "kernels" / "scale"
    own.mkdir(parents=True)
    (own / "kernel.py").write_text("raise AssertionError('imported')")
    monkeypatch.chdir(tmp_path)
    (here / "kernels").rename(here / "gone")
    try:
        assert study.best is not None
        assert "predicted by a model" in study._repr_html_()
        assert study.report(tmp_path / "r.html").stat().st_size > 10_000
        with pytest.raises(evokern.EvokernError, match="imported"):
            study.export(tmp_path / "same.cu")
        (own / "kernel.py").unlink()
        assert study.export(tmp_path / "same.cu", trust=True).read_text() == wanted
    finally:
        (here / "gone").rename(here / "kernels")


def test_any_measured_trial_and_stdout(here: Path) -> None:
    """`--trial` picks another trial, `-o -` writes to stdout alone."""
    code, text, told = _invoke("export", "--trial", "0", "-o", "-")
    assert (code, told) == (0, "")
    assert text.startswith("// scale: ")
    assert re.search(r"^// trial: +0$", text, re.MULTILINE)


def test_what_cannot_be_exported(here: Path, tmp_path: Path) -> None:
    """An unknown trial, an unknown problem, and a place that cannot be written are named."""
    assert _invoke("export", "--trial", "99")[0] == 2
    code, _, told = _invoke("export", "--problem", "3")
    assert (code, told) == (2, "evokern: study scale has no problem 3: 0 is 65536\n")
    code, _, told = _invoke("export", "-o", str(tmp_path / "absent" / "best.cu"))
    assert (code, "name another file with -o" in told) == (2, True)


def test_changed_code_is_not_exported_as_the_trial_s(here: Path, tmp_path: Path) -> None:
    """When the kernel changed since, its present code is refused, and the database's copy is used where trusted."""
    source = here / "kernels" / "scale" / "kernel.cu"
    before = source.read_text()
    source.write_text(before.replace("2 * x[i]", "3 * x[i]"))
    try:
        code, _, told = _invoke("export", "-o", str(tmp_path / "best.cu"))
        assert (code, "--trust runs the kernel.py that the database keeps a copy of" in told) == (2, True)
        assert _invoke("export", "--trust", "-o", str(tmp_path / "best.cu"))[0] == 0
    finally:
        source.write_text(before)
    assert "y[i] = 2 * x[i];" in (tmp_path / "best.cu").read_text()


def test_show_needs_no_kernel_folder(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that was copied away is read where there is no kernel and no study file."""
    (tmp_path / "copied.db").write_bytes((here / "evokern.db").read_bytes())
    monkeypatch.chdir(tmp_path)
    code, told, _ = _invoke("show", "--db", "copied.db")
    assert (code, "µs predicted" in told) == (0, True)
    assert _invoke("show", "--db", "copied.db", "--trial", "0")[0] == 0


def test_what_was_only_predicted_slow_is_not_exported(here: Path, tmp_path: Path) -> None:
    """A candidate that is predicted slow never met the gate: its export is refused, with the ways on."""
    database = tmp_path / "my runs.db"
    shutil.copy("evokern.db", database)
    best = json.loads(_invoke("show", "--json")[1])["best"]["trial"]
    with sqlite3.connect(database) as db:
        evidence = json.dumps({"elite_us": 1.0, "predicted_us": 9.0})
        db.execute(
            "UPDATE evokern_trials SET outcome = 'slow', timings = '[]', gate = '{}', evidence = ? WHERE number = ?",
            [evidence, best],
        )
    reseal(database)
    code, _, told = _invoke("export", "--trial", str(best), "--db", str(database), "-o", str(tmp_path / "x.cu"))
    assert code == 2
    assert f"trial {best} of scale was predicted slow and never checked; verify it" in told
    assert f"`evokern verify scale --trial {best} --db '{database}'`" in told
    assert told.rstrip().endswith("or name a measured one")
    assert not (tmp_path / "x.cu").exists()
