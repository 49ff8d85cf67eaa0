"""Operators on a GPU: a search of 20 s, a package, its self-test, and times next to the baselines (`pytest -s`)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from packed import described, install, run_python
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.pack import write_package
from evokern.pack.baseline_code import baselines_of
from evokern.study.discovery import find_kernel

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

STUDIES = {
    "rmsnorm": "ROWS=4096 COLS=4096",
    "attention": "B=2 H=8 S=512 D=64",
    "matmul": "M=16 N=4096 K=4096 layout=nt",
}


@pytest.mark.parametrize("kernel", STUDIES)
def test_a_searched_kernel_becomes_an_operator(kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package passes its self-test with the C++ library, and launched from Python."""
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(f'kernel = "{kernel}"\nproblems = ["{STUDIES[kernel]}"]\nbudget = "60s"\n')
    assert _ran("search", "study.toml", "--db", "study.db") == 0
    export = ["export", "study", "--db", "study.db", "--format", "torch", "-o"]
    if _ran(*export, f"my_{kernel}") != 0:  # the budget may end before the champion is verified
        assert _ran("verify", "study", "--db", "study.db", "--fuzz", "5s") == 0
        assert _ran(*export, f"my_{kernel}") == 0
    install(tmp_path / f"my_{kernel}", tmp_path / "fast")
    shown = run_python(tmp_path / "fast", "-m", f"my_{kernel}.selftest", "--times")
    print(shown)
    assert "all checks passed" in shown
    monkeypatch.setattr("evokern.pack.library.host_compiler", lambda: None)
    assert _ran(*export, f"slow_{kernel}") == 0
    install(tmp_path / f"slow_{kernel}", tmp_path / "slow")
    shown = run_python(tmp_path / "slow", "-m", f"slow_{kernel}.selftest", "--times")
    print(shown)
    assert "all checks passed" in shown
    assert "launched from Python, because the package was built without a C++ compiler" in shown


@pytest.mark.parametrize("compiled", [True, False])
def test_a_variant_makes_its_tensor_maps(compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default candidate with tensor copies passes the self-test with the C++ library, and launched from Python."""
    if tuple(torch.cuda.get_device_capability()) != (9, 0):
        pytest.skip("the machine code is for compute capability 9.0")
    if not compiled:
        monkeypatch.setattr("evokern.pack.library.host_compiler", lambda: None)
    made = described(
        find_kernel("matmul"), "M=512 N=1024 K=768 layout=nt", package="mapped_matmul", chip="h100", PATH="bulk"
    )
    write_package(tmp_path / "mapped_matmul", made, baselines_of(made.kernel), {})
    install(tmp_path / "mapped_matmul", tmp_path / "site")
    shown = run_python(tmp_path / "site", "-m", "mapped_matmul.selftest", "--times")
    print(shown)
    assert "all checks passed" in shown


def _ran(*arguments: str) -> int:
    result = CliRunner().invoke(app, list(arguments))
    print(result.output)
    return result.exit_code
