"""A package from a simulated sweep."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from packed import run_python
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.errors import StudyError

SWEEP = """
kernel = "rmsnorm"
device = "sim:l4"
trials = 1
problems = ["ROWS=8 COLS=64", "ROWS=8 COLS=64 dtype=bf16"]
[weights]
"ROWS=8 COLS=64" = 3.0
"""


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_a_sweep_must_be_searched_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without databases there is nothing to pack, and the message names the command."""
    monkeypatch.chdir(tmp_path)
    Path("shapes.toml").write_text(SWEEP)
    code, output = _run("pack", "shapes.toml", "-o", "my_norm")
    assert code == 2
    assert "was not searched; run `evokern sweep run shapes.toml`" in output
    assert not Path("my_norm").exists()


def test_ctrl_c_keeps_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to continue, and the exit code is that of an interruption."""

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("evokern.pack.packed_sweep", interrupted)
    Path("shapes.toml").write_text(SWEEP)
    code, output = _run("pack", "shapes.toml", "-o", "my_norm")
    assert (code, "the results so far are stored. To continue, repeat the command" in output) == (130, True)


@pytest.mark.parametrize(
    ("options", "shown"), [((), True), (("--json", "-v"), True), (("--json",), False), (("--quiet",), False)]
)
def test_progress_is_shown_on_stderr(
    options: Sequence[str], shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal too, each step is a line. As for other commands, `--json` and `--quiet` hide the lines."""

    def packed(
        sweep: object, databases: object, folder: object, request: object, report: Callable[[str], None]
    ) -> None:
        report("verifying 8 variants, 2 at a time")
        raise StudyError("nothing to pack")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("evokern.pack.packed_sweep", packed)
    Path("shapes.toml").write_text(SWEEP)
    result = CliRunner().invoke(app, ["pack", "shapes.toml", "-o", "my_norm", *options])
    assert (result.exit_code, result.stdout) == (2, "")
    assert ("verifying 8 variants, 2 at a time\n" in result.stderr) == shown


@pytest.mark.slow
def test_a_simulated_sweep_becomes_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two data types are two variants of one operator; packing again measures nothing and writes the same bytes."""
    monkeypatch.chdir(tmp_path)
    Path("shapes.toml").write_text(SWEEP)
    assert _run("sweep", "run", "shapes.toml", "--no-verify")[0] == 0
    code, output = _run("pack", "shapes.toml", "-o", "packed_norm", "--json", "--quiet")
    assert code == 0, output
    facts = json.loads(output[output.index("{") :])
    origins = json.loads(Path("packed_norm/packed_norm/provenance.json").read_text())["variants"]
    assert all("sanitizer: no findings" in one["verification"]["verified_reason"] for one in origins)
    assert (facts["operator"], len(facts["variants"]), facts["own_share"]) == ("packed_norm::rmsnorm", 2, 1.0)
    assert "all checks passed" in run_python(tmp_path / "packed_norm", "-m", "packed_norm.selftest")
    written = {name: Path("packed_norm", name).read_bytes() for name in facts["files"]}
    monkeypatch.setattr("evokern.pack.crosswise.running_device", None)
    assert _run("pack", "shapes.toml", "-o", "packed_norm")[0] == 0
    assert [name for name, data in written.items() if Path("packed_norm", name).read_bytes() != data] == []
    code, output = _run("pack", "shapes.toml", "-o", "packed_norm", "--variants", "1")
    assert code == 0
    assert "1 variant: trial 0 of rmsnorm-ROWS8_COLS64-sim_l4" in output
    assert "own variants serve 75 % of the weight" in output
    assert not Path("packed_norm/packed_norm/variant_1.cubin").exists()
