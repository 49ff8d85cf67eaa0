"""What `evokern.tune` reports when a search fails or is interrupted."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import DATA
from typer.testing import CliRunner

import evokern
from evokern import api
from evokern.cli.app import app

SOURCE = """__global__ void scale(const float* x, float* y, int n) {
  int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i <= n) y[i] = expf(x[i]);
}
"""


def call(here: Path, source: str = SOURCE, **more: Any) -> evokern.SearchResult:
    x = np.linspace(-1, 1, 1024, dtype=np.float32)
    options = {
        "tolerance": 1e-5, "device": "sim:l4", "trials": 1, "db": here / "evokern.db", "grid": 9,
        "reference": lambda x: np.exp(x), **more,
    }  # fmt: skip
    return evokern.tune(
        source, "scale", [x, evokern.out_like(x), 1024], {"BLOCK": [128]}, block=lambda p: p.BLOCK, **options,
    )  # fmt: skip


def test_a_search_without_a_correct_candidate_warns_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The warning has the finding; a log file gets lines of progress; the export does not advise more time."""
    with pytest.warns(UserWarning, match=r"no candidate of scale is right \(1 crashed: out of bounds at line 3"):
        result = call(tmp_path)
    assert result.best is None
    assert "evokern: scale: 1 trials" in capsys.readouterr().err
    with pytest.raises(evokern.UsageError, match="correct the kernel or its declaration, or choose a trial by its nu"):
        result.export(tmp_path / "best.cu")


def test_a_name_that_nothing_defines_may_be_a_missing_parameter(tmp_path: Path) -> None:
    """The compiler's message is followed by the remedy."""
    with pytest.raises(evokern.UsageError, match='"LOAD" is undefined; if LOAD is a parameter, add it to params'):
        call(tmp_path, SOURCE.replace("}", "  if (LOAD) y[i] = 0;\n}"))


def test_the_command_that_verifies_names_the_reference(tmp_path: Path) -> None:
    """The reason of an unverified champion contains a command that works as it stands."""
    result = call(tmp_path, SOURCE.replace("<=", "<"), verify=False)
    assert "--reference" in result.summary["verified_reason"]


def test_a_tuned_study_has_no_file_to_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`search NAME` names the command that resumes it, and `render` needs no reference."""
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning):
        call(tmp_path)
    with pytest.raises(evokern.UsageError, match="contains this study; run `evokern resume scale --db evokern"):
        evokern.search("scale")
    done = CliRunner().invoke(app, ["render", "scale", "--set", "BLOCK=128", "-o", "made"])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "made" / "scale").iterdir()) == ["evokern_genes.h", "scale.cu"]


def test_a_numpy_reference_needs_a_tolerance(tmp_path: Path) -> None:
    """Errors are propagated through torch only."""
    with pytest.raises(evokern.UsageError, match=r"computes outside torch.*pass tolerance="):
        call(tmp_path, tolerance=None)


def test_an_interrupted_call_ends_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements after the call do not run with half a result."""

    class Interrupted:
        interrupted = True

    monkeypatch.setattr(api, "search_study", lambda *arguments, **options: Interrupted())
    with pytest.raises(KeyboardInterrupt, match="the same call continues it"):
        call(tmp_path)


@pytest.mark.slow
def test_ctrl_c_ends_a_script_like_every_python_script(tmp_path: Path) -> None:
    """SIGINT ends the process, so that a shell sees 130; the last line says how to continue."""
    for name in ("histogram.py", "histogram.cu"):
        shutil.copy(DATA / "tune" / name, tmp_path)
    command = [sys.executable, "histogram.py", "sim:l4"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "trials" in line)
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
    assert process.returncode == -signal.SIGINT
    assert told.splitlines()[-1].startswith("KeyboardInterrupt: the search of histogram was interrupted; the same call")


def test_a_race_within_a_warp_is_named_in_the_verification(tmp_path: Path) -> None:
    """The results are correct, so the candidate is verified; the reason names the line."""
    source = SOURCE.replace("<=", "<").replace(
        "y[i] = expf(x[i]);",
        "{\n    __shared__ float s[BLOCK]; s[threadIdx.x] = x[i];\n    y[i] = expf(s[threadIdx.x ^ 1]);\n  }",
    )
    result = call(
        tmp_path, source, grid=8, reference=lambda x: np.exp(x.reshape(-1, 2)[:, ::-1].reshape(-1)),
    )  # fmt: skip
    assert result.summary["verified"]
    assert "1 warning (shared race within a warp at line 5)" in result.summary["verified_reason"]
