"""A sweep's file: combinations, names, and what a user may get wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import DATA
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.errors import UsageError
from evokern.sweep import read_sweep
from evokern.sweep.check import check_sweep

KERNEL = f'kernel = "{DATA}/kernels/scale_rows"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def names(path: Path, device: str | None = None) -> list[str]:
    return [one.name for one in read_sweep(path, device).studies]


def test_each_combination_is_a_study(tmp_path: Path) -> None:
    """Kernels, devices, data types and problems multiply; the names say which; other keys are each study's."""
    text = """
        kernels = ["attention", "rmsnorm"]
        devices = ["sim:l4", "sim:h200"]
        dtypes = ["f16", "bf16"]
        problems = ["B=2 H=8 S=512 D=64", "1,8,128,64"]
        trials = 12
        [gate]
        runs = 3
    """
    sweep = read_sweep(written(tmp_path, text))
    found = [one.name for one in sweep.studies]
    assert (16, 16) == (len(found), len(set(found)))
    assert found[:3] == [
        "attention-B2_H8_S512_D64-f16-sim_l4",
        "attention-1_8_128_64-f16-sim_l4",
        "attention-B2_H8_S512_D64-bf16-sim_l4",
    ]
    last = sweep.studies[-1].study
    assert ("rmsnorm", "sim:h200", "bf16", ("1,8,128,64",)) == (last.kernel, last.device, last.dtype, last.problems)
    assert {(one.study.trials, one.study.gate.runs) for one in sweep.studies} == {(12, 3)}
    assert sweep.folder == Path("sweep")


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ('device = "replay:/some/where/table_small.json.gz"', "scale_rows-64_256-replay_table_small"),
        ('dtype = "f32"\ndevice = "cuda:1"', "scale_rows-64_256-f32-cuda_1"),
        ("", "scale_rows-64_256-auto"),
    ],
)
def test_a_name_is_that_of_a_file(lines: str, name: str, tmp_path: Path) -> None:
    """No letter of a name means anything to a file system or a shell."""
    assert names(written(tmp_path, f'{KERNEL}problems = "64,256"\n{lines}\n')) == [name]


def test_a_device_of_the_command_line_stands_for_those_of_the_file(tmp_path: Path) -> None:
    """One device, whatever the file lists."""
    path = written(tmp_path, f'{KERNEL}devices = ["sim:l4", "sim:h200"]\nproblems = ["64,256"]\n')
    assert names(path, "sim:a100") == ["scale_rows-64_256-sim_a100"]


def test_a_long_name_stays_a_file_name(tmp_path: Path) -> None:
    """What does not fit is told apart by a digest."""
    path = written(tmp_path, f'{KERNEL}problems = ["{"7" * 300},1", "{"7" * 300},2"]\n')
    assert [len(name) < 200 for name in dict.fromkeys(names(path))] == [True, True]


def test_problems_have_weights(tmp_path: Path) -> None:
    """A problem that is not named counts once."""
    path = written(tmp_path, f'{KERNEL}problems = ["64,256", "64,512"]\n[weights]\n"64,512" = 3\n')
    assert [one.weight for one in read_sweep(path).studies] == [1.0, 3.0]


