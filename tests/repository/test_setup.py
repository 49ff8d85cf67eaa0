"""Set-up chooses by the driver it finds, takes choices by hand, and refuses what is none."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from paths import ROOT

from evokern.hardware.driver import Driver, Gpu

H200 = Gpu(0, "NVIDIA H200", (9, 0), 2**37)


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The set-up script, with its environment in an empty folder and nothing really run."""
    spec = importlib.util.spec_from_file_location("evokern_setup", ROOT / ".ci" / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "evokern_setup", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "evokern-setup.json")
    monkeypatch.setattr(module, "reachable", lambda index: False)
    monkeypatch.setattr(module, "commands", [], raising=False)

    def make(system: bool) -> None:
        (tmp_path / ".venv" / "bin").mkdir(parents=True, exist_ok=True)

    def call(command: list[str], **_: object) -> SimpleNamespace:
        if "pip" in command:
            module.commands.append(command)
        (tmp_path / ".venv" / "bin" / "evokern").touch()
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(module, "make_environment", make)
    monkeypatch.setattr(module.subprocess, "run", call)
    return module


def _driver(monkeypatch: pytest.MonkeyPatch, setup: ModuleType, driver: Driver) -> None:
    monkeypatch.setattr(setup, "load_driver_module", lambda: SimpleNamespace(probe=lambda: driver))


@pytest.mark.parametrize(
    ("driver", "extra", "torch"),
    [
        (Driver((13, 0), (H200,)), "cuda13", "2.13.0"),
        (Driver((12, 4), (H200,)), "cuda12", "2.9.1"),
        (Driver(None, (), "no NVIDIA driver"), "cuda13", "2.13.0"),
        (Driver((13, 0), (), "the driver shows no GPU"), "cuda13", "2.13.0"),
    ],
)
def test_the_driver_decides(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, driver: Driver, extra: str, torch: str, tmp_path: Path
) -> None:
    """CUDA 13, CUDA 12, or no GPU: CuPy and torch follow; a second run does nothing."""
    _driver(monkeypatch, setup, driver)
    assert setup.main([]) == 0
    (command,) = setup.commands
    assert command[-1].endswith(f"[{extra},test]")
    assert (tmp_path / ".venv" / "constraints.txt").read_text() == f"torch=={torch}\n"
    assert setup.main([]) == 0
    assert len(setup.commands) == 1


def test_a_choice_that_cannot_be_installed_is_not_remembered(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After a set-up that pip refused, the constraints are those of what is installed."""
    _driver(monkeypatch, setup, Driver((13, 0), (H200,)))
    assert setup.main(["TORCH=2.8.0"]) == 0
    monkeypatch.setattr(setup.subprocess, "run", lambda command, **_: SimpleNamespace(returncode=1))
    assert setup.main(["TORCH=banana"]) == 1
    assert (tmp_path / ".venv" / "constraints.txt").read_text() == "torch==2.8.0\n"
    assert json.loads(setup.STAMP.read_text())["settings"] == {"TORCH": "2.8.0"}


def test_a_choice_by_hand_stays(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `make setup CUDA=12` chose is kept by a later `make search`, and `CUDA=auto` takes it back."""
    _driver(monkeypatch, setup, Driver((13, 0), (H200,)))
    assert setup.main(["CUDA=12", "TORCH=2.8.0"]) == 0
    assert setup.commands[-1][-1].endswith("[cuda12,test]")
    assert setup.main([]) == 0
    assert len(setup.commands) == 1
    assert json.loads(setup.STAMP.read_text())["settings"] == {"CUDA": "12", "TORCH": "2.8.0"}
    assert setup.main(["CUDA=auto", "TORCH="]) == 0
    assert setup.commands[-1][-1].endswith("[cuda13,test]")


def test_the_system_s_packages_are_not_constrained(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """SYSTEM=1 takes the torch that is there, whatever its version."""
    _driver(monkeypatch, setup, Driver((13, 0), (H200,)))
    assert setup.main(["SYSTEM=1", "EXTRAS=test", "PIP_ARGS=--no-build-isolation"]) == 0
    (command,) = setup.commands
    assert "--constraint" not in command
    assert command[-3:-1] == ["--no-build-isolation", "--editable"]
    assert command[-1].endswith("[test]")


@pytest.mark.parametrize(
    ("arguments", "driver", "told"),
    [
        (["CUDA=11"], Driver(None), "CUDA=11 is neither 12, 13, none nor auto"),
        (["CUDDA=12"], Driver(None), "there is no setting CUDDA"),
        ([], Driver((11, 8), (H200,), "the driver supports CUDA 11.8; CuPy needs 12 or 13"), "update the driver"),
    ],
)
def test_what_cannot_be_is_refused(
    setup: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    driver: Driver,
    told: str,
) -> None:
    """An unknown choice and a driver that is too old are named, with what to do, and nothing is installed."""
    _driver(monkeypatch, setup, driver)
    assert setup.main(arguments) == 1
    assert told in capsys.readouterr().err
    assert setup.commands == []
