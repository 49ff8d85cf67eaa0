"""A search on a simulated chip compares each new best with the default candidate; show and the export say so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from paths import ROOT
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.study.trust import remember_trust

RIGHT = "make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w)"
WRONG = RIGHT.replace("2 * v.z", "2.0000005f * v.z")
"""The faster candidates have an error that is far below the tolerance."""


def _told(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout if done.exit_code == 0 or done.stdout else done.stderr


@pytest.mark.thorough
def test_a_refuted_expression_and_a_proved_champion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower default candidate stays champion, because the faster one has another factor; both are named."""
    folder = tmp_path / "kernels" / "scale"
    folder.mkdir(parents=True)
    tutorial = (ROOT / "docs" / "getting-started.md").read_text()
    assert tutorial.count(RIGHT) == 1
    for language, file in (("cuda", "kernel.cu"), ("python", "kernel.py"), ("cpp", "reference.h")):
        (text,) = re.findall(rf"```{language}\n(.*?)```", tutorial, re.DOTALL)[:1]
        (folder / file).write_text(text.replace(RIGHT, WRONG))
    remember_trust(folder)
    monkeypatch.chdir(tmp_path)
    study = 'kernel = "scale"\nproblems = ["N=131072"]\nsampler = "grid"\n[genes]\nTHREADS = [256]\n'
    (tmp_path / "s.toml").write_text(study)
    code, told = _told("search", "s.toml", "--device", "sim:l4", "--quiet")
    assert code == 0, told
    code, told = _told("show", "s", "--trial", "1", "--json")
    found = json.loads(told)
    assert (found["outcome"], found["evidence"]["check"], found["evidence"]["element"]) == ("wrong", "algebra", 2)
    code, told = _told("prove", "s", "--trial", "1", "--json")
    (first, *_) = json.loads(told)["proofs"]
    assert [(one["verdict"], one["reference"], one["block"]) for one in first["verdicts"]] == [
        ("different", "equal", 0)
    ]
    assert code == 1
    code, told = _told("show", "s")
    assert "exact arithmetic: y is the same expression as the default candidate's, which equals the reference" in told
    code, told = _told("export", "s", "-o", "best.cu")
    assert code == 0, told
    assert "exact arithmetic: y is the same expression" in (tmp_path / "best.cu").read_text()