PROBLEM = 'problems = ["64,256"]\n'
SIMULATED = f'{KERNEL}device = "sim:l4"\ntrials = 3\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{KERNEL}problems = []", "problems is empty; use, for example, problems = "),
        (KERNEL, "lacks the key 'problems'; add problems = "),
        (PROBLEM, "lacks the key 'kernel'; add kernel = "),
        (f'{KERNEL}kernels = ["a"]\n{PROBLEM}', "has both kernel and kernels"),
        (f"{KERNEL}{PROBLEM}devices = []", "devices is []; use a list, devices = "),
        (f"{KERNEL}{PROBLEM}dtypes = [1]", "dtypes contains 1; it must be a string"),
        (f"{KERNEL}{PROBLEM}problms = 3", "unknown key 'problms': did you mean 'problems'?"),
        (f'{KERNEL}{PROBLEM}devces = ["auto"]', "unknown key 'devces': did you mean 'devices'?"),
        (f"{KERNEL}problems = 3", 'problems is 3; use problems = ["ROWS=1024 COLS=1024"]'),
        (f'{KERNEL}problems = ["64,256", "64, 256"]', "two combinations have the name scale_rows-64_256-auto"),
        (f'{KERNEL}{PROBLEM}[weights]\n"64,257" = 2', "weights names the problem '64,257': did you mean '64,256'?"),
        (f'{KERNEL}{PROBLEM}[weights]\n"64,256" = 0', "weights: '64,256' = 0; use a number above 0"),
        (f"{KERNEL}{PROBLEM}weights = 3", "weights is 3; it must be a table [weights]"),
        (f"{KERNEL}{PROBLEM}budget = 7", 'budget = 7 has no unit; use, for example, budget = "2h"'),
        (
            f'{SIMULATED}problems = ["64,256", "ROWS=64 COLS=256"]',
            "are the same study (64,256)",
        ),
        (f'{KERNEL}{PROBLEM}device = "sim:l4"', "has neither trials nor a budget, so its studies would not end"),
        (f'{KERNEL}{PROBLEM}trials = 3\ndevice = "sim:l5"', "there is no chip 'l5': did you mean 'l4'?"),
        (f'{KERNEL}{PROBLEM}trials = 3\ndevice = "gpu"', "there is no device 'gpu': known: auto"),
        (f'kernel = "rmsnrm"\n{PROBLEM}trials = 3', "there is no kernel 'rmsnrm': did you mean 'rmsnorm'?"),
        (f"{SIMULATED}{PROBLEM}[genes]\nWARPS = [3]", "[genes]: "),
        ("kernel = ", "is not valid TOML"),
    ],
)
def test_a_mistake_is_told_before_anything_is_made(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence with file, value and remedy; no folder, no database."""
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        check_sweep(read_sweep(path), Path("sweep"), bounded=False, allow_changes=False)
    assert told in str(caught.value)
    assert "sweep.toml" in str(caught.value)
    assert list(tmp_path.iterdir()) == [path]


def test_the_command_line_tells_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2 for a missing file, a budget that is none, a folder that is a file, a file of another sweep."""
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, f"{SIMULATED}{PROBLEM}")
    for words, told in (
        (["run", "absent.toml"], "a TOML file: did you mean 'sweep.toml'? known: sweep.toml"),
        (["run", str(path), "--budget", "3x"], "'3x' is not a duration"),
        (["run", str(path), "--db", str(path)], "cannot be the sweep's folder because it is a file"),
        (["show", "sweep"], "cannot read sweep sweep: No such file or directory; name a TOML file: did"),
        (["export", str(path), "-o", str(path)], "another folder with -o"),
    ):
        done = CliRunner().invoke(app, ["sweep", *words])
        assert (2, True) == (done.exit_code, told in done.stderr), done.stderr
    (tmp_path / "sweep").mkdir()
    for content, told in (
        ("{", "Expecting property name"),
        ("[]", "it is not an object with a list `slices`"),
        ('{"slices": {}}', "it is not an object with a list `slices`"),
        ('{"slices": []}', "'version' is missing"),
        ('{"slices": [], "version": "x"}', "version is 'x'"),
        ('{"slices": [3], "version": 1}', "a slice is 3, not an object"),
        ('{"slices": [{}], "version": 1}', "'study' is missing"),
    ):
        (tmp_path / "sweep" / "sweep.json").write_text(content)
        done = CliRunner().invoke(app, ["sweep", "show", str(path)])
        assert (2, True) == (done.exit_code, f"({told}" in done.stderr and "remove it" in done.stderr), done.stderr
        assert "Error" not in done.stderr
